// SPDX-License-Identifier: Apache-2.0
#include "attention_host_kernels.hpp"

#include "attention_host_blocks.hpp"

#include <limits>

namespace encore::backend::impl {

namespace {

/// One block of queries of one head, forward: online softmax over blocks of keys.
/// Dao, "FlashAttention-2", 2023, algorithm 1.
template <class T>
struct HostAttentionForward {
  using A = Accumulator<T>;

  const AttentionForward<T>& operands;

  static std::size_t scratch_bytes(std::int64_t head_dim) {
    const std::int64_t width = round_up(head_dim, micro_columns<A>);
    using Pieces = ScratchPieces<A>;
    return Pieces::bytes_of(host_queries * head_dim) + Pieces::bytes_of(host_queries * width) +
           Pieces::bytes_of(host_keys * head_dim) + Pieces::bytes_of(host_keys * width) +
           Pieces::bytes_of(host_queries * host_keys) + 3 * Pieces::bytes_of(host_queries);
  }

  void run(std::int64_t item, std::byte* scratch) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + host_queries - 1) / host_queries;
    const auto [batch, head, block] = attention_item(item, shape.heads, blocks);
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const std::int64_t query_begin = block * host_queries;
    const std::int64_t rows = std::min(host_queries, shape.tokens - query_begin);
    const std::int64_t width = round_up(shape.head_dim, micro_columns<A>);
    const std::int64_t log_sum_exp_begin = (batch * shape.heads + head) * shape.tokens + query_begin;

    ScratchPieces<A> pieces(scratch);
    A* queries = pieces.take(host_queries * shape.head_dim);
    A* sums = pieces.take(host_queries * width);
    A* key_panels = pieces.take(host_keys * shape.head_dim);
    A* value_panels = pieces.take(host_keys * width);
    A* scores = pieces.take(host_queries * host_keys);
    A* largest = pieces.take(host_queries);
    A* total = pieces.take(host_queries);
    A* factors = pieces.take(host_keys);

    load_rows(head_of(operands.query, batch, head, query_begin), operands.query.token_stride, rows,
              shape.head_dim, static_cast<A>(shape.scale), queries);
    std::fill_n(sums, host_queries * width, A(0));
    // A sink is a score that comes first.
    std::fill_n(largest, host_queries,
                shape.sinks ? operands.sinks[head] : -std::numeric_limits<A>::infinity());
    std::fill_n(total, host_queries, shape.sinks ? A(1) : A(0));

    for (std::int64_t key_begin = first_key(shape, query_begin, host_keys); key_begin < query_begin + rows;
         key_begin += host_keys) {
      const CausalBlock causal{rows, std::min(host_keys, query_begin + rows - key_begin),
                               query_begin - key_begin, window_of(shape)};
      pack_second(head_of(operands.key, batch, kv_head, key_begin), operands.key.token_stride, true, 0,
                  shape.head_dim, 0, causal.columns, key_panels);
      pack_second(head_of(operands.value, batch, kv_head, key_begin), operands.value.token_stride, false, 0,
                  causal.columns, 0, shape.head_dim, value_panels);
      score_product(causal, shape.head_dim, queries, shape.head_dim, key_panels, scores, host_keys);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t first = causal.first(r), end = causal.end(r);
        add_to_softmax(first, end, scores + r * host_keys, largest[r], total[r], sums + r * width, width);
        if (operands.dropout.probability == nullptr) continue;
        const std::uint64_t element =
            static_cast<std::uint64_t>(log_sum_exp_begin + r) * shape.tokens + key_begin;
        dropout_factors(operands.dropout, element, end, factors);
        for (std::int64_t c = first; c < end; ++c) scores[r * host_keys + c] *= factors[c];
      }
      add_row_product(causal, width, scores, host_keys, value_panels, sums, width);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      store_row(sums + r * width, shape.head_dim, A(1) / total[r],
                head_of(operands.output, batch, head, query_begin + r));
      operands.log_sum_exp[log_sum_exp_begin + r] = largest[r] + std::log(total[r]);
    }
  }

 private:
  /// Turns a row's scores into exp(score - largest), and brings its running sums to the new largest score.
  static void add_to_softmax(std::int64_t first, std::int64_t end, A* scores, A& largest, A& total, A* sums,
                             std::int64_t width) {
    A block_largest = largest;
#pragma omp simd reduction(max : block_largest)
    for (std::int64_t c = first; c < end; ++c)
      block_largest = scores[c] > block_largest ? scores[c] : block_largest;
    if (block_largest > largest) {
      const A factor = fast_exp(largest - block_largest);
      for (std::int64_t c = 0; c < width; ++c) sums[c] *= factor;
      total *= factor;
      largest = block_largest;
    }
    A block_total(0);
#pragma omp simd reduction(+ : block_total)
    for (std::int64_t c = first; c < end; ++c) {
      scores[c] = fast_exp(scores[c] - block_largest);
      block_total += scores[c];
    }
    total += block_total;
    std::fill(scores, scores + first, A(0));
    std::fill(scores + end, scores + host_keys, A(0));
  }
};

