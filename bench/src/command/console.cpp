// SPDX-License-Identifier: Apache-2.0
#include "console.hpp"

#include <encore/backend/error.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace encore::command {

void Console::print(std::string_view text) {
  if (voice_ == Voice::silent) return;
  while (!text.empty() && error_number_ == 0) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      error_number_ = errno;
    } else {
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
}

void Console::line(std::string_view text) { print(std::string(text) + '\n'); }

void Console::finish() const {
  if (error_number_ == 0 || error_number_ == EPIPE) return;
  throw OutputFileError("cannot write standard output: " + std::generic_category().message(error_number_));
}

bool Console::is_terminal() const { return ::isatty(STDOUT_FILENO) == 1; }

int Console::columns() const {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace encore::command
