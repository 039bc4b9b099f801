// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/generator.hpp>
#include <encore/model/golden.hpp>
#include <encore/model/trainer.hpp>

#include "trainers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

namespace {

using namespace encore;
namespace fs = std::filesystem;
using Tokens = std::vector<std::int32_t>;

std::vector<fs::path> goldens() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(ENCORE_TEST_DATA) / "goldens"))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  REQUIRE(files.size() >= 10);
  return files;
}

model::Configuration configuration_of(const fs::path& file, const std::string& backend,
                                      model::Precision precision) {
  model::Configuration wishes;
  for (const auto kind : {model::BackendKind::serial, model::BackendKind::openmp, model::BackendKind::cuda})
    if (model::name_of(kind) == backend) wishes.backend = kind;
  wishes.train.precision = precision;
  wishes.train.gradient_type = precision;
  return model::golden_configuration(file, wishes);
}

/// A generator with the weights of a reference file.
std::unique_ptr<model::Generator> generator_of(const fs::path& path,
                                               const model::Configuration& configuration,
                                               const model::GeneratorOptions& options) {
  const model::SafetensorsFile file(path);
  auto generator = model::make_generator(configuration, options);
  for (const auto& slice :
       generator->layout().slices_in([&](const std::string& name) { return file.contains("w." + name); }))
    generator->set_weights(slice, file.float32("w." + slice.name));
  return generator;
}

Tokens ids_of(const model::SafetensorsFile& file) {
  Tokens ids;
  for (const std::int64_t id : file.int64("ids")) ids.push_back(static_cast<std::int32_t>(id));
  return ids;
}

double relative_error(const std::vector<float>& values, const std::vector<float>& reference) {
  REQUIRE(values.size() == reference.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += std::pow(static_cast<double>(values[i]) - static_cast<double>(reference[i]), 2);
    norm += std::pow(static_cast<double>(reference[i]), 2);
  }
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : HUGE_VAL;
}

/// Every prefix of the reference's sequences is a prompt of its own, all side by side: the logits after each must be
/// those that the reference has there.
void check_prefixes(model::Precision precision, double tolerance) {
  for (const std::string& backend : tests::backend_names())
    for (const fs::path& path : goldens()) {
      CAPTURE(backend);
      CAPTURE(path.filename().string());
      const model::Configuration configuration = configuration_of(path, backend, precision);
      const model::SafetensorsFile file(path);
      const Tokens ids = ids_of(file);
      const auto length = static_cast<std::ptrdiff_t>(configuration.train.seq);
      std::vector<Tokens> prompts;
      for (auto row = ids.begin(); row != ids.end(); row += length)
        for (std::ptrdiff_t end = 1; end <= length; ++end) prompts.emplace_back(row, row + end);
      // Not a divisor of all lengths: the last stretch of a prompt is a part of one, and of short prompts empty.
      const auto generator =
          generator_of(path, configuration, {std::ssize(prompts), length + 1, /*prompt_tokens=*/7});
      generator->start(prompts);
      generator->step(model::GenerationMode::replay);
      const std::vector<float> logits = generator->logits(), reference = file.float32("logits");
      CHECK(relative_error(logits, reference) <= tolerance);
      const auto tokens = generator->tokens();
      const std::size_t vocab = reference.size() / prompts.size();
      for (std::size_t p = 0; p < prompts.size(); ++p) {
        const auto row = logits.begin() + static_cast<std::ptrdiff_t>(p * vocab);
        const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
        CHECK(tokens[p].size() == prompts[p].size() + 1);
        CHECK(std::equal(prompts[p].begin(), prompts[p].end(), tokens[p].begin()));
        CHECK(tokens[p].back() == best);
      }
    }
}

TEST_CASE("the logits after every prefix are those of the Hugging Face references, in fp32") {
  check_prefixes(model::Precision::fp32, 1e-5);
}

