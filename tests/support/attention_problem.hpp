// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/attention.hpp>
#include <encore/backend/memory.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace encore::tests {

using namespace encore::backend;

/// How queries, keys and values lie in memory.
enum class HeadsLayout {
  packed,  ///< one [batch, tokens, heads + 2 kv_heads, head_dim] buffer, as a fused projection leaves it
  apart,   ///< three [batch, tokens, heads, head_dim] buffers
  by_head  ///< three [batch, heads, tokens, head_dim] buffers
};

/// Outputs and gradients, as doubles in [batch, heads, tokens, head_dim] order; that of the sinks only in the
/// reference.
struct AttentionResults {
  std::vector<double> output, log_sum_exp, query_gradient, key_gradient, value_gradient, sinks_gradient;
};

/// Random inputs of an attention, rounded to T.
template <class T>
struct AttentionProblem {
  AttentionProblem(AttentionShape its_shape, HeadsLayout its_layout, unsigned seed = 1)
      : shape(its_shape), layout(its_layout) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const auto fill = [&](std::vector<double>& values, std::int64_t heads) {
      values.resize(shape.batch * heads * shape.tokens * shape.head_dim);
      for (double& element : values) element = static_cast<double>(T(normal(generator)));
    };
    fill(query, shape.heads);
    fill(key, shape.kv_heads);
    fill(value, shape.kv_heads);
    fill(output_gradient, shape.heads);
    if (shape.sinks)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        sinks.push_back(static_cast<double>(T(2 * normal(generator))));
  }

  AttentionShape shape;
  HeadsLayout layout;
  std::vector<double> query, key, value, output_gradient, sinks;
};

/// What random_uniform makes of an element: 0 or 1 / (1 - probability); 1 without dropout.
struct DropoutReference {
  double probability = 0;
  RandomState state{};
  std::uint32_t segment = 0;

  double factor(std::uint64_t element) const {
    if (probability == 0) return 1;
    return double(random_uniform(state, segment, element)) >= probability ? 1 / (1 - probability) : 0;
  }
};

/// The definition, in double.
template <class T>
AttentionResults reference_attention(const AttentionProblem<T>& problem,
                                     const DropoutReference& dropout = {}) {
  const AttentionShape& s = problem.shape;
  const std::int64_t group = s.heads / s.kv_heads;
  AttentionResults results;
  results.output.resize(problem.query.size());
  results.query_gradient.resize(problem.query.size());
  results.key_gradient.resize(problem.key.size());
  results.value_gradient.resize(problem.key.size());
  results.sinks_gradient.resize(problem.sinks.size());
  std::vector<double> probability(s.tokens), weight(s.tokens);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t rows = (b * s.heads + h) * s.tokens;
      const std::int64_t keys = (b * s.kv_heads + h / group) * s.tokens;
      for (std::int64_t q = 0; q < s.tokens; ++q) {
        const std::int64_t row = (rows + q) * s.head_dim;
        const std::int64_t first = s.window == 0 ? 0 : std::max<std::int64_t>(0, q - s.window + 1);
        double largest = s.sinks ? problem.sinks[h] : -std::numeric_limits<double>::infinity();
        for (std::int64_t k = first; k <= q; ++k) {
          double score = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d)
            score += problem.query[row + d] * problem.key[(keys + k) * s.head_dim + d];
          probability[k] = score * double(s.scale);
          largest = std::max(largest, probability[k]);
        }
        double total = s.sinks ? std::exp(problem.sinks[h] - largest) : 0;
        for (std::int64_t k = first; k <= q; ++k) total += std::exp(probability[k] - largest);
        results.log_sum_exp.push_back(largest + std::log(total));
        double row_dot = 0;
        for (std::int64_t k = first; k <= q; ++k) {
          probability[k] = std::exp(probability[k] - results.log_sum_exp.back());
          const double factor = dropout.factor(std::uint64_t((rows + q) * s.tokens + k));
          const std::int64_t column = (keys + k) * s.head_dim;
          weight[k] = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            results.output[row + d] += probability[k] * factor * problem.value[column + d];
            results.value_gradient[column + d] += probability[k] * factor * problem.output_gradient[row + d];
            weight[k] += factor * problem.output_gradient[row + d] * problem.value[column + d];
          }
          row_dot += probability[k] * weight[k];
        }
        if (s.sinks)
          results.sinks_gradient[h] -= std::exp(problem.sinks[h] - results.log_sum_exp.back()) * row_dot;
        for (std::int64_t k = first; k <= q; ++k) {
          const double score_gradient = probability[k] * (weight[k] - row_dot) * double(s.scale);
          const std::int64_t column = (keys + k) * s.head_dim;
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            results.query_gradient[row + d] += score_gradient * problem.key[column + d];
            results.key_gradient[column + d] += score_gradient * problem.query[row + d];
          }
        }
      }
    }
  }
  return results;
}

