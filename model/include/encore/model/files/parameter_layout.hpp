// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>
#include <encore/model/files/rank_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace encore::model {

/// A Hugging Face tensor that is a stretch of a parameter here.
struct ParameterSlice {
  std::string name;  ///< such as `model.layers.0.self_attn.q_proj.weight`
  std::vector<std::int64_t> shape;
  std::int64_t offset;  ///< in elements, from the start of all parameters
  std::int64_t elements() const;
};

/// A box of a tensor of published files, and where this rank has it: element (i, j, ...) of the box is element
/// tensor_offset + i * tensor_strides[0] + j * tensor_strides[1] + ... of the tensor, counted row by row, and
/// offset + i * strides[0] + ... of this rank's parameters. The innermost strides are 1.
struct ParameterBox {
  std::string name;                 ///< of the tensor
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t tensor_offset;
  std::int64_t offset;
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> tensor_strides;
  std::vector<std::int64_t> strides;
  bool is_first = true;  ///< whether of the ranks that have the same box this is the first
  std::int64_t elements() const;
};

/// A dimension of a parameter that is dealt out to ranks: each of its sections, one behind the other, in shares.
struct Partition {
  RankGroup group;  ///< tensor or expert
  std::size_t dimension;
  std::vector<std::int64_t> sections;
};

enum class Initialization {
  normal,
  ones,
  zeros,
  uniform,                  ///< from -deviation to deviation
  log_of_rank,              ///< element i is ln(i + 1): the decay rates of Mamba's heads
  inverse_softplus_of_step  ///< softplus of it is a time step, log-uniform from 0.001 to 0.1
};

struct Parameter {
  std::string name;                 ///< such as `layer.0/attn/qkv.weight`
  std::vector<std::int64_t> shape;  ///< of what this rank has
  Initialization initialization;
  double deviation;         ///< of the normal distribution; bound of the uniform one
  bool decays = false;      ///< whether weight decay applies
  std::int64_t offset = 0;  ///< in elements, from the start of all parameters
  /// The tensors that published files hold it in, and the ones that are written: of the whole parameter, with offsets
  /// as if it were whole here too.
  std::vector<ParameterSlice> slices;
  /// Further ways of holding it that are read: other names, or all experts in one tensor.
  std::vector<std::vector<ParameterSlice>> other_forms;
  std::vector<Partition> partitions = {};
  std::vector<std::int64_t> whole_shape = {};  ///< of all ranks' parts together
  std::uint32_t draw = 0;                      ///< its number in the whole model, for initial values

  std::int64_t elements() const;
  std::int64_t whole_elements() const;
  bool is_whole() const { return shape == whole_shape; }
  bool is_dealt_out(RankGroup group) const {
    return std::ranges::any_of(partitions, [group](const Partition& of) { return of.group == group; });
  }
};

/// Neighbouring parameters that the same ranks have in the same way.
struct ParameterSection {
  Stretch elements;
  bool tensor_parts;  ///< each tensor rank has a part of its own; else all have the same
  bool experts;       ///< shared by the ranks of `expert_data`; else by those of `data`
};

/// All parameters of a model, or of a rank's part of it, in one array, those with weight decay first, each at a multiple
/// of `alignment`. What lies between them stays zero. Gradients, moments and master weights have the same layout.
///
/// Names, with `layer.N/` before those of a layer: `attn/{norm,qkv,output,query_norm,key_norm,sinks}`,
/// `mlp/{norm,up,down}`, `moe/{norm,router,up,down,shared_up,shared_down}`,
/// `mamba/{norm,in,convolution,step_bias,decay_log,skip,gate_norm,out}`.
class ParameterLayout {
 public:
  static constexpr std::int64_t alignment = 128;

  /// `decay_all`: weight decay on every parameter; otherwise on matrices alone, not on biases, normalization
  /// weights and other vectors. The model, whole whatever the shard, must be checked.
  ParameterLayout(const ModelConfiguration& model, bool decay_all, const ModelShard& shard = {});

  const ModelShard& shard() const { return shard_; }

  const std::vector<Parameter>& parameters() const { return parameters_; }
  /// Throws InternalError for an unknown name.
  const Parameter& parameter(std::string_view name) const;
  bool contains(std::string_view name) const;
  /// All Hugging Face tensors, in order of the layers. Throws InternalError where this rank has parts of some: they
  /// have boxes.
  std::vector<ParameterSlice> slices() const;
  /// The tensors in which a file holds the parameters: of each parameter's forms the first one of which
  /// `has` finds every tensor. Where it finds none, the published form stands, so that a loader names what is
  /// missing from it.
  std::vector<ParameterSlice> slices_in(const std::function<bool(const std::string& name)>& has) const;
  /// What this rank has of all tensors, or of those in which a file holds them: every element in one box.
  std::vector<ParameterBox> boxes() const;
  std::vector<ParameterBox> boxes_in(const std::function<bool(const std::string& name)>& has) const;
  /// What this rank has of a whole parameter: boxes of one tensor, as if files held it as it is.
  std::vector<ParameterBox> boxes_of(const Parameter& parameter) const;
  /// All elements, by who has them.
  const std::vector<ParameterSection>& sections() const { return sections_; }
  /// The experts' biases, which training moves without a gradient: tensors of one array of
  /// [layers with experts, experts], whose offsets count from the array's own start. Empty without such biases.
  const std::vector<ParameterSlice>& expert_biases() const { return expert_biases_; }
  /// Elements of the array, and of its first part, to which weight decay applies.
  std::int64_t elements() const { return elements_; }
  std::int64_t decayed_elements() const { return decayed_elements_; }
  /// Elements that are parameters, without what lies between them.
  std::int64_t parameter_count() const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };

  using Form = std::vector<ParameterSlice>;

  void take_shares();
  void place(bool decay_all);
  std::vector<const Form*> forms_in(const std::function<bool(const std::string& name)>& has) const;
  bool tensor_parts(const Parameter& parameter) const;
  bool has_experts(const Parameter& parameter) const;

  ModelShard shard_;
  std::vector<ParameterSection> sections_;
  std::vector<Parameter> parameters_;
  std::vector<ParameterSlice> expert_biases_;
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> index_;
  std::int64_t elements_ = 0;
  std::int64_t decayed_elements_ = 0;
};

}  // namespace encore::model
