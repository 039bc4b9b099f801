// SPDX-License-Identifier: Apache-2.0
#include "training_state.hpp"

#include <fmt/format.h>

#include <cstring>

namespace encore::model {

namespace {

std::string_view name_of(ParameterArray array) {
  switch (array) {
    case ParameterArray::weights: return "weights";
    case ParameterArray::gradients: return "gradients";
    case ParameterArray::first_moment: return "first moments";
    case ParameterArray::second_moment: return "second moments";
    case ParameterArray::master: return "master weights";
    case ParameterArray::expert_bias: return "biases of the choice of experts";
  }
  return "unknown";
}

std::size_t count_differences(const std::vector<std::byte>& left, const std::vector<std::byte>& right,
                              std::size_t element) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < left.size(); at += element)
    if (std::memcmp(left.data() + at, right.data() + at, element) != 0) ++count;
  return count;
}

/// Of what read_state keeps of an array, in order.
std::vector<std::string> names_in(const ParameterLayout& layout, ParameterArray array) {
  std::vector<std::string> names;
  if (array == ParameterArray::expert_bias)
    for (const ParameterSlice& slice : layout.expert_biases()) names.push_back(slice.name);
  else
    for (const ParameterBox& box : layout.boxes()) names.push_back(box.name);
  return names;
}

}  // namespace

TrainingState read_state(Trainer& trainer) {
  TrainingState state;
  state.steps_done = trainer.steps_done();
  state.positions = trainer.random_positions();
  for (const ParameterArray array : all_parameter_arrays) {
    const auto type = trainer.type_of(array);
    if (!type) continue;
    TrainingState::Array& copy = state.arrays.emplace_back(TrainingState::Array{array, *type, {}});
    if (array == ParameterArray::expert_bias)
      for (const ParameterSlice& slice : trainer.layout().expert_biases())
        copy.slices.push_back(trainer.read(array, slice));
    else
      for (const ParameterBox& box : trainer.layout().boxes())
        copy.slices.push_back(trainer.read(array, box));
  }
  return state;
}

std::string first_difference(const ParameterLayout& layout, const TrainingState& left,
                             const TrainingState& right) {
  for (std::size_t a = 0; a < left.arrays.size(); ++a) {
    const std::vector<std::string> names = names_in(layout, left.arrays[a].array);
    const std::size_t element = backend::size_of(left.arrays[a].type);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto& one = left.arrays[a].slices[i];
      const auto& other = right.arrays[a].slices[i];
      if (one != other)
        return fmt::format("{} of the {} {} of '{}' differ", count_differences(one, other, element),
                           one.size() / element, name_of(left.arrays[a].array), names[i]);
    }
  }
  if (left.positions != right.positions) return "the random positions differ";
  if (left.steps_done != right.steps_done) return "the numbers of steps differ";
  return {};
}

}  // namespace encore::model
