// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/device.hpp>
#include <encore/graph/step_profile.hpp>

namespace encore::graph {

/// Measures what the device reaches, with random data: a large matrix product of this type (float where the space does
/// not compute with it), a large copy, and a replayed chain of tiny kernels. Takes up to a second and, while it lasts,
/// at most half of the free memory. Waits for the device; not while recording. Throws OutOfMemoryError.
template <class Space>
MachineRates measure_rates(backend::Device<Space>& device, backend::DataType type);

/// The type in which a program multiplies matrices: that of its first parameter, or else of its first buffer of
/// floating-point numbers, or else float.
backend::DataType product_type(const Outline& outline);

}  // namespace encore::graph
