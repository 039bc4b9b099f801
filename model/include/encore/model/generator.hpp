// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>
#include <encore/model/files/configuration.hpp>
#include <encore/model/files/parameter_layout.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace encore::model {

class Trainer;

/// What a generator is made for.
struct GeneratorOptions {
  std::int64_t sequences = 1;       ///< generated side by side
  std::int64_t capacity = 0;        ///< most tokens of a sequence, its prompt among them; 0: model.seq
  std::int64_t prompt_tokens = 32;  ///< of each sequence that are taken at once while prompts are read
};

/// How the next token is drawn; may be changed between tokens.
struct SamplingOptions {
  double temperature = 0;  ///< 0: always the likeliest token; else 0.01 to 100
  std::int64_t top_k = 0;  ///< only of as many of the likeliest; 0: of all
  double top_p = 1;        ///< only of the likeliest that have this probability together, above 0
  std::uint64_t seed = 1;
};
/// Throws ConfigurationError that names what is out of range.
void check(const SamplingOptions& options);

/// Bytes of the one allocation that a generator makes.
struct GeneratorMemory {
  std::size_t weights = 0;
  std::size_t keys_and_values = 0;
  std::size_t states = 0;       ///< of Mamba layers
  std::size_t activations = 0;  ///< one arena for reading prompts and for decoding
  std::size_t other = 0;        ///< rotary tables, tokens, positions, logits
  std::size_t total() const { return weights + keys_and_values + states + activations + other; }
};

enum class GenerationMode { eager, replay };

/// A model that writes: weights, and for every sequence the keys, values and states of what it has read. A step decodes
/// one token of each sequence; it has one static shape and reads everything that changes from device memory, so it is
/// recorded once and replayed for every token, the draw included. The same prompts, seed and options give the same
/// tokens in both modes. Owns all its memory, allocated once. Used by one thread at a time.
class Generator {
 public:
  virtual ~Generator() = default;

  virtual const Configuration& configuration() const = 0;
  virtual const GeneratorOptions& options() const = 0;
  virtual const ParameterLayout& layout() const = 0;
  virtual const GeneratorMemory& memory() const = 0;

  /// Weights are those of the configuration's seed until they are set. Rounds to the weights' type.
  virtual void set_weights(const ParameterSlice& slice, std::span<const float> values) = 0;
  /// A stretch of the experts' biases (ParameterLayout::expert_biases()).
  virtual void set_expert_biases(const ParameterSlice& slice, std::span<const float> values) = 0;

  /// For the steps to come. Throws as check() does.
  virtual void set_sampling(const SamplingOptions& options) = 0;

  /// Forgets all and reads these prompts, one of at least one token for each sequence, of any lengths. Throws
  /// ConfigurationError for another number of prompts, an empty one, one that leaves no room, or a token outside the
  /// vocabulary.
  virtual void start(const std::vector<std::vector<std::int32_t>>& prompts) = 0;

  /// Queues the next token of every sequence, and does not wait. The first replay records. Throws ConfigurationError
  /// when a sequence is as long as the caches, and before start().
  virtual void step(GenerationMode mode) = 0;
  /// Whether there is room for another token of every sequence.
  virtual bool has_room() const = 0;

  /// Prompt and generated tokens of each sequence; waits for the device.
  virtual std::vector<std::vector<std::int32_t>> tokens() = 0;
  /// [sequences, vocab] of the last step; waits for the device.
  virtual std::vector<float> logits() = 0;
  /// Waits for the device.
  virtual void wait() = 0;

  /// Nodes (CUDA) or kernels (hosts) of the recorded step; 0 before there is one.
  virtual std::size_t graph_nodes() const = 0;
  virtual std::string device_description() const = 0;
};

/// Makes the generator for the configuration's backend and precision. Kokkos must be initialised. Throws
/// ConfigurationError, DeviceError when this build lacks the backend, and OutOfMemoryError, before allocating anything,
/// when what it needs does not fit into what is free or into graph.memory_limit.
std::unique_ptr<Generator> make_generator(const Configuration& configuration,
                                          const GeneratorOptions& options);

/// Sets all weights from a checkpoint or Hugging Face file. Throws as load_checkpoint does.
void load_weights(const std::filesystem::path& file, Generator& generator);
/// Sets all weights to what a trainer of the same model has.
void copy_weights(Trainer& from, Generator& to);

/// What generate() is asked for.
struct GenerationRequest {
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t tokens = 64;                   ///< most that are generated of each sequence
  std::vector<std::int32_t> end_tokens = {};  ///< one of these ends its sequence, and is its last token
  std::int64_t read_every = 16;               ///< steps between two looks at the tokens
  GenerationMode mode = GenerationMode::replay;
  /// Called after each look with the new tokens of each sequence.
  std::function<void(const std::vector<std::vector<std::int32_t>>&)> progress = {};
};

struct GenerationResult {
  std::vector<std::vector<std::int32_t>> tokens;  ///< generated ones of each sequence, without the prompt
  std::int64_t steps = 0;
  double prompt_seconds = 0;
  double first_seconds = 0;   ///< of the first step, with its recording
  double decode_seconds = 0;  ///< of all others
  /// Of all sequences together, without the first step.
  double tokens_per_second() const;
};

/// Reads the prompts and generates until every sequence has its tokens or its end. Throws ConfigurationError, before
/// anything runs, when a prompt and the tokens do not fit into the generator's capacity.
GenerationResult generate(Generator& generator, const GenerationRequest& request);

}  // namespace encore::model
