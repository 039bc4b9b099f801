// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/dump_difference.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <random>
#include <sstream>

#include "files/mutation.hpp"

namespace {

using namespace encore;
using namespace encore::graph;

/// Two layers of two segments each way, an array of parameters with parts, and an optimizer.
Dump example(CaptureScope scope = CaptureScope::layer) {
  Outline outline;
  const auto all =
      outline.add_buffer({"parameters", backend::DataType::float32, {64}, BufferKind::parameter});
  const auto weight = [&](int layer) {
    return outline.add_buffer({"layer." + std::to_string(layer) + "/weight",
                               backend::DataType::float32,
                               {4, 4},
                               BufferKind::parameter,
                               BufferPart{all, static_cast<std::size_t>(layer) * 64}});
  };
  const std::array<BufferId, 2> weights{weight(0), weight(1)};
  auto last = outline.add_buffer({"ids", backend::DataType::int32, {8}, BufferKind::input});
  std::vector<BufferId> activations;
  const auto add = [&](const std::string& name, Module module, Phase phase, int layer,
                       std::vector<BufferId> reads) {
    const auto out = outline.add_buffer({name + "/out", backend::DataType::bfloat16, {8, 4 + layer}});
    outline.add_segment({name, module, phase, layer, 0, std::move(reads), {out}});
    activations.push_back(out);
    last = out;
  };
  add("embedding/forward", Module::embedding, Phase::forward, -1, {last});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "layer." + std::to_string(layer);
    add(name + "/attn/forward", Module::attn, Phase::forward, layer,
        {last, weights[static_cast<std::size_t>(layer)]});
    add(name + "/mlp/forward", Module::mlp, Phase::forward, layer, {last});
  }
  for (int layer = 1; layer >= 0; --layer)
    add("layer." + std::to_string(layer) + "/attn/backward", Module::attn, Phase::backward, layer,
        {last, activations[static_cast<std::size_t>(layer)]});
  outline.add_segment(
      {"optimizer/adamw", Module::optimizer, Phase::update, -1, -1, {last}, {all}, "waits for the host"});
  std::vector<std::vector<std::string>> kernels(outline.segments().size());
  for (std::size_t i = 0; i < kernels.size(); ++i)
    kernels[i] = {"encore::one", "encore::two", "encore::two", "encore::" + std::to_string(i)};
  return make_dump(outline, plan_memory(outline), cut(outline, {scope, {}, OptimizerCapture::separate, 0}),
                   kernels, {{"model.layers", "2"}, {"graph.impl", "layer"}});
}

using Change = std::function<void(Dump&)>;

/// One change for every field of a dump.
std::vector<std::pair<const char*, Change>> every_change() {
  std::vector<std::pair<const char*, Change>> changes;
  const auto add = [&](const char* name, Change change) { changes.emplace_back(name, std::move(change)); };
  add("setting", [](Dump& d) { d.settings[0].second = "3"; });
  add("setting gone", [](Dump& d) { d.settings.pop_back(); });
  add("setting new", [](Dump& d) { d.settings.emplace_back("seed", "1"); });
  add("arena", [](Dump& d) { ++d.arena_bytes; });
  add("buffer gone", [](Dump& d) { d.buffers.pop_back(); });
  add("buffer renamed", [](Dump& d) { d.buffers[1].name += "x"; });
  add("buffer type", [](Dump& d) { d.buffers[1].type = "float64"; });
  add("buffer kind", [](Dump& d) { d.buffers[1].kind = "state"; });
  add("buffer shape", [](Dump& d) { d.buffers[1].shape[0] = 5; });
  add("buffer bytes", [](Dump& d) { ++d.buffers[1].bytes; });
  add("buffer part", [](Dump& d) { d.buffers[1].part_of = "ids"; });
  add("buffer part offset", [](Dump& d) { ++d.buffers[2].part_offset; });
  add("buffer arena offset", [](Dump& d) { *d.buffers.back().arena_offset += 256; });
  add("buffer first", [](Dump& d) { d.buffers.back().first_segment = "embedding/forward"; });
  add("buffer last", [](Dump& d) { d.buffers.back().last_segment = "embedding/forward"; });
  add("segment gone", [](Dump& d) { d.segments.erase(d.segments.begin() + 2); });
  add("segment renamed", [](Dump& d) { d.segments[2].name += "x"; });
  add("segments swapped", [](Dump& d) { std::swap(d.segments[1], d.segments[2]); });
  add("segment moved",
      [](Dump& d) { std::rotate(d.segments.begin(), d.segments.begin() + 1, d.segments.end()); });
  add("segment module", [](Dump& d) { d.segments[1].module = "mlp"; });
  add("segment phase", [](Dump& d) { d.segments[1].phase = "backward"; });
  add("segment layer", [](Dump& d) { ++d.segments[1].layer; });
  add("segment microbatch", [](Dump& d) { ++d.segments[1].microbatch; });
  add("segment reads", [](Dump& d) { d.segments[1].reads.pop_back(); });
  add("segment reads reordered", [](Dump& d) { std::swap(d.segments[1].reads[0], d.segments[1].reads[1]); });
  add("segment writes", [](Dump& d) { d.segments[1].writes.push_back("ids"); });
  add("segment read bytes", [](Dump& d) { ++d.segments[1].read_bytes; });
  add("segment written bytes", [](Dump& d) { ++d.segments[1].written_bytes; });
  add("kernel gone", [](Dump& d) { d.segments[1].kernels.pop_back(); });
  add("kernel twice", [](Dump& d) { d.segments[1].kernels.push_back("encore::one"); });
  add("kernels reordered",
      [](Dump& d) { std::reverse(d.segments[1].kernels.begin(), d.segments[1].kernels.end()); });
  add("eager", [](Dump& d) { d.segments[1].eager_because = "reads a clock"; });
  add("run gone", [](Dump& d) { d.runs.pop_back(); });
  add("run eager", [](Dump& d) { d.runs[1].captured = false; });
  add("run first", [](Dump& d) { d.runs[1].first_segment = "x"; });
  add("run last", [](Dump& d) { d.runs[1].last_segment = "x"; });
  add("run segments", [](Dump& d) { ++d.runs[1].segments; });
  add("run kernels", [](Dump& d) { ++d.runs[1].kernels; });
  add("runs swapped", [](Dump& d) { std::swap(d.runs[0], d.runs[1]); });
  return changes;
}

