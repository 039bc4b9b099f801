// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <memory>

namespace encore::backend {

/// Rank 0 of a group of which only the size is known, for plans. Its operations throw InternalError.
std::shared_ptr<Transport> planned_transport(int ranks);

}  // namespace encore::backend
