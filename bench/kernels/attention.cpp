// SPDX-License-Identifier: Apache-2.0
//
// Causal attention on a fused projection, by each engine: attention/<forward|backward>/<engine>/<workload>/<backend>
// Operations count the pairs of positions that are not masked.
#include "turns.hpp"

#include <encore/backend/attention.hpp>

#include <cmath>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Context {
  Stream<Space>& stream;
  Workload workload;
  AttentionShape shape;
  std::shared_ptr<Attention<Space>> attention;
  NoiseArray<Space, T> projected, context_gradient;
  PoisonedArray<Space, T> context, projected_gradient;
  PoisonedArray<Space, float> log_sum_exp;
  PoisonedArray<Space, std::byte> workspace;

  Context(Stream<Space>& on, std::uint64_t seed, const Workload& w, std::shared_ptr<Attention<Space>> by)
      : stream(on),
        workload(w),
        shape{w.sequences, w.tokens_of_sequence, w.heads,
              w.kv_heads,  w.head_dim,           1 / std::sqrt(static_cast<float>(w.head_dim))},
        attention(std::move(by)),
        projected(on, w.tokens() * w.projected(), seed),
        context_gradient(on, w.tokens() * w.width(), seed + 1),
        context(on, w.tokens() * w.width()),
        projected_gradient(on, w.tokens() * w.projected()),
        log_sum_exp(on, w.heads * w.tokens()),
        workspace(on, workspace_bytes()) {
    forward();
  }

  std::int64_t workspace_bytes() const {
    return static_cast<std::int64_t>(attention->template workspace_bytes<T>(shape, {})) + 1;
  }
  template <class Element>
  HeadsOperand<Element> projection(Element* data, std::int64_t first_head) const {
    return {data + first_head * workload.head_dim, workload.tokens_of_sequence * workload.projected(),
            workload.projected(), workload.head_dim};
  }
  template <class Element>
  HeadsOperand<Element> in_context(Element* data) const {
    return {data, workload.tokens_of_sequence * workload.width(), workload.width(), workload.head_dim};
  }
  void forward() {
    const T* data = projected.data();
    attention->template forward<T>(stream, shape, {}, projection(data, 0), projection(data, workload.heads),
                                   projection(data, workload.heads + workload.kv_heads),
                                   in_context(context.data()), log_sum_exp.data());
  }
  void backward() {
    const T* data = projected.data();
    T* gradient = projected_gradient.data();
    const std::int64_t keys = workload.heads, values = keys + workload.kv_heads;
    attention->template backward<T>(
        stream, shape, {}, projection(data, 0), projection(data, keys), projection(data, values),
        in_context<const T>(context.data()), log_sum_exp.data(), in_context<const T>(context_gradient.data()),
        projection(gradient, 0), projection(gradient, keys), projection(gradient, values), workspace.data());
  }
};

/// Two products forward and five backward, the scores again among them.
Work work_of(const Workload& w, bool backward) {
  const double pairs = static_cast<double>(w.tokens() * w.tokens_of_sequence) / 2;
  const double product = 2 * pairs * static_cast<double>(w.width());
  const double moved = bytes_of<T>(w.tokens() * (w.projected() + w.width()));
  return {backward ? 2 * moved : moved, (backward ? 5 : 2) * product};
}

template <class Space>
void add_to(const Options& options) {
  std::vector<std::pair<AttentionEngine, std::string>> engines = {{AttentionEngine::portable, "portable"}};
  if (!is_host_space<Space>) {
    engines.emplace_back(AttentionEngine::matrix_units, "matrix_units");
    engines.emplace_back(AttentionEngine::cudnn, "cudnn");
  }
  for (const auto& [engine, name] : engines)
    for (const bool backward : {false, true})
      add_for_workloads<Space>(
          options, std::string("attention/") + (backward ? "backward/" : "forward/") + name, always,
          [backward](const Workload& w) { return work_of(w, backward); },
          [engine = engine, backward, attention = OneForAll<Attention<Space>>()](auto& stream, auto seed,
                                                                                 auto& w) {
            const auto make_attention = [&] {
              auto made = std::make_shared<Attention<Space>>(stream);
              made->force(engine);
              return made;
            };
            return [x = std::make_shared<Context<Space>>(stream, seed, w, attention.get(make_attention)),
                    backward] { backward ? x->backward() : x->forward(); };
          });
}

}  // namespace

ENCORE_DEFINE_FAMILY(attention)

}  // namespace encore::bench
