// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace encore::model {

/// Rows (of dimension 0) of a parameter that are a tensor of their own in Hugging Face's files.
struct Rows {
  std::string name;
  std::int64_t rows;
};

/// How tensor ranks share a linear layer.
enum class LinearShare {
  none,     ///< each has all of it
  outputs,  ///< each has some outputs of every tensor: its results are parts
  inputs    ///< each has the weights of some inputs: its results are terms of a sum
};

/// The parameters of a model as they are listed, in the order of its layers; offsets count from the start of each.
struct ParameterList {
  explicit ParameterList(const ModelConfiguration& of) : model(of) {}

  Parameter& add(std::string name, std::vector<std::int64_t> shape, Initialization initialization,
                 double deviation, const std::vector<Rows>& slices);
  /// A parameter that is one tensor.
  Parameter& add(std::string name, std::vector<std::int64_t> shape, Initialization initialization,
                 double deviation, const std::string& slice);
  /// A vector of ones, or one of zeros.
  Parameter& ones(const std::string& name, std::int64_t size, const std::string& slice);
  Parameter& zeros(const std::string& name, std::int64_t size, const std::string& slice);
  /// `name.weight` [outputs, inputs] and, if there is one, `name.bias` [outputs]; the outputs are those of the
  /// tensors `slices`, one after the other.
  void linear(const std::string& name, std::int64_t inputs, const std::vector<Rows>& slices, bool bias,
              LinearShare share);
  /// Deals a dimension of the parameter that was added last out to tensor ranks; without sections as a whole.
  void deal_out(std::size_t dimension, std::vector<std::int64_t> sections = {},
                RankGroup group = RankGroup::tensor);

  const ModelConfiguration& model;
  std::vector<Parameter> parameters;
  std::vector<ParameterSlice> expert_biases;
};

/// How Hugging Face names what belongs to one layer: up to the dot before `weight` for normalizations, and to
/// the one before `q_proj` and so on for blocks.
struct LayerNames {
  std::string layer;         ///< ours: `layer.3`
  std::string layer_prefix;  ///< `model.layers.3.`
  std::string first_norm;
  std::string second_norm;  ///< of the second block
  std::string attention;
  std::string feed_forward;
  std::string mamba;
};

void add_attention(ParameterList& list, const LayerNames& names);
void add_mlp(ParameterList& list, const LayerNames& names, const std::string& norm);
void add_experts(ParameterList& list, const LayerNames& names, const std::string& norm);
void add_mamba(ParameterList& list, const LayerNames& names);

/// The whole model, by families: gpt2; layers of attention and then an MLP or experts; layers of one block.
void add_gpt2(ParameterList& list);
void add_decoder_layers(ParameterList& list);
void add_single_blocks(ParameterList& list);

}  // namespace encore::model
