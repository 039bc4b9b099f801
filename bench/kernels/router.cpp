// SPDX-License-Identifier: Apache-2.0
//
// What brings tokens to experts and back, without the products:
//   <router/forward|router/statistics|router/backward|dispatch|gather|gather_backward|combine>/<workload>/<backend>
#include "turns.hpp"

#include <encore/kernels/combine.hpp>
#include <encore/kernels/dispatch.hpp>
#include <encore/kernels/router.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
struct Routing {
  Stream<Space>& stream;
  Workload w;
  kernels::RouterRules rules;
  NoiseArray<Space, float> logits, weight_gradient;
  PoisonedArray<Space, float> weights, log_sum_exp, sums, statistics_workspace;
  PoisonedArray<Space, std::int32_t> experts, counts, begins, ends, source, row_of, needed, workspace;
  PoisonedArray<Space, double> totals;
  NoiseArray<Space, T> stream_in, rows_in;
  PoisonedArray<Space, T> stream_out, rows_out, logits_gradient;

  Routing(Stream<Space>& on, std::uint64_t seed, const Workload& of)
      : stream(on),
        w(of),
        rules{.topk = of.topk, .renormalize = true},
        logits(on, w.tokens() * w.experts, seed),
        weight_gradient(on, w.rows(), seed + 1),
        weights(on, w.rows()),
        log_sum_exp(on, w.tokens()),
        sums(on, w.experts),
        statistics_workspace(on, kernels::router_workspace_rows(w.tokens()) * w.experts),
        experts(on, w.rows()),
        counts(on, w.experts),
        begins(on, w.experts),
        ends(on, w.experts),
        source(on, w.rows()),
        row_of(on, w.rows()),
        needed(on, 1),
        workspace(on, kernels::dispatch_workspace_rows(w.tokens(), w.topk) * w.experts),
        totals(on, kernels::router_total_count()),
        stream_in(on, w.tokens() * w.hidden, seed + 2),
        rows_in(on, w.rows() * w.hidden, seed + 3),
        stream_out(on, w.tokens() * w.hidden),
        rows_out(on, w.rows() * w.hidden),
        logits_gradient(on, w.tokens() * w.experts) {
    choose();
    count();
    dispatch();
  }

  template <class Element>
  static Matrix<Element, Space> matrix(Element* data, std::int64_t rows, std::int64_t columns) {
    return Matrix<Element, Space>{data, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns)};
  }
  template <class Element>
  static Vector<Element, Space> vector(Element* data, std::int64_t size) {
    return Vector<Element, Space>{data, static_cast<std::size_t>(size)};
  }
  Matrix<const float, Space> scores() const {
    return matrix<const float>(logits.data(), w.tokens(), w.experts);
  }
  Matrix<const std::int32_t, Space> chosen() const {
    return matrix<const std::int32_t>(experts.data(), w.tokens(), w.topk);
  }
  Matrix<const std::int32_t, Space> rows_of_pairs() const {
    return matrix<const std::int32_t>(row_of.data(), w.tokens(), w.topk);
  }

  void choose() const {
    kernels::router_forward<Space, float>(
        stream, rules, scores(), {}, {}, matrix(weights.data(), w.tokens(), w.topk),
        matrix(experts.data(), w.tokens(), w.topk), vector(log_sum_exp.data(), w.tokens()));
  }
  void count() const {
    kernels::router_statistics<Space, float>(
        stream, rules, scores(), vector<const float>(log_sum_exp.data(), w.tokens()), chosen(), {},
        vector(counts.data(), w.experts), vector(sums.data(), w.experts),
        vector(totals.data(), kernels::router_total_count()),
        matrix(statistics_workspace.data(), kernels::router_workspace_rows(w.tokens()), w.experts));
  }
  void backward() const {
    kernels::router_backward<Space, T>(
        stream, rules, scores(), vector<const float>(log_sum_exp.data(), w.tokens()), chosen(), {},
        matrix<const float>(weight_gradient.data(), w.tokens(), w.topk),
        vector<const std::int32_t>(counts.data(), w.experts),
        vector<const double>(totals.data(), kernels::router_total_count()), nullptr, nullptr, 1,
        matrix(logits_gradient.data(), w.tokens(), w.experts));
  }
  void dispatch() const {
    kernels::dispatch<Space>(
        stream, chosen(), 0,
        {vector(begins.data(), w.experts), vector(ends.data(), w.experts), vector(source.data(), w.rows()),
         matrix(row_of.data(), w.tokens(), w.topk), needed.data()},
        matrix(workspace.data(), kernels::dispatch_workspace_rows(w.tokens(), w.topk), w.experts));
  }
  void gather() const {
    kernels::gather_rows<Space, T>(stream, matrix<const T>(stream_in.data(), w.tokens(), w.hidden),
                                   rows_of_pairs(), matrix(rows_out.data(), w.rows(), w.hidden));
  }
  void gather_backward() const {
    kernels::gather_rows_backward<Space, T>(stream, matrix<const T>(rows_in.data(), w.rows(), w.hidden),
                                            rows_of_pairs(), matrix(stream_out.data(), w.tokens(), w.hidden),
                                            false);
  }
  void combine() const {
    kernels::combine_forward<Space, T>(stream, matrix<const T>(rows_in.data(), w.rows(), w.hidden),
                                       rows_of_pairs(),
                                       matrix<const T>(stream_in.data(), w.tokens(), w.hidden), {},
                                       matrix(stream_out.data(), w.tokens(), w.hidden));
  }
};

template <class Space>
void add_to(const Options& options) {
  using Call = void (Routing<Space>::*)() const;
  const auto add = [&](const char* name, auto work, Call call) {
    add_for_workloads<Space>(options, name, has_experts, work, [call](auto& stream, auto seed, auto& w) {
      return [x = std::make_shared<Routing<Space>>(stream, seed, w), call] { (x.get()->*call)(); };
    });
  };
  const auto scores = [](const Workload& w) { return bytes_of<float>(w.tokens() * w.experts); };
  const auto pairs = [](const Workload& w) { return bytes_of<float>(w.rows()); };
  const auto tokens = [](const Workload& w) { return bytes_of<T>(w.tokens() * w.hidden); };
  const auto rows = [](const Workload& w) { return bytes_of<T>(w.rows() * w.hidden); };
  add(
      "router/forward", [=](const Workload& w) { return Work{scores(w) + 2 * pairs(w)}; },
      &Routing<Space>::choose);
  add(
      "router/statistics", [=](const Workload& w) { return Work{scores(w) + pairs(w)}; },
      &Routing<Space>::count);
  add(
      "router/backward", [=](const Workload& w) { return Work{1.5 * scores(w) + 2 * pairs(w)}; },
      &Routing<Space>::backward);
  add(
      "dispatch", [=](const Workload& w) { return Work{3 * pairs(w)}; }, &Routing<Space>::dispatch);
  add(
      "gather", [=](const Workload& w) { return Work{tokens(w) + rows(w)}; }, &Routing<Space>::gather);
  add(
      "gather_backward", [=](const Workload& w) { return Work{tokens(w) + rows(w)}; },
      &Routing<Space>::gather_backward);
  add(
      "combine", [=](const Workload& w) { return Work{2 * tokens(w) + rows(w)}; }, &Routing<Space>::combine);
}

}  // namespace

ENCORE_DEFINE_FAMILY(router)

}  // namespace encore::bench
