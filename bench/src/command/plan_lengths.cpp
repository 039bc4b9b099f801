// SPDX-License-Identifier: Apache-2.0
#include "plan_lengths.hpp"

#include <encore/graph/length_buckets.hpp>
#include <encore/model/files/mapped_file.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace encore::command {

using Json = nlohmann::ordered_json;

Json propose_buckets(const PlanOptions& options, const model::Configuration& configuration) {
  const std::filesystem::path& file = *options.lengths;
  constexpr std::size_t most_bytes = std::size_t{1} << 30;
  const auto histogram = graph::parse_length_counts(model::read_text_file(file, most_bytes), file.string());
  const std::int64_t longest = configuration.train.seq;
  const auto sets = graph::best_buckets(histogram, {.most_buckets = static_cast<std::size_t>(options.buckets),
                                                    .multiple_of = options.multiple_of,
                                                    .longest = longest});
  const graph::BucketSet& best = sets.back();
  Json by_count = Json::array();
  for (const graph::BucketSet& set : sets)
    by_count.push_back({{"count", set.lengths.size()},
                        {"buckets", set.lengths},
                        {"coverage", set.coverage()},
                        {"waste", set.waste()}});
  std::string setting = fmt::format("graph.buckets={}", fmt::join(best.lengths, ","));
  if (std::ssize(best.lengths) > configuration.graph.recordings)
    setting += fmt::format(" --set graph.recordings={}", best.lengths.size());
  return {{"file", file.string()},
          {"sequences", best.sequences},
          {"different_lengths", histogram.size()},
          {"shortest", histogram.front().length},
          {"longest", histogram.back().length},
          {"longest_allowed", longest},
          {"buckets", best.lengths},
          {"coverage", best.coverage()},
          {"waste", best.waste()},
          {"tokens", best.tokens},
          {"padding", best.padding},
          {"arguments", "--set " + setting},
          {"by_count", std::move(by_count)}};
}

std::string buckets_text(const Json& proposal) {
  std::string text =
      fmt::format("\nlengths: {} sequences of {} different lengths from {} to {} ({})\n",
                  proposal["sequences"].get<std::int64_t>(), proposal["different_lengths"].get<std::size_t>(),
                  proposal["shortest"].get<std::int64_t>(), proposal["longest"].get<std::int64_t>(),
                  proposal["file"].get<std::string>());
  text += "  buckets  coverage   waste\n";
  for (const Json& set : proposal["by_count"])
    text += fmt::format("  {:>7}  {:>7.2f}%  {:>5.1f}%  {}\n", set["count"].get<std::size_t>(),
                        100 * set["coverage"].get<double>(), 100 * set["waste"].get<double>(),
                        fmt::join(set["buckets"].get<std::vector<std::int64_t>>(), ","));
  if (proposal["coverage"].get<double>() < 1)
    text += fmt::format("  longer than train.seq = {} or its last multiple: not covered\n",
                        proposal["longest_allowed"].get<std::int64_t>());
  return text + fmt::format("  use: {}\n", proposal["arguments"].get<std::string>());
}

}  // namespace encore::command
