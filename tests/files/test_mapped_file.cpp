// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <utility>

#include "temporary_folder.hpp"

using encore::InputFileError;
using encore::model::MappedFile;
using encore::model::read_text_file;

TEST_CASE("a mapped file shows its bytes, and an empty one shows none") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "bytes");
  write_bytes(folder / "empty", "");
  const MappedFile file(folder / "a");
  REQUIRE(file.bytes().size() == 5);
  CHECK(file.bytes()[1] == std::byte{'y'});
  CHECK(MappedFile(folder / "empty").bytes().empty());
}

TEST_CASE("a mapped file can be moved and still shows its bytes") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "first");
  write_bytes(folder / "b", "second");
  MappedFile moved{MappedFile(folder / "a")};
  CHECK(moved.bytes()[0] == std::byte{'f'});
  moved = MappedFile(folder / "b");
  CHECK(moved.bytes()[0] == std::byte{'s'});
  CHECK(moved.path() == folder / "b");
}

TEST_CASE("what is not a readable regular file is refused at once, with its name and the reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(MappedFile(folder / "none"), doctest::Contains("/none': No such file or directory"),
                       InputFileError);
  CHECK_THROWS_WITH_AS(MappedFile(folder.path()), doctest::Contains("it is a directory"), InputFileError);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(MappedFile(folder / "pipe"), doctest::Contains("it is a pipe or device"),
                       InputFileError);
  CHECK_THROWS_WITH_AS(MappedFile("/dev/zero"), doctest::Contains("it is a pipe or device"), InputFileError);
}

TEST_CASE("a name that does not print is shown escaped") {
  CHECK_THROWS_WITH_AS(MappedFile("no\nsuch\x01 file"),
                       "cannot read 'no\\x0asuch\\x01 file': No such file or directory", InputFileError);
}

TEST_CASE("a text file above its limit is refused with both sizes") {
  const TemporaryFolder folder;
  write_bytes(folder / "a", "12345");
  CHECK(read_text_file(folder / "a", 5) == "12345");
  CHECK_THROWS_WITH_AS(read_text_file(folder / "a", 4), doctest::Contains("holds 5 bytes, but at most 4"),
                       InputFileError);
}
