// SPDX-License-Identifier: Apache-2.0
//
// Activations of MLP and experts:
//   <swiglu|gelu|expert_activation>/<forward|backward>/<workload>/<backend>
// The experts' rows are spread evenly, and take their router weights along.
#include "turns.hpp"

#include <encore/kernels/activation.hpp>
#include <encore/kernels/expert_activation.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Inner {
  Stream<Space>& stream;
  std::size_t rows, ffn;
  NoiseArray<Space, T> raised, gradient;
  PoisonedArray<Space, T> activated, raised_gradient;

  Inner(Stream<Space>& on, std::uint64_t seed, std::int64_t count, std::int64_t width)
      : stream(on),
        rows(static_cast<std::size_t>(count)),
        ffn(static_cast<std::size_t>(width)),
        raised(on, count * 2 * width, seed),
        gradient(on, count * width, seed + 1),
        activated(on, count * width),
        raised_gradient(on, count * 2 * width) {}

  Matrix<const T, Space> gate_up() const { return Matrix<const T, Space>{raised.data(), rows, 2 * ffn}; }
  Matrix<const T, Space> plain() const { return Matrix<const T, Space>{raised.data(), rows, ffn}; }
  Matrix<const T, Space> output_gradient() const {
    return Matrix<const T, Space>{gradient.data(), rows, ffn};
  }
  Matrix<T, Space> output() const { return Matrix<T, Space>{activated.data(), rows, ffn}; }
  Matrix<T, Space> gate_up_gradient() const {
    return Matrix<T, Space>{raised_gradient.data(), rows, 2 * ffn};
  }
};

template <class Space>
std::shared_ptr<Inner<Space>> inner_of(Stream<Space>& stream, std::uint64_t seed, const Workload& w) {
  return std::make_shared<Inner<Space>>(stream, seed, w.tokens(), w.ffn);
}

/// Work of a pass that moves this many matrices [tokens, ffn].
auto matrices(int count) {
  return [count](const Workload& w) { return Work{count * bytes_of<T>(w.tokens() * w.ffn)}; };
}

template <class Space>
void add_of_mlp(const Options& options) {
  add_for_workloads<Space>(options, "swiglu/forward", has_mlp, matrices(3),
                           [](auto& stream, auto seed, auto& w) {
                             return [x = inner_of<Space>(stream, seed, w)] {
                               kernels::swiglu_forward<Space, T>(x->stream, x->gate_up(), x->output());
                             };
                           });
  add_for_workloads<Space>(options, "swiglu/backward", has_mlp, matrices(5),
                           [](auto& stream, auto seed, auto& w) {
                             return [x = inner_of<Space>(stream, seed, w)] {
                               kernels::swiglu_backward<Space, T>(
                                   x->stream, x->gate_up(), x->output_gradient(), x->gate_up_gradient());
                             };
                           });
  add_for_workloads<Space>(
      options, "gelu/forward", has_mlp, matrices(2), [](auto& stream, auto seed, auto& w) {
        return [x = inner_of<Space>(stream, seed, w)] {
          kernels::gelu_forward<Space, T>(x->stream, kernels::Gelu::tanh, x->plain(), x->output());
        };
      });
  add_for_workloads<Space>(options, "gelu/backward", has_mlp, matrices(3),
                           [](auto& stream, auto seed, auto& w) {
                             return [x = inner_of<Space>(stream, seed, w)] {
                               kernels::gelu_backward<Space, T>(x->stream, kernels::Gelu::tanh, x->plain(),
                                                                x->output_gradient(), x->output());
                             };
                           });
}

/// Every token goes to topk experts, and the rows of each expert follow one another.
template <class Space>
struct Experts : Inner<Space> {
  std::size_t tokens, topk;
  GivenArray<Space, std::int32_t> source, row_of;
  NoiseArray<Space, float> weights;
  PoisonedArray<Space, float> weight_gradient;

  Experts(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : Inner<Space>(on, seed, w.rows(), w.expert_ffn),
        tokens(static_cast<std::size_t>(w.tokens())),
        topk(static_cast<std::size_t>(w.topk)),
        source(on, pairs(w, false)),
        row_of(on, pairs(w, true)),
        weights(on, w.rows(), seed + 2),
        weight_gradient(on, w.rows()) {}

  /// The pair of each row, or the row of each pair: row r holds pair (r * step) % rows.
  static std::vector<std::int32_t> pairs(const Workload& w, bool inverse) {
    const std::int64_t rows = w.rows(),
                       step = 2 * w.topk + 1;  // shares no factor with the rows, a power of two
    std::vector<std::int32_t> values(static_cast<std::size_t>(rows));
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t pair = row * step % rows;
      values[static_cast<std::size_t>(inverse ? pair : row)] =
          static_cast<std::int32_t>(inverse ? row : pair);
    }
    return values;
  }
  Vector<const std::int32_t, Space> sources() const {
    return Vector<const std::int32_t, Space>{source.data(), this->rows};
  }
  Matrix<const float, Space> router_weights() const {
    return Matrix<const float, Space>{weights.data(), tokens, topk};
  }
};

template <class Space>
void add_of_experts(const Options& options) {
  const auto rows = [](int count) {
    return [count](const Workload& w) { return Work{count * bytes_of<T>(w.rows() * w.expert_ffn)}; };
  };
  add_for_workloads<Space>(
      options, "expert_activation/forward", has_experts, rows(3), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Experts<Space>>(stream, seed, w)] {
          kernels::expert_activation_forward<Space, T>(x->stream, {}, x->gate_up(), x->sources(),
                                                       x->router_weights(), x->output());
        };
      });
  add_for_workloads<Space>(
      options, "expert_activation/backward", has_experts, rows(5), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Experts<Space>>(stream, seed, w)] {
          kernels::expert_activation_backward<Space, T>(
              x->stream, {}, x->gate_up(), x->output_gradient(), x->sources(),
              Matrix<const std::int32_t, Space>(x->row_of.data(), x->tokens, x->topk), x->router_weights(),
              x->gate_up_gradient(), Matrix<float, Space>(x->weight_gradient.data(), x->tokens, x->topk));
        };
      });
}

template <class Space>
void add_to(const Options& options) {
  add_of_mlp<Space>(options);
  add_of_experts<Space>(options);
}

}  // namespace

ENCORE_DEFINE_FAMILY(activation)

}  // namespace encore::bench
