// SPDX-License-Identifier: Apache-2.0
#include "command_line.hpp"

#include <encore/backend/error.hpp>
#include <encore/backend/version.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <system_error>

#include "tokenize.hpp"

namespace encore::command {

namespace {

constexpr std::array<std::string_view, 10> commands{"train", "generate", "ab",       "plan", "profile",
                                                    "dump",  "eval",     "tokenize", "info", "report"};

std::string version_line() {
  return fmt::format("encore {} ({})", ENCORE_VERSION_STRING, backend::git_revision());
}

void add_key_flag(CLI::App& app, ConfigurationOptions& options, const std::string& flag,
                  const std::string& key, const std::string& placeholder, const std::string& help) {
  const std::string shown = flag.substr(0, flag.find(','));
  app.add_option_function<std::string>(
         flag,
         [&options, key, shown](const std::string& value) {
           options.flags.push_back({key, value, shown});
         },
         help)
      ->type_name(placeholder);
}

void add_configuration(CLI::App& app, ConfigurationOptions& options) {
  app.add_option("--config", options.file, "JSON file of configuration keys")->type_name("FILE");
  app.add_option("--preset", options.preset, "named configuration; `encore info` lists them")
      ->type_name("NAME");
  app.add_option("--load", options.load,
                 "a checkpoint, or Hugging Face weights: a safetensors file, an index of shards, or a "
                 "folder with config.json, weights and tokenizer.json")
      ->type_name("PATH");
  app.add_option("--set", options.assignments, "one configuration key; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_key_flag(app, options, "--backend", "backend", "NAME", "serial, openmp or cuda");
  add_key_flag(app, options, "--seed", "seed", "N", "seed of weights, dropout and the order of the data");
  for (const std::string name : {"impl", "scope", "modules", "warmup_steps"}) {
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    add_key_flag(app, options, fmt::format("--cuda_graph_{},--cuda-graph-{}", name, dashed),
                 "cuda_graph_" + name, "VALUE", "as Megatron's flag of that name");
  }
}

void add_data(CLI::App& app, DataOptions& options) {
  auto* tokens =
      app.add_option("--data", options.tokens, "tokens in llm.c's format; default: the shipped text")
          ->type_name("FILE");
  app.add_option("--text", options.text, "any file, read as bytes, or by --tokenizer")
      ->type_name("FILE")
      ->excludes(tokens);
  app.add_option(
         "--tokenizer", options.tokenizer,
         "tokenizer.json for the text (default: that of the folder that --load names, if it holds one)")
      ->type_name("FILE")
      ->excludes(tokens);
}

void add_threads(CLI::App& app, int& threads) {
  app.add_option("--threads", threads, "host threads (default: as OpenMP decides)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
}

void add_train(CLI::App& app, TrainOptions& options) {
  add_configuration(app, options.configuration);
  add_data(app, options.data);
  app.add_option("--lengths", options.data.lengths,
                 "file of sequence lengths, one a line with an optional count: each step draws one of them")
      ->type_name("FILE");
  add_key_flag(app, options.configuration, "--graph-validate", "graph.validate_every", "N",
               "compare every N-th replay with an eager run of the same step");
  add_key_flag(app, options.configuration, "--steps", "train.steps", "N",
               "steps, counting those of a loaded checkpoint");
  app.add_option("--log", options.log, "log of one JSON object a step")->type_name("FILE");
  app.add_option("--save", options.save,
                 "safetensors checkpoint, written every train.checkpoint_interval steps and "
                 "at the end; a folder: with config.json, as Hugging Face's")
      ->type_name("PATH");
  app.add_option("--shard-size", options.shard_bytes,
                 "most bytes of a file of the checkpoint, as 5GB: --save then names a folder")
      ->type_name("BYTES")
      ->transform(CLI::AsSizeValue(true));
  app.add_option("--report", options.report, "page for a browser about this run: one HTML file")
      ->type_name("FILE");
  constexpr std::int64_t most = 1000000;
  app.add_option("--evaluate-every", options.evaluate_every,
                 "steps between losses on the evaluation data (with --report: ten in all; else none)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, most));
  auto* steps = app.add_option("--verdict-steps", options.verdict_steps,
                               "steps of each kind for the comparison of eager and replayed steps at the end")
                    ->type_name("N")
                    ->check(CLI::Range(std::int64_t{1}, most))
                    ->capture_default_str();
  app.add_flag_callback(
         "--no-verdict", [&options] { options.verdict_steps = 0; }, "leave that comparison out")
      ->excludes(steps);
  app.add_flag("--profile", options.profile, "print what `encore profile` prints, at the end");
  app.add_option("--profile-file", options.profile_file,
                 "and write what `encore profile --by segment --json` prints")
      ->type_name("FILE");
  add_threads(app, options.threads);
  app.add_flag("--quiet", options.quiet, "print the result alone");
  app.footer(
      "Interrupted (SIGINT, SIGTERM), it finishes the step, saves, and exits with 128 + the signal's "
      "number.\n"
      "Exit codes: 0 done, 2 usage or configuration, 3 file, 4 device or memory, 5 wrong results.");
}

void add_evaluate(CLI::App& app, EvaluateOptions& options) {
  add_configuration(app, options.configuration);
  add_data(app, options.data);
  app.get_option("--load")->required();
  app.add_option("--sequences", options.sequences, "most sequences (default: all)")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  auto* golden = app.add_flag(
      "--golden", options.golden,
      "repeat the computation that the loaded reference file holds, and print the errors as JSON");
  golden->excludes(app.get_option("--data"))->excludes(app.get_option("--text"));
  app.add_option("--tolerance", options.tolerance, "exit with 5 when an error of --golden is larger")
      ->type_name("X")
      ->check(CLI::NonNegativeNumber)
      ->needs(golden);
  add_threads(app, options.threads);
  app.add_flag("--json", options.json, "print one JSON object and nothing else");
}

/// CLI::Range lets through what is not a number.
CLI::Validator number_in(double least, double most) {
  const std::string range = fmt::format("{:g} to {:g}", least, most);
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double value = 0;
        const bool fits = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return fits ? "" : fmt::format("{} is not a number from {}", text, range);
      },
      range);
}

void add_json(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "print one JSON object and nothing else");
}

void add_compare(CLI::App& app, CompareOptions& options) {
  add_configuration(app, options.configuration);
  add_data(app, options.data);
  constexpr std::int64_t most = 1000000;
  app.add_option("--steps", options.steps, "steps of each kind")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->capture_default_str();
  app.add_option("--threshold", options.threshold, "gain in percent below which graphs are not worth keeping")
      ->type_name("PERCENT")
      ->check(number_in(0, 1000))
      ->capture_default_str();
  app.add_option("--noise-ms", options.noise_milliseconds,
                 "add a random busy wait of 0 to X ms to each step of both kinds, to see what the verdict "
                 "makes of it")
      ->type_name("X")
      ->check(number_in(0, 60000));
  app.add_option("--report", options.report, "page for a browser about the comparison: one HTML file")
      ->type_name("FILE");
  add_threads(app, options.threads);
  add_json(app, options.json);
  app.footer(
      "Runs the same steps eagerly and by replay, from the same states, by turns in blocks; warm-up and "
      "capture are\n"
      "left out. The interval of the speed-up is that of the sign test over the pairs of blocks: it holds "
      "for any\n"
      "kind of noise. keep: all of it is above 1 + threshold. do not keep: all of it is below. Otherwise, or "
      "with\n"
      "fewer than 8 pairs, the evidence does not suffice.\n"
      "Exit codes: 0 a verdict, also that the evidence does not suffice; 5 the numbers differ; others as "
      "train.");
}

void add_plan(CLI::App& app, PlanOptions& options) {
  add_configuration(app, options.configuration);
  auto* cluster =
      app.add_option(
             "--cluster", options.cluster,
             "description of a cluster (JSON): what its ranks keep and tell each other, instead of the rest")
          ->type_name("FILE");
  auto* lengths =
      app.add_option("--lengths", options.lengths,
                     "file of sequence lengths, one a line with an optional count: propose graph.buckets")
          ->type_name("FILE")
          ->excludes(cluster);
  app.add_option("--buckets", options.buckets, "most buckets to propose")
      ->type_name("K")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{256}))
      ->needs(lengths)
      ->capture_default_str();
  app.add_option("--multiple-of", options.multiple_of, "propose multiples of this only")
      ->type_name("M")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->needs(lengths)
      ->capture_default_str();
  add_threads(app, options.threads);
  add_json(app, options.json);
  app.footer(
      "Runs nothing and needs no device memory but that of its handles. `captured`, `eager` with the reason "
      "and the\n"
      "smallest change, or `partly`, for each module and stretch of layers; then runs, kernels and memory "
      "for each\n"
      "policy. A configuration that a rule refuses is refused here too, with exit code 2; --json then "
      "prints\n"
      "{\"refused\": ...} with the rule's id, reason and smallest change.");
}

