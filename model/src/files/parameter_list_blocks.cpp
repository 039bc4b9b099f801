// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "parameter_list.hpp"

namespace encore::model {

void add_attention(ParameterList& list, const LayerNames& names) {
  const ModelConfiguration& model = list.model;
  const std::string to = names.layer + "/attn/";
  const std::string& from = names.attention;
  const std::int64_t query_rows = model.heads * model.head_dim;
  const std::int64_t key_rows = model.kv_heads * model.head_dim;
  list.ones(to + "norm.weight", model.hidden, names.first_norm + "weight");
  list.linear(to + "qkv", model.hidden,
              {{from + "q_proj", query_rows}, {from + "k_proj", key_rows}, {from + "v_proj", key_rows}},
              model.qkv_bias, LinearShare::outputs);
  list.linear(to + "output", query_rows, {{from + "o_proj", model.hidden}}, model.attention_output_bias,
              LinearShare::inputs);
  if (model.query_key_norm) {
    list.ones(to + "query_norm.weight", model.head_dim, from + "q_norm.weight");
    list.ones(to + "key_norm.weight", model.head_dim, from + "k_norm.weight");
  }
  if (!model.attention_sinks) return;
  list.add(to + "sinks", {model.heads}, Initialization::normal, model.initializer_range, from + "sinks");
  list.deal_out(0);
}

void add_mlp(ParameterList& list, const LayerNames& names, const std::string& norm) {
  const ModelConfiguration& model = list.model;
  const std::string to = names.layer + "/mlp/";
  const std::string& from = names.feed_forward;
  std::vector<Rows> up = {{from + "up_proj", model.ffn}};
  if (is_gated(model.activation)) up.insert(up.begin(), {from + "gate_proj", model.ffn});
  list.ones(to + "norm.weight", model.hidden, norm + "weight");
  list.linear(to + "up", model.hidden, up, model.mlp_bias, LinearShare::outputs);
  list.linear(to + "down", model.ffn, {{from + "down_proj", model.hidden}}, model.mlp_bias,
              LinearShare::inputs);
}

void add_mamba(ParameterList& list, const LayerNames& names) {
  const ModelConfiguration& model = list.model;
  const std::string to = names.layer + "/mamba/";
  const std::string& from = names.mamba;
  const std::int64_t inner = model.mamba_heads * model.mamba_head_dim;
  const std::int64_t channels = inner + 2 * model.mamba_groups * model.mamba_state;
  const std::int64_t width = model.mamba_convolution;
  const std::int64_t state = model.mamba_groups * model.mamba_state;
  // Heads, and the groups that some heads have in common, are dealt out: gate, x, B, C and time steps apart.
  const std::vector<std::int64_t> mixed = {inner, state, state};
  const std::vector<std::int64_t> projected = {inner, inner, state, state, model.mamba_heads};
  list.ones(to + "norm.weight", model.hidden, names.first_norm + "weight");
  list.linear(to + "in", model.hidden, {{from + "in_proj", inner + channels + model.mamba_heads}},
              model.mamba_bias, LinearShare::none);
  const std::size_t projections = model.mamba_bias ? 2 : 1;
  for (auto parameter = list.parameters.end() - static_cast<std::ptrdiff_t>(projections);
       parameter != list.parameters.end(); ++parameter)
    parameter->partitions = {{RankGroup::tensor, 0, projected}};
  // PyTorch's own bound for a convolution: one over the root of the inputs of an output.
  Parameter& convolution = list.add(to + "convolution.weight", {channels, width}, Initialization::uniform,
                                    1 / std::sqrt(static_cast<double>(width)), from + "conv1d.weight");
  convolution.slices.front().shape = {channels, 1, width};
  list.deal_out(0, mixed);
  if (model.mamba_convolution_bias) {
    list.zeros(to + "convolution.bias", channels, from + "conv1d.bias");
    list.deal_out(0, mixed);
  }
  list.add(to + "step_bias", {model.mamba_heads}, Initialization::inverse_softplus_of_step, 0,
           from + "dt_bias");
  list.deal_out(0);
  list.add(to + "decay_log", {model.mamba_heads}, Initialization::log_of_rank, 0, from + "A_log");
  list.deal_out(0);
  list.ones(to + "skip", model.mamba_heads, from + "D");
  list.deal_out(0);
  list.ones(to + "gate_norm.weight", inner, from + "norm.weight");
  list.deal_out(0);
  list.linear(to + "out", inner, {{from + "out_proj", model.hidden}}, model.mamba_bias, LinearShare::inputs);
}

}  // namespace encore::model
