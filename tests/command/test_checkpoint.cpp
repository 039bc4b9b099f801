// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <cstring>

#include "files/safetensors_bytes.hpp"
#include "run_command.hpp"
#include "tiny_model.hpp"

using nlohmann::json;

namespace {

/// A trained checkpoint, taken apart.
struct Checkpoint {
  json header;
  std::string data;

  explicit Checkpoint(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    header = json::parse(bytes.substr(8, length));
    data = bytes.substr(8 + length);
  }
  std::string bytes() const { return safetensors_bytes(header.dump(), data); }
};

constexpr const char* norm = "model.norm.weight";

class TrainedModel : public TinyModel {
 public:
  TrainedModel() { REQUIRE(encore(train({"--save", path("good.safetensors"), "--no-verdict"})).code == 0); }
  std::string good() const { return read_bytes(path("good.safetensors")); }

  void check_broken(const std::string& bytes, std::initializer_list<std::string_view> words) const {
    write_bytes(path("broken.safetensors"), bytes);
    for (const Outcome& outcome : {encore({"eval", "--load", path("broken.safetensors")}),
                                   encore(train({"--load", path("broken.safetensors")}))}) {
      check_refused(outcome, 3, words);
      check_refused(outcome, 3, {"broken.safetensors"});
    }
  }
};

}  // namespace

TEST_CASE("checkpoints that are truncated, too long or lie about themselves are refused with their name") {
  const TrainedModel tiny;
  const std::string good = tiny.good();
  tiny.check_broken("", {});
  tiny.check_broken(good.substr(0, 7), {});
  tiny.check_broken(good.substr(0, 100), {});
  tiny.check_broken(good.substr(0, good.size() - 1), {});
  tiny.check_broken(good + "x", {});
  std::string huge = good;
  std::memset(huge.data(), 0xff, 8);
  tiny.check_broken(huge, {});
  tiny.check_broken(std::string(1000, '\0'), {});

  Checkpoint overlapping(good);
  auto& offsets = overlapping.header[norm]["data_offsets"];
  offsets[0] = offsets[0].get<std::size_t>() - 64;
  offsets[1] = offsets[1].get<std::size_t>() - 64;
  tiny.check_broken(overlapping.bytes(), {});

  Checkpoint wrong_shape(good);
  wrong_shape.header[norm]["shape"] = {8, 3};
  tiny.check_broken(wrong_shape.bytes(), {norm});

  Checkpoint absurd(good);
  absurd.header[norm]["shape"] = {4294967296, 4294967296};
  tiny.check_broken(absurd.bytes(), {norm});
}

TEST_CASE("a checkpoint of another model is refused with the tensor that does not fit") {
  const TrainedModel tiny;
  check_refused(encore(tiny.train({"--load", tiny.path("good.safetensors"), "--set", "model.ffn=48"})), 3,
                {"good.safetensors", "mlp"});
  check_refused(encore(tiny.train({"--load", tiny.path("good.safetensors"), "--set", "model.layers=3"})), 3,
                {"good.safetensors", "layers.2"});
  check_refused(encore(tiny.train({"--load", tiny.path("good.safetensors"), "--set", "model.layers=1"})), 3,
                {"good.safetensors", "layers.1"});
  Checkpoint renamed(tiny.good());
  renamed.header["stranger"] = renamed.header[norm];
  renamed.header.erase(norm);
  tiny.check_broken(renamed.bytes(), {norm});
}

TEST_CASE("a checkpoint without a configuration, or with an impossible one, is refused") {
  const TrainedModel tiny;
  Checkpoint bare(tiny.good());
  bare.header["__metadata__"].erase("config");
  tiny.check_broken(bare.bytes(), {"config"});

  Checkpoint mangled(tiny.good());
  mangled.header["__metadata__"]["config"] = "{";
  tiny.check_broken(mangled.bytes(), {"config"});

  Checkpoint steps(tiny.good());
  steps.header["__metadata__"]["encore.steps_done"] = "-3";
  write_bytes(tiny.path("broken.safetensors"), steps.bytes());
  check_refused(encore(tiny.train({"--load", tiny.path("broken.safetensors")})), 3,
                {"encore.steps_done", "-3"});
}

TEST_CASE("a missing checkpoint, a folder and a device in its place are refused") {
  const TinyModel tiny;
  check_refused(encore({"eval", "--load", tiny.path("none.safetensors")}), 3,
                {"none.safetensors", "No such file"});
  check_refused(encore({"eval", "--load", tiny.folder.path().string()}), 3, {tiny.folder.path().string()});
  check_refused(encore({"eval", "--load", "/dev/null"}), 3, {"/dev/null"});
}

TEST_CASE("a full disk on save leaves the older checkpoint as it was") {
  const TrainedModel tiny;
  const std::string good = tiny.good();
  const Outcome outcome = encore(tiny.train({"--seed", "5", "--save", tiny.path("good.safetensors")}),
                                 {.largest_file = good.size() / 2, .output = {}});
  check_refused(outcome, 3, {"good.safetensors"});
  CHECK(tiny.good() == good);
  CHECK_FALSE(std::filesystem::exists(tiny.path("good.safetensors.partial")));
}

TEST_CASE("a loaded checkpoint evaluates to the same loss whatever graphs it was trained with") {
  const TrainedModel tiny;
  REQUIRE(encore(tiny.train({"--save", tiny.path("eager"), "--set", "graph.impl=none"})).code == 0);
  CHECK(read_bytes(tiny.path("eager")) == tiny.good());
  const auto loss = [&](const std::string& name) {
    const Outcome outcome = encore({"eval", "--load", tiny.path(name), "--sequences", "10", "--json"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    return json::parse(outcome.output)["loss"].get<double>();
  };
  CHECK(loss("eager") == loss("good.safetensors"));
}
