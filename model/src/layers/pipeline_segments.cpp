// SPDX-License-Identifier: Apache-2.0
#include <encore/kernels/residual.hpp>
#include <encore/model/files/stage_schedule.hpp>

#include <algorithm>
#include <utility>

#include "operations.hpp"
#include "update_parts.hpp"

// What stages of a pipeline on different ranks tell each other. A recorded step has the transfers in the branch of
// updates, where they keep their order and hold up only what reads what they bring.

namespace encore::model {

namespace {

const std::string group(name_of(RankGroup::pipeline));

/// Elements of a tied table that are handed over at a time.
constexpr std::int64_t tied_elements = 1 << 22;

bool is_forward(const PipelinePass& pass) { return pass.kind == PassKind::forward; }

/// `microbatch.2/pipeline/send_activation.1`: of the result of chunk 1.
template <class Space, class T, class G>
Segment transfer_segment(const StackBuilder<Space, T, G>& builder, const char* direction,
                         const PipelinePass& of) {
  const char* what = is_forward(of) ? "activation." : "gradient.";
  return segment_of_layer(
      builder.prefix(of.microbatch) + group + "/" + direction + what + std::to_string(of.chunk), Module::comm,
      is_forward(of) ? Phase::forward : Phase::backward, -1, of.microbatch);
}

template <class E, class Space>
void reduce(Execution<Space>& x, const char* label, BufferId id, backend::Reduction reduction) {
  x.device().communicator(group).template all_reduce<E>(x.stream(), label, x.template vector<E>(id),
                                                        reduction);
}

/// Whether this rank's stage has layers with experts.
template <class Space, class T, class G>
bool has_experts(const StackBuilder<Space, T, G>& builder) {
  const std::int64_t layers = builder.model.layers;
  for (std::int64_t layer = 0; layer < layers; ++layer)
    if (builder.shard().has_layer(layer, layers) &&
        builder.expert_layers_before(layer + 1) > builder.expert_layers_before(layer))
      return true;
  return false;
}

}  // namespace

template <class Space, class T, class G>
void append_send(StackBuilder<Space, T, G>& builder, const PipelinePass& of, BufferId result, int to) {
  Segment segment = transfer_segment(builder, "send_", of);
  segment.reads = segment.lingers = buffers_of(result);
  const char* label =
      is_forward(of) ? "encore::pipeline::send_activation" : "encore::pipeline::send_gradient";
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const backend::BranchScope branch(x.stream(), backend::Branch::update);
    x.device().communicator(group).template send<T>(x.stream(), label, x.template vector<const T>(result),
                                                    to);
  });
}

template <class Space, class T, class G>
BufferId append_receive(StackBuilder<Space, T, G>& builder, const PipelinePass& of, int from) {
  const BufferId result =
      builder.template add<T>(builder.prefix(of.microbatch) + group +
                                  (is_forward(of) ? "/activation." : "/gradient.") + std::to_string(of.chunk),
                              {builder.stream_tokens(), builder.model.hidden});
  Segment segment = transfer_segment(builder, "receive_", of);
  segment.writes = segment.lingers = buffers_of(result);
  const char* label =
      is_forward(of) ? "encore::pipeline::receive_activation" : "encore::pipeline::receive_gradient";
  builder.step.program.add_segment(std::move(segment), [=](Execution<Space>& x) {
    const backend::BranchScope branch(x.stream(), backend::Branch::update);
    x.device().communicator(group).template receive<T>(x.stream(), label, x.template vector<T>(result), from);
  });
  return result;
}

template <class Space, class T, class G>
void append_cleared_metrics(StackBuilder<Space, T, G>& builder) {
  const auto& step = builder.step;
  std::vector<BufferId> cleared;
  // The sums and counts of this stage's own segments begin with the first of them.
  if (!builder.shard().has_head()) append(cleared, step.loss);
  if (!has_experts(builder)) {
    append(cleared, step.balance_loss);
    append(cleared, step.z_loss);
  }
  append(cleared, step.rows_needed);
  append(cleared, step.tokens_of_expert);
  if (cleared.empty()) return;
  builder.step.program.add_segment(
      {group + "/clear_metrics", Module::head, Phase::forward, -1, -1, {}, cleared},
      [=](Execution<Space>& x) {
        for (const BufferId id : cleared) {
          const Buffer& buffer = x.outline().buffer(id);
          std::byte* data = buffer.type == backend::DataType::float64
                                ? reinterpret_cast<std::byte*>(x.template pointer<double>(id))
                                : reinterpret_cast<std::byte*>(x.template pointer<std::int32_t>(id));
          x.stream().clear(data, buffer.bytes(), "encore::pipeline::clear_metrics");
        }
      });
}

