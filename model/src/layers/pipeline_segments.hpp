// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/pipeline_schedule.hpp>

#include "stack_builder.hpp"

namespace encore::model {

/// Hands the residual stream behind a pass, or its gradient, to the stage that goes on with it. [stream tokens, hidden]
template <class Space, class T, class G>
void append_send(StackBuilder<Space, T, G>& builder, const PipelinePass& of, BufferId result, int to);
/// The other end; returns where it comes to lie.
template <class Space, class T, class G>
BufferId append_receive(StackBuilder<Space, T, G>& builder, const PipelinePass& of, int from);

/// Clears the metrics to which this stage adds nothing. Before all passes.
template <class Space, class T, class G>
void append_cleared_metrics(StackBuilder<Space, T, G>& builder);
/// Gives the loss and what experts tell of themselves to all stages. Behind all passes.
template <class Space, class T, class G>
void append_metrics_of_all_stages(StackBuilder<Space, T, G>& builder);
/// The first and the last stage each have a tied table: adds up their gradients. Behind the sums over data ranks, which
/// may differ in their last bits between stages.
template <class Space, class T, class G>
void append_sum_of_tied_gradients(StackBuilder<Space, T, G>& builder);

}  // namespace encore::model