TEST_CASE("a dump that is written and read again is the same, and has no difference from itself") {
  for (const CaptureScope scope : {CaptureScope::none, CaptureScope::layer}) {
    const Dump dump = example(scope);
    const Dump again = parse_dump(to_json(dump), "f");
    CHECK(again == dump);
    CHECK(to_json(again) == to_json(dump));
    CHECK(compare(dump, again).empty());
    CHECK(to_json(example(scope)) == to_json(dump));
  }
}

TEST_CASE("a dump holds names and numbers of everything") {
  const Dump dump = example();
  CHECK(dump.segments[1].reads == std::vector<std::string>{"embedding/forward/out", "layer.0/weight"});
  CHECK(dump.segments[1].read_bytes == 2 * 8 * 3 + 4 * 16);
  CHECK(dump.segments[1].written_bytes == 2 * 8 * 4);
  CHECK(dump.buffers[2].part_of == "parameters");
  CHECK(dump.buffers[2].part_offset == 64);
  CHECK(dump.runs[0].name == "eager");
  CHECK(dump.runs[1].captured);
  CHECK(dump.runs[1].first_segment == "layer.0/attn/forward");
  CHECK(dump.runs[1].last_segment == "layer.0/mlp/forward");
  CHECK(dump.runs[1].kernels == 8);
  CHECK_FALSE(dump.runs.back().captured);
  CHECK(dump.segments.back().eager_because == "waits for the host");
}

TEST_CASE("every change of every field is found, both ways, also after writing and reading") {
  const Dump original = example();
  for (const auto& [name, change] : every_change()) {
    CAPTURE(name);
    Dump changed = original;
    change(changed);
    REQUIRE(changed != original);
    const auto there = compare(original, changed), back = compare(changed, original);
    CHECK_FALSE(there.empty());
    CHECK_FALSE(back.empty());
    CHECK_FALSE(to_text(there).empty());
    CHECK(compare(original, parse_dump(to_json(changed), "f")).size() == there.size());
    CHECK(parse_dump(to_json(changed), "f") == changed);
  }
}

TEST_CASE("random sets of changes are never lost") {
  std::mt19937 generator(23);
  const auto changes = every_change();
  const Dump original = example();
  for (int round = 0; round < 200; ++round) {
    Dump changed = original;
    for (std::uint32_t i = 0; i < 1 + generator() % 3; ++i)
      changes[generator() % changes.size()].second(changed);
    // Two changes may undo each other.
    CHECK(compare(original, changed).empty() == (original == changed));
  }
}

TEST_CASE("differences are told in words, and only what moved is called moved") {
  const Dump original = example();
  Dump changed = original;
  std::rotate(changed.segments.begin(), changed.segments.begin() + 1, changed.segments.begin() + 4);
  const auto moved = compare(original, changed);
  REQUIRE(moved.size() == 1);
  CHECK(to_text(moved) == "segment moved (1):\n  embedding/forward: first -> after layer.1/attn/forward\n");

  changed = original;
  changed.segments[1].kernels = {"encore::one", "encore::three"};
  CHECK(to_text(compare(original, changed)) ==
        "segment with other kernels (1):\n  layer.0/attn/forward: encore::1, encore::two (2) -> "
        "encore::three\n");

  changed = original;
  changed.buffers[3].shape = {16};
  changed.buffers[3].bytes = 64;
  CHECK(to_text(compare(original, changed)) ==
        "buffer reshaped (1):\n  ids: [8] -> [16]\nbuffer resized (1):\n  ids: 32 -> 64\n");

  const auto all = compare(original, example(CaptureScope::none));
  CHECK(to_text(all, 2).find("and ") != std::string::npos);
}

