// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "run_command.hpp"

TEST_CASE("help and version are printed and end well") {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"train", "--help"},
                                                    {"ab", "--help"},
                                                    {"plan", "--help"},
                                                    {"profile", "--help"},
                                                    {"dump", "--help"},
                                                    {"eval", "-h"},
                                                    {"info", "--help"}}) {
    const Outcome outcome = encore(arguments);
    CHECK(outcome.code == 0);
    CHECK(outcome.error.empty());
    CHECK(outcome.output.find("--") != std::string::npos);
  }
  const Outcome version = encore({"--version"});
  CHECK(version.code == 0);
  CHECK(version.output.starts_with("encore 0."));
}

TEST_CASE("the help of train names every flag") {
  const std::string help = encore({"train", "--help"}).output;
  for (const char* const flag :
       {"--config", "--preset", "--data", "--text", "--backend", "--steps", "--seed", "--log", "--save",
        "--load", "--set", "--threads", "--quiet", "--no-verdict", "--verdict-steps", "--cuda_graph_impl",
        "--cuda_graph_scope", "--cuda_graph_modules", "--cuda_graph_warmup_steps"})
    CHECK_MESSAGE(help.find(flag) != std::string::npos, flag);
}

TEST_CASE("the help of ab, profile, plan and dump names every flag") {
  const auto names = [](const char* command, std::initializer_list<const char*> flags) {
    const std::string help = encore({command, "--help"}).output;
    for (const char* const flag : flags)
      CHECK_MESSAGE(help.find(flag) != std::string::npos, command, " ", flag);
  };
  names("ab", {"--preset", "--set", "--data", "--steps", "--threshold", "--noise-ms", "--threads", "--json"});
  names("profile",
        {"--preset", "--set", "--data", "--by", "--samples", "--step-samples", "--threads", "--json"});
  names("plan", {"--preset", "--set", "--lengths", "--buckets", "--multiple-of", "--threads", "--json"});
  names("dump", {"--preset", "--set", "--diff", "--dot", "--threads", "--json"});
}

TEST_CASE("a missing or unknown command is answered with the list of commands") {
  check_refused(encore({}), 2, {"train", "eval", "info"});
  check_refused(encore({"tune"}), 2,
                {"'tune'", "train, generate, ab, plan, profile, dump, eval, tokenize, info, report"});
  check_refused(encore({"trian"}), 2, {"'trian'", "did you mean 'train'"});
}

TEST_CASE("an unknown option is answered with the nearest one") {
  check_refused(encore({"train", "--stpes", "3"}), 2, {"'--stpes'", "did you mean '--steps'"});
  check_refused(encore({"eval", "--gloden", "--load", "x"}), 2, {"'--gloden'", "did you mean '--golden'"});
  check_refused(encore({"--frobnicate"}), 2, {"'--frobnicate'"});
  check_refused(encore({"train", "--zzzzzzzzzz"}), 2, {"'--zzzzzzzzzz'", "encore train --help"});
}

TEST_CASE("an argument that is no option is refused") {
  check_refused(encore({"train", "model.json"}), 2, {"'model.json'"});
  check_refused(encore({"info", "train"}), 2, {"'train'"});
}

TEST_CASE("options that need a value, or a number, or exclude each other say so") {
  check_refused(encore({"train", "--config"}), 2, {"--config"});
  check_refused(encore({"train", "--threads", "many"}), 2, {"--threads"});
  check_refused(encore({"train", "--threads", "0"}), 2, {"--threads"});
  check_refused(encore({"train", "--verdict-steps", "-1"}), 2, {"--verdict-steps"});
  check_refused(encore({"train", "--no-verdict", "--verdict-steps", "3"}), 2,
                {"--no-verdict", "--verdict-steps"});
  check_refused(encore({"train", "--data", "a.bin", "--text", "b.txt"}), 2, {"--data", "--text"});
  check_refused(encore({"train", "--steps", "5", "--steps", "6"}), 2, {"--steps"});
  check_refused(encore({"ab", "--steps", "0"}), 2, {"--steps"});
  check_refused(encore({"ab", "--threshold", "-1"}), 2, {"--threshold"});
  check_refused(encore({"ab", "--noise-ms", "nan"}), 2, {"--noise-ms"});
  check_refused(encore({"plan", "--buckets", "4"}), 2, {"--buckets", "--lengths"});
  check_refused(encore({"plan", "--lengths", "f", "--buckets", "0"}), 2, {"--buckets"});
  check_refused(encore({"plan", "--lengths", "f", "--multiple-of", "0"}), 2, {"--multiple-of"});
  check_refused(encore({"dump", "--json", "--dot"}), 2, {"--json", "--dot"});
  check_refused(encore({"dump", "--diff", "a.json"}), 2, {"--diff"});
  check_refused(encore({"dump", "--dot", "--diff", "a.json", "b.json"}), 2, {"--diff", "--dot"});
  check_refused(encore({"eval"}), 2, {"--load"});
  check_refused(encore({"eval", "--load", "a", "--tolerance", "1e-5"}), 2, {"--tolerance", "--golden"});
}

TEST_CASE("an argument of many bytes or of control characters gives one readable line") {
  check_refused(encore({std::string(100000, 'x')}), 2, {"unknown command"});
  check_refused(encore({"train", "--set", "a\nb=\x01"}), 2, {"unknown configuration key"});
  check_refused(encore({"tr\nain\x1b[31m"}), 2, {"unknown command"});
}
