// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/planned_transport.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace encore::model {

/// What connects GPUs.
struct ClusterLink {
  double gigabytes_per_second = 0;  ///< of a GPU, in one direction
  double microseconds = 0;          ///< from a send to its receive
};

/// What a GPU reaches in practice.
struct GpuRates {
  double teraflops_per_second = 0;         ///< of large matrix products
  double memory_gigabytes_per_second = 0;  ///< what is read and what is written both count
};

/// A cluster as far as a plan needs it. World ranks fill one node after the other.
struct ClusterDescription {
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 1;
  double gibibytes_per_gpu = 0;
  ClusterLink within_node, between_nodes;
  std::optional<GpuRates> rates = std::nullopt;

  std::int64_t gpus() const { return nodes * gpus_per_node; }
};

/// Reads
///
///   {"nodes": 2, "gpus_per_node": 8, "gib_per_gpu": 141,
///    "within_node": {"gb_per_s": 450, "latency_us": 4}, "between_nodes": {"gb_per_s": 50, "latency_us": 10}}
///
/// and, if a step's time is to be estimated, `"rates": {"tflops": 700, "memory_gb_per_s": 4000}` of a GPU.
/// `between_nodes` may be left out for one node. Throws InputFileError, with `file` and the field, for anything else.
ClusterDescription parse_cluster(std::string_view json, const std::string& file);

/// Whether no group of this kind that has ranks of the stage reaches beyond a node: the slowest of them counts.
bool stays_in_node(const RankLayout& layout, RankGroup group, std::int64_t stage, std::int64_t gpus_per_node);

/// The same of the messages between two stages.
bool messages_stay_in_node(const RankLayout& layout, std::int64_t stage, std::int64_t other,
                           std::int64_t gpus_per_node);

/// Bytes that a rank sends for an operation of `ranks` ranks by a ring: of all_reduce 2 (n - 1) / n of what is reduced, of
/// reduce_scatter, all_gather and all_to_all (n - 1) / n of the longer side; messages and broadcasts as they are, receives
/// nothing.
double bytes_sent(const backend::TransportCall& call, std::int64_t ranks);

/// The time of the operation where bytes and the ring's steps are all that it takes.
double seconds_of(const backend::TransportCall& call, std::int64_t ranks, const ClusterLink& link);

}  // namespace encore::model
