// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace encore::model {

/// Between the layers of a MultilayerPerceptron. gelu: x (1 + erf(x / sqrt 2)) / 2. gelu_tanh: its approximation by
/// tanh. relu_squared: max(x, 0)^2.
enum class NetworkActivation { gelu, gelu_tanh, relu_squared };

std::string_view name_of(NetworkActivation activation);

/// What a MultilayerPerceptron is made from.
struct NetworkDescription {
  std::vector<std::int64_t> widths{};  ///< features, hidden layers, outputs, as in {4, 64, 64, 1}
  std::int64_t rows = 0;               ///< cells of a call, at most
  NetworkActivation activation = NetworkActivation::gelu_tanh;
  std::uint64_t seed = 1;  ///< the initial weights depend on nothing else
  double output_gain =
      1;  ///< factor of the last layer's initial weights; with 0 the network starts as the function 0
  bool trains = true;  ///< false: no memory for gradients, moments and activations; only inference
};

/// Throws ConfigurationError, naming the number, unless a network can be made of it.
void check(const NetworkDescription& description);

/// Widths and activation of the network in a safetensors file: one that MultilayerPerceptron::save wrote, or the
/// state_dict of a torch.nn.Sequential of Linear layers with activations between them (`0.weight`, `0.bias`,
/// `2.weight`, ...), whose activation the file does not tell: then it is that of `otherwise`, as are all other members.
/// Throws InputFileError if the file holds something else.
NetworkDescription described_in(const std::filesystem::path& file, NetworkDescription otherwise = {});

}  // namespace encore::model
