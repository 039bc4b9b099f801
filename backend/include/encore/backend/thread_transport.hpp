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
/// `patience`, or for one whose end is closed or destroyed, ends the job: every operation under way or to come, also in
/// groups split from this one, throws CommunicationError that names it. Who closes this end leaves those groups too.
std::vector<std::shared_ptr<Transport>> thread_transports(
    std::string name, int ranks, std::chrono::milliseconds patience = std::chrono::minutes(5));

}  // namespace encore::backend