/// Probabilities and score gradients of one block of queries against one block of keys.
template <class T>
struct HostAttentionGradientBlock {
  using A = Accumulator<T>;

  const AttentionBackward<T>& operands;
  std::int64_t batch, head, query_begin, key_begin;

  /// From scores = scale * Q K^T and weights = dO V^T: scores becomes probability * (dropout * weight - row dot),
  /// the gradient of the scores; weights becomes dropout * probability. `factors` is scratch.
  void finish(const CausalBlock& causal, A* scores, A* weights, A* factors) const {
    const AttentionShape& shape = operands.shape;
    for (std::int64_t r = 0; r < causal.rows; ++r) {
      const std::int64_t row = (batch * shape.heads + head) * shape.tokens + query_begin + r;
      const std::int64_t first = causal.first(r), end = causal.end(r);
      A* score = scores + r * host_keys;
      A* weight = weights + r * host_keys;
      const A log_sum_exp = operands.log_sum_exp[row];
      const A row_dot = operands.row_dots[row];
      if (operands.dropout.probability == nullptr) {
#pragma GCC ivdep
        for (std::int64_t c = first; c < end; ++c) {
          const A probability = fast_exp(score[c] - log_sum_exp);
          score[c] = probability * (weight[c] - row_dot);
          weight[c] = probability;
        }
      } else {
        dropout_factors(operands.dropout, static_cast<std::uint64_t>(row) * shape.tokens + key_begin, end,
                        factors);
#pragma GCC ivdep
        for (std::int64_t c = first; c < end; ++c) {
          const A probability = fast_exp(score[c] - log_sum_exp);
          score[c] = probability * (factors[c] * weight[c] - row_dot);
          weight[c] = probability * factors[c];
        }
      }
      for (A* values : {score, weight}) {
        std::fill(values, values + first, A(0));
        std::fill(values + end, values + host_keys, A(0));
      }
    }
  }
};

/// The gradient of one block of queries of one head, and its rows' dots of output and output gradient.
template <class T>
struct HostAttentionQueryGradient {
  using A = Accumulator<T>;

  const AttentionBackward<T>& operands;

  static std::size_t scratch_bytes(std::int64_t head_dim) {
    const std::int64_t width = round_up(head_dim, micro_columns<A>);
    using Pieces = ScratchPieces<A>;
    return 2 * Pieces::bytes_of(host_queries * head_dim) + Pieces::bytes_of(host_queries * width) +
           2 * Pieces::bytes_of(host_keys * head_dim) + Pieces::bytes_of(host_keys * width) +
           2 * Pieces::bytes_of(host_queries * host_keys) + Pieces::bytes_of(host_keys);
  }

