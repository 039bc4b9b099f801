// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/combine.hpp>
#include <encore/kernels/expert_exchange.hpp>

#include "expert_segments.hpp"

// Between ranks that share the experts of a layer. What a rank sends to each other one has a fixed size, that of the
// routing with which everything fits; how much of it is used stays on the devices, so that a graph can hold it.

namespace encore::model {

namespace {

/// A rank's part of `from` to each rank.
template <class E, class Space>
void send_to_all(Execution<Space>& x, const char* label, BufferId from, BufferId to) {
  x.device()
      .communicator(name_of(RankGroup::expert))
      .template all_to_all<E>(x.stream(), label, x.template vector<const E>(from), x.template vector<E>(to));
}

/// Each choice to the rank of its expert: in slots by rank, or by expert where these have a capacity.
template <class Space, class T, class G>
void append_choices(StackBuilder<Space, T, G>& builder, const ExpertPlace& place, const std::string& name,
                    const ExpertGeometry& g, ExpertBuffers& b) {
  using A = Accumulator<T>;
  const bool by_rank = g.capacity == 0;
  const std::int64_t slots = g.ranks * g.slots, topk = g.rules.topk;
  std::optional<BufferId> groups;
  if (by_rank) groups = builder.template add<std::int32_t>(name + "/ranks_of_choices", {g.tokens, topk});
  const DispatchBuffers slots_of = add_dispatch(builder, name + "/slots", g.tokens, topk,
                                                by_rank ? g.ranks : g.experts, slots, b.rows_needed);
  const BufferId message = builder.template add<A>(name + "/sent_routing", {g.ranks, 2 * g.slots});
  const BufferId sent = builder.template add_expert_rows<T>(name + "/sent", {slots, g.hidden});
  b.slot_of = slots_of.row_of;
  b.routing = builder.template add<A>(name + "/arrived_routing", {g.ranks, 2 * g.slots});
  b.arrived = {slots, 1, builder.template add_expert_rows<T>(name + "/arrived", {slots, g.hidden}),
               builder.template add<std::int32_t>(name + "/arrived_experts", {slots, 1}),
               builder.template add<A>(name + "/arrived_weights", {slots, 1})};

  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  segment.reads = buffers_of(b.normalized, b.experts, b.weights);
  segment.writes = slots_of.all();
  append(segment.writes, groups);
  append(segment.writes, message);
  append(segment.writes, sent);
  builder.step.program.add_segment(std::move(segment), [=, b = b](Execution<Space>& x) {
    const auto experts = x.template matrix<const std::int32_t>(b.experts);
    if (groups)
      kernels::group_experts<Space>(x.stream(), experts, g.local_experts,
                                    x.template matrix<std::int32_t>(*groups));
    slots_of.fill(x, groups.value_or(b.experts), by_rank ? g.slots : g.capacity);
    kernels::pack_routing<Space, A>(x.stream(), experts, x.template matrix<const A>(b.weights),
                                    x.template vector<const std::int32_t>(slots_of.source), {},
                                    x.template matrix<A>(message));
    kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(b.normalized),
                                   x.template matrix<const std::int32_t>(slots_of.row_of),
                                   x.template matrix<T>(sent));
  });

