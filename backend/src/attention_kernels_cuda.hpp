// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_tiles_cuda.hpp"

namespace encore::backend::impl {

/// Tile sizes for heads of up to HeadDim: rows and columns that a thread holds of a tile of scores.
template <int HeadDim>
struct AttentionTiles {
  static constexpr int forward_rows = HeadDim == 256 ? 4 : 8;
  static constexpr int backward_rows = 4;
  static constexpr int columns = 4;
  static constexpr int key_gradient_columns = HeadDim == 256 ? 2 : 4;
};

/// One block of queries of one head, forward: online softmax over blocks of keys.
/// Dao, "FlashAttention-2", 2023, algorithm 1.
template <int HeadDim, class T>
struct CudaAttentionForward {
  static constexpr int rows = AttentionTiles<HeadDim>::forward_rows;
  static constexpr int columns = AttentionTiles<HeadDim>::columns;
  static constexpr int queries = rows * 8;
  static constexpr int keys = columns * 16;
  static constexpr std::size_t scratch_bytes =
      ((queries + keys) * tile_stride<HeadDim> + queries * weights_stride<columns>)*sizeof(float);

  AttentionForward<T> operands;

  __device__ void operator()(const AttentionTeam& team) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + queries - 1) / queries;
    const auto [batch, head, block] = attention_item(team.league_rank(), shape.heads, blocks);
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const std::int64_t query_begin = block * queries;
    const std::int64_t query_count = shape.tokens - query_begin;
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;

    auto* query_tile = team.scratch<float>();
    float* tile = query_tile + queries * tile_stride<HeadDim>;
    float* weights = tile + keys * tile_stride<HeadDim>;
    load_tile<queries, 0, HeadDim>(team, head_of(operands.query, batch, head, query_begin),
                                   operands.query.token_stride, query_count, shape.head_dim, shape.scale,
                                   query_tile);
    float largest[rows];
    float total[rows];
    RowSums<rows, HeadDim> sums;
    sums.clear();
    for (int r = 0; r < rows; ++r) {  // A sink is a score that comes first.
      largest[r] = shape.sinks ? operands.sinks[head] : -INFINITY;
      total[r] = shape.sinks ? 1 : 0;
    }

    const std::int64_t window = window_of(shape);
    const std::int64_t key_end = query_begin + queries < shape.tokens ? query_begin + queries : shape.tokens;
    for (std::int64_t key_begin = first_key(shape, query_begin, keys); key_begin < key_end;
         key_begin += keys) {
      team.barrier();
      load_tile<keys, columns, HeadDim>(team, head_of(operands.key, batch, kv_head, key_begin),
                                        operands.key.token_stride, shape.tokens - key_begin, shape.head_dim,
                                        1.0F, tile);
      team.barrier();
      float scores[rows][columns];
      tile_scores<rows, columns, HeadDim>(team, query_tile, tile, shape.head_dim, scores);
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const std::int64_t query = query_begin + r * 8 + y;
        float row_largest = largest[r];
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const std::int64_t key = key_begin + x * columns + c;
          if (key > query || key + window <= query || key >= shape.tokens) scores[r][c] = -INFINITY;
          row_largest = fmaxf(row_largest, scores[r][c]);
        }
        row_largest = row_max(row_largest);
        // 0 at first. Of the first keys a query may see none: what is subtracted from -infinity must be finite.
        const float shift = row_largest == -INFINITY ? 0.0F : row_largest;
        const float rescale = expf(largest[r] - shift);
        largest[r] = row_largest;
        float row_total = 0;
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          scores[r][c] = expf(scores[r][c] - shift);
          row_total += scores[r][c];
        }
        total[r] = total[r] * rescale + row_sum(row_total);
#pragma unroll
        for (int g = 0; g < RowSums<rows, HeadDim>::groups; ++g)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums.value[r][g][i] *= rescale;
      }
      if (operands.dropout.probability != nullptr) {
        DropoutDraw draw(operands.dropout);
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          const std::uint64_t row = (batch * shape.heads + head) * shape.tokens + query_begin + r * 8 + y;
#pragma unroll
          for (int c = 0; c < columns; ++c)
            scores[r][c] *= draw.factor(row * shape.tokens + key_begin + x * columns + c);
        }
      }
      store_weights(team, scores, weights);
      team.barrier();
      load_tile<keys, columns, HeadDim>(team, head_of(operands.value, batch, kv_head, key_begin),
                                        operands.value.token_stride, shape.tokens - key_begin, shape.head_dim,
                                        1.0F, tile);
      team.barrier();
      sums.template add<columns>(team, weights, tile);
    }

    sums.store(team, head_of(operands.output, batch, head, query_begin), operands.output.token_stride,
               query_count, shape.head_dim, [&](int r) { return 1.0F / total[r]; });
    if (x != 0) return;
    for (int r = 0; r < rows; ++r)
      if (r * 8 + y < query_count)
        operands.log_sum_exp[(batch * shape.heads + head) * shape.tokens + query_begin + r * 8 + y] =
            largest[r] + logf(total[r]);
  }
};