  void run(std::int64_t item, std::byte* scratch) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + host_queries - 1) / host_queries;
    const auto [batch, head, block] = attention_item(item, shape.heads, blocks);
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const std::int64_t query_begin = block * host_queries;
    const std::int64_t rows = std::min(host_queries, shape.tokens - query_begin);
    const std::int64_t width = round_up(shape.head_dim, micro_columns<A>);

    ScratchPieces<A> pieces(scratch);
    A* queries = pieces.take(host_queries * shape.head_dim);
    A* output_gradients = pieces.take(host_queries * shape.head_dim);
    A* sums = pieces.take(host_queries * width);
    A* key_columns = pieces.take(host_keys * shape.head_dim);
    A* value_columns = pieces.take(host_keys * shape.head_dim);
    A* key_rows = pieces.take(host_keys * width);
    A* scores = pieces.take(host_queries * host_keys);
    A* weights = pieces.take(host_queries * host_keys);
    A* factors = pieces.take(host_keys);

    load_rows(head_of(operands.query, batch, head, query_begin), operands.query.token_stride, rows,
              shape.head_dim, static_cast<A>(shape.scale), queries);
    load_rows(head_of(operands.output_gradient, batch, head, query_begin),
              operands.output_gradient.token_stride, rows, shape.head_dim, A(1), output_gradients);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* output = head_of(operands.output, batch, head, query_begin + r);
      A dot(0);
#pragma omp simd reduction(+ : dot)
      for (std::int64_t d = 0; d < shape.head_dim; ++d)
        dot += static_cast<A>(output[d]) * output_gradients[r * shape.head_dim + d];
      operands.row_dots[(batch * shape.heads + head) * shape.tokens + query_begin + r] = dot;
    }
    std::fill_n(sums, host_queries * width, A(0));

    for (std::int64_t key_begin = first_key(shape, query_begin, host_keys); key_begin < query_begin + rows;
         key_begin += host_keys) {
      const CausalBlock causal{rows, std::min(host_keys, query_begin + rows - key_begin),
                               query_begin - key_begin, window_of(shape)};
      const T* keys = head_of(operands.key, batch, kv_head, key_begin);
      pack_second(keys, operands.key.token_stride, true, 0, shape.head_dim, 0, causal.columns, key_columns);
      pack_second(keys, operands.key.token_stride, false, 0, causal.columns, 0, shape.head_dim, key_rows);
      pack_second(head_of(operands.value, batch, kv_head, key_begin), operands.value.token_stride, true, 0,
                  shape.head_dim, 0, causal.columns, value_columns);
      score_product(causal, shape.head_dim, queries, shape.head_dim, key_columns, scores, host_keys);
      score_product(causal, shape.head_dim, output_gradients, shape.head_dim, value_columns, weights,
                    host_keys);
      HostAttentionGradientBlock<T>{operands, batch, head, query_begin, key_begin}.finish(causal, scores,
                                                                                          weights, factors);
      add_row_product(causal, width, scores, host_keys, key_rows, sums, width);
    }
    for (std::int64_t r = 0; r < rows; ++r)
      store_row(sums + r * width, shape.head_dim, static_cast<A>(shape.scale),
                head_of(operands.query_gradient, batch, head, query_begin + r));
  }
};

/// The gradients of one block of keys and values of one key head, summed over the query heads that read it.
template <class T>
struct HostAttentionKeyGradient {
  using A = Accumulator<T>;

  const AttentionBackward<T>& operands;

  static std::size_t scratch_bytes(std::int64_t head_dim) {
    const std::int64_t width = round_up(head_dim, micro_columns<A>);
    using Pieces = ScratchPieces<A>;
    return 2 * Pieces::bytes_of(host_queries * head_dim) + 2 * Pieces::bytes_of(host_queries * width) +
           2 * Pieces::bytes_of(host_keys * head_dim) + 2 * Pieces::bytes_of(host_keys * width) +
           2 * Pieces::bytes_of(host_queries * host_keys) + Pieces::bytes_of(host_keys);
  }

