// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/rope.hpp>

#include "finite_difference.hpp"
#include "kernel_run.hpp"
#include "random_values.hpp"
#include "typed.hpp"

using namespace encore;
using namespace encore::tests;
using kernels::RopeStyle;

namespace {

struct Shape {
  std::int64_t tokens, sequence, heads, head_dim, row_stride;
};
constexpr Shape shapes[] = {{1, 1, 1, 2, 2},         {7, 3, 2, 6, 20},  {20, 8, 3, 16, 64},
                            {33, 16, 4, 64, 512},    {5, 5, 2, 32, 67}, {6, 4, 2, 8, 16},
                            {540, 135, 8, 256, 2056}};

/// The rotation of each pair by position * theta^(-2 pair / head_dim), in float64.
std::vector<double> rotated(const Shape& s, RopeStyle style, double theta, std::vector<double> data) {
  const std::int64_t pairs = s.head_dim / 2;
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      double* head = data.data() + t * s.row_stride + h * s.head_dim;
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(t % s.sequence) * std::pow(theta, -2.0 * i / s.head_dim);
        double& x = head[style == RopeStyle::half_split ? i : 2 * i];
        double& y = head[style == RopeStyle::half_split ? i + pairs : 2 * i + 1];
        const double old_x = x, old_y = y;
        x = old_x * std::cos(angle) - old_y * std::sin(angle);
        y = old_x * std::sin(angle) + old_y * std::cos(angle);
      }
    }
  }
  return data;
}

}  // namespace

TEST_CASE("rotary tables hold the cosine and sine of position times frequency, accurate at any position") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t sequence = 3000, pairs = 32;
    KernelRun<Space> run;
    const auto cosine = run.template output<float>(sequence, pairs),
               sine = run.template output<float>(sequence, pairs);
    run.execute([&] { kernels::rope_tables<Space, float>(run.stream(), 10000.0, cosine, sine); });
    const auto c = run.values(cosine), s = run.values(sine);
    double largest = 0;
    for (std::int64_t p = 0; p < sequence; ++p) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / (2 * pairs));
        largest = std::max({largest, std::abs(c[p * pairs + i] - std::cos(angle)),
                            std::abs(s[p * pairs + i] - std::sin(angle))});
      }
    }
    CHECK(largest <= 1e-7);
  });
}

TEST_CASE(
    "RoPE turns the pairs of both styles and leaves the rest of a row alone; the inverse turns them back") {
  HostAgreement agreement;
  for_each_space_and_type([&]<class Space, class T>(Types<Space, T>) {
    using A = backend::Accumulator<T>;
    for (const RopeStyle style : {RopeStyle::half_split, RopeStyle::interleaved}) {
      for (const Shape& s : shapes) {
        const std::string name =
            std::to_string(s.tokens) + " tokens, head_dim " + std::to_string(s.head_dim) +
            (style == RopeStyle::half_split ? " half_split " : " interleaved ") + std::to_string(sizeof(T));
        INFO(name);
        const auto x = normal_values<T>(s.tokens * s.row_stride, 1);
        KernelRun<Space> run;
        const auto cosine = run.template output<A>(s.sequence + 1, s.head_dim / 2);
        const auto sine = run.template output<A>(s.sequence + 1, s.head_dim / 2);
        const auto turned = run.template in_out<T>(x), back = run.template in_out<T>(x);
        agreement.add<Space>(name, run.execute([&] {
          kernels::rope_tables<Space, A>(run.stream(), 500.0, cosine, sine);
          kernels::rope<Space, T>(run.stream(), style, cosine, sine, turned.data(), s.tokens, s.sequence,
                                  s.heads, s.head_dim, s.row_stride, false);
          for (const bool inverse : {false, true})
            kernels::rope<Space, T>(run.stream(), style, cosine, sine, back.data(), s.tokens, s.sequence,
                                    s.heads, s.head_dim, s.row_stride, inverse);
        }));
        check_close(run.values(turned), rotated(s, style, 500.0, x), tolerance<T>());
        check_close(run.values(back), x, tolerance<T>());
        const auto result = run.values(turned);
        bool rest_stands = true;
        for (std::size_t i = 0; i < x.size(); ++i)
          rest_stands = rest_stands && (static_cast<std::int64_t>(i) % s.row_stride < s.heads * s.head_dim ||
                                        result[i] == x[i]);
        CHECK(rest_stands);
      }
    }
  });
}

