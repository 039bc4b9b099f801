// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/huggingface_configuration.hpp>
#include <encore/model/files/presets.hpp>
#include <encore/model/files/safetensors_file.hpp>
#include <encore/model/files/token_source.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "mutation.hpp"
#include "safetensors_bytes.hpp"
#include "temporary_folder.hpp"

// Every parser gets many damaged inputs. It may accept or throw encore::Error, and nothing else; what it
// accepts must be consistent. Under the address and undefined-behaviour sanitizers these tests find reads
// outside the input.

using namespace encore::model;

namespace {

constexpr std::array<std::string_view, 27> words = {"{",
                                                    "}",
                                                    "[",
                                                    "]",
                                                    ",",
                                                    ":",
                                                    "\"",
                                                    "null",
                                                    "true",
                                                    "-1",
                                                    "0",
                                                    "4294967296",
                                                    "9223372036854775807",
                                                    "18446744073709551615",
                                                    "18446744073709551616",
                                                    "1e308",
                                                    "1e-400",
                                                    "NaN",
                                                    "Infinity",
                                                    "\"F32\"",
                                                    "\"data_offsets\"",
                                                    "\"shape\"",
                                                    "\"__metadata__\"",
                                                    "\\u0000",
                                                    "\\ud800",
                                                    "\xff",
                                                    "graph.impl="};

/// Runs `parse`; whether it accepted the input. Only encore::Error, with a sentence of one line, may come
/// out.
template <class Parse>
bool accepts(Parse parse) {
  try {
    parse();
    return true;
  } catch (const encore::Error& error) {
    const std::string_view sentence = error.what();
    CHECK_FALSE(sentence.empty());
    CHECK(sentence.find('\n') == std::string_view::npos);
    CHECK(error.code() != encore::ErrorCode::internal);
    return false;
  }
}

std::uint64_t sum_of(std::span<const std::byte> bytes) {
  std::uint64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<std::uint64_t>(byte);
  return sum;
}

}  // namespace

TEST_CASE("damaged safetensors files are refused or are consistent") {
  const std::string header =
      R"({"__metadata__":{"format":"pt","config":"{}"},"model.a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("model.b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"I64","shape":[],"data_offsets":[32,40]}})";
  const std::string data(40, 'd');
  const TemporaryFolder folder;
  Mutation mutation(11, words);
  int accepted = 0;
  const int rounds = fuzz_rounds();
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    // Half of the inputs keep a true length prefix, so that the damage reaches the JSON.
    const std::string bytes = mutation.below(2) == 0 ? mutation.of(safetensors_bytes(header, data))
                                                     : safetensors_bytes(mutation.of(header), data);
    write_bytes(folder / "f", bytes);
    accepted += accepts([&] {
      const SafetensorsFile file(folder / "f");
      std::uint64_t covered = 0;
      for (const StoredTensor& tensor : file.tensors()) {
        std::uint64_t elements = 1;
        for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::uint64_t>(extent);
        CHECK(elements * size_of(tensor.type) == tensor.bytes.size());
        CHECK(sum_of(tensor.bytes) <= 255 * tensor.bytes.size());
        CHECK(&file.tensor(tensor.name) == &tensor);
        covered += tensor.bytes.size();
      }
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data(), sizeof(length));
      CHECK(covered + length + sizeof(length) == bytes.size());
    });
  }
  CHECK(accepted > rounds / 100);
  CHECK(accepted < rounds / 2);
}

TEST_CASE("damaged configuration files are refused or resolve to themselves") {
  std::vector<std::string> files;
  for (const char* preset : {"gpt-1b", "hybrid"})
    files.push_back(to_json(ConfigurationSources().preset(preset).resolve().configuration));
  Mutation mutation(12, words);
  int accepted = 0;
  const int rounds = fuzz_rounds() / 4;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const std::string damaged = mutation.of(files[mutation.below(files.size())]);
    accepted += accepts([&] {
      const Configuration configuration =
          ConfigurationSources().json(damaged, "file").resolve().configuration;
      CHECK_NOTHROW(check(configuration));
      CHECK(ConfigurationSources().json(to_json(configuration), "again").resolve().configuration ==
            configuration);
    });
  }
  CHECK(accepted > 0);
  CHECK(accepted < rounds / 2);
}