  void run(std::int64_t item, std::byte* scratch) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + host_keys - 1) / host_keys;
    const auto [batch, kv_head, block] = attention_item(item, shape.kv_heads, blocks);
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t key_begin = block * host_keys;
    const std::int64_t keys = std::min(host_keys, shape.tokens - key_begin);
    const std::int64_t width = round_up(shape.head_dim, micro_columns<A>);

    ScratchPieces<A> pieces(scratch);
    A* queries = pieces.take(host_queries * shape.head_dim);
    A* output_gradients = pieces.take(host_queries * shape.head_dim);
    A* query_rows = pieces.take(host_queries * width);
    A* output_gradient_rows = pieces.take(host_queries * width);
    A* key_columns = pieces.take(host_keys * shape.head_dim);
    A* value_columns = pieces.take(host_keys * shape.head_dim);
    A* key_sums = pieces.take(host_keys * width);
    A* value_sums = pieces.take(host_keys * width);
    A* scores = pieces.take(host_queries * host_keys);
    A* weights = pieces.take(host_queries * host_keys);
    A* factors = pieces.take(host_keys);

    pack_second(head_of(operands.key, batch, kv_head, key_begin), operands.key.token_stride, true, 0,
                shape.head_dim, 0, keys, key_columns);
    pack_second(head_of(operands.value, batch, kv_head, key_begin), operands.value.token_stride, true, 0,
                shape.head_dim, 0, keys, value_columns);
    std::fill_n(key_sums, host_keys * width, A(0));
    std::fill_n(value_sums, host_keys * width, A(0));

    const std::int64_t queries_end = query_end(shape, key_begin + keys);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t query_begin = key_begin; query_begin < queries_end; query_begin += host_queries) {
        const CausalBlock causal{std::min(host_queries, queries_end - query_begin), keys,
                                 query_begin - key_begin, window_of(shape)};
        load_rows(head_of(operands.query, batch, head, query_begin), operands.query.token_stride, causal.rows,
                  shape.head_dim, static_cast<A>(shape.scale), queries);
        load_rows(head_of(operands.output_gradient, batch, head, query_begin),
                  operands.output_gradient.token_stride, causal.rows, shape.head_dim, A(1), output_gradients);
        pack_second(queries, shape.head_dim, false, 0, causal.rows, 0, shape.head_dim, query_rows);
        pack_second(output_gradients, shape.head_dim, false, 0, causal.rows, 0, shape.head_dim,
                    output_gradient_rows);
        score_product(causal, shape.head_dim, queries, shape.head_dim, key_columns, scores, host_keys);
        score_product(causal, shape.head_dim, output_gradients, shape.head_dim, value_columns, weights,
                      host_keys);
        HostAttentionGradientBlock<T>{operands, batch, head, query_begin, key_begin}.finish(causal, scores,
                                                                                            weights, factors);
        add_column_product(causal, width, weights, host_keys, output_gradient_rows, value_sums, width);
        add_column_product(causal, width, scores, host_keys, query_rows, key_sums, width);
      }
    }
    for (std::int64_t c = 0; c < keys; ++c) {
      // The scale is in the queries already.
      store_row(key_sums + c * width, shape.head_dim, A(1),
                head_of(operands.key_gradient, batch, kv_head, key_begin + c));
      store_row(value_sums + c * width, shape.head_dim, A(1),
                head_of(operands.value_gradient, batch, kv_head, key_begin + c));
    }
  }
};

}  // namespace

template <class T>
std::size_t HostAttention<T>::forward_scratch_bytes(std::int64_t head_dim) {
  return HostAttentionForward<T>::scratch_bytes(head_dim);
}
template <class T>
void HostAttention<T>::forward(const AttentionForward<T>& operands, std::int64_t item, std::byte* scratch) {
  HostAttentionForward<T>{operands}.run(item, scratch);
}
template <class T>
std::size_t HostAttention<T>::query_gradient_scratch_bytes(std::int64_t head_dim) {
  return HostAttentionQueryGradient<T>::scratch_bytes(head_dim);
}
template <class T>
void HostAttention<T>::query_gradient(const AttentionBackward<T>& operands, std::int64_t item,
                                      std::byte* scratch) {
  HostAttentionQueryGradient<T>{operands}.run(item, scratch);
}
template <class T>
std::size_t HostAttention<T>::key_gradient_scratch_bytes(std::int64_t head_dim) {
  return HostAttentionKeyGradient<T>::scratch_bytes(head_dim);
}
template <class T>
void HostAttention<T>::key_gradient(const AttentionBackward<T>& operands, std::int64_t item,
                                    std::byte* scratch) {
  HostAttentionKeyGradient<T>{operands}.run(item, scratch);
}

template struct HostAttention<double>;
template struct HostAttention<float>;
template struct HostAttention<bfloat16>;

}  // namespace encore::backend::impl
