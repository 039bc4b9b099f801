// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../layers/generation_program.hpp"
#include "../trainer/initial_weights.hpp"

#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/graph/memory_plan.hpp>
#include <encore/kernels/rope.hpp>
#include <encore/kernels/sampling.hpp>
#include <encore/model/generator.hpp>
#include <encore/model/step_program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace encore::model {

/// Generator for one execution space and weight type.
template <class Space, class T>
class DeviceGenerator final : public Generator {
 public:
  using A = backend::Accumulator<T>;

  DeviceGenerator(const Configuration& configuration, const GeneratorOptions& options)
      : configuration_(configuration),
        options_(options),
        layout_(configuration.model, configuration.train.decay_all),
        device_(static_cast<std::uint64_t>(configuration.seed)),
        prompt_(device_, configuration.model, layout_,
                {options.sequences, options.prompt_tokens, options.capacity, false}),
        decode_(device_, configuration.model, layout_, {options.sequences, 1, options.capacity, true}) {
    allocate();
    initialize();
    set_sampling({});
  }

  const Configuration& configuration() const override { return configuration_; }
  const GeneratorOptions& options() const override { return options_; }
  const ParameterLayout& layout() const override { return layout_; }
  const GeneratorMemory& memory() const override { return memory_; }

  void set_weights(const ParameterSlice& slice, std::span<const float> values) override {
    write<T>(decode_.step.parameters, slice, values);
  }
  void set_expert_biases(const ParameterSlice& slice, std::span<const float> values) override {
    if (!decode_.step.expert_bias) throw InternalError("the model's choice of experts has no biases");
    write<A>(*decode_.step.expert_bias, slice, values);
  }

  void set_sampling(const SamplingOptions& options) override {
    check(options);
    const kernels::SamplingSettings settings{options.temperature, options.top_p, options.top_k, options.seed};
    copy_to(decode_.step.settings, &settings, sizeof settings, "sampling settings");
  }

  void start(const std::vector<std::vector<std::int32_t>>& prompts) override {
    check_prompts(prompts);
    const auto capacity = static_cast<std::size_t>(options_.capacity);
    std::vector<std::int32_t> tokens(prompts.size() * capacity, 0), counts(prompts.size(), 0);
    std::int64_t longest = 0;
    lengths_.clear();
    for (std::size_t s = 0; s < prompts.size(); ++s) {
      std::ranges::copy(prompts[s], tokens.begin() + static_cast<std::ptrdiff_t>(s * capacity));
      lengths_.push_back(std::ssize(prompts[s]));
      longest = std::max(longest, lengths_.back());
    }
    copy_to(decode_.step.tokens, tokens.data(), tokens.size() * sizeof(std::int32_t), "prompts");
    const std::vector<graph::BufferId> cleared{decode_.step.first, decode_.step.windows, decode_.step.states};
    for (const graph::BufferId id : cleared)
      device_.stream().clear(address(id), bytes_of(id), "start of generation");
    // All but the last token, which the first step takes.
    for (std::int64_t begin = 0; begin < longest - 1; begin += options_.prompt_tokens) {
      for (std::size_t s = 0; s < prompts.size(); ++s)
        counts[s] = static_cast<std::int32_t>(
            std::clamp<std::int64_t>(lengths_[s] - 1 - begin, 0, options_.prompt_tokens));
      copy_to(decode_.step.count, counts.data(), counts.size() * sizeof(std::int32_t), "prompt lengths");
      run(prompt_);
    }
    std::ranges::fill(counts, 1);
    copy_to(decode_.step.count, counts.data(), counts.size() * sizeof(std::int32_t), "step lengths");
  }

  void step(GenerationMode mode) override {
    if (lengths_.empty())
      throw ConfigurationError("a generator needs prompts before its first step: call start()");
    if (!has_room())
      throw ConfigurationError(fmt::format(
          "a sequence has {} tokens and the caches hold no more: make the generator with a larger capacity",
          options_.capacity));
    if (mode == GenerationMode::eager) {
      run(decode_);
    } else {
      if (!recorded_) recorded_.emplace(device_.stream(), "decode", [this] { run(decode_); });
      recorded_->replay();
    }
    for (std::int64_t& length : lengths_) ++length;
  }
  bool has_room() const override {
    return !lengths_.empty() && std::ranges::max(lengths_) < options_.capacity;
  }

