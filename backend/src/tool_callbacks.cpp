// SPDX-License-Identifier: Apache-2.0
#include "tool_callbacks.hpp"

#include <encore/backend/error.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

namespace encore::backend::impl {

namespace {

namespace tools = Kokkos::Tools::Experimental;

bool calls_anything(const ToolCallbacks& callbacks) {
  return callbacks.begin_parallel_for != nullptr || callbacks.begin_parallel_reduce != nullptr ||
         callbacks.begin_parallel_scan != nullptr || callbacks.begin_deep_copy != nullptr ||
         callbacks.begin_fence != nullptr || callbacks.push_region != nullptr ||
         callbacks.allocate_data != nullptr || callbacks.deallocate_data != nullptr;
}

class Changes {
 public:
  const ToolCallbacks& loaded() const { return loaded_; }

  void look() {
    const std::lock_guard lock(mutex_);
    if (pauses_ + watches_ > 0 || (looked_ && other_threads_have_streams()))
      return;  // Others may be reading it.
    loaded_ = tools::get_callbacks();
    looked_ = true;
  }

  void pause() {
    const std::lock_guard lock(mutex_);
    begin(pauses_);
    set();
  }
  void resume() {
    const std::lock_guard lock(mutex_);
    --pauses_;
    set();
  }

  bool watch(void (*replace)(ToolCallbacks&)) {
    const std::lock_guard lock(mutex_);
    if (other_threads_have_streams()) return false;
    begin(watches_);
    watcher_ = std::this_thread::get_id();
    replace_ = replace;
    set();
    return true;
  }
  void end_watch() {
    const std::lock_guard lock(mutex_);
    --watches_;
    set();
    watch_ended_.notify_all();
  }

  void note(const void* stream) {
    std::unique_lock lock(mutex_);
    const auto free = [&] { return watches_ == 0 || watcher_ == std::this_thread::get_id(); };
    if (!watch_ended_.wait_for(lock, std::chrono::minutes(1), free))
      throw CaptureError(
          "a stream is made while another thread prepares a recording, which takes longer than a minute: "
          "make streams before a recording that waits for their threads");
    streams_[stream] = std::this_thread::get_id();
  }
  void forget(const void* stream) {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }

 private:
  bool other_threads_have_streams() const {
    const auto elsewhere = [](const auto& stream) { return stream.second != std::this_thread::get_id(); };
    return std::any_of(streams_.begin(), streams_.end(), elsewhere);
  }

  /// The first change looks at what it will put back.
  void begin(int& changes) {
    if (pauses_ + watches_ == 0) loaded_ = tools::get_callbacks();
    ++changes;
  }

  void set() {
    ToolCallbacks callbacks = loaded_;
    const bool pauses = pauses_ > 0 && calls_anything(loaded_);
    if (pauses) {
      callbacks = {};
    } else if (watches_ > 0) {
      replace_(callbacks);
    }
    const bool changes = pauses || watches_ > 0;
    if (changes || changed_) tools::set_callbacks(callbacks);
    changed_ = changes;
  }

  std::mutex mutex_;
  std::condition_variable watch_ended_;
  int pauses_ = 0;
  int watches_ = 0;
  bool changed_ = false;
  bool looked_ = false;
  std::thread::id watcher_;
  ToolCallbacks loaded_{};
  void (*replace_)(ToolCallbacks&) = nullptr;
  std::map<const void*, std::thread::id> streams_;
};

/// Never destroyed: a stream may outlive whatever is destroyed at the end of the program.
Changes& changes() {
  static Changes* const of_the_process = new Changes;
  return *of_the_process;
}

}  // namespace

// No lock: it changes only while no recording is under way.
const ToolCallbacks& loaded_callbacks() { return changes().loaded(); }
void look_at_callbacks() { changes().look(); }

void pause_callbacks() { changes().pause(); }
void resume_callbacks() { changes().resume(); }

bool watch_callbacks(void (*replace)(ToolCallbacks&)) { return changes().watch(replace); }
void end_watching_callbacks() { changes().end_watch(); }

void note_stream(const void* stream) { changes().note(stream); }
void forget_stream(const void* stream) { changes().forget(stream); }

}  // namespace encore::backend::impl