/// Of entry (token, pair) of the tables that tests turn heads by.
inline double turning_angle(std::int64_t entry) { return 0.37 * static_cast<double>(entry); }

/// What heads [..., tokens, head_dim] are once they are turned, or back by direction -1.
inline std::vector<double> turned(const std::vector<double>& heads, const AttentionShape& shape,
                                  bool interleaved, double direction) {
  const std::int64_t half = shape.head_dim / 2;
  std::vector<double> results = heads;
  for (std::size_t row = 0; row < heads.size() / static_cast<std::size_t>(shape.head_dim); ++row)
    for (std::int64_t pair = 0; pair < half; ++pair) {
      const std::size_t begin = row * static_cast<std::size_t>(shape.head_dim);
      const std::size_t first = begin + static_cast<std::size_t>(interleaved ? 2 * pair : pair);
      const std::size_t second = interleaved ? first + 1 : first + static_cast<std::size_t>(half);
      const std::int64_t token = static_cast<std::int64_t>(row) % shape.tokens;
      const double angle = direction * turning_angle(token * half + pair);
      results[first] = heads[first] * std::cos(angle) - heads[second] * std::sin(angle);
      results[second] = heads[first] * std::sin(angle) + heads[second] * std::cos(angle);
    }
  return results;
}

/// A problem's buffers in the space's memory. Everything that is to be computed starts as NaN.
template <class Space, class T>
class AttentionBuffers {
 public:
  AttentionBuffers(Stream<Space>& stream, const AttentionProblem<T>& problem)
      : shape_(problem.shape), stream_(&stream) {
    query_ = place(0, shape_.heads, problem.layout);
    key_ = place(shape_.heads, shape_.kv_heads, problem.layout);
    value_ = place(shape_.heads + shape_.kv_heads, shape_.kv_heads, problem.layout);
    elements_ = next_;
    output_ = place(0, shape_.heads, HeadsLayout::apart);
    output_gradient_ = place(0, shape_.heads, HeadsLayout::apart);
    const T nan = T(std::numeric_limits<float>::quiet_NaN());
    next_ = (next_ + 63) / 64 * 64;
    host_.assign(next_ + elements_, nan);
    write(query_, shape_.heads, problem.query);
    write(key_, shape_.kv_heads, problem.key);
    write(value_, shape_.kv_heads, problem.value);
    write(output_gradient_, shape_.heads, problem.output_gradient);
    device_ = Allocation<Space>("attention test", host_.size() * sizeof(T));
    log_sum_exp_host_.assign(shape_.batch * shape_.heads * shape_.tokens,
                             std::numeric_limits<Accumulator<T>>::quiet_NaN());
    log_sum_exp_ = Allocation<Space>("attention test", log_sum_exp_host_.size() * sizeof(Accumulator<T>));
    scalars_ = Allocation<Space>("attention test", 64);
    if (shape_.sinks) {
      const std::vector<Accumulator<T>> sinks(problem.sinks.begin(), problem.sinks.end());
      sinks_ = Allocation<Space>("attention test", sinks.size() * sizeof(Accumulator<T>));
      stream_->copy_to_device(sinks_.data(), sinks.data(), sinks_.bytes(), "test");
    }
    upload();
  }

