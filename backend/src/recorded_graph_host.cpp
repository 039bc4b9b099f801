// SPDX-License-Identifier: Apache-2.0
#include "foreign_kernels.hpp"
#include "recording_scope.hpp"
#include "tool_callbacks.hpp"

#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/region.hpp>

#include <chrono>
#include <utility>

namespace encore::backend {

template <class Space>
struct RecordedGraph<Space>::Recording {
  Tape tape;
};

template <class Space>
RecordedGraph<Space>::RecordedGraph(Stream<Space>& stream, std::string name,
                                    const std::function<void()>& body)
    : stream_(&stream),
      name_(std::move(name)),
      resources_(std::make_unique<ResourceUses>(name_)),
      recording_(std::make_unique<Recording>()) {
  const Region capture(stream, RegionKind::capture, name_);
  const auto start = std::chrono::steady_clock::now();
  impl::RecordingScope<Space> scope(stream, labels_, *resources_);
  {
    const impl::ForeignKernelWatch watch(name_);
    const ModeScope<Space> prime(stream, StreamMode::prime);
    body();
  }
  scope.drop_labels();
  {
    const Region region(stream, RegionKind::record, name_);
    impl::look_at_callbacks();  // Nothing runs through Kokkos here, so there is nothing to keep from a tool.
    const ModeScope<Space> record(stream, StreamMode::record, &recording_->tape);
    body();
  }
  const auto recorded = std::chrono::steady_clock::now();
  {
    const Region region(stream, RegionKind::instantiate, name_);
    recording_->tape.finish();
  }
  record_seconds_ = std::chrono::duration<double>(recorded - start).count();
  instantiate_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - recorded).count();
}

template <class Space>
RecordedGraph<Space>::~RecordedGraph() = default;
template <class Space>
RecordedGraph<Space>::RecordedGraph(RecordedGraph&&) noexcept = default;
template <class Space>
RecordedGraph<Space>& RecordedGraph<Space>::operator=(RecordedGraph&& other) noexcept {
  recording_ = std::move(other.recording_);  // Before the resources that the old one refers to.
  resources_ = std::move(other.resources_);
  labels_ = std::move(other.labels_);
  name_ = std::move(other.name_);
  stream_ = other.stream_;
  record_seconds_ = other.record_seconds_;
  instantiate_seconds_ = other.instantiate_seconds_;
  return *this;
}

template <class Space>
void RecordedGraph<Space>::replay() {
  resources_->check();
  stream_->count_replay();
  const Region region(*stream_, RegionKind::replay, name_);
  recording_->tape.replay(stream_->threads());
}

template <class Space>
std::size_t RecordedGraph<Space>::nodes() const {
  return recording_->tape.size();
}

template <class Space>
std::size_t RecordedGraph<Space>::longest_chain() const {
  return recording_->tape.size() == 0 ? 0 : recording_->tape.barriers() + 1;
}

template <class Space>
std::size_t RecordedGraph<Space>::memory_nodes() const {
  return 0;
}

template <class Space>
std::size_t RecordedGraph<Space>::device_bytes() const {
  return recording_->tape.bytes();
}

ENCORE_IF_SERIAL(template class RecordedGraph<Kokkos::Serial>;)
ENCORE_IF_OPENMP(template class RecordedGraph<Kokkos::OpenMP>;)

}  // namespace encore::backend
