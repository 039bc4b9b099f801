// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <encore/backend/error.hpp>
#include <encore/model/files/atomic_file.hpp>
#include <span>
#include <string>

#include "file_size_limit.hpp"
#include "temporary_folder.hpp"

using encore::OutputFileError;
using encore::model::AtomicFile;
using encore::model::write_file_atomically;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

TEST_CASE("a file written atomically appears whole, under its name alone") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "hello");
  CHECK(read_bytes(folder / "a") == "hello");
  CHECK(folder.files() == 1);
  write_file_atomically(folder / "a", "");
  CHECK(read_bytes(folder / "a").empty());
}

TEST_CASE("the old file stands until the new one is committed") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write_at(0, bytes_of("new and longer"));
    CHECK(read_bytes(folder / "a") == "old");
    file.commit();
    CHECK(read_bytes(folder / "a") == "new and longer");
  }
  CHECK(read_bytes(folder / "a") == "new and longer");
  CHECK(folder.files() == 1);
}

TEST_CASE("a file that is not committed leaves nothing behind") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write_at(0, bytes_of("new"));
  }
  CHECK(read_bytes(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("running out of space keeps the old file and removes the new one") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  const std::string large(100'000, 'x');
  {
    const FileSizeLimit limit(50'000);
    CHECK_THROWS_WITH_AS(write_file_atomically(folder / "a", large),
                         doctest::Contains("/a': failed to write at byte"), OutputFileError);
  }
  CHECK(read_bytes(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("what a killed run left behind is replaced") {
  const TemporaryFolder folder;
  write_bytes(folder / "a.partial", "left by a run that was killed, and longer than the new file");
  write_file_atomically(folder / "a", "new");
  CHECK(read_bytes(folder / "a") == "new");
  CHECK(folder.files() == 1);
}

TEST_CASE("two writers of one file do not mix: the second is told, the first goes on") {
  const TemporaryFolder folder;
  AtomicFile first(folder / "a");
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "a"), doctest::Contains("another process is writing"),
                       OutputFileError);
  first.write_at(0, bytes_of("first"));
  first.commit();
  CHECK(read_bytes(folder / "a") == "first");
  write_file_atomically(folder / "a", "second");
  CHECK(read_bytes(folder / "a") == "second");
}

TEST_CASE("an open writer does not disturb the next one after its commit") {
  const TemporaryFolder folder;
  AtomicFile first(folder / "a");
  first.write_at(0, bytes_of("first"));
  first.commit();
  AtomicFile second(folder / "a");
  second.write_at(0, bytes_of("x"));
  CHECK(read_bytes(folder / "a") == "first");
}

TEST_CASE("a symbolic link stays a link and its file is replaced") {
  const TemporaryFolder folder;
  write_bytes(folder / "real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  write_file_atomically(folder / "link", "new");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(read_bytes(folder / "real") == "new");
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "dangling"), doctest::Contains("symbolic link"), OutputFileError);
}

TEST_CASE("the permissions of a replaced file are kept") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "old");
  ::chmod((folder / "a").c_str(), 0640);
  write_file_atomically(folder / "a", "new");
  struct stat status {};
  REQUIRE(::stat((folder / "a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("what cannot be a file is refused with a reason and is not replaced") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(AtomicFile(folder.path()), doctest::Contains("it is a directory"), OutputFileError);
  CHECK_THROWS_WITH_AS(AtomicFile(folder.path() / ""), doctest::Contains("not the name of a file"),
                       OutputFileError);
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "no/such/folder"), doctest::Contains("No such file or directory"),
                       OutputFileError);
  CHECK_THROWS_WITH_AS(AtomicFile("/dev/full"), doctest::Contains("pipe or device"), OutputFileError);
  CHECK(std::filesystem::is_character_file("/dev/full"));
  CHECK(folder.files() == 0);
}

TEST_CASE("a read-only file is not replaced") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "precious");
  ::chmod((folder / "a").c_str(), 0444);
  if (::access((folder / "a").c_str(), W_OK) == 0) {
    MESSAGE("skipped: this user may write every file");
    return;
  }
  CHECK_THROWS_WITH_AS(AtomicFile(folder / "a"), doctest::Contains("Permission denied"), OutputFileError);
}