void add_profile(CLI::App& app, ProfileCommandOptions& options) {
  add_configuration(app, options.configuration);
  add_data(app, options.data);
  app.add_option(
         "--by", options.grouping,
         "a line for each kind of segment over all layers (module), each segment, or each kernel's label")
      ->type_name("module|segment|label")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ProfileGrouping>{{"module", ProfileGrouping::module},
                                                 {"segment", ProfileGrouping::segment},
                                                 {"label", ProfileGrouping::label}}));
  constexpr int most = 10000;
  app.add_option("--samples", options.samples, "samples of each segment, of which the median counts")
      ->type_name("N")
      ->check(CLI::Range(1, most))
      ->capture_default_str();
  app.add_option("--step-samples", options.step_samples, "replays of the whole step; 0: none")
      ->type_name("N")
      ->check(CLI::Range(0, most))
      ->capture_default_str();
  add_threads(app, options.threads);
  add_json(app, options.json);
  app.footer(
      "Times each segment of a training step by replaying it alone, and sorts by what could be gained. The "
      "floor of "
      "a segment\n"
      "is the sum over its kernels of the longer of floating-point operations over the rate of a large "
      "matrix "
      "product and\n"
      "bytes over the rate of a large copy, and of its graph nodes times what starting one costs, all "
      "measured "
      "here first.\n"
      "Small segments find their data in caches, and may be faster than their floor.");
}

