// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/process_rank.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

namespace {

using namespace encore;
using namespace encore::backend;

using Variables = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(Variables variables) {
  return [variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

ProcessRank rank_in(Variables variables) { return process_rank(lookup_in(std::move(variables))); }

void check(const ProcessRank& process, int rank, int size, int local_rank, int local_size,
           const std::string& launcher) {
  CHECK(process.rank == rank);
  CHECK(process.size == size);
  CHECK(process.local_rank == local_rank);
  CHECK(process.local_size == local_size);
  CHECK(process.launcher == launcher);
}

const Variables torchrun{{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "n0"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "none"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"}};

TEST_CASE("each launcher's variables name the rank") {
  check(rank_in({}), 0, 1, 0, 1, "");
  CHECK(rank_in({}).alone());
  check(rank_in(torchrun), 5, 8, 1, 4, "torchrun");
  CHECK(rank_in(torchrun).job == "n0-29500-2");
  CHECK(!rank_in(torchrun).on_one_host());
  const ProcessRank open_mpi = rank_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                        {"PMIX_NAMESPACE", "prterun-n0-17@1"}});
  check(open_mpi, 1, 2, 1, 2, "Open MPI");
  CHECK(open_mpi.job == "prterun-n0-17_1");
  CHECK(open_mpi.on_one_host());
  CHECK(open_mpi.from_mpi());
  check(rank_in({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
        3, 4, 1, 2, "PMI");
  check(rank_in({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), 3, 4, 3, 0, "PMI");
  const ProcessRank slurm = rank_in({{"SLURM_JOB_ID", "77"},
                                     {"SLURM_STEP_ID", "0"},
                                     {"SLURM_PROCID", "2"},
                                     {"SLURM_NTASKS", "4"},
                                     {"SLURM_LOCALID", "2"},
                                     {"SLURM_NNODES", "1"}});
  check(slurm, 2, 4, 2, 4, "Slurm");
  CHECK(slurm.job == "77-0");
}

TEST_CASE("the innermost launcher counts, and a Slurm script outside of steps is no rank") {
  Variables both = torchrun;
  both.insert({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}});
  check(rank_in(both), 5, 8, 1, 4, "torchrun");
  CHECK(rank_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}}).alone());
  CHECK(rank_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "4294967290"}}).alone());
}

TEST_CASE("a name of one's own is that of the launch") {
  Variables named = torchrun;
  named["ENCORE_JOB_ID"] = "my run/3";
  CHECK(rank_in(named).job == "my_run_3");
}

TEST_CASE("variables that are missing, no numbers or contradict each other are named") {
  const auto refused = [](Variables variables) {
    try {
      (void)rank_in(std::move(variables));
    } catch (const ConfigurationError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(
      refused({{"RANK", "1"}}) ==
      "the environment variable RANK is set and WORLD_SIZE is not: set both, or neither for a process alone");
  CHECK(refused({{"OMPI_COMM_WORLD_SIZE", "2"}}) ==
        "the environment variable OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not: set both, or "
        "neither for a process alone");
  for (const char* text : {"", "x", "-1", "1x", "99999999999"})
    CHECK(refused({{"RANK", text}, {"WORLD_SIZE", "2"}}) ==
          "the environment variable RANK is '" + std::string(text) + "' and must be a number from 0 on");
  CHECK(refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) ==
        "the environment variables RANK=2 and WORLD_SIZE=2 contradict each other: ranks count from 0");
  CHECK(refused({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "1"}}) ==
        "the environment variables LOCAL_RANK=1 and LOCAL_WORLD_SIZE=1 contradict each other: ranks count "
        "from 0");
  CHECK(refused({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "3"}}) ==
        "the environment variables LOCAL_WORLD_SIZE=3 and WORLD_SIZE=2 contradict each other: a host has no "
        "more "
        "processes than the job");
}

TEST_CASE("ranks meet below the shared folder, on one host in a temporary one, and else nowhere") {
  CHECK(meeting_folder(rank_in(torchrun), lookup_in({{"ENCORE_RENDEZVOUS", "/shared"}})) ==
        "/shared/n0-29500-2");
  CHECK(meeting_folder(rank_in(torchrun), lookup_in({})).empty());
  const ProcessRank unnamed = rank_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}});
  CHECK(meeting_folder(unnamed, lookup_in({{"ENCORE_RENDEZVOUS", "/shared"}})) == "/shared");
  const auto here = meeting_folder(unnamed, lookup_in({}));
  CHECK(here.is_absolute());
  CHECK(here == meeting_folder(unnamed, lookup_in({})));
  CHECK_THROWS_WITH_AS(join_gpu_job(rank_in(torchrun), {}, lookup_in({})),
                       "the processes of this job cannot find each other, nor see when one ends: set "
                       "ENCORE_RENDEZVOUS to a folder "
                       "that all hosts share",
                       ConfigurationError);
}

TEST_CASE("a process alone joins nothing") {
  CHECK(join_gpu_job({}).world == nullptr);
  CHECK(join_host_job({}).world == nullptr);
}

TEST_CASE("the id of a group survives its text, and no other text is one") {
  NcclId id;
  for (std::size_t i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(i * 7 + 1);
  CHECK(nccl_id_of(nccl_id_text(id)) == id);
  CHECK_THROWS_WITH_AS(nccl_id_of("0a0b"), "the id of an NCCL group has 128 bytes, not 2",
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(nccl_id_of("0a0"), "'0' at place 2 is no pair of hexadecimal digits",
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(nccl_id_of("0a-1"), "'-1' at place 2 is no pair of hexadecimal digits",
                       ConfigurationError);
}

}  // namespace
