// SPDX-License-Identifier: Apache-2.0
#include "page.hpp"

#include <encore/backend/version.hpp>
#include <encore/model/files/atomic_file.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string_view>

#include "../numbers.hpp"
#include "figures.hpp"
#include "html.hpp"

namespace encore::command {

std::string_view page_style() noexcept;
std::string_view page_script() noexcept;

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_steps_in_script = 20000;
constexpr std::size_t most_rows = 400;

std::string card(const char* name, const std::string& value, const std::string& below = {}) {
  return fmt::format("<div><dt>{}</dt><dd>{}</dd>{}</div>", name, value,
                     below.empty() ? "" : fmt::format("<dd class=\"below\">{}</dd>", below));
}

/// The numbers that a person looks for first.
std::string cards(const Report& report) {
  std::string text;
  if (!report.steps.empty()) {
    const ReportStep& last = report.steps.back();
    text += card("steps", data_element(static_cast<double>(last.step),
                                       grouped_text(static_cast<double>(last.step)), "last_step"));
    text +=
        card("loss", data_element(last.loss, number_text(last.loss), "final_loss"),
             fmt::format("at first {}", data_element(report.steps.front().loss,
                                                     number_text(report.steps.front().loss), "first_loss")));
    using enum graph::StepMode;
    const double replayed = median_milliseconds(report.steps, replay);
    const double eager_steps = median_milliseconds(report.steps, eager);
    const double typical = replayed > 0 ? replayed : eager_steps;
    text += card("a step", data_element(typical, number_text(typical) + " ms", "step_ms"),
                 replayed > 0 ? "median of the replayed" : "median of the eager");
    std::vector<double> rates;
    for (const ReportStep& step : report.steps)
      if (std::isfinite(step.tokens_per_second)) rates.push_back(step.tokens_per_second);
    const double rate = graph::median(std::move(rates));
    text += card("tokens a second", data_element(rate, grouped_text(rate), "tokens_per_s"), "median of all");
  }
  if (!report.evaluations.empty()) {
    const double loss = report.evaluations.back().loss;
    text += card("evaluation loss", data_element(loss, number_text(loss)));
  }
  if (report.verdict && report.verdict->speedup) {
    const graph::SpeedupInterval& speedup = *report.verdict->speedup;
    text += card("speed-up by graphs", fmt::format("{:.2f}\xC3\x97", speedup.speedup),
                 fmt::format("{:.3f} to {:.3f}", speedup.lower, speedup.upper));
  }
  if (report.program && !report.program->memory.empty()) {
    double total = 0;
    for (const ReportMemory& use : report.program->memory) total += static_cast<double>(use.bytes);
    text += card("memory", bytes_text(total));
  }
  return text.empty() ? "" : fmt::format("<dl class=\"cards\">{}</dl>\n", text);
}

std::string facts(const Report& report) {
  std::string text;
  for (const ReportFact& fact : report.facts)
    text += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", escaped(fact.name), escaped(fact.value));
  return text.empty() ? "" : fmt::format("<dl class=\"facts\">{}</dl>\n", text);
}

std::string steps_table(const Report& report) {
  if (report.steps.empty()) return {};
  const std::vector<ReportStep> shown = thinned(report.steps, most_rows);
  std::string rows;
  for (const ReportStep& step : shown) {
    const auto cell = [&](const char* name, double value) {
      return fmt::format("<td class=\"number\" data-label=\"{}\">{}</td>", name,
                         data_element(value, number_text(value), name));
    };
    rows += fmt::format(
        "<tr><th scope=\"row\">{}</th>{}{}{}{}<td data-label=\"mode\"><span class=\"chip "
        "{}\">{}</span></td></tr>\n",
        step.step, cell("loss", step.loss), cell("grad_norm", step.gradient_norm),
        cell("lr", step.learning_rate), cell("ms", step.milliseconds), graph::name_of(step.mode),
        graph::name_of(step.mode));
  }
  return fmt::format(
      "<section id=\"steps\"><h2>Steps</h2><details><summary>{} of {} steps in numbers</summary><table "
      "class=\"steps\"><thead><tr><th>step</th><th class=\"number\">loss</th><th class=\"number\">gradient "
      "norm</th>"
      "<th class=\"number\">learning rate</th><th "
      "class=\"number\">ms</th><th>mode</th></tr></thead><tbody>{}</tbody>"
      "</table></details></section>\n",
      shown.size(), report.steps.size(), rows);
}

std::string settings_section(const Report& report) {
  if (report.settings.empty()) return {};
  std::string changed, others;
  for (const ReportFact& setting : report.settings) {
    const bool is_default = setting.source.empty() || setting.source == "default";
    (is_default ? others : changed) += fmt::format(
        "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td class=\"reason\">{}</td></tr>\n",
        escaped(setting.name), escaped(setting.value), escaped(setting.source));
  }
  std::string text = "<section id=\"configuration\"><h2>Configuration</h2>";
  if (!changed.empty()) text += fmt::format("<table class=\"settings\"><tbody>{}</tbody></table>", changed);
  if (!others.empty())
    text += fmt::format(
        "<details><summary>{}</summary><table class=\"settings\"><tbody>{}</tbody></table></details>",
        changed.empty() ? "All keys" : "The other keys, as they are by default", others);
  return text + "</section>\n";
}

/// What the script shows under the pointer.
std::string series(const Report& report) {
  Json columns{{"step", Json::array()}, {"loss", Json::array()}, {"grad_norm", Json::array()},
               {"lr", Json::array()},   {"ms", Json::array()},   {"mode", Json::array()}};
  for (const ReportStep& step : thinned(report.steps, most_steps_in_script)) {
    columns["step"].push_back(step.step);
    columns["loss"].push_back(step.loss);
    columns["grad_norm"].push_back(step.gradient_norm);
    columns["lr"].push_back(step.learning_rate);
    columns["ms"].push_back(step.milliseconds);
    columns["mode"].push_back(graph::name_of(step.mode));
  }
  columns["evaluations"] = Json::array();
  for (const ReportEvaluation& each : report.evaluations)
    columns["evaluations"].push_back({each.step, each.loss});
  return script_json(columns);
}

}  // namespace

std::string page_of(const Report& report) {
  std::string body =
      fmt::format("<header><h1>{}</h1>{}</header>\n<main>\n", escaped(report.title), facts(report));
  if (!report.failure.empty())
    body += fmt::format("<p class=\"failure\" role=\"alert\">The run ended early: {}</p>\n",
                        escaped(report.failure));
  body += cards(report) + verdict_section(report) + loss_section(report) + step_time_section(report) +
          memory_section(report) + segments_section(report) + steps_table(report) + settings_section(report);
  if (!report.notes.empty()) {
    body += "<section id=\"notes\"><h2>Notes</h2><ul>";
    for (const std::string& note : report.notes) body += fmt::format("<li>{}</li>", escaped(note));
    body += "</ul></section>\n";
  }
  // The policy lets nothing be loaded from anywhere, whatever a text should smuggle in.
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">"
      "<title>{}</title>\n<style>\n{}</style></head>\n<body>\n{}</main>\n"
      "<footer>Written by encore {} ({}).</footer>\n"
      "<script type=\"application/json\" id=\"series\">{}</script>\n<script>\n{}</script>\n</body></html>\n",
      escaped(report.title), page_style(), body, ENCORE_VERSION_STRING, escaped(backend::git_revision()),
      series(report), page_script());
}

void write_page(const std::filesystem::path& path, const Report& report) {
  model::write_file_atomically(path, page_of(report));
}

}  // namespace encore::command
