// SPDX-License-Identifier: Apache-2.0
//
// The optimizer over all parameters of a model: optimizer/<norm|adamw|adamw_with_master>/<workload>/<backend>
// bfloat16 weights, gradients and moments as in the presets; with_master: float moments and master weights.
// The number of parameters is that of the preset without its normalizations, at most 400 million, on hosts 4.
#include "turns.hpp"

#include <encore/kernels/optimizer.hpp>

namespace encore::bench {

namespace {

using T = bfloat16;

template <class Space>
std::int64_t parameters_of(const Workload& w) {
  const std::int64_t attention = w.hidden * (w.projected() + w.width());
  const std::int64_t inner = 3 * w.hidden * (w.experts > 0 ? w.experts * w.expert_ffn : w.ffn);
  return std::min<std::int64_t>(w.layers * (attention + inner) + 2 * w.vocab * w.hidden,
                                is_host_space<Space> ? 4'000'000 : 400'000'000);
}

/// learning rate, decay, beta1, beta2, epsilon, clip, step, gradient scale, skip above, in the order of AdamwScalars
const std::vector<double> scalars_of_step = {1e-4, 0.01, 0.9, 0.999, 1e-8, 1, 7, 1, 0};

template <class Space, class S, bool master_weights>
struct Parameters {
  Stream<Space>& stream;
  std::int64_t count;
  NoiseArray<Space, T> gradients, weights;
  NoiseArray<Space, S> first_moment, second_moment;
  NoiseArray<Space, float> master;
  GivenArray<Space, double> scalars;
  PoisonedArray<Space, double> partials, norm;
  PoisonedArray<Space, float> factors;

  Parameters(Stream<Space>& on, std::uint64_t seed, const Workload& w)
      : stream(on),
        count(parameters_of<Space>(w)),
        gradients(on, count, seed),
        weights(on, count, seed + 1),
        first_moment(on, count, seed + 2),
        second_moment(on, count, seed + 3),
        master(on, master_weights ? count : 1, seed + 4),
        scalars(on, scalars_of_step),
        partials(on, kernels::squared_norm_partial_count()),
        norm(on, 1),
        factors(on, kernels::adamw_factor_count()) {
    sum_squares();
    const double* s = scalars.data();
    kernels::adamw_prepare<Space, float>(
        stream, Vector<const double, Space>(partials.data(), size(kernels::squared_norm_partial_count())),
        {s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6, s + 7, s + 8}, norm.data(),
        Vector<float, Space>(factors.data(), size(kernels::adamw_factor_count())));
  }

  static std::size_t size(std::int64_t value) { return static_cast<std::size_t>(value); }
  void sum_squares() const {
    kernels::squared_norm_partials<Space, T>(
        stream, Vector<const T, Space>(gradients.data(), size(count)),
        Vector<double, Space>(partials.data(), size(kernels::squared_norm_partial_count())));
  }
  void update() const {
    kernels::adamw<Space, T, T, S>(
        stream, Vector<const T, Space>(gradients.data(), size(count)),
        Vector<const float, Space>(factors.data(), size(kernels::adamw_factor_count())),
        Vector<T, Space>(weights.data(), size(count)),
        master_weights ? Vector<float, Space>(master.data(), size(count)) : Vector<float, Space>(),
        Vector<S, Space>(first_moment.data(), size(count)),
        Vector<S, Space>(second_moment.data(), size(count)), count);
  }
};

template <class Space, class S, bool master_weights>
void add_update(const Options& options, const std::string& name) {
  const double moved = (2.0 + 2 + 2) + 4.0 * sizeof(S) + (master_weights ? 8 : 0);
  add_for_workloads<Space>(
      options, name, always,
      [moved](const Workload& w) { return Work{moved * static_cast<double>(parameters_of<Space>(w))}; },
      [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Parameters<Space, S, master_weights>>(stream, seed, w)] { x->update(); };
      });
}

template <class Space>
void add_to(const Options& options) {
  add_for_workloads<Space>(
      options, "optimizer/norm", always,
      [](const Workload& w) { return Work{bytes_of<T>(parameters_of<Space>(w))}; },
      [](auto& stream, auto seed, auto& w) {
        return [x = std::make_shared<Parameters<Space, T, false>>(stream, seed, w)] { x->sum_squares(); };
      });
  add_update<Space, T, false>(options, "optimizer/adamw");
  add_update<Space, float, true>(options, "optimizer/adamw_with_master");
}

}  // namespace

ENCORE_DEFINE_FAMILY(optimizer)

}  // namespace encore::bench
