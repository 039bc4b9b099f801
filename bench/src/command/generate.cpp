// SPDX-License-Identifier: Apache-2.0
#include "generate.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>
#include <encore/model/generator.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "../device/session.hpp"
#include "configure.hpp"
#include "json_output.hpp"
#include "numbers.hpp"
#include "token_text.hpp"

namespace encore::command {

namespace {

TokenText text_form(const GenerateOptions& options, std::int64_t vocabulary) {
  if (options.tokenizer) return TokenText(model::Tokenizer::load(*options.tokenizer));
  const bool bytes = options.bytes || vocabulary == 256;
  return {bytes ? TokenText::Form::bytes : TokenText::Form::numbers, vocabulary};
}

std::vector<std::int32_t> prompt_of(const GenerateOptions& options, const TokenText& form) {
  constexpr std::size_t most_bytes = std::size_t{1} << 24;
  if (!options.prompt && !options.prompt_file) return form.beginning();
  const std::string source = options.prompt_file ? "'" + options.prompt_file->string() + "'" : "--prompt";
  const std::string text =
      options.prompt_file ? model::read_text_file(*options.prompt_file, most_bytes) : *options.prompt;
  std::vector<std::int32_t> tokens = form.encode(text, source);
  if (tokens.empty())
    throw InputFileError(fmt::format("{} is empty: a model needs at least one token to go on from", source));
  return tokens;
}

std::string rate_text(const model::GenerationResult& result) {
  const std::string sequences =
      result.tokens.size() == 1 ? "" : fmt::format(" of {} texts", result.tokens.size());
  return fmt::format("{:.1f} tokens/s{}", result.tokens_per_second(), sequences);
}

/// Prints a text as it comes. Of several the first comes as it is, the others follow whole.
class Output {
 public:
  Output(Console& console, const TokenText& form, const std::vector<std::int32_t>& prompt, bool silent)
      : console_(console), form_(form), prompt_(prompt), silent_(silent) {}

  void begin() {
    if (!silent_) console_.print(form_.decode(prompt_, true));
  }
  void add(const std::vector<std::vector<std::int32_t>>& fresh) {
    if (!silent_) console_.print(form_.decode(fresh.front(), false));
  }
  void finish(const model::GenerationResult& result) {
    if (silent_) return;
    console_.print("\n");
    for (std::size_t s = 1; s < result.tokens.size(); ++s)
      console_.print(
          fmt::format("---\n{}{}\n", form_.decode(prompt_, true), form_.decode(result.tokens[s], false)));
  }

 private:
  Console& console_;
  const TokenText& form_;
  const std::vector<std::int32_t>& prompt_;
  bool silent_;
};

nlohmann::ordered_json json_of(const model::GenerationResult& result) {
  return {{"steps", result.steps},
          {"prompt_seconds", result.prompt_seconds},
          {"first_seconds", result.first_seconds},
          {"decode_seconds", result.decode_seconds},
          {"tokens_per_second", result.tokens_per_second()}};
}

}  // namespace

int generate(const GenerateOptions& options, Console& console) {
  const model::Configuration configuration = resolve(options.configuration, "bytes").configuration;
  const model::SamplingOptions sampling{options.temperature, options.top_k, options.top_p,
                                        static_cast<std::uint64_t>(configuration.seed)};
  model::check(sampling);
  const TokenText form = text_form(options, configuration.model.vocab);
  const std::vector<std::int32_t> ids = prompt_of(options, form);
  std::vector<std::int32_t> ends = form.ends();
  ends.insert(ends.end(), options.end_tokens.begin(), options.end_tokens.end());

  const DeviceSession session(options.threads);
  const auto generator = model::make_generator(
      configuration, {.sequences = options.sequences, .capacity = std::ssize(ids) + options.tokens});
  if (options.configuration.load) model::load_weights(*options.configuration.load, *generator);
  generator->set_sampling(sampling);

  const bool eager_steps = options.eager || configuration.graph.impl == model::GraphImplementation::none;
  Output output(console, form, ids, options.json);
  output.begin();
  model::GenerationRequest request{
      .prompts = {static_cast<std::size_t>(options.sequences), ids},
      .tokens = options.tokens,
      .end_tokens = ends,
      .mode = eager_steps ? model::GenerationMode::eager : model::GenerationMode::replay,
      .progress = [&](const auto& fresh) { output.add(fresh); }};
  const model::GenerationResult result = model::generate(*generator, request);
  output.finish(result);

  std::optional<model::GenerationResult> eager;
  if (options.compare && !eager_steps) {
    request.mode = model::GenerationMode::eager;
    request.progress = nullptr;
    eager = model::generate(*generator, request);
  }
  const bool equal = !eager || eager->tokens == result.tokens;
  const model::GeneratorMemory& memory = generator->memory();
  if (options.json) {
    nlohmann::ordered_json texts = nlohmann::ordered_json::array();
    for (const auto& tokens : result.tokens)
      texts.push_back({{"text", form.decode(tokens, true)}, {"tokens", tokens}});
    nlohmann::ordered_json object{{"prompt", form.decode(ids, true)},
                                  {"prompt_tokens", ids.size()},
                                  {"texts", texts},
                                  {eager_steps ? "eager" : "replay", json_of(result)}};
    if (eager) object["eager"] = json_of(*eager);
    if (eager) object["equal"] = equal;
    object["graph_nodes"] = generator->graph_nodes();
    object["memory"] = {{"total_bytes", memory.total()},
                        {"weights", memory.weights},
                        {"keys_and_values", memory.keys_and_values},
                        {"states", memory.states},
                        {"activations", memory.activations},
                        {"other", memory.other}};
    object["backend"] = name_of(configuration.backend);
    object["precision"] = name_of(configuration.train.precision);
    object["seed"] = configuration.seed;
    print_json(object, console);
  } else {
    std::string line = fmt::format("encore: {}", rate_text(result));
    if (eager_steps) line += " eagerly";
    if (!eager_steps) line += fmt::format(" by replay of {} kernels", generator->graph_nodes());
    if (eager) line += fmt::format(", {} eagerly", rate_text(*eager));
    line += fmt::format(", {} of which {} keys and values", bytes_text(static_cast<double>(memory.total())),
                        bytes_text(static_cast<double>(memory.keys_and_values)));
    std::fputs((line + "\n").c_str(), stderr);
  }
  if (!equal)
    throw ValidationError("eager steps gave other tokens than replayed ones: this is a defect of encore");
  return 0;
}

}  // namespace encore::command
