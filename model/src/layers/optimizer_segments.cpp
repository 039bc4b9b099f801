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

template <class Space, class T, class G, class S>
void update(Execution<Space>& x, const OptimizerBuffers& b, const UpdatePart& part) {
  using A = Accumulator<T>;
  const auto [begin, end] = part.own;
  const std::int64_t state_end = part.state_begin + part.own.size();
  backend::Vector<A, Space> master;
  if (b.master) master = stretch_of<A>(x, *b.master, part.state_begin, state_end);
  backend::Vector<A, Space> partials;
  if (b.partials) partials = stretch_of<A>(x, *b.partials, part.first_partial, part.end_partial);
  kernels::adamw<Space, T, G, S>(
      x.stream(), stretch_of<const G>(x, b.gradients, begin, end), x.template vector<const A>(b.factors),
      stretch_of<T>(x, b.parameters, begin, end), master,
      stretch_of<S>(x, b.first_moment, part.state_begin, state_end),
      stretch_of<S>(x, b.second_moment, part.state_begin, state_end), part.decayed, partials);
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

/// Hands each rank the weights that the others have updated.
template <class Space, class T, class G>
void append_gather_weights(StackBuilder<Space, T, G>& builder, std::int64_t number, const UpdatePart& part) {
  if (!builder.is_in(part.group)) return;
  const std::string group(name_of(part.group));
  const BufferId parameters = builder.step.parameters;
  builder.step.program.add_segment({group + "/gather_weights." + std::to_string(number),
                                    Module::comm,
                                    Phase::update,
                                    -1,
                                    -1,
                                    {},
                                    buffers_of(parameters)},
                                   [=](Execution<Space>& x) {
                                     const backend::BranchScope branch(x.stream(), backend::Branch::update);
                                     x.device().communicator(group).template all_gather<T>(
                                         x.stream(), "encore::data::gather_weights",
                                         stretch_of<const T>(x, parameters, part.own.begin, part.own.end),
                                         stretch_of<T>(x, parameters, part.begin, part.end));
                                   });
}

/// The norm of all gradients where ranks have different ones: each adds the squares of its own, and the sums are added.
template <class Space, class T, class G>
void append_norm_of_all_ranks(StackBuilder<Space, T, G>& builder, BufferId squares) {
  const std::vector<Stretch> stretches = norm_stretches(builder.layout, builder.model.layers);
  const std::int64_t share = kernels::squared_norm_partial_count();
  const auto count = static_cast<std::int64_t>(stretches.size());
  const BufferId gradients = *builder.step.gradients;
  const BufferId partials = builder.template add<double>("optimizer/norm_partials", {count * share});
  builder.step.program.add_segment(
      {"optimizer/squares", Module::optimizer, Phase::update, -1, -1, buffers_of(gradients),
       buffers_of(partials, squares)},
      [=](Execution<Space>& x) {
        for (std::int64_t i = 0; i < count; ++i) {
          const Stretch& stretch = stretches[static_cast<std::size_t>(i)];
          kernels::squared_norm_partials<Space, G>(
              x.stream(), stretch_of<const G>(x, gradients, stretch.begin, stretch.end),
              stretch_of<double>(x, partials, i * share, (i + 1) * share));
        }
        kernels::sum_partials<Space>(x.stream(), x.template vector<const double>(partials),
                                     x.template pointer<double>(squares));
      });
  const RankGroup group = builder.is_in(RankGroup::world) ? RankGroup::world : RankGroup::data;
  if (!builder.is_in(group)) return;
  const std::string name(name_of(group));
  builder.step.program.add_segment(
      {name + "/squares", Module::comm, Phase::update, -1, -1, {}, buffers_of(squares)},
      [=](Execution<Space>& x) {
        x.device().communicator(name).template all_reduce<double>(x.stream(), "encore::world::squares",
                                                                  x.template vector<double>(squares),
                                                                  backend::Reduction::sum);
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
  const std::int64_t rows =
      expert_rows(builder.model, builder.shape.experts, builder.tokens(), builder.shard().layout.expert());
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
  const ModelShard& shard = builder.shard();
  const bool shards = shards_optimizer(builder.layout);
  if (shape.update_needs_norm || shards || shard.has_part_of_layers()) {
    // Data ranks have all gradients; others have some.
    const bool has_all = !shards && !shard.has_part_of_layers();
    const BufferId squares =
        builder.template add<double>(has_all ? "optimizer/norm_partials" : "optimizer/squares_of_all",
                                     {has_all ? kernels::squared_norm_partial_count() : std::int64_t{1}});
    if (!has_all) append_norm_of_all_ranks(builder, squares);
    append(factor_reads, has_all ? gradients : squares);
    step.program.add_segment(
        {"optimizer/norm", Module::optimizer, Phase::update, -1, -1, factor_reads,
         has_all ? buffers_of(squares, norm, factors) : buffers_of(norm, factors)},
        [=](Execution<Space>& x) {
          if (has_all)
            kernels::squared_norm_partials<Space, G>(x.stream(), x.template vector<const G>(gradients),
                                                     x.template vector<double>(squares));
          kernels::adamw_prepare<Space, A>(x.stream(), x.template vector<const double>(squares),
                                           scalars_of(x, scalars, over_budget),
                                           x.template pointer<double>(norm), x.template vector<A>(factors));
        });
    if (shards) {
      const std::vector<UpdatePart> parts = update_parts(builder.layout, builder.model.layers);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        append_update(builder, "optimizer/adamw." + std::to_string(i), b, parts[i], shape.optimizer_state);
        append_gather_weights(builder, static_cast<std::int64_t>(i), parts[i]);
      }
    } else {
      append_update(builder, "optimizer/adamw", b, whole_update(builder.layout), shape.optimizer_state);
    }
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
