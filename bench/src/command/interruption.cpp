// SPDX-License-Identifier: Apache-2.0
#include "interruption.hpp"

namespace encore::command {

namespace {

// A signal handler can reach nothing but this.
volatile std::sig_atomic_t noted = 0;

void note(int number) { noted = number; }

}  // namespace

Interruption::Interruption() {
  noted = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, &interrupt_before_);
  ::sigaction(SIGTERM, &action, &terminate_before_);
}

Interruption::~Interruption() {
  ::sigaction(SIGINT, &interrupt_before_, nullptr);
  ::sigaction(SIGTERM, &terminate_before_, nullptr);
}

int Interruption::signal() const { return noted; }

}  // namespace encore::command
