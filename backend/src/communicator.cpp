// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/planned_transport.hpp>
#include <encore/backend/tool_events.hpp>

#include <utility>

namespace encore::backend {

namespace {

template <class Space>
void* native_queue([[maybe_unused]] const Stream<Space>& stream) {
  if constexpr (is_host_space<Space>) {
    return nullptr;
  } else {
    return stream.execution_space().cuda_stream();
  }
}

}  // namespace

template <class Space>
Communicator<Space>::Communicator(std::string name, std::shared_ptr<Transport> transport,
                                  std::shared_ptr<std::byte> order)
    : transport_(std::move(transport)),
      order_(std::move(order)),
      resource_(std::move(name), [held = transport_] { held->close(); }) {}

template <class Space>
Communicator<Space>::~Communicator() = default;

template <class Space>
template <class Call>
void Communicator<Space>::run(Stream<Space>& stream, const char* label, const Access& reads,
                              const Access& writes, const Call& call) {
  resource_.use(stream);
  keep_for_recording(stream, order_);
  const Access order = write(order_.get(), 1);
  if (stream.mode() == StreamMode::list && lists_operations(*transport_)) call(*transport_, nullptr);
  if (is_host_space<Space> && stream.mode() == StreamMode::execute) {
    // Not inside a Kokkos kernel: it would hold a lock while it waits for ranks that may need it.
    stream.note_launch(label, {reads, writes, order});
    const impl::LaunchEvent event(stream, label);
    call(*transport_, nullptr);
    return;
  }
  // `this` may die before a recorded call runs: the graph owns what is captured here.
  launch_native(stream, label, {reads, writes, order},
                [transport = transport_, queue = native_queue(stream), call] { call(*transport, queue); });
}

template <class Space>
void Communicator<Space>::require_member(const char* label, int rank) const {
  if (rank < 0 || rank >= size())
    throw InternalError(std::string(label) + ": rank " + std::to_string(rank) + " is none of the " +
                        std::to_string(size()) + " ranks of '" + name() + "'");
}

template <class Space>
void Communicator<Space>::require_other(const char* label, int rank) const {
  require_member(label, rank);
  if (rank == transport_->rank())
    throw InternalError(std::string(label) + ": rank " + std::to_string(rank) + " of '" + name() +
                        "' exchanges a message with itself; copy instead");
}

template <class Space>
void Communicator<Space>::require_sizes(const char* label, std::size_t whole, std::size_t part) const {
  if (whole == part * static_cast<std::size_t>(size())) return;
  throw InternalError(std::string(label) + ": the " + std::to_string(size()) + " ranks of '" + name() +
                      "' have " + std::to_string(part) + " elements each, which do not make " +
                      std::to_string(whole));
}

template <class Space>
template <class T>
void Communicator<Space>::all_reduce(Stream<Space>& stream, const char* label, Vector<T, Space> values,
                                     Reduction reduction) {
  if (values.size() == 0) return;
  T* const data = values.data();
  run(stream, label, Access{}, write(values),
      [data, count = values.size(), reduction](Transport& transport, void* queue) {
        transport.all_reduce(data, data, count, data_type_of<T>, reduction, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::reduce_scatter(Stream<Space>& stream, const char* label,
                                         Vector<const T, Space> values, Vector<T, Space> result,
                                         Reduction reduction) {
  require_sizes(label, values.size(), result.size());
  if (result.size() == 0) return;
  run(stream, label, read(values), write(result),
      [send = values.data(), receive = result.data(), count = result.size(), reduction](Transport& transport,
                                                                                        void* queue) {
        transport.reduce_scatter(send, receive, count, data_type_of<T>, reduction, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::all_gather(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                                     Vector<T, Space> result) {
  require_sizes(label, result.size(), values.size());
  if (values.size() == 0) return;
  run(stream, label, read(values), write(result),
      [send = values.data(), receive = result.data(), count = values.size()](Transport& transport,
                                                                             void* queue) {
        transport.all_gather(send, receive, count, data_type_of<T>, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::broadcast(Stream<Space>& stream, const char* label, Vector<T, Space> values,
                                    int root) {
  require_member(label, root);
  if (values.size() == 0) return;
  run(stream, label, Access{}, write(values),
      [data = values.data(), count = values.size(), root](Transport& transport, void* queue) {
        transport.broadcast(data, count, data_type_of<T>, root, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::all_to_all(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                                     Vector<T, Space> result) {
  const auto ranks = static_cast<std::size_t>(size());
  require_sizes(label, values.size(), result.size() / ranks);
  require_sizes(label, result.size(), values.size() / ranks);
  if (values.size() == 0) return;
  run(stream, label, read(values), write(result),
      [send = values.data(), receive = result.data(), count = values.size() / ranks](Transport& transport,
                                                                                     void* queue) {
        transport.all_to_all(send, receive, count, data_type_of<T>, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::send(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                               int to) {
  require_other(label, to);
  if (values.size() == 0) return;
  run(stream, label, read(values), Access{},
      [data = values.data(), count = values.size(), to](Transport& transport, void* queue) {
        transport.send(data, count, data_type_of<T>, to, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::receive(Stream<Space>& stream, const char* label, Vector<T, Space> values,
                                  int from) {
  require_other(label, from);
  if (values.size() == 0) return;
  run(stream, label, Access{}, write(values),
      [data = values.data(), count = values.size(), from](Transport& transport, void* queue) {
        transport.receive(data, count, data_type_of<T>, from, queue);
      });
}

template <class Space>
template <class T>
void Communicator<Space>::send_receive(Stream<Space>& stream, const char* label, Vector<const T, Space> sent,
                                       int to, Vector<T, Space> received, int from) {
  if (sent.size() == 0) return receive<T>(stream, label, received, from);
  if (received.size() == 0) return send<T>(stream, label, sent, to);
  require_other(label, to);
  require_other(label, from);
  run(stream, label, read(sent), write(received),
      [data = sent.data(), count = sent.size(), to, into = received.data(), into_count = received.size(),
       from](Transport& transport, void* queue) {
        transport.send_receive(data, count, to, into, into_count, from, data_type_of<T>, queue);
      });
}

#define ENCORE_INSTANTIATE_REDUCTIONS(SPACE, T)                                                             \
  template void Communicator<SPACE>::all_reduce<T>(Stream<SPACE>&, const char*, Vector<T, SPACE>,           \
                                                   Reduction);                                              \
  template void Communicator<SPACE>::reduce_scatter<T>(Stream<SPACE>&, const char*, Vector<const T, SPACE>, \
                                                       Vector<T, SPACE>, Reduction);
#define ENCORE_INSTANTIATE_MOVES(SPACE, T)                                                                \
  template void Communicator<SPACE>::all_gather<T>(Stream<SPACE>&, const char*, Vector<const T, SPACE>,   \
                                                   Vector<T, SPACE>);                                     \
  template void Communicator<SPACE>::broadcast<T>(Stream<SPACE>&, const char*, Vector<T, SPACE>, int);    \
  template void Communicator<SPACE>::all_to_all<T>(Stream<SPACE>&, const char*, Vector<const T, SPACE>,   \
                                                   Vector<T, SPACE>);                                     \
  template void Communicator<SPACE>::send<T>(Stream<SPACE>&, const char*, Vector<const T, SPACE>, int);   \
  template void Communicator<SPACE>::receive<T>(Stream<SPACE>&, const char*, Vector<T, SPACE>, int);      \
  template void Communicator<SPACE>::send_receive<T>(Stream<SPACE>&, const char*, Vector<const T, SPACE>, \
                                                     int, Vector<T, SPACE>, int);
#define ENCORE_INSTANTIATE_COLLECTIVES(SPACE, T) \
  ENCORE_INSTANTIATE_REDUCTIONS(SPACE, T) ENCORE_INSTANTIATE_MOVES(SPACE, T)
#define ENCORE_INSTANTIATE_COMMUNICATOR(SPACE)        \
  template class Communicator<SPACE>;                 \
  ENCORE_INSTANTIATE_COLLECTIVES(SPACE, float)        \
  ENCORE_INSTANTIATE_COLLECTIVES(SPACE, double)       \
  ENCORE_INSTANTIATE_COLLECTIVES(SPACE, bfloat16)     \
  ENCORE_INSTANTIATE_COLLECTIVES(SPACE, std::int32_t) \
  ENCORE_INSTANTIATE_COLLECTIVES(SPACE, std::int64_t) \
  ENCORE_INSTANTIATE_MOVES(SPACE, std::uint8_t)
ENCORE_IF_SERIAL(ENCORE_INSTANTIATE_COMMUNICATOR(Kokkos::Serial))
ENCORE_IF_OPENMP(ENCORE_INSTANTIATE_COMMUNICATOR(Kokkos::OpenMP))
ENCORE_IF_CUDA(ENCORE_INSTANTIATE_COMMUNICATOR(Kokkos::Cuda))
#undef ENCORE_INSTANTIATE_COMMUNICATOR
#undef ENCORE_INSTANTIATE_COLLECTIVES
#undef ENCORE_INSTANTIATE_MOVES
#undef ENCORE_INSTANTIATE_REDUCTIONS

}  // namespace encore::backend
