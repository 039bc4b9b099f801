// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include <encore/model/files/atomic_file.hpp>

namespace encore::model {

/// A log of one line a record that can be read while it grows and is whole when the run is killed.
///
/// Lines go to `<path>.partial`, each by one write of the whole line, so what a killed run leaves are
/// complete lines and at most one torn last one. `finish` renames to `<path>`; until then an older `<path>`
/// stands. A line that the disk has no room for is taken back, and OutputFileError is thrown. Without
/// `finish` the partial file stays where it is.
///
/// A path that is a pipe or a character device (`/dev/stderr`) is written directly.
class LineLog {
 public:
  /// Decides for one old line (without its line end) whether it is kept.
  using KeepLine = std::function<bool(std::string_view line)>;

  /// Without `keep_while` the log starts empty. With it (a resumed run), the log starts with the old lines up
  /// to the first that `keep_while` turns down (a step that will be done again) or that is torn: those of
  /// `<path>.partial` if a killed run left one, or of `<path>` where that has more of them.
  explicit LineLog(const std::filesystem::path& path, const KeepLine& keep_while = {});
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  /// Appends `line` and a line end. The line itself must hold none.
  void append(std::string_view line);

  /// Brings everything to the disk and puts the log in place. Nothing may be appended afterwards.
  void finish();

 private:
  void keep_old_lines(const KeepLine& keep_while);
  void append_to_stream(std::string_view text);

  std::filesystem::path path_;
  std::optional<AtomicFile> file_;
  int stream_ = -1;  ///< of a pipe or device, instead of file_
  std::uint64_t length_ = 0;
};

}  // namespace encore::model
