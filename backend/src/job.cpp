// SPDX-License-Identifier: Apache-2.0
#include "job_folder.hpp"
#include "rank_file.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/hexadecimal.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/mpi_transport.hpp>
#include <encore/backend/space.hpp>

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

namespace encore::backend {

namespace {

constexpr bool have_mpi = ENCORE_HAVE_MPI != 0;

NcclId nccl_id_from(std::span<const std::byte> bytes) {
  NcclId id{};
  if (bytes.size() != id.size())
    throw ConfigurationError("the id of an NCCL group has " + std::to_string(id.size()) + " bytes, not " +
                             std::to_string(bytes.size()));
  std::ranges::copy(bytes, id.begin());
  return id;
}

/// Of a launcher that gives the launch no name: all processes of a host are its children.
std::string name_of_parent() {
  const std::int64_t parent = ::getppid();
  return "process-" + std::to_string(parent) + "-" + impl::start_of_process(parent);
}

/// The folder of the user's choice; what is empty counts as unset.
std::optional<std::string> set_folder(const EnvironmentLookup& lookup) {
  auto folder = lookup("ENCORE_RENDEZVOUS");
  if (folder && folder->empty()) folder.reset();
  return folder;
}

/// Everybody may write into the folder for temporary files, and into a shared one whoever the user lets.
void make_meeting_folder(const std::filesystem::path& folder, const ProcessRank& process,
                         const EnvironmentLookup& lookup) {
  if (set_folder(lookup)) {
    if (!process.job.empty()) impl::make_real_folder(folder);
    return;
  }
  impl::make_private_folder(folder.parent_path());
  impl::make_private_folder(folder);
}

std::optional<NcclId> set_nccl_id(const EnvironmentLookup& lookup) {
  const auto text = lookup("ENCORE_NCCL_ID");
  if (!text || text->empty()) return std::nullopt;
  try {
    return nccl_id_of(*text);
  } catch (const ConfigurationError& error) {
    throw ConfigurationError(std::string("the environment variable ENCORE_NCCL_ID: ") + error.what());
  }
}

}  // namespace

std::string nccl_id_text(const NcclId& id) { return to_hexadecimal(id); }

NcclId nccl_id_of(const std::string& text) { return nccl_id_from(from_hexadecimal(text)); }

std::filesystem::path meeting_folder(const ProcessRank& process, const EnvironmentLookup& lookup) {
  if (const auto shared = set_folder(lookup))
    return process.job.empty() ? std::filesystem::path(*shared)
                               : std::filesystem::path(*shared) / process.job;
  if (!process.on_one_host()) return {};
  return impl::temporary_folder(lookup) / ("encore-" + std::to_string(::geteuid())) /
         (process.job.empty() ? name_of_parent() : process.job);
}

Job join_gpu_job(const ProcessRank& process, const JobPatience& patience, const EnvironmentLookup& lookup) {
  Job job{process, nullptr, nullptr};
  if (process.alone()) return job;
  const auto given = set_nccl_id(lookup);
  // Rank 0's counts.
  const auto own_id = [&] { return given ? *given : process.rank == 0 ? make_nccl_id() : NcclId{}; };
  const auto folder = meeting_folder(process, lookup);
  if (folder.empty()) {
    if (!have_mpi || !process.from_mpi())
      throw ConfigurationError(
          "the processes of this job cannot find each other, nor see when one ends: set ENCORE_RENDEZVOUS "
          "to a folder that all hosts share");
    // mpiexec ends the job with the first process that ends without MPI, as one does that throws.
    job.launcher = mpi_transport("world");
    NcclId id = own_id();
    job.launcher->broadcast(id.data(), id.size(), DataType::uint8, 0, nullptr);
    job.world = nccl_transport("world", id, process.size, process.rank);
    return job;
  }
  make_meeting_folder(folder, process, lookup);
  const NcclId id = own_id();
  job.watch = std::make_shared<JobWatch>(folder, process.rank, process.size,
                                         std::vector<std::byte>(id.begin(), id.end()), patience);
  job.world =
      nccl_transport("world", nccl_id_from(job.watch->offer()), process.size, process.rank, job.watch);
  return job;
}

Job join_host_job(const ProcessRank& process) {
  if (process.alone()) return {process, nullptr, nullptr};
  if (!have_mpi)
    throw DeviceError(
        "this build has no MPI, over which processes that compute on hosts talk: build with "
        "ENCORE_ENABLE_MPI=ON where MPI is installed");
  auto world = mpi_transport("world");
  if (world->rank() != process.rank || world->size() != process.size)
    throw ConfigurationError(
        "the environment names rank " + std::to_string(process.rank) + " of " + std::to_string(process.size) +
        ", MPI rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
        ": start processes that compute on hosts with the mpiexec of the MPI that this was built with");
  return {process, std::move(world), nullptr};
}

Job join_job(Backend backend, const ProcessRank& process, const JobPatience& patience) {
  return backend == Backend::cuda ? join_gpu_job(process, patience) : join_host_job(process);
}

}  // namespace encore::backend
