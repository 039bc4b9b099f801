// SPDX-License-Identifier: Apache-2.0
#include "operations.hpp"

#include <encore/kernels/optimizer.hpp>

namespace encore::model {

const std::vector<std::string>& step_scalar_names() {
  static const std::vector<std::string> names{
      "learning_rate", "weight_decay",   "beta1",      "beta2",   "epsilon",          "clip",
      "step",          "gradient_scale", "skip_above", "dropout", "attention_dropout"};
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

  std::vector<BufferId> norm_reads = scalars;
  norm_reads.push_back(gradients);
  step.program.add_segment(
      {"optimizer/norm", Module::optimizer, Phase::update, -1, -1, norm_reads,
       buffers_of(partials, norm, factors)},
      [=](Execution<Space>& x) {
        kernels::squared_norm_partials<Space, G>(x.stream(), x.template vector<const G>(gradients),
                                                 x.template vector<double>(partials));
        const auto scalar = [&](std::size_t index) {
          return x.template pointer<const double>(scalars[index]);
        };
        kernels::adamw_prepare<Space, A>(x.stream(), x.template vector<const double>(partials),
                                         {scalar(0), scalar(1), scalar(2), scalar(3), scalar(4), scalar(5),
                                          scalar(6), scalar(7), scalar(8)},
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
  step.program.add_segment({"random/advance", Module::random, Phase::update, -1, -1, {}, {}},
                           [](Execution<Space>& x) { x.device().random().advance(x.stream()); });
}

#define ENCORE_INSTANTIATE(SPACE, T, G) \
  template void append_optimizer(StackBuilder<SPACE, T, G>&, const StepShape&);
ENCORE_FOR_EACH_SPACE_TYPE_AND_GRADIENT(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
