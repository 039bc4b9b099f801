// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/trainer.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

// Between tensors of files and the boxes that ranks have of them.

namespace encore::model {

/// What a rank has of each tensor, by the tensor's name.
using BoxesOfTensors = std::map<std::string, std::vector<ParameterBox>, std::less<>>;
BoxesOfTensors boxes_of_tensors(const std::vector<ParameterBox>& boxes);

/// Hands the bytes of a whole tensor to `take`, in order and in pieces that fit into memory anywhere, on every rank. All
/// ranks call it for the same tensors in the same order. `whole` is the tensor's box in a layout of one rank, `here` what
/// this rank has of it, which may be nothing.
void for_each_piece(Trainer& trainer, ParameterArray array, const ParameterBox& whole,
                    const std::vector<ParameterBox>& here,
                    const std::function<void(std::span<const std::byte>)>& take);

/// The bytes of a box, one element behind the other, out of its tensor in a file.
std::vector<std::byte> bytes_of(const StoredTensor& tensor, const ParameterBox& box);

}  // namespace encore::model
