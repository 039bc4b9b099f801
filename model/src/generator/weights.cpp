// SPDX-License-Identifier: Apache-2.0
#include <encore/model/checkpoint.hpp>
#include <encore/model/generator.hpp>
#include <encore/model/trainer.hpp>

namespace encore::model {

void copy_weights(Trainer& from, Generator& to) {
  for (const ParameterArray array : {ParameterArray::weights, ParameterArray::expert_bias}) {
    const auto type = from.type_of(array);
    if (!type) continue;
    for (const ParameterSlice& slice : slices_of(from.layout(), array)) {
      const std::vector<float> values = to_float(from.read(array, slice), *type);
      if (array == ParameterArray::weights)
        to.set_weights(slice, values);
      else
        to.set_expert_biases(slice, values);
    }
  }
}

}  // namespace encore::model
