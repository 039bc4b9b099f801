// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/checkpoint.hpp>
#include <encore/model/files/huggingface_configuration.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/files/safetensors_files.hpp>
#include <encore/model/files/safetensors_writer.hpp>
#include <encore/model/files/sharded_safetensors_writer.hpp>
#include <encore/model/generator.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

namespace encore::model {

namespace {

constexpr std::string_view step_key = "encore.steps_done";
constexpr std::string_view random_key = "encore.random_positions";

struct StoredArray {
  ParameterArray array;
  std::string_view prefix;
};
constexpr std::array<StoredArray, 4> stored_arrays{{{ParameterArray::weights, ""},
                                                    {ParameterArray::first_moment, "first_moment."},
                                                    {ParameterArray::second_moment, "second_moment."},
                                                    {ParameterArray::master, "master."}}};

StoredType stored_type_of(backend::DataType type) {
  switch (type) {
    case backend::DataType::float64: return StoredType::f64;
    case backend::DataType::float32: return StoredType::f32;
    case backend::DataType::bfloat16: return StoredType::bf16;
    default:
      throw InternalError("parameters of type " + std::string(backend::name_of(type)) + " do not exist");
  }
}

std::string text_of(const std::vector<RandomPosition>& positions) {
  std::vector<std::string> parts;
  for (const RandomPosition& position : positions)
    parts.push_back(fmt::format("{}:{}", position.seed, position.offset));
  return fmt::format("{}", fmt::join(parts, ","));
}

std::uint64_t number_of(std::string_view text, const SafetensorsFiles& file, std::string_view key) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw InputFileError(fmt::format("'{}': metadata '{}' holds '{}' where a number should be",
                                     file.path().string(), key, text));
  return number;
}

std::vector<RandomPosition> positions_of(const SafetensorsFiles& file) {
  std::vector<RandomPosition> positions;
  std::istringstream text(file.metadata(random_key));
  for (std::string part; std::getline(text, part, ',');) {
    const std::size_t colon = part.find(':');
    if (colon == std::string::npos)
      throw InputFileError(fmt::format("'{}': metadata '{}' holds '{}' where seed:offset should be",
                                       file.path().string(), random_key, part));
    positions.push_back({number_of(std::string_view(part).substr(0, colon), file, random_key),
                         number_of(std::string_view(part).substr(colon + 1), file, random_key)});
  }
  return positions;
}

/// Under which name the file has a weight: published GPT-2 files leave the prefix `transformer.` out.
std::string name_in(const SafetensorsFiles& file, const std::string& name) {
  constexpr std::string_view prefix = "transformer.";
  if (!file.contains(name) && name.starts_with(prefix) && file.contains(name.substr(prefix.size())))
    return name.substr(prefix.size());
  return name;
}

/// Buffers that some published files carry beside the weights, and a tied head's second name.
bool is_derived(const std::string& name, const ModelConfiguration& model) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") || (model.tie_embeddings && name == "lm_head.weight");
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const StoredTensor& tensor_of(const SafetensorsFiles& file, const std::string& name,
                              const std::vector<std::int64_t>& shape) {
  const StoredTensor& tensor = file.tensor(name);
  if (tensor.shape != shape)
    throw InputFileError(fmt::format("'{}': tensor '{}' is {} and the model needs {}", file.path().string(),
                                     name, shape_text(tensor.shape), shape_text(shape)));
  return tensor;
}

/// The biases of the choice of experts stand in a file beside the weights, in whatever type.
void load_expert_biases(const SafetensorsFiles& file, Trainer& trainer) {
  const auto type = trainer.type_of(ParameterArray::expert_bias);
  for (const ParameterSlice& slice : trainer.layout().expert_biases()) {
    const std::vector<float> values = file.float32(slice.name);
    std::vector<std::byte> bytes(values.size() * backend::size_of(*type));
    if (*type == backend::DataType::float64) {
      const std::vector<double> wide(values.begin(), values.end());
      std::memcpy(bytes.data(), wide.data(), bytes.size());
    } else {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    trainer.write(ParameterArray::expert_bias, slice, bytes);
  }
}

void refuse_strangers(const SafetensorsFiles& file, const std::set<std::string>& known,
                      const ModelConfiguration& model) {
  for (const std::string& name : file.names())
    if (!known.contains(name) && !is_derived(name, model))
      throw InputFileError(fmt::format("'{}': tensor '{}' does not belong to a {} model of {} layers",
                                       file.path().string(), name, model.family, model.layers));
}

}  // namespace

ModelConfiguration read_model_configuration(const std::filesystem::path& path) {
  const SafetensorsFiles file(path);
  if (const auto found = file.metadata().find("config"); found != file.metadata().end())
    return read_huggingface_configuration(found->second, file.path().string() + " (metadata 'config')");
  const std::filesystem::path beside = file.path().parent_path() / "config.json";
  std::ifstream stream(beside);
  if (!stream)
    throw InputFileError(
        fmt::format("'{}' has no metadata 'config' and there is no '{}': one of them must tell the "
                    "model",
                    file.path().string(), beside.string()));
  std::ostringstream text;
  text << stream.rdbuf();
  return read_huggingface_configuration(text.str(), beside.string());
}

namespace {

template <class Writer>
void write_checkpoint(Writer& writer, Trainer& trainer) {
  writer.add_metadata("format", "pt");
  writer.add_metadata("config", write_huggingface_configuration(trainer.configuration().model,
                                                                trainer.configuration().train.precision));
  writer.add_metadata(std::string(step_key), std::to_string(trainer.steps_done()));
  writer.add_metadata(std::string(random_key), text_of(trainer.random_positions()));
  const std::vector<ParameterSlice> slices = trainer.layout().slices();
  for (const StoredArray& stored : stored_arrays)
    if (const auto type = trainer.type_of(stored.array))
      for (const ParameterSlice& slice : slices)
        writer.add(std::string(stored.prefix) + slice.name, stored_type_of(*type), slice.shape);
  const std::vector<ParameterSlice>& biases = trainer.layout().expert_biases();
  for (const ParameterSlice& slice : biases)
    writer.add(slice.name, stored_type_of(*trainer.type_of(ParameterArray::expert_bias)), slice.shape);
  for (const StoredArray& stored : stored_arrays)
    if (trainer.type_of(stored.array))
      for (const ParameterSlice& slice : slices)
        writer.write(std::string(stored.prefix) + slice.name, trainer.read(stored.array, slice));
  for (const ParameterSlice& slice : biases)
    writer.write(slice.name, trainer.read(ParameterArray::expert_bias, slice));
  writer.commit();
}

constexpr std::string_view configuration_name = "config.json";

bool is_folder(const std::filesystem::path& path, std::uint64_t shard_bytes) {
  std::error_code ignored;
  return shard_bytes > 0 || !path.has_filename() || std::filesystem::is_directory(path, ignored);
}

/// Whether the folder has a config.json; throws OutputFileError if it is that of another model.
bool has_configuration(const std::filesystem::path& folder, const ModelConfiguration& model) {
  const std::filesystem::path file = folder / configuration_name;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return false;
  constexpr std::size_t most_bytes = std::size_t{1} << 24;
  if (read_huggingface_configuration(read_text_file(file, most_bytes), file.string()) != model)
    throw OutputFileError(
        fmt::format("cannot write a checkpoint into '{}': its {} is that of another model; name "
                    "another folder",
                    folder.string(), configuration_name));
  return true;
}

void require_no_index(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / weights_index_name, ignored))
    throw OutputFileError(
        fmt::format("cannot write {} into '{}': it holds a {} too; give a size of shards, "
                    "or name another folder",
                    whole_weights_name, folder.string(), weights_index_name));
}

}  // namespace

