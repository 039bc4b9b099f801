// SPDX-License-Identifier: Apache-2.0
#include "golden.hpp"

#include <encore/backend/error.hpp>
#include <encore/model/golden.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "../device/session.hpp"
#include "configure.hpp"

namespace encore::command {

namespace {

using Json = nlohmann::ordered_json;

/// JSON has no infinity: the largest number stands for it.
double finite(double error) { return std::min(error, std::numeric_limits<double>::max()); }

Json errors_json(const std::map<std::string, double>& errors) {
  Json object = Json::object();
  for (const auto& [name, error] : errors) object[name] = finite(error);
  return object;
}

Json errors_json(const std::vector<double>& errors) {
  Json list = Json::array();
  for (const double error : errors) list.push_back(finite(error));
  return list;
}

double largest_of(const std::map<std::string, double>& errors) {
  double largest = 0;
  for (const auto& [name, error] : errors) largest = std::max(largest, error);
  return largest;
}

}  // namespace

int evaluate_reference(const EvaluateOptions& options, Console& console) {
  const std::filesystem::path& file = *options.configuration.load;
  const model::Configuration configuration =
      model::golden_configuration(file, resolve(options.configuration, "bytes").configuration);
  const DeviceSession session(options.threads);
  const model::GoldenErrors errors = model::evaluate_golden(file, configuration);

  const double largest = errors.largest();
  const Json result{{"file", file.string()},
                    {"backend", name_of(configuration.backend)},
                    {"precision", name_of(configuration.train.precision)},
                    {"logits_error", finite(errors.logits_error)},
                    {"loss_error", finite(errors.loss_error)},
                    {"gradient_error_max", finite(largest_of(errors.gradient_error))},
                    {"gradient_error", errors_json(errors.gradient_error)},
                    {"adamw_loss_error", errors_json(errors.adamw_loss_error)},
                    {"final_error", errors_json(errors.final_error)},
                    {"largest_error", finite(largest)}};
  console.line(result.dump(2, ' ', false, Json::error_handler_t::replace));
  if (options.tolerance && largest > *options.tolerance)
    throw ValidationError(fmt::format("'{}': the largest error is {:.3g} and {:.3g} was allowed",
                                      file.string(), largest, *options.tolerance));
  return 0;
}

}  // namespace encore::command
