// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace encore::backend::impl {

/// While it lives, a Kokkos kernel, deep copy or initialized View of this thread throws CaptureError before it runs: it
/// would run now, when nothing should, and be missing from each replay. Told by Kokkos' own tool callbacks, which cost
/// nothing while nobody records. Other threads' kernels, and a tool that is loaded, go on as before. Does nothing while
/// streams of several threads are alive: see tool_callbacks.hpp. For priming only:
/// Kokkos waits for the device before it calls a tool, which a capture forbids.
class ForeignKernelWatch {
 public:
  explicit ForeignKernelWatch(const std::string& graph);
  ~ForeignKernelWatch();
  ForeignKernelWatch(const ForeignKernelWatch&) = delete;
  ForeignKernelWatch& operator=(const ForeignKernelWatch&) = delete;

 private:
  const std::string* before_;  ///< what this thread was recording already
  bool watches_;
};

}  // namespace encore::backend::impl
