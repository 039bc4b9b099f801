// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/head_normalization.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::ProjectedHeads;
using kernels::RopeStyle;

namespace {

enum class Turn { half_split, interleaved, none };

constexpr double theta = 300.0, epsilon = 1e-5;

/// Heads of many sizes: of one packet, of whole and of broken groups of lanes, odd, and larger than any group.
const ProjectedHeads shapes[] = {{1, 1, 1, 1, 2, 6},       {7, 3, 3, 1, 12, 70},    {6, 6, 4, 2, 16, 128},
                                 {9, 5, 2, 2, 20, 120},    {33, 33, 4, 1, 64, 384}, {5, 5, 2, 1, 80, 320},
                                 {21, 7, 3, 3, 128, 1160}, {4, 2, 2, 1, 256, 1024}, {3, 3, 2, 1, 320, 1280}};

struct Reference {
  std::vector<double> result, gradient, query_weight_gradient, key_weight_gradient;
};

/// The definition and its gradient, in float64. `output_gradient` lies like `projected`.
Reference reference(const ProjectedHeads& s, Turn turn, const std::vector<double>& projected,
                    const std::vector<double>& query_weight, const std::vector<double>& key_weight,
                    const std::vector<double>& output_gradient) {
  const std::int64_t d = s.head_dim, half = d / 2, heads = s.query_heads + s.key_heads;
  Reference r{std::vector<double>(s.tokens * heads * d), output_gradient, std::vector<double>(d),
              std::vector<double>(d)};
  for (std::int64_t t = 0; t < s.tokens; ++t)
    for (std::int64_t h = 0; h < heads; ++h) {
      const double* x = projected.data() + t * s.row_stride + h * d;
      const std::vector<double>& weight = h < s.query_heads ? query_weight : key_weight;
      std::vector<double>& weight_gradient =
          h < s.query_heads ? r.query_weight_gradient : r.key_weight_gradient;
      double squares = 0;
      for (std::int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(d) + epsilon);
      double* y = r.result.data() + (t * heads + h) * d;
      double* g = r.gradient.data() + t * s.row_stride + h * d;
      for (std::int64_t i = 0; i < d; ++i) y[i] = x[i] * inverse * weight[i];
      if (turn != Turn::none)
        for (std::int64_t pair = 0; pair < half; ++pair) {
          const std::int64_t first = turn == Turn::half_split ? pair : 2 * pair;
          const std::int64_t second = turn == Turn::half_split ? pair + half : 2 * pair + 1;
          const double angle =
              static_cast<double>(t % s.sequence) * std::pow(theta, -2.0 * double(pair) / double(d));
          const double c = std::cos(angle), w = std::sin(angle), a = y[first], b = y[second];
          y[first] = a * c - b * w;
          y[second] = a * w + b * c;
          const double ga = g[first], gb = g[second];
          g[first] = ga * c + gb * w;
          g[second] = gb * c - ga * w;
        }
      double mean = 0;
      for (std::int64_t i = 0; i < d; ++i) {
        weight_gradient[i] += g[i] * x[i] * inverse;
        mean += g[i] * weight[i] * x[i] * inverse / static_cast<double>(d);
      }
      for (std::int64_t i = 0; i < d; ++i) g[i] = inverse * (g[i] * weight[i] - x[i] * inverse * mean);
    }
  return r;
}

/// One call of forward and of backward, the tables made in the same run.
template <class Space, class T, class G>
struct Run {
  using A = backend::Accumulator<T>;
  KernelRun<Space> run;
  backend::Matrix<T, Space> result;
  backend::Vector<T, Space> gradient;
  backend::Vector<G, Space> query_weight_gradient, key_weight_gradient;
  std::vector<std::byte> bytes;

