// SPDX-License-Identifier: Apache-2.0
// Where the processes of a GPU job meet: what is refused before any GPU is asked for.
#include <encore/backend/error.hpp>
#include <encore/backend/job.hpp>

#include "temporary_folder.hpp"

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <map>

namespace {

using namespace encore;
using namespace encore::backend;

using Variables = std::map<std::string, std::string>;

/// A rank that nobody joins; where it waits for the others until the time is over is not refused.
template <class Exception>
std::string refusal_of(const Variables& variables, int local_size = 2) {
  ProcessRank process;
  process.rank = 1;
  process.size = 2;
  process.local_size = local_size;
  process.job = "job";
  JobPatience patience;
  patience.joining = std::chrono::milliseconds(100);
  try {
    (void)join_gpu_job(process, patience, [&](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    });
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

unsigned mode_of(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

std::string own_name() { return "encore-" + std::to_string(::geteuid()); }

constexpr const char* remedy = ": remove it, or set ENCORE_RENDEZVOUS to a folder of your own";

TEST_CASE("folders below the temporary one are made for this user alone") {
  const TemporaryFolder folder;
  const mode_t before = ::umask(0);
  const std::string sentence = refusal_of<CommunicationError>({{"TMPDIR", folder.path().string()}});
  ::umask(before);
  CHECK(
      sentence.starts_with("rank 0 of 2 did not come to '" + (folder.path() / own_name() / "job").string()));
  CHECK(sentence.find("ENCORE_RENDEZVOUS") != std::string::npos);
  CHECK(sentence.find("ENCORE_JOB_ID") != std::string::npos);
  CHECK(mode_of(folder.path() / own_name()) == 0700);
  CHECK(mode_of(folder.path() / own_name() / "job") == 0700);
  CHECK(mode_of(folder.path() / own_name() / "job" / "rank-1") == 0600);
}

TEST_CASE("a link, another's folder or one that others may write into is no place to meet") {
  const TemporaryFolder folder;
  const auto own = folder.path() / own_name();
  const auto refusal = [&] { return refusal_of<OutputFileError>({{"TMPDIR", folder.path().string()}}); };
  const auto sentence = [](const std::filesystem::path& path, const char* why) {
    return "the folder '" + path.string() + "' by which ranks find each other " + why + remedy;
  };
  SUBCASE("a link") {
    std::filesystem::create_directory(folder / "elsewhere");
    std::filesystem::create_directory_symlink(folder / "elsewhere", own);
    CHECK(refusal() == sentence(own, "is a link or a file"));
    CHECK(std::filesystem::is_empty(folder / "elsewhere"));
  }
  SUBCASE("open to others") {
    std::filesystem::create_directory(own);
    REQUIRE(::chmod(own.c_str(), 0777) == 0);
    CHECK(refusal() == sentence(own, "can be written to by other users"));
  }
  SUBCASE("that of the job open to others") {
    REQUIRE(::mkdir(own.c_str(), 0700) == 0);
    std::filesystem::create_directory(own / "job");
    REQUIRE(::chmod((own / "job").c_str(), 0770) == 0);
    CHECK(refusal() == sentence(own / "job", "can be written to by other users"));
  }
  SUBCASE("another user's") {
    if (::geteuid() != 0) return;
    std::filesystem::create_directory(own);
    REQUIRE(::chown(own.c_str(), 12345, 12345) == 0);
    CHECK(refusal() == sentence(own, "belongs to another user"));
  }
}

TEST_CASE("a folder of one's choice may be shared, but a link in it is not followed") {
  const TemporaryFolder folder;
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  const Variables variables{{"ENCORE_RENDEZVOUS", folder.path().string()}};
  CHECK(refusal_of<CommunicationError>(variables, 0).starts_with("rank 0 of 2 did not come to '"));
  CHECK(mode_of(folder / "job" / "rank-1") == 0600);
  std::filesystem::remove_all(folder / "job");
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::create_directory_symlink(folder / "elsewhere", folder / "job");
  CHECK(refusal_of<OutputFileError>(variables, 0).find("is a link or a file") != std::string::npos);
  CHECK(std::filesystem::is_empty(folder / "elsewhere"));
}

TEST_CASE("a folder for temporary files that is none is named with its variable") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "no folder");
  for (const char* const name : {"TMPDIR", "TMP"})
    for (const std::string& value : {(folder / "file").string(), (folder / "none").string()})
      CHECK(refusal_of<ConfigurationError>({{name, value}}) ==
            "the environment variable " + std::string(name) + " is '" + value +
                "', which is no folder: set it to one for temporary files, or unset it");
}

TEST_CASE("the id of a group that is none is named with its variable, and an empty one counts as unset") {
  const TemporaryFolder folder;
  Variables variables{{"ENCORE_RENDEZVOUS", folder.path().string()}, {"ENCORE_NCCL_ID", "0a0"}};
  CHECK(refusal_of<ConfigurationError>(variables) ==
        "the environment variable ENCORE_NCCL_ID: '0' at place 2 is no pair of hexadecimal digits");
  variables["ENCORE_NCCL_ID"] = "0a0b";
  CHECK(refusal_of<ConfigurationError>(variables) ==
        "the environment variable ENCORE_NCCL_ID: the id of an NCCL group has 128 bytes, not 2");
  variables["ENCORE_NCCL_ID"] = "";
  CHECK(refusal_of<CommunicationError>(variables).starts_with("rank 0 of 2 did not come to '"));
}

TEST_CASE("a job whose ranks cannot see one another's end is refused, also with the id of its group") {
  for (const Variables& variables : {Variables{}, Variables{{"ENCORE_NCCL_ID", nccl_id_text(NcclId{})}},
                                     Variables{{"ENCORE_RENDEZVOUS", ""}}})
    CHECK(refusal_of<ConfigurationError>(variables, 0) ==
          "the processes of this job cannot find each other, nor see when one ends: set ENCORE_RENDEZVOUS to "
          "a folder that all hosts share");
}

}  // namespace