  /// Sets everything that is to be computed to NaN again.
  void upload() {
    stream_->copy_to_device(device_.data(), host_.data(), host_.size() * sizeof(T), "test");
    stream_->copy_to_device(log_sum_exp_.data(), log_sum_exp_host_.data(),
                            log_sum_exp_host_.size() * sizeof(Accumulator<T>), "test");
    stream_->synchronize("test");
  }

  AttentionDropout dropout(const DropoutReference& reference) {
    stream_->copy_to_device(scalars_.data(), &reference.probability, sizeof(double), "test");
    stream_->copy_to_device(scalars_.data() + 16, &reference.state, sizeof(RandomState), "test");
    stream_->synchronize("test");
    return {reinterpret_cast<const double*>(scalars_.data()),
            reinterpret_cast<const RandomState*>(scalars_.data() + 16), reference.segment};
  }

  /// `attention`: an Attention, or what has its members.
  template <class Engine>
  void forward(Engine& attention, const AttentionDropout& dropout = {},
               const AttentionRotation<Accumulator<T>>& rotation = {}) {
    attention.template forward<T>(*stream_, shape_, dropout, constant(query_), constant(key_),
                                  constant(value_), on_device(output_),
                                  reinterpret_cast<Accumulator<T>*>(log_sum_exp_.data()), sinks(), rotation);
  }
  template <class Engine>
  void backward(Engine& attention, const AttentionDropout& dropout = {},
                const AttentionRotation<Accumulator<T>>& rotation = {}) {
    const std::size_t bytes = attention.template workspace_bytes<T>(shape_, dropout);
    if (workspace_.bytes() < bytes) workspace_ = Allocation<Space>("attention test", bytes);
    attention.template backward<T>(
        *stream_, shape_, dropout, constant(query_), constant(key_), constant(value_), constant(output_),
        reinterpret_cast<const Accumulator<T>*>(log_sum_exp_.data()), constant(output_gradient_),
        gradient(query_), gradient(key_), gradient(value_), workspace_.data(), rotation);
  }

  /// By the angles of turning_angle.
  AttentionRotation<Accumulator<T>> rotation(bool interleaved, bool of_inputs = false) {
    const std::int64_t entries = shape_.tokens * shape_.head_dim / 2;
    std::vector<Accumulator<T>> tables;
    for (std::int64_t i = 0; i < 2 * entries; ++i) {
      const double angle = turning_angle(i % entries);
      tables.push_back(static_cast<Accumulator<T>>(i < entries ? std::cos(angle) : std::sin(angle)));
    }
    tables_ = Allocation<Space>("attention test", tables.size() * sizeof(Accumulator<T>));
    stream_->copy_to_device(tables_.data(), tables.data(), tables_.bytes(), "test");
    stream_->synchronize("test");
    const auto* cosine = reinterpret_cast<const Accumulator<T>*>(tables_.data());
    return {cosine, cosine + entries, interleaved, of_inputs};
  }

  AttentionResults results() {
    std::vector<T> values(host_.size());
    std::vector<Accumulator<T>> log_sum_exp(log_sum_exp_host_.size());
    stream_->copy_to_host(values.data(), device_.data(), values.size() * sizeof(T), "test");
    stream_->copy_to_host(log_sum_exp.data(), log_sum_exp_.data(),
                          log_sum_exp.size() * sizeof(Accumulator<T>), "test");
    stream_->synchronize("test");
    const std::int64_t gradients = next_;
    return {gather(values, output_, shape_.heads, 0),
            std::vector<double>(log_sum_exp.begin(), log_sum_exp.end()),
            gather(values, query_, shape_.heads, gradients),
            gather(values, key_, shape_.kv_heads, gradients),
            gather(values, value_, shape_.kv_heads, gradients),
            {}};
  }

