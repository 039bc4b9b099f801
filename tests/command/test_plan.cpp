// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <chrono>

#include "run_command.hpp"
#include "tiny_model.hpp"

namespace {

using Json = nlohmann::json;

Json plan(const TinyModel& tiny, std::vector<std::string> more = {}) {
  more.push_back("--json");
  const Outcome outcome = encore(tiny.arguments("plan", more));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  CHECK(outcome.error.empty());
  return Json::parse(outcome.output);
}

/// The entry of a module; of the layer, where it has one.
Json module(const Json& plan, const std::string& name) {
  for (const Json& entry : plan["modules"])
    if (entry["module"] == name) return entry;
  FAIL("no module " << name);
  return {};
}

Json policy(const Json& plan, const std::string& name) {
  for (const Json& entry : plan["policies"])
    if (entry["policy"] == name) return entry;
  FAIL("no policy " << name);
  return {};
}

}  // namespace

TEST_CASE("plan tells for each module and layer what is captured, what not, and the smallest change") {
  const TinyModel tiny;
  const Json whole = plan(tiny);
  for (const char* const name : {"embedding", "attn", "mlp", "head", "optimizer"})
    CHECK(module(whole, name)["state"] == "captured");
  CHECK(module(whole, "attn")["layers"] == Json{0, 1});
  CHECK(module(whole, "embedding")["layers"].is_null());
  CHECK(policy(whole, "full_iteration")["chosen"] == true);

  const Json layers = plan(tiny, {"--set", "graph.impl=layer", "--set", "graph.modules=attn"});
  CHECK(module(layers, "attn")["state"] == "captured");
  const Json mlp = module(layers, "mlp");
  CHECK(mlp["state"] == "eager");
  CHECK(mlp["reason"] == "mlp is not in graph.modules");
  CHECK(mlp["change"] == "graph.modules=attn,mlp");
  CHECK(module(layers, "embedding")["reason"] == "belongs to no layer");
  CHECK(module(layers, "embedding")["change"] == "graph.impl=full_iteration");

  // The change that is named does what it says.
  const Json changed = plan(tiny, {"--set", "graph.impl=layer", "--set", mlp["change"].get<std::string>()});
  CHECK(module(changed, "mlp")["state"] == "captured");
}

TEST_CASE("plan counts runs, segments and kernels, and memory, of each policy") {
  const TinyModel tiny;
  const Json object = plan(tiny);
  const Json none = policy(object, "none"), layer = policy(object, "layer"),
             full = policy(object, "full_iteration");
  CHECK(none["captured_runs"] == 0);
  CHECK(none["captured_kernels"] == 0);
  CHECK(none["memory"]["bytes"]["graphs"] == 0);
  CHECK(layer["captured_runs"] == 2 * 2 + 1);  // forward and backward of two layers, and the optimizer
  CHECK(full["runs"] == 1);
  CHECK(full["captured_kernels"] == full["kernels"]);
  CHECK(layer["captured_kernels"] < full["captured_kernels"]);
  const Json recomputed = policy(object, "none, train.recompute=full");
  CHECK(recomputed["memory"]["bytes"]["arena"] < none["memory"]["bytes"]["arena"]);
  CHECK(recomputed["kernels"] > none["kernels"]);
  for (const Json& row : {none, layer, full}) {
    CHECK(row["segments"] == none["segments"]);
    CHECK(row["kernels"] == none["kernels"]);
    std::size_t sum = 0;
    for (const auto& [use, bytes] : row["memory"]["bytes"].items()) sum += bytes.get<std::size_t>();
    CHECK(row["memory"]["total_bytes"] == sum);
  }
  std::size_t segments = 0, kernels = 0;
  for (const Json& entry : object["modules"]) {
    segments += entry["segments"].get<std::size_t>();
    kernels += entry["kernels"].get<std::size_t>();
  }
  CHECK(segments == none["segments"]);
  CHECK(kernels == none["kernels"]);
}

TEST_CASE("plan for people groups layers that are alike") {
  const TinyModel tiny;
  const Outcome outcome =
      encore(tiny.arguments("plan", {"--set", "graph.impl=layer", "--set", "model.layers=7"}));
  CHECK_MESSAGE(outcome.code == 0, outcome.error);
  for (const char* const part : {"layers 0-6    attn            captured",
                                 "no layer      embedding       eager: belongs to no layer (captured with "
                                 "graph.impl=full_iteration)",
                                 "* layer", "full_iteration", "arena"})
    CHECK_MESSAGE(outcome.output.find(part) != std::string::npos, part, "\n", outcome.output);
}

