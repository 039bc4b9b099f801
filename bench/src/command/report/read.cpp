// SPDX-License-Identifier: Apache-2.0
#include "read.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string_view>

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_bytes = std::size_t{4} << 30;

/// Discarded where the text is no JSON, or nested deeper than anything that the command writes.
Json parsed(std::string_view text) {
  constexpr int most_nested = 64;
  bool too_deep = false;
  Json json = Json::parse(
      text,
      [&too_deep](int depth, Json::parse_event_t, Json&) {
        too_deep = too_deep || depth > most_nested;
        return !too_deep;
      },
      false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

/// A number; null, as a log has what is not finite, is not a number.
double number(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

double number_or(const Json& object, const char* key, double otherwise) {
  return object.contains(key) ? number(object, key) : otherwise;
}

graph::StepMode mode_of(const std::string& name) {
  for (const auto mode : {graph::StepMode::eager, graph::StepMode::capture, graph::StepMode::replay})
    if (graph::name_of(mode) == name) return mode;
  throw InputFileError(fmt::format("'{}' is no mode of a step", name));
}

graph::Bound bound_of(const std::string& name) {
  for (const auto bound : {graph::Bound::arithmetic, graph::Bound::memory, graph::Bound::launches})
    if (graph::name_of(bound) == name) return bound;
  throw InputFileError(fmt::format("'{}' bounds no segment", name));
}

void add_step(ReportSources& sources, const Json& line) {
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  sources.steps.push_back({.step = line.at("step").get<std::int64_t>(),
                           .loss = number(line, "loss"),
                           .gradient_norm = number_or(line, "grad_norm", unknown),
                           .learning_rate = number_or(line, "lr", unknown),
                           .tokens_per_second = number_or(line, "tokens_per_s", unknown),
                           .milliseconds = number(line, "ms"),
                           .mode = mode_of(line.at("mode").get<std::string>()),
                           .graph_nodes = line.value("graph_nodes", std::int64_t{0})});
  if (line.contains("eval_loss"))
    sources.evaluations.push_back({sources.steps.back().step, number(line, "eval_loss")});
}

ReportVerdict verdict_of(const Json& json) {
  ReportVerdict verdict;
  verdict.decision = json.at("verdict").get<std::string>();
  verdict.reason = json.at("reason").get<std::string>();
  verdict.threshold = json.at("threshold_percent").get<double>() / 100;
  verdict.small_gain = json.at("small_gain").get<bool>();
  verdict.steps = json.at("steps").get<std::int64_t>();
  if (!json.at("difference").is_null()) verdict.difference = json.at("difference").get<std::string>();
  verdict.loss_difference = number(json, "loss_difference");
  verdict.eager_milliseconds = number(json, "eager_ms");
  verdict.replay_milliseconds = number(json, "replay_ms");
  verdict.capture_milliseconds = number(json, "capture_ms");
  if (!json.at("break_even_steps").is_null())
    verdict.break_even_steps = json.at("break_even_steps").get<std::int64_t>();
  verdict.eager_launches = json.at("eager_launches").get<std::int64_t>();
  verdict.graph_nodes = json.at("graph_nodes").get<std::int64_t>();
  if (json.contains("speedup")) {
    const Json& speedup = json.at("speedup");
    verdict.speedup = graph::SpeedupInterval{number(speedup, "median"), number(speedup, "lower"),
                                             number(speedup, "upper"), number(speedup, "confidence")};
  }
  verdict.blocks.eager = json.at("blocks").at("eager_ms").get<std::vector<double>>();
  verdict.blocks.replay = json.at("blocks").at("replay_ms").get<std::vector<double>>();
  return verdict;
}

graph::StepProfile profile_of(const Json& json) {
  if (json.at("by").get<std::string>() != "segment")
    throw InputFileError(
        "a profile for a report is by segment: make it with `encore profile --by segment --json`");
  graph::StepProfile profile;
  const Json& rates = json.at("rates");
  profile.rates = {number(rates, "flops_per_second"), number(rates, "bytes_per_second"),
                   number(rates, "seconds_per_node")};
  for (const Json& row : json.at("rows")) {
    graph::SegmentProfile& segment = profile.segments.emplace_back();
    segment.name = row.at("name").get<std::string>();
    segment.milliseconds = number(row, "ms");
    segment.floor_milliseconds = number(row, "floor_ms");
    segment.nodes = number(row, "nodes");
    segment.flops = number(row, "flops");
    segment.bytes = number(row, "bytes");
    segment.bound = bound_of(row.at("bound").get<std::string>());
    segment.eager_because = row.value("eager_because", "");
  }
  if (json.contains("replay")) {
    profile.replay_milliseconds = number(json.at("replay"), "ms");
    profile.replay_nodes = json.at("replay").at("nodes").get<std::size_t>();
  }
  return profile;
}

void add_object(ReportSources& sources, const Json& json) {
  if (json.contains("verdict"))
    sources.verdict = verdict_of(json);
  else if (json.contains("rates"))
    sources.profile = profile_of(json);
  else if (json.contains("step"))
    return add_step(sources, json);
  else
    throw InputFileError(
        "this is neither a training log nor what `encore ab` or `encore profile` print with --json");
  if (json.contains("configuration")) sources.configuration = json.at("configuration").dump();
  if (json.contains("device")) sources.device = json.at("device").get<std::string>();
}

/// What is wrong with an object, with where it stands.
template <class Add>
void add_naming(const std::string& where, const Add& add) {
  try {
    add();
  } catch (const InputFileError& error) {
    throw InputFileError(fmt::format("{}: {}", where, error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw InputFileError(fmt::format("{} is not what encore writes: {}", where, error.what()));
  }
}

void add_log(ReportSources& sources, std::string_view text, const std::string& name) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const Json json = parsed(line);
    if (json.is_discarded() && text.empty() && number > 1) return;  // torn
    add_naming(fmt::format("'{}' line {}", name, number), [&] {
      if (!json.is_object()) throw InputFileError("this is no JSON object");
      add_step(sources, json);
    });
  }
}

}  // namespace

void add_file(ReportSources& sources, const std::filesystem::path& file) {
  const std::string name = file.string();
  const std::string text = model::read_text_file(file, most_bytes);
  const Json whole = parsed(text);
  if (whole.is_object()) return add_naming(fmt::format("'{}'", name), [&] { add_object(sources, whole); });
  if (text.empty()) throw InputFileError(fmt::format("'{}' holds no step", name));
  add_log(sources, text, name);
}

}  // namespace encore::command
