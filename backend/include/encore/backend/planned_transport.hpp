// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace encore::backend {

enum class TransportOperation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send,
  receive
};
inline constexpr std::size_t transport_operations = 7;
std::string_view name_of(TransportOperation operation);

/// A call of one rank.
struct TransportCall {
  TransportOperation operation;
  /// What is reduced, sent or received; of reduce_scatter, all_gather and all_to_all the longer of the two sides.
  std::size_t bytes;
  int peer = -1;  ///< the other rank of a message

  friend bool operator==(const TransportCall&, const TransportCall&) = default;
};
using TransportLog = std::vector<TransportCall>;

/// One rank of a group of which only the size is known, for plans. With a log its operations are added there, also those
/// that a stream lists and does not run; without one they throw InternalError, as split() does.
std::shared_ptr<Transport> planned_transport(int ranks, int rank = 0,
                                             std::shared_ptr<TransportLog> log = nullptr);

/// Whether a transport wants to know of operations that a stream lists and does not run.
bool lists_operations(const Transport& transport);

/// Hands all calls on to another transport and notes them.
std::shared_ptr<Transport> counting_transport(std::shared_ptr<Transport> counted,
                                              std::shared_ptr<TransportLog> log);

}  // namespace encore::backend