void add_dump(CLI::App& app, DumpOptions& options) {
  add_configuration(app, options.configuration);
  auto* json = app.add_flag("--json", options.json, "print one JSON object and nothing else");
  app.add_flag("--dot", options.dot, "print a graph for Graphviz")->excludes(json);
  app.add_option("--diff", options.difference, "tell what differs between two dumps made with --json")
      ->type_name("A B")
      ->expected(2)
      ->excludes(app.get_option("--dot"));
  add_threads(app, options.threads);
  app.footer(
      "Buffers with their places in memory, segments with what they read, write and launch, and the runs "
      "that are\n"
      "captured. Holds no address and no time, so two dumps of one configuration are equal.\n"
      "--diff exits with 0 when the dumps are equal, 1 when they differ, 3 when one cannot be read.");
}

void add_generate(CLI::App& app, GenerateOptions& options) {
  add_configuration(app, options.configuration);
  auto* prompt = app.add_option("--prompt", options.prompt, "what the text begins with (default: a new line)")
                     ->type_name("TEXT");
  app.add_option("--prompt-file", options.prompt_file, "file that holds it")
      ->type_name("FILE")
      ->excludes(prompt);
  constexpr std::int64_t most = 1 << 24;
  app.add_option("--tokens", options.tokens, "most tokens that are generated")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, most))
      ->capture_default_str();
  app.add_option("--sequences", options.sequences, "texts, side by side")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}))
      ->capture_default_str();
  app.add_option("--temperature", options.temperature,
                 "0: always the likeliest token; above: how freely it draws")
      ->type_name("X")
      ->check(number_in(0, 100))
      ->capture_default_str();
  app.add_option("--top-k", options.top_k, "draw from as many of the likeliest tokens; 0: from all")
      ->type_name("K")
      ->check(CLI::Range(std::int64_t{0}, most))
      ->capture_default_str();
  app.add_option("--top-p", options.top_p,
                 "draw from the likeliest tokens that have this probability together")
      ->type_name("P")
      ->check(number_in(0, 1))
      ->capture_default_str();
  app.add_option("--end-token", options.end_tokens, "a token that ends a text; may be repeated")
      ->type_name("ID")
      ->allow_extra_args(false);
  auto* tokenizer = app.add_option("--tokenizer", options.tokenizer,
                                   "tokenizer.json of Hugging Face, or its folder, between text and tokens "
                                   "(default: that of the folder that --load names)")
                        ->type_name("FILE");
  app.add_flag("--bytes", options.bytes, "tokens are bytes, although the vocabulary is larger")
      ->excludes(tokenizer);
  auto* eager =
      app.add_flag("--eager", options.eager, "launch the kernels of every step instead of replaying them");
  app.add_flag("--compare", options.compare, "generate the same eagerly, compare, and tell both rates")
      ->excludes(eager);
  add_threads(app, options.threads);
  app.add_flag("--json", options.json, "print one JSON object and nothing else");
  app.footer(
      "Prints the prompt and what follows as it comes, then a line on standard error. A model of 256 tokens\n"
      "writes bytes; for others prompt and text are token ids unless there is a --tokenizer. --seed decides\n"
      "what is drawn. Without --load the weights are random.");
}

