// SPDX-License-Identifier: Apache-2.0
//
// How fast single kernels are. Each family has a file of its own, which says what its benchmarks are.
//
//   encore_kernel_benchmark [--backend=<serial|openmp|cuda>]... [--tiles] [--benchmark_filter=<regex>]
//                           [--benchmark_format=json] [--benchmark_out=<file>]
//
// Without --backend it takes the fastest one of the build. Times are those of one call within a recording that is
// replayed: on CUDA of twenty calls in a row. The families of turns.hpp take several sets of large operands in turn, so
// that none is found in the cache; small ones stay there, as in a step. Their counters: GB/s of what a call must read
// and write, TFLOP/s where it multiplies matrices, and both relative to a large copy and a large product (of_copy,
// of_product), which are measured at the start and shown in the context. Debian's benchmark library calls itself a debug build: that is about its own code.
#include "kernel_benchmarks.hpp"

#include <encore/backend/device.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/runtime.hpp>
#include <encore/backend/version.hpp>

#include <cstdio>
#include <string_view>

namespace {

using namespace encore::backend;
using encore::bench::Options;

/// Takes this program's own arguments out of the list. Throws UsageError.
Options parse(int& argc, char** argv) {
  constexpr std::string_view backend = "--backend=";
  const std::vector<Backend> built = built_backends();
  Options options;
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--tiles") {
      options.tiles = true;
    } else if (argument.starts_with(backend)) {
      const std::string_view name = argument.substr(backend.size());
      const auto found = std::find_if(built.begin(), built.end(),
                                      [&](Backend candidate) { return name_of(candidate) == name; });
      if (found == built.end())
        throw encore::UsageError("this build has no backend '" + std::string(name) + "'");
      options.backends.push_back(*found);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  if (options.backends.empty()) options.backends = {built.back()};
  return options;
}

void measure(Options& options) {
#define ENCORE_MEASURE(SPACE)                                                                              \
  if (options.has<SPACE>()) {                                                                              \
    const encore::bench::Rates rates = encore::bench::measure_rates<SPACE>();                              \
    options.rates[backend_of<SPACE>()] = rates;                                                            \
    benchmark::AddCustomContext(std::string(name_of(backend_of<SPACE>())) + " rates",                      \
                                std::to_string(rates.bytes_per_second * 1e-9) + " GB/s copied, " +         \
                                    std::to_string(rates.flops_per_second * 1e-12) + " TFLOP/s bfloat16"); \
  }
  ENCORE_FOR_EACH_SPACE(ENCORE_MEASURE)
#undef ENCORE_MEASURE
}

void add_families(const Options& options) {
  using namespace encore::bench;
  for (const auto add :
       {add_activation, add_attention, add_cross_entropy, add_dropout, add_embedding, add_grouped_products,
        add_mamba, add_normalization, add_optimizer, add_products, add_rope, add_router})
    add(options);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options = parse(argc, argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    const Runtime runtime;
    benchmark::AddCustomContext("commit", std::string(git_revision()));
#define ENCORE_DESCRIBE(SPACE) \
  if (options.has<SPACE>())    \
    benchmark::AddCustomContext(std::string(name_of(backend_of<SPACE>())), describe_device<SPACE>());
    ENCORE_FOR_EACH_SPACE(ENCORE_DESCRIBE)
#undef ENCORE_DESCRIBE
    measure(options);
    add_families(options);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "encore_kernel_benchmark: %s\n", error.what());
    return error.exit_code();
  }
}
