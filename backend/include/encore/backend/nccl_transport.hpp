// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/job_watch.hpp>
#include <encore/backend/transport.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

namespace encore::backend {

/// What the ranks of a group must share to find each other: made by one of them, brought to the others by any means.
using NcclId = std::array<std::byte, 128>;

/// Throws DeviceError in a build without NCCL.
NcclId make_nccl_id();

/// This process' end, on its current GPU, of a group of `ranks` processes. Returns when all have called it with the
/// same id and ranks of their own. The operations may be captured. Throws DeviceError with NCCL's own words, and in a
/// build without NCCL, CommunicationError when they do not come within JobPatience::joining. With a watch a rank that ends
/// also ends the operations of this group and of those split from it, and throws CommunicationError with its name from the
/// next one on; without it they wait for ever.
///
/// An end that is destroyed by an exception aborts NCCL's group. In order it waits for the other ranks of its host, no
/// longer than JobPatience::ending.
std::shared_ptr<Transport> nccl_transport(std::string name, const NcclId& id, int ranks, int rank,
                                          std::shared_ptr<JobWatch> watch = nullptr);

}  // namespace encore::backend
