// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace encore::command {

/// Standard output. A failed write ends nothing: it is remembered, and nothing is written afterwards.
class Console {
 public:
  enum class Voice { loud, silent };
  /// `silent`: nothing is written.
  explicit Console(Voice voice = Voice::loud) : voice_(voice) {}

  /// Writes and flushes.
  void print(std::string_view text);
  void line(std::string_view text);

  /// Throws OutputFileError if a write failed, unless it is only that the reader had enough.
  void finish() const;

  bool is_terminal() const;
  /// Columns of the terminal; 80 where that is unknown.
  int columns() const;

 private:
  Voice voice_;
  int error_number_ = 0;
};

}  // namespace encore::command
