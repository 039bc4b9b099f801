// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/region.hpp>

namespace encore::backend::impl {

/// Whether a tool takes ranges of the NVTX domain `Encore`; never in a build without CUDA.
bool nvtx_listens() noexcept;
/// `name` is copied.
void push_nvtx_range(RegionKind kind, const char* name) noexcept;
void pop_nvtx_range() noexcept;

}  // namespace encore::backend::impl
