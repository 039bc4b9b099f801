// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace encore::model {

namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// A slice's rows; offsets become absolute when the parameter is placed.
struct Rows {
  std::string name;
  std::int64_t rows;
};

Parameter sliced(std::string name, std::vector<std::int64_t> shape, Initialization initialization,
                 double deviation, const std::vector<Rows>& slices) {
  Parameter parameter{std::move(name), std::move(shape), initialization, deviation, false, 0, {}};
  std::int64_t offset = 0;
  for (const Rows& rows : slices) {
    std::vector<std::int64_t> slice_shape = parameter.shape;
    slice_shape.front() = rows.rows;
    parameter.slices.push_back({rows.name, slice_shape, offset});
    offset += product(slice_shape);
  }
  if (offset != parameter.elements())
    throw InternalError("the slices of parameter '" + parameter.name + "' do not add up to it");
  return parameter;
}

Parameter whole(std::string name, std::vector<std::int64_t> shape, Initialization initialization,
                double deviation, const std::string& slice) {
  const std::int64_t rows = shape.front();
  return sliced(std::move(name), std::move(shape), initialization, deviation, {{slice, rows}});
}

}  // namespace

std::int64_t ParameterSlice::elements() const { return product(shape); }
std::int64_t Parameter::elements() const { return product(shape); }

ParameterLayout::ParameterLayout(const ModelConfiguration& model, bool decay_all) {
  if (model.family == "gpt2") {
    add_gpt2(model);
  } else if (model.family == "llama") {
    add_llama(model);
  } else {
    throw ConfigurationError("model.family '" + model.family + "' is not supported; use gpt2 or llama");
  }
  place(decay_all);
}

void ParameterLayout::add(Parameter parameter) { parameters_.push_back(std::move(parameter)); }

void ParameterLayout::add_gpt2(const ModelConfiguration& model) {
  using enum Initialization;
  const double deviation = model.initializer_range;
  // Radford et al., 2019, section 2.3: projections into the residual stream start smaller.
  const double residual_deviation = deviation / std::sqrt(2.0 * static_cast<double>(model.layers));
  const std::int64_t hidden = model.hidden;
  add(whole("embedding/tokens", {model.vocab, hidden}, normal, deviation, "transformer.wte.weight"));
  add(whole("embedding/positions", {model.seq, hidden}, normal, deviation, "transformer.wpe.weight"));
  for (std::int64_t index = 0; index < model.layers; ++index) {
    const std::string layer = "layer." + std::to_string(index);
    const std::string from = "transformer.h." + std::to_string(index) + ".";
    const auto norm = [&](const std::string& name, const std::string& slice) {
      add(whole(layer + name + ".weight", {hidden}, ones, 0, from + slice + ".weight"));
      add(whole(layer + name + ".bias", {hidden}, zeros, 0, from + slice + ".bias"));
    };
    const auto linear = [&](const std::string& name, std::int64_t inputs, std::int64_t outputs, double spread,
                            const std::string& slice) {
      add(whole(layer + name + ".weight", {inputs, outputs}, normal, spread, from + slice + ".weight"));
      add(whole(layer + name + ".bias", {outputs}, zeros, 0, from + slice + ".bias"));
    };
    norm("/attn/norm", "ln_1");
    linear("/attn/qkv", hidden, 3 * hidden, deviation, "attn.c_attn");
    linear("/attn/output", hidden, hidden, residual_deviation, "attn.c_proj");
    norm("/mlp/norm", "ln_2");
    linear("/mlp/up", hidden, model.ffn, deviation, "mlp.c_fc");
    linear("/mlp/down", model.ffn, hidden, residual_deviation, "mlp.c_proj");
  }
  add(whole("head/norm.weight", {hidden}, ones, 0, "transformer.ln_f.weight"));
  add(whole("head/norm.bias", {hidden}, zeros, 0, "transformer.ln_f.bias"));
  if (!model.tie_embeddings)
    add(whole("head/logits.weight", {model.vocab, hidden}, normal, deviation, "lm_head.weight"));
}

