// SPDX-License-Identifier: Apache-2.0
//
// Normalizations of the residual stream, of the heads' queries and keys, and of a gated branch:
//   <rms_norm|layer_norm|head_norm|gated_rms_norm>/<forward|backward>/<workload>/<backend>
// Backward adds the residual's gradient and sums the weights' gradients. head_norm rotates too.
#include "turns.hpp"

#include <encore/kernels/gated_normalization.hpp>
#include <encore/kernels/head_normalization.hpp>
#include <encore/kernels/normalization.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

/// A stretch of rows, what forward saves of each, and their gradients.
template <class Space>
struct Rows {
  Stream<Space>& stream;
  std::int64_t tokens, columns;
  NoiseArray<Space, T> input, second, weight, gradient, residual_gradient;
  NoiseArray<Space, float> mean, inverse;
  PoisonedArray<Space, T> output, second_output, weight_gradient, bias_gradient;
  PoisonedArray<Space, float> workspace;

  Rows(Stream<Space>& on, std::uint64_t seed, std::int64_t rows, std::int64_t width,
       std::int64_t workspace_rows)
      : stream(on),
        tokens(rows),
        columns(width),
        input(on, rows * width, seed),
        second(on, rows * width, seed + 1),
        weight(on, width, seed + 2),
        gradient(on, rows * width, seed + 3),
        residual_gradient(on, rows * width, seed + 4),
        mean(on, rows, seed + 5),
        inverse(on, rows, seed + 6),
        output(on, rows * width),
        second_output(on, rows * width),
        weight_gradient(on, width),
        bias_gradient(on, width),
        workspace(on, workspace_rows * width) {}

  Matrix<const T, Space> matrix(const NoiseArray<Space, T>& array) const {
    return Matrix<const T, Space>{array.data(), count(tokens), count(columns)};
  }
  Matrix<T, Space> matrix(const PoisonedArray<Space, T>& array) const {
    return Matrix<T, Space>{array.data(), count(tokens), count(columns)};
  }
  Vector<const T, Space> weights() const { return Vector<const T, Space>{weight.data(), count(columns)}; }
  Vector<T, Space> sums(const PoisonedArray<Space, T>& array) const {
    return Vector<T, Space>{array.data(), count(columns)};
  }
  Vector<float, Space> of_rows(const NoiseArray<Space, float>& array) const {
    return Vector<float, Space>{array.data(), count(tokens)};
  }
  Matrix<float, Space> scratch(std::int64_t rows) const {
    return Matrix<float, Space>{workspace.data(), count(rows), count(columns)};
  }
  kernels::Columns<const T> stretch(const NoiseArray<Space, T>& array) const {
    return {array.data(), tokens, columns, columns};
  }
  kernels::Columns<T> stretch(const PoisonedArray<Space, T>& array) const {
    return {array.data(), tokens, columns, columns};
  }

 private:
  static std::size_t count(std::int64_t value) { return static_cast<std::size_t>(value); }
};

template <class Space>
std::shared_ptr<Rows<Space>> rows_of(Stream<Space>& stream, std::uint64_t seed, const Workload& w) {
  return std::make_shared<Rows<Space>>(stream, seed, w.tokens(), w.hidden,
                                       2 * kernels::normalization_workspace_rows(w.tokens(), w.hidden));
}

/// Work of a pass that moves this many matrices of the residual stream.
auto matrices(int count) {
  return [count](const Workload& w) { return Work{count * bytes_of<T>(w.tokens() * w.hidden)}; };
}

template <class Space>
void add_of_residual_stream(const Options& options) {
  add_for_workloads<Space>(
      options, "rms_norm/forward", always, matrices(2), [](auto& stream, auto seed, auto& w) {
        return [x = rows_of<Space>(stream, seed, w)] {
          kernels::rms_norm_forward<Space, T>(x->stream, x->matrix(x->input), x->weights(),
                                              x->matrix(x->output), x->of_rows(x->inverse), 1e-5);
        };
      });
  add_for_workloads<Space>(
      options, "rms_norm/backward", always, matrices(4), [](auto& stream, auto seed, auto& w) {
        return [x = rows_of<Space>(stream, seed, w)] {
          kernels::rms_norm_backward<Space, T, T>(
              x->stream, x->matrix(x->input), x->weights(), x->of_rows(x->inverse), x->matrix(x->gradient),
              x->matrix(x->residual_gradient), x->matrix(x->output), x->sums(x->weight_gradient),
              x->scratch(kernels::normalization_workspace_rows(x->tokens, x->columns)), false);
        };
      });
  add_for_workloads<Space>(
      options, "layer_norm/forward", has_mlp, matrices(2), [](auto& stream, auto seed, auto& w) {
        return [x = rows_of<Space>(stream, seed, w)] {
          kernels::layer_norm_forward<Space, T>(x->stream, x->matrix(x->input), x->weights(), x->weights(),
                                                x->matrix(x->output), x->of_rows(x->mean),
                                                x->of_rows(x->inverse), 1e-5);
        };
      });
  add_for_workloads<Space>(
      options, "layer_norm/backward", has_mlp, matrices(4), [](auto& stream, auto seed, auto& w) {
        return [x = rows_of<Space>(stream, seed, w)] {
          kernels::layer_norm_backward<Space, T, T>(
              x->stream, x->matrix(x->input), x->weights(), x->of_rows(x->mean), x->of_rows(x->inverse),
              x->matrix(x->gradient), x->matrix(x->residual_gradient), x->matrix(x->output),
              x->sums(x->weight_gradient), x->sums(x->bias_gradient),
              x->scratch(2 * kernels::normalization_workspace_rows(x->tokens, x->columns)), false);
        };
      });
}

