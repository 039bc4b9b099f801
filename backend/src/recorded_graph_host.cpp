// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/recorded_graph.hpp>

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
    : stream_(&stream), name_(std::move(name)), recording_(std::make_unique<Recording>()) {
  const auto start = std::chrono::steady_clock::now();
  {
    const ModeScope<Space> prime(stream, StreamMode::prime);
    body();
  }
  {
    const ModeScope<Space> record(stream, StreamMode::record, &recording_->tape);
    body();
  }
  record_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class Space>
RecordedGraph<Space>::~RecordedGraph() = default;
template <class Space>
RecordedGraph<Space>::RecordedGraph(RecordedGraph&&) noexcept = default;
template <class Space>
RecordedGraph<Space>& RecordedGraph<Space>::operator=(RecordedGraph&&) noexcept = default;

template <class Space>
void RecordedGraph<Space>::replay() {
  stream_->count_replay();
  recording_->tape.replay(stream_->threads());
}

template <class Space>
std::size_t RecordedGraph<Space>::nodes() const {
  return recording_->tape.size();
}

ENCORE_IF_SERIAL(template class RecordedGraph<Kokkos::Serial>;)
ENCORE_IF_OPENMP(template class RecordedGraph<Kokkos::OpenMP>;)

}  // namespace encore::backend
