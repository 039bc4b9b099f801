// SPDX-License-Identifier: Apache-2.0
#include "tool_callbacks.hpp"

#include <mutex>

namespace encore::backend::impl {

namespace {

struct Changes {
  std::mutex mutex;
  int pauses = 0;
  int watches = 0;
  ToolCallbacks loaded{};
  void (*replace)(ToolCallbacks&) = nullptr;

  void begin(int& count) {
    const std::lock_guard lock(mutex);
    if (pauses + watches == 0) loaded = Kokkos::Tools::Experimental::get_callbacks();
    ++count;
    set();
  }
  void end(int& count) {
    const std::lock_guard lock(mutex);
    --count;
    set();
  }

 private:
  void set() const {
    ToolCallbacks callbacks = loaded;
    if (pauses > 0) {
      callbacks = {};
    } else if (watches > 0) {
      replace(callbacks);
    }
    Kokkos::Tools::Experimental::set_callbacks(callbacks);
  }
};

Changes& changes() {
  static Changes of_the_process;
  return of_the_process;
}

}  // namespace

// No lock: it changes only while no recording is under way.
const ToolCallbacks& loaded_callbacks() { return changes().loaded; }

void pause_callbacks() { changes().begin(changes().pauses); }
void resume_callbacks() { changes().end(changes().pauses); }

void watch_callbacks(void (*replace)(ToolCallbacks&)) {
  {
    const std::lock_guard lock(changes().mutex);
    changes().replace = replace;
  }
  changes().begin(changes().watches);
}
void end_watching_callbacks() { changes().end(changes().watches); }

}  // namespace encore::backend::impl