  /// What a gradient of the sinks is made of. [batch, tokens, heads, head_dim] and [batch, heads, tokens].
  const T* output() const { return data() + output_.offset; }
  const T* output_gradient() const { return data() + output_gradient_.offset; }
  const Accumulator<T>* log_sum_exp() const {
    return reinterpret_cast<const Accumulator<T>*>(log_sum_exp_.data());
  }

 private:
  const Accumulator<T>* sinks() const {
    return shape_.sinks ? reinterpret_cast<const Accumulator<T>*>(sinks_.data()) : nullptr;
  }

  /// Offsets into the one buffer that holds everything.
  struct Place {
    std::int64_t offset, batch_stride, token_stride, head_stride;
  };

  Place place(std::int64_t heads_before, std::int64_t heads, HeadsLayout layout) {
    const std::int64_t row = shape_.head_dim;
    if (layout == HeadsLayout::packed) {
      const std::int64_t token = (shape_.heads + 2 * shape_.kv_heads) * row;
      next_ = std::max(next_, shape_.batch * shape_.tokens * token);
      return {heads_before * row, shape_.tokens * token, token, row};
    }
    const std::int64_t offset = (next_ + 63) / 64 * 64;  // cuDNN wants operands aligned to 16 bytes.
    next_ = offset + shape_.batch * shape_.tokens * heads * row;
    if (layout == HeadsLayout::apart) return {offset, shape_.tokens * heads * row, heads * row, row};
    return {offset, shape_.tokens * heads * row, row, shape_.tokens * row};
  }

  template <class Visit>
  void visit(const Place& place, std::int64_t heads, const Visit& call) const {
    std::size_t i = 0;
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t t = 0; t < shape_.tokens; ++t)
          for (std::int64_t d = 0; d < shape_.head_dim; ++d, ++i)
            call(i,
                 place.offset + b * place.batch_stride + t * place.token_stride + h * place.head_stride + d);
  }
  void write(const Place& place, std::int64_t heads, const std::vector<double>& values) {
    visit(place, heads, [&](std::size_t i, std::int64_t at) { host_[at] = T(float(values[i])); });
  }
  std::vector<double> gather(const std::vector<T>& values, const Place& place, std::int64_t heads,
                             std::int64_t shift) const {
    std::vector<double> gathered(shape_.batch * heads * shape_.tokens * shape_.head_dim);
    visit(place, heads, [&](std::size_t i, std::int64_t at) { gathered[i] = double(values[at + shift]); });
    return gathered;
  }

  T* data() const { return reinterpret_cast<T*>(device_.data()); }
  HeadsOperand<T> on_device(const Place& p) const {
    return {data() + p.offset, p.batch_stride, p.token_stride, p.head_stride};
  }
  HeadsOperand<const T> constant(const Place& p) const {
    return {data() + p.offset, p.batch_stride, p.token_stride, p.head_stride};
  }
  /// Gradients lie as their inputs do, past everything else.
  HeadsOperand<T> gradient(const Place& p) const {
    return {data() + next_ + p.offset, p.batch_stride, p.token_stride, p.head_stride};
  }

  AttentionShape shape_;
  Stream<Space>* stream_;
  Place query_{}, key_{}, value_{}, output_{}, output_gradient_{};
  std::int64_t next_ = 0;
  std::int64_t elements_ = 0;
  std::vector<T> host_;
  std::vector<Accumulator<T>> log_sum_exp_host_;
  Allocation<Space> device_, log_sum_exp_, scalars_, sinks_, tables_, workspace_;
};

/// The largest difference, relative to the largest value of `expected` or 1; infinite for a NaN.
inline double relative_error(const std::vector<double>& values, const std::vector<double>& expected) {
  double largest = 1;
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const double difference = std::abs(values[i] - expected[i]);
    if (!(difference <= error))
      error = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return error / largest;
}

inline bool same_bits(const AttentionResults& a, const AttentionResults& b) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  return same(a.output, b.output) && same(a.log_sum_exp, b.log_sum_exp) &&
         same(a.query_gradient, b.query_gradient) && same(a.key_gradient, b.key_gradient) &&
         same(a.value_gradient, b.value_gradient);
}

}  // namespace encore::tests
