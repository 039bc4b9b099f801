// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace encore::command {

/// While it lives, the first SIGINT or SIGTERM is only noted, so that the step can be finished and saved. The second
/// ends the program as usual.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// The signal that came, or 0.
  int signal() const;

 private:
  struct sigaction interrupt_before_ {};
  struct sigaction terminate_before_ {};
};

}  // namespace encore::command
