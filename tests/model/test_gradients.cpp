// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/device.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/graph/scalars.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/model/step_program.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

namespace {

using namespace encore;
using namespace encore::tests;

/// A model's step in float64 on Serial, all kernels being the library's own, for finite differences.
class DoubleStep {
 public:
  using Space = Kokkos::Serial;

  explicit DoubleStep(const model::Configuration& configuration)
      : configuration_(configuration),
        layout_(configuration.model, true),
        device_(3),
        step_(model::build_step_program<Space, double, double>(device_, configuration.model, layout_,
                                                               shape_of(configuration))),
        plan_(graph::plan_memory(outline())),
        scalars_(device_.stream(), model::step_scalar_names()),
        bindings_(outline()) {
    for (std::size_t index = 0; index < outline().buffers().size(); ++index) {
      const auto& buffer = outline().buffers()[index];
      if (buffer.part || buffer.kind == graph::BufferKind::activation) continue;
      memory_.emplace_back(buffer.name, buffer.bytes());
      std::memset(memory_.back().data(), 0, buffer.bytes());
      bindings_.bind(static_cast<graph::BufferId>(index), memory_.back().data());
    }
    bindings_.bind(step_.scalars, scalars_.device_data());
    arena_ = backend::Allocation<Space>("arena", plan_.arena_bytes);
    std::memset(arena_.data(), 0xff, plan_.arena_bytes);  // NaN everywhere
    bindings_.bind_arena(plan_, arena_.data());
    bindings_.bind_parts(outline());
    scalars_.set("dropout", configuration.model.dropout);
    scalars_.set("attention_dropout", configuration.model.attention_dropout);
    scalars_.set("balance_loss", configuration.train.balance_loss);
    scalars_.set("router_z_loss", configuration.train.router_z_loss);
    scalars_.set("router_jitter", configuration.train.router_jitter);
    scalars_.upload(device_.stream());
    const auto& table = outline().buffer(step_.rope_cosine);
    if (table.elements() > 0) {
      const auto view = [&](graph::BufferId id) {
        return backend::Matrix<double, Space>(data(id), static_cast<std::size_t>(table.shape[0]),
                                              static_cast<std::size_t>(table.shape[1]));
      };
      kernels::rope_tables<Space, double>(device_.stream(), model::rope_frequencies(configuration.model),
                                          view(step_.rope_cosine), view(step_.rope_sine));
    }
    const Batch batch = random_batch(configuration, 0);
    std::memcpy(bindings_.address(step_.ids), batch.ids.data(), batch.ids.size() * 4);
    std::memcpy(bindings_.address(step_.labels), batch.labels.data(), batch.labels.size() * 4);
    std::mt19937 generator(11);
    std::normal_distribution<double> normal(0.0, 0.2);
    for (const auto& parameter : layout_.parameters())
      for (std::int64_t i = 0; i < parameter.elements(); ++i)
        data(step_.parameters)[parameter.offset + i] =
            normal(generator) + (parameter.initialization == model::Initialization::ones ? 1.0 : 0.0);
  }

  double loss() {
    run({graph::Phase::forward});
    double sum = *data(step_.loss);
    if (step_.balance_loss) sum += configuration_.train.balance_loss * *data(*step_.balance_loss);
    if (step_.z_loss) sum += configuration_.train.router_z_loss * *data(*step_.z_loss);
    return sum;
  }
  void backward() { run({graph::Phase::forward, graph::Phase::backward}); }
  double* parameters() { return data(step_.parameters); }
  const double* gradients() { return data(*step_.gradients); }
  const model::ParameterLayout& layout() const { return layout_; }

 private:
  static model::StepShape shape_of(const model::Configuration& configuration) {
    const auto& train = configuration.train;
    model::StepShape shape{train.microbatches, train.microbatch, train.seq, true, backend::DataType::float64};
    shape.experts = {train.balance_loss > 0, train.router_z_loss > 0, train.router_jitter > 0,
                     train.expert_capacity, train.expert_budget};
    return shape;
  }

