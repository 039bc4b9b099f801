// SPDX-License-Identifier: Apache-2.0
//
// The embedding of tokens: embedding/<forward|order|backward>/<workload>/<backend>
// Backward writes the gradient of the whole table; `order` sorts the tokens for it.
#include "turns.hpp"

#include <encore/kernels/embedding.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Table {
  Stream<Space>& stream;
  Workload workload;
  GivenArray<Space, std::int32_t> ids;
  PoisonedArray<Space, std::int32_t> order;
  NoiseArray<Space, T> table, gradient;
  PoisonedArray<Space, T> output, table_gradient;
  PoisonedArray<Space, float> workspace;

  Table(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        workload(w),
        ids(on, some_ids(w)),
        order(on, w.tokens()),
        table(on, w.vocab * w.hidden, seed),
        gradient(on, w.tokens() * w.hidden, seed + 1),
        output(on, w.tokens() * w.hidden),
        table_gradient(on, w.vocab * w.hidden),
        workspace(on, kernels::embedding_workspace_rows(w.tokens()) * w.hidden) {
    sort();
  }

  static std::vector<std::int32_t> some_ids(const Workload& w) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(w.tokens()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % w.vocab);
    return values;
  }
  template <class Element>
  Matrix<Element, Space> matrix(Element* data, std::int64_t rows) const {
    return Matrix<Element, Space>{data, static_cast<std::size_t>(rows),
                                  static_cast<std::size_t>(workload.hidden)};
  }
  Vector<const std::int32_t, Space> tokens() const {
    return Vector<const std::int32_t, Space>{ids.data(), static_cast<std::size_t>(workload.tokens())};
  }
  Vector<std::int32_t, Space> sorted() const {
    return Vector<std::int32_t, Space>{order.data(), static_cast<std::size_t>(workload.tokens())};
  }

  void forward() const {
    kernels::embedding_forward<Space, T>(stream, tokens(), matrix<const T>(table.data(), workload.vocab), {},
                                         workload.tokens_of_sequence,
                                         matrix(output.data(), workload.tokens()));
  }
  void sort() const { kernels::token_order<Space>(stream, tokens(), sorted()); }
  void backward() const {
    kernels::embedding_backward<Space, T, T>(
        stream, tokens(), sorted(), matrix<const T>(gradient.data(), workload.tokens()),
        matrix(table_gradient.data(), workload.vocab),
        matrix(workspace.data(), kernels::embedding_workspace_rows(workload.tokens())), false);
  }
};

template <class Space>
void add_to(const Options& options) {
  const auto make = [](Stream<Space>& stream, std::uint64_t seed, const Workload& w) {
    return std::make_shared<Table<Space>>(stream, seed, w);
  };
  add_for_workloads<Space>(
      options, "embedding/forward", always,
      [](const Workload& w) { return Work{2 * bytes_of<T>(w.tokens() * w.hidden)}; },
      [make](auto& stream, auto seed, auto& w) { return [x = make(stream, seed, w)] { x->forward(); }; });
  add_for_workloads<Space>(
      options, "embedding/order", always,
      [](const Workload& w) { return Work{2 * bytes_of<std::int32_t>(w.tokens())}; },
      [make](auto& stream, auto seed, auto& w) { return [x = make(stream, seed, w)] { x->sort(); }; });
  add_for_workloads<Space>(
      options, "embedding/backward", always,
      [](const Workload& w) { return Work{bytes_of<T>((w.tokens() + w.vocab) * w.hidden)}; },
      [make](auto& stream, auto seed, auto& w) { return [x = make(stream, seed, w)] { x->backward(); }; });
}

}  // namespace

ENCORE_DEFINE_FAMILY(embedding)

}  // namespace encore::bench
