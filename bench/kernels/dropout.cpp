// SPDX-License-Identifier: Apache-2.0
//
// Sums with the residual stream, with and without dropout: <add|dropout>/<forward|backward>/<workload>/<backend>
#include "turns.hpp"

#include <encore/kernels/dropout.hpp>
#include <encore/kernels/residual.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Branch {
  Stream<Space>& stream;
  std::size_t tokens, hidden;
  NoiseArray<Space, T> branch, residual;
  PoisonedArray<Space, T> output;
  GivenArray<Space, double> probability;
  GivenArray<Space, RandomState> state;

  Branch(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        tokens(static_cast<std::size_t>(w.tokens())),
        hidden(static_cast<std::size_t>(w.hidden)),
        branch(on, w.tokens() * w.hidden, seed),
        residual(on, w.tokens() * w.hidden, seed + 1),
        output(on, w.tokens() * w.hidden),
        probability(on, {0.1}),
        state(on, {RandomState{seed, 3}}) {}

  Matrix<const T, Space> matrix(const NoiseArray<Space, T>& array) const {
    return Matrix<const T, Space>{array.data(), tokens, hidden};
  }
  Matrix<T, Space> result() const { return Matrix<T, Space>{output.data(), tokens, hidden}; }
};

template <class Space>
void add_to(const Options& options) {
  const auto matrices = [](int count) {
    return [count](const Workload& w) { return Work{count * bytes_of<T>(w.tokens() * w.hidden)}; };
  };
  add_for_workloads<Space>(options, "add/forward", always, matrices(3), [](auto& stream, auto seed, auto& w) {
    return [x = std::make_shared<Branch<Space>>(stream, seed, w)] {
      kernels::add<Space, T>(x->stream, x->matrix(x->branch), x->matrix(x->residual), x->result());
    };
  });
  add_for_workloads<Space>(
      options, "dropout/forward", has_mlp, matrices(3), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Branch<Space>>(stream, seed, w)] {
          kernels::dropout_forward<Space, T>(x->stream, x->matrix(x->branch), x->matrix(x->residual),
                                             x->result(), x->probability.data(), x->state.data(), 1);
        };
      });
  add_for_workloads<Space>(
      options, "dropout/backward", has_mlp, matrices(2), [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Branch<Space>>(stream, seed, w)] {
          kernels::dropout_backward<Space, T>(x->stream, x->matrix(x->branch), x->result(),
                                              x->probability.data(), x->state.data(), 1);
        };
      });
}

}  // namespace

ENCORE_DEFINE_FAMILY(dropout)

}  // namespace encore::bench
