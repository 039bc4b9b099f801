// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace encore::command {

/// A flag that sets one configuration key.
struct KeyFlag {
  std::string key;
  std::string value;
  std::string flag;  ///< as errors show it
};

/// Where the configuration comes from.
struct ConfigurationOptions {
  std::optional<std::filesystem::path> file;
  std::optional<std::string> preset;
  std::optional<std::filesystem::path> load;
  std::vector<std::string> assignments;
  std::vector<KeyFlag> flags;
};

struct DataOptions {
  std::optional<std::filesystem::path> tokens;
  std::optional<std::filesystem::path> text;
  std::optional<std::filesystem::path> tokenizer;  ///< of the text; none: a token a byte
  std::optional<std::filesystem::path> lengths;    ///< of training sequences, with how often they occur
};

struct TrainOptions {
  ConfigurationOptions configuration;
  DataOptions data;
  std::optional<std::filesystem::path> log;
  std::optional<std::filesystem::path> save;
  std::uint64_t shard_bytes = 0;                ///< most of a file of the checkpoint; 0: one file
  std::optional<std::filesystem::path> report;  ///< HTML page
  std::int64_t evaluate_every = 0;              ///< steps; 0: never, or with a report ten times in all
  std::int64_t verdict_steps = 20;              ///< 0: no verdict
  int threads = 0;                              ///< 0: as OpenMP decides
  bool quiet = false;
  bool profile = false;                               ///< of the step, at the end
  std::optional<std::filesystem::path> profile_file;  ///< and as JSON
};

struct EvaluateOptions {
  ConfigurationOptions configuration;
  DataOptions data;
  std::int64_t sequences = 0;  ///< most sequences that are evaluated; 0: all
  std::optional<double> tolerance;
  int threads = 0;
  bool golden = false;
  bool json = false;
};

struct GenerateOptions {
  ConfigurationOptions configuration;
  std::optional<std::string> prompt;
  std::optional<std::filesystem::path> prompt_file;
  std::optional<std::filesystem::path> tokenizer;  ///< tokenizer.json, or its folder
  std::vector<std::int32_t> end_tokens;
  std::int64_t tokens = 256;
  std::int64_t sequences = 1;
  double temperature = 0.8;
  std::int64_t top_k = 0;
  double top_p = 1;
  int threads = 0;
  bool bytes = false;  ///< tokens are bytes, whatever the vocabulary
  bool eager = false;
  bool compare = false;  ///< generate eagerly too, and compare
  bool json = false;
};

struct InformationOptions {
  ConfigurationOptions configuration;
  int threads = 0;
  bool keys = false;
  bool markdown = false;  ///< of keys: the page of the documentation and nothing else
  bool rules = false;
  bool json = false;
};

struct PlanOptions {
  ConfigurationOptions configuration;
  std::optional<std::filesystem::path> cluster;
  std::optional<std::filesystem::path> lengths;
  std::int64_t buckets = 8;  ///< most that are proposed
  std::int64_t multiple_of = 1;
  int threads = 0;
  bool json = false;
};

struct DumpOptions {
  ConfigurationOptions configuration;
  std::vector<std::filesystem::path> difference;  ///< two files, or none
  int threads = 0;
  bool json = false;
  bool dot = false;
};

struct CompareOptions {
  ConfigurationOptions configuration;
  DataOptions data;
  std::int64_t steps = 40;  ///< of each kind
  double threshold = 2;     ///< percent
  double noise_milliseconds = 0;
  std::optional<std::filesystem::path> report;  ///< HTML page
  int threads = 0;
  bool json = false;
};

/// What a line of a profile's table is.
enum class ProfileGrouping { module, segment, label };
inline const char* name_of(ProfileGrouping grouping) {
  constexpr const char* names[]{"module", "segment", "label"};
  return names[static_cast<int>(grouping)];
}

struct ProfileCommandOptions {
  ConfigurationOptions configuration;
  DataOptions data;
  ProfileGrouping grouping = ProfileGrouping::module;
  int samples = 10;       ///< of each segment
  int step_samples = 20;  ///< of the whole step
  int warmup_steps = 2;
  int threads = 0;
  bool json = false;
};

struct ReportOptions {
  ConfigurationOptions configuration;
  std::vector<std::filesystem::path> files;
  std::optional<std::filesystem::path> output;  ///< default: the first file's name with .html
  int threads = 0;
};

struct TokenizeOptions {
  std::filesystem::path file;
  std::filesystem::path tokenizer;
  std::optional<std::filesystem::path> output;
  std::int64_t skip = 0;
  std::int64_t count = 0;  ///< 0: all; of tokens that are printed for a look, 20
  bool decode = false;
  bool plain = false;
  bool add_specials = false;
  bool json = false;
};

/// Help, version: printed as it is.
struct Text {
  std::string text;
};

using Command = std::variant<TrainOptions, EvaluateOptions, GenerateOptions, CompareOptions, PlanOptions,
                             ProfileCommandOptions, DumpOptions, TokenizeOptions, InformationOptions,
                             ReportOptions, Text>;

}  // namespace encore::command
