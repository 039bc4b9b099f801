// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"
#include "update_parts.hpp"

#include <utility>

// What ranks that share their weights tell each other in a step. Each works on microbatches of its own; the loss is the
// mean over the labels of all of them, so sums of gradients, losses and counts are all that is needed.

namespace encore::model {

namespace {

const std::string group(name_of(RankGroup::data));

/// One number or several that every rank gets the reduction of.
template <class E, class Space>
void reduce(Execution<Space>& x, const char* label, BufferId id, backend::Reduction reduction) {
  x.device().communicator(group).template all_reduce<E>(x.stream(), label, x.template vector<E>(id),
                                                        reduction);
}

/// The last segment that writes some of the elements [begin, end) of the gradients.
std::size_t last_writer(const graph::Outline& outline, BufferId gradients, const UpdatePart& part,
                        std::size_t size_of_element) {
  const auto& segments = outline.segments();
  const auto writes_some = [&](BufferId id) {
    const Buffer& buffer = outline.buffer(id);
    if (!buffer.part || buffer.part->whole != gradients) return id == gradients;
    const auto begin = static_cast<std::int64_t>(buffer.part->offset_bytes / size_of_element);
    return begin < part.end && begin + buffer.elements() > part.begin;
  };
  for (std::size_t index = segments.size(); index > 0; --index)
    if (std::ranges::any_of(segments[index - 1].writes, writes_some)) return index - 1;
  throw InternalError("no segment writes the gradients that are to be reduced");
}

}  // namespace

template <class Space, class T, class G>
void append_label_count_of_all_ranks(StackBuilder<Space, T, G>& builder) {
  const BufferId count = builder.step.label_count;
  builder.step.program.add_segment(
      {"data/label_count", Module::comm, Phase::forward, -1, -1, {}, buffers_of(count)},
      [=](Execution<Space>& x) {
        reduce<double>(x, "encore::data::label_count", count, backend::Reduction::sum);
      });
}

template <class Space, class T, class G>
void append_metrics_of_all_ranks(StackBuilder<Space, T, G>& builder) {
  const auto& step = builder.step;
  const BufferId loss = step.loss;
  const auto balance_loss = step.balance_loss, z_loss = step.z_loss, rows = step.rows_needed,
             counts = step.tokens_of_expert;
  builder.step.program.add_segment(
      {"data/metrics",
       Module::comm,
       Phase::backward,
       -1,
       -1,
       {},
       buffers_of(loss, balance_loss, z_loss, rows, counts)},
      [=](Execution<Space>& x) {
        using backend::Reduction;
        const backend::BranchScope branch(x.stream(), backend::Branch::update);
        reduce<double>(x, "encore::data::loss", loss, Reduction::sum);
        if (balance_loss) reduce<double>(x, "encore::data::balance_loss", *balance_loss, Reduction::sum);
        if (z_loss) reduce<double>(x, "encore::data::z_loss", *z_loss, Reduction::sum);
        // All ranks leave a step out, or none.
        if (rows) reduce<std::int32_t>(x, "encore::data::rows_needed", *rows, Reduction::maximum);
        if (counts) reduce<std::int32_t>(x, "encore::data::tokens_of_expert", *counts, Reduction::sum);
      });
}

template <class Space, class T, class G>
void insert_gradient_reductions(StackBuilder<Space, T, G>& builder) {
  const BufferId gradients = *builder.step.gradients;
  const bool shards = shards_optimizer(builder.layout);
  using Program = graph::Program<Space>;
  std::vector<typename Program::Insertion> insertions;
  std::int64_t number = 0;
  for (const UpdatePart& part : update_parts(builder.layout, builder.model.layers)) {
    if (!builder.is_in(part.group)) continue;
    const std::size_t after = last_writer(builder.step.program.outline(), gradients, part, sizeof(G));
    insertions.push_back(
        {after,
         {std::string(name_of(part.group)) + "/reduce_gradients." + std::to_string(number++),
          Module::comm,
          Phase::backward,
          -1,
          -1,
          {},
          buffers_of(gradients)},
         [=, name = std::string(name_of(part.group))](Execution<Space>& x) {
           const backend::BranchScope branch(x.stream(), backend::Branch::update);
           auto& communicator = x.device().communicator(name);
           const auto bucket = stretch_of<G>(x, gradients, part.begin, part.end);
           if (shards) {
             communicator.template reduce_scatter<G>(
                 x.stream(), "encore::data::reduce_gradients", bucket,
                 stretch_of<G>(x, gradients, part.own.begin, part.own.end), backend::Reduction::sum);
           } else {
             communicator.template all_reduce<G>(x.stream(), "encore::data::reduce_gradients", bucket,
                                                 backend::Reduction::sum);
           }
         }});
  }
  builder.step.program.insert_segments(std::move(insertions));
}

#define ENCORE_INSTANTIATE(SPACE, T, G)                                      \
  template void append_label_count_of_all_ranks(StackBuilder<SPACE, T, G>&); \
  template void append_metrics_of_all_ranks(StackBuilder<SPACE, T, G>&);     \
  template void insert_gradient_reductions(StackBuilder<SPACE, T, G>&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
