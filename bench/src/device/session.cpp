// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <encore/backend/runtime.hpp>

namespace encore::command {

DeviceSession::DeviceSession(int threads) : DeviceSession(threads, {}) {}

DeviceSession::DeviceSession(int threads, const backend::ProcessRank& process)
    : runtime_(Kokkos::is_initialized() ? nullptr : std::make_unique<backend::Runtime>(threads, process)) {}

DeviceSession::~DeviceSession() = default;

}  // namespace encore::command