TEST_CASE(
    "the logits after every prefix are those of the Hugging Face references, in bf16 within its rounding") {
  // Five times the rounding where a token goes to another expert than in float64, as in training.
  check_prefixes(model::Precision::bf16, 1e-1);
}

std::vector<std::vector<std::string>> tiny_models() {
  return {tests::tiny_model("llama"), tests::tiny_model("gpt2"), tests::tiny_hybrid(), tests::tiny_experts()};
}

/// Prompts of different lengths.
std::vector<Tokens> prompts_of(std::size_t count) {
  std::vector<Tokens> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt(1 + (3 * i) % 5);
    for (std::size_t k = 0; k < prompt.size(); ++k)
      prompt[k] = static_cast<std::int32_t>((11 * i + 7 * k) % 61);
    prompts.push_back(prompt);
  }
  return prompts;
}

TEST_CASE("greedy generation takes the largest of a trainer's logits at every position") {
  for (const std::string& backend : tests::backend_names())
    for (const auto& settings : tiny_models()) {
      CAPTURE(backend);
      CAPTURE(settings.front());
      const model::Configuration configuration = tests::resolve(settings, {"backend=" + backend});
      const std::int64_t length = configuration.train.seq;
      const auto trainer = model::make_trainer(configuration);
      // A few steps: initial weights give almost equal logits.
      const auto batch = tests::random_batch(configuration, 1);
      for (int step = 0; step < 5; ++step) {
        trainer->set_batch(batch.ids, batch.labels);
        trainer->step(0.01);
      }
      const auto generator =
          model::make_generator(configuration, {configuration.train.microbatch, length, 3});
      model::copy_weights(*trainer, *generator);
      const std::vector<Tokens> prompts =
          prompts_of(static_cast<std::size_t>(configuration.train.microbatch));
      generator->start(prompts);
      while (generator->has_room()) generator->step(model::GenerationMode::replay);
      std::vector<Tokens> texts = generator->tokens();
      Tokens ids;
      for (Tokens& text : texts) {
        text.resize(static_cast<std::size_t>(length), 0);
        ids.insert(ids.end(), text.begin(), text.end());
      }
      trainer->evaluate(ids, ids);
      const std::vector<float> logits = trainer->logits();
      const auto vocab = static_cast<std::size_t>(configuration.model.vocab);
      std::size_t checked = 0;
      const std::vector<Tokens> generated = generator->tokens();
      for (std::size_t s = 0; s < texts.size(); ++s)
        for (std::size_t t = prompts[s].size(); t < generated[s].size(); ++t, ++checked) {
          const float* row = logits.data() + (s * static_cast<std::size_t>(length) + t - 1) * vocab;
          // Summed in another order, so nearly equal ones may change places.
          CHECK(row[generated[s][t]] >= *std::max_element(row, row + vocab) - 1e-4F);
        }
      CHECK(checked >= 20);
    }
}

TEST_CASE("eager and replayed generation give the same tokens and logits bit for bit, greedy and sampled") {
  for (const std::string& backend : tests::backend_names())
    for (const std::string precision : {"fp32", "bf16"})
      for (const auto& settings : tiny_models()) {
        CAPTURE(backend);
        CAPTURE(precision);
        CAPTURE(settings.front());
        const model::Configuration configuration = tests::resolve(
            settings, {"backend=" + backend, "train.precision=" + precision, "model.seq=64", "train.seq=16"});
        const auto generator = model::make_generator(configuration, {3, 64, 4});
        for (const double temperature : {0.0, 1.0}) {
          generator->set_sampling({temperature, 20, 0.9, 17});
          std::vector<std::vector<Tokens>> tokens;
          std::vector<std::vector<float>> logits;
          for (const auto mode :
               {model::GenerationMode::eager, model::GenerationMode::replay, model::GenerationMode::replay}) {
            generator->start(prompts_of(3));
            while (generator->has_room()) {
              generator->step(mode);
              const std::vector<float> of_step = generator->logits();
              if (tokens.empty())
                logits.push_back(of_step);
              else
                CHECK(logits.at(static_cast<std::size_t>(std::ssize(generator->tokens()[0]) -
                                                         std::ssize(prompts_of(3)[0]) - 1)) == of_step);
            }
            tokens.push_back(generator->tokens());
          }
          CHECK(tokens[0] == tokens[1]);
          CHECK(tokens[0] == tokens[2]);
          CHECK(generator->graph_nodes() > 10);
        }
      }
}

