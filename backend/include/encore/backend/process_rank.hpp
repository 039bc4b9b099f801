// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace encore::backend {

/// Which process of a job this is.
struct ProcessRank {
  int rank = 0, size = 1;
  int local_rank = 0;    ///< among the processes of this host
  int local_size = 1;    ///< 0 where the launcher does not say
  std::string launcher;  ///< "torchrun", "Open MPI", "PMI" or "Slurm"; empty without one
  std::string job;       ///< a name of this launch, fit for a file's; empty where the launcher gives none

  bool alone() const { return size == 1; }
  bool on_one_host() const { return local_size == size; }
  bool from_mpi() const { return launcher == "Open MPI" || launcher == "PMI"; }
};

/// The value of an environment variable, or nothing.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
/// In this process' environment.
EnvironmentLookup environment();

/// From the variables of the innermost launcher: torchrun's RANK, WORLD_SIZE and LOCAL_RANK, Open MPI's OMPI_COMM_WORLD_*,
/// those of MPICH and others with PMI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID), Slurm's SLURM_PROCID, SLURM_NTASKS and
/// SLURM_LOCALID in a step of srun. Without any the process is alone. ENCORE_JOB_ID names the launch where it is set.
/// Throws ConfigurationError, naming the variable, for one that is missing, no number, or contradicts another.
ProcessRank process_rank(const EnvironmentLookup& lookup = environment());

}  // namespace encore::backend