/// The gate and the scan's result of a Mamba-2 block twice as wide as the residual stream.
template <class Space>
void add_gated(const Options& options) {
  const auto make = [](Stream<Space>& stream, std::uint64_t seed, const Workload& w) {
    return std::make_shared<Rows<Space>>(stream, seed, w.tokens(), 2 * w.hidden,
                                         kernels::gated_rms_norm_workspace_rows(w.tokens()));
  };
  add_for_workloads<Space>(
      options, "gated_rms_norm/forward", has_mlp, matrices(6), [make](auto& stream, auto seed, auto& w) {
        return [x = make(stream, seed, w)] {
          kernels::gated_rms_norm_forward<Space, T>(
              x->stream, x->stretch(x->input), x->stretch(x->second), x->weights(), x->stretch(x->output),
              Matrix<float, Space>(x->inverse.data(), static_cast<std::size_t>(x->tokens), 1), 1e-5);
        };
      });
  add_for_workloads<Space>(
      options, "gated_rms_norm/backward", has_mlp, matrices(10), [make](auto& stream, auto seed, auto& w) {
        return [x = make(stream, seed, w)] {
          kernels::gated_rms_norm_backward<Space, T, T>(
              x->stream, x->stretch(x->input), x->stretch(x->second), x->weights(),
              Matrix<const float, Space>(x->inverse.data(), static_cast<std::size_t>(x->tokens), 1),
              x->stretch(x->gradient), x->stretch(x->output), x->stretch(x->second_output),
              x->sums(x->weight_gradient), x->scratch(kernels::gated_rms_norm_workspace_rows(x->tokens)),
              false);
        };
      });
}

/// A projection with queries and keys, and the tables of their rotation.
template <class Space>
struct Heads {
  Stream<Space>& stream;
  Workload workload;
  kernels::ProjectedHeads heads;
  NoiseArray<Space, T> projected, gradient, weight;
  NoiseArray<Space, float> cosine, sine;
  PoisonedArray<Space, T> result, weight_gradients;
  PoisonedArray<Space, float> workspace;

  Heads(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        workload(w),
        heads{w.tokens(), w.tokens_of_sequence, w.heads, w.kv_heads, w.head_dim, w.projected()},
        projected(on, w.tokens() * w.projected(), seed),
        gradient(on, w.tokens() * w.projected(), seed + 1),
        weight(on, w.head_dim, seed + 2),
        cosine(on, w.tokens_of_sequence * w.head_dim / 2, seed + 3),
        sine(on, w.tokens_of_sequence * w.head_dim / 2, seed + 4),
        result(on, w.tokens() * (w.heads + w.kv_heads) * w.head_dim),
        weight_gradients(on, 2 * w.head_dim),
        workspace(on, kernels::head_norm_workspace_rows(w.tokens()) * w.head_dim) {}

  Vector<const T, Space> weights() const {
    return Vector<const T, Space>{weight.data(), static_cast<std::size_t>(heads.head_dim)};
  }
  Vector<T, Space> gradient_of_weights(std::int64_t which) const {
    return Vector<T, Space>{weight_gradients.data() + which * heads.head_dim,
                            static_cast<std::size_t>(heads.head_dim)};
  }
  Matrix<const float, Space> table(const NoiseArray<Space, float>& array) const {
    return Matrix<const float, Space>{array.data(), static_cast<std::size_t>(heads.sequence),
                                      static_cast<std::size_t>(heads.head_dim / 2)};
  }
};

template <class Space>
void add_of_heads(const Options& options) {
  const auto moves = [](int count) {
    return [count](const Workload& w) {
      return Work{count * bytes_of<T>(w.tokens() * (w.heads + w.kv_heads) * w.head_dim)};
    };
  };
  add_for_workloads<Space>(
      options, "head_norm/forward", has_experts, moves(2), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Heads<Space>>(stream, seed, w)] {
          const auto columns =
              static_cast<std::size_t>((x->heads.query_heads + x->heads.key_heads) * x->heads.head_dim);
          kernels::head_norm_forward<Space, T>(
              x->stream, x->heads, x->projected.data(), x->weights(), x->weights(),
              kernels::RopeStyle::half_split, x->table(x->cosine), x->table(x->sine),
              Matrix<T, Space>(x->result.data(), static_cast<std::size_t>(x->heads.tokens), columns), 1e-5);
        };
      });
  add_for_workloads<Space>(
      options, "head_norm/backward", has_experts, moves(3), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Heads<Space>>(stream, seed, w)] {
          const auto rows = static_cast<std::size_t>(kernels::head_norm_workspace_rows(x->heads.tokens));
          kernels::head_norm_backward<Space, T, T>(
              x->stream, x->heads, x->projected.data(), x->weights(), x->weights(),
              kernels::RopeStyle::half_split, x->table(x->cosine), x->table(x->sine), x->gradient.data(),
              x->gradient_of_weights(0), x->gradient_of_weights(1),
              Matrix<float, Space>(x->workspace.data(), rows, static_cast<std::size_t>(x->heads.head_dim)),
              1e-5, false);
        };
      });
}

template <class Space>
void add_to(const Options& options) {
  add_of_residual_stream<Space>(options);
  add_of_heads<Space>(options);
  add_gated<Space>(options);
}

}  // namespace

ENCORE_DEFINE_FAMILY(normalization)

}  // namespace encore::bench
