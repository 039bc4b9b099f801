// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/process_rank.hpp>

#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <limits>

namespace encore::backend {

namespace {

/// Some launchers say a thing under one name, some under another.
using Names = std::initializer_list<const char*>;

struct Launcher {
  const char* name;
  Names rank, size, local_rank, local_size;
};

std::int64_t number(const char* name, const std::string& text) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, value);
  if (status != std::errc() || rest != end || value < 0 || value > std::numeric_limits<int>::max())
    throw ConfigurationError("the environment variable " + std::string(name) + " is '" + text +
                             "' and must be a number from 0 on");
  return value;
}

struct Variable {
  const char* name;
  int value;

  std::string text() const { return std::string(name) + "=" + std::to_string(value); }
};

std::optional<Variable> find(const EnvironmentLookup& lookup, Names names) {
  for (const char* const name : names)
    if (const auto text = lookup(name)) return Variable{name, static_cast<int>(number(name, *text))};
  return std::nullopt;
}

void require_below(const Variable& index, const Variable& count) {
  if (index.value >= count.value)
    throw ConfigurationError("the environment variables " + index.text() + " and " + count.text() +
                             " contradict each other: ranks count from 0");
}

[[noreturn]] void refuse_alone(const char* there, const char* missing) {
  throw ConfigurationError("the environment variable " + std::string(there) + " is set and " + missing +
                           " is not: set both, or neither for a process alone");
}

/// Slurm numbers steps without srun, a batch script and an interactive shell, from above: such a process is no rank.
bool in_slurm_step(const EnvironmentLookup& lookup) {
  const auto step = lookup("SLURM_STEP_ID");
  return step && step->size() < std::string_view("4294967280").size();
}

std::optional<ProcessRank> rank_from(const EnvironmentLookup& lookup, const Launcher& launcher) {
  const auto rank = find(lookup, launcher.rank), size = find(lookup, launcher.size);
  if (!rank && !size) return std::nullopt;
  if (!size) refuse_alone(rank->name, *launcher.size.begin());
  if (!rank) refuse_alone(size->name, *launcher.rank.begin());
  require_below(*rank, *size);
  ProcessRank process{rank->value, size->value, rank->value, 0, launcher.name, ""};
  const auto local_rank = find(lookup, launcher.local_rank), local_size = find(lookup, launcher.local_size);
  if (local_rank) process.local_rank = local_rank->value;
  if (local_size) process.local_size = local_size->value;
  if (local_rank) require_below(*local_rank, local_size ? *local_size : *size);
  if (local_size && local_size->value > size->value)
    throw ConfigurationError("the environment variables " + local_size->text() + " and " + size->text() +
                             " contradict each other: a host has no more processes than the job");
  if (process.size == 1) process.local_size = 1;
  return process;
}

std::string fit_for_a_file(std::string name) {
  for (char& letter : name) {
    const bool plain = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                       (letter >= 'A' && letter <= 'Z') || letter == '.' || letter == '-';
    if (!plain) letter = '_';
  }
  return name.substr(0, 100);
}

std::string job_of(const EnvironmentLookup& lookup, const ProcessRank& process) {
  std::string job;
  const auto add = [&](Names names) {
    for (const char* const name : names)
      if (const auto value = lookup(name); value && !value->empty()) {
        job += (job.empty() ? "" : "-") + *value;
        return;
      }
  };
  if (const auto own = lookup("ENCORE_JOB_ID"); own && !own->empty()) return *own;
  if (process.launcher == "torchrun") {
    // The name is "none" unless one is asked for; the port is one job's at a time.
    if (lookup("TORCHELASTIC_RUN_ID") != "none") add({"TORCHELASTIC_RUN_ID"});
    add({"MASTER_ADDR"});
    add({"MASTER_PORT"});
    if (!job.empty()) add({"TORCHELASTIC_RESTART_COUNT"});
  } else {
    add({"PMIX_NAMESPACE", "PMI_JOBID"});
    if (job.empty() && lookup("SLURM_JOB_ID") && in_slurm_step(lookup)) {
      add({"SLURM_JOB_ID"});
      add({"SLURM_STEP_ID"});
      add({"SLURM_RESTART_COUNT"});
    }
  }
  return job;
}

}  // namespace

ProcessRank process_rank(const EnvironmentLookup& lookup) {
  const bool slurm = in_slurm_step(lookup);
  const std::array launchers{
      Launcher{"torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}},
      Launcher{"Open MPI",
               {"OMPI_COMM_WORLD_RANK"},
               {"OMPI_COMM_WORLD_SIZE"},
               {"OMPI_COMM_WORLD_LOCAL_RANK"},
               {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      Launcher{"PMI",
               {"PMI_RANK"},
               {"PMI_SIZE"},
               {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"},
               {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}},
      Launcher{"Slurm", {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {}}};
  for (const Launcher& launcher : launchers) {
    if (launcher.name == std::string_view("Slurm") && !slurm) continue;
    std::optional<ProcessRank> process = rank_from(lookup, launcher);
    if (!process) continue;
    if (process->local_size == 0 && slurm) {
      const auto hosts = find(lookup, {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"});
      if (hosts && hosts->value == 1) process->local_size = process->size;
    }
    process->job = fit_for_a_file(job_of(lookup, *process));
    return *process;
  }
  return {};
}

EnvironmentLookup environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

}  // namespace encore::backend
