// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/kernels/optimizer.hpp>

#include "kernel_run.hpp"
#include "random_values.hpp"
#include "tolerance.hpp"
#include "typed.hpp"

#include <algorithm>
#include <limits>
#include <utility>

using namespace encore;
using namespace encore::tests;

namespace {

struct Settings {
  double learning_rate = 0.01, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 0,
         step = 1, gradient_scale = 1, skip_above = 0;
};

template <class Space>
kernels::AdamwScalars scalars_of(KernelRun<Space>& run, const Settings& s) {
  const double* d = run.template input<double>(std::vector<double>{s.learning_rate, s.weight_decay, s.beta1,
                                                                   s.beta2, s.epsilon, s.clip, s.step,
                                                                   s.gradient_scale, s.skip_above})
                        .data();
  return {d, d + 1, d + 2, d + 3, d + 4, d + 5, d + 6, d + 7, d + 8};
}

/// torch.optim.AdamW (single tensor) after torch.nn.utils.clip_grad_norm_, in float64.
struct Reference {
  std::vector<double> weights, first, second;
  double norm = 0;

  void step(const std::vector<double>& gradients, std::int64_t decayed, const Settings& s) {
    double squares = 0;
    for (const double g : gradients) squares += s.gradient_scale * g * (s.gradient_scale * g);
    norm = std::sqrt(squares);
    const double factor = s.gradient_scale * (s.clip > 0 ? std::min(1.0, s.clip / (norm + 1e-6)) : 1.0);
    const double bias1 = 1 - std::pow(s.beta1, s.step), bias2 = 1 - std::pow(s.beta2, s.step);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double g = factor * gradients[i];
      if (static_cast<std::int64_t>(i) < decayed) weights[i] *= 1 - s.learning_rate * s.weight_decay;
      first[i] = s.beta1 * first[i] + (1 - s.beta1) * g;
      second[i] = s.beta2 * second[i] + (1 - s.beta2) * g * g;
      weights[i] -=
          s.learning_rate / bias1 * first[i] / (std::sqrt(second[i]) / std::sqrt(bias2) + s.epsilon);
    }
  }
};

template <class Body>
void for_each_optimizer_type(const Body& body) {
  using backend::bfloat16;
  for_each_space([&]<class Space>(Types<Space>) {
    body(Types<Space, float, float, float>{});
    body(Types<Space, float, float, bfloat16>{});
    body(Types<Space, bfloat16, float, float>{});
    body(Types<Space, bfloat16, float, bfloat16>{});
    body(Types<Space, bfloat16, bfloat16, float>{});
    body(Types<Space, bfloat16, bfloat16, bfloat16>{});
  });
#if defined(KOKKOS_ENABLE_SERIAL)
  body(Types<backend::Serial, double, double, double>{});
#endif
}

/// One step from given weights and moments.
template <class Space, class T, class G, class S>
void check_step(HostAgreement& agreement, std::int64_t size, std::int64_t decayed, bool master,
                const Settings& s) {
  using A = backend::Accumulator<T>;
  const std::string name = std::to_string(size) + " elements, " + std::to_string(decayed) + " decayed" +
                           (master ? " master " : " ") + std::to_string(sizeof(T)) +
                           std::to_string(sizeof(G)) + std::to_string(sizeof(S)) + " clip " +
                           std::to_string(s.clip);
  INFO(name);
  const auto g = normal_values<G>(size, 1);
  const auto w = master ? normal_values<A>(size, 2) : normal_values<T>(size, 2);
  const auto m = normal_values<S>(size, 3, 0, 0.1);
  std::vector<double> v = normal_values<S>(size, 4);
  for (double& value : v) value = static_cast<double>(static_cast<S>(value * value));
  Reference reference{w, m, v};
  reference.step(g, decayed, s);

  KernelRun<Space> run;
  const auto gradients = run.template input<G>(g);
  const auto weights = master ? run.template output<T>(size) : run.template in_out<T>(w);
  const auto master_weights = master ? run.template in_out<A>(w) : backend::Vector<A, Space>();
  const auto first = run.template in_out<S>(m), second = run.template in_out<S>(v);
  const auto partials = run.template output<double>(kernels::squared_norm_partial_count());
  const auto norm = run.template output<double>(1);
  const auto factors = run.template output<A>(kernels::adamw_factor_count());
  const auto scalars = scalars_of(run, s);
  agreement.add<Space>(name, run.execute([&] {
    kernels::squared_norm_partials<Space, G>(run.stream(), gradients, partials);
    kernels::adamw_prepare<Space, A>(run.stream(), partials, scalars, norm.data(), factors);
    kernels::adamw<Space, T, G, S>(run.stream(), gradients, factors, weights, master_weights, first, second,
                                   decayed);
  }));
  CHECK(run.values(norm)[0] ==
        doctest::Approx(reference.norm).epsilon(tolerance<backend::Accumulator<G>>().norm));
  check_close(run.values(weights), reference.weights, tolerance<T>());
  if (master) {
    check_close(run.values(master_weights), reference.weights, tolerance<A>());
    const auto exact = run.values(master_weights), rounded = run.values(weights);
    bool copies = true;
    for (std::int64_t i = 0; i < size; ++i)
      copies = copies && rounded[i] == double(T(static_cast<A>(exact[i])));
    CHECK(copies);
  }
  check_close(run.values(first), reference.first, tolerance<A, S>());
  check_close(run.values(second), reference.second, tolerance<A, S>());
}

}  // namespace