TEST_CASE("what is drawn depends on the seed and the sequence alone, not on how prompts are read") {
  const model::Configuration configuration = tests::resolve(tests::tiny_model("llama"), {"backend=serial"});
  const auto texts = [&](std::uint64_t seed, std::int64_t prompt_tokens) {
    const auto generator = model::make_generator(configuration, {2, 16, prompt_tokens});
    generator->set_sampling({1.0, 0, 1.0, seed});
    return model::generate(*generator, {.prompts = {{1, 2, 3}, {1, 2, 3}}, .tokens = 12}).tokens;
  };
  const auto first = texts(1, 2);
  CHECK(first == texts(1, 1));
  CHECK(first != texts(2, 2));
  CHECK(first[0] != first[1]);
}

TEST_CASE("an end token ends its sequence, and generation stops once all have ended") {
  const model::Configuration configuration = tests::resolve(tests::tiny_model("llama"), {"backend=serial"});
  const auto generator = model::make_generator(configuration, {2, 16, 4});
  generator->set_sampling({1.0, 0, 1.0, 5});
  model::GenerationRequest request{.prompts = {{1, 2, 3}, {4}}, .tokens = 10, .read_every = 3};
  const auto all = model::generate(*generator, request);
  CHECK(all.steps == 10);
  CHECK(all.tokens[0].size() == 10);
  CHECK(all.tokens_per_second() > 0);
  request.end_tokens = {all.tokens[0][4], all.tokens[1][5]};
  std::vector<Tokens> pieces(2);
  request.progress = [&](const std::vector<Tokens>& fresh) {
    for (std::size_t s = 0; s < 2; ++s) pieces[s].insert(pieces[s].end(), fresh[s].begin(), fresh[s].end());
  };
  const auto ended = model::generate(*generator, request);
  CHECK(pieces == ended.tokens);
  for (std::size_t s = 0; s < 2; ++s) {
    CAPTURE(s);
    const Tokens& text = ended.tokens[s];
    REQUIRE(!text.empty());
    CHECK(text.size() <= 6);
    CHECK(std::equal(text.begin(), text.end(), all.tokens[s].begin()));
    CHECK(std::ranges::count(request.end_tokens, text.back()) == 1);
  }
  CHECK(ended.steps <= 7);  // looked at after 1, 3 and 6 steps
}