  std::vector<std::vector<std::int32_t>> tokens() override {
    const auto capacity = static_cast<std::size_t>(options_.capacity);
    device_.stream().copy_to_host(tokens_staging_.data(), address(decode_.step.tokens),
                                  tokens_staging_.bytes(), "generated tokens");
    device_.stream().synchronize("generated tokens");
    const auto* all = reinterpret_cast<const std::int32_t*>(tokens_staging_.data());
    std::vector<std::vector<std::int32_t>> result;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
      result.emplace_back(all + s * capacity, all + s * capacity + lengths_[s]);
    return result;
  }
  std::vector<float> logits() override {
    std::vector<float> values(bytes_of(*decode_.step.logits) / sizeof(float));
    device_.stream().copy_to_host(values.data(), address(*decode_.step.logits), values.size() * sizeof(float),
                                  "logits");
    device_.stream().synchronize("logits");
    return values;
  }
  void wait() override { device_.stream().synchronize("generation"); }
  std::size_t graph_nodes() const override { return recorded_ ? recorded_->nodes() : 0; }
  std::string device_description() const override { return backend::describe_device<Space>(); }

 private:
  /// A program with its places in memory.
  struct Planned {
    GenerationProgram<Space> step;
    graph::MemoryPlan plan;
    graph::Bindings bindings;

    Planned(backend::Device<Space>& device, const ModelConfiguration& model, const ParameterLayout& layout,
            const GenerationShape& shape)
        : step(build_generation_program<Space, T>(device, model, layout, shape)),
          plan(graph::plan_memory(step.program.outline())),
          bindings(step.program.outline()) {
      graph::audit(step.program.outline(), plan);
    }
  };

  std::size_t bytes_of(graph::BufferId id) const { return decode_.step.program.outline().buffer(id).bytes(); }
  std::byte* address(graph::BufferId id) const { return decode_.bindings.address(id); }

  void copy_to(graph::BufferId id, const void* from, std::size_t bytes, const char* label) {
    device_.stream().copy_to_device(address(id), from, bytes, label);
    device_.stream().synchronize(label);
  }

  template <class Element>
  void write(graph::BufferId id, const ParameterSlice& slice, std::span<const float> values) {
    if (std::ssize(values) != slice.elements())
      throw InternalError("'" + slice.name + "' was given in another size");
    std::vector<Element> converted;
    converted.reserve(values.size());
    for (const float value : values) converted.push_back(static_cast<Element>(value));
    device_.stream().copy_to_device(address(id) + static_cast<std::size_t>(slice.offset) * sizeof(Element),
                                    converted.data(), converted.size() * sizeof(Element), "weights");
    device_.stream().synchronize("weights");
  }

  void run(const Planned& planned) {
    for (std::size_t segment = 0; segment < planned.step.program.outline().segments().size(); ++segment)
      planned.step.program.run_segment(segment, device_, planned.bindings);
  }

  /// Deals out one allocation.
  class Places {
   public:
    std::size_t add(std::size_t bytes) {
      const std::size_t begin = end_;
      end_ += (bytes + graph::MemoryPlan::alignment - 1) / graph::MemoryPlan::alignment *
              graph::MemoryPlan::alignment;
      return begin;
    }
    std::size_t end() const { return end_; }

   private:
    std::size_t end_ = 0;
  };

  void allocate() {
    Places places;
    std::vector<std::pair<graph::BufferId, std::size_t>> of_both, of_prompt, of_decode;
    const auto add = [&](std::vector<std::pair<graph::BufferId, std::size_t>>& list, graph::BufferId id,
                         std::size_t bytes, std::size_t& use) {
      list.emplace_back(id, places.add(bytes));
      use = use + (places.end() - list.back().second);
    };
    const GenerationProgram<Space>& d = decode_.step;
    // Both programs were built alike up to here, so these buffers have the same numbers in both.
    add(of_both, d.parameters, bytes_of(d.parameters), memory_.weights);
    if (d.expert_bias) add(of_both, *d.expert_bias, bytes_of(*d.expert_bias), memory_.weights);
    const auto add_all = [&](const std::vector<graph::BufferId>& ids, std::size_t& use) {
      for (const graph::BufferId id : ids) add(of_both, id, bytes_of(id), use);
    };
    add_all({d.keys, d.values}, memory_.keys_and_values);
    add_all({d.windows, d.states}, memory_.states);
    add_all({d.rope_cosine, d.rope_sine, d.tokens, d.first, d.count, d.settings}, memory_.other);
    add(of_decode, *d.logits, bytes_of(*d.logits), memory_.other);
    const std::vector<Planned*> both{&prompt_, &decode_};
    for (const Planned* each : both)
      for (const auto id : each->step.unused)
        add(each == &prompt_ ? of_prompt : of_decode, id, each->step.program.outline().buffer(id).bytes(),
            memory_.other);
    const std::size_t arena_bytes = std::max(prompt_.plan.arena_bytes, decode_.plan.arena_bytes);
    const std::size_t arena = places.add(arena_bytes);
    memory_.activations = places.end() - arena;
    require_memory();
    allocation_ = backend::Allocation<Space>("generator", memory_.total());
    tokens_staging_ = backend::StagingAllocation<Space>("generated tokens", bytes_of(d.tokens));
    device_.stream().clear(allocation_.data(), arena, "generator");
    const auto bind = [&](Planned& planned, const auto& list) {
      for (const auto& [id, offset] : list) planned.bindings.bind(id, allocation_.data() + offset);
    };
    bind(prompt_, of_both);
    bind(prompt_, of_prompt);
    bind(decode_, of_both);
    bind(decode_, of_decode);
    for (Planned* each : both) {
      each->bindings.bind_arena(each->plan, allocation_.data() + arena);
      each->bindings.bind_parts(each->step.program.outline());
    }
  }