void add_information(CLI::App& app, InformationOptions& options) {
  add_configuration(app, options.configuration);
  auto* keys = app.add_flag("--keys", options.keys,
                            "list the configuration keys with what they allow and what they mean");
  app.add_flag("--markdown", options.markdown,
               "with --keys: as the page of the documentation and nothing else")
      ->needs(keys);
  app.add_flag("--rules", options.rules,
               "print the rules about what can be recorded, as Markdown, and nothing else");
  add_threads(app, options.threads);
  app.add_flag("--json", options.json, "print one JSON object and nothing else");
}

void add_report(CLI::App& app, ReportOptions& options) {
  add_configuration(app, options.configuration);
  app.add_option(
         "files", options.files,
         "a training log, and what `encore ab --json` and `encore profile --by segment --json` printed")
      ->type_name("FILE")
      ->required();
  app.add_option("-o,--output", options.output, "the page (default: the first file's name with .html)")
      ->type_name("FILE");
  add_threads(app, options.threads);
  app.footer(
      "The page is one HTML file that loads nothing. With the configuration of the run, from the flags here "
      "or from "
      "one\n"
      "of the files, it also shows memory and graph. `encore train --report` and `encore ab --report` make "
      "it at "
      "once.");
}

/// What a person typed, cut where it is too long to be of help.
std::string shown(const std::string& text) {
  constexpr std::size_t longest = 80;
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

[[noreturn]] void throw_unknown(const std::string& argument, const CLI::App& app) {
  const std::string help =
      fmt::format("`encore {}--help` lists them", app.get_parent() ? app.get_name() + " " : "");
  if (!argument.starts_with('-'))
    throw UsageError(fmt::format("'{}' stands where an option should: {}", shown(argument), help));
  const std::string name = argument.substr(0, argument.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  const std::vector<std::string_view> views(names.begin(), names.end());
  throw UsageError(
      fmt::format("unknown option '{}'{}: {}", shown(name), model::did_you_mean(name, views), help));
}

/// A folder brings its tokenizer along.
void take_tokenizer(std::optional<std::filesystem::path>& tokenizer,
                    const ConfigurationOptions& configuration) {
  if (tokenizer || !configuration.load) return;
  const std::filesystem::path file = *configuration.load / "tokenizer.json";
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) tokenizer = file;
}
void take_tokenizer(DataOptions& data, const ConfigurationOptions& configuration) {
  if (!data.tokens) take_tokenizer(data.tokenizer, configuration);
}

void require_command(const std::vector<std::string>& arguments) {
  const std::string known = fmt::format("the commands are {}", fmt::join(commands, ", "));
  if (arguments.empty())
    throw UsageError(fmt::format("no command given: {}; `encore train` trains a small model", known));
  const std::string& first = arguments.front();
  if (first.starts_with('-') || std::ranges::find(commands, first) != commands.end()) return;
  throw UsageError(
      fmt::format("unknown command '{}'{}: {}", shown(first), model::did_you_mean(first, commands), known));
}

}  // namespace

