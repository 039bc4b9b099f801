// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

nlohmann::json information(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"info", "--json"});
  const Outcome outcome = encore(arguments);
  CHECK(outcome.code == 0);
  CHECK(outcome.error.empty());
  return nlohmann::json::parse(outcome.output);
}

}  // namespace

TEST_CASE("info --json is one object with build, devices and presets") {
  const auto object = information({});
  CHECK(object["build"]["version"].get<std::string>().starts_with("0."));
  CHECK_FALSE(object["build"]["commit"].get<std::string>().empty());
  CHECK_FALSE(object["build"]["kokkos"].get<std::string>().empty());
  CHECK_FALSE(object["build"]["backends"].empty());
  CHECK((object["devices"].size() == object["build"]["backends"].size() || object.contains("no_device")));
  CHECK(object["presets"].size() >= 5);
  CHECK_FALSE(object.contains("configuration"));
}

TEST_CASE("info prints every key of a configuration with its source, and the memory it will need") {
  const TinyModel tiny;
  const auto object = information({"--config", tiny.path("tiny.json"), "--set", "train.lr=0.5"});
  CHECK(object["configuration"]["train"]["lr"] == 0.5);
  CHECK(object["configuration"]["model"]["hidden"] == 16);
  bool found = false;
  for (const auto& entry : object["keys"])
    if (entry["key"] == "train.lr") found = entry["source"] == "--set" && entry["value"] == "0.5";
  CHECK(found);
  CHECK(object["parameters"] == 2 * 256 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16) + 16);
  if (object.contains("no_device")) return;
  const auto& memory = object["memory"];
  CHECK(memory["bytes"]["parameter"].get<std::size_t>() >= 4 * object["parameters"].get<std::size_t>());
  CHECK(memory["bytes"]["optimizer_state"] == 2 * memory["bytes"]["parameter"].get<std::size_t>());
  std::size_t sum = 0;
  for (const auto& [kind, bytes] : memory["bytes"].items()) sum += bytes.get<std::size_t>();
  CHECK(memory["total_bytes"] == sum);
}

TEST_CASE("the resolved configuration, written to a file, resolves to itself") {
  const TinyModel tiny;
  const auto first = information({"--config", tiny.path("tiny.json")});
  write_bytes(tiny.path("again.json"), first["configuration"].dump());
  CHECK(information({"--config", tiny.path("again.json")})["configuration"] == first["configuration"]);
}

TEST_CASE("info for people names version, Kokkos and presets") {
  const Outcome outcome = encore({"info"});
  CHECK(outcome.code == 0);
  for (const char* const word : {"encore 0.", "Kokkos", "presets:", "bytes", "gpt2-124m"})
    CHECK_MESSAGE(outcome.output.find(word) != std::string::npos, word);
}

TEST_CASE("info lists the configuration keys with what they allow") {
  const Outcome outcome = encore({"info", "--keys"});
  CHECK(outcome.code == 0);
  for (const char* const word : {"model.layers", "train.lr", "graph.impl", "full_iteration"})
    CHECK_MESSAGE(outcome.output.find(word) != std::string::npos, word);
}

TEST_CASE("info --rules prints the page of the documentation, and as JSON the table") {
  const Outcome outcome = encore({"info", "--rules"});
  CHECK(outcome.code == 0);
  CHECK(outcome.output == read_bytes(ENCORE_TEST_SOURCE "/docs/refusals.md"));
  const auto rules = information({"--rules"})["rules"];
  CHECK(rules.size() > 30);
  CHECK(rules[0]["id"] == "G-01");
  CHECK(rules[0]["outcome"] == "refused");
}

TEST_CASE("info --keys --markdown prints the page of the documentation") {
  const Outcome outcome = encore({"info", "--keys", "--markdown"});
  CHECK(outcome.code == 0);
  CHECK(outcome.output == read_bytes(ENCORE_TEST_SOURCE "/docs/configuration.md"));
  check_refused(encore({"info", "--markdown"}), 2, {"--keys"});
}

TEST_CASE("what was changed or ignored on the way is said, by info and by train") {
  const TinyModel tiny;
  const std::vector<std::string> settings{"--set", "graph.impl=none", "--set", "graph.modules=attn"};
  auto arguments = settings;
  arguments.insert(arguments.begin(), {"--config", tiny.path("tiny.json")});
  const auto notes = information(arguments)["notes"];
  REQUIRE(notes.size() == 1);
  const std::string line = "note: " + notes[0].get<std::string>() + "\n";
  CHECK(line.starts_with("note: G-19: graph.modules = attn (--set) was cleared"));
  arguments.insert(arguments.begin(), "info");
  CHECK(encore(arguments).output.find(line) != std::string::npos);
  const Outcome trained = encore(tiny.train(settings));
  CHECK_MESSAGE(trained.code == 0, trained.error);
  CHECK(trained.output.find(line) != std::string::npos);
  CHECK(encore(tiny.train({"--no-verdict"})).output.find("note: ") == std::string::npos);
}

TEST_CASE("a full disk under standard output is an error, a reader that left is none") {
  const Outcome full = encore({"info", "--json"}, {.largest_file = std::nullopt, .output = "/dev/full"});
  check_refused(full, 3, {"standard output", "No space left"});
  BackgroundRun run({"info"});
  run.close_output();
  const Outcome left = run.wait();
  CHECK(left.signal == 0);
  CHECK(left.code == 0);
  CHECK(left.error.empty());
}
