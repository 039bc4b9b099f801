// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// A group whose ranks are threads of this process, for host memory: parallel schedules run and are tested without a
/// cluster. Sums are formed in the order of the ranks, so results are the same every time and on every rank. The ends
/// may go to different threads; each is used by one at a time. A rank that waits for another one longer than
/// `patience`, or whose end is closed or destroyed, ends the group: every operation under way or to come throws
/// CommunicationError that names it.
std::vector<std::shared_ptr<Transport>> thread_transports(
    std::string name, int ranks, std::chrono::milliseconds patience = std::chrono::minutes(5));

}  // namespace encore::backend