TEST_CASE("an AdamW step agrees with its definition, with and without master weights, decay and clipping") {
  HostAgreement agreement;
  for_each_optimizer_type([&]<class Space, class T, class G, class S>(Types<Space, T, G, S>) {
    for (const std::int64_t size : {1, 7, 8, 1000, 20011}) {
      for (const bool master : {false, true}) {
        const Settings plain{.step = 3}, clipped{.clip = 0.5, .step = 1, .gradient_scale = 0.25};
        check_step<Space, T, G, S>(agreement, size, size, master, plain);
        check_step<Space, T, G, S>(agreement, size, size / 2 + 1, master, clipped);
        check_step<Space, T, G, S>(agreement, size, 0, master, plain);
      }
    }
  });
}

TEST_CASE("many AdamW steps follow the definition, with scalars that change from step to step") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t size = 257;
    const auto w = normal_values<float>(size, 1);
    Reference reference{w, std::vector<double>(size), std::vector<double>(size)};
    KernelRun<Space> run;
    const std::vector<double> zeros(size);
    const auto gradients = run.template in_out<float>(zeros);
    const auto weights = run.template in_out<float>(w);
    const auto first = run.template in_out<float>(zeros), second = run.template in_out<float>(zeros);
    const auto partials = run.template output<double>(kernels::squared_norm_partial_count());
    const auto norm = run.template output<double>(1);
    const auto factors = run.template output<float>(kernels::adamw_factor_count());
    const auto scalars = scalars_of(run, {});
    const auto kernel = [&] {
      kernels::squared_norm_partials<Space, float>(run.stream(), gradients, partials);
      kernels::adamw_prepare<Space, float>(run.stream(), partials, scalars, norm.data(), factors);
      kernels::adamw<Space, float, float, float>(run.stream(), gradients, factors, weights, {}, first, second,
                                                 200);
    };
    backend::RecordedGraph<Space> graph(run.stream(), "optimizer", kernel);
    const auto upload = [&](const auto& view, const auto& values) {
      run.stream().copy_to_device(view.data(), values.data(), values.size() * sizeof(values[0]), "test");
    };
    const std::vector<float> start(w.begin(), w.end()), nothing(size);
    upload(weights, start);
    upload(first, nothing);
    upload(second, nothing);
    for (int step = 1; step <= 20; ++step) {
      const Settings s{.learning_rate = 0.01 / step, .clip = 5, .step = double(step)};
      const auto g = normal_values<float>(size, 100 + step);
      const std::vector<float> gradient(g.begin(), g.end());
      const std::vector<double> values{s.learning_rate, s.weight_decay,   s.beta1,
                                       s.beta2,         s.epsilon,        s.clip,
                                       s.step,          s.gradient_scale, s.skip_above};
      upload(gradients, gradient);
      run.stream().copy_to_device(const_cast<double*>(scalars.learning_rate), values.data(),
                                  values.size() * sizeof(double), "test");
      graph.replay();
      run.stream().synchronize("test");
      reference.step(g, 200, s);
    }
    check_close(run.values(weights), reference.weights, tolerance<float>());
    CHECK(run.values(norm)[0] == doctest::Approx(reference.norm).epsilon(1e-6));
  });
}

TEST_CASE("the gradient norm of partials from several arrays is that of all their elements") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t count = kernels::squared_norm_partial_count();
    KernelRun<Space> run;
    const auto a = run.template input<float>(std::vector<double>(3, 2.0));
    const auto b = run.template input<backend::bfloat16>(std::vector<double>(30000, 1.0));
    const auto partials = run.template output<double>(2 * count);
    const auto norm = run.template output<double>(1);
    const auto factors = run.template output<float>(kernels::adamw_factor_count());
    const auto scalars = scalars_of(run, {.gradient_scale = 0.5});
    using Partials = backend::Vector<double, Space>;
    run.execute([&] {
      kernels::squared_norm_partials<Space, float>(run.stream(), a, Partials(partials.data(), count));
      kernels::squared_norm_partials<Space, backend::bfloat16>(run.stream(), b,
                                                               Partials(partials.data() + count, count));
      kernels::adamw_prepare<Space, float>(run.stream(), partials, scalars, norm.data(), factors);
    });
    CHECK(run.values(norm)[0] == 0.5 * std::sqrt(30012.0));
  });
}

