// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace encore::backend::impl {

enum class RankState { running, left, failed };

/// What a process tells the others of its job, as lines of a small file that is always replaced as a whole.
struct RankFile {
  std::string nonce;        ///< drawn by each process, so that files of earlier jobs are known as such
  std::string host, place;  ///< `place`: where process ids mean the same
  std::int64_t process = 0;
  std::string started;  ///< tells apart two processes of the same id
  int size = 0;         ///< of the job, as this process knows it
  std::uint64_t beat = 0;
  std::int64_t step = 0;
  RankState state = RankState::running;
  std::string cause;              ///< of a failure
  std::string joined;             ///< the nonce of the rank 0 that has seen this file
  std::string offer;              ///< of rank 0
  std::vector<std::string> seen;  ///< by rank 0, or one that failed while joining: the nonces of all

  /// Of this process, with a nonce of its own.
  static RankFile of_this_process();
  /// Nothing where there is no such file, or no whole one, or something else than a file in its place.
  static std::optional<RankFile> read(const std::filesystem::path& path);
  /// For this user alone. Throws OutputFileError.
  void write(const std::filesystem::path& path) const;

  /// Whether the process is known to have ended at the place `here`; elsewhere nothing is known.
  bool has_ended(const std::string& here) const;
  /// Whether both are of one process, which is in one job after the other.
  bool same_process(const RankFile& other) const;
  /// "process 1234 on 'node7'".
  std::string who() const;
};

/// What no other process of the same id has; empty where it is not known.
std::string start_of_process(std::int64_t process);

std::filesystem::path rank_file_path(const std::filesystem::path& folder, int rank);

}  // namespace encore::backend::impl
