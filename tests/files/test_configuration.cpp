// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/model/files/configuration_sources.hpp>
#include <encore/model/files/presets.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <random>
#include <string>
#include <utility>

#include "temporary_folder.hpp"

using namespace encore::model;
using encore::ConfigurationError;

namespace {

/// A small model that needs nothing else.
ConfigurationSources small() {
  ConfigurationSources sources;
  sources.json(
      R"({"model": {"family": "llama", "layers": 2, "hidden": 48, "heads": 6, "vocab": 96, "seq": 64}})",
      "small");
  return sources;
}

std::string source_of(const ResolvedConfiguration& resolved, const std::string& key) {
  for (const auto& entry : resolved.entries)
    if (entry.key == key) return entry.source;
  return "no such key";
}

void check_refused(const std::string& assignment, const char* reason) {
  CAPTURE(assignment);
  CHECK_THROWS_WITH_AS(small().assignment(assignment).resolve(), doctest::Contains(reason),
                       ConfigurationError);
}

}  // namespace

TEST_CASE("what is not given follows from the family and from other values") {
  const Configuration llama = small().resolve().configuration;
  CHECK(llama.model.kv_heads == 6);
  CHECK(llama.model.head_dim == 8);
  CHECK(llama.model.ffn == 128);
  CHECK(llama.model.normalization == Normalization::rms_norm);
  CHECK(llama.model.activation == Activation::swiglu);
  CHECK(llama.model.position == Position::rope_half_split);
  CHECK_FALSE(llama.model.qkv_bias);
  CHECK_FALSE(llama.model.tie_embeddings);
  CHECK(llama.train.seq == 64);
  CHECK(llama.train.min_lr == llama.train.lr);
  CHECK(llama.graph.optimizer == OptimizerPlacement::joined);

  const Configuration gpt2 = small().assignment("model.family=gpt2").resolve().configuration;
  CHECK(gpt2.model.ffn == 192);
  CHECK(gpt2.model.normalization == Normalization::layer_norm);
  CHECK(gpt2.model.activation == Activation::gelu_tanh);
  CHECK(gpt2.model.position == Position::learned);
  CHECK(gpt2.model.attention_output_bias);
  CHECK(gpt2.model.tie_embeddings);

  const Configuration bf16 = small().assignment("train.precision=bf16").resolve().configuration;
  CHECK(bf16.train.gradient_type == Precision::bf16);
  CHECK(bf16.train.optimizer_state == Precision::fp32);
  CHECK(bf16.train.master_weights);
}

TEST_CASE("the documented defaults are the real ones") {
  const auto keys = configuration_keys();
  const auto entries = small().resolve().entries;
  REQUIRE(keys.size() == entries.size());
  int literal = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    REQUIRE(keys[i].name == entries[i].key);
    CAPTURE(keys[i].name);
    CHECK_FALSE(keys[i].help.empty());
    CHECK_FALSE(keys[i].allowed.empty());
    const bool in_words =
        keys[i].fallback.find_first_of(" .") != std::string::npos && keys[i].fallback.front() != '0';
    if (in_words || keys[i].fallback == "required") continue;
    CHECK(entries[i].value == keys[i].fallback);
    ++literal;
  }
  CHECK(literal >= 25);
}

TEST_CASE("later kinds of sources win over earlier ones, whatever the order they are added in") {
  const TemporaryFolder folder;
  write_bytes(folder / "c.json", R"({"train": {"lr": 0.003, "clip": 3, "beta1": 0.3}})");
  ModelConfiguration loaded = small().resolve().configuration.model;
  loaded.layers = 7;
  loaded.dropout = 0.25;
  ConfigurationSources sources;
  sources.flag("train.lr", "0.005", "--lr")
      .assignment("train.lr=0.004")
      .assignment("train.clip=4")
      .file(folder / "c.json")
      .checkpoint(loaded, "checkpoint")
      .preset("bytes");
  const ResolvedConfiguration resolved = sources.resolve();
  CHECK(resolved.configuration.train.lr == 0.005);
  CHECK(resolved.configuration.train.clip == 4);
  CHECK(resolved.configuration.train.beta1 == 0.3);
  CHECK(resolved.configuration.model.layers == 7);
  CHECK(resolved.configuration.model.dropout == 0.25);
  CHECK(resolved.configuration.train.microbatch == 4);
  CHECK(source_of(resolved, "train.lr") == "--lr");
  CHECK(source_of(resolved, "train.clip") == "--set");
  CHECK(source_of(resolved, "train.beta1").starts_with("configuration file '"));
  CHECK(source_of(resolved, "model.layers") == "checkpoint");
  CHECK(source_of(resolved, "train.microbatch") == "preset bytes");
  CHECK(source_of(resolved, "train.beta2") == "default");
}