  Run(const ProjectedHeads& s, Turn turn, const std::vector<double>& projected,
      const std::vector<double>& query_weight, const std::vector<double>& key_weight,
      const std::vector<double>& output_gradient, const std::vector<double>& weight_gradient = {}) {
    const auto input = run.template input<T>(projected);
    const auto query = run.template input<T>(query_weight), key = run.template input<T>(key_weight);
    result = run.template output<T>(s.tokens, (s.query_heads + s.key_heads) * s.head_dim);
    gradient = run.template in_out<T>(output_gradient);
    const bool accumulate = !weight_gradient.empty();
    query_weight_gradient =
        accumulate ? run.template in_out<G>(weight_gradient) : run.template output<G>(s.head_dim);
    key_weight_gradient =
        accumulate ? run.template in_out<G>(weight_gradient) : run.template output<G>(s.head_dim);
    const auto workspace = run.template workspace<A>(kernels::head_norm_workspace_rows(s.tokens), s.head_dim);
    const auto cosine = run.template output<A>(s.sequence, s.head_dim / 2);
    const auto sine = run.template output<A>(s.sequence, s.head_dim / 2);
    const auto style = turn == Turn::interleaved ? RopeStyle::interleaved : RopeStyle::half_split;
    bytes = run.execute([&] {
      kernels::rope_tables<Space, A>(run.stream(), theta, cosine, sine);
      const auto table = [&](auto full) {
        return turn == Turn::none ? backend::Matrix<const A, Space>() : backend::Matrix<const A, Space>(full);
      };
      kernels::head_norm_forward<Space, T>(run.stream(), s, input.data(), query, key, style, table(cosine),
                                           table(sine), result, epsilon);
      kernels::head_norm_backward<Space, T, G>(
          run.stream(), s, input.data(), query, key, style, table(cosine), table(sine), gradient.data(),
          query_weight_gradient, key_weight_gradient, workspace, epsilon, accumulate);
    });
  }
};

}  // namespace

TEST_CASE(
    "each head's query and key is normalized, weighted and turned, whatever the head's size, and so is their "
    "gradient") {
  HostAgreement agreement;
  for_each_space_type_and_gradient([&]<class Space, class T, class G>(Types<Space, T, G>) {
    for (const Turn turn : {Turn::half_split, Turn::interleaved, Turn::none})
      for (const ProjectedHeads& s : shapes) {
        const std::string name = std::to_string(s.tokens) + " tokens, head_dim " +
                                 std::to_string(s.head_dim) + ", turn " +
                                 std::to_string(static_cast<int>(turn)) + ", " + std::to_string(sizeof(T)) +
                                 std::to_string(sizeof(G));
        INFO(name);
        const auto x = normal_values<T>(s.tokens * s.row_stride, 1, 0.1, 2);
        const auto dy = normal_values<T>(s.tokens * s.row_stride, 2);
        const auto query_weight = normal_values<T>(s.head_dim, 3, 1, 0.5),
                   key_weight = normal_values<T>(s.head_dim, 4, 1, 0.5);
        const Reference expected = reference(s, turn, x, query_weight, key_weight, dy);
        Run<Space, T, G> once(s, turn, x, query_weight, key_weight, dy);
        agreement.add<Space>(name, once.bytes);
        check_close(once.run.values(once.result), expected.result, tolerance<T>());
        check_close(once.run.values(once.query_weight_gradient), expected.query_weight_gradient,
                    tolerance<T, G>());
        check_close(once.run.values(once.key_weight_gradient), expected.key_weight_gradient,
                    tolerance<T, G>());
        if (s.head_dim > 2) {  // The gradient of a head of two entries nearly cancels.
          check_close(once.run.values(once.gradient), expected.gradient, tolerance<T>());
        }
        const auto gradient = once.run.values(once.gradient);
        bool rest_stands = true;
        for (std::size_t i = 0; i < dy.size(); ++i)
          rest_stands = rest_stands && (static_cast<std::int64_t>(i) % s.row_stride <
                                            (s.query_heads + s.key_heads) * s.head_dim ||
                                        gradient[i] == dy[i]);
        CHECK(rest_stands);
      }
  });
}

TEST_CASE("the gradients of the heads' weights are added to what stands there if asked") {
  for_each_space_type_and_gradient([]<class Space, class T, class G>(Types<Space, T, G>) {
    const ProjectedHeads s{12, 6, 2, 1, 16, 64};
    const auto x = normal_values<T>(s.tokens * s.row_stride, 1), dy = normal_values<T>(x.size(), 2);
    const auto weight = normal_values<T>(s.head_dim, 3), before = normal_values<G>(s.head_dim, 4, 0, 3);
    Reference expected = reference(s, Turn::half_split, x, weight, weight, dy);
    for (std::int64_t i = 0; i < s.head_dim; ++i) {
      expected.query_weight_gradient[i] += before[i];
      expected.key_weight_gradient[i] += before[i];
    }
    Run<Space, T, G> added(s, Turn::half_split, x, weight, weight, dy, before);
    check_close(added.run.values(added.query_weight_gradient), expected.query_weight_gradient,
                tolerance<T, G>());
    check_close(added.run.values(added.key_weight_gradient), expected.key_weight_gradient, tolerance<T, G>());
  });
}