Command parse(const std::vector<std::string>& arguments) {
  require_command(arguments);
  TrainOptions train;
  CompareOptions comparison;
  PlanOptions plan;
  ProfileCommandOptions profile;
  DumpOptions dump;
  EvaluateOptions evaluation;
  GenerateOptions generation;
  TokenizeOptions tokenization;
  InformationOptions information;
  ReportOptions report;

  CLI::App app{"Trains transformer models: a step is recorded once and replayed.", "encore"};
  app.set_version_flag("--version", version_line());
  app.require_subcommand(0, 1);  // which one was checked already; unknown options come first
  CLI::App* const train_app =
      app.add_subcommand("train", "train a model; without options: a small one on the shipped text");
  CLI::App* const generate_app = app.add_subcommand(
      "generate", "what a model writes: greedy or sampled, by replaying one recorded step");
  CLI::App* const compare_app = app.add_subcommand(
      "ab", "whether graphs are worth keeping: eager against replayed steps, with an interval");
  CLI::App* const plan_app = app.add_subcommand(
      "plan", "what would be captured and why not, and the memory of each policy; runs nothing");
  CLI::App* const profile_app = app.add_subcommand(
      "profile", "what each segment of a step takes, against what the device could do at best");
  CLI::App* const dump_app = app.add_subcommand(
      "dump", "the program of a step with its kernels and memory, or how two of them differ");
  CLI::App* const evaluate_app =
      app.add_subcommand("eval", "the loss of a model, or its distance from a reference file");
  CLI::App* const tokenize_app =
      app.add_subcommand("tokenize", "a text to tokens by a tokenizer.json, and back");
  CLI::App* const information_app = app.add_subcommand(
      "info", "this build, its devices, the presets; a resolved configuration and its memory");
  CLI::App* const report_app =
      app.add_subcommand("report", "a page for a browser from the files of a run or of a comparison");
  add_train(*train_app, train);
  add_generate(*generate_app, generation);
  add_compare(*compare_app, comparison);
  add_plan(*plan_app, plan);
  add_profile(*profile_app, profile);
  add_dump(*dump_app, dump);
  add_evaluate(*evaluate_app, evaluation);
  add_tokenize(*tokenize_app, tokenization);
  add_information(*information_app, information);
  add_report(*report_app, report);
  const std::array apps{train_app, generate_app, compare_app,  plan_app,        profile_app,
                        dump_app,  evaluate_app, tokenize_app, information_app, report_app};
  for (CLI::App* const command : apps) command->allow_extras();

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const CLI::App* const command : apps)
      if (const auto rest = command->remaining(); !rest.empty()) throw_unknown(rest.front(), *command);
  } catch (const CLI::CallForHelp&) {
    return Text{app.help()};
  } catch (const CLI::CallForVersion&) {
    return Text{version_line() + "\n"};
  } catch (const CLI::ExtrasError&) {
    throw_unknown(arguments.front(), app);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  take_tokenizer(train.data, train.configuration);
  take_tokenizer(comparison.data, comparison.configuration);
  take_tokenizer(profile.data, profile.configuration);
  take_tokenizer(evaluation.data, evaluation.configuration);
  if (!generation.bytes) take_tokenizer(generation.tokenizer, generation.configuration);
  if (train_app->parsed()) return train;
  if (generate_app->parsed()) return generation;
  if (compare_app->parsed()) return comparison;
  if (plan_app->parsed()) return plan;
  if (profile_app->parsed()) return profile;
  if (dump_app->parsed()) return dump;
  if (evaluate_app->parsed()) return evaluation;
  if (tokenize_app->parsed()) return tokenization;
  if (report_app->parsed()) return report;
  return information;
}

}  // namespace encore::command
