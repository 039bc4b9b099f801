// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/atomic_file.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <encore/backend/error.hpp>
#include <utility>

#include "text.hpp"

namespace encore::model {
namespace {

bool same_file(const struct stat& left, const struct stat& right) {
  return left.st_dev == right.st_dev && left.st_ino == right.st_ino;
}

/// A rename lasts over a power failure only once the folder itself is on the disk. Some file systems cannot
/// synchronise a folder: then there is nothing more to do.
void synchronise_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace

AtomicFile::AtomicFile(Names names, Unfinished unfinished) noexcept
    : names_(std::move(names)), unfinished_(unfinished) {}

// Delegating makes the object complete before anything can throw: the destructor then closes and removes.
AtomicFile::AtomicFile(const std::filesystem::path& target, Unfinished unfinished)
    : AtomicFile(Names{target, target, {}}, unfinished) {
  std::error_code error;
  if (std::filesystem::is_symlink(std::filesystem::symlink_status(target, error))) {
    names_.target = std::filesystem::canonical(target, error);
    if (error) fail("follow the symbolic link", error.value());
  }
  if (!names_.target.has_filename())
    throw OutputFileError(
        fmt::format("cannot write {}: it is not the name of a file", path_in_quotes(target)));
  struct stat status {};
  const bool exists = ::stat(names_.target.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode))
    throw OutputFileError(fmt::format("cannot write {}: it is {}, not a regular file", path_in_quotes(target),
                                      S_ISDIR(status.st_mode) ? "a directory" : "a pipe or device"));
  // Renaming would replace a read-only file all the same, against the wish of whoever protected it.
  if (exists && ::access(names_.target.c_str(), W_OK) != 0) fail("replace it", errno);
  names_.partial = names_.target;
  names_.partial += ".partial";
  open_partial();
  if (exists) static_cast<void>(::fchmod(descriptor_, status.st_mode & 07777));
}

void AtomicFile::open_partial() {
  // Between opening and locking, another run may have renamed the file that was opened; then its lock guards
  // the target, and the name has to be opened anew.
  for (int attempt = 0; attempt < 16; ++attempt) {
    descriptor_ =
        ::open(names_.partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (descriptor_ < 0) fail("create the file beside it", errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close();
      throw OutputFileError(fmt::format("cannot write {}: another process is writing {}",
                                        path_in_quotes(names_.named), path_in_quotes(names_.partial)));
    }
    struct stat opened {
    }, present{};
    if (::fstat(descriptor_, &opened) != 0) fail("examine the file beside it", errno);
    if (!S_ISREG(opened.st_mode)) {
      close();
      throw OutputFileError(fmt::format("cannot write {}: {} is not a regular file",
                                        path_in_quotes(names_.named), path_in_quotes(names_.partial)));
    }
    if (::stat(names_.partial.c_str(), &present) == 0 && same_file(opened, present)) {
      if (unfinished_ == Unfinished::remove) resize(0);
      return;
    }
    close();
  }
  throw OutputFileError(fmt::format("cannot write {}: other processes keep replacing {}",
                                    path_in_quotes(names_.named), path_in_quotes(names_.partial)));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  if (unfinished_ == Unfinished::remove) ::unlink(names_.partial.c_str());
  close();
}

void AtomicFile::close() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

void AtomicFile::fail(std::string_view action, int error_number) const {
  throw OutputFileError(fmt::format("cannot write {}: failed to {}: {}", path_in_quotes(names_.named), action,
                                    system_error_text(error_number)));
}

std::uint64_t AtomicFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail("examine the file beside it", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void AtomicFile::resize(std::uint64_t bytes) {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) fail("change its length", errno);
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  // Linux writes at most 0x7ffff000 bytes a call.
  constexpr std::size_t most_at_once = std::size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), most_at_once), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(fmt::format("write at byte {}", offset), errno);
    if (written == 0) fail(fmt::format("write at byte {}", offset), ENOSPC);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("bring it to the disk", errno);
  if (::rename(names_.partial.c_str(), names_.target.c_str()) != 0) fail("rename the file beside it", errno);
  close();
  const std::filesystem::path folder = names_.target.parent_path();
  synchronise_folder(folder.empty() ? "." : folder);
}

void write_file_atomically(const std::filesystem::path& target, std::string_view contents) {
  AtomicFile file(target);
  file.write_at(0, std::as_bytes(std::span(contents)));
  file.commit();
}

}  // namespace encore::model
