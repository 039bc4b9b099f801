// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"
#include "update_parts.hpp"

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
  std::optional<BufferId> partials;  ///< of the gradient's norm, where the update makes them
};

template <class E, class Space>
backend::Vector<E, Space> stretch_of(const Execution<Space>& x, BufferId id, std::int64_t begin,
                                     std::int64_t end) {
  return backend::Vector<E, Space>(x.template pointer<E>(id) + begin, static_cast<std::size_t>(end - begin));
}

template <class Space, class T, class G, class S>
void update(Execution<Space>& x, const OptimizerBuffers& b, const UpdatePart& part) {
  using A = Accumulator<T>;
  backend::Vector<A, Space> master;
  if (b.master) master = stretch_of<A>(x, *b.master, part.begin, part.end);
  backend::Vector<A, Space> partials;
  if (b.partials) partials = stretch_of<A>(x, *b.partials, part.first_partial, part.end_partial);
  kernels::adamw<Space, T, G, S>(
      x.stream(), stretch_of<const G>(x, b.gradients, part.begin, part.end),
      x.template vector<const A>(b.factors), stretch_of<T>(x, b.parameters, part.begin, part.end), master,
      stretch_of<S>(x, b.first_moment, part.begin, part.end),
      stretch_of<S>(x, b.second_moment, part.begin, part.end), part.decayed, partials);
}

template <class Space, class T, class G>
void append_update(StackBuilder<Space, T, G>& builder, const std::string& name, const OptimizerBuffers& b,
                   const UpdatePart& part, backend::DataType state) {
  builder.step.program.add_segment(
      {name, Module::optimizer, Phase::update, -1, -1, buffers_of(b.gradients, b.factors),
       buffers_of(b.parameters, b.first_moment, b.second_moment, b.master, b.partials)},
      [=](Execution<Space>& x) {
        const backend::BranchScope branch(x.stream(), backend::Branch::update);
        if constexpr (std::is_same_v<T, double>) {
          update<Space, T, G, double>(x, b, part);
        } else if (state == backend::DataType::bfloat16) {
          update<Space, T, G, backend::bfloat16>(x, b, part);
        } else {
          update<Space, T, G, float>(x, b, part);
        }
      });
}

kernels::AdamwScalars scalars_of(const auto& x, const std::vector<BufferId>& scalars,
                                 std::optional<BufferId> over_budget) {
  const auto scalar = [&](std::size_t index) { return x.template pointer<const double>(scalars[index]); };
  return {scalar(0), scalar(1),
          scalar(2), scalar(3),
          scalar(4), scalar(5),
          scalar(6), scalar(7),
          scalar(8), over_budget ? x.template pointer<const double>(*over_budget) + 1 : nullptr};
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
  const BufferId gradients = *step.gradients, norm = *step.gradient_norm;
  const BufferId factors = builder.template add<A>("optimizer/factors", {kernels::adamw_factor_count()});
  OptimizerBuffers b{step.parameters, gradients, *step.first_moment, *step.second_moment,
                     step.master,     factors,   std::nullopt};
  std::vector<BufferId> scalars;
  for (const std::string& name : step_scalar_names()) scalars.push_back(builder.scalar(name));
  const BufferId gradient_scale = builder.scalar("gradient_scale");

  const std::optional<BufferId> over_budget = step.over_budget;
  if (over_budget) append_budget(builder);
  std::vector<BufferId> factor_reads = scalars;
  append(factor_reads, over_budget);
  if (shape.update_needs_norm) {
    const BufferId partials =
        builder.template add<double>("optimizer/norm_partials", {kernels::squared_norm_partial_count()});
    append(factor_reads, gradients);
    step.program.add_segment(
        {"optimizer/norm", Module::optimizer, Phase::update, -1, -1, factor_reads,
         buffers_of(partials, norm, factors)},
        [=](Execution<Space>& x) {
          kernels::squared_norm_partials<Space, G>(x.stream(), x.template vector<const G>(gradients),
                                                   x.template vector<double>(partials));
          kernels::adamw_prepare<Space, A>(x.stream(), x.template vector<const double>(partials),
                                           scalars_of(x, scalars, over_budget),
                                           x.template pointer<double>(norm), x.template vector<A>(factors));
        });
    append_update(builder, "optimizer/adamw", b, whole_update(builder.layout), shape.optimizer_state);
  } else {
    const std::vector<UpdatePart> parts = update_parts(builder.layout, builder.model.layers);
    const BufferId partials = builder.template add<A>("optimizer/norm_partials", {parts.back().end_partial});
    const BufferId sums =
        builder.template add<double>("optimizer/norm_sums", {kernels::gradient_norm_sum_count()});
    b.partials = partials;
    step.program.add_segment(
        {"optimizer/factors", Module::optimizer, Phase::update, -1, -1, factor_reads, buffers_of(factors)},
        [=](Execution<Space>& x) {
          const backend::BranchScope branch(x.stream(), backend::Branch::update);
          kernels::adamw_prepare<Space, A>(x.stream(), {}, scalars_of(x, scalars, std::nullopt), nullptr,
                                           x.template vector<A>(factors));
        });
    for (std::size_t i = 0; i < parts.size(); ++i)
      append_update(builder, "optimizer/adamw." + std::to_string(i), b, parts[i], shape.optimizer_state);
    step.program.add_segment({"optimizer/norm", Module::optimizer, Phase::update, -1, -1,
                              buffers_of(partials, gradient_scale), buffers_of(sums, norm)},
                             [=](Execution<Space>& x) {
                               const backend::BranchScope branch(x.stream(), backend::Branch::update);
                               kernels::gradient_norm<Space, A>(
                                   x.stream(), x.template vector<const A>(partials),
                                   x.template pointer<const double>(gradient_scale),
                                   x.template vector<double>(sums), x.template pointer<double>(norm));
                             });
  }
  if (step.expert_bias) append_expert_bias_update(builder);
  step.program.add_segment({"random/advance", Module::random, Phase::update, -1, -1, {}, {}},
                           [](Execution<Space>& x) { x.device().random().advance(x.stream()); });
}

#define ENCORE_INSTANTIATE(SPACE, T, G) \
  template void append_optimizer(StackBuilder<SPACE, T, G>&, const StepShape&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
