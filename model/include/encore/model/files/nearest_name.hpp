// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace encore::model {

/// How many insertions, deletions, replacements and swaps of neighbouring characters turn `left` into `right`
/// (optimal string alignment distance; no part is edited twice).
std::size_t edit_distance(std::string_view left, std::string_view right);

/// The candidate that a person who typed `name` most likely meant, or an empty view if none is near. A dotted
/// candidate is also near if `name` is, or almost is, its last part (`lr` for `train.lr`).
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates);

/// ` (did you mean 'train.lr'?)`, or an empty string if no candidate is near: the tail of an error's
/// sentence.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace encore::model
