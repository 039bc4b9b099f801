// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

/// A token file as llm.c writes it, with whatever its header is to say.
std::string token_file(const std::vector<std::uint16_t>& tokens, std::int32_t magic = 20240520,
                       std::int32_t announced = -1) {
  std::array<std::int32_t, 256> header{};
  header[0] = magic;
  header[1] = 1;
  header[2] = announced >= 0 ? announced : static_cast<std::int32_t>(tokens.size());
  std::string bytes(sizeof header + tokens.size() * sizeof(std::uint16_t), '\0');
  std::memcpy(bytes.data(), header.data(), sizeof header);
  std::memcpy(bytes.data() + sizeof header, tokens.data(), tokens.size() * sizeof(std::uint16_t));
  return bytes;
}

std::vector<std::uint16_t> some_tokens(std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 200);
  return tokens;
}

void check_data_refused(const TinyModel& tiny, const std::string& bytes,
                        std::initializer_list<std::string_view> words) {
  write_bytes(tiny.path("tokens.bin"), bytes);
  const Outcome outcome = encore(tiny.train({"--data", tiny.path("tokens.bin")}));
  check_refused(outcome, 3, words);
  check_refused(outcome, 3, {"tokens.bin"});
}

}  // namespace

TEST_CASE("a token file and a text are trained on") {
  const TinyModel tiny;
  write_bytes(tiny.path("tokens.bin"), token_file(some_tokens(1000)));
  write_bytes(tiny.path("text"), std::string(1000, 'a') + std::string(1000, 'b'));
  for (const auto& [flag, name] : {std::pair{"--data", "tokens.bin"}, std::pair{"--text", "text"}}) {
    const Outcome outcome = encore(tiny.train({flag, tiny.path(name), "--no-verdict"}));
    CHECK_MESSAGE(outcome.code == 0, outcome.error);
    CHECK(outcome.output.find(name) != std::string::npos);
  }
}

TEST_CASE("data that is missing, empty, short, or no token file is refused with its name") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--data", tiny.path("none.bin")})), 3, {"none.bin", "No such file"});
  check_refused(encore(tiny.train({"--text", tiny.path("none.txt")})), 3, {"none.txt", "No such file"});
  check_refused(encore(tiny.train({"--text", tiny.folder.path().string()})), 3,
                {tiny.folder.path().string()});
  check_data_refused(tiny, "", {});
  check_data_refused(tiny, "hello", {});
  check_data_refused(tiny, token_file(some_tokens(100), 12345), {"12345"});
  check_data_refused(tiny, token_file(some_tokens(100), 20240520, 101), {"101"});
  check_data_refused(tiny, token_file(some_tokens(16)), {"16", "17"});
  write_bytes(tiny.path("empty.txt"), "");
  check_refused(encore(tiny.train({"--text", tiny.path("empty.txt")})), 3, {"empty.txt", "0 tokens"});
}

TEST_CASE("a token outside the vocabulary is refused with its place") {
  const TinyModel tiny;
  auto tokens = some_tokens(1000);
  tokens[700] = 256;
  check_data_refused(tiny, token_file(tokens), {"256", "700", "model.vocab"});
  check_refused(encore(tiny.train({"--set", "model.vocab=100"})), 3, {"shipped text", "model.vocab = 100"});
}

TEST_CASE("eval gives the same loss for any number of sequences a batch") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors");
  REQUIRE(encore(tiny.train({"--save", model, "--no-verdict"})).code == 0);
  const auto evaluated = [&](const std::string& microbatch) {
    const Outcome outcome = encore({"eval", "--load", model, "--backend", "serial", "--sequences", "7",
                                    "--json", "--set", "train.microbatch=" + microbatch});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    CHECK(outcome.error.empty());
    return nlohmann::json::parse(outcome.output);
  };
  const auto one = evaluated("1"), four = evaluated("4"), many = evaluated("16");
  CHECK(one["tokens"] == 7 * 16);
  CHECK(four["tokens"] == 7 * 16);
  const double loss = one["loss"];
  CHECK(loss > 1);
  CHECK(loss < 6);
  CHECK(four["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-6));
  CHECK(many["loss"].get<double>() == doctest::Approx(loss).epsilon(1e-6));
  CHECK(one["perplexity"].get<double>() == doctest::Approx(std::exp(loss)));
}

TEST_CASE("eval takes given data whole and at most that") {
  const TinyModel tiny;
  const std::string model = tiny.path("model.safetensors");
  REQUIRE(encore(tiny.train({"--save", model, "--no-verdict"})).code == 0);
  write_bytes(tiny.path("tokens.bin"), token_file(some_tokens(100)));
  const Outcome outcome =
      encore({"eval", "--load", model, "--data", tiny.path("tokens.bin"), "--sequences", "1000", "--json"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(nlohmann::json::parse(outcome.output)["sequences"] == 6);
  write_bytes(tiny.path("tokens.bin"), token_file(some_tokens(10)));
  check_refused(encore({"eval", "--load", model, "--data", tiny.path("tokens.bin")}), 3,
                {"tokens.bin", "10"});
}