/// The gradient of one block of queries of one head, and its rows' dots of output and output gradient.
template <int HeadDim, class T>
struct CudaAttentionQueryGradient {
  static constexpr int rows = AttentionTiles<HeadDim>::backward_rows;
  static constexpr int columns = AttentionTiles<HeadDim>::columns;
  static constexpr int queries = rows * 8;
  static constexpr int keys = columns * 16;
  static constexpr std::size_t scratch_bytes =
      ((2 * queries + keys) * tile_stride<HeadDim> + queries * weights_stride<columns>)*sizeof(float);

  AttentionBackward<T> operands;

  __device__ void operator()(const AttentionTeam& team) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + queries - 1) / queries;
    const auto [batch, head, block] = attention_item(team.league_rank(), shape.heads, blocks);
    const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const std::int64_t query_begin = block * queries;
    const std::int64_t query_count = shape.tokens - query_begin;
    const std::int64_t first_row = (batch * shape.heads + head) * shape.tokens + query_begin;
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;

    auto* query_tile = team.scratch<float>();
    float* output_gradient_tile = query_tile + queries * tile_stride<HeadDim>;
    float* tile = output_gradient_tile + queries * tile_stride<HeadDim>;
    float* weights = tile + keys * tile_stride<HeadDim>;
    load_tile<queries, 0, HeadDim>(team, head_of(operands.query, batch, head, query_begin),
                                   operands.query.token_stride, query_count, shape.head_dim, shape.scale,
                                   query_tile);
    load_tile<queries, 0, HeadDim>(team, head_of(operands.output_gradient, batch, head, query_begin),
                                   operands.output_gradient.token_stride, query_count, shape.head_dim, 1.0F,
                                   output_gradient_tile);
    team.barrier();

    float row_dot[rows];
    float log_sum_exp[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int row = r * 8 + y;
      float dot = 0;
      if (row < query_count) {
        const T* output = head_of(operands.output, batch, head, query_begin + row);
        for (int d = x; d < shape.head_dim; d += 16)
          dot += static_cast<float>(output[d]) * output_gradient_tile[row * tile_stride<HeadDim> + d];
      }
      row_dot[r] = row_sum(dot);
      log_sum_exp[r] = row < query_count ? operands.log_sum_exp[first_row + row] : INFINITY;
      if (row < query_count && x == 0) operands.row_dots[first_row + row] = row_dot[r];
    }
    RowSums<rows, HeadDim> sums;
    sums.clear();

    const std::int64_t window = window_of(shape);
    const std::int64_t key_end = query_begin + queries < shape.tokens ? query_begin + queries : shape.tokens;
    for (std::int64_t key_begin = first_key(shape, query_begin, keys); key_begin < key_end;
         key_begin += keys) {
      team.barrier();
      load_tile<keys, columns, HeadDim>(team, head_of(operands.value, batch, kv_head, key_begin),
                                        operands.value.token_stride, shape.tokens - key_begin, shape.head_dim,
                                        1.0F, tile);
      team.barrier();
      float gradients[rows][columns];
      tile_scores<rows, columns, HeadDim>(team, output_gradient_tile, tile, shape.head_dim, gradients);
      team.barrier();
      load_tile<keys, columns, HeadDim>(team, head_of(operands.key, batch, kv_head, key_begin),
                                        operands.key.token_stride, shape.tokens - key_begin, shape.head_dim,
                                        1.0F, tile);
      team.barrier();
      float scores[rows][columns];
      tile_scores<rows, columns, HeadDim>(team, query_tile, tile, shape.head_dim, scores);
      if (operands.dropout.probability != nullptr) {
        DropoutDraw draw(operands.dropout);
#pragma unroll
        for (int r = 0; r < rows; ++r)
#pragma unroll
          for (int c = 0; c < columns; ++c)
            gradients[r][c] *= draw.factor(static_cast<std::uint64_t>(first_row + r * 8 + y) * shape.tokens +
                                           key_begin + x * columns + c);
      }
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          const std::int64_t key = key_begin + x * columns + c;
          const std::int64_t query = query_begin + r * 8 + y;
          const bool visible = key <= query && key + window > query && key < shape.tokens;
          scores[r][c] =
              visible ? expf(scores[r][c] - log_sum_exp[r]) * (gradients[r][c] - row_dot[r]) : 0.0F;
        }
      store_weights(team, scores, weights);
      team.barrier();
      sums.template add<columns>(team, weights, tile);
    }
    sums.store(team, head_of(operands.query_gradient, batch, head, query_begin),
               operands.query_gradient.token_stride, query_count, shape.head_dim,
               [&](int) { return shape.scale; });
  }
};

