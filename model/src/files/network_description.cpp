// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/network_description.hpp>
#include <encore/model/files/safetensors_file.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

namespace encore::model {

namespace {

constexpr std::array activations{NetworkActivation::gelu, NetworkActivation::gelu_tanh,
                                 NetworkActivation::relu_squared};

NetworkActivation activation_named(const std::string& name, const SafetensorsFile& file) {
  for (const NetworkActivation activation : activations)
    if (name_of(activation) == name) return activation;
  throw InputFileError(
      fmt::format("'{}': metadata 'encore.activation' is '{}', which is none of gelu, "
                  "gelu_tanh, relu_squared",
                  file.path().string(), name));
}

}  // namespace

std::string_view name_of(NetworkActivation activation) {
  switch (activation) {
    case NetworkActivation::gelu: return "gelu";
    case NetworkActivation::gelu_tanh: return "gelu_tanh";
    case NetworkActivation::relu_squared: return "relu_squared";
  }
  return "unknown";
}

void check(const NetworkDescription& description) {
  const auto& widths = description.widths;
  if (widths.size() < 2)
    throw ConfigurationError(
        fmt::format("a network's widths must name its features and its outputs at least, as in {{4, 64, 1}}, "
                    "and are {{{}}}",
                    fmt::join(widths, ", ")));
  constexpr std::int64_t most_columns = std::int64_t(1) << 20, most_rows = std::int64_t(1) << 31;
  for (const std::int64_t width : widths)
    if (width < 1 || width > most_columns)
      throw ConfigurationError(
          fmt::format("a network's widths must lie in [1, {}], and one is {}", most_columns, width));
  if (description.rows < 1 || description.rows > most_rows)
    throw ConfigurationError(
        fmt::format("a network's rows, the cells of its largest call, must lie in [1, {}], and are {}",
                    most_rows, description.rows));
  if (!std::isfinite(description.output_gain))
    throw ConfigurationError(
        fmt::format("a network's output_gain must be finite, and is {}", description.output_gain));
}

NetworkDescription described_in(const std::filesystem::path& path, NetworkDescription otherwise) {
  const SafetensorsFile file(path);
  otherwise.widths.clear();
  for (int layer = 0;; ++layer) {
    const std::string name = fmt::format("{}.weight", 2 * layer);
    if (!file.contains(name)) break;
    const auto& shape = file.tensor(name).shape;
    if (shape.size() != 2 || (layer > 0 && shape[1] != otherwise.widths.back()))
      throw InputFileError(fmt::format("'{}': tensor '{}' is [{}], which does not follow on the layer before",
                                       path.string(), name, fmt::join(shape, ", ")));
    if (layer == 0) otherwise.widths.push_back(shape[1]);
    otherwise.widths.push_back(shape[0]);
  }
  if (otherwise.widths.empty())
    throw InputFileError(fmt::format(
        "'{}' holds no network: it has no tensor '0.weight', as the state_dict of a torch.nn.Sequential has",
        path.string()));
  if (file.metadata().contains("encore.activation"))
    otherwise.activation = activation_named(file.metadata("encore.activation"), file);
  return otherwise;
}

}  // namespace encore::model
