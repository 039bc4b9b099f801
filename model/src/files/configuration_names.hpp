// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace encore::model {

/// The names of an enumeration's values, in their order.
template <class Enumeration>
inline constexpr std::array<std::string_view, 0> names_of{};
template <>
inline constexpr std::array<std::string_view, 2> names_of<Normalization> = {"layer_norm", "rms_norm"};
template <>
inline constexpr std::array<std::string_view, 5> names_of<Activation> = {"gelu", "gelu_tanh", "swiglu",
                                                                         "swiglu_clamped", "relu_squared"};
template <>
inline constexpr std::array<std::string_view, 4> names_of<Position> = {"learned", "rope_half_split",
                                                                       "rope_interleaved", "none"};
template <>
inline constexpr std::array<std::string_view, 3> names_of<RouterScore> = {"softmax", "softmax_of_largest",
                                                                          "sigmoid"};
template <>
inline constexpr std::array<std::string_view, 2> names_of<Precision> = {"fp32", "bf16"};
template <>
inline constexpr std::array<std::string_view, 3> names_of<BackendKind> = {"serial", "openmp", "cuda"};
template <>
inline constexpr std::array<std::string_view, 3> names_of<GraphImplementation> = {"none", "layer",
                                                                                  "full_iteration"};
template <>
inline constexpr std::array<std::string_view, 6> names_of<GraphModule> = {
    "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"};
template <>
inline constexpr std::array<std::string_view, 5> names_of<RecomputeModule> = {"attn", "mlp", "moe", "mamba",
                                                                              "full"};
template <>
inline constexpr std::array<std::string_view, 2> names_of<ExpertDispatch> = {"all_to_all", "all_gather"};
template <>
inline constexpr std::array<std::string_view, 3> names_of<OptimizerPlacement> = {"separate", "joined",
                                                                                 "eager"};
template <>
inline constexpr std::array<std::string_view, 2> names_of<AboveLargest> = {"eager", "refuse"};
template <>
inline constexpr std::array<std::string_view, 2> names_of<ProductTuning> = {"off", "on"};

inline constexpr std::array<std::string_view, 8> families = {"gpt2",    "llama",   "qwen3",  "qwen3_moe",
                                                             "mixtral", "gpt_oss", "mamba2", "nemotron_h"};

/// The value of that name, if there is one.
template <class Enumeration>
std::optional<Enumeration> value_of(std::string_view name) {
  for (std::size_t i = 0; i < names_of<Enumeration>.size(); ++i)
    if (names_of<Enumeration>[i] == name) return static_cast<Enumeration>(i);
  return std::nullopt;
}

}  // namespace encore::model
