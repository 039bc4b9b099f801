// SPDX-License-Identifier: Apache-2.0
#include <encore/graph/executor.hpp>

#include <array>

namespace encore::graph {

std::string_view name_of(StepMode mode) {
  constexpr std::array<std::string_view, 3> names{"eager", "capture", "replay"};
  return names[static_cast<std::size_t>(mode)];
}

namespace {

/// Counts what a stream does while it lives.
template <class Space>
class Watch {
 public:
  explicit Watch(const backend::Stream<Space>& stream) : stream_(stream), before_(stream.counters()) {}

  void complete(StepReport& report) const {
    const backend::StreamCounters& now = stream_.counters();
    report.host_syncs = now.synchronizations - before_.synchronizations;
    report.host_copies = now.host_copies - before_.host_copies;
  }

 private:
  const backend::Stream<Space>& stream_;
  backend::StreamCounters before_;
};

}  // namespace

template <class Space>
Executor<Space>::Executor(backend::Device<Space>& device, const Program<Space>& program, Bindings bindings,
                          CapturePolicy policy)
    : device_(&device),
      program_(&program),
      bindings_(std::move(bindings)),
      policy_(std::move(policy)),
      runs_(cut(program.outline(), policy_)) {}

template <class Space>
void Executor<Space>::run_segments(const Run& run) const {
  for (std::size_t index = run.first; index < run.end; ++index) {
    try {
      program_->run_segment(index, *device_, bindings_);
    } catch (const CaptureError& error) {
      throw CaptureError("segment '" + program_->outline().segments()[index].name + "': " + error.what(),
                         error.where());
    }
  }
}

template <class Space>
bool Executor<Space>::captures() const {
  return policy_.scope != CaptureScope::none && refusal_.empty() && steps_ >= policy_.warmup_steps;
}

template <class Space>
void Executor<Space>::capture() {
  try {
    for (const Run& run : runs_)
      if (run.captured) graphs_.emplace_back(device_->stream(), run.name, [&] { run_segments(run); });
  } catch (const CaptureError& error) {
    graphs_.clear();
    refusal_ = error.what();
  }
}

template <class Space>
StepReport Executor<Space>::step() {
  StepReport report;
  const Watch<Space> watch(device_->stream());
  if (captures() && graphs_.empty()) {
    report.mode = StepMode::capture;
    capture();
    for (const auto& graph : graphs_)
      report.capture_seconds += graph.record_seconds() + graph.instantiate_seconds();
  } else if (!graphs_.empty()) {
    report.mode = StepMode::replay;
  }
  if (graphs_.empty()) report.mode = StepMode::eager;

  const std::uint64_t launches = device_->stream().counters().launches;
  auto graph = graphs_.begin();
  for (const Run& run : runs_) {
    if (run.captured && graph != graphs_.end()) {
      report.graph_nodes += graph->nodes();
      (graph++)->replay();
    } else {
      run_segments(run);
      if (run.captured && steps_ >= policy_.warmup_steps) ++report.fallbacks;
    }
  }
  report.eager_launches = device_->stream().counters().launches - launches;
  ++steps_;
  watch.complete(report);
  return report;
}

template <class Space>
StepReport Executor<Space>::step_eagerly() {
  StepReport report;
  const Watch<Space> watch(device_->stream());
  const std::uint64_t launches = device_->stream().counters().launches;
  for (const Run& run : runs_) run_segments(run);
  report.eager_launches = device_->stream().counters().launches - launches;
  ++steps_;
  watch.complete(report);
  return report;
}

template <class Space>
void Executor<Space>::reset() {
  device_->stream().synchronize("executor: reset");
  graphs_.clear();
  refusal_.clear();
}

#define ENCORE_INSTANTIATE(SPACE) template class Executor<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
