// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/transport.hpp>

#include <memory>

namespace encore::backend {

/// One rank of a group of which only the size is known, for plans. Its operations, and split(), throw InternalError.
std::shared_ptr<Transport> planned_transport(int ranks, int rank = 0);

}  // namespace encore::backend
