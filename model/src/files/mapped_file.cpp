// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/mapped_file.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <encore/backend/error.hpp>
#include <utility>

#include "text.hpp"

namespace encore::model {
namespace {

[[noreturn]] void throw_unreadable(const std::filesystem::path& path, int error_number) {
  throw InputFileError(
      fmt::format("cannot read {}: {}", path_in_quotes(path), system_error_text(error_number)));
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_unreadable(path_, errno);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    throw_unreadable(path_, error_number);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw InputFileError(fmt::format("cannot read {}: it is {}, not a regular file", path_in_quotes(path_),
                                     S_ISDIR(status.st_mode) ? "a directory" : "a pipe or device"));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size > 0) {
    void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      const int error_number = errno;
      ::close(descriptor);
      throw_unreadable(path_, error_number);
    }
    bytes_ = {static_cast<const std::byte*>(address), size};
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() > most_bytes)
    throw InputFileError(fmt::format("{} holds {} bytes, but at most {} are expected", path_in_quotes(path),
                                     bytes.size(), most_bytes));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace encore::model
