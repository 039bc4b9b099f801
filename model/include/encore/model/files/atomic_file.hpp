// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace encore::model {

/// A file that is written beside its target, as `<target>.partial`, and takes the target's place in one step.
/// Until `commit` returns, the target is what it was before; a reader sees the old file or the new one.
///
/// The partial file is locked while it is written, so that two runs with the same target do not mix: the
/// second gets an error. (On file systems without locks there is no such protection.) What a killed run left
/// behind is reused by the next. A target that is a symbolic link is followed; one that exists and is not a
/// regular file, or is read-only, is refused. Every failure is an OutputFileError that names the target and
/// the system's reason.
class AtomicFile {
 public:
  enum class Unfinished {
    remove,  ///< destroyed without `commit`, the partial file goes
    keep     ///< it stays, and its contents are kept by the next AtomicFile of this kind
  };

  explicit AtomicFile(const std::filesystem::path& target, Unfinished unfinished = Unfinished::remove);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& target() const noexcept { return names_.target; }
  const std::filesystem::path& partial() const noexcept { return names_.partial; }

  /// The present length of the partial file, in bytes.
  std::uint64_t size() const;
  void resize(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Brings the data to the disk and renames. Afterwards the object is closed; it may only be destroyed.
  void commit();

 private:
  struct Names {
    std::filesystem::path named;   ///< as the caller wrote it: what errors show
    std::filesystem::path target;  ///< symbolic links followed
    std::filesystem::path partial;
  };
  AtomicFile(Names names, Unfinished unfinished) noexcept;

  [[noreturn]] void fail(std::string_view action, int error_number) const;
  void open_partial();
  void close() noexcept;

  Names names_;
  Unfinished unfinished_;
  int descriptor_ = -1;
};

/// Writes a small file in one go, through an AtomicFile.
void write_file_atomically(const std::filesystem::path& target, std::string_view contents);

}  // namespace encore::model
