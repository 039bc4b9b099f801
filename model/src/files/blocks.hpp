// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/configuration.hpp>

#include <string>
#include <string_view>

namespace encore::model {

inline constexpr std::string_view block_letters = "M*~-E";

char letter_of(Block block);

/// What `model.pattern` is where nothing sets it.
std::string default_pattern(const ModelConfiguration& model);

/// A letter for every block of the model.
std::string whole_pattern(const ModelConfiguration& model);

/// The shortest beginning of which the whole consists, its last repetition perhaps cut.
std::string shortest_stretch(std::string_view whole);

}  // namespace encore::model
