// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace encore::model {

/// One tensor as the header describes it, its numbers not yet checked against anything.
struct TensorDescription {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> range;  ///< data_offsets: begin and end, relative to the data section
};

struct SafetensorsHeader {
  std::vector<TensorDescription> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
};

/// Reads the JSON of a safetensors header as a stream of events: nothing but this shape is accepted, no key
/// may occur twice in its object, and no tree of unknown depth or size is built. Throws InputFileError;
/// `file` is the file's name as errors show it.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& file);

}  // namespace encore::model
