// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/backend/space.hpp>
#include <encore/backend/stream.hpp>

#include <cstdint>

/// Layer kernels, forward and backward. Common to all of them:
/// - the stream comes first, then inputs, outputs, what forward saves for backward, workspace, options;
/// - views are row-major without gaps; an optional view that is not wanted is passed as an empty one (`{}`);
/// - they are called with explicit template arguments: execution space, activation and weight type T, type G
///   of parameter gradients;
/// - they neither allocate nor synchronise, so each may be recorded; they read options that change from step
///   to step from device memory;
/// - sums are formed in Accumulator<T> in an order that depends on the shapes only;
/// - `accumulate` false sets a parameter gradient, true adds to it (microbatches);
/// - a shape that does not fit throws ConfigurationError before anything is queued.
namespace encore::kernels {

using backend::Accumulator;
using backend::bfloat16;
using backend::Matrix;
using backend::Stream;
using backend::Vector;

}  // namespace encore::kernels