void require_savable(const std::filesystem::path& path, const ModelConfiguration& model,
                     std::uint64_t shard_bytes) {
  if (!is_folder(path, shard_bytes)) {
    const AtomicFile probe(path);
    return;
  }
  std::error_code error;
  std::filesystem::create_directory(path.has_filename() ? path : path.parent_path(), error);
  if (error || !std::filesystem::is_directory(path, error))
    throw OutputFileError(fmt::format("cannot write a checkpoint into '{}': {}", path.string(),
                                      error ? error.message() : "it is no folder"));
  has_configuration(path, model);
  if (shard_bytes > 0) {
    const ShardedSafetensorsWriter probe(path, 0, 1);
  } else {
    require_no_index(path);
    const AtomicFile probe(path / whole_weights_name);
  }
}

void save_checkpoint(const std::filesystem::path& path, Trainer& trainer, std::uint64_t shard_bytes) {
  const Configuration& configuration = trainer.configuration();
  if (!is_folder(path, shard_bytes)) {
    SafetensorsWriter writer(path);
    return write_checkpoint(writer, trainer);
  }
  require_savable(path, configuration.model, shard_bytes);
  if (!has_configuration(path, configuration.model))
    write_file_atomically(path / configuration_name, write_huggingface_configuration(
                                                         configuration.model, configuration.train.precision));
  if (shard_bytes > 0) {
    ShardedSafetensorsWriter writer(path, trainer.steps_done(), shard_bytes);
    return write_checkpoint(writer, trainer);
  }
  SafetensorsWriter writer(path / whole_weights_name);
  write_checkpoint(writer, trainer);
}

LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, Trainer& trainer) {
  const SafetensorsFiles file(path);
  const ModelConfiguration& model = trainer.configuration().model;
  const bool resumes = file.metadata().contains(step_key);
  const std::vector<ParameterSlice> slices = trainer.layout().slices_in(
      [&file](const std::string& name) { return file.contains(name_in(file, name)); });

  // Everything is looked at before anything is changed.
  std::set<std::string> known;
  for (const ParameterSlice& slice : slices) {
    const std::string name = name_in(file, slice.name);
    known.insert(name);
    tensor_of(file, name, slice.shape);
    for (const StoredArray& stored : stored_arrays) {
      const std::string state = std::string(stored.prefix) + slice.name;
      known.insert(state);
      const auto type = trainer.type_of(stored.array);
      if (!resumes || !type || stored.array == ParameterArray::weights) continue;
      if (const StoredTensor& tensor = tensor_of(file, state, slice.shape);
          tensor.type != stored_type_of(*type))
        throw InputFileError(
            fmt::format("'{}': tensor '{}' is {} and this configuration keeps it as {}: set "
                        "train.optimizer_state and train.master_weights as in the run that wrote it",
                        file.path().string(), state, name_of(tensor.type), name_of(stored_type_of(*type))));
    }
  }
  for (const ParameterSlice& slice : trainer.layout().expert_biases()) {
    known.insert(slice.name);
    tensor_of(file, slice.name, slice.shape);
  }
  refuse_strangers(file, known, model);
  LoadedCheckpoint loaded;
  std::vector<RandomPosition> positions;
  if (resumes) {
    loaded = {static_cast<std::int64_t>(number_of(file.metadata(step_key), file, step_key)), true};
    positions = positions_of(file);
  }

  for (const ParameterSlice& slice : slices) {
    trainer.set_weights(slice, file.float32(name_in(file, slice.name)));
    if (!resumes) continue;
    for (const StoredArray& stored : stored_arrays)
      if (stored.array != ParameterArray::weights && trainer.type_of(stored.array))
        trainer.write(stored.array, slice, file.tensor(std::string(stored.prefix) + slice.name).bytes);
  }
  load_expert_biases(file, trainer);
  if (resumes) trainer.restore(loaded.steps_done, positions);
  return loaded;
}

void load_weights(const std::filesystem::path& path, Generator& generator) {
  const SafetensorsFiles file(path);
  const std::vector<ParameterSlice> slices = generator.layout().slices_in(
      [&file](const std::string& name) { return file.contains(name_in(file, name)); });
  const std::vector<ParameterSlice>& biases = generator.layout().expert_biases();
  std::set<std::string> known;
  for (const ParameterSlice& slice : slices) {
    tensor_of(file, name_in(file, slice.name), slice.shape);
    known.insert(name_in(file, slice.name));
    for (const StoredArray& stored : stored_arrays) known.insert(std::string(stored.prefix) + slice.name);
  }
  for (const ParameterSlice& slice : biases) {
    tensor_of(file, slice.name, slice.shape);
    known.insert(slice.name);
  }
  refuse_strangers(file, known, generator.configuration().model);
  for (const ParameterSlice& slice : slices)
    generator.set_weights(slice, file.float32(name_in(file, slice.name)));
  for (const ParameterSlice& slice : biases) generator.set_expert_biases(slice, file.float32(slice.name));
}

}  // namespace encore::model
