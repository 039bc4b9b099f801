// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/watched_wait.hpp>
#include <encore/graph/executor.hpp>
#include <encore/graph/profile.hpp>

#include "kept_state.hpp"
#include "replay_timer.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

namespace encore::graph {

namespace {

/// What a call launches, while it lives.
template <class Space>
class LaunchCollection {
 public:
  explicit LaunchCollection(backend::Stream<Space>& stream) : stream_(stream) {
    stream_.collect_launches(&records_);
  }
  ~LaunchCollection() { stream_.collect_launches(nullptr); }
  LaunchCollection(const LaunchCollection&) = delete;
  LaunchCollection& operator=(const LaunchCollection&) = delete;

  std::vector<LaunchProfile> launches() const {
    std::vector<LaunchProfile> result;
    for (const backend::LaunchRecord& record : records_)
      result.push_back({record.label, record.flops, record.bytes, 0});
    return result;
  }

 private:
  backend::Stream<Space>& stream_;
  std::vector<backend::LaunchRecord> records_;
};

template <class Space>
class Profiler {
 public:
  Profiler(backend::Device<Space>& device, const Program<Space>& program, const Bindings& bindings,
           const ProfileOptions& options)
      : device_(device),
        program_(program),
        bindings_(bindings),
        options_(options),
        written_(program.outline().buffers().size(), false),
        kept_(device) {}

  StepProfile run() {
    StepProfile result;
    const Outline& outline = program_.outline();
    result.rates = options_.rates ? *options_.rates : measure_rates<Space>(device_, product_type(outline));
    try {
      for (std::size_t index = 0; index < outline.segments().size(); ++index)
        result.segments.push_back(time_segment(index, result.rates));
      kept_.restore();
      if (options_.step_samples > 0 && !outline.segments().empty()) time_step(result);
    } catch (...) {
      kept_.restore();
      throw;
    }
    kept_.restore();
    return result;
  }

 private:
  using Graph = backend::RecordedGraph<Space>;

  SegmentProfile time_segment(std::size_t index, const MachineRates& rates) {
    const Segment& segment = program_.outline().segments()[index];
    SegmentProfile result{.index = index,
                          .name = segment.name,
                          .module = segment.module,
                          .phase = segment.phase,
                          .layer = segment.layer,
                          .microbatch = segment.microbatch,
                          .eager_because = segment.eager_because,
                          .launches = {}};
    auto& stream = device_.stream();
    // Also recording may write: some libraries choose their algorithms by trying them.
    RangeCopy<Space> state(stream, ranges(segment, true));
    const RangeCopy<Space> activations(stream, ranges(segment, false));
    const std::vector<backend::RandomState> random = device_.random().snapshot(stream);
    const auto put_back = [&] {
      state.restore(stream);
      activations.restore(stream);
    };
    try {
      {
        const LaunchCollection<Space> collection(stream);
        run_segment(index);
        result.launches = collection.launches();
      }
      measure(index, put_back, result);
    } catch (...) {
      kept_.keep(std::move(state));
      throw;
    }
    put_back();
    device_.random().restore(stream, random);
    run_segment(index);
    for (const BufferId id : segment.writes) written_[static_cast<std::size_t>(id)] = true;
    kept_.keep(std::move(state));
    set_floor(result, rates);
    return result;
  }

  /// Of what a segment writes: what outlives the step, or the activations that hold something already.
  std::vector<ByteRange> ranges(const Segment& segment, bool outlives) const {
    std::vector<ByteRange> result;
    for (const BufferId id : segment.writes) {
      const Buffer& buffer = program_.outline().buffer(id);
      std::byte* const address = bindings_.address(id);
      if ((buffer.kind != BufferKind::activation) != outlives || address == nullptr) continue;
      if (outlives || written_[static_cast<std::size_t>(id)])
        result.push_back({address, address + buffer.bytes()});
    }
    return merged(std::move(result));
  }

