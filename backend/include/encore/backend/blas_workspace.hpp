// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/space.hpp>

#include <cstddef>

namespace encore::backend {

/// Bytes of the space's memory that a Blas takes for itself when it is made, for forecasts.
template <class Space>
std::size_t blas_workspace_bytes();

}  // namespace encore::backend
