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

#include "whole_tensors.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
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

/// All tensors of the model, whatever this rank has of them.
ParameterLayout whole_layout(const Configuration& configuration) {
  return {configuration.model, configuration.train.decay_all};
}

std::int64_t rank_of(const Trainer& trainer) {
  const ModelShard& shard = trainer.layout().shard();
  return shard.layout.rank_at(shard.place);
}

template <class Writer>
void describe_checkpoint(Writer& writer, Trainer& trainer, const std::vector<ParameterBox>& tensors) {
  writer.add_metadata("format", "pt");
  writer.add_metadata("config", write_huggingface_configuration(trainer.configuration().model,
                                                                trainer.configuration().train.precision));
  writer.add_metadata(std::string(step_key), std::to_string(trainer.steps_done()));
  writer.add_metadata(std::string(random_key), text_of(trainer.random_positions()));
  for (const StoredArray& stored : stored_arrays)
    if (const auto type = trainer.type_of(stored.array))
      for (const ParameterBox& tensor : tensors)
        writer.add(std::string(stored.prefix) + tensor.name, stored_type_of(*type), tensor.shape);
  for (const ParameterSlice& slice : trainer.layout().expert_biases())
    writer.add(slice.name, stored_type_of(*trainer.type_of(ParameterArray::expert_bias)), slice.shape);
}

/// Puts every tensor together from what the ranks have of it and hands it to `write(name, bytes)`, in pieces.
template <class Write>
void for_each_tensor(Trainer& trainer, const std::vector<ParameterBox>& tensors, const Write& write) {
  const BoxesOfTensors here = boxes_of_tensors(trainer.layout().boxes());
  static const std::vector<ParameterBox> nothing;
  for (const StoredArray& stored : stored_arrays)
    if (trainer.type_of(stored.array))
      for (const ParameterBox& tensor : tensors) {
        const auto found = here.find(tensor.name);
        for_each_piece(trainer, stored.array, tensor, found == here.end() ? nothing : found->second,
                       [&](std::span<const std::byte> bytes) {
                         write(std::string(stored.prefix) + tensor.name, bytes);
                       });
      }
  for (const ParameterSlice& slice : trainer.layout().expert_biases())
    write(slice.name, trainer.read(ParameterArray::expert_bias, slice));
}

/// Runs `make_writer`, and writes by what it makes, on the first rank; the others help it to the tensors. Where the first
/// fails all do, and it goes on to the end with them before.
template <class MakeWriter>
void write_checkpoint(Trainer& trainer, const std::string& path, const MakeWriter& make_writer) {
  const std::vector<ParameterBox> tensors = whole_layout(trainer.configuration()).boxes();
  std::exception_ptr failure;
  decltype(make_writer()) writer;
  const auto attempt = [&](const auto& work) {
    if (rank_of(trainer) > 0 || failure) return;
    try {
      work();
    } catch (const Error&) {
      failure = std::current_exception();
      writer.reset();
    }
  };
  attempt([&] {
    writer = make_writer();
    describe_checkpoint(*writer, trainer, tensors);
  });
  for_each_tensor(trainer, tensors, [&](const std::string& name, std::span<const std::byte> bytes) {
    attempt([&] { writer->write(name, bytes); });
  });
  attempt([&] { writer->commit(); });
  const bool failed = trainer.largest_of_ranks(failure ? 1 : 0) > 0;
  if (failure) std::rethrow_exception(failure);
  if (failed)
    throw OutputFileError(
        fmt::format("rank 0 could not write the checkpoint '{}': its own error says why", path));
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
  if (!is_folder(path, shard_bytes))
    return write_checkpoint(trainer, path.string(),
                            [&] { return std::make_unique<SafetensorsWriter>(path); });
  const auto prepare_folder = [&] {
    require_savable(path, configuration.model, shard_bytes);
    if (!has_configuration(path, configuration.model))
      write_file_atomically(
          path / configuration_name,
          write_huggingface_configuration(configuration.model, configuration.train.precision));
  };
  if (shard_bytes > 0)
    return write_checkpoint(trainer, path.string(), [&] {
      prepare_folder();
      return std::make_unique<ShardedSafetensorsWriter>(path, trainer.steps_done(), shard_bytes);
    });
  write_checkpoint(trainer, path.string(), [&] {
    prepare_folder();
    return std::make_unique<SafetensorsWriter>(path / whole_weights_name);
  });
}

namespace {

/// What a file holds for a trainer, once it has been found to fit.
struct Contents {
  std::vector<ParameterBox> boxes;  ///< of this rank
  bool resumes = false;
  LoadedCheckpoint loaded;
  std::vector<RandomPosition> positions;
};

Contents contents_of(const SafetensorsFiles& file, Trainer& trainer) {
  Contents contents;
  const Configuration& configuration = trainer.configuration();
  contents.resumes = file.metadata().contains(step_key);
  const auto has = [&file](const std::string& name) { return file.contains(name_in(file, name)); };
  std::set<std::string> known;
  for (const ParameterSlice& slice : whole_layout(configuration).slices_in(has)) {
    const std::string name = name_in(file, slice.name);
    known.insert(name);
    tensor_of(file, name, slice.shape);
    for (const StoredArray& stored : stored_arrays) {
      const std::string state = std::string(stored.prefix) + slice.name;
      known.insert(state);
      const auto type = trainer.type_of(stored.array);
      if (!contents.resumes || !type || stored.array == ParameterArray::weights) continue;
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
  refuse_strangers(file, known, configuration.model);
  contents.boxes = trainer.layout().boxes_in(has);
  if (contents.resumes) {
    contents.loaded = {static_cast<std::int64_t>(number_of(file.metadata(step_key), file, step_key)), true};
    contents.positions = positions_of(file);
  }
  return contents;
}

std::vector<float> float32_of(const SafetensorsFiles& file, const std::string& name,
                              const ParameterBox& box) {
  StoredTensor part = file.tensor(name);
  const std::vector<std::byte> bytes = bytes_of(part, box);
  part.shape = box.extents;
  part.bytes = bytes;
  return model::float32_of(part, file.path());
}

}  // namespace

LoadedCheckpoint load_checkpoint(const std::filesystem::path& path, Trainer& trainer) {
  // Everything is looked at, by all ranks, before anything is changed by one.
  std::optional<SafetensorsFiles> file;
  Contents contents;
  std::exception_ptr failure;
  try {
    file.emplace(path);
    contents = contents_of(*file, trainer);
  } catch (const Error&) {
    failure = std::current_exception();
  }
  const std::int64_t failed =
      trainer.largest_of_ranks(failure ? static_cast<std::int32_t>(rank_of(trainer)) + 1 : 0);
  if (failure) std::rethrow_exception(failure);
  if (failed > 0)
    throw InputFileError(fmt::format("rank {} could not read the checkpoint '{}': its own error says why",
                                     failed - 1, path.string()));
  for (const ParameterBox& box : contents.boxes) {
    trainer.set_weights(box, float32_of(*file, name_in(*file, box.name), box));
    if (!contents.resumes) continue;
    for (const StoredArray& stored : stored_arrays)
      if (stored.array != ParameterArray::weights && trainer.type_of(stored.array))
        trainer.write(stored.array, box, bytes_of(file->tensor(std::string(stored.prefix) + box.name), box));
  }
  load_expert_biases(*file, trainer);
  if (contents.resumes) trainer.restore(contents.loaded.steps_done, contents.positions);
  return contents.loaded;
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