  Segment exchange = exchange_segment(builder, place, "moe_dispatch");
  exchange.reads = buffers_of(sent, message);
  exchange.writes = buffers_of(b.arrived.values, *b.routing);
  builder.step.program.add_segment(std::move(exchange), [=, b = b](Execution<Space>& x) {
    send_to_all<A>(x, "encore::expert::routing", message, *b.routing);
    send_to_all<T>(x, "encore::expert::tokens", sent, b.arrived.values);
  });
}

/// All tokens to all ranks.
template <class Space, class T, class G>
void append_all_tokens(StackBuilder<Space, T, G>& builder, const ExpertPlace& place, const std::string& name,
                       const ExpertGeometry& g, ExpertBuffers& b) {
  using A = Accumulator<T>;
  const std::int64_t topk = g.rules.topk, all = g.ranks * g.tokens;
  const BufferId message = builder.template add<A>(name + "/sent_routing", {1, 2 * g.tokens * topk});
  b.routing = builder.template add<A>(name + "/arrived_routing", {g.ranks, 2 * g.tokens * topk});
  b.arrived = {all, topk, builder.template add<T>(name + "/arrived", {all, g.hidden}),
               builder.template add<std::int32_t>(name + "/arrived_experts", {all, topk}),
               builder.template add<A>(name + "/arrived_weights", {all, topk})};
  // With a capacity each rank drops choices among its own tokens.
  std::optional<DispatchBuffers> kept;
  if (g.capacity > 0)
    kept = add_dispatch(builder, name + "/kept", g.tokens, topk, g.experts, g.experts * g.capacity,
                        b.rows_needed);

  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  segment.reads = buffers_of(b.experts, b.weights);
  if (kept) segment.writes = kept->all();
  append(segment.writes, message);
  builder.step.program.add_segment(std::move(segment), [=, b = b](Execution<Space>& x) {
    using Rows = backend::Matrix<const std::int32_t, Space>;
    if (kept) kept->fill(x, b.experts, g.capacity);
    kernels::pack_routing<Space, A>(x.stream(), x.template matrix<const std::int32_t>(b.experts),
                                    x.template matrix<const A>(b.weights), {},
                                    kept ? x.template matrix<const std::int32_t>(kept->row_of) : Rows(),
                                    x.template matrix<A>(message));
  });

  Segment exchange = exchange_segment(builder, place, "moe_dispatch");
  exchange.reads = buffers_of(b.normalized, message);
  exchange.writes = buffers_of(b.arrived.values, *b.routing);
  builder.step.program.add_segment(std::move(exchange), [=, b = b](Execution<Space>& x) {
    all_gather<A>(x, RankGroup::expert, "encore::expert::routing", message, *b.routing);
    all_gather<T>(x, RankGroup::expert, "encore::expert::tokens", b.normalized, b.arrived.values);
  });
}

}  // namespace

template <class Space, class T, class G>
void append_expert_arrival(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                           const std::string& name, ExpertBuffers& b) {
  const ExpertGeometry g = expert_geometry(builder);
  if (!g.exchanges)
    b.arrived = {g.tokens, g.rules.topk, b.normalized, b.experts, b.weights};
  else if (g.dispatch == ExpertDispatch::all_to_all)
    append_choices(builder, place, name, g, b);
  else
    append_all_tokens(builder, place, name, g, b);
}

template <class Space, class T, class G>
void append_expert_return(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                          const std::string& name, ExpertBuffers& b) {
  if (!b.routing) return;
  const ExpertGeometry g = expert_geometry(builder);
  const bool chosen = b.slot_of.has_value();
  // A slot's one row, or the sum of the rows that a token has here.
  const BufferId returning = builder.template add<T>(name + "/returning", {b.arrived.count, g.hidden});
  const auto own = [&](const char* suffix, std::int64_t rows) {
    return builder.template add<T>(name + suffix, {rows, g.hidden});
  };
  if (chosen)
    b.returned = own("/returned", b.arrived.count);
  else
    b.sum = own("/sum", g.tokens);
  const BufferId result = chosen ? *b.returned : *b.sum;

  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.name += "/return";
  segment.reads = buffers_of(b.outputs, b.row_of);
  segment.writes = buffers_of(returning);
  builder.step.program.add_segment(std::move(segment), [=, b = b](Execution<Space>& x) {
    kernels::gather_rows_backward<Space, T>(x.stream(), x.template matrix<const T>(b.outputs),
                                            x.template matrix<const std::int32_t>(b.row_of),
                                            x.template matrix<T>(returning), false);
  });

  Segment exchange = exchange_segment(builder, place, "moe_return");
  exchange.reads = buffers_of(returning);
  exchange.writes = buffers_of(result);
  builder.step.program.add_segment(std::move(exchange), [=](Execution<Space>& x) {
    if (chosen)
      send_to_all<T>(x, "encore::expert::outputs", returning, result);
    else
      reduce_scatter<T>(x, RankGroup::expert, "encore::expert::outputs", returning, result);
  });
}

