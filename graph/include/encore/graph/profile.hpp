// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/device.hpp>
#include <encore/graph/machine_rates.hpp>
#include <encore/graph/program.hpp>
#include <encore/graph/step_profile.hpp>

namespace encore::graph {

/// Times each segment of a step and compares it with what the device could do. Runs the segments in order: each is
/// recorded alone, repeated, and replayed between events; what it had changed is put back before each sample, and
/// afterwards it runs once more, so that the next one sees what it would see in a step. Then all of them are replayed
/// as one step.
///
/// Afterwards everything but activations, and the random positions, hold what they held before, also when it throws.
/// For that as much memory is taken as the step changes: of the device where there is room, else of the host.
/// Segments that say why they cannot be captured, or that turn out so, are timed eagerly. Small segments find their
/// data in caches that in a step hold other data.
///
/// Scalars must have been uploaded, and inputs set. Waits for the device; not while recording.
template <class Space>
StepProfile profile(backend::Device<Space>& device, const Program<Space>& program, const Bindings& bindings,
                    const ProfileOptions& options = {});

}  // namespace encore::graph