  void run_segment(std::size_t index) { program_.run_segment(index, device_, bindings_); }

  std::unique_ptr<Graph> record(std::size_t index, int repeats) {
    return std::make_unique<Graph>(device_.stream(), program_.outline().segments()[index].name, [&] {
      for (int i = 0; i < repeats; ++i) run_segment(index);
    });
  }

  template <class PutBack>
  void measure(std::size_t index, const PutBack& put_back, SegmentProfile& result) {
    if (result.launches.empty() && result.eager_because.empty()) return;
    if (result.eager_because.empty()) {
      try {
        return measure_by_replay(index, put_back, result);
      } catch (const CaptureError& error) {
        result.eager_because = error.what();
      } catch (const DeviceError& error) {  // The driver refuses calls that it allows outside of a recording.
        result.eager_because = error.what();
      }
    }
    result.nodes = static_cast<double>(result.launches.size());
    result.milliseconds = median_of_samples(options_.samples, options_.most_milliseconds, [&] {
      put_back();
      return device_milliseconds<Space>(
          device_, [] {}, [&] { run_segment(index); });
    });
  }

  template <class PutBack>
  void measure_by_replay(std::size_t index, const PutBack& put_back, SegmentProfile& result) {
    std::unique_ptr<Graph> graph = record(index, 1);
    result.nodes = static_cast<double>(graph->nodes());
    const auto replay = [&] { graph->replay(); };
    const auto sample = [&] {
      put_back();
      return device_milliseconds<Space>(device_, replay, replay);
    };
    const double one = sample();
    const double wanted = std::ceil(options_.sample_milliseconds / std::max(one, 1e-6));
    const int repeats = static_cast<int>(std::clamp(wanted, 1.0, std::max(1.0, 1.0 * options_.most_repeats)));
    if (repeats > 1) {
      graph = record(index, repeats);
      sample();
    }
    result.milliseconds = median_of_samples(options_.samples, options_.most_milliseconds, sample) / repeats;
  }

  void time_step(StepProfile& result) {
    Executor<Space> executor(device_, program_, bindings_,
                             {CaptureScope::full_iteration, {}, OptimizerCapture::joined, 0});
    executor.step();
    auto& stream = device_.stream();
    std::vector<backend::Event<Space>> marks(static_cast<std::size_t>(options_.step_samples) + 1);
    marks.front().record(stream);
    for (std::size_t i = 1; i < marks.size(); ++i) {
      result.replay_nodes = executor.step().graph_nodes;
      marks[i].record(stream);
    }
    backend::wait(marks.back(), stream, device_.watch());
    std::vector<double> times;
    for (std::size_t i = 1; i < marks.size(); ++i)
      times.push_back(backend::Event<Space>::milliseconds(marks[i - 1], marks[i]));
    result.replay_milliseconds = median(std::move(times));
    result.replay_refusal = executor.refusal();
    if (!result.replay_refusal.empty()) return;
    for (const Segment& segment : program_.outline().segments())
      if (!segment.eager_because.empty())
        result.replay_refusal = "segment '" + segment.name + "': " + segment.eager_because;
  }

  backend::Device<Space>& device_;
  const Program<Space>& program_;
  const Bindings& bindings_;
  const ProfileOptions& options_;
  std::vector<bool> written_;  ///< by buffer: whether a segment that ran already wrote it
  KeptState<Space> kept_;
};

}  // namespace

template <class Space>
StepProfile profile(backend::Device<Space>& device, const Program<Space>& program, const Bindings& bindings,
                    const ProfileOptions& options) {
  return Profiler<Space>(device, program, bindings, options).run();
}

#define ENCORE_INSTANTIATE(SPACE)                                                               \
  template StepProfile profile(backend::Device<SPACE>&, const Program<SPACE>&, const Bindings&, \
                               const ProfileOptions&);
ENCORE_FOR_EACH_SPACE(ENCORE_INSTANTIATE)
#undef ENCORE_INSTANTIATE

}  // namespace encore::graph
