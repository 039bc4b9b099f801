// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/graph/contract_rules.hpp>
#include <encore/graph/executor.hpp>

#include <algorithm>
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

[[noreturn]] void throw_broken(const std::vector<std::string>& differences) {
  constexpr std::size_t most_listed = 20;
  std::string sentence;
  for (std::size_t i = 0; i < std::min(most_listed, differences.size()); ++i)
    sentence += (i > 0 ? "; " : "") + differences[i];
  if (differences.size() > most_listed)
    sentence += "; and " + std::to_string(differences.size() - most_listed) + " more";
  throw ReplayContractError(sentence +
                            ": bind what was captured, ask for recapture(), or set graph.recapture");
}

}  // namespace

template <class Space>
Executor<Space>::Executor(backend::Device<Space>& device, const Program<Space>& program, Bindings bindings,
                          CapturePolicy policy)
    : device_(&device), program_(&program), bindings_(std::move(bindings)), policy_(std::move(policy)) {
  cut_program();
}

template <class Space>
void Executor<Space>::cut_program() {
  runs_ = cut(program_->outline(), policy_);
  cut_signature_ = program_->outline().signature();
  drop_graphs();
}

template <class Space>
void Executor<Space>::run_segments(const Run& run) const {
  for (std::size_t index = run.first; index < run.end; ++index) {
    running_ = index;
    program_->run_segment(index, *device_, bindings_);
  }
}

template <class Space>
bool Executor<Space>::captures() const {
  return policy_.scope != CaptureScope::none && refusal_.empty() && steps_ >= policy_.warmup_steps;
}

template <class Space>
bool Executor<Space>::complete() const {
  bool any = false;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (!runs_[i].captured) continue;
    if (!graphs_[i]) return false;
    any = true;
  }
  return any;
}

template <class Space>
std::size_t Executor<Space>::graphs() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(graphs_, [](const auto& graph) { return graph != nullptr; }));
}

template <class Space>
void Executor<Space>::drop_graphs() {
  graphs_.clear();
  graphs_.resize(runs_.size());
  captured_.reset();
}

template <class Space>
void Executor<Space>::drop_runs_of_moved_buffers() {
  const Outline& outline = program_->outline();
  const auto moved = [&](BufferId id) {
    const auto index = static_cast<std::size_t>(id);
    return captured_->addresses[index] != bindings_.address(id);
  };
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    for (std::size_t s = runs_[i].first; s < runs_[i].end && graphs_[i]; ++s) {
      const Segment& segment = outline.segments()[s];
      if (std::ranges::any_of(segment.reads, moved) || std::ranges::any_of(segment.writes, moved))
        graphs_[i].reset();
    }
  }
}

/// After it the graphs that are left fit the program and the bindings.
template <class Space>
void Executor<Space>::check_contract() {
  const std::uint64_t signature = program_->outline().signature();
  if (!captured_) {
    if (signature != cut_signature_) cut_program();
    return;
  }
  if (signature == captured_->signature && bindings_.are(captured_->addresses)) return;
  const Contract now = contract_of(program_->outline(), bindings_.addresses());
  const std::vector<std::string> found = differences(program_->outline(), *captured_, now);
  if (!found.empty() && !policy_.recapture) throw_broken(found);
  if (now.signature != captured_->signature) {
    device_->stream().synchronize("executor: another program");
    cut_program();
  } else {
    if (!found.empty()) device_->stream().synchronize("executor: moved buffers");
    drop_runs_of_moved_buffers();
    captured_ = now;
  }
}

template <class Space>
std::string Executor<Space>::refusal_of(const Error& error) const {
  return std::string(rule_host_work.id) + ": segment '" + program_->outline().segments()[running_].name +
         "': " + error.what();
}

template <class Space>
void Executor<Space>::capture(StepReport& report) {
  try {
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!runs_[i].captured || graphs_[i]) continue;
      graphs_[i] = std::make_unique<Graph>(device_->stream(), runs_[i].name, [&] { run_segments(runs_[i]); });
      ++report.captures;
      report.capture_seconds += graphs_[i]->record_seconds() + graphs_[i]->instantiate_seconds();
      report.graph_bytes += graphs_[i]->device_bytes();
    }
    captured_ = contract_of(program_->outline(), bindings_.addresses());
    was_reset_ = false;
    return;
  } catch (const CaptureError& error) {
    refusal_ = refusal_of(error);
  } catch (const DeviceError& error) {  // The driver refuses calls that it allows outside of a recording.
    refusal_ = refusal_of(error);
  } catch (...) {
    drop_graphs();
    throw;
  }
  drop_graphs();
  report.captures = 0;
}

