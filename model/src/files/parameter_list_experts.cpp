// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "parameter_list.hpp"

namespace encore::model {
namespace {

using Form = std::vector<ParameterSlice>;

/// Names of the projections of one expert in published files.
struct Projections {
  std::string gate, up, down;
};

/// Every expert's `parts` one after the other, each of shape `part`.
Form per_expert(const std::string& experts, std::int64_t count, const std::vector<std::string>& parts,
                const std::vector<std::int64_t>& part) {
  Form form;
  std::int64_t offset = 0;
  for (std::int64_t expert = 0; expert < count; ++expert)
    for (const std::string& name : parts)
      offset += form.emplace_back(ParameterSlice{experts + std::to_string(expert) + "." + name + ".weight",
                                                 part, offset})
                    .elements();
  return form;
}

/// Experts of the families whose published files have each expert apart; transformers itself, from version 5 on,
/// holds all of a layer in one tensor.
void add_separate_experts(ParameterList& list, const std::string& to, const std::string& from,
                          const std::string& fused, const Projections& names) {
  const ModelConfiguration& model = list.model;
  const std::int64_t count = model.experts, width = model.expert_ffn;
  const bool gated = is_gated(model.activation);
  Parameter up{to + "up.weight",
               {count, (gated ? 2 : 1) * width, model.hidden},
               Initialization::normal,
               model.initializer_range,
               false,
               0,
               {},
               {}};
  const std::vector<std::string> parts = gated ? std::vector{names.gate, names.up} : std::vector{names.up};
  up.slices = per_expert(from, count, parts, {width, model.hidden});
  up.other_forms = {{{fused + (gated ? "gate_up_proj" : "up_proj"), up.shape, 0}}};
  Parameter down{to + "down.weight",
                 {count, model.hidden, width},
                 Initialization::normal,
                 model.initializer_range,
                 false,
                 0,
                 {},
                 {}};
  down.slices = per_expert(from, count, {names.down}, {model.hidden, width});
  down.other_forms = {{{fused + "down_proj", down.shape, 0}}};
  using enum RankGroup;
  list.parameters.push_back(std::move(up));
  list.deal_out(0, {}, expert);
  list.deal_out(1, std::vector<std::int64_t>(gated ? 2 : 1, width), tensor);
  list.parameters.push_back(std::move(down));
  list.deal_out(0, {}, expert);
  list.deal_out(2, {}, tensor);
}

/// GPT-OSS: inputs first, and columns of gate and up in turn.
void add_interleaved_experts(ParameterList& list, const std::string& to, const std::string& from) {
  const ModelConfiguration& model = list.model;
  const std::int64_t count = model.experts, width = model.expert_ffn;
  using enum Initialization;
  const auto deal_out_columns = [&](std::size_t dimension) {
    list.deal_out(0, {}, RankGroup::expert);
    list.deal_out(dimension);
  };
  list.add(to + "up.weight", {count, model.hidden, 2 * width}, normal, model.initializer_range,
           from + "gate_up_proj");
  deal_out_columns(2);
  list.add(to + "up.bias", {count, 2 * width}, zeros, 0, from + "gate_up_proj_bias");
  deal_out_columns(1);
  list.add(to + "down.weight", {count, width, model.hidden}, normal, model.initializer_range,
           from + "down_proj");
  deal_out_columns(1);
  list.add(to + "down.bias", {count, model.hidden}, zeros, 0, from + "down_proj_bias");
  list.deal_out(0, {}, RankGroup::expert);
}

void add_shared_expert(ParameterList& list, const std::string& to, const std::string& from) {
  const ModelConfiguration& model = list.model;
  std::vector<Rows> up = {{from + "up_proj", model.shared_ffn}};
  if (is_gated(model.activation)) up.insert(up.begin(), {from + "gate_proj", model.shared_ffn});
  list.linear(to + "shared_up", model.hidden, up, false, LinearShare::outputs);
  list.linear(to + "shared_down", model.shared_ffn, {{from + "down_proj", model.hidden}}, false,
              LinearShare::inputs);
}

}  // namespace

void add_experts(ParameterList& list, const LayerNames& names, const std::string& norm) {
  const ModelConfiguration& model = list.model;
  const std::string to = names.layer + "/moe/";
  const bool mixtral = model.family == "mixtral", gpt_oss = model.family == "gpt_oss";
  const std::string& own = names.feed_forward;
  // Mixtral's published files have another name for the block than transformers 5 in memory.
  const std::string published = mixtral ? names.layer_prefix + "block_sparse_moe." : own;
  list.ones(to + "norm.weight", model.hidden, norm + "weight");
  const std::string router = gpt_oss ? "router" : "gate";
  list.linear(to + "router", model.hidden, {{published + router, model.experts}}, model.router_bias,
              LinearShare::none);
  if (mixtral) {
    Parameter& weight = list.parameters.back();
    weight.other_forms = {{{own + "gate.weight", weight.shape, 0}}};
  }
  if (model.expert_bias) {
    const auto layers_before = static_cast<std::int64_t>(list.expert_biases.size());
    list.expert_biases.push_back(
        {published + router + ".e_score_correction_bias", {model.experts}, layers_before * model.experts});
  }
  if (gpt_oss) {
    add_interleaved_experts(list, to, own + "experts.");
  } else {
    add_separate_experts(
        list, to, published + "experts.", own + "experts.",
        mixtral ? Projections{"w1", "w3", "w2"} : Projections{"gate_proj", "up_proj", "down_proj"});
  }
  if (model.shared_ffn > 0) add_shared_expert(list, to, published + "shared_experts.");
}

}  // namespace encore::model