template <class Space, class T, class G>
void append_expert_return_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                   const std::string& name, const ExpertBuffers& b,
                                   const ExpertGradients& gradients) {
  if (!b.routing) return;
  const std::int64_t hidden = builder.model.hidden;
  const bool chosen = b.slot_of.has_value();
  const std::string arrived_name = name + "/arrived_outputs_gradient";
  const BufferId arrived = chosen
                               ? builder.template add_expert_rows<T>(arrived_name, {b.arrived.count, hidden})
                               : builder.template add<T>(arrived_name, {b.arrived.count, hidden});
  const BufferId own = chosen ? *gradients.slots : gradients.output;
  Segment exchange = exchange_segment(builder, place, "moe_return");
  exchange.reads = buffers_of(own);
  exchange.writes = buffers_of(arrived);
  builder.step.program.add_segment(std::move(exchange), [=](Execution<Space>& x) {
    if (chosen)
      send_to_all<T>(x, "encore::expert::outputs_gradient", own, arrived);
    else
      all_gather<T>(x, RankGroup::expert, "encore::expert::outputs_gradient", own, arrived);
  });

  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.name += "/return";
  segment.reads = buffers_of(arrived, b.row_of);
  segment.writes = buffers_of(gradients.rows);
  builder.step.program.add_segment(std::move(segment), [=, b = b](Execution<Space>& x) {
    kernels::gather_rows<Space, T>(x.stream(), x.template matrix<const T>(arrived),
                                   x.template matrix<const std::int32_t>(b.row_of),
                                   x.template matrix<T>(gradients.rows));
  });
}

template <class Space, class T, class G>
void append_expert_arrival_backward(StackBuilder<Space, T, G>& builder, const ExpertPlace& place,
                                    const std::string& name, const ExpertBuffers& b,
                                    const ExpertGradients& gradients) {
  if (!b.routing) return;
  using A = Accumulator<T>;
  const std::int64_t count = b.arrived.count, hidden = builder.model.hidden;
  const bool chosen = b.slot_of.has_value();
  const BufferId arrived = builder.template add<T>(name + "/arrived_gradient", {count, hidden});
  Segment segment = place.segment(builder.prefix(place.microbatch), Module::moe_experts);
  segment.name += "/arrival";
  segment.reads = buffers_of(gradients.rows, b.row_of);
  segment.writes = buffers_of(arrived);
  builder.step.program.add_segment(std::move(segment), [=, b = b](Execution<Space>& x) {
    kernels::gather_rows_backward<Space, T>(x.stream(), x.template matrix<const T>(gradients.rows),
                                            x.template matrix<const std::int32_t>(b.row_of),
                                            x.template matrix<T>(arrived), false);
  });

  const BufferId tokens =
      chosen ? builder.template add<T>(name + "/sent_gradient", {count, hidden}) : gradients.normalized;
  const BufferId weights =
      chosen ? builder.template add<A>(name + "/sent_weights_gradient", {count}) : gradients.weights;
  Segment exchange = exchange_segment(builder, place, "moe_dispatch");
  exchange.reads = buffers_of(arrived, gradients.arrived_weights);
  exchange.writes = buffers_of(tokens, weights);
  builder.step.program.add_segment(std::move(exchange), [=](Execution<Space>& x) {
    if (chosen) {
      send_to_all<T>(x, "encore::expert::tokens_gradient", arrived, tokens);
      send_to_all<A>(x, "encore::expert::weights_gradient", gradients.arrived_weights, weights);
    } else {
      reduce_scatter<T>(x, RankGroup::expert, "encore::expert::tokens_gradient", arrived, tokens);
      reduce_scatter<A>(x, RankGroup::expert, "encore::expert::weights_gradient", gradients.arrived_weights,
                        weights);
    }
  });
  if (!chosen) return;

  Segment combine = place.segment(builder.prefix(place.microbatch), Module::moe_preprocess);
  combine.reads = buffers_of(tokens, weights, *b.slot_of);
  combine.writes = buffers_of(gradients.normalized, gradients.weights);
  builder.step.program.add_segment(std::move(combine), [=, b = b](Execution<Space>& x) {
    const auto slot_of = x.template matrix<const std::int32_t>(*b.slot_of);
    kernels::gather_rows_backward<Space, T>(x.stream(), x.template matrix<const T>(tokens), slot_of,
                                            x.template matrix<T>(gradients.normalized), false);
    kernels::values_of_pairs<Space, A>(x.stream(), x.template vector<const A>(weights), slot_of,
                                       x.template matrix<A>(gradients.weights));
  });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                                   \
  template void append_expert_arrival(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&, \
                                      ExpertBuffers&);                                                    \
  template void append_expert_return(StackBuilder<SPACE, T, G>&, const ExpertPlace&, const std::string&,  \
                                     ExpertBuffers&);                                                     \
  template void append_expert_return_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,             \
                                              const std::string&, const ExpertBuffers&,                   \
                                              const ExpertGradients&);                                    \
  template void append_expert_arrival_backward(StackBuilder<SPACE, T, G>&, const ExpertPlace&,            \
                                               const std::string&, const ExpertBuffers&,                  \
                                               const ExpertGradients&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