template <class Space>
StepReport Executor<Space>::run(bool replays, StepReport report) {
  const std::uint64_t launches = device_->stream().counters().launches;
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (replays && graphs_[i]) {
      report.graph_nodes += graphs_[i]->nodes();
      try {
        graphs_[i]->replay();
      } catch (const CaptureError& error) {  // A communicator of the recording was closed.
        throw CaptureError(std::string(rule_released.id) + ": " + error.what(), error.where());
      }
    } else {
      run_segments(runs_[i]);
      if (replays && runs_[i].captured) ++report.fallbacks;
    }
  }
  report.eager_launches = device_->stream().counters().launches - launches;
  if (report.graph_nodes > 0) report.mode = report.captures > 0 ? StepMode::capture : StepMode::replay;
  ++steps_;
  return report;
}

template <class Space>
StepReport Executor<Space>::step() {
  StepReport report;
  check_contract();
  const Watch<Space> watch(device_->stream());
  const bool past_warmup = policy_.scope != CaptureScope::none && steps_ >= policy_.warmup_steps;
  if (captures() && !complete()) capture(report);
  report = run(past_warmup, report);
  watch.complete(report);
  return report;
}

template <class Space>
StepReport Executor<Space>::step_eagerly() {
  StepReport report;
  const Watch<Space> watch(device_->stream());
  const std::uint64_t launches = device_->stream().counters().launches;
  run_segments({"eager", 0, program_->outline().segments().size(), false});
  report.eager_launches = device_->stream().counters().launches - launches;
  ++steps_;
  watch.complete(report);
  return report;
}

template <class Space>
StepReport Executor<Space>::replay() {
  if (!complete() || !captured_)
    throw ReplayContractError(std::string(rule_released.id) +
                              (was_reset_ ? ": the graphs were reset" : ": no graph has been recorded yet") +
                              "; step() records them");
  check_contract();
  if (!complete())
    throw ReplayContractError(std::string(rule_buffer.id) +
                              ": a buffer moved, and its runs wait for step() to record them anew");
  const Watch<Space> watch(device_->stream());
  StepReport report = run(true, {});
  watch.complete(report);
  return report;
}

template <class Space>
void Executor<Space>::end_warmup() {
  steps_ = std::max(steps_, policy_.warmup_steps);
}

template <class Space>
std::size_t Executor<Space>::prepare() {
  check_contract();
  StepReport report;
  if (policy_.scope != CaptureScope::none && refusal_.empty() && !complete()) capture(report);
  return report.captures;
}

template <class Space>
void Executor<Space>::rebind(BufferId id, std::byte* address) {
  bindings_.bind(id, address);
  const auto& buffers = program_->outline().buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].part && buffers[i].part->whole == id)
      bindings_.bind(static_cast<BufferId>(i), address + buffers[i].part->offset_bytes);
}

template <class Space>
void Executor<Space>::recapture() {
  device_->stream().synchronize("executor: recapture");
  drop_graphs();
  refusal_.clear();
}

template <class Space>
void Executor<Space>::recapture(std::string_view run) {
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    if (!runs_[i].captured || runs_[i].name != run) continue;
    device_->stream().synchronize("executor: recapture");
    graphs_[i].reset();
    return;
  }
  throw ConfigurationError("no captured run is called '" + std::string(run) + "': runs() lists them");
}

template <class Space>
void Executor<Space>::reset() {
  recapture();
  was_reset_ = true;
}

template <class Space>
backend::Allocation<Space> Executor<Space>::copy(BufferId id) const {
  const Buffer& buffer = program_->outline().buffer(id);
  backend::Allocation<Space> result("copy of " + buffer.name, buffer.bytes());
  device_->stream().copy(result.data(), bindings_.address(id), buffer.bytes(), "encore::graph::copy");
  return result;
}

#define ENCORE_INSTANTIATE(SPACE) template class Executor<SPACE>;
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