TEST_CASE(
    "weights updated in parts equal those updated at once bit for bit, and the parts' sums give the norm") {
  HostAgreement agreement;
  for_each_optimizer_type([&]<class Space, class T, class G, class S>(Types<Space, T, G, S>) {
    using A = backend::Accumulator<T>;
    for (const bool has_master : {false, true}) {
      const std::int64_t size = 20008, cut = 12800, decayed = 13000;
      const auto g = normal_values<G>(size, 1), w = normal_values<T>(size, 2), m = normal_values<S>(size, 3);
      const auto update = [&](const std::vector<std::int64_t>& ends, double& norm_found) {
        KernelRun<Space> run;
        const auto gradients = run.template input<G>(g);
        const auto weights = run.template in_out<T>(w);
        const auto master = has_master ? run.template in_out<A>(w) : backend::Vector<A, Space>();
        const auto first = run.template in_out<S>(m);
        const auto second = run.template in_out<S>(std::vector<double>(size, 0.25));
        std::int64_t count = 0, begin = 0;
        for (const std::int64_t end : ends)
          count += kernels::adamw_partial_count(end - std::exchange(begin, end));
        const auto partials = run.template output<A>(count);
        const auto sums = run.template output<double>(kernels::gradient_norm_sum_count());
        const auto norm = run.template output<double>(1);
        const auto factors = run.template output<A>(kernels::adamw_factor_count());
        // Neither the limit nor the norm may matter, which are there in vain without partials.
        const auto scalars =
            scalars_of(run, {.clip = 1e-3, .step = 2, .gradient_scale = 0.5, .skip_above = 1e-3});
        agreement.add<Space>(
            "parts " + std::to_string(ends.size()) + std::to_string(sizeof(T)) + std::to_string(sizeof(G)) +
                std::to_string(sizeof(S)) + std::to_string(has_master),
            run.execute([&] {
              kernels::adamw_prepare<Space, A>(run.stream(), {}, scalars, nullptr, factors);
              std::int64_t from = 0, partial = 0;
              const auto part = [&](const auto& vector, std::int64_t to) {
                return vector.data() == nullptr
                           ? vector
                           : std::decay_t<decltype(vector)>(vector.data() + from, std::size_t(to - from));
              };
              for (const std::int64_t to : ends) {
                const std::int64_t sums_of_part = kernels::adamw_partial_count(to - from);
                kernels::adamw<Space, T, G, S>(
                    run.stream(), part(gradients, to), factors, part(weights, to), part(master, to),
                    part(first, to), part(second, to), std::clamp<std::int64_t>(decayed - from, 0, to - from),
                    backend::Vector<A, Space>(partials.data() + partial, std::size_t(sums_of_part)));
                partial += sums_of_part;
                from = to;
              }
              kernels::gradient_norm<Space, A>(run.stream(), partials, scalars.gradient_scale, sums,
                                               norm.data());
            }));
        norm_found = run.values(norm)[0];
        std::vector<double> all = run.values(weights);
        for (const auto& more : {run.values(first), run.values(second)})
          all.insert(all.end(), more.begin(), more.end());
        return all;
      };
      double whole_norm = 0, norm = 0, squares = 0;
      const auto whole = update({size}, whole_norm);
      CHECK(update({cut, size}, norm) == whole);
      for (const double value : g) squares += 0.25 * value * value;
      CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-6));
      CHECK(whole_norm == doctest::Approx(norm).epsilon(1e-6));

      KernelRun<Space> run;
      const auto gradients = run.template input<G>(g);
      const auto weights = run.template in_out<T>(w);
      const auto master = has_master ? run.template in_out<A>(w) : backend::Vector<A, Space>();
      const auto first = run.template in_out<S>(m);
      const auto second = run.template in_out<S>(std::vector<double>(size, 0.25));
      const auto factors = run.template output<A>(kernels::adamw_factor_count());
      const auto scalars = scalars_of(run, {.step = 2, .gradient_scale = 0.5});
      run.execute([&] {
        kernels::adamw_prepare<Space, A>(run.stream(), {}, scalars, nullptr, factors);
        kernels::adamw<Space, T, G, S>(run.stream(), gradients, factors, weights, master, first, second,
                                       decayed);
      });
      std::vector<double> plain = run.values(weights);
      for (const auto& more : {run.values(first), run.values(second)})
        plain.insert(plain.end(), more.begin(), more.end());
      CHECK(plain == whole);
    }
  });
}

