// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// A Hugging Face tensor that is a stretch of rows (of dimension 0) of a parameter here.
struct ParameterSlice {
  std::string name;  ///< such as `model.layers.0.self_attn.q_proj.weight`
  std::vector<std::int64_t> shape;
  std::int64_t offset;  ///< in elements, from the start of all parameters
  std::int64_t elements() const;
};

enum class Initialization { normal, ones, zeros };

struct Parameter {
  std::string name;  ///< such as `layer.0/attn/qkv.weight`
  std::vector<std::int64_t> shape;
  Initialization initialization;
  double deviation;         ///< of the normal distribution
  bool decays;              ///< whether weight decay applies
  std::int64_t offset = 0;  ///< in elements, from the start of all parameters
  std::vector<ParameterSlice> slices;
  std::int64_t elements() const;
};

/// All parameters of a model in one array, those with weight decay first, each at a multiple of `alignment`.
/// What lies between them stays zero. Gradients, moments and master weights have the same layout.
class ParameterLayout {
 public:
  static constexpr std::int64_t alignment = 128;

  /// `decay_all`: weight decay on every parameter; otherwise not on biases and normalization weights.
  ParameterLayout(const ModelConfiguration& model, bool decay_all);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Throws InternalError for an unknown name.
  const Parameter& parameter(std::string_view name) const;
  bool contains(std::string_view name) const;
  /// All Hugging Face tensors, in order of the layers.
  std::vector<ParameterSlice> slices() const;
  /// Elements of the array, and of its first part, to which weight decay applies.
  std::int64_t elements() const { return elements_; }
  std::int64_t decayed_elements() const { return decayed_elements_; }
  /// Elements that are parameters, without what lies between them.
  std::int64_t parameter_count() const;

 private:
  void add(Parameter parameter);
  void add_gpt2(const ModelConfiguration& model);
  void add_llama(const ModelConfiguration& model);
  void place(bool decay_all);

  std::vector<Parameter> parameters_;
  std::int64_t elements_ = 0;
  std::int64_t decayed_elements_ = 0;
};

}  // namespace encore::model
