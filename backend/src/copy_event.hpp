// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cstddef>

namespace encore::backend::impl {

/// Tells a loaded Kokkos tool of a copy between host and device as of a deep_copy. Not in a recording.
class CopyEvent {
 public:
  CopyEvent(const char* label, const char* to, void* destination, const char* from, const void* source,
            std::size_t bytes)
      : begun_(Kokkos::Tools::profileLibraryLoaded()) {
    if (begun_)
      Kokkos::Tools::beginDeepCopy(Kokkos::Tools::make_space_handle(to), label, destination,
                                   Kokkos::Tools::make_space_handle(from), label, source, bytes);
  }
  ~CopyEvent() {
    if (begun_) Kokkos::Tools::endDeepCopy();
  }
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;

 private:
  bool begun_;
};

}  // namespace encore::backend::impl