TEST_CASE("the text names runs, segments, kernels and buffers") {
  const std::string text = to_text(example());
  for (const char* const part :
       {"layer.0/forward (captured), 2 segments, 8 kernels", "layer.1/mlp/forward  [mlp forward]",
        "encore::one, encore::two (2), encore::3", "eager: waits for the host",
        "layer.1/weight  float32 [4, 4]  parameter, 64 bytes, at 64 of parameters", "of the arena from"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
}

TEST_CASE(
    "the graph for Graphviz has every segment once, balanced braces, and edges from writers to readers") {
  Dump dump = example();
  dump.segments[0].name = "a \"quoted\" \\ name";
  const std::string dot = to_dot(dump);
  CHECK(std::count(dot.begin(), dot.end(), '{') == std::count(dot.begin(), dot.end(), '}'));
  for (std::size_t i = 0; i < dump.segments.size(); ++i)
    CHECK(dot.find("    s" + std::to_string(i) + " [label=") != std::string::npos);
  CHECK(dot.find("s0 -> s1 [label=\"embedding/forward/out\"]") != std::string::npos);
  CHECK(dot.find("a \\\"quoted\\\" \\\\ name") != std::string::npos);
  // No segment reads what only a later one writes.
  std::istringstream lines(dot);
  int edges = 0;
  for (std::string line; std::getline(lines, line);) {
    int writer = 0, reader = 0;
    if (std::sscanf(line.c_str(), "  s%d -> s%d", &writer, &reader) != 2) continue;
    CHECK(writer < reader);
    ++edges;
  }
  CHECK(edges >= 7);
}

TEST_CASE("what is no dump is refused with its place") {
  const auto refused = [](const std::string& text, const char* part) {
    try {
      parse_dump(text, "f");
      FAIL_CHECK("accepted: " << text);
    } catch (const InputFileError& error) {
      CHECK_MESSAGE(std::string(error.what()).find(part) != std::string::npos, error.what());
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  };
  refused("", "parse error");
  refused("{", "parse error");
  refused("[]", "the file: an object should stand there");
  refused("{}", "its format is not 'encore dump'");
  refused(R"({"format": "encore dump", "version": 2})", "its version is 2");
  const auto damaged = [&](const std::function<void(nlohmann::json&)>& damage, const char* part) {
    nlohmann::json json = nlohmann::json::parse(to_json(example()));
    damage(json);
    refused(json.dump(), part);
  };
  damaged([](auto& j) { j["segments"][1]["name"] = j["segments"][0]["name"]; },
          "segments[1]: its name stands twice");
  damaged([](auto& j) { j["buffers"][2].erase("bytes"); }, "buffers[2]: there is no 'bytes'");
  damaged([](auto& j) { j["buffers"][2]["bytes"] = -1; }, "buffers[2]: 'bytes' is no whole number from 0 on");
  damaged([](auto& j) { j["buffers"][2]["shape"] = {1.5}; }, "buffers[2]: 'shape' is no whole number");
  damaged([](auto& j) { j["segments"][0]["layer"] = 18446744073709551615ULL; }, "'layer' is no whole number");
  damaged([](auto& j) { j["segments"][0]["kernels"] = {1}; },
          "segments[0]: 'kernels' holds something that is no text");
  damaged([](auto& j) { j["runs"][0]["captured"] = 1; }, "runs[0]: 'captured' is neither true nor false");
  damaged([](auto& j) { j["runs"] = "none"; }, "'runs' is no list");
  damaged([](auto& j) { j["settings"]["seed"] = 1; }, "'settings' holds something that is no text");
}

TEST_CASE("damaged dumps are read or refused, never anything else") {
  const std::array<std::string_view, 8> words{
      "null", "-1", "1e400", "[", "{}", "\"name\"", "18446744073709551615", "true"};
  Mutation mutation(29, words);
  const std::string good = to_json(example());
  for (int round = 0; round < fuzz_rounds(); ++round) {
    try {
      const Dump dump = parse_dump(mutation.of(good), "f");
      CHECK(compare(dump, dump).empty());
      CHECK_FALSE(to_text(dump).empty());
      CHECK_FALSE(to_dot(dump).empty());
    } catch (const InputFileError&) {
      // As it should be.
    }
  }
}

}  // namespace
