// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/bfloat16.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <algorithm>
#include <cstring>

#include "trainer.hpp"

namespace encore::c {

const model::ParameterSlice& TrainerState::slice(const char* name) const {
  require_pointer(name, "name");
  const auto found = slices_.find(std::string_view(name));
  if (found != slices_.end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, slice] : slices_) names.push_back(known);
  throw UsageError("the model has no parameter '" + std::string(name) + "'" +
                   model::did_you_mean(name, names));
}

namespace {

model::ParameterArray array_of(encore_parameter_array array) {
  switch (array) {
    case ENCORE_WEIGHTS: return model::ParameterArray::weights;
    case ENCORE_GRADIENTS: return model::ParameterArray::gradients;
    case ENCORE_FIRST_MOMENT: return model::ParameterArray::first_moment;
    case ENCORE_SECOND_MOMENT: return model::ParameterArray::second_moment;
    case ENCORE_MASTER: return model::ParameterArray::master;
  }
  throw UsageError("array " + std::to_string(static_cast<int>(array)) + " is none of encore_parameter_array");
}

backend::DataType type_of(const model::Trainer& trainer, model::ParameterArray array) {
  const auto type = trainer.type_of(array);
  if (!type) throw UsageError("this trainer has no master weights: train.master_weights is off");
  return *type;
}

encore_type type_of(backend::DataType type) {
  switch (type) {
    case backend::DataType::float64: return ENCORE_FLOAT64;
    case backend::DataType::float32: return ENCORE_FLOAT32;
    case backend::DataType::bfloat16: return ENCORE_BFLOAT16;
    default: throw InternalError("parameters of a type that has no name here");
  }
}

void require_count(const model::ParameterSlice& slice, std::size_t count) {
  if (count != static_cast<std::size_t>(slice.elements()))
    throw UsageError("argument 'count' is " + std::to_string(count) + ", but '" + slice.name + "' has " +
                     std::to_string(slice.elements()) + " elements");
}

template <class T>
std::vector<std::byte> bytes_of(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::vector<std::byte> bytes_of(std::span<const float> values, backend::DataType type) {
  switch (type) {
    case backend::DataType::float64: return bytes_of<double>(values);
    case backend::DataType::bfloat16: return bytes_of<backend::bfloat16>(values);
    default: return bytes_of<float>(values);
  }
}

encore_parameter describe(const model::Trainer& trainer, model::ParameterArray array,
                          const model::ParameterSlice& slice) {
  const backend::DataType type = type_of(trainer, array);
  encore_parameter parameter{};
  parameter.name = slice.name.c_str();
  parameter.memory = trainer.address(array) + static_cast<std::size_t>(slice.offset) * backend::size_of(type);
  parameter.elements = slice.elements();
  std::ranges::fill(parameter.shape, 1);
  if (slice.shape.size() > std::size(parameter.shape))
    throw InternalError("parameter '" + slice.name + "' has more than four dimensions");
  std::ranges::copy(slice.shape, parameter.shape);
  parameter.dimensions = static_cast<std::int32_t>(slice.shape.size());
  parameter.type = type_of(type);
  return parameter;
}

}  // namespace

}  // namespace encore::c

using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;
using encore::model::Trainer;

extern "C" {

int encore_trainer_parameter_count(const encore_trainer* trainer, size_t* count) {
  return guarded([&] {
    require_pointer(count, "count");
    state_of(trainer).with_trainer([&](Trainer& model) { *count = model.layout().parameters().size(); });
  });
}

int encore_trainer_parameter_name(const encore_trainer* trainer, size_t index, const char** name) {
  return guarded([&] {
    require_pointer(name, "name");
    state_of(trainer).with_trainer([&](Trainer& model) {
      const auto& parameters = model.layout().parameters();
      if (index >= parameters.size())
        throw encore::UsageError("argument 'index' is " + std::to_string(index) + ", but there are " +
                                 std::to_string(parameters.size()) + " parameters");
      *name = parameters[index].name.c_str();
    });
  });
}

int encore_trainer_parameter(const encore_trainer* trainer, encore_parameter_array array, const char* name,
                             encore_parameter* parameter) {
  return guarded([&] {
    require_pointer(parameter, "parameter");
    if (parameter->size < sizeof(std::size_t))
      throw encore::UsageError(
          "member 'size' of the parameter is not set: set it to sizeof(encore_parameter)");
    encore::c::TrainerState& state = state_of(trainer);
    state.with_trainer([&](Trainer& model) {
      encore_parameter described = encore::c::describe(model, encore::c::array_of(array), state.slice(name));
      described.size = std::min(parameter->size, sizeof described);
      std::memcpy(parameter, &described, described.size);
    });
  });
}

int encore_trainer_read(encore_trainer* trainer, encore_parameter_array array, const char* name,
                        float* values, size_t count) {
  return guarded([&] {
    require_pointer(values, "values");
    encore::c::TrainerState& state = state_of(trainer);
    state.with_trainer([&](Trainer& model) {
      const encore::model::ParameterSlice& slice = state.slice(name);
      encore::c::require_count(slice, count);
      const auto kind = encore::c::array_of(array);
      const auto type = encore::c::type_of(model, kind);
      std::ranges::copy(encore::model::to_float(model.read(kind, slice), type), values);
    });
  });
}

int encore_trainer_write(encore_trainer* trainer, encore_parameter_array array, const char* name,
                         const float* values, size_t count) {
  return guarded([&] {
    require_pointer(values, "values");
    encore::c::TrainerState& state = state_of(trainer);
    state.with_trainer([&](Trainer& model) {
      const encore::model::ParameterSlice& slice = state.slice(name);
      encore::c::require_count(slice, count);
      const std::span<const float> numbers(values, count);
      if (array == ENCORE_WEIGHTS) return model.set_weights(slice, numbers);
      const auto kind = encore::c::array_of(array);
      model.write(kind, slice, encore::c::bytes_of(numbers, encore::c::type_of(model, kind)));
    });
  });
}

}  // extern "C"
