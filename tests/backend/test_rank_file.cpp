// SPDX-License-Identifier: Apache-2.0
// The small files by which processes of a job know each other, in folders into which others may write.
#include "../../backend/src/rank_file.hpp"
#include "temporary_folder.hpp"

#include <encore/backend/error.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace encore;
using encore::backend::impl::RankFile;

/// Of this process' settings, put back at the end.
class OpenUmask {
 public:
  OpenUmask() : before_(::umask(0)) {}
  ~OpenUmask() { ::umask(before_); }
  OpenUmask(const OpenUmask&) = delete;
  OpenUmask& operator=(const OpenUmask&) = delete;

 private:
  mode_t before_;
};

class NoMoreFiles {
 public:
  NoMoreFiles() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

bool ended_without_files(const RankFile& file) {
  const NoMoreFiles limit;
  return file.has_ended(file.place);
}

TEST_CASE("a rank's file is for its user alone, and replaces an older one as a whole") {
  const TemporaryFolder folder;
  const OpenUmask open;
  RankFile file = RankFile::of_this_process();
  file.size = 3;
  file.write(folder / "rank-0");
  file.beat = 7;
  file.seen = {"a", "", "c"};
  file.write(folder / "rank-0");
  struct stat status {};
  REQUIRE(::stat((folder / "rank-0").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(folder.files() == 1);
  const auto read = RankFile::read(folder / "rank-0");
  REQUIRE(read);
  CHECK(read->nonce == file.nonce);
  CHECK(read->size == 3);
  CHECK(read->beat == 7);
  CHECK(read->seen == std::vector<std::string>{"a", "-", "c"});
}

TEST_CASE("links and pipes in place of a rank's file are not followed") {
  const TemporaryFolder folder;
  const RankFile file = RankFile::of_this_process();
  file.write(folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", folder / "rank-0");
  CHECK(!RankFile::read(folder / "rank-0"));
  // What the file is called until it is whole.
  write_bytes(folder / "precious", "kept");
  std::filesystem::create_symlink(folder / "precious", folder / ("rank-0." + file.nonce));
  file.write(folder / "rank-0");
  CHECK(read_bytes(folder / "precious") == "kept");
  CHECK(!std::filesystem::is_symlink(folder / "rank-0"));
  CHECK(RankFile::read(folder / "rank-0").has_value());
  REQUIRE(::mkfifo((folder / "rank-1").c_str(), 0600) == 0);
  CHECK(!RankFile::read(folder / "rank-1"));
}

TEST_CASE("a file that cannot be written is named with the reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(RankFile::of_this_process().write(folder / "none" / "rank-0"),
                       ("the file '" + (folder / "none" / "rank-0").string() +
                        "' by which ranks find each other cannot be written: No such file or directory")
                           .c_str(),
                       OutputFileError);
}

TEST_CASE("a process of which nothing can be read has not ended") {
  const RankFile mine = RankFile::of_this_process();
  CHECK(!ended_without_files(mine));
  CHECK(!mine.has_ended(mine.place));
  CHECK(!mine.has_ended("elsewhere"));
  RankFile unknown = mine;
  unknown.started.clear();
  CHECK(!unknown.has_ended(mine.place));
  RankFile earlier = mine;
  earlier.started += "0";
  CHECK(earlier.has_ended(mine.place));
}

TEST_CASE("a process that has ended is known, before and after its parent has asked for it") {
  RankFile other = RankFile::of_this_process();
  const pid_t id = ::fork();
  if (id == 0) {
    ::pause();
    ::_exit(0);
  }
  other.process = id;
  other.started = backend::impl::start_of_process(id);
  CHECK(!other.has_ended(other.place));
  ::kill(id, SIGKILL);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(id), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(other.has_ended(other.place));
  int status = 0;
  ::waitpid(id, &status, 0);
  CHECK(other.has_ended(other.place));
  CHECK(ended_without_files(other));
}

}  // namespace
