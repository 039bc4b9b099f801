// SPDX-License-Identifier: Apache-2.0
#include "network_memory.hpp"

#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/files/safetensors_writer.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <set>

namespace encore::model {

namespace {

constexpr std::string_view step_key = "encore.steps_done";

template <class P>
constexpr StoredType stored_type_of() {
  if constexpr (std::is_same_v<P, double>)
    return StoredType::f64;
  else if constexpr (std::is_same_v<P, float>)
    return StoredType::f32;
  else
    return StoredType::bf16;
}

/// One weight or bias, where PyTorch expects it in a Sequential of Linear layers with activations between them.
struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin, elements;
};

template <class T>
std::vector<Tensor> tensors_of(const std::vector<NetworkLayer<T>>& layers) {
  std::vector<Tensor> tensors;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const NetworkLayer<T>& layer = layers[l];
    tensors.push_back({fmt::format("{}.weight", 2 * l),
                       {layer.outputs, layer.inputs},
                       layer.weight,
                       layer.outputs * layer.inputs});
    tensors.push_back({fmt::format("{}.bias", 2 * l), {layer.outputs}, layer.bias, layer.outputs});
  }
  return tensors;
}

/// A parallel array of the parameters, on the host.
template <class P>
struct HostArray {
  std::string prefix;
  std::vector<P> values;
};

template <class P, class Space>
HostArray<P> from_device(backend::Stream<Space>& stream, const char* prefix, const P* data,
                         std::int64_t size) {
  HostArray<P> array{prefix, std::vector<P>(size)};
  stream.copy_to_host(array.values.data(), data, array.values.size() * sizeof(P), "network/save");
  stream.synchronize("network/save");
  return array;
}

template <class P>
void write(SafetensorsWriter& writer, const std::vector<Tensor>& tensors, const HostArray<P>& array) {
  for (const Tensor& tensor : tensors)
    writer.write(array.prefix + tensor.name,
                 std::as_bytes(std::span(array.values).subspan(tensor.begin, tensor.elements)));
}

/// The tensors of one array from a file, zeros between them.
template <class P>
std::vector<P> from_file(const SafetensorsFile& file, const std::string& prefix,
                         const std::vector<Tensor>& tensors, std::int64_t size) {
  std::vector<P> values(size);
  for (const Tensor& tensor : tensors) {
    const std::string name = prefix + tensor.name;
    const StoredTensor& stored = file.tensor(name);
    if (stored.shape != tensor.shape)
      throw InputFileError(fmt::format("'{}': tensor '{}' is [{}] and the network needs [{}]",
                                       file.path().string(), name, fmt::join(stored.shape, ", "),
                                       fmt::join(tensor.shape, ", ")));
    const auto convert = [&](const auto& from) {
      std::transform(from.begin(), from.end(), values.begin() + tensor.begin,
                     [](auto value) { return static_cast<P>(value); });
    };
    if constexpr (std::is_same_v<P, double>)
      convert(file.float64(name));
    else
      convert(file.float32(name));
  }
  return values;
}

double steps_in(const SafetensorsFile& file) {
  const std::string& text = file.metadata(step_key);
  std::uint64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size())
    throw InputFileError(fmt::format("'{}': metadata '{}' holds '{}' where a number should be",
                                     file.path().string(), step_key, text));
  return static_cast<double>(steps);
}

constexpr const char* optimizer_prefixes[] = {"first_moment.", "second_moment.", "master."};

void refuse_strangers(const SafetensorsFile& file, const std::vector<Tensor>& tensors) {
  std::set<std::string> known;
  for (const Tensor& tensor : tensors) {
    known.insert(tensor.name);
    for (const char* prefix : optimizer_prefixes) known.insert(prefix + tensor.name);
  }
  for (const StoredTensor& tensor : file.tensors())
    if (!known.contains(tensor.name))
      throw InputFileError(fmt::format("'{}': tensor '{}' is no part of a network of {} layers",
                                       file.path().string(), tensor.name, tensors.size() / 2));
}

}  // namespace

