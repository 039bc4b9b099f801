// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

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

}  // namespace

std::int64_t ParameterSlice::elements() const { return product(shape); }
std::int64_t Parameter::elements() const { return product(shape); }

ParameterLayout::ParameterLayout(const ModelConfiguration& model, bool decay_all) {
  ParameterList list(model);
  if (model.family == "gpt2") {
    add_gpt2(list);
  } else if (has_single_blocks(model)) {
    add_single_blocks(list);
  } else {
    add_decoder_layers(list);
  }
  parameters_ = std::move(list.parameters);
  expert_biases_ = std::move(list.expert_biases);
  place(decay_all);
}

void ParameterLayout::place(bool decay_all) {
  const auto place_all = [&](bool decays) {
    for (Parameter& parameter : parameters_) {
      if (parameter.decays != decays) continue;
      parameter.offset = elements_;
      for (ParameterSlice& slice : parameter.slices) slice.offset += elements_;
      for (auto& form : parameter.other_forms)
        for (ParameterSlice& slice : form) slice.offset += elements_;
      elements_ += (parameter.elements() + alignment - 1) / alignment * alignment;
    }
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].decays = decay_all || is_matrix(parameters_[i]);
    index_.emplace(parameters_[i].name, i);
  }
  place_all(true);
  decayed_elements_ = elements_;
  place_all(false);
}

bool ParameterLayout::contains(std::string_view name) const { return index_.find(name) != index_.end(); }

const Parameter& ParameterLayout::parameter(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw InternalError("no parameter is called '" + std::string(name) + "'");
  return parameters_[found->second];
}

std::vector<ParameterSlice> ParameterLayout::slices() const {
  std::vector<ParameterSlice> slices;
  for (const Parameter& parameter : parameters_)
    slices.insert(slices.end(), parameter.slices.begin(), parameter.slices.end());
  return slices;
}

std::vector<ParameterSlice> ParameterLayout::slices_in(
    const std::function<bool(const std::string& name)>& has) const {
  const auto has_all = [&has](const std::vector<ParameterSlice>& form) {
    return std::ranges::all_of(form, [&has](const ParameterSlice& slice) { return has(slice.name); });
  };
  std::vector<ParameterSlice> slices;
  for (const Parameter& parameter : parameters_) {
    const std::vector<ParameterSlice>* form = &parameter.slices;
    if (!parameter.other_forms.empty() && !has_all(*form)) {
      const auto other = std::ranges::find_if(parameter.other_forms, has_all);
      if (other != parameter.other_forms.end()) form = &*other;
    }
    slices.insert(slices.end(), form->begin(), form->end());
  }
  return slices;
}

std::int64_t ParameterLayout::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters_) count += parameter.elements();
  return count;
}

}  // namespace encore::model
