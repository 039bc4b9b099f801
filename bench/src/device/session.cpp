// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <encore/backend/runtime.hpp>

namespace encore::command {

DeviceSession::DeviceSession(int threads) : runtime_(std::make_unique<backend::Runtime>(threads)) {}
DeviceSession::~DeviceSession() = default;

}  // namespace encore::command
