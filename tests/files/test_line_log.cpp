// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <encore/backend/error.hpp>
#include <encore/model/files/line_log.hpp>
#include <string>

#include "file_size_limit.hpp"
#include "temporary_folder.hpp"

using encore::OutputFileError;
using encore::model::LineLog;

namespace {

/// Keeps the lines of the steps before `step`, for logs whose line is the step alone.
LineLog::KeepLine before(int step) {
  return [step](std::string_view line) {
    return line.find_first_not_of("0123456789") == std::string_view::npos &&
           std::stoi(std::string(line)) < step;
  };
}

}  // namespace

TEST_CASE("a log stands under its name once it is finished, and can be read while it grows") {
  const TemporaryFolder folder;
  LineLog log(folder / "log");
  log.append("1");
  log.append("2");
  CHECK(read_bytes(folder / "log.partial") == "1\n2\n");
  CHECK_FALSE(std::filesystem::exists(folder / "log"));
  log.finish();
  CHECK(read_bytes(folder / "log") == "1\n2\n");
  CHECK(folder.files() == 1);
}

TEST_CASE("a resumed log takes its old lines from where there are more of them") {
  const TemporaryFolder folder;
  const auto resumed = [&](const char* finished, const char* unfinished) {
    write_bytes(folder / "log", finished);
    write_bytes(folder / "log.partial", unfinished);
    LineLog log(folder / "log", before(5));
    log.append("5");
    log.finish();
    return read_bytes(folder / "log");
  };
  // Killed while it copied the lines of the finished log.
  CHECK(resumed("1\n2\n3\n4\n", "1\n2\n") == "1\n2\n3\n4\n5\n");
  CHECK(resumed("1\n2\n3\n4\n", "1\n2\n3") == "1\n2\n3\n4\n5\n");
  CHECK(resumed("1\n2\n3\n4\n", "") == "1\n2\n3\n4\n5\n");
  CHECK(resumed("1\n2\n", "1\n2\n3\n4\n5\n6") == "1\n2\n3\n4\n5\n");
  // As many lines in both: the killed run is the later one.
  CHECK(resumed("1\n2\n3\n4\n", "01\n2\n3\n4\n") == "01\n2\n3\n4\n5\n");
  CHECK(resumed("1\n2\n3\n4\n9\n", "1\n2\n3\n4\n") == "1\n2\n3\n4\n5\n");
  CHECK(folder.files() == 1);
}

TEST_CASE("a killed run leaves every line it wrote") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    LineLog log(folder / "log");
    for (int step = 0; step < 100; ++step) log.append(std::to_string(step));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  const std::string text = read_bytes(folder / "log.partial");
  CHECK(text.starts_with("0\n1\n"));
  CHECK(text.ends_with("98\n99\n"));
}

TEST_CASE("a resumed log keeps the old lines of a finished run") {
  const TemporaryFolder folder;
  write_bytes(folder / "log", "1\n2\n3\n");
  LineLog log(folder / "log", before(3));
  CHECK(read_bytes(folder / "log") == "1\n2\n3\n");
  log.append("3");
  log.append("4");
  log.finish();
  CHECK(read_bytes(folder / "log") == "1\n2\n3\n4\n");
}

TEST_CASE(
    "a resumed log keeps the lines that a killed run left, without a torn one and without repeated steps") {
  const TemporaryFolder folder;
  write_bytes(folder / "log", "an older run\n");
  SUBCASE("torn") {
    write_bytes(folder / "log.partial", "1\n2\n3");
    LineLog log(folder / "log", before(100));
    log.append("3");
    log.finish();
    CHECK(read_bytes(folder / "log") == "1\n2\n3\n");
  }
  SUBCASE("steps after the checkpoint") {
    write_bytes(folder / "log.partial", "1\n2\n3\n4\n5\n");
    LineLog log(folder / "log", before(3));
    log.append("3");
    log.finish();
    CHECK(read_bytes(folder / "log") == "1\n2\n3\n");
  }
  SUBCASE("nothing to keep") {
    write_bytes(folder / "log.partial", "7\n");
    LineLog log(folder / "log", before(3));
    log.finish();
    CHECK(read_bytes(folder / "log").empty());
  }
}

TEST_CASE("a fresh log forgets what a killed run left") {
  const TemporaryFolder folder;
  write_bytes(folder / "log.partial", "1\n2\n3\n");
  LineLog log(folder / "log");
  log.append("0");
  log.finish();
  CHECK(read_bytes(folder / "log") == "0\n");
}

TEST_CASE("a line that does not fit on the disk is taken back whole") {
  const TemporaryFolder folder;
  LineLog log(folder / "log");
  log.append("first");
  {
    const FileSizeLimit limit(10);
    CHECK_THROWS_WITH_AS(log.append("a line longer than the rest"), doctest::Contains("/log'"),
                         OutputFileError);
  }
  CHECK(read_bytes(folder / "log.partial") == "first\n");
  log.append("second");
  log.finish();
  CHECK(read_bytes(folder / "log") == "first\nsecond\n");
}

TEST_CASE("a device is written directly, and a full one is an error that names it") {
  LineLog nowhere("/dev/null");
  nowhere.append("line");
  nowhere.finish();
  LineLog full("/dev/full");
  CHECK_THROWS_WITH_AS(full.append("line"), "cannot write '/dev/full': No space left on device",
                       OutputFileError);
  CHECK(std::filesystem::is_character_file("/dev/null"));
}

TEST_CASE("a line with a line end inside, or after the end, is a defect of the caller") {
  const TemporaryFolder folder;
  LineLog log(folder / "log");
  CHECK_THROWS_AS(log.append("a\nb"), encore::InternalError);
  log.finish();
  log.finish();
  CHECK_THROWS_AS(log.append("a"), encore::InternalError);
}
