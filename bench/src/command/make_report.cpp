// SPDX-License-Identifier: Apache-2.0
#include "make_report.hpp"

#include <encore/backend/error.hpp>

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "../device/session.hpp"
#include "configure.hpp"
#include "report/gather.hpp"
#include "report/page.hpp"
#include "report/read.hpp"

namespace encore::command {

namespace {

bool names_configuration(const ConfigurationOptions& options) {
  return options.preset || options.file || options.load || !options.assignments.empty() ||
         !options.flags.empty();
}

std::optional<model::ResolvedConfiguration> configuration_of(const ReportOptions& options,
                                                             const ReportSources& sources) {
  if (names_configuration(options.configuration)) return resolve(options.configuration, "bytes");
  if (sources.configuration.empty()) return std::nullopt;
  model::ConfigurationSources configuration;
  configuration.json(sources.configuration, options.files.front().string());
  return configuration.resolve();
}

}  // namespace

int make_report(const ReportOptions& options, Console& console) {
  ReportSources sources;
  for (const std::filesystem::path& file : options.files) add_file(sources, file);
  const std::filesystem::path output =
      options.output ? *options.output
                     : std::filesystem::path(options.files.front()).replace_extension(".html");
  for (const std::filesystem::path& file : options.files)
    if (file == output)
      throw UsageError(fmt::format("'{}' would be overwritten by its own report: name another by --output",
                                   output.string()));

  Report report;
  report.title = fmt::format("Report of {}", options.files.front().filename().string());
  report.steps = std::move(sources.steps);
  report.evaluations = std::move(sources.evaluations);
  report.verdict = std::move(sources.verdict);
  if (!sources.device.empty()) report.facts.push_back({"device", sources.device});
  if (const auto resolved = configuration_of(options, sources)) {
    std::optional<DeviceSession> session;
    try {
      session.emplace(options.threads);
    } catch (const DeviceError& error) {
      report.no_program = fmt::format("Not shown: {}.", error.what());
    }
    add_configuration(report, *resolved, session ? ProgramInReport::include : ProgramInReport::leave_out);
  } else {
    report.no_program =
        "Not shown, because the files do not say which configuration they are of: name it as for the run, "
        "such as by "
        "--preset or --config.";
  }
  if (sources.profile) add_profile(report, std::move(*sources.profile));
  write_page(output, report);
  console.line(output.string());
  return 0;
}

}  // namespace encore::command