TEST_CASE("a large array's gradient norm does not lose small gradients") {
  for_each_space([]<class Space>(Types<Space>) {
    const std::int64_t size = 1 << 22;
    KernelRun<Space> run;
    const auto g = run.template input<float>(std::vector<double>(size, 1.0 / 3));
    const auto partials = run.template output<double>(kernels::squared_norm_partial_count());
    run.execute([&] { kernels::squared_norm_partials<Space, float>(run.stream(), g, partials); });
    double total = 0;
    for (const double partial : run.values(partials)) total += partial;
    const double third = static_cast<float>(1.0 / 3);
    CHECK(total == doctest::Approx(size * third * third).epsilon(1e-6));
  });
}

TEST_CASE("a norm that is not finite is reported, and poisons the weights instead of skipping the step") {
  for_each_space([]<class Space>(Types<Space>) {
    for (const double bad :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      std::vector<double> g(100, 1.0);
      g[42] = bad;
      KernelRun<Space> run;
      const auto gradients = run.template input<float>(g);
      const auto weights = run.template in_out<float>(std::vector<double>(100, 1.0));
      const auto first = run.template in_out<float>(std::vector<double>(100));
      const auto second = run.template in_out<float>(std::vector<double>(100));
      const auto partials = run.template output<double>(kernels::squared_norm_partial_count());
      const auto norm = run.template output<double>(1);
      const auto factors = run.template output<float>(kernels::adamw_factor_count());
      const auto scalars = scalars_of(run, {.clip = 1});
      run.execute([&] {
        kernels::squared_norm_partials<Space, float>(run.stream(), gradients, partials);
        kernels::adamw_prepare<Space, float>(run.stream(), partials, scalars, norm.data(), factors);
        kernels::adamw<Space, float, float, float>(run.stream(), gradients, factors, weights, {}, first,
                                                   second, 0);
      });
      CHECK(!std::isfinite(run.values(norm)[0]));
      CHECK(std::isnan(run.values(weights)[42]));
    }
  });
}

TEST_CASE("a norm above the limit, or one that is not finite, leaves weights and moments as they are") {
  for_each_space([]<class Space>(Types<Space>) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double gradient : {0.0, 0.1, 0.25, 0.3, infinity, std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(gradient);
      const std::vector<double> ones(100, 1.0);
      KernelRun<Space> run;
      const auto gradients = run.template input<float>(std::vector<double>(100, gradient));
      const auto weights = run.template in_out<float>(ones), first = run.template in_out<float>(ones),
                 second = run.template in_out<float>(ones);
      const auto partials = run.template output<double>(kernels::squared_norm_partial_count());
      const auto norm = run.template output<double>(1);
      const auto factors = run.template output<float>(kernels::adamw_factor_count());
      const double limit = 2.5;  // Exactly the norm of 100 times 0.25: at the limit a step still counts.
      const auto scalars = scalars_of(run, {.clip = 1, .skip_above = limit});
      run.execute([&] {
        kernels::squared_norm_partials<Space, float>(run.stream(), gradients, partials);
        kernels::adamw_prepare<Space, float>(run.stream(), partials, scalars, norm.data(), factors);
        kernels::adamw<Space, float, float, float>(run.stream(), gradients, factors, weights, {}, first,
                                                   second, 100);
      });
      const bool skips = !(run.values(norm)[0] <= limit);
      CHECK(skips == !(gradient <= 0.25));
      CHECK((run.values(weights) == ones) == skips);
      CHECK((run.values(first) == ones) == skips);
      CHECK((run.values(second) == ones) == skips);
    }
  });
}

TEST_CASE("AdamW refuses arrays of different lengths and more decayed elements than there are") {
  for_each_space([]<class Space>(Types<Space>) {
    KernelRun<Space> run;
    const auto a = run.template output<float>(8), b = run.template output<float>(7);
    const auto factors = run.template output<float>(kernels::adamw_factor_count());
    const auto step = [&](const auto& gradients, std::int64_t decayed) {
      kernels::adamw<Space, float, float, float>(run.stream(), gradients, factors, a, {}, a, a, decayed);
    };
    CHECK_THROWS_AS(step(b, 0), ConfigurationError);
    CHECK_THROWS_AS(step(a, 9), ConfigurationError);
    CHECK_THROWS_AS(step(a, -1), ConfigurationError);
    CHECK(run.stream().counters().launches == 0);
  });
}
