// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "block_segments.hpp"

#include <string>
#include <vector>

// What ranks tell each other inside a layer. Tensor ranks have some outputs of a block's first product and the weights of
// as many inputs of its last one, so that each computes a term of the block's result: Shoeybi et al., "Megatron-LM",
// 2019, section 3. With sequence parallelism the residual stream and the normalizations in front of the blocks are dealt
// out too, by tokens: Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, section
// 4.2.2. All of these functions append nothing where the step has no tensor ranks.

namespace encore::model {

/// Collectives on whole buffers, as bodies call them. Labels must live as long as the program.
template <class E, class Space>
void all_reduce(Execution<Space>& x, RankGroup group, const char* label, BufferId values,
                backend::Reduction reduction = backend::Reduction::sum) {
  x.device()
      .communicator(name_of(group))
      .template all_reduce<E>(x.stream(), label, x.template vector<E>(values), reduction);
}
template <class E, class Space>
void all_gather(Execution<Space>& x, RankGroup group, const char* label, BufferId own, BufferId all) {
  x.device()
      .communicator(name_of(group))
      .template all_gather<E>(x.stream(), label, x.template vector<const E>(own), x.template vector<E>(all));
}
template <class E, class Space>
void reduce_scatter(Execution<Space>& x, RankGroup group, const char* label, BufferId all, BufferId own) {
  x.device()
      .communicator(name_of(group))
      .template reduce_scatter<E>(x.stream(), label, x.template vector<const E>(all),
                                  x.template vector<E>(own), backend::Reduction::sum);
}

/// [tokens of this rank, columns] of all tensor ranks together: `own` itself unless tokens are dealt out, else a new
/// buffer of that name. `what` names the segment.
template <class Space, class T, class G>
BufferId append_gather(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                       const std::string& what, const std::string& name, BufferId own);

/// What a block's first product has read, for backward: put together again, as it is not kept, unless it was computed again.
template <class Space, class T, class G, class Buffers>
BufferId gathered_input(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                        const std::string& name, const Buffers& buffers) {
  if (buffers.gathered) return *buffers.gathered;
  return append_gather(builder, segments, "gather_input", name + "/gathered_again", buffers.normalized);
}

/// The sum of what tensor ranks have computed of [tokens, columns]: `terms` itself, or where tokens are dealt out a new
/// buffer of that name that has the tokens of this rank.
template <class Space, class T, class G>
BufferId append_sum(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                    const std::string& what, const std::string& name, BufferId terms);

/// A rank's term of what a block adds to the residual stream, in forward.
struct BranchTerm {
  BufferId value;                  ///< [tokens, hidden], to be computed by this rank
  std::optional<BufferId> addend;  ///< the residual stream, where it is to be part of `value`
  bool with_bias;                  ///< whether the bias behind the block's last product is
  std::string name;                ///< prefix of buffers
};

/// `result`: the residual stream behind the block; `residual`: before it. Some buffers are made with prefix `name`.
template <class Space, class T, class G>
BranchTerm branch_term(StackBuilder<Space, T, G>& builder, const std::string& name, BufferId residual,
                       BufferId result);

/// The block's last product as this rank's term.
template <class T, class Space>
void linear_term(Execution<Space>& x, const char* label, LinearBuffers linear, BufferId input,
                 const BranchTerm& term) {
  if (!term.with_bias) linear.bias.reset();
  Operations<Space, T>::linear_forward(x, label, linear, input, term.value, term.addend);
}
/// What it reads beside its input.
inline std::vector<BufferId> reads_of(const LinearBuffers& linear, const BranchTerm& term) {
  return buffers_of(linear.weight.value, term.with_bias ? value_of(linear.bias) : std::nullopt, term.addend);
}

/// result = residual + dropout(the sum of the terms), behind the piece that has computed this rank's.
template <class Space, class T, class G>
void append_branch(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments, const BranchTerm& term,
                   BufferId residual, BufferId result, std::uint32_t dropout_segment);

/// Backward of append_branch: the gradient of the block's own result, [tokens, hidden] and the same on all tensor ranks.
/// `label`: of a copy.
template <class Space, class T, class G>
BufferId append_branch_gradient(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                                const std::string& name, const char* label, BufferId residual,
                                std::uint32_t dropout_segment);

/// Weight gradients, in the order in which they are computed. Tensor ranks call it behind append_sum, so that they run while
/// the ranks communicate.
template <class Space, class T, class G>
void append_weights(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                    std::vector<LinearGradient> gradients);

/// The normalization in front of a block, of the tokens of this rank.
template <class Space, class T, class G>
void append_norm(const StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                 const NormBuffers& norm, const NormStatistics& statistics, BufferId input,
                 BufferId normalized);

/// Its backward: what it gets added to `residual`, or put there. `gradient`: of `normalized`; [tokens of this rank,
/// hidden].
template <class Space, class T, class G>
void append_norm_backward(StackBuilder<Space, T, G>& builder, BlockSegments<Space>& segments,
                          const NormBuffers& norm, const NormStatistics& statistics, BufferId input,
                          BufferId gradient, BufferId residual, bool add_residual, BufferId workspace);

/// Sums the gradients of which each tensor rank has a term (StackBuilder::add_terms), behind their last writers. Before
/// the reductions over `data` and the optimizer's segments are there.
template <class Space, class T, class G>
void insert_sums_over_tensor_ranks(StackBuilder<Space, T, G>& builder);

}  // namespace encore::model