TEST_CASE("nested sections and dotted keys mean the same, and both at once are refused") {
  ConfigurationSources dotted;
  dotted.json(
      R"({"model.family": "llama", "model": {"layers": 2, "hidden": 48, "vocab": 96, "seq": 64}, "model.heads": 6})",
      "f");
  CHECK(dotted.resolve().configuration == small().resolve().configuration);
  CHECK_THROWS_WITH_AS(small().json(R"({"train": {"lr": 1}, "train.lr": 1})", "file 'f'"),
                       "file 'f' has the key 'train.lr' twice, nested and dotted", ConfigurationError);
  CHECK_THROWS_WITH_AS(small().json(R"({"seed": 1, "seed": 2})", "file 'f'"),
                       "file 'f' has the key 'seed' twice", ConfigurationError);
}

TEST_CASE("an unknown key is refused with the nearest known one") {
  check_refused("model.layer=2",
                "unknown configuration key 'model.layer' (--set) (did you mean 'model.layers'?)");
  check_refused("lr=2", "(did you mean 'train.lr'?)");
  check_refused("train.warmup=2", "unknown configuration key 'train.warmup'");
  check_refused("colour=2", "unknown configuration key 'colour' (--set)");
  check_refused("model=2", "unknown configuration key 'model'");
  check_refused("model.experts=8",
                "model.experts (--set) has no meaning for this model: it is about the families");
  check_refused("model.layers", "--set 'model.layers' is not of the form key=value");
  check_refused("=2", "is not of the form key=value");
  check_refused("", "is not of the form key=value");
  CHECK_THROWS_WITH_AS(small().json(R"({"model": {"layers": {"a": 1}}})", "f"),
                       doctest::Contains("unknown configuration key 'model.layers.a'"), ConfigurationError);
}

TEST_CASE("a value outside its range is refused with key, value and range") {
  check_refused("model.layers=0", "model.layers = 0 (--set) must be a whole number from 1 to 10000");
  check_refused("model.layers=-3", "model.layers = -3 (--set) must be a whole number from 1 to 10000");
  check_refused("model.layers=10001", "model.layers = 10001");
  check_refused("model.layers=99999999999999999999", "model.layers = '99999999999999999999'");
  check_refused("model.layers=2.0", "model.layers = '2.0'");
  check_refused("model.layers=2 ", "model.layers = '2 '");
  check_refused("model.layers=", "model.layers = ''");
  check_refused("model.layers=0x10", "model.layers = '0x10'");
  check_refused("model.dropout=1", "model.dropout = 1 (--set) must be a number from 0 to below 1");
  check_refused("model.dropout=-0.1", "model.dropout = -0.1");
  check_refused("train.lr=nan", "train.lr = nan (--set) must be a number from 0 to 100");
  check_refused("train.lr=inf", "train.lr = inf");
  check_refused("train.lr=1e999", "train.lr = '1e999'");
  check_refused("train.lr=fast", "train.lr = 'fast'");
  check_refused("train.epsilon=0", "train.epsilon = 0 (--set) must be a number above 0 and at most 1");
  check_refused("train.beta2=1", "train.beta2 = 1");
  check_refused("train.precision=fp16", "train.precision = 'fp16' (--set) must be one of fp32, bf16");
  check_refused("model.qkv_bias=yes", "model.qkv_bias = 'yes' (--set) must be true or false");
  check_refused("backend=hip", "backend = 'hip' (--set) must be one of serial, openmp, cuda");
  check_refused("seed=-1", "seed = -1");
  check_refused("parallel.expert=2", "G-18: parallel.expert = 2 with parallel.data = 1: ");
  check_refused("parallel.tensor=0", "parallel.tensor = 0 (--set) must be a whole number from 1 to 65536");
  CHECK(small().assignment("model.dropout=0.999").resolve().configuration.model.dropout == 0.999);
  CHECK(small().assignment("train.lr=0").resolve().configuration.train.lr == 0);
}

