// SPDX-License-Identifier: Apache-2.0
#include "runtime.hpp"

#include <encore/backend/runtime.hpp>

#include <algorithm>

namespace encore::c {

RuntimeState::RuntimeState() = default;

std::shared_ptr<RuntimeState> RuntimeState::make(int threads) {
  if (threads < 0) throw UsageError("argument 'threads' is negative: 0 leaves their number to OpenMP");
  if (Kokkos::is_finalized())
    throw UsageError(
        "Kokkos was finalised in this process and cannot be initialised again: keep one runtime");
  const std::shared_ptr<RuntimeState> state(new RuntimeState);
  if (!Kokkos::is_initialized()) state->own_ = std::make_unique<backend::Runtime>(threads);
  Kokkos::push_finalize_hook([weak = std::weak_ptr(state)] {
    if (const auto alive = weak.lock()) alive->end_objects();
  });
  return state;
}

RuntimeState::~RuntimeState() {
  // Someone else finalised it: ending it once more would abort.
  if (own_ && Kokkos::is_finalized()) (void)own_.release();
}

std::size_t RuntimeState::objects() const {
  const std::lock_guard lock(mutex_);
  return objects_.size();
}

void RuntimeState::require_no_objects() const {
  const std::lock_guard lock(mutex_);
  if (objects_.empty()) return;
  std::string names;
  for (const Object* object : objects_) names += (names.empty() ? "" : ", ") + object->name();
  throw UsageError("the runtime is still needed by " + std::to_string(objects_.size()) +
                   (objects_.size() == 1 ? " object (" : " objects (") + names + "): destroy them first");
}

void RuntimeState::add(Object& object) {
  const std::lock_guard lock(mutex_);
  objects_.push_back(&object);
}

void RuntimeState::remove(Object& object) {
  const std::lock_guard lock(mutex_);
  std::erase(objects_, &object);
}

void RuntimeState::end_objects() {
  const std::lock_guard lock(mutex_);
  for (auto object = objects_.rbegin(); object != objects_.rend(); ++object) (*object)->end();
}

Object::Object(std::shared_ptr<RuntimeState> runtime, std::string name)
    : runtime_(std::move(runtime)), name_(std::move(name)) {
  runtime_->add(*this);
}

Object::~Object() { runtime_->remove(*this); }

}  // namespace encore::c

extern "C" {

int encore_runtime_create(int threads, encore_runtime** runtime) {
  return encore::c::guarded([&] {
    encore::c::require_pointer(runtime, "runtime");
    *runtime = new encore_runtime{encore::c::RuntimeState::make(threads)};
  });
}

int encore_runtime_destroy(encore_runtime* runtime) {
  return encore::c::guarded([&] {
    if (runtime == nullptr) return;
    runtime->state->require_no_objects();
    delete runtime;
  });
}

int encore_runtime_objects(const encore_runtime* runtime, size_t* count) {
  return encore::c::guarded([&] {
    encore::c::require_pointer(runtime, "runtime");
    encore::c::require_pointer(count, "count");
    *count = runtime->state->objects();
  });
}

int encore_runtime_device(const encore_runtime* runtime, int* device) {
  return encore::c::guarded([&] {
    encore::c::require_pointer(runtime, "runtime");
    encore::c::require_pointer(device, "device");
    *device = Kokkos::device_id();
  });
}

int encore_has_backend(encore_backend backend) {
  for (const encore::backend::Backend built : encore::backend::built_backends())
    if (static_cast<int>(built) == static_cast<int>(backend)) return 1;
  return 0;
}

}  // extern "C"