template <class Space, class T, class G>
void append_metrics_of_all_stages(StackBuilder<Space, T, G>& builder) {
  const auto& step = builder.step;
  const BufferId loss = step.loss;
  const auto balance_loss = step.balance_loss, z_loss = step.z_loss, rows = step.rows_needed,
             counts = step.tokens_of_expert;
  builder.step.program.add_segment(
      {group + "/metrics",
       Module::comm,
       builder.training() ? Phase::backward : Phase::forward,
       -1,
       -1,
       {},
       buffers_of(loss, balance_loss, z_loss, rows, counts)},
      [=](Execution<Space>& x) {
        using backend::Reduction;
        const backend::BranchScope branch(x.stream(), backend::Branch::update);
        reduce<double>(x, "encore::pipeline::loss", loss, Reduction::sum);
        if (balance_loss) reduce<double>(x, "encore::pipeline::balance_loss", *balance_loss, Reduction::sum);
        if (z_loss) reduce<double>(x, "encore::pipeline::z_loss", *z_loss, Reduction::sum);
        if (rows) reduce<std::int32_t>(x, "encore::pipeline::rows_needed", *rows, Reduction::maximum);
        if (counts) reduce<std::int32_t>(x, "encore::pipeline::tokens_of_expert", *counts, Reduction::sum);
      });
}

template <class Space, class T, class G>
void append_sum_of_tied_gradients(StackBuilder<Space, T, G>& builder) {
  const ModelShard& shard = builder.shard();
  if (!builder.model.tie_embeddings || shard.layout.stages() == 1) return;
  if (!shard.has_embedding() && !shard.has_head()) return;
  const BufferId gradients = *builder.step.gradients;
  const Parameter& table = builder.layout.parameter("embedding/tokens");
  const std::vector<UpdatePart> parts = update_parts(builder.layout, builder.model.layers);
  // Where the optimizer is sharded only this rank's share has been summed over the data ranks.
  const Stretch own = part_with(parts, table.offset).own;
  const std::int64_t most = std::min(tied_elements, own.size());
  const BufferId others = builder.template add<G>(group + "/tied_gradient", {most});
  const int peer = static_cast<int>(shard.has_embedding() ? shard.layout.stages() - 1 : 0);
  builder.step.program.add_segment(
      {group + "/sum_tied_gradients",
       Module::comm,
       Phase::backward,
       -1,
       -1,
       {},
       buffers_of(gradients, others)},
      [=](Execution<Space>& x) {
        const backend::BranchScope branch(x.stream(), backend::Branch::update);
        for (std::int64_t begin = own.begin; begin < own.end; begin += most) {
          const std::int64_t count = std::min(most, own.end - begin);
          const auto theirs = stretch_of<G>(x, others, 0, count);
          x.device().communicator(group).template send_receive<G>(
              x.stream(), "encore::pipeline::tied_gradients",
              stretch_of<const G>(x, gradients, begin, begin + count), peer, theirs, peer);
          const auto row = [&]<class E>(E* data) {
            return backend::Matrix<E, Space>(data, 1, static_cast<std::size_t>(count));
          };
          G* sum = x.template pointer<G>(gradients) + begin;
          // Both ranks add the same two numbers, so both have the same bits.
          kernels::add<Space, G>(x.stream(), row(static_cast<const G*>(sum)),
                                 row(static_cast<const G*>(theirs.data())), row(sum));
        }
      });
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                                      \
  template void append_send(StackBuilder<SPACE, T, G>&, const PipelinePass&, BufferId, int); \
  template BufferId append_receive(StackBuilder<SPACE, T, G>&, const PipelinePass&, int);    \
  template void append_cleared_metrics(StackBuilder<SPACE, T, G>&);                          \
  template void append_metrics_of_all_stages(StackBuilder<SPACE, T, G>&);                    \
  template void append_sum_of_tied_gradients(StackBuilder<SPACE, T, G>&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