/// The gradients of one block of keys and values of one key head, summed over the query heads that read it.
/// Its tiles of scores are transposed: rows are keys, columns are queries.
template <int HeadDim, class T>
struct CudaAttentionKeyGradient {
  static constexpr int rows = AttentionTiles<HeadDim>::backward_rows;
  static constexpr int columns = AttentionTiles<HeadDim>::key_gradient_columns;
  static constexpr int keys = rows * 8;
  static constexpr int queries = columns * 16;
  static constexpr std::size_t scratch_bytes =
      (2 * (keys + queries) * tile_stride<HeadDim> + keys * weights_stride<columns>)*sizeof(float);

  AttentionBackward<T> operands;

  __device__ void operator()(const AttentionTeam& team) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t blocks = (shape.tokens + keys - 1) / keys;
    const auto [batch, kv_head, block] = attention_item(team.league_rank(), shape.kv_heads, blocks);
    const std::int64_t group = shape.heads / shape.kv_heads;
    const std::int64_t key_begin = block * keys;
    const std::int64_t key_count = shape.tokens - key_begin;
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;

    auto* key_tile = team.scratch<float>();
    float* value_tile = key_tile + keys * tile_stride<HeadDim>;
    float* query_tile = value_tile + keys * tile_stride<HeadDim>;
    float* output_gradient_tile = query_tile + queries * tile_stride<HeadDim>;
    float* weights = output_gradient_tile + queries * tile_stride<HeadDim>;
    load_tile<keys, 0, HeadDim>(team, head_of(operands.key, batch, kv_head, key_begin),
                                operands.key.token_stride, key_count, shape.head_dim, 1.0F, key_tile);
    load_tile<keys, 0, HeadDim>(team, head_of(operands.value, batch, kv_head, key_begin),
                                operands.value.token_stride, key_count, shape.head_dim, 1.0F, value_tile);
    RowSums<rows, HeadDim> key_sums;
    RowSums<rows, HeadDim> value_sums;
    key_sums.clear();
    value_sums.clear();

    const std::int64_t queries_end = query_end(shape, key_begin + keys);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t query_begin = key_begin; query_begin < queries_end; query_begin += queries) {
        const std::int64_t query_count = shape.tokens - query_begin;
        team.barrier();
        load_tile<queries, columns, HeadDim>(team, head_of(operands.query, batch, head, query_begin),
                                             operands.query.token_stride, query_count, shape.head_dim,
                                             shape.scale, query_tile);
        load_tile<queries, columns, HeadDim>(
            team, head_of(operands.output_gradient, batch, head, query_begin),
            operands.output_gradient.token_stride, query_count, shape.head_dim, 1.0F, output_gradient_tile);
        team.barrier();
        float scores[rows][columns];
        float gradients[rows][columns];
        tile_scores<rows, columns, HeadDim>(team, key_tile, query_tile, shape.head_dim, scores);
        tile_scores<rows, columns, HeadDim>(team, value_tile, output_gradient_tile, shape.head_dim,
                                            gradients);
        finish(team, batch, head, key_begin, query_begin, scores, gradients);
        store_weights(team, gradients, weights);
        team.barrier();
        value_sums.template add<columns>(team, weights, output_gradient_tile);
        team.barrier();
        store_weights(team, scores, weights);
        team.barrier();
        key_sums.template add<columns>(team, weights, query_tile);
      }
    }
    // The scale is in the queries already.
    key_sums.store(team, head_of(operands.key_gradient, batch, kv_head, key_begin),
                   operands.key_gradient.token_stride, key_count, shape.head_dim, [](int) { return 1.0F; });
    value_sums.store(team, head_of(operands.value_gradient, batch, kv_head, key_begin),
                     operands.value_gradient.token_stride, key_count, shape.head_dim,
                     [](int) { return 1.0F; });
  }

 private:
  /// scores becomes the gradient of the scores, gradients becomes the probabilities that values are weighted with.
  __device__ void finish(const AttentionTeam& team, std::int64_t batch, std::int64_t head,
                         std::int64_t key_begin, std::int64_t query_begin, float (&scores)[rows][columns],
                         float (&gradients)[rows][columns]) const {
    const AttentionShape& shape = operands.shape;
    const std::int64_t window = window_of(shape);
    const int x = team.rank() % 16;
    const int y = team.rank() / 16;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const std::int64_t query = query_begin + x * columns + c;
      const std::int64_t row = (batch * shape.heads + head) * shape.tokens + query;
      const float log_sum_exp = query < shape.tokens ? operands.log_sum_exp[row] : 0.0F;
      const float row_dot = query < shape.tokens ? operands.row_dots[row] : 0.0F;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const std::int64_t key = key_begin + r * 8 + y;
        const bool visible = key <= query && key + window > query && query < shape.tokens;
        const float probability = visible ? expf(scores[r][c] - log_sum_exp) : 0.0F;
        float factor = 1.0F;
        if (operands.dropout.probability != nullptr)
          factor = DropoutDraw(operands.dropout).factor(static_cast<std::uint64_t>(row) * shape.tokens + key);
        scores[r][c] = probability * (factor * gradients[r][c] - row_dot);
        gradients[r][c] = probability * factor;
      }
    }
  }
};

}  // namespace encore::backend::impl