void ParameterLayout::add_llama(const ModelConfiguration& model) {
  using enum Initialization;
  const double deviation = model.initializer_range;
  const std::int64_t hidden = model.hidden;
  const std::int64_t query_rows = model.heads * model.head_dim;
  const std::int64_t key_rows = model.kv_heads * model.head_dim;
  add(whole("embedding/tokens", {model.vocab, hidden}, normal, deviation, "model.embed_tokens.weight"));
  for (std::int64_t index = 0; index < model.layers; ++index) {
    const std::string layer = "layer." + std::to_string(index);
    const std::string from = "model.layers." + std::to_string(index) + ".";
    const auto norm = [&](const std::string& name, const std::string& slice) {
      add(whole(layer + name + ".weight", {hidden}, ones, 0, from + slice + ".weight"));
    };
    const auto linear = [&](const std::string& name, std::int64_t inputs, const std::vector<Rows>& slices,
                            bool bias) {
      std::vector<Rows> weights, biases;
      std::int64_t outputs = 0;
      for (const Rows& slice : slices) {
        weights.push_back({from + slice.name + ".weight", slice.rows});
        biases.push_back({from + slice.name + ".bias", slice.rows});
        outputs += slice.rows;
      }
      add(sliced(layer + name + ".weight", {outputs, inputs}, normal, deviation, weights));
      if (bias) add(sliced(layer + name + ".bias", {outputs}, zeros, 0, biases));
    };
    norm("/attn/norm", "input_layernorm");
    linear("/attn/qkv", hidden,
           {{"self_attn.q_proj", query_rows}, {"self_attn.k_proj", key_rows}, {"self_attn.v_proj", key_rows}},
           model.qkv_bias);
    linear("/attn/output", query_rows, {{"self_attn.o_proj", hidden}}, model.attention_output_bias);
    norm("/mlp/norm", "post_attention_layernorm");
    linear("/mlp/up", hidden, {{"mlp.gate_proj", model.ffn}, {"mlp.up_proj", model.ffn}}, model.mlp_bias);
    linear("/mlp/down", model.ffn, {{"mlp.down_proj", hidden}}, model.mlp_bias);
  }
  add(whole("head/norm.weight", {hidden}, ones, 0, "model.norm.weight"));
  if (!model.tie_embeddings)
    add(whole("head/logits.weight", {model.vocab, hidden}, normal, deviation, "lm_head.weight"));
}

void ParameterLayout::place(bool decay_all) {
  const auto place_all = [&](bool decays) {
    for (Parameter& parameter : parameters_) {
      if (parameter.decays != decays) continue;
      parameter.offset = elements_;
      for (ParameterSlice& slice : parameter.slices) slice.offset += elements_;
      elements_ += (parameter.elements() + alignment - 1) / alignment * alignment;
    }
  };
  for (Parameter& parameter : parameters_) parameter.decays = decay_all || parameter.shape.size() > 1;
  place_all(true);
  decayed_elements_ = elements_;
  place_all(false);
}

bool ParameterLayout::contains(std::string_view name) const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [&](const Parameter& parameter) { return parameter.name == name; });
}

const Parameter& ParameterLayout::parameter(std::string_view name) const {
  for (const Parameter& parameter : parameters_)
    if (parameter.name == name) return parameter;
  throw InternalError("no parameter is called '" + std::string(name) + "'");
}

std::vector<ParameterSlice> ParameterLayout::slices() const {
  std::vector<ParameterSlice> slices;
  for (const Parameter& parameter : parameters_)
    slices.insert(slices.end(), parameter.slices.begin(), parameter.slices.end());
  return slices;
}

std::int64_t ParameterLayout::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.elements();
  return count;
}

}  // namespace encore::model