TEST_CASE("plan of a configuration that is refused says why, in JSON too") {
  const TinyModel tiny;
  const std::vector<std::string> wrong{"--set", "graph.impl=none", "--set", "graph.optimizer=joined"};
  check_refused(encore(tiny.arguments("plan", wrong)), 2, {"graph.optimizer"});
  auto with_json = wrong;
  with_json.push_back("--json");
  const Outcome outcome = encore(tiny.arguments("plan", with_json));
  CHECK(outcome.code == 2);
  CHECK(lines_of(outcome.error).size() == 1);
  const Json refused = Json::parse(outcome.output)["refused"];
  const std::string rule = refused["rule"].get<std::string>();
  CHECK(rule.starts_with("G-"));
  CHECK(refused["sentence"].get<std::string>().starts_with(rule + ": "));
  CHECK_FALSE(refused["reason"].get<std::string>().empty());
  CHECK_FALSE(refused["change"].get<std::string>().empty());
  CHECK(outcome.error == "encore: " + refused["sentence"].get<std::string>() + "\n");
}

TEST_CASE("plan of a model that no machine holds costs little, and training it is refused at once") {
  const TinyModel tiny;
  const auto start = std::chrono::steady_clock::now();
  const Json object =
      plan(tiny, {"--set", "model.hidden=8192", "--set", "model.heads=64", "--set", "model.layers=100"});
  CHECK(policy(object, "none")["memory"]["total_bytes"] > (std::size_t{1} << 38));
  check_refused(encore(tiny.train(
                    {"--set", "model.hidden=8192", "--set", "model.heads=64", "--set", "model.layers=100"})),
                4, {"R-08", "weights, gradients and optimizer state alone need"});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("plan refuses what train would refuse for its memory, and still shows it") {
  const TinyModel tiny;
  auto arguments = tiny.train({"--set", "graph.memory_limit=1000"});
  arguments.front() = "plan";
  const Outcome outcome = encore(arguments);
  CHECK(outcome.code == 4);
  CHECK(outcome.output.find("refused: R-08") != std::string::npos);
  CHECK(outcome.output.find("full_iteration") != std::string::npos);
}

TEST_CASE("a memory limit that is too low is refused by train with a policy that fits, which then trains") {
  const TinyModel tiny;
  const std::size_t total = policy(plan(tiny), "full_iteration")["memory"]["total_bytes"];
  const std::string limit = "graph.memory_limit=" + std::to_string(total - 1);
  const Outcome refused = encore(tiny.train({"--set", limit}));
  check_refused(refused, 4, {"R-08", "graph.memory_limit allows", " would fit, with "});
  const std::size_t end = refused.error.find(" would fit"), begin = refused.error.rfind(": ", end) + 2;
  auto arguments = tiny.train({"--set", limit, "--no-verdict", "--quiet"});
  std::istringstream changes(refused.error.substr(begin, end - begin));
  for (std::string change; changes >> change;) arguments.insert(arguments.end(), {"--set", change});
  const Outcome fits = encore(arguments);
  CHECK_MESSAGE(fits.code == 0, fits.error);
}

TEST_CASE("plan proposes buckets for a file of lengths, and they are accepted") {
  const TinyModel tiny;
  write_bytes(tiny.path("lengths.txt"), "3 10\n5\n6\n11,4\n# rare\n16\n40 2\n");
  const Json lengths = plan(tiny, {"--lengths", tiny.path("lengths.txt"), "--buckets", "3"})["lengths"];
  CHECK(lengths["sequences"] == 19);
  CHECK(lengths["coverage"].get<double>() == doctest::Approx(17.0 / 19));  // 40 is longer than train.seq
  CHECK(lengths["buckets"].size() == 3);
  CHECK(lengths["by_count"].size() == 3);
  double before = 1e9;
  for (const Json& set : lengths["by_count"]) {
    CHECK(set["waste"].get<double>() < before);
    before = set["waste"].get<double>();
  }
  CHECK(lengths["waste"] == lengths["by_count"][2]["waste"]);
  const std::string arguments = lengths["arguments"];
  REQUIRE(arguments.starts_with("--set graph.buckets="));
  const Outcome trained = encore(tiny.train({"--no-verdict", "--quiet", "--set", arguments.substr(6)}));
  CHECK_MESSAGE(trained.code == 0, trained.error);

  const Json multiples =
      plan(tiny, {"--lengths", tiny.path("lengths.txt"), "--buckets", "2", "--multiple-of", "8"})["lengths"];
  CHECK(multiples["buckets"] == Json{8, 16});
  const Outcome text = encore(tiny.arguments("plan", {"--lengths", tiny.path("lengths.txt")}));
  CHECK(text.output.find("use: --set graph.buckets=") != std::string::npos);
  CHECK(text.output.find("longer than train.seq = 16") != std::string::npos);
}

TEST_CASE("a plan for a cluster with rates tells the work of each stage, whichever ranks have the experts") {
  const TinyModel tiny;
  write_bytes(tiny.path("rates.json"),
              R"({"nodes": 1, "gpus_per_node": 8, "gib_per_gpu": 1000,
                  "within_node": {"gb_per_s": 100, "latency_us": 5},
                  "rates": {"tflops": 500, "memory_gb_per_s": 2000}})");
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"plan",   "--preset",  "qwen3-30b-a3b-small",   "--backend",
                                       "serial", "--cluster", tiny.path("rates.json"), "--json"};
    for (const std::string& setting : more) arguments.insert(arguments.end(), {"--set", setting});
    const Outcome outcome = encore(arguments);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
    return Json::parse(outcome.output);
  };
  const auto work = [](const Json& json) { return json.at("stages").at(0).at("work"); };
  const Json alone = plan({"parallel.data=4"});
  const double flops = work(alone).at("flops").get<double>(), bytes = work(alone).at("bytes").get<double>();
  CHECK(alone.at("fits") == true);
  CHECK(alone.at("stages").at(0).at("layers") == Json{0, 1});
  CHECK(work(alone).at("ms").get<double>() >= 1e3 * flops / 500e12);
  CHECK(work(alone).at("ms").get<double>() <= 1e3 * (flops / 500e12 + bytes / 2000e9));
  CHECK(alone.at("step").at("apart_ms") > alone.at("step").at("overlapped_ms"));
  for (const char* const dispatch : {"all_to_all", "all_gather"}) {
    const Json apart =
        plan({"parallel.data=4", "parallel.expert=4", std::string("parallel.expert_dispatch=") + dispatch});
    CHECK(work(apart).at("flops").get<double>() == doctest::Approx(flops).epsilon(1e-3));
  }
}

