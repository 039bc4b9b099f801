// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "blocks.hpp"

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
                    "attention), - (MLP) and E (experts)",
                    letter));
  return found->second;
}

std::size_t blocks_of_model(const ModelConfiguration& model) {
  return static_cast<std::size_t>(model.layers) * (has_single_blocks(model) ? 1 : 2);
}

}  // namespace

char letter_of(Block block) {
  return std::ranges::find(letters, block, &std::pair<char, Block>::second)->first;
}

std::string default_pattern(const ModelConfiguration& model) {
  if (model.family == "mamba2") return "M";
  if (model.family == "nemotron_h") return model.experts > 0 ? "ME*-" : "M-*-";
  return model.experts > 0 ? "*E" : "*-";
}

std::string whole_pattern(const ModelConfiguration& model) {
  const std::string stretch = model.pattern.empty() ? default_pattern(model) : model.pattern;
  std::string whole(blocks_of_model(model), ' ');
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = stretch[i % stretch.size()];
  return whole;
}

std::string shortest_stretch(std::string_view whole) {
  // Knuth, Morris and Pratt: the longest proper beginning that is also an ending; what precedes it repeats.
  std::vector<std::size_t> border(whole.size() + 1, 0);
  std::size_t length = 0;
  for (std::size_t i = 1; i < whole.size(); ++i) {
    while (length > 0 && whole[i] != whole[length]) length = border[length];
    if (whole[i] == whole[length]) ++length;
    border[i + 1] = length;
  }
  return std::string(whole.substr(0, whole.size() - border[whole.size()]));
}

bool has_single_blocks(const ModelConfiguration& model) {
  return model.family == "mamba2" || model.family == "nemotron_h";
}

std::vector<std::vector<Block>> blocks_of_layers(const ModelConfiguration& model) {
  const std::string pattern = whole_pattern(model);
  const std::size_t blocks_of_layer = has_single_blocks(model) ? 1 : 2;
  std::vector<std::vector<Block>> layers(static_cast<std::size_t>(model.layers));
  for (std::size_t i = 0; i < pattern.size(); ++i)
    layers[i / blocks_of_layer].push_back(block_of(pattern[i]));
  return layers;
}

bool has_block(const ModelConfiguration& model, Block block) {
  const std::string stretch = model.pattern.empty() ? default_pattern(model) : model.pattern;
  return std::string_view(stretch).substr(0, blocks_of_model(model)).find(letter_of(block)) !=
         std::string_view::npos;
}

bool has_attention(const ModelConfiguration& model) {
  return has_block(model, Block::attention) || has_block(model, Block::windowed_attention);
}

}  // namespace encore::model
