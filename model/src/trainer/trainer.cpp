// SPDX-License-Identifier: Apache-2.0
#include "device_trainer.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/memory_forecast.hpp>

#include <fmt/format.h>

#include <cstring>

namespace encore::model {

namespace {

DeviceError not_built(const Configuration& configuration) {
  const std::string name(name_of(configuration.backend));
  return DeviceError("this build has no " + name +
                     " backend: configure it with a Kokkos that has it, or choose "
                     "another --backend");
}

void require_groups(const Configuration& configuration, const RankGroups& groups) {
  const RankLayout layout(configuration.parallel, groups.pipeline != nullptr);
  for (int index = 0; index < rank_groups; ++index) {
    const auto group = static_cast<RankGroup>(index);
    if (!groups.of(group) && !layout.needs(group)) continue;
    const std::int64_t wanted = layout.size(group), there = groups.of(group) ? groups.of(group)->size() : 1;
    if (there == wanted) continue;
    const ParallelConfiguration& parallel = configuration.parallel;
    const std::string configured =
        group == RankGroup::data
            ? fmt::format("parallel.data = {}", wanted)
            : fmt::format(
                  "parallel.data = {}, parallel.tensor = {}, parallel.expert = {} and parallel.pipeline = "
                  "{} make groups of {} of {}",
                  parallel.data, parallel.tensor, parallel.expert, parallel.pipeline, wanted, name_of(group));
    throw ConfigurationError(fmt::format(
        "{}, but the trainer is made in a group of {} rank{}: start as many ranks as are configured",
        configured, there, there == 1 ? "" : "s"));
  }
}

}  // namespace

std::unique_ptr<Trainer> make_trainer(const Configuration& configuration, const RankGroups& groups) {
  check(configuration);
  require_groups(configuration, groups);
  require_memory_for_parameters(configuration, shard_in(configuration.parallel, groups));
  switch (configuration.backend) {
    case BackendKind::serial:
      ENCORE_IF_SERIAL(return make_device_trainer<Kokkos::Serial>(configuration, groups);) break;
    case BackendKind::openmp:
      ENCORE_IF_OPENMP(return make_device_trainer<Kokkos::OpenMP>(configuration, groups);) break;
    case BackendKind::cuda:
      ENCORE_IF_CUDA(return make_device_trainer<Kokkos::Cuda>(configuration, groups);) break;
  }
  throw not_built(configuration);
}

std::vector<float> to_float(std::span<const std::byte> bytes, backend::DataType type) {
  std::vector<float> values(bytes.size() / backend::size_of(type));
  const auto convert = [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<float>(value);
    }
  };
  switch (type) {
    case backend::DataType::float64: convert(double{}); break;
    case backend::DataType::float32: convert(float{}); break;
    case backend::DataType::bfloat16: convert(backend::bfloat16(0.0F)); break;
    default:
      throw InternalError("parameters of type " + std::string(backend::name_of(type)) + " do not exist");
  }
  return values;
}

}  // namespace encore::model
