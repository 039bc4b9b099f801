// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/job_watch.hpp>
#include <encore/backend/nccl_transport.hpp>
#include <encore/backend/process_rank.hpp>
#include <encore/backend/transport.hpp>

#include <memory>
#include <string>

namespace encore::backend {

enum class Backend;

/// This process' part in a job of several.
struct Job {
  ProcessRank process;
  std::shared_ptr<Transport> world;  ///< nullptr for a process alone
  std::shared_ptr<JobWatch> watch;   ///< nullptr where the launcher ends the job with its first process
  std::shared_ptr<Transport> launcher =
      nullptr;  ///< MPI, where it brought the id of NCCL's group: ends with the job
};

/// The world of a job whose ranks compute on GPUs, over NCCL. The current GPU is this process' own: see Runtime.
///
/// The ranks find each other in a folder: below ENCORE_RENDEZVOUS, which all hosts share, or on one host below the one for
/// temporary files, in one that is named after the launch. By it they are watched too. Without a folder a build with MPI,
/// started by mpiexec, asks MPI, and mpiexec ends the job with the first process that ends; any other job without one is
/// refused: it could wait for a rank that is gone for ever. ENCORE_NCCL_ID holds the id of the group, as nccl_id_text() writes it, where
/// rank 0 is not to make one.
///
/// Every process of the job calls it, once. Throws ConfigurationError when there is no folder, or for a variable that says
/// nothing of use, OutputFileError for a temporary one that is not this user's alone, and what JobWatch and nccl_transport
/// throw.
Job join_gpu_job(const ProcessRank& process, const JobPatience& patience = {},
                 const EnvironmentLookup& lookup = environment());

/// The world of a job whose ranks compute on hosts, over MPI, which ends the job when a process dies. Throws DeviceError
/// in a build without MPI, ConfigurationError when MPI and the environment name different ranks.
Job join_host_job(const ProcessRank& process);

/// One of the two, by where ranks compute.
Job join_job(Backend backend, const ProcessRank& process, const JobPatience& patience = {});

/// Where the ranks of a GPU job meet; empty where there is no such place.
std::filesystem::path meeting_folder(const ProcessRank& process, const EnvironmentLookup& lookup);

/// For ENCORE_NCCL_ID, in hexadecimal digits. A launcher makes one for each job by nccl_id_text(make_nccl_id()), in a
/// process that lives until all ranks have joined.
std::string nccl_id_text(const NcclId& id);
/// Throws ConfigurationError.
NcclId nccl_id_of(const std::string& text);

}  // namespace encore::backend