TEST_CASE("a projection that is not aligned to packets gives the same heads") {
  for_each_space_and_type([]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    const ProjectedHeads s{10, 10, 2, 1, 64, 193};
    const auto x = normal_values<T>(s.tokens * s.row_stride + 1, 1);
    const auto weight = normal_values<T>(s.head_dim, 3);
    KernelRun<Space> run;
    const auto input = run.template input<T>(x);
    const auto weights = run.template input<T>(weight);
    const auto result = run.template output<T>(s.tokens, 3 * s.head_dim);
    run.execute([&] {
      kernels::head_norm_forward<Space, T>(run.stream(), s, input.data() + 1, weights, weights,
                                           RopeStyle::half_split, backend::Matrix<const A, Space>(),
                                           backend::Matrix<const A, Space>(), result, epsilon);
    });
    const std::vector<double> shifted(x.begin() + 1, x.end());
    const auto expected = reference(s, Turn::none, shifted, weight, weight, shifted);
    check_close(run.values(result), expected.result, tolerance<T>());
  });
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("gradients of normalized and turned heads agree with finite differences in double") {
  using Space = backend::Serial;
  const ProjectedHeads s{4, 3, 2, 1, 6, 20};
  const auto x = normal_values<double>(s.tokens * s.row_stride, 1);
  const auto query_weight = normal_values<double>(s.head_dim, 3),
             key_weight = normal_values<double>(s.head_dim, 4);
  auto dy = normal_values<double>(x.size(), 2);
  for (std::size_t i = 0; i < dy.size(); ++i)
    if (i % 20 >= 18) dy[i] = 0;  // What lies behind the heads has no part in the loss.
  std::vector<double> weights;
  for (std::size_t i = 0; i < dy.size(); ++i)
    if (i % 20 < 18) weights.push_back(dy[i]);
  for (const Turn turn : {Turn::half_split, Turn::interleaved, Turn::none}) {
    using Doubles = Run<Space, double, double>;
    Doubles all(s, turn, x, query_weight, key_weight, dy);
    const auto loss = [&](const std::vector<double>& projected, const std::vector<double>& query,
                          const std::vector<double>& key) {
      Doubles at(s, turn, projected, query, key, dy);
      return weighted_sum(at.run.values(at.result), weights);
    };
    check_gradient([&](const auto& at) { return loss(at, query_weight, key_weight); }, x,
                   all.run.values(all.gradient));
    check_gradient([&](const auto& at) { return loss(x, at, key_weight); }, query_weight,
                   all.run.values(all.query_weight_gradient));
    check_gradient([&](const auto& at) { return loss(x, query_weight, at); }, key_weight,
                   all.run.values(all.key_weight_gradient));
  }
}
#endif

TEST_CASE("normalized heads refuse odd heads, rows that are too short, and one table without the other") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    using Table = backend::Matrix<const float, Space>;
    const auto data = run.template output<float>(100);
    const auto weight = run.template output<float>(4), odd = run.template output<float>(3);
    const auto result = run.template output<float>(2, 12);
    const auto table = run.template output<float>(2, 2);
    const auto call = [&](const ProjectedHeads& s, const auto& weights, Table cosine, Table sine) {
      kernels::head_norm_forward<Space, float>(run.stream(), s, data.data(), weights, weights,
                                               RopeStyle::half_split, cosine, sine, result, epsilon);
    };
    CHECK_THROWS_AS(call({2, 2, 2, 1, 3, 12}, odd, {}, {}), ConfigurationError);
    CHECK_THROWS_AS(call({2, 2, 2, 1, 4, 11}, weight, {}, {}), ConfigurationError);
    CHECK_THROWS_AS(call({2, 2, 2, 1, 4, 12}, odd, {}, {}), ConfigurationError);
    CHECK_THROWS_AS(call({2, 2, 2, 1, 4, 12}, weight, table, {}), ConfigurationError);
    CHECK_THROWS_AS(call({2, 3, 2, 1, 4, 12}, weight, table, table), ConfigurationError);
    CHECK_THROWS_AS(call({3, 2, 2, 1, 4, 12}, weight, table, table), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
    CHECK_NOTHROW(call({2, 2, 2, 1, 4, 12}, weight, table, table));
  });
}
