// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace encore::model {
namespace {

constexpr std::array<std::pair<char, Block>, 5> letters{{{'M', Block::mamba},
                                                         {'*', Block::attention},
                                                         {'~', Block::windowed_attention},
                                                         {'-', Block::mlp},
                                                         {'E', Block::experts}}};

Block block_of(char letter) {
  const auto found = std::ranges::find(letters, letter, &std::pair<char, Block>::first);
  if (found == letters.end())
    throw ConfigurationError(
        fmt::format("model.pattern has the letter '{}': use M (Mamba), * (attention), ~ (windowed "
                    "attention), - (MLP) and "
                    "E (experts)",
                    letter));
  return found->second;
}

/// Layers of these families have one block; those of the others attention and then an MLP or experts.
bool has_single_blocks(const ModelConfiguration& model) {
  return model.family == "mamba2" || model.family == "nemotron_h";
}

std::string default_pattern(const ModelConfiguration& model) {
  if (model.family == "mamba2") return "M";
  return model.experts > 0 ? "*E" : "*-";
}

}  // namespace

std::vector<std::vector<Block>> blocks_of_layers(const ModelConfiguration& model) {
  const std::string pattern = model.pattern.empty() ? default_pattern(model) : model.pattern;
  const std::size_t blocks_of_layer = has_single_blocks(model) ? 1 : 2;
  std::vector<std::vector<Block>> layers(static_cast<std::size_t>(model.layers));
  std::size_t next = 0;
  for (std::vector<Block>& layer : layers)
    for (std::size_t i = 0; i < blocks_of_layer; ++i)
      layer.push_back(block_of(pattern[next++ % pattern.size()]));
  return layers;
}

bool has_block(const ModelConfiguration& model, Block block) {
  for (const std::vector<Block>& layer : blocks_of_layers(model))
    if (std::ranges::find(layer, block) != layer.end()) return true;
  return false;
}

}  // namespace encore::model
