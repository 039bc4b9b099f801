// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "run_command.hpp"
#include "tiny_model.hpp"

TEST_CASE("an unknown key is refused with the nearest one, wherever it stands") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--set", "train.lrr=1"})), 2, {"train.lrr", "did you mean 'train.lr'"});
  check_refused(encore({"train", "--set", "layers=2"}), 2, {"'layers'", "did you mean 'model.layers'"});
  write_bytes(tiny.path("bad.json"), R"({"train": {"step": 3}})");
  check_refused(encore({"train", "--config", tiny.path("bad.json")}), 2,
                {"train.step", "did you mean 'train.steps'", "bad.json"});
  check_refused(encore({"train", "--preset", "byte"}), 2, {"'byte'", "did you mean 'bytes'"});
}

TEST_CASE("a value out of range is refused with the key, the value and the range") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--steps", "-5"})), 2, {"train.steps = -5", "--steps", "from 1"});
  check_refused(encore(tiny.train({"--steps", "ten"})), 2, {"train.steps", "'ten'"});
  check_refused(encore(tiny.train({"--seed", "99999999999999999999"})), 2, {"seed"});
  check_refused(encore(tiny.train({"--set", "train.lr=nan"})), 2, {"train.lr"});
  check_refused(encore(tiny.train({"--set", "model.dropout=1"})), 2, {"model.dropout"});
  check_refused(encore(tiny.train({"--set", "model.layers=9999999999"})), 2, {"model.layers"});
  check_refused(encore(tiny.train({"--backend", "hip"})), 2, {"backend", "'hip'", "serial, openmp, cuda"});
  check_refused(encore(tiny.train({"--set", "graph.impl="})), 2, {"graph.impl"});
  check_refused(encore(tiny.train({"--set", "model.heads=3"})), 2, {"model.h"});
}

TEST_CASE("more microbatches than a step can list are refused at once") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--set", "train.microbatches=1048576"})), 2,
                {"train.microbatches = 1048576", "model.layers = 2", "100000"});
}

TEST_CASE("a setting without a value is refused") {
  check_refused(encore({"train", "--set", "train.lr"}), 2, {"train.lr", "key=value"});
  check_refused(encore({"train", "--set", "=3"}), 2, {"key=value"});
  check_refused(encore({"train", "--set", ""}), 2, {"key=value"});
}

TEST_CASE("a configuration file that is no configuration is refused with its name") {
  const TinyModel tiny;
  const auto refused = [&tiny](const char* text, int code, std::string_view word) {
    write_bytes(tiny.path("bad.json"), text);
    check_refused(encore({"train", "--config", tiny.path("bad.json")}), code, {"bad.json", word});
  };
  refused("", 2, "");
  refused("[1, 2]", 2, "");
  refused("{\"train\": {\"lr\": 0.1}", 2, "");
  refused("{\"train\": {\"lr\": \"fast\"}}", 2, "train.lr");
  refused("{\"train\": {\"lr\": 0.1, \"lr\": 0.2}}", 2, "");
  check_refused(encore({"train", "--config", tiny.path("none.json")}), 3, {"none.json", "No such file"});
  check_refused(encore({"train", "--config", tiny.folder.path().string()}), 3, {tiny.folder.path().string()});
}

TEST_CASE("a configuration without a model says which key is missing") {
  const TinyModel tiny;
  write_bytes(tiny.path("empty.json"), "{}");
  check_refused(encore({"train", "--config", tiny.path("empty.json")}), 2, {"model.family"});
}

TEST_CASE("Megatron's spelling and this project's together are refused") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--cuda_graph_impl", "local", "--set", "graph.impl=layer"})), 2,
                {"cuda_graph_impl", "graph.impl"});
  check_refused(encore(tiny.train({"--cuda_graph_impl", "partial"})), 2, {"cuda_graph_impl", "'partial'"});
}

TEST_CASE("a backend that this build lacks, or whose device is missing, is a device error") {
  const TinyModel tiny;
  const std::string info = encore({"info", "--json"}).output;
  const bool has_gpu = info.find("multiprocessors") != std::string::npos;
  if (has_gpu) return;
  check_refused(encore(tiny.train({"--backend", "cuda"})), 4, {"cuda"});
}

TEST_CASE("a model that does not fit into memory is refused with both numbers") {
  const TinyModel tiny;
  check_refused(encore(tiny.train({"--set", "model.hidden=65536", "--set", "model.ffn=262144", "--set",
                                   "model.layers=100", "--set", "model.heads=512"})),
                4, {"GiB", "need", "free"});
  check_refused(encore(tiny.train({"--set", "graph.memory_limit=1000"})), 4, {"graph.memory_limit"});
}
