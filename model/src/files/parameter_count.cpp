// SPDX-License-Identifier: Apache-2.0
#include "parameter_count.hpp"

#include <algorithm>

#include "blocks.hpp"

namespace encore::model {
namespace {

/// Counts in `Number`: whole numbers where the model is known to be of a size that makes sense.
template <class Number>
struct Count {
  const ModelConfiguration& model;

  static Number of(std::int64_t value) { return static_cast<Number>(value); }
  static Number of(bool value) { return value ? Number(1) : Number(0); }

  Number norm() const {
    return (model.normalization == Normalization::layer_norm ? Number(2) : Number(1)) * of(model.hidden);
  }

  Number up_rows(std::int64_t inner) const {
    return (is_gated(model.activation) ? Number(2) : Number(1)) * of(inner);
  }

  /// Without biases.
  Number feed_forward(std::int64_t inner) const { return of(model.hidden) * (up_rows(inner) + of(inner)); }

  Number attention() const {
    const Number query = of(model.heads) * of(model.head_dim);
    const Number qkv = query + Number(2) * of(model.kv_heads) * of(model.head_dim);
    return of(model.hidden) * (qkv + query) + of(model.qkv_bias) * qkv +
           of(model.attention_output_bias) * of(model.hidden) +
           of(model.query_key_norm) * Number(2) * of(model.head_dim) +
           of(model.attention_sinks) * of(model.heads);
  }

  Number mlp() const {
    return feed_forward(model.ffn) + of(model.mlp_bias) * (up_rows(model.ffn) + of(model.hidden));
  }

  Number experts() const {
    const Number expert =
        feed_forward(model.expert_ffn) + of(model.mlp_bias) * (up_rows(model.expert_ffn) + of(model.hidden));
    return of(model.experts) * (of(model.hidden) + of(model.router_bias) + expert) +
           feed_forward(model.shared_ffn);
  }

  Number mamba() const {
    const Number inner = of(model.mamba_heads) * of(model.mamba_head_dim);
    const Number channels = inner + Number(2) * of(model.mamba_groups) * of(model.mamba_state);
    const Number in = inner + channels + of(model.mamba_heads);
    return of(model.hidden) * (in + inner) + of(model.mamba_bias) * (in + of(model.hidden)) +
           channels * (of(model.mamba_convolution) + of(model.mamba_convolution_bias)) +
           Number(3) * of(model.mamba_heads) + inner;
  }

  Number block(char letter) const {
    if (letter == letter_of(Block::mamba)) return norm() + mamba();
    if (letter == letter_of(Block::mlp)) return norm() + mlp();
    if (letter == letter_of(Block::experts)) return norm() + experts();
    return norm() + attention();
  }

  Number all() const {
    const std::string pattern = whole_pattern(model);
    Number sum = (model.tie_embeddings ? Number(1) : Number(2)) * of(model.vocab) * of(model.hidden) + norm();
    if (model.position == Position::learned) sum += of(model.seq) * of(model.hidden);
    for (const char letter : block_letters)
      if (const auto blocks = std::ranges::count(pattern, letter); blocks > 0)
        sum += of(std::int64_t{blocks}) * block(letter);
    return sum;
  }
};

}  // namespace

std::int64_t parameter_count(const ModelConfiguration& model) { return Count<std::int64_t>{model}.all(); }

double estimated_parameter_count(const ModelConfiguration& model) { return Count<double>{model}.all(); }

}  // namespace encore::model
