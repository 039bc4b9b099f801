// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "parameter_boxes.hpp"
#include "parameter_list.hpp"

namespace encore::model {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// [experts, .] of biases has two dimensions too.
bool is_matrix(const Parameter& parameter) {
  return parameter.shape.size() > 1 && !parameter.name.ends_with(".bias");
}

/// Whether a rank's part has some of the parameter. A tied head needs the embedding's table too.
bool is_here(const std::string& name, const ModelConfiguration& model, const ModelShard& shard) {
  constexpr std::string_view layer = "layer.";
  if (name.starts_with("head/")) return shard.has_head();
  if (!name.starts_with(layer))
    return shard.has_embedding() || (model.tie_embeddings && name == "embedding/tokens" && shard.has_head());
  return shard.has_layer(std::stoll(name.substr(layer.size())), model.layers);
}

}  // namespace

std::int64_t ParameterSlice::elements() const { return product(shape); }
std::int64_t ParameterBox::elements() const { return product(extents); }
std::int64_t Parameter::elements() const { return product(shape); }
std::int64_t Parameter::whole_elements() const { return product(whole_shape); }

ParameterLayout::ParameterLayout(const ModelConfiguration& model, bool decay_all, const ModelShard& shard)
    : shard_(shard) {
  ParameterList list(model);
  if (model.family == "gpt2") {
    add_gpt2(list);
  } else if (has_single_blocks(model)) {
    add_single_blocks(list);
  } else {
    add_decoder_layers(list);
  }
  std::uint32_t draw = 0;
  for (Parameter& parameter : list.parameters) {
    parameter.draw = draw++;
    parameter.whole_shape = parameter.shape;
    if (is_here(parameter.name, model, shard)) parameters_.push_back(std::move(parameter));
  }
  expert_biases_ = std::move(list.expert_biases);
  take_shares();
  place(decay_all);
}

void ParameterLayout::take_shares() {
  for (Parameter& parameter : parameters_)
    for (const Partition& partition : parameter.partitions) {
      std::int64_t own = 0;
      for (const std::int64_t section : partition.sections)
        own += share_in(shard_, partition, section).size();
      parameter.shape.at(partition.dimension) = own;
    }
}

bool ParameterLayout::tensor_parts(const Parameter& parameter) const {
  return shard_.layout.tensor() > 1 && parameter.is_dealt_out(RankGroup::tensor);
}

bool ParameterLayout::has_experts(const Parameter& parameter) const {
  return shard_.layout.expert() > 1 && parameter.is_dealt_out(RankGroup::expert);
}

void ParameterLayout::place(bool decay_all) {
  // Shares of a stretch that begins and ends with parameters then begin at 16 bytes too.
  const std::int64_t multiple = std::lcm(alignment, 8 * shard_.optimizer_ranks);
  const auto place_all = [&](bool decays, bool tensor, bool experts) {
    const std::int64_t begin = elements_;
    for (Parameter& parameter : parameters_) {
      if (parameter.decays != decays || tensor_parts(parameter) != tensor ||
          has_experts(parameter) != experts)
        continue;
      parameter.offset = elements_;
      for (ParameterSlice& slice : parameter.slices) slice.offset += elements_;
      for (auto& form : parameter.other_forms)
        for (ParameterSlice& slice : form) slice.offset += elements_;
      elements_ += (parameter.elements() + multiple - 1) / multiple * multiple;
    }
    if (elements_ == begin) return;
    const bool goes_on =
        !sections_.empty() && sections_.back().tensor_parts == tensor && sections_.back().experts == experts;
    if (goes_on)
      sections_.back().elements.end = elements_;
    else
      sections_.push_back({{begin, elements_}, tensor, experts});
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].decays = decay_all || is_matrix(parameters_[i]);
    index_.emplace(parameters_[i].name, i);
  }
  for (const bool decays : {true, false}) {
    for (const bool experts : {false, true})
      for (const bool tensor : {true, false}) place_all(decays, tensor, experts);
    if (decays) decayed_elements_ = elements_;
  }
}

bool ParameterLayout::contains(std::string_view name) const { return index_.find(name) != index_.end(); }

const Parameter& ParameterLayout::parameter(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw InternalError("no parameter is called '" + std::string(name) + "'");
  return parameters_[found->second];
}

std::vector<ParameterSlice> ParameterLayout::slices() const {
  return slices_in([](const std::string&) { return true; });
}

std::vector<const ParameterLayout::Form*> ParameterLayout::forms_in(
    const std::function<bool(const std::string& name)>& has) const {
  const auto has_all = [&has](const Form& form) {
    return std::ranges::all_of(form, [&has](const ParameterSlice& slice) { return has(slice.name); });
  };
  std::vector<const Form*> forms;
  for (const Parameter& parameter : parameters_) {
    const Form* form = &parameter.slices;
    if (!parameter.other_forms.empty() && !has_all(*form)) {
      const auto other = std::ranges::find_if(parameter.other_forms, has_all);
      if (other != parameter.other_forms.end()) form = &*other;
    }
    forms.push_back(form);
  }
  return forms;
}

std::vector<ParameterSlice> ParameterLayout::slices_in(
    const std::function<bool(const std::string& name)>& has) const {
  for (const Parameter& parameter : parameters_)
    if (!parameter.is_whole())
      throw InternalError("this rank has a part of '" + parameter.name + "', which is no slice of a tensor");
  std::vector<ParameterSlice> slices;
  for (const Form* form : forms_in(has)) slices.insert(slices.end(), form->begin(), form->end());
  return slices;
}

std::vector<ParameterBox> ParameterLayout::boxes() const {
  return boxes_in([](const std::string&) { return true; });
}

std::vector<ParameterBox> ParameterLayout::boxes_in(
    const std::function<bool(const std::string& name)>& has) const {
  std::vector<ParameterBox> boxes;
  const std::vector<const Form*> forms = forms_in(has);
  for (std::size_t i = 0; i < forms.size(); ++i) append_boxes(shard_, parameters_[i], *forms[i], boxes);
  return boxes;
}

std::vector<ParameterBox> ParameterLayout::boxes_of(const Parameter& parameter) const {
  std::vector<ParameterBox> boxes;
  append_boxes(shard_, parameter, {{parameter.name, parameter.whole_shape, parameter.offset}}, boxes);
  return boxes;
}

std::int64_t ParameterLayout::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.elements();
  return count;
}

}  // namespace encore::model
