// SPDX-License-Identifier: Apache-2.0
#include "tensor_parallel.hpp"
#include "update_parts.hpp"

#include <utility>

namespace encore::model {

namespace {

/// Elements [begin, end) of the gradients of which each tensor rank has a term, the buffer that begins there, and the last
/// segment that writes some.
struct Terms {
  BufferId first;
  std::int64_t begin, end;
  std::size_t last_writer;

  std::int64_t size() const { return end - begin; }
};

std::size_t last_writer(const graph::Outline& outline, BufferId id) {
  const auto& segments = outline.segments();
  for (std::size_t index = segments.size(); index > 0; --index)
    if (std::ranges::find(segments[index - 1].writes, id) != segments[index - 1].writes.end())
      return index - 1;
  throw InternalError("no segment writes '" + outline.buffer(id).name + "', which is to be summed");
}

/// In order of their places, neighbours together.
std::vector<Terms> terms_of(const graph::Outline& outline, const std::vector<BufferId>& gradients,
                            std::size_t size_of_element) {
  std::vector<Terms> terms;
  for (const BufferId id : gradients) {
    const Buffer& buffer = outline.buffer(id);
    const auto begin = static_cast<std::int64_t>(buffer.part.value().offset_bytes / size_of_element);
    terms.push_back({id, begin, begin + buffer.elements(), last_writer(outline, id)});
  }
  std::ranges::sort(terms, {}, &Terms::begin);
  return terms;
}

/// Joins those that lie side by side.
std::vector<Terms> joined(const std::vector<Terms>& terms) {
  std::vector<Terms> stretches;
  for (const Terms& each : terms) {
    if (!stretches.empty() && stretches.back().end == each.begin) {
      stretches.back().end = each.end;
    } else {
      stretches.push_back(each);
    }
  }
  return stretches;
}

}  // namespace

template <class Space, class T, class G>
void insert_sums_over_tensor_ranks(StackBuilder<Space, T, G>& builder) {
  if (builder.gradient_terms().empty()) return;
  const std::vector<Terms> all =
      terms_of(builder.step.program.outline(), builder.gradient_terms(), sizeof(G));
  std::vector<typename graph::Program<Space>::Insertion> insertions;
  std::int64_t number = 0;
  for (const UpdatePart& part : update_parts(builder.layout, builder.model.layers)) {
    std::vector<Terms> terms;
    std::vector<BufferId> summed;
    std::size_t after = 0;
    for (const Terms& each : all) {
      if (each.begin < part.begin || each.begin >= part.end) continue;
      terms.push_back(each);
      summed.push_back(each.first);
      after = std::max(after, each.last_writer);
    }
    if (terms.empty()) continue;
    insertions.push_back({after,
                          {"tensor/sum_gradients." + std::to_string(number++),
                           Module::comm,
                           Phase::backward,
                           -1,
                           -1,
                           {},
                           std::move(summed)},
                          [stretches = joined(terms)](Execution<Space>& x) {
                            const backend::BranchScope branch(x.stream(), backend::Branch::update);
                            for (const Terms& stretch : stretches)
                              x.device()
                                  .communicator(name_of(RankGroup::tensor))
                                  .template all_reduce<G>(x.stream(), "encore::tensor::sum_gradients",
                                                          stretch_of<G>(x, stretch.first, 0, stretch.size()),
                                                          backend::Reduction::sum);
                          }});
  }
  builder.step.program.insert_segments(std::move(insertions));
}

#define ENCORE_INSTANTIATE(SPACE, T, G) \
  template void insert_sums_over_tensor_ranks(StackBuilder<SPACE, T, G>&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
