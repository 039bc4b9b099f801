// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/line_log.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <span>
#include <string>

#include "text.hpp"

namespace encore::model {
namespace {

/// The bytes of the lines to keep: always a beginning of the text.
std::size_t kept_length(std::string_view text, const LineLog::KeepLine& keep_while) {
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos || !keep_while(text.substr(begin, end - begin))) return begin;
    begin = end + 1;
  }
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool is_stream(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  return type == std::filesystem::file_type::character || type == std::filesystem::file_type::fifo;
}

}  // namespace

LineLog::LineLog(const std::filesystem::path& path, const KeepLine& keep_while) : path_(path) {
  if (is_stream(path)) {
    stream_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (stream_ < 0)
      throw OutputFileError(
          fmt::format("cannot write {}: {}", path_in_quotes(path), system_error_text(errno)));
    return;
  }
  file_.emplace(path, AtomicFile::Unfinished::keep);
  if (keep_while) keep_old_lines(keep_while);
  file_->resize(length_);
}

void LineLog::keep_old_lines(const KeepLine& keep_while) {
  if (file_->size() > 0) {
    const MappedFile unfinished(file_->partial());
    length_ = kept_length(text_of(unfinished), keep_while);
  }
  // A run that was killed while it copied these lines, or that began anew, has left fewer of them.
  if (!std::filesystem::exists(file_->target())) return;
  const MappedFile finished(file_->target());
  const std::uint64_t length = kept_length(text_of(finished), keep_while);
  if (length <= length_) return;
  file_->write_at(0, finished.bytes().first(length));
  length_ = length;
}

LineLog::~LineLog() {
  if (stream_ >= 0) ::close(stream_);
}

void LineLog::append(std::string_view line) {
  if (line.find('\n') != std::string_view::npos)
    throw InternalError(fmt::format("a line for the log {} holds a line end", path_in_quotes(path_)));
  std::string text(line);
  text += '\n';
  if (stream_ >= 0) {
    append_to_stream(text);
    return;
  }
  if (!file_) throw InternalError(fmt::format("the log {} is already finished", path_in_quotes(path_)));
  try {
    file_->write_at(length_, std::as_bytes(std::span(text)));
  } catch (const OutputFileError&) {
    file_->resize(length_);
    throw;
  }
  length_ += text.size();
}

void LineLog::append_to_stream(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(stream_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw OutputFileError(
          fmt::format("cannot write {}: {}", path_in_quotes(path_), system_error_text(errno)));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void LineLog::finish() {
  if (!file_) return;
  file_->commit();
  file_.reset();
}

}  // namespace encore::model
