// SPDX-License-Identifier: Apache-2.0
#include <encore/model/memory_forecast.hpp>

#include <chrono>
#include <cmath>
#include <limits>

#include "device_generator.hpp"

namespace encore::model {

namespace {

constexpr std::int64_t most_tokens = std::int64_t{1} << 30;  // Positions are 32-bit numbers.

void require_in_range(std::string_view what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    throw ConfigurationError(fmt::format("{} is {} and must be {} to {}", what, value, least, most));
}

GeneratorOptions resolved(const Configuration& configuration, GeneratorOptions options) {
  const ModelConfiguration& model = configuration.model;
  require_in_range("the number of sequences", options.sequences, 1, 65536);
  if (options.capacity == 0) options.capacity = model.seq;
  require_in_range("the capacity of the caches", options.capacity, 2, most_tokens / options.sequences);
  require_in_range("the number of prompt tokens taken at once", options.prompt_tokens, 1, 65536);
  if (model.position == Position::learned && options.capacity > model.seq)
    throw ConfigurationError(
        fmt::format("{} tokens were asked for and the model has learned {} positions: generate fewer",
                    options.capacity, model.seq));
  options.prompt_tokens = std::min(options.prompt_tokens, options.capacity);
  return options;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Follows each sequence to its end.
class Progress {
 public:
  explicit Progress(const GenerationRequest& request)
      : request_(request), ended_(request.prompts.size(), false) {
    result_.resize(request.prompts.size());
  }

  /// Takes over what is new; returns it.
  std::vector<std::vector<std::int32_t>> take(const std::vector<std::vector<std::int32_t>>& all) {
    std::vector<std::vector<std::int32_t>> fresh(all.size());
    for (std::size_t s = 0; s < all.size(); ++s) {
      const std::size_t known = request_.prompts[s].size() + result_[s].size();
      for (std::size_t i = known; i < all[s].size() && !ended_[s]; ++i) {
        result_[s].push_back(all[s][i]);
        fresh[s].push_back(all[s][i]);
        ended_[s] = std::ranges::find(request_.end_tokens, all[s][i]) != request_.end_tokens.end();
      }
    }
    return fresh;
  }
  bool done() const {
    return std::ranges::all_of(ended_, [](bool ended) { return ended; });
  }
  std::vector<std::vector<std::int32_t>> result() && { return std::move(result_); }

 private:
  const GenerationRequest& request_;
  std::vector<bool> ended_;
  std::vector<std::vector<std::int32_t>> result_;
};

}  // namespace

void check(const SamplingOptions& options) {
  const auto outside = [](double value, double least, double most) {
    return !(value >= least && value <= most);
  };
  if (options.temperature != 0 && outside(options.temperature, 0.01, 100))
    throw ConfigurationError(fmt::format(
        "the temperature is {} and must be 0, for the likeliest token, or 0.01 to 100", options.temperature));
  if (options.top_k < 0)
    throw ConfigurationError(
        fmt::format("top-k is {} and must be a number of tokens, or 0 for all", options.top_k));
  if (outside(options.top_p, 1e-6, 1))
    throw ConfigurationError(
        fmt::format("top-p is {} and must be a probability from 0.000001 to 1", options.top_p));
}

#define ENCORE_DEFINE(SPACE)                                                                  \
  template <>                                                                                 \
  std::unique_ptr<Generator> make_device_generator<SPACE>(const Configuration& configuration, \
                                                          const GeneratorOptions& options) {  \
    return make_device_generator_of<SPACE>(configuration, options);                           \
  }
ENCORE_FOR_EACH_SPACE(ENCORE_DEFINE)
#undef ENCORE_DEFINE

std::unique_ptr<Generator> make_generator(const Configuration& configuration,
                                          const GeneratorOptions& wanted) {
  check(configuration);
  const GeneratorOptions options = resolved(configuration, wanted);
  switch (configuration.backend) {
    case BackendKind::serial:
      ENCORE_IF_SERIAL(return make_device_generator<Kokkos::Serial>(configuration, options);) break;
    case BackendKind::openmp:
      ENCORE_IF_OPENMP(return make_device_generator<Kokkos::OpenMP>(configuration, options);) break;
    case BackendKind::cuda:
      ENCORE_IF_CUDA(return make_device_generator<Kokkos::Cuda>(configuration, options);) break;
  }
  throw DeviceError(fmt::format(
      "this build has no {} backend: configure it with a Kokkos that has it, or choose another --backend",
      name_of(configuration.backend)));
}

double GenerationResult::tokens_per_second() const {
  const double sequences = static_cast<double>(tokens.size());
  return decode_seconds > 0 ? static_cast<double>(steps - 1) * sequences / decode_seconds : 0;
}

GenerationResult generate(Generator& generator, const GenerationRequest& request) {
  require_in_range("the number of tokens to generate", request.tokens, 1, most_tokens);
  require_in_range("the number of steps between two looks", request.read_every, 1, most_tokens);
  for (const auto& prompt : request.prompts)
    if (std::ssize(prompt) + request.tokens > generator.options().capacity)
      throw ConfigurationError(
          fmt::format("a prompt of {} tokens and {} more do not fit into caches of {}: generate fewer, or "
                      "make the generator "
                      "with a larger capacity",
                      prompt.size(), request.tokens, generator.options().capacity));
  GenerationResult result;
  auto begin = std::chrono::steady_clock::now();
  generator.start(request.prompts);
  generator.wait();
  result.prompt_seconds = seconds_since(begin);
  Progress progress(request);
  for (begin = std::chrono::steady_clock::now(); result.steps < request.tokens && !progress.done();) {
    generator.step(request.mode);
    ++result.steps;
    const bool first = result.steps == 1;
    if (!first && result.steps % request.read_every != 0 && result.steps < request.tokens) continue;
    const auto fresh = progress.take(generator.tokens());
    (first ? result.first_seconds : result.decode_seconds) += seconds_since(begin);
    if (request.progress) request.progress(fresh);
    begin = std::chrono::steady_clock::now();
  }
  result.tokens = std::move(progress).result();
  return result;
}

}  // namespace encore::model
