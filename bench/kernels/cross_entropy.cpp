// SPDX-License-Identifier: Apache-2.0
//
// The loss from the logits, which become their gradient: cross_entropy/<loss|loss_and_gradient>/<workload>/<backend>
#include "turns.hpp"

#include <encore/kernels/cross_entropy.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Logits {
  Stream<Space>& stream;
  std::size_t tokens, vocab;
  NoiseArray<Space, T> logits;
  GivenArray<Space, std::int32_t> labels;
  GivenArray<Space, double> count;
  PoisonedArray<Space, float> row_loss;

  Logits(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        tokens(static_cast<std::size_t>(w.tokens())),
        vocab(static_cast<std::size_t>(w.vocab)),
        logits(on, w.tokens() * w.vocab, seed),
        labels(on, some_labels(w)),
        count(on, {static_cast<double>(w.tokens())}),
        row_loss(on, w.tokens()) {}

  static std::vector<std::int32_t> some_labels(const Workload& w) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(w.tokens()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % w.vocab);
    return values;
  }
};

template <class Space>
void add_to(const Options& options) {
  for (const bool gradient : {false, true})
    add_for_workloads<Space>(
        options, gradient ? "cross_entropy/loss_and_gradient" : "cross_entropy/loss", always,
        [gradient](const Workload& w) {
          return Work{(gradient ? 2 : 1) * bytes_of<T>(w.tokens() * w.vocab)};
        },
        [gradient](auto& stream, auto seed, auto& w) {
          return [x = std::make_shared<Logits<Space>>(stream, seed, w), gradient] {
            kernels::cross_entropy<Space, T>(
                x->stream, Matrix<T, Space>(x->logits.data(), x->tokens, x->vocab),
                Vector<const std::int32_t, Space>(x->labels.data(), x->tokens), x->count.data(),
                Vector<float, Space>(x->row_loss.data(), x->tokens), gradient);
          };
        });
}

}  // namespace

ENCORE_DEFINE_FAMILY(cross_entropy)

}  // namespace encore::bench