  void require_memory() const {
    const std::size_t free = backend::available_memory<Space>();
    const auto limit = static_cast<std::size_t>(configuration_.graph.memory_limit);
    const std::size_t allowed = limit > 0 ? std::min(limit, free) : free;
    if (memory_.total() <= allowed) return;
    throw OutOfMemoryError(fmt::format(
        "{}: generating needs {} bytes ({} of weights, {} of keys and values, {} of activations) and {} are "
        "{}: take "
        "fewer sequences or a smaller capacity",
        graph::rule_memory.id, memory_.total(), memory_.weights, memory_.keys_and_values, memory_.activations,
        allowed, limit > 0 && limit <= free ? "allowed by graph.memory_limit" : "free"));
  }

  void initialize() {
    auto& stream = device_.stream();
    const graph::Buffer& table = decode_.step.program.outline().buffer(decode_.step.rope_cosine);
    if (table.elements() > 0) {
      const auto matrix = [&](graph::BufferId id) {
        return backend::Matrix<A, Space>(reinterpret_cast<A*>(address(id)),
                                         static_cast<std::size_t>(table.shape[0]),
                                         static_cast<std::size_t>(table.shape[1]));
      };
      kernels::rope_tables<Space, A>(stream, rope_frequencies(configuration_.model),
                                     matrix(decode_.step.rope_cosine), matrix(decode_.step.rope_sine));
    }
    fill_initial_weights<Space>(stream, layout_, reinterpret_cast<T*>(address(decode_.step.parameters)),
                                static_cast<std::uint64_t>(configuration_.seed));
    stream.synchronize("weights initialised");
  }

  void check_prompts(const std::vector<std::vector<std::int32_t>>& prompts) const {
    if (std::ssize(prompts) != options_.sequences)
      throw ConfigurationError(
          fmt::format("{} prompts were given to a generator of {} sequences: give as many", prompts.size(),
                      options_.sequences));
    for (const auto& prompt : prompts) {
      if (prompt.empty())
        throw ConfigurationError("a prompt is empty: a model needs at least one token to go on from");
      if (std::ssize(prompt) >= options_.capacity)
        throw ConfigurationError(
            fmt::format("a prompt has {} tokens and the caches hold {}, which leaves no room for another: "
                        "make the generator "
                        "with a larger capacity, or shorten the prompt",
                        prompt.size(), options_.capacity));
      for (const std::int32_t token : prompt)
        if (token < 0 || token >= configuration_.model.vocab)
          throw ConfigurationError(
              fmt::format("a prompt holds token {}, and the vocabulary has {}: use the tokenizer "
                          "that the model was trained with",
                          token, configuration_.model.vocab));
    }
  }

  Configuration configuration_;
  GeneratorOptions options_;
  ParameterLayout layout_;
  mutable backend::Device<Space> device_;
  Planned prompt_, decode_;
  GeneratorMemory memory_;
  backend::Allocation<Space> allocation_;
  backend::StagingAllocation<Space> tokens_staging_;
  std::vector<std::int64_t> lengths_;  ///< of the sequences, with what is queued
  std::optional<backend::RecordedGraph<Space>> recorded_;
};

/// The generators of one backend.
template <class Space>
std::unique_ptr<Generator> make_device_generator(const Configuration& configuration,
                                                 const GeneratorOptions& options);

template <class Space>
std::unique_ptr<Generator> make_device_generator_of(const Configuration& configuration,
                                                    const GeneratorOptions& options) {
  if (configuration.train.precision == Precision::fp32)
    return std::make_unique<DeviceGenerator<Space, float>>(configuration, options);
  return std::make_unique<DeviceGenerator<Space, backend::bfloat16>>(configuration, options);
}

}  // namespace encore::model