  const graph::Outline& outline() const { return step_.program.outline(); }
  double* data(graph::BufferId id) { return reinterpret_cast<double*>(bindings_.address(id)); }
  void run(const std::vector<graph::Phase>& phases) {
    for (std::size_t index = 0; index < outline().segments().size(); ++index)
      if (std::find(phases.begin(), phases.end(), outline().segments()[index].phase) != phases.end())
        step_.program.run_segment(index, device_, bindings_);
  }

  model::Configuration configuration_;
  model::ParameterLayout layout_;
  backend::Device<Space> device_;
  model::StepProgram<Space> step_;
  graph::MemoryPlan plan_;
  graph::Scalars<Space> scalars_;
  graph::Bindings bindings_;
  std::vector<backend::Allocation<Space>> memory_;
  backend::Allocation<Space> arena_;
};

/// Every parameter along two random directions; central differences are exact to about 1e-9 in float64.
void check_gradients(const model::Configuration& configuration) {
  DoubleStep step(configuration);
  step.backward();
  std::vector<double> gradients(step.gradients(), step.gradients() + step.layout().elements());
  std::mt19937 generator(17);
  std::normal_distribution<double> normal(0.0, 1.0);
  for (const auto& parameter : step.layout().parameters())
    for (int direction = 0; direction < 2; ++direction) {
      CAPTURE(parameter.name);
      const auto count = static_cast<std::size_t>(parameter.elements());
      std::vector<double> way(count);
      double analytic = 0;
      for (std::size_t i = 0; i < count; ++i) {
        way[i] = normal(generator) / std::sqrt(static_cast<double>(count));
        analytic += way[i] * gradients[static_cast<std::size_t>(parameter.offset) + i];
      }
      double* values = step.parameters() + parameter.offset;
      const std::vector<double> kept(values, values + count);
      constexpr double width = 1e-5;
      const auto loss_at = [&](double distance) {
        for (std::size_t i = 0; i < count; ++i) values[i] = kept[i] + distance * way[i];
        return step.loss();
      };
      const double numeric = (loss_at(width) - loss_at(-width)) / (2 * width);
      std::copy(kept.begin(), kept.end(), values);
      CHECK(analytic == doctest::Approx(numeric).epsilon(1e-5).scale(1e-3));
    }
}

void check_gradients(const std::vector<std::string>& settings) { check_gradients(resolve(settings)); }

std::vector<std::string> with(const std::string& family, const std::vector<std::string>& more) {
  auto settings = tiny_model(family);
  settings.push_back("model.seq=10");
  settings.push_back("backend=serial");
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

TEST_CASE("every gradient of GPT-2 equals finite differences in float64") {
  check_gradients(with("gpt2", {}));
}
TEST_CASE(
    "every gradient of GPT-2 with exact GELU, untied head, dropout and microbatches equals finite "
    "differences") {
  check_gradients(with("gpt2", {"model.activation=gelu", "model.tie_embeddings=false", "model.dropout=0.2",
                                "model.attention_dropout=0.2", "train.microbatches=2"}));
}
TEST_CASE("every gradient of Llama equals finite differences in float64") {
  check_gradients(with("llama", {}));
}
TEST_CASE(
    "every gradient of Llama with biases, tied head, free head size and interleaved positions equals finite "
    "differences") {
  check_gradients(with("llama", {"model.qkv_bias=true", "model.attention_output_bias=true",
                                 "model.mlp_bias=true", "model.tie_embeddings=true", "model.head_dim=6",
                                 "model.position=rope_interleaved", "train.microbatches=2"}));
}
TEST_CASE(
    "every gradient of attention with QK norm, sinks, windows, stretched positions, biases and dropout, and "
    "of a "
    "clamped MLP, equals finite differences") {
  model::Configuration configuration =
      resolve(with("llama", {"model.qkv_bias=true", "model.attention_output_bias=true", "model.mlp_bias=true",
                             "model.head_dim=6", "train.microbatches=2"}));
  // All at once in no family.
  model::ModelConfiguration& model = configuration.model;
  model.query_key_norm = model.attention_sinks = true;
  model.pattern = "~-*-";
  model.sliding_window = 3;
  model.rope_factor = 4;
  model.rope_original_seq = 5;
  model.attention_dropout = 0.2;
  model.activation = model::Activation::swiglu_clamped;
  model.swiglu_limit = 0.6;
  check_gradients(configuration);
}
TEST_CASE(
    "every gradient of attention with QK norm and no positions, and of a squared ReLU, equals finite "
    "differences") {
  model::Configuration configuration = resolve(with("llama", {}));
  configuration.model.query_key_norm = true;
  configuration.model.position = model::Position::none;
  configuration.model.activation = model::Activation::relu_squared;
  check_gradients(configuration);
}

void check_experts(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.push_back("model.seq=10");
  settings.push_back("backend=serial");
  settings.insert(settings.end(), more.begin(), more.end());
  check_gradients(settings);
}

void check_mamba(const std::vector<std::string>& more) {
  std::vector<std::string> settings{"model.family=mamba2", "model.layers=2",         "model.hidden=12",
                                    "model.mamba_heads=4", "model.mamba_head_dim=6", "model.mamba_state=5",
                                    "model.mamba_chunk=4", "model.vocab=61",         "model.seq=10",
                                    "train.microbatch=2",  "backend=serial",         "seed=5"};
  settings.insert(settings.end(), more.begin(), more.end());
  check_gradients(settings);
}

TEST_CASE("every gradient of Mamba-2 equals finite differences") { check_mamba({}); }
TEST_CASE(
    "every gradient of Mamba-2 with groups, biases, limited steps and microbatches equals finite "
    "differences") {
  check_mamba({"model.mamba_groups=2", "model.mamba_bias=true", "model.mamba_step_minimum=0.5",
               "model.mamba_step_maximum=0.9", "model.mamba_convolution=3", "train.microbatches=2"});
}
TEST_CASE(
    "every gradient of Mamba-2 without a convolution bias, normalized by groups, with dropout, equals finite "
    "differences") {
  model::Configuration configuration =
      resolve({"model.family=mamba2", "model.layers=2", "model.hidden=12", "model.mamba_heads=4",
               "model.mamba_head_dim=6", "model.mamba_state=5", "model.mamba_chunk=16", "model.vocab=61",
               "model.seq=10", "train.microbatch=2", "backend=serial", "seed=5",
               "model.mamba_convolution_bias=false", "model.tie_embeddings=false"});
  configuration.model.mamba_norm_groups = 3;
  configuration.model.dropout = 0.2;
  check_gradients(configuration);
}

TEST_CASE("every gradient of a mixture of experts with balance and z losses equals finite differences") {
  check_experts(tiny_experts(),
                {"train.balance_loss=0.3", "train.router_z_loss=0.2", "train.microbatches=2"});
}
TEST_CASE("every gradient of a mixture of experts without renormalization equals finite differences") {
  check_experts(tiny_experts(), {"model.router_renormalize=false", "train.balance_loss=0.1"});
}
TEST_CASE("every gradient of a mixture of experts that drops tokens equals finite differences") {
  check_experts(tiny_experts(), {"train.expert_capacity=0.6"});
}
TEST_CASE("every gradient of a mixture of experts with router jitter and dropout equals finite differences") {
  check_experts(tiny_experts(), {"train.router_jitter=0.1", "model.dropout=0.2"});
}
TEST_CASE("every gradient of a hybrid of Mamba, attention, MLP and experts equals finite differences") {
  check_experts(tiny_hybrid(), {"train.balance_loss=0.1", "train.microbatches=2"});
}

}  // namespace