TEST_CASE("a value of the wrong JSON type is refused with what stood there") {
  for (const auto& [json, reason] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"model": {"layers": "2"}})", R"(model.layers = "2" (f) must be a whole number)"},
           {R"({"model": {"layers": 2.5}})", "model.layers = 2.5 (f)"},
           {R"({"model": {"layers": 1e400}})", "f is not valid JSON"},
           {R"({"model": {"layers": 18446744073709551615}})", "model.layers = 18446744073709551615 (f)"},
           {R"({"model": {"layers": 18446744073709551616}})", "model.layers = 1.8446744073709552e+19 (f)"},
           {R"({"model": {"layers": null}})", "model.layers = null (f)"},
           {R"({"model": {"layers": [2]}})", "model.layers = [2] (f)"},
           {R"({"model": {"layers": true}})", "model.layers = true (f)"},
           {R"({"model": {"qkv_bias": 1}})", "model.qkv_bias = 1 (f) must be true or false"},
           {R"({"train": {"lr": "1"}})", R"(train.lr = "1" (f))"},
           {R"({"train": {"lr": NaN}})", R"(train.lr = "NaN" (f))"},
           {R"({"train": {"lr": -Infinity}})", R"(train.lr = "-Infinity" (f))"},
           {R"({"train": {"precision": 32}})", "train.precision = 32 (f)"},
           {R"({"graph": {"modules": ["attn", 1]}})", R"(graph.modules = ["attn",1] (f))"},
           {R"([1])", "f is not a JSON object"},
           {R"({"a": )", "f is not valid JSON"},
           {"", "f is not valid JSON"},
           {"{\"seed\": 1} x", "f is not valid JSON"},
           {"{\"\xff\": 1}", "f is not valid JSON"}}) {
    CAPTURE(json);
    CHECK_THROWS_WITH_AS(small().json(json, "f"), doctest::Contains(reason), ConfigurationError);
  }
  CHECK_THROWS_WITH_AS(small().json(std::string(100'000, '['), "f"),
                       doctest::Contains("nested more than 32 deep"), ConfigurationError);
}

TEST_CASE("missing values are named all at once") {
  CHECK_THROWS_WITH_AS(
      ConfigurationSources().resolve(),
      "model.family, model.layers, model.hidden, model.heads, model.vocab, model.seq are missing: "
      "choose a preset, or give them in a configuration file or as --set key=value",
      ConfigurationError);
  ConfigurationSources sources;
  sources.json(R"({"model": {"family": "llama", "layers": 2, "hidden": 48, "heads": 6, "seq": 64}})", "f");
  CHECK_THROWS_WITH_AS(sources.resolve(), doctest::Contains("model.vocab is missing"), ConfigurationError);
}

TEST_CASE("a missing configuration file is an error of its own kind") {
  CHECK_THROWS_WITH_AS(small().file("/no/such.json"),
                       "cannot read '/no/such.json': No such file or directory", encore::InputFileError);
}

TEST_CASE("values that contradict each other are refused with both") {
  check_refused("model.kv_heads=4", "model.heads = 6 must be a multiple of model.kv_heads = 4");
  check_refused("model.kv_heads=12", "model.heads = 6 must be a multiple of model.kv_heads = 12");
  check_refused("model.heads=5", "model.hidden = 48 must be a multiple of model.heads = 5");
  check_refused("model.head_dim=7", "model.head_dim = 7 must be even");
  check_refused("model.activation=gelu", "model.activation must be swiglu in the family llama");
  check_refused("model.normalization=layer_norm", "model.normalization must be rms_norm");
  check_refused("model.position=learned",
                "model.position must be rope_half_split, rope_interleaved or none in the family llama");
  check_refused("model.family=bert", "model.family = 'bert' (--set) must be one of gpt2, llama, qwen3, ");
  check_refused("train.seq=65", "train.seq = 65 must not exceed model.seq = 64");
  check_refused("train.min_lr=1", "train.min_lr = 1 must not exceed train.lr = 0.0003");
  check_refused("train.gradient_type=bf16", "train.gradient_type = bf16 needs train.precision = bf16");
  check_refused("train.master_weights=true", "train.master_weights = true needs train.precision = bf16");
  check_refused("graph.modules=attn", "graph.modules = attn with graph.impl = full_iteration");
  const auto both = [](const char* first, const char* second) {
    return small().assignment(first).assignment(second).resolve();
  };
  CHECK_THROWS_WITH_AS(both("train.lr_warmup_steps=9", "train.lr_decay_steps=8"),
                       doctest::Contains("train.lr_decay_steps = 8 must be 0 or at least"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(both("train.microbatch=1000000", "model.seq=10000"),
                       doctest::Contains("below 2^31 tokens"), ConfigurationError);
  CHECK_THROWS_WITH_AS(both("graph.impl=layer", "graph.optimizer=joined"),
                       doctest::Contains("graph.optimizer = joined with graph.impl = layer"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(both("graph.impl=none", "graph.optimizer=separate"),
                       doctest::Contains("graph.optimizer = separate"), ConfigurationError);
  CHECK_THROWS_WITH_AS(both("model.family=gpt2", "model.kv_heads=3"), doctest::Contains("in the family gpt2"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(both("model.family=gpt2", "model.head_dim=16"),
                       doctest::Contains("must be model.hidden = 48"), ConfigurationError);
  CHECK_THROWS_WITH_AS(both("model.family=gpt2", "model.mlp_bias=false"), doctest::Contains("model.mlp_bias"),
                       ConfigurationError);
  CHECK_THROWS_WITH_AS(both("model.family=gpt2", "model.rope_theta=5"),
                       doctest::Contains("model.rope_theta (--set) has no meaning"), ConfigurationError);
  CHECK(both("model.head_dim=10", "model.kv_heads=2").configuration.model.head_dim == 10);
}

TEST_CASE("an absurd number of parameters is refused before anything is allocated") {
  ConfigurationSources sources = small();
  sources.assignment("model.hidden=1048576").assignment("model.layers=10000").assignment("model.head_dim=2");
  CHECK_THROWS_WITH_AS(sources.resolve(), doctest::Contains("more than the 1e+13 that make sense"),
                       ConfigurationError);
  sources.assignment("model.heads=65536").assignment("model.head_dim=16384");
  CHECK_THROWS_WITH_AS(sources.resolve(), doctest::Contains("must be at most 4194304"), ConfigurationError);
  sources.assignment("model.head_dim=64")
      .assignment("model.ffn=16777216")
      .assignment("model.vocab=2147483647");
  CHECK_THROWS_WITH_AS(sources.resolve(), doctest::Contains("more than the 1e+13 that make sense"),
                       ConfigurationError);
}

TEST_CASE("a memory limit is given in bytes or with a unit") {
  const auto limit = [](const std::string& text) {
    return small().assignment("graph.memory_limit=" + text).resolve().configuration.graph.memory_limit;
  };
  CHECK(limit("20GiB") == 20LL << 30);
  CHECK(limit("20 GiB") == 20LL << 30);
  CHECK(limit("3MB") == 3'000'000);
  CHECK(limit("1024") == 1024);
  CHECK(limit("7B") == 7);
  CHECK(small()
            .json(R"({"graph": {"memory_limit": "2KiB"}})", "f")
            .resolve()
            .configuration.graph.memory_limit == 2048);
  CHECK(small().json(R"({"graph": {"memory_limit": 5}})", "f").resolve().configuration.graph.memory_limit ==
        5);
  check_refused("graph.memory_limit=20gib", "graph.memory_limit = '20gib' (--set) must be a number of bytes");
  check_refused("graph.memory_limit=GiB", "graph.memory_limit = 'GiB'");
  check_refused("graph.memory_limit=-1GiB", "graph.memory_limit = -1073741824");
  check_refused("graph.memory_limit=1-2", "graph.memory_limit = '1-2'");
  check_refused("graph.memory_limit=9000000000000TiB", "graph.memory_limit = '9000000000000TiB'");
}

TEST_CASE("graph modules are a list without repetition, kept in one order") {
  const auto modules = [](const std::string& text) {
    return small()
        .assignment("graph.impl=layer")
        .assignment("graph.modules=" + text)
        .resolve()
        .configuration.graph;
  };
  CHECK(modules("mlp,attn").modules == std::vector{GraphModule::attn, GraphModule::mlp});
  CHECK(modules("").modules.empty());
  CHECK(modules("attn").optimizer == OptimizerPlacement::separate);
  CHECK_THROWS_WITH_AS(modules("attn,attn"), doctest::Contains("name it once"), ConfigurationError);
  CHECK_THROWS_WITH_AS(modules("attn,,mlp"), doctest::Contains("graph.modules = ''"), ConfigurationError);
  CHECK_THROWS_WITH_AS(modules("head"),
                       doctest::Contains("graph.modules = 'head' (--set): layers have no such part"),
                       ConfigurationError);
}

TEST_CASE("a detail of a weaker source gives way to the kind of recording that a stronger one chooses") {
  const char* file = R"({"graph": {"impl": "layer", "modules": ["attn"], "optimizer": "separate"}})";
  const auto graph = [&](const char* assignment) {
    return small().json(file, "f").assignment(assignment).resolve().configuration.graph;
  };
  CHECK(graph("graph.impl=none").modules.empty());
  CHECK(graph("graph.impl=none").optimizer == OptimizerPlacement::eager);
  CHECK(graph("graph.impl=full_iteration").modules.empty());
  CHECK(graph("graph.impl=full_iteration").optimizer == OptimizerPlacement::separate);
  CHECK(graph("graph.warmup_steps=5").modules == std::vector{GraphModule::attn});
  ModelConfiguration gpt2 = small().assignment("model.family=gpt2").resolve().configuration.model;
  CHECK(ConfigurationSources().preset("llama-3-8b").checkpoint(gpt2, "c").resolve().configuration.model ==
        gpt2);
}

TEST_CASE("a resolved configuration, printed and read as a file, resolves to itself") {
  std::mt19937 random(3);
  const auto pick = [&random](std::initializer_list<const char*> options) {
    return std::string(*(options.begin() + random() % options.size()));
  };
  int resolved_count = 0;
  for (int round = 0; round < 500; ++round) {
    ConfigurationSources sources;
    sources.preset(presets()[random() % presets().size()].name);
    for (int i = 0; i < 6; ++i) {
      sources.assignment(
          pick({"model.dropout=0.1", "model.layers=3", "model.kv_heads=1", "train.lr=0.0123456789",
                "train.steps=77", "train.precision=fp32", "train.precision=bf16", "graph.impl=none",
                "graph.impl=layer", "graph.modules=mlp", "graph.memory_limit=3GiB", "backend=cuda",
                "seed=9007199254740992", "train.min_lr=1e-7", "model.rope_theta=12345.678",
                "model.position=rope_interleaved", "train.epsilon=1e-12", "graph.recapture=true"}));
    }
    ResolvedConfiguration resolved;
    try {
      resolved = sources.resolve();
    } catch (const ConfigurationError&) {
      continue;
    }
    ++resolved_count;
    const std::string json = to_json(resolved.configuration);
    CAPTURE(json);
    CHECK(ConfigurationSources().json(json, "printed").resolve().configuration == resolved.configuration);
  }
  CHECK(resolved_count > 100);
}

TEST_CASE("an error shows a long value cut between characters, and on one line") {
  std::string value;
  for (int i = 0; i < 100; ++i) value += "\xc3\xa4";
  std::string shown = "model.layers = '";
  for (int i = 0; i < 60; ++i) shown += "\xc3\xa4";
  check_refused("model.layers=" + value, (shown + "...' (--set)").c_str());
  check_refused("model.layers=a" + value, "\xc3\xa4...' (--set)");
  check_refused("model.layers=1\n2", "model.layers = '1\\x0a2' (--set)");
}

TEST_CASE("a configuration built by hand is checked like a parsed one") {
  Configuration configuration = small().resolve().configuration;
  CHECK_NOTHROW(check(configuration));
  configuration.train.beta1 = 1;
  CHECK_THROWS_WITH_AS(check(configuration), "train.beta1 = 1 must be a number from 0 to below 1",
                       ConfigurationError);
  configuration.train.beta1 = 0.9;
  configuration.model.family = "other";
  CHECK_THROWS_WITH_AS(check(configuration.model),
                       doctest::Contains("model.family = 'other' must be one of gpt2, llama, "),
                       ConfigurationError);
  CHECK_THROWS_AS(check(ModelConfiguration{}), ConfigurationError);
}
