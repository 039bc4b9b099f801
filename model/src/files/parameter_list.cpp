// SPDX-License-Identifier: Apache-2.0
#include "parameter_list.hpp"

#include <encore/backend/error.hpp>

#include <utility>

namespace encore::model {

Parameter& ParameterList::add(std::string name, std::vector<std::int64_t> shape,
                              Initialization initialization, double deviation,
                              const std::vector<Rows>& slices) {
  Parameter parameter{std::move(name), std::move(shape), initialization, deviation, false, 0, {}, {}};
  std::int64_t offset = 0;
  for (const Rows& rows : slices) {
    std::vector<std::int64_t> slice_shape = parameter.shape;
    slice_shape.front() = rows.rows;
    offset += parameter.slices.emplace_back(ParameterSlice{rows.name, slice_shape, offset}).elements();
  }
  if (offset != parameter.elements())
    throw InternalError("the slices of parameter '" + parameter.name + "' do not add up to it");
  return parameters.emplace_back(std::move(parameter));
}

Parameter& ParameterList::add(std::string name, std::vector<std::int64_t> shape,
                              Initialization initialization, double deviation, const std::string& slice) {
  const std::int64_t rows = shape.front();
  return add(std::move(name), std::move(shape), initialization, deviation, std::vector<Rows>{{slice, rows}});
}

Parameter& ParameterList::ones(const std::string& name, std::int64_t size, const std::string& slice) {
  return add(name, {size}, Initialization::ones, 0, slice);
}

Parameter& ParameterList::zeros(const std::string& name, std::int64_t size, const std::string& slice) {
  return add(name, {size}, Initialization::zeros, 0, slice);
}

void ParameterList::linear(const std::string& name, std::int64_t inputs, const std::vector<Rows>& slices,
                           bool bias, LinearShare share) {
  std::vector<Rows> weights, biases;
  std::vector<std::int64_t> sections;
  std::int64_t outputs = 0;
  for (const Rows& slice : slices) {
    weights.push_back({slice.name + ".weight", slice.rows});
    biases.push_back({slice.name + ".bias", slice.rows});
    sections.push_back(slice.rows);
    outputs += slice.rows;
  }
  add(name + ".weight", {outputs, inputs}, Initialization::normal, model.initializer_range, weights);
  if (share == LinearShare::outputs) deal_out(0, sections);
  if (share == LinearShare::inputs) deal_out(1);
  if (!bias) return;
  add(name + ".bias", {outputs}, Initialization::zeros, 0, biases);
  if (share == LinearShare::outputs) deal_out(0, sections);
}

void ParameterList::deal_out(std::size_t dimension, std::vector<std::int64_t> sections, RankGroup group) {
  Parameter& parameter = parameters.back();
  if (sections.empty()) sections.push_back(parameter.shape.at(dimension));
  parameter.partitions.push_back({group, dimension, std::move(sections)});
}

}  // namespace encore::model