template <class Space, class T>
void MultilayerPerceptron<Space, T>::save(backend::Stream<Space>& stream,
                                          const std::filesystem::path& path) const {
  const State& s = *state_;
  const std::vector<Tensor> tensors = tensors_of(s.layers);
  std::vector<HostArray<Sum>> optimizer;
  if (s.description.trains) {
    optimizer.push_back(from_device(stream, "first_moment.", s.first_moment, s.size));
    optimizer.push_back(from_device(stream, "second_moment.", s.second_moment, s.size));
    if (State::has_master) optimizer.push_back(from_device(stream, "master.", s.master, s.size));
  }
  const HostArray<T> weights = from_device(stream, "", s.parameters, s.size);
  const double steps = from_device(stream, "", s.scalars + step_scalar, 1).values.front();

  SafetensorsWriter writer(path);
  writer.add_metadata("format", "pt");
  writer.add_metadata("encore.activation", std::string(name_of(s.description.activation)));
  if (s.description.trains)
    writer.add_metadata(std::string(step_key), std::to_string(static_cast<std::uint64_t>(steps)));
  for (const Tensor& tensor : tensors) {
    writer.add(tensor.name, stored_type_of<T>(), tensor.shape);
    for (const auto& array : optimizer)
      writer.add(array.prefix + tensor.name, stored_type_of<Sum>(), tensor.shape);
  }
  write(writer, tensors, weights);
  for (const auto& array : optimizer) write(writer, tensors, array);
  writer.commit();
}

template <class Space, class T>
void MultilayerPerceptron<Space, T>::load(backend::Stream<Space>& stream, const std::filesystem::path& path) {
  State& s = *state_;
  const SafetensorsFile file(path);
  const std::vector<Tensor> tensors = tensors_of(s.layers);
  refuse_strangers(file, tensors);
  const NetworkDescription stored = described_in(path, s.description);
  if (stored.widths != s.description.widths || stored.activation != s.description.activation)
    throw InputFileError(
        fmt::format("'{}' holds a network of widths {{{}}} with {}, and this one has {{{}}} with {}",
                    path.string(), fmt::join(stored.widths, ", "), name_of(stored.activation),
                    fmt::join(s.description.widths, ", "), name_of(s.description.activation)));
  const auto weights = from_file<T>(file, "", tensors, s.size);
  const auto put = [&](auto* device, const auto& values) {
    stream.copy_to_device(device, values.data(), values.size() * sizeof values.front(), "network/load");
  };
  if (s.description.trains) {
    const bool resumes = file.metadata().contains(step_key);
    const std::vector<Sum> zeros(s.size);
    const auto first = resumes ? from_file<Sum>(file, "first_moment.", tensors, s.size) : zeros;
    const auto second = resumes ? from_file<Sum>(file, "second_moment.", tensors, s.size) : zeros;
    const bool has_master = resumes && file.contains("master." + tensors.front().name);
    const auto master = from_file<Sum>(file, has_master ? "master." : "", tensors, s.size);
    const std::vector<double> steps{resumes ? steps_in(file) : 0.0};
    put(s.first_moment, first);
    put(s.second_moment, second);
    if (State::has_master) put(s.master, master);
    put(s.scalars + step_scalar, steps);
  }
  put(s.parameters, weights);
  stream.synchronize("network/load");
}

#define ENCORE_INSTANTIATE(SPACE, T)                                                                        \
  template void MultilayerPerceptron<SPACE, T>::save(backend::Stream<SPACE>&, const std::filesystem::path&) \
      const;                                                                                                \
  template void MultilayerPerceptron<SPACE, T>::load(backend::Stream<SPACE>&, const std::filesystem::path&);
ENCORE_FOR_EACH_SPACE_AND_TYPE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::model
