// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <cstring>

#include "files/safetensors_bytes.hpp"
#include "run_command.hpp"
#include "tiny_model.hpp"

using nlohmann::json;

namespace {

std::string golden(const std::string& family) {
  return ENCORE_TEST_DATA "/goldens/" + family + ".safetensors";
}

/// A reference file with a changed header.
std::string changed(const std::string& family, void (*change)(json& header)) {
  const std::string bytes = read_bytes(golden(family));
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  json header = json::parse(bytes.substr(8, length));
  change(header);
  return safetensors_bytes(header.dump(), std::string_view(bytes).substr(8 + length));
}

}  // namespace

TEST_CASE("eval --golden prints the errors of a reference file as one JSON object") {
  for (const char* const family : {"gpt2", "llama"}) {
    CAPTURE(family);
    const Outcome outcome =
        encore({"eval", "--load", golden(family), "--golden", "--backend", "serial", "--tolerance", "1e-5"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    CHECK(outcome.error.empty());
    const json errors = json::parse(outcome.output);
    CHECK(errors["backend"] == "serial");
    CHECK(errors["precision"] == "fp32");
    for (const char* const key : {"logits_error", "loss_error", "gradient_error_max", "largest_error"}) {
      CAPTURE(key);
      CHECK(errors[key].get<double>() <= 1e-5);
    }
    CHECK(errors["largest_error"].get<double>() > 0);
    CHECK(errors["gradient_error"].size() > 10);
    CHECK(errors["adamw_loss_error"].size() == 4);
    CHECK_FALSE(errors["final_error"].empty());
  }
}

TEST_CASE("eval --golden says by its exit code when the tolerance is exceeded, after printing the errors") {
  const Outcome outcome = encore({"eval", "--load", golden("llama"), "--golden", "--backend", "serial",
                                  "--set", "train.precision=bf16", "--tolerance", "1e-5"});
  check_refused(outcome, 5, {"llama.safetensors", "1e-05"});
  const json errors = json::parse(outcome.output);
  CHECK(errors["precision"] == "bf16");
  CHECK(errors["largest_error"].get<double>() > 1e-5);
  CHECK(errors["logits_error"].get<double>() <= 2e-2);
}

TEST_CASE("a reference file that lacks something, or lies, is refused") {
  const TinyModel tiny;
  const auto check = [&](void (*change)(json&), std::string_view word) {
    write_bytes(tiny.path("broken.safetensors"), changed("llama", change));
    check_refused(
        encore({"eval", "--golden", "--backend", "serial", "--load", tiny.path("broken.safetensors")}), 3,
        {"broken.safetensors", word});
  };
  check([](json& header) { header["__metadata__"].erase("optimizer"); }, "optimizer");
  check([](json& header) { header["__metadata__"]["optimizer"] = "{}"; }, "optimizer");
  check([](json& header) { header["__metadata__"].erase("config"); }, "config");
  check(
      [](json& header) {
        header["other"] = header["logits"];
        header.erase("logits");
      },
      "logits");
  check(
      [](json& header) {
        header["other"] = header["ids"];
        header.erase("ids");
      },
      "ids");
}
