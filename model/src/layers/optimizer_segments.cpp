// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <encore/kernels/live_tokens.hpp>
#include <encore/kernels/optimizer.hpp>
#include <encore/kernels/router.hpp>

#include <limits>

namespace encore::model {

const std::vector<std::string>& step_scalar_names() {
  static const std::vector<std::string> names{
      "learning_rate", "weight_decay",   "beta1",           "beta2",   "epsilon",           "clip",
      "step",          "gradient_scale", "skip_above",      "dropout", "attention_dropout", "balance_loss",
      "router_z_loss", "router_jitter",  "expert_bias_rate"};
  return names;
}

namespace {

struct OptimizerBuffers {
  BufferId parameters, gradients, first_moment, second_moment;
  std::optional<BufferId> master;
  BufferId factors;
  std::int64_t decayed;
};

template <class Space, class T, class G, class S>
void update(Execution<Space>& x, const OptimizerBuffers& b) {
  using A = Accumulator<T>;
  kernels::adamw<Space, T, G, S>(x.stream(), x.template vector<const G>(b.gradients),
                                 x.template vector<const A>(b.factors), x.template vector<T>(b.parameters),
                                 b.master ? x.template vector<A>(*b.master) : backend::Vector<A, Space>(),
                                 x.template vector<S>(b.first_moment), x.template vector<S>(b.second_moment),
                                 b.decayed);
}

/// Tells, before anything is updated, whether some experts' rows did not fit.
template <class Space, class T, class G>
void append_budget(StackBuilder<Space, T, G>& builder) {
  const BufferId needed = *builder.step.rows_needed, over = *builder.step.over_budget;
  const std::int64_t rows = expert_rows(builder.model, builder.shape.experts, builder.tokens());
  // Where tokens may be dropped, experts need not have more rows than they keep.
  const bool dropless = expert_capacity(builder.model, builder.shape.experts, builder.tokens()) == 0;
  builder.step.program.add_segment(
      {"optimizer/budget", Module::optimizer, Phase::update, -1, -1, buffers_of(needed), buffers_of(over)},
      [=](Execution<Space>& x) {
        kernels::compare_rows<Space>(x.stream(), x.template vector<const std::int32_t>(needed),
                                     dropless ? rows : std::numeric_limits<std::int64_t>::max(),
                                     x.template vector<double>(over));
      });
}

/// Moves every expert's bias towards an even load, unless the step updates nothing.
template <class Space, class T, class G>
void append_expert_bias_update(StackBuilder<Space, T, G>& builder) {
  using A = Accumulator<T>;
  const BufferId bias = *builder.step.expert_bias, counts = *builder.step.tokens_of_expert,
                 rate = builder.scalar("expert_bias_rate"), norm = *builder.step.gradient_norm,
                 skip_above = builder.scalar("skip_above"), over = *builder.step.over_budget;
  builder.step.program.add_segment(
      {"optimizer/expert_bias", Module::optimizer, Phase::update, -1, -1,
       buffers_of(counts, rate, norm, skip_above, over), buffers_of(bias)},
      [=](Execution<Space>& x) {
        kernels::expert_bias_update<Space, A>(
            x.stream(), x.template matrix<const std::int32_t>(counts), x.template pointer<const double>(rate),
            x.template pointer<const double>(norm), x.template pointer<const double>(skip_above),
            x.template pointer<const double>(over) + 1, x.template matrix<A>(bias));
      });
}

}  // namespace

template <class Space, class T, class G>
void append_optimizer(StackBuilder<Space, T, G>& builder, const StepShape& shape) {
  using A = Accumulator<T>;
  auto& step = builder.step;
  const BufferId partials =
      builder.template add<double>("optimizer/norm_partials", {kernels::squared_norm_partial_count()});
  const BufferId factors = builder.template add<A>("optimizer/factors", {kernels::adamw_factor_count()});
  const BufferId gradients = *step.gradients, norm = *step.gradient_norm;
  std::vector<BufferId> scalars;
  for (const std::string& name : step_scalar_names()) scalars.push_back(builder.scalar(name));

  const std::optional<BufferId> over_budget = step.over_budget;
  if (over_budget) append_budget(builder);
  std::vector<BufferId> norm_reads = scalars;
  norm_reads.push_back(gradients);
  append(norm_reads, over_budget);
  step.program.add_segment(
      {"optimizer/norm", Module::optimizer, Phase::update, -1, -1, norm_reads,
       buffers_of(partials, norm, factors)},
      [=](Execution<Space>& x) {
        kernels::squared_norm_partials<Space, G>(x.stream(), x.template vector<const G>(gradients),
                                                 x.template vector<double>(partials));
        const auto scalar = [&](std::size_t index) {
          return x.template pointer<const double>(scalars[index]);
        };
        kernels::adamw_prepare<Space, A>(
            x.stream(), x.template vector<const double>(partials),
            {scalar(0), scalar(1), scalar(2), scalar(3), scalar(4), scalar(5), scalar(6), scalar(7),
             scalar(8), over_budget ? x.template pointer<const double>(*over_budget) + 1 : nullptr},
            x.template pointer<double>(norm), x.template vector<A>(factors));
      });

  const OptimizerBuffers b{step.parameters,
                           gradients,
                           *step.first_moment,
                           *step.second_moment,
                           step.master,
                           factors,
                           builder.layout.decayed_elements()};
  const backend::DataType state = shape.optimizer_state;
  step.program.add_segment(
      {"optimizer/adamw", Module::optimizer, Phase::update, -1, -1, buffers_of(gradients, factors),
       buffers_of(b.parameters, b.first_moment, b.second_moment, b.master)},
      [=](Execution<Space>& x) {
        if constexpr (std::is_same_v<T, double>) {
          update<Space, T, G, double>(x, b);
        } else if (state == backend::DataType::bfloat16) {
          update<Space, T, G, backend::bfloat16>(x, b);
        } else {
          update<Space, T, G, float>(x, b);
        }
      });
  if (step.expert_bias) append_expert_bias_update(builder);
  step.program.add_segment({"random/advance", Module::random, Phase::update, -1, -1, {}, {}},
                           [](Execution<Space>& x) { x.device().random().advance(x.stream()); });
}

#define ENCORE_INSTANTIATE(SPACE, T, G) \
  template void append_optimizer(StackBuilder<SPACE, T, G>&, const StepShape&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
