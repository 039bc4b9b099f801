// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include <encore/backend/error.hpp>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <type_traits>
#include <variant>

#include "command_line.hpp"
#include "compare.hpp"
#include "console.hpp"
#include "dump.hpp"
#include "evaluate.hpp"
#include "generate.hpp"
#include "information.hpp"
#include "make_report.hpp"
#include "plan.hpp"
#include "profile.hpp"
#include "tokenize.hpp"
#include "train.hpp"

namespace encore::command {

namespace {

int perform(const Command& command) {
  Console console;
  const int code = std::visit(
      [&](const auto& options) {
        using Options = std::remove_cvref_t<decltype(options)>;
        if constexpr (std::is_same_v<Options, TrainOptions>) return train(options, console);
        if constexpr (std::is_same_v<Options, EvaluateOptions>) return evaluate(options, console);
        if constexpr (std::is_same_v<Options, GenerateOptions>) return generate(options, console);
        if constexpr (std::is_same_v<Options, CompareOptions>) return compare(options, console);
        if constexpr (std::is_same_v<Options, PlanOptions>) return print_plan(options, console);
        if constexpr (std::is_same_v<Options, ProfileCommandOptions>) return profile(options, console);
        if constexpr (std::is_same_v<Options, DumpOptions>) return dump(options, console);
        if constexpr (std::is_same_v<Options, TokenizeOptions>) return tokenize(options, console);
        if constexpr (std::is_same_v<Options, InformationOptions>) return print_information(options, console);
        if constexpr (std::is_same_v<Options, ReportOptions>) return make_report(options, console);
        if constexpr (std::is_same_v<Options, Text>) {
          console.print(options.text);
          return 0;
        }
      },
      command);
  console.finish();
  return code;
}

bool is_control(char character) {
  const auto byte = static_cast<unsigned char>(character);
  return byte < 0x20 || byte == 0x7f;
}

int report(const char* sentence, int code) {
  std::string line = "encore: ";
  for (const char* at = sentence; *at != '\0'; ++at) line += is_control(*at) ? ' ' : *at;
  line += '\n';
  std::fputs(line.c_str(), stderr);
  return code;
}

}  // namespace

int run(const std::vector<std::string>& arguments) noexcept {
  // A reader of the output that goes away must not end a training.
  std::signal(SIGPIPE, SIG_IGN);
  // A full disk or a limit on file sizes is an error of the write then, not the end of the program.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return perform(parse(arguments));
  } catch (const Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report("the host's memory does not suffice: make the model or train.microbatch smaller",
                  exit_code(ErrorCode::out_of_memory));
  } catch (const std::filesystem::filesystem_error& error) {
    return report(error.what(), exit_code(ErrorCode::input_file));
  } catch (const std::exception& error) {
    return report(error.what(), exit_code(ErrorCode::internal));
  }
}

}  // namespace encore::command
