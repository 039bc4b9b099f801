// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/model/trainer.hpp>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace encore::tests {

/// Tensors put together from what several ranks have of them.
class WholeTensors {
 public:
  /// Adds all that a trainer has of an array. May be called by several threads.
  void add(model::Trainer& trainer, model::ParameterArray array) {
    for (const model::ParameterBox& box : trainer.layout().boxes()) {
      const auto values = model::to_float(trainer.read(array, box), *trainer.type_of(array));
      const std::lock_guard lock(mutex_);
      auto& tensor = tensors_[box.name];
      std::int64_t elements = 1;
      for (const std::int64_t extent : box.shape) elements *= extent;
      tensor.resize(static_cast<std::size_t>(elements));
      for (std::size_t item = 0; item < values.size(); ++item) {
        std::int64_t place = box.tensor_offset;
        auto rest = static_cast<std::int64_t>(item);
        for (std::size_t i = box.extents.size(); i > 0; --i) {
          place += rest % box.extents[i - 1] * box.tensor_strides[i - 1];
          rest /= box.extents[i - 1];
        }
        tensor[static_cast<std::size_t>(place)] = values[item];
      }
    }
  }

  const std::map<std::string, std::vector<float>>& tensors() const { return tensors_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> tensors_;
};

}  // namespace encore::tests