TEST_CASE("a file of lengths that is missing or wrong is refused with its line") {
  const TinyModel tiny;
  const auto lengths = [&](const std::string& text) {
    write_bytes(tiny.path("lengths.txt"), text);
    return encore(tiny.arguments("plan", {"--lengths", tiny.path("lengths.txt")}));
  };
  check_refused(encore(tiny.arguments("plan", {"--lengths", tiny.path("none")})), 3, {"none"});
  check_refused(lengths("12\nx\n"), 3, {"lengths.txt", "line 2", "'x'"});
  check_refused(lengths(""), 3, {"lengths.txt", "no length"});
  check_refused(lengths("500\n"), 2, {"no length fits", "16"});
}

TEST_CASE("a plan for a cluster tells what stages keep and ranks tell each other, and whether it fits") {
  const TinyModel tiny;
  const auto describe = [&](const char* gib) {
    write_bytes(tiny.path("cluster.json"),
                std::string(R"({"nodes": 2, "gpus_per_node": 2, "gib_per_gpu": )") + gib +
                    R"(, "within_node": {"gb_per_s": 100, "latency_us": 5},
                        "between_nodes": {"gb_per_s": 10, "latency_us": 20}})");
  };
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"--cluster", tiny.path("cluster.json"), "--json"};
    for (const std::string& setting : more) arguments.insert(arguments.end(), {"--set", setting});
    return encore(tiny.arguments("plan", arguments));
  };
  describe("80");
  const Outcome outcome =
      plan({"parallel.tensor=2", "parallel.pipeline=2", "train.microbatches=4", "model.dropout=0"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.error);
  const auto json = nlohmann::json::parse(outcome.output);
  CHECK(json.at("ranks") == 4);
  REQUIRE(json.at("stages").size() == 2);
  CHECK(json.at("bubble").at("closed_form") == 0.25);
  CHECK(json.at("bubble").at("simulated").get<double>() == doctest::Approx(0.25));
  for (const auto& stage : json.at("stages")) {
    CHECK(stage.at("fits") == true);
    for (const auto& traffic : stage.at("traffic"))
      CHECK(traffic.at("within_node") == (traffic.at("group") == "tensor"));
  }
  describe("0.001");
  CHECK(plan({"parallel.tensor=2", "model.ffn=4096"}).code == 4);
  const Outcome many = plan({"parallel.data=8"});
  CHECK(many.code == 2);
  CHECK(many.error.find("8 ranks and '" + tiny.path("cluster.json") + "' has 4 GPUs") != std::string::npos);
}