TEST_CASE("YaRN's frequencies and scale are those of Hugging Face") {
  // _compute_yarn_parameters of transformers 5.24, in float32: that of GPT-OSS, and a head whose ramp has whole ends.
  struct Case {
    double theta;
    std::int64_t head_dim;
    kernels::YarnOptions options;
    double scale;
    std::vector<double> frequencies;
  };
  const std::vector<Case> cases{{150000,
                                 64,
                                 {32, 4096, 32, 1, false, 0},
                                 1.3465735902799727,
                                 {1.0,
                                  0.689044297,
                                  0.47478205,
                                  0.327145875,
                                  0.225418001,
                                  0.155322984,
                                  0.107024424,
                                  0.0737445652,
                                  0.0508132726,
                                  0.0317056961,
                                  0.0193349998,
                                  0.0115920492,
                                  0.00679495931,
                                  0.00386035908,
                                  0.00209379266,
                                  0.00105260219,
                                  0.000456483918,
                                  0.000129318694,
                                  3.83088118e-05,
                                  2.63964685e-05,
                                  1.8188337e-05,
                                  1.25325696e-05,
                                  8.63549576e-06,
                                  5.95023948e-06,
                                  4.09997847e-06,
                                  2.82506676e-06,
                                  1.94659629e-06,
                                  1.34129095e-06,
                                  9.24208962e-07,
                                  6.36820914e-07,
                                  4.38797855e-07,
                                  3.0235114e-07}},
                                {10000,
                                 16,
                                 {4, 256, 16, 2, true, 1.3},
                                 1.3,
                                 {1.0, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466,
                                  0.000250000012, 7.90569466e-05}}};
  for (const Case& c : cases) {
    const auto frequencies = kernels::yarn_frequencies(c.theta, c.head_dim, c.options);
    CHECK(frequencies.scale == doctest::Approx(c.scale).epsilon(1e-12));
    for (std::int64_t pair = 0; pair < c.head_dim / 2; ++pair) {
      const double expected = c.frequencies[static_cast<std::size_t>(pair)];
      CHECK(std::abs(frequencies.of(pair, c.head_dim / 2) - expected) <= 1e-6 * expected);
    }
  }
}

TEST_CASE("rotary tables take YaRN's frequencies and scale; a factor of one is no stretch at all") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t sequence = 300, pairs = 16;
    const auto frequencies = kernels::yarn_frequencies(1e4, 2 * pairs, {8, 64, 32, 1, false, 0});
    KernelRun<Space> run;
    const auto cosine = run.template output<float>(sequence, pairs),
               sine = run.template output<float>(sequence, pairs);
    const auto plain_cosine = run.template output<float>(sequence, pairs),
               plain_sine = run.template output<float>(sequence, pairs);
    const auto same_cosine = run.template output<float>(sequence, pairs),
               same_sine = run.template output<float>(sequence, pairs);
    run.execute([&] {
      kernels::rope_tables<Space, float>(run.stream(), frequencies, cosine, sine);
      kernels::rope_tables<Space, float>(run.stream(), 1e4, plain_cosine, plain_sine);
      kernels::rope_tables<Space, float>(run.stream(),
                                         kernels::yarn_frequencies(1e4, 2 * pairs, {1, 64, 32, 1, true, 0}),
                                         same_cosine, same_sine);
    });
    const auto c = run.values(cosine), s = run.values(sine);
    double largest = 0;
    for (std::int64_t p = 0; p < sequence; ++p)
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(p) * frequencies.of(i, pairs);
        largest = std::max({largest, std::abs(c[p * pairs + i] - frequencies.scale * std::cos(angle)),
                            std::abs(s[p * pairs + i] - frequencies.scale * std::sin(angle))});
      }
    CHECK(largest <= 2e-7);
    check_close(run.values(same_cosine), run.values(plain_cosine), {1e-7, 1e-7});
    check_close(run.values(same_sine), run.values(plain_sine), {1e-7, 1e-7});
  });
  CHECK_THROWS_AS(kernels::yarn_frequencies(1e4, 32, {8, 0, 32, 1, true, 0}), ConfigurationError);
  CHECK_THROWS_AS(kernels::yarn_frequencies(1e4, 32, {0.5, 64, 32, 1, true, 0}), ConfigurationError);
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("RoPE's inverse is its gradient: it agrees with finite differences in double") {
  using Space = backend::Serial;
  const Shape s{4, 3, 2, 4, 10};
  const auto x = normal_values<double>(s.tokens * s.row_stride, 1), c = normal_values<double>(x.size(), 2);
  const auto apply = [&](RopeStyle style, const std::vector<double>& values, bool inverse) {
    KernelRun<Space> run;
    const auto cosine = run.output<double>(s.sequence, s.head_dim / 2);
    const auto sine = run.output<double>(s.sequence, s.head_dim / 2);
    const auto data = run.in_out<double>(values);
    run.execute([&] {
      kernels::rope_tables<Space, double>(run.stream(), 30.0, cosine, sine);
      kernels::rope<Space, double>(run.stream(), style, cosine, sine, data.data(), s.tokens, s.sequence,
                                   s.heads, s.head_dim, s.row_stride, inverse);
    });
    return run.values(data);
  };
  for (const RopeStyle style : {RopeStyle::half_split, RopeStyle::interleaved}) {
    check_gradient([&](const std::vector<double>& at) { return weighted_sum(apply(style, at, false), c); }, x,
                   apply(style, c, true));
  }
}
#endif

TEST_CASE("RoPE refuses an odd head and tables that are too short") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto table = run.template output<float>(4, 3);
    const auto data = run.template output<float>(70);
    const auto call = [&](std::int64_t sequence, std::int64_t head_dim) {
      kernels::rope<Space, float>(run.stream(), RopeStyle::half_split, table, table, data.data(), 10,
                                  sequence, 1, head_dim, 7, false);
    };
    CHECK_THROWS_AS(call(4, 7), ConfigurationError);
    CHECK_THROWS_AS(call(5, 6), ConfigurationError);
    CHECK_NOTHROW(call(4, 6));
  });
}