template <class Exception, class Call>
std::string sentence_of(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_CASE("a generator refuses what does not fit with a sentence") {
  const model::Configuration configuration = tests::resolve(tests::tiny_model("gpt2"), {"backend=serial"});
  const auto contains = [](const std::string& sentence, std::string_view words) {
    CAPTURE(sentence);
    CHECK(sentence.find(words) != std::string::npos);
  };
  const auto generator = model::make_generator(configuration, {2, 8, 4});
  using Error = ConfigurationError;
  contains(sentence_of<Error>([&] { generator->step(model::GenerationMode::replay); }), "start()");
  contains(sentence_of<Error>([&] { generator->start({{1}}); }), "1 prompts were given to a generator of 2");
  contains(sentence_of<Error>([&] { generator->start({{1}, {}}); }), "empty");
  contains(sentence_of<Error>([&] { generator->start({{1}, {61}}); }), "token 61");
  contains(sentence_of<Error>([&] { generator->start({{1}, {-1}}); }), "token -1");
  contains(sentence_of<Error>([&] { generator->start({{1}, Tokens(8, 1)}); }), "leaves no room");
  contains(sentence_of<Error>([&] {
             model::generate(*generator, {.prompts = {{1}, {1, 2}}, .tokens = 7});
           }),
           "do not fit into caches of 8");
  generator->start({{1}, Tokens(7, 1)});
  generator->step(model::GenerationMode::eager);
  contains(sentence_of<Error>([&] { generator->step(model::GenerationMode::eager); }), "hold no more");
  contains(sentence_of<Error>([&] { model::make_generator(configuration, {1, 17, 4}); }), "16 positions");
  contains(sentence_of<Error>([&] { model::make_generator(configuration, {0, 8, 4}); }), "sequences");
  model::Configuration limited = configuration;
  limited.graph.memory_limit = 1000;
  contains(sentence_of<OutOfMemoryError>([&] { model::make_generator(limited, {1, 8, 4}); }), "R-08");
}

TEST_CASE("sampling options out of range are refused, whatever they are, and others are taken") {
  const model::Configuration configuration = tests::resolve(tests::tiny_model("llama"), {"backend=serial"});
  const auto generator = model::make_generator(configuration, {1, 16, 4});
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = HUGE_VAL;
  std::size_t refused = 0, taken = 0;
  for (const double temperature : {-1.0, 0.0, 1e-300, 0.01, 1.0, 100.0, 101.0, nan, infinity})
    for (const std::int64_t top_k :
         {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{61},
          std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()})
      for (const double top_p : {-1.0, 0.0, 1e-6, 0.5, 1.0, 1.5, nan}) {
        const bool allowed = (temperature == 0 || (temperature >= 0.01 && temperature <= 100)) &&
                             top_k >= 0 && top_p >= 1e-6 && top_p <= 1;
        if (!allowed) {
          CHECK_THROWS_AS(generator->set_sampling({temperature, top_k, top_p, 1}), ConfigurationError);
          ++refused;
          continue;
        }
        generator->set_sampling({temperature, top_k, top_p, 1});
        generator->start({{1, 2}});
        for (int i = 0; i < 3; ++i) generator->step(model::GenerationMode::replay);
        const Tokens text = generator->tokens()[0];
        for (const std::int32_t token : text) CHECK((token >= 0 && token < 61));
        ++taken;
      }
  CHECK(refused > 100);
  CHECK(taken == 4 * 4 * 3);
}

TEST_CASE("a generator's memory is told exactly and lies in one allocation") {
  const model::Configuration configuration =
      tests::resolve(tests::tiny_hybrid(), {"backend=serial", "train.precision=bf16"});
  const auto generator = model::make_generator(configuration, {3, 16, 4});
  const model::GeneratorMemory& memory = generator->memory();
  // One attention layer: keys and values of 2 heads of 8 entries, 3 sequences of 16 tokens, 2 bytes each.
  CHECK(memory.keys_and_values == 2 * (3 * 16 * 2 * 8 * 2));
  // Two Mamba layers: windows of 3 tokens of 32 + 2 * 2 * 8 channels, and states of 4 heads of 8 x 8 floats.
  CHECK(memory.states == 2 * (3 * 3 * 64 * 2) + 2 * (3 * 4 * 8 * 8 * 4));
  CHECK(memory.weights >= static_cast<std::size_t>(generator->layout().elements()) * 2);
  CHECK(memory.total() ==
        memory.weights + memory.keys_and_values + memory.states + memory.activations + memory.other);
  model::Configuration limited = configuration;
  limited.graph.memory_limit = static_cast<std::int64_t>(memory.total());
  CHECK_NOTHROW(model::make_generator(limited, {3, 16, 4}));
  limited.graph.memory_limit -= 1;
  CHECK_THROWS_AS(model::make_generator(limited, {3, 16, 4}), OutOfMemoryError);
}

}  // namespace