TEST_CASE("damaged --set assignments are refused or resolve to a checked configuration") {
  std::vector<std::string> assignments = {"cuda_graph_impl=local",           "cuda_graph_modules=attn,mlp",
                                          "cuda_graph_scope=full_iteration", "graph.memory_limit=20GiB",
                                          "graph.modules=attn,mlp",          "graph.impl=layer"};
  for (const auto& entry : ConfigurationSources().preset("hybrid").resolve().entries)
    if (entry.has_meaning) assignments.push_back(entry.key + "=" + entry.value);
  Mutation mutation(13, words);
  int accepted = 0;
  const int rounds = fuzz_rounds() * 2;
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const std::string first = mutation.of(assignments[mutation.below(assignments.size())]);
    const std::string second = assignments[mutation.below(assignments.size())];
    accepted += accepts([&] {
      const auto resolved =
          ConfigurationSources().preset("hybrid").assignment(first).assignment(second).resolve();
      CHECK_NOTHROW(check(resolved.configuration));
    });
  }
  CHECK(accepted > 0);
  CHECK(accepted < rounds / 2);
}

TEST_CASE("damaged config.json files are refused or describe a model that can be written") {
  std::vector<std::string> files;
  for (const char* preset :
       {"gpt2", "llama-3.2-1b", "qwen3-30b-a3b", "gpt-oss-20b", "nemotron-h-moe-like", "hybrid"})
    files.push_back(write_huggingface_configuration(
        ConfigurationSources().preset(preset).resolve().configuration.model, Precision::fp32));
  Mutation mutation(14, words);
  int accepted = 0;
  const int rounds = fuzz_rounds();
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const std::string damaged = mutation.of(files[mutation.below(files.size())]);
    accepted += accepts([&] {
      const ModelConfiguration model = read_huggingface_configuration(damaged, "config.json");
      CHECK(read_huggingface_configuration(write_huggingface_configuration(model, Precision::bf16),
                                           "again") == model);
    });
  }
  CHECK(accepted > 0);
  CHECK(accepted < rounds / 2);
}

TEST_CASE("damaged token files are refused or give only tokens of the vocabulary") {
  const TemporaryFolder folder;
  std::vector<std::string> files;
  for (const TokenWidth width : {TokenWidth::uint16, TokenWidth::uint32}) {
    std::vector<std::int32_t> tokens(40);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 10);
    write_token_file(folder / "good", tokens, width);
    files.push_back(read_bytes(folder / "good"));
  }
  Mutation mutation(15, words);
  int accepted = 0;
  const int rounds = fuzz_rounds();
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    std::string damaged = files[mutation.below(files.size())];
    if (mutation.below(2) == 0) {
      // Damage in the first three numbers, which a random place rarely meets.
      damaged.replace(0, 12, (mutation.of(damaged.substr(0, 12)) + std::string(12, '\0')).substr(0, 12));
    } else {
      damaged = mutation.of(damaged);
    }
    write_bytes(folder / "f", damaged);
    accepted += accepts([&] {
      const TokenSource source(TokenCorpus::token_file(folder / "f"),
                               {.sequences = 2, .seq = 8, .microbatches = 1, .vocab = 16}, TokenOrder::random,
                               round);
      std::vector<std::int32_t> ids(16), labels(16);
      source.batch(round, 0, ids, labels);
      for (const std::int32_t token : ids) CHECK((token >= 0 && token < 16));
    });
  }
  CHECK(accepted > 0);
  CHECK(accepted < rounds);
}
