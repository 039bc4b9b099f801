// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/c/runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"

namespace encore::backend {
class Runtime;
}

namespace encore::c {

class Object;

/// Kokkos, and everything alive that lives on it.
class RuntimeState : public std::enable_shared_from_this<RuntimeState> {
 public:
  /// Initialises Kokkos or joins it. Throws UsageError after it was finalised, DeviceError as backend::Runtime does.
  static std::shared_ptr<RuntimeState> make(int threads);
  ~RuntimeState();

  std::size_t objects() const;
  /// Throws UsageError with the names of the objects while there are any.
  void require_no_objects() const;

 private:
  friend class Object;
  RuntimeState();
  void add(Object& object);
  void remove(Object& object);
  /// Gives back what the objects hold, the youngest first, as Kokkos is about to end.
  void end_objects();

  mutable std::mutex mutex_;
  std::vector<Object*> objects_;
  std::unique_ptr<backend::Runtime> own_;  ///< empty where Kokkos was running already
};

/// The base of every handle that belongs to a runtime. Calls take its lock: one thread at a time.
class Object {
 public:
  Object(std::shared_ptr<RuntimeState> runtime, std::string name);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  const std::string& name() const { return name_; }
  const std::shared_ptr<RuntimeState>& runtime() const { return runtime_; }

 protected:
  friend class RuntimeState;
  /// Gives back all that Kokkos has to be there for.
  virtual void end() noexcept = 0;

 private:
  std::shared_ptr<RuntimeState> runtime_;
  std::string name_;
};

}  // namespace encore::c

struct encore_runtime {
  std::shared_ptr<encore::c::RuntimeState> state;
};
