// SPDX-License-Identifier: Apache-2.0
#include <encore/model/files/cluster.hpp>

#include <encore/backend/error.hpp>
#include <encore/model/files/nearest_name.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "strict_json.hpp"
#include "text.hpp"

namespace encore::model {

namespace {

/// The fields of an object, of which none may be unknown.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string path, const std::string& file,
         std::vector<std::string_view> known)
      : object_(object), path_(std::move(path)), file_(file) {
    if (!object.is_object()) fail(path_.empty() ? "it" : path_, "must be an object");
    for (const auto& [name, value] : object.items())
      if (std::ranges::find(known, std::string_view(name)) == known.end())
        throw InputFileError(fmt::format("{}: there is no field {}{}", in_quotes(file_),
                                         in_quotes(path_.empty() ? name : path_ + "." + name),
                                         did_you_mean(name, known)));
  }

  bool has(const char* name) const { return object_.contains(name); }
  const nlohmann::json& at(const char* name) const {
    if (!has(name)) fail(where(name), "is missing");
    return object_[name];
  }
  double number(const char* name, double least, double most) const {
    const nlohmann::json& value = at(name);
    const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= least && number <= most))
      fail(where(name), fmt::format("must be a number from {} to {}", least, most));
    return number;
  }
  std::int64_t whole(const char* name, std::int64_t most) const {
    const nlohmann::json& value = at(name);
    const std::string wanted = fmt::format("must be a whole number from 1 to {}", most);
    if (!value.is_number_integer()) fail(where(name), wanted);
    if (const double number = value.get<double>(); !(number >= 1 && number <= static_cast<double>(most)))
      fail(where(name), wanted);
    return value.get<std::int64_t>();
  }
  ClusterLink link(const char* name) const {
    const Fields fields(at(name), where(name), file_, {"gb_per_s", "latency_us"});
    return {fields.number("gb_per_s", 1e-3, 1e6), fields.number("latency_us", 0, 1e6)};
  }
  GpuRates rates(const char* name) const {
    const Fields fields(at(name), where(name), file_, {"tflops", "memory_gb_per_s"});
    return {fields.number("tflops", 1e-3, 1e6), fields.number("memory_gb_per_s", 1e-3, 1e6)};
  }

 private:
  std::string where(const char* name) const { return path_.empty() ? name : path_ + "." + name; }
  [[noreturn]] void fail(const std::string& field, const std::string& what) const {
    throw InputFileError(fmt::format("{}: {} {}", in_quotes(file_), field, what));
  }

  const nlohmann::json& object_;
  std::string path_;
  const std::string& file_;
};

nlohmann::json parsed(std::string_view text, const std::string& file) {
  try {
    return parse_json_object(text);
  } catch (const JsonProblem& problem) {
    throw InputFileError(fmt::format("{} {}", in_quotes(file), problem.what()));
  }
}

bool is_ring(backend::TransportOperation operation) {
  using enum backend::TransportOperation;
  return operation != broadcast && operation != send && operation != receive;
}

}  // namespace

ClusterDescription parse_cluster(std::string_view json, const std::string& file) {
  const nlohmann::json document = parsed(json, file);
  const Fields fields(document, "", file,
                      {"nodes", "gpus_per_node", "gib_per_gpu", "within_node", "between_nodes", "rates"});
  ClusterDescription cluster;
  cluster.nodes = fields.whole("nodes", 1 << 20);
  cluster.gpus_per_node = fields.whole("gpus_per_node", 1 << 10);
  cluster.gibibytes_per_gpu = fields.number("gib_per_gpu", 1e-3, 1e5);
  cluster.within_node = fields.link("within_node");
  if (cluster.nodes > 1 || fields.has("between_nodes")) cluster.between_nodes = fields.link("between_nodes");
  if (fields.has("rates")) cluster.rates = fields.rates("rates");
  return cluster;
}

bool stays_in_node(const RankLayout& layout, RankGroup group, std::int64_t stage,
                   std::int64_t gpus_per_node) {
  if (layout.ranks() <= gpus_per_node) return true;
  // A group is called after its lowest rank.
  for (std::int64_t rank = 0; rank < layout.ranks(); ++rank) {
    const std::int64_t first = layout.number_of(group, layout.place_of(rank));
    const bool of_other_stages =
        group != RankGroup::world && group != RankGroup::pipeline && layout.place_of(rank).stage != stage;
    if (!of_other_stages && rank / gpus_per_node != first / gpus_per_node) return false;
  }
  return true;
}

bool messages_stay_in_node(const RankLayout& layout, std::int64_t stage, std::int64_t other,
                           std::int64_t gpus_per_node) {
  const std::int64_t of_a_stage = layout.tensor() * layout.data();
  for (std::int64_t rank = 0; rank < of_a_stage; ++rank)
    if ((rank + stage * of_a_stage) / gpus_per_node != (rank + other * of_a_stage) / gpus_per_node)
      return false;
  return true;
}

double bytes_sent(const backend::TransportCall& call, std::int64_t ranks) {
  const auto bytes = static_cast<double>(call.bytes), n = static_cast<double>(ranks);
  if (call.operation == backend::TransportOperation::receive) return 0;
  if (!is_ring(call.operation)) return bytes;
  const double rounds = call.operation == backend::TransportOperation::all_reduce ? 2 : 1;
  return rounds * (n - 1) / n * bytes;
}

double seconds_of(const backend::TransportCall& call, std::int64_t ranks, const ClusterLink& link) {
  if (ranks == 1 || call.operation == backend::TransportOperation::receive) return 0;
  double steps = 1;
  if (is_ring(call.operation)) {
    steps = static_cast<double>(ranks - 1);
    if (call.operation == backend::TransportOperation::all_reduce) steps *= 2;
  }
  return steps * link.microseconds * 1e-6 + bytes_sent(call, ranks) / (link.gigabytes_per_second * 1e9);
}

}  // namespace encore::model
