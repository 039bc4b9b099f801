// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "browser.hpp"
#include "run_command.hpp"
#include "tiny_model.hpp"

using nlohmann::json;

namespace {

std::vector<json> objects_in(const std::string& path) {
  std::vector<json> objects;
  for (const std::string& line : lines_of(read_bytes(path))) objects.push_back(json::parse(line));
  return objects;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Nothing sticks out or is cut off at either width, and neither the scripts nor the policy complain.
json looked_at(const Browser& browser, const std::string& page) {
  CHECK(browser.console(page).empty());
  json wide;
  for (const int width : {1280, 400}) {
    INFO("width: ", width);
    json seen = browser.look(page, width);
    CHECK(seen["errors"] == json::array());
    CHECK(seen["width"] == width);
    CHECK(seen["content"] == width);
    CHECK(seen["outside"] == json::array());
    CHECK(seen["images"] == 0);
    CHECK(seen["hacked"].is_null());
    CHECK(seen["scripts"] == 3);  // the numbers, the page's own, the test's
    if (width == 1280) wide = std::move(seen);
  }
  return wide;
}

bool is_missing(const Browser& browser) {
  if (!browser.missing().empty()) MESSAGE("skipped: " << browser.missing());
  return !browser.missing().empty();
}

}  // namespace

TEST_CASE("train --report writes one file that refers to nothing else, and evaluates on the way") {
  const TinyModel tiny;
  const std::string page = tiny.path("run.html"), log = tiny.path("run.jsonl");
  const Outcome outcome = encore(tiny.train({"--report", page, "--log", log, "--steps", "20"}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.output.find("report: " + page) != std::string::npos);
  const std::string text = read_bytes(page);
  CHECK(text.starts_with("<!doctype html>"));
  CHECK(text.find("http:") == std::string::npos);
  CHECK(text.find("https:") == std::string::npos);
  CHECK(text.find("src=") == std::string::npos);
  CHECK(text.find("layer.1/mlp/backward") != std::string::npos);
  const std::vector<json> steps = objects_in(log);
  CHECK(std::ranges::count_if(steps, [](const json& step) { return step.contains("eval_loss"); }) == 10);
  CHECK(steps.back()["eval_loss"] > 0.0);
}

TEST_CASE("--evaluate-every logs the loss on the evaluation data and changes no other number") {
  const TinyModel tiny;
  REQUIRE(encore(tiny.train({"--log", tiny.path("plain.jsonl"), "--no-verdict"})).code == 0);
  REQUIRE(
      encore(tiny.train({"--log", tiny.path("with.jsonl"), "--no-verdict", "--evaluate-every", "3"})).code ==
      0);
  const auto plain = objects_in(tiny.path("plain.jsonl")), with = objects_in(tiny.path("with.jsonl"));
  REQUIRE(plain.size() == with.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CHECK(plain[i]["loss"] == with[i]["loss"]);
    CHECK(plain[i]["grad_norm"] == with[i]["grad_norm"]);
    CHECK(with[i].contains("eval_loss") == ((i + 1) % 3 == 0 || i + 1 == plain.size()));
  }
}

TEST_CASE("the page of a run shows in a browser what its log says") {
  const Browser browser;
  if (is_missing(browser)) return;
  const TinyModel tiny;
  const std::string page = tiny.path("run.html"), log = tiny.path("run.jsonl");
  const Outcome outcome = encore(tiny.train({"--report", page, "--log", log, "--steps", "40", "--profile"}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  const json seen = looked_at(browser, page);
  const std::vector<json> steps = objects_in(log);
  const json& numbers = seen["numbers"];
  CHECK(numbers["final_loss"] == json::array({steps.back()["loss"]}));
  CHECK(numbers["first_loss"] == json::array({steps.front()["loss"]}));
  CHECK(numbers["evaluation_loss"] == json::array({steps.back()["eval_loss"]}));
  REQUIRE(numbers["loss"].size() == steps.size());
  std::map<std::string, std::vector<double>> times;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const char* const key : {"loss", "grad_norm", "lr", "ms"}) CHECK(numbers[key][i] == steps[i][key]);
    times[steps[i]["mode"]].push_back(steps[i]["ms"]);
  }
  for (const auto& [mode, of_mode] : times) {
    CHECK(seen["marks"]["time " + mode] == of_mode.size());
    CHECK(numbers[mode + "_steps"] == json::array({static_cast<double>(of_mode.size())}));
    CHECK(numbers["median_" + mode + "_ms"][0].get<double>() ==
          doctest::Approx(median(of_mode)).epsilon(1e-12));
  }
  CHECK(seen["marks"]["loss points"] == steps.size());
  CHECK(seen["marks"]["evaluations"] == 11);  // one before the first step
  CHECK(seen["marks"]["pairs"] == 20);
  CHECK(seen["marks"]["interval"] == 1);

  const Outcome dumped = encore(tiny.arguments("dump", {"--json"}));
  const json dump = json::parse(dumped.output);
  const auto activations = std::ranges::count_if(dump["buffers"], [](const json& b) {
    return b.contains("arena_offset") && !b["arena_offset"].is_null();
  });
  CHECK(seen["marks"]["buffers"] == activations);
  CHECK(numbers["arena_bytes"] == json::array({dump["arena_bytes"]}));
  CHECK(seen["marks"]["segments"] == dump["segments"].size());
  CHECK(seen["marks"]["runs"] == dump["runs"].size());
  CHECK(seen["marks"]["floors"] == seen["marks"]["kinds"]);
  CHECK(numbers["sum_ms"][0] > 0.0);
  CHECK(seen["tip"][0].get<std::string>().find("from ") != std::string::npos);
  CHECK(seen["tip"][1].get<std::string>().find("gradient norm") != std::string::npos);
}

TEST_CASE("ab --report shows the verdict that ab prints, and report makes the same page from its JSON") {
  const Browser browser;
  if (is_missing(browser)) return;
  const TinyModel tiny;
  const std::string page = tiny.path("ab.html");
  const Outcome outcome = encore(tiny.arguments("ab", {"--steps", "10", "--json", "--report", page}));
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  const json printed = json::parse(outcome.output);
  write_bytes(tiny.path("ab.json"), outcome.output);
  const Outcome again = encore({"report", tiny.path("ab.json"), "-o", tiny.path("again.html")});
  REQUIRE_MESSAGE(again.code == 0, again.error);
  CHECK(again.output == tiny.path("again.html") + "\n");
  const std::map<std::string, std::string> headlines{{"keep", "Keep the graphs"},
                                                     {"do not keep", "Do not keep the graphs"},
                                                     {"not enough evidence", "Not enough evidence"}};
  for (const json& seen : {looked_at(browser, page), browser.look(tiny.path("again.html"), 1280)}) {
    CHECK(seen["headline"].get<std::string>().starts_with(headlines.at(printed["verdict"])));
    CHECK(seen["numbers"]["speedup"] == json::array({printed["speedup"]["median"]}));
    CHECK(seen["numbers"]["eager_ms"] == json::array({printed["eager_ms"]}));
    CHECK(seen["numbers"]["replay_ms"] == json::array({printed["replay_ms"]}));
    CHECK(seen["marks"]["pairs"] == 10);
    CHECK(seen["marks"]["interval"] == 1);
    CHECK(seen["marks"]["loss points"] == 0);
    CHECK(seen["marks"]["buffers"] > 10);
    CHECK(seen["marks"]["settings"] > 20);
  }
}

TEST_CASE("no text of a log, a verdict, a profile or a configuration becomes markup") {
  const TinyModel tiny;
  const std::string hostile =
      "</script><script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\">'\"&";
  const std::string in_name = "<img src=x onerror=window.hacked=3>";
  json verdict = json::parse(encore(tiny.arguments("ab", {"--steps", "10", "--json"})).output);
  verdict["reason"] = verdict["verdict"] = verdict["device"] = hostile;
  verdict["difference"] = hostile;
  verdict["configuration"]["train"]["tune_products"] = "on";
  verdict["configuration"]["train"]["tuning_cache"] = hostile;
  write_bytes(tiny.path("ab.json"), verdict.dump());
  json profile = json::parse(encore(tiny.arguments("profile", {"--by", "segment", "--json", "--samples", "1",
                                                               "--step-samples", "1"}))
                                 .output);
  profile["device"] = hostile;
  profile["rows"][0]["eager_because"] = hostile;
  write_bytes(tiny.path("profile.json"), profile.dump());
  const std::string log = tiny.path(in_name + ".jsonl");
  REQUIRE(encore(tiny.train({"--log", log, "--no-verdict"})).code == 0);

  const std::string page = tiny.path("page.html");
  const Outcome outcome =
      encore({"report", log, tiny.path("profile.json"), tiny.path("ab.json"), "--output", page});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  const std::string text = read_bytes(page);
  CHECK(text.find("<img") == std::string::npos);
  CHECK(text.find("<script>window") == std::string::npos);
  CHECK(text.find("&lt;/script&gt;&lt;script&gt;window.hacked=1") != std::string::npos);
  const Browser browser;
  if (is_missing(browser)) return;
  const json seen = looked_at(browser, page);
  CHECK(seen["title"].get<std::string>().find(in_name) != std::string::npos);
}

TEST_CASE("a run that fails leaves a page that says why") {
  const TinyModel tiny;
  const std::string page = tiny.path("run.html");
  const Outcome outcome =
      encore(tiny.train({"--steps", "200", "--report", page, "--set", "train.lr=100", "--set",
                         "train.min_lr=100", "--set", "train.clip=0", "--set", "train.weight_decay=100"}));
  CHECK(outcome.code == 5);
  const std::string text = read_bytes(page);
  CHECK(text.find("The run ended early") != std::string::npos);
  CHECK(text.find("lower train.lr") != std::string::npos);
}

TEST_CASE("a log alone makes a page, and with the flags of its run the memory too") {
  const TinyModel tiny;
  const std::string log = tiny.path("run.jsonl");
  REQUIRE(encore(tiny.train({"--log", log, "--no-verdict"})).code == 0);
  const Outcome alone = encore({"report", log});
  CHECK(alone.output == tiny.path("run.html") + "\n");
  CHECK(read_bytes(tiny.path("run.html")).find("name it as for the run") != std::string::npos);
  const Outcome with = encore(tiny.arguments("report", {log, "-o", tiny.path("with.html")}));
  CHECK(with.code == 0);
  CHECK(read_bytes(tiny.path("with.html")).find("layer.0/attn/qkv") != std::string::npos);

  // A killed run leaves a torn line.
  write_bytes(tiny.path("torn.jsonl"), read_bytes(log) + "{\"step\": 9, \"lo");
  CHECK(encore({"report", tiny.path("torn.jsonl")}).code == 0);
}

TEST_CASE("report refuses files that are none of its own with exit code 3, and does not overwrite them") {
  const TinyModel tiny;
  write_bytes(tiny.path("broken.jsonl"),
              "{\"step\": 1, \"loss\": 2, \"ms\": 3, \"mode\": \"eager\"}\nnonsense\n{}\n");
  check_refused(encore({"report", tiny.path("broken.jsonl")}), 3, {"broken.jsonl", "line 2"});
  write_bytes(tiny.path("typed.jsonl"),
              "{\"step\": \"one\", \"loss\": 2, \"ms\": 3, \"mode\": \"eager\"}\n{}\n");
  check_refused(encore({"report", tiny.path("typed.jsonl")}), 3, {"typed.jsonl", "line 1"});
  write_bytes(tiny.path("mode.jsonl"), "{\"step\": 1, \"loss\": 2, \"ms\": 3, \"mode\": \"fast\"}\n");
  check_refused(encore({"report", tiny.path("mode.jsonl")}), 3, {"'fast'"});
  write_bytes(tiny.path("other.json"), "{\"a\": 1}");
  check_refused(encore({"report", tiny.path("other.json")}), 3, {"other.json", "neither"});
  write_bytes(tiny.path("empty.jsonl"), "");
  check_refused(encore({"report", tiny.path("empty.jsonl")}), 3, {"empty.jsonl", "no step"});
  check_refused(encore({"report", tiny.path("none.jsonl")}), 3, {"none.jsonl"});
  check_refused(encore({"report"}), 2, {"files"});
  write_bytes(tiny.path("page.html"), "{\"step\": 1, \"loss\": 2, \"ms\": 3, \"mode\": \"eager\"}\n");
  check_refused(encore({"report", tiny.path("page.html")}), 2, {"page.html", "--output"});
  const Outcome same = encore(tiny.train({"--report", tiny.path("x"), "--log", tiny.path("x")}));
  check_refused(same, 2, {"--report", "--log"});
  check_refused(encore(tiny.train({"--report", tiny.path("no/x.html")})), 3, {"no/x.html"});
}

TEST_CASE("report draws losses that differ in their last bits only, and numbers that no axis can hold") {
  const TinyModel tiny;
  const auto line = [](const char* step, const char* loss, const char* ms) {
    return "{\"step\": " + std::string(step) + ", \"loss\": " + loss + ", \"ms\": " + ms +
           ", \"mode\": \"eager\"}\n";
  };
  write_bytes(tiny.path("near.jsonl"), line("1", "2", "3") + line("2", "2.0000000000000004", "3"));
  CHECK(encore({"report", tiny.path("near.jsonl")}).code == 0);
  write_bytes(tiny.path("late.jsonl"),
              line("9007199254740992", "2", "3") + line("9007199254740994", "1", "1e308"));
  CHECK(encore({"report", tiny.path("late.jsonl")}).code == 0);
}

TEST_CASE("report refuses a file that is nested without end") {
  const TinyModel tiny;
  write_bytes(tiny.path("deep.json"), "{\"verdict\": 1, \"configuration\": " + std::string(1000000, '['));
  check_refused(encore({"report", tiny.path("deep.json")}), 3, {"deep.json"});
  write_bytes(tiny.path("closed.json"), "{\"verdict\": 1, \"configuration\": " + std::string(100000, '[') +
                                            std::string(100000, ']') + "}");
  check_refused(encore({"report", tiny.path("closed.json")}), 3, {"closed.json"});
}
