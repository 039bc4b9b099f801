// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/recorded_resource.hpp>
#include <encore/backend/stream.hpp>
#include <encore/backend/transport.hpp>

#include <memory>
#include <string>
#include <vector>

namespace encore::backend {

/// Collective operations of one rank on a stream: run at once, or recorded like any kernel and repeated by every
/// replay. All ranks of the group record and replay alike. Operations of communicators that share an `order`, as those of
/// a Device do, keep their order, also where a recorded graph has branches: ranks would wait for each other crosswise
/// otherwise. Used by one thread at a time.
///
/// T is float, double, bfloat16, int32_t or int64_t, and uint8_t where nothing is reduced. Nothing here allocates or waits for the device. Throws what the
/// transport does (CommunicationError on hosts, DeviceError of NCCL, which has no time limit); CaptureError after close().
template <class Space>
class Communicator {
 public:
  /// `name` is what errors call the group, as in "data". `order`: a byte that nobody reads or writes, the same for all
  /// whose operations are to keep one order.
  Communicator(std::string name, std::shared_ptr<Transport> transport,
               std::shared_ptr<std::byte> order = std::make_shared<std::byte>());
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  const std::string& name() const { return resource_.name(); }
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  std::string description() const { return transport_->description(); }
  std::shared_ptr<JobWatch> watch() const { return transport_->watch(); }

  /// values[i] = the reduction of all ranks' values[i].
  template <class T>
  void all_reduce(Stream<Space>& stream, const char* label, Vector<T, Space> values, Reduction reduction);
  /// result[i] = the reduction of all ranks' values[rank * result.size() + i]; `values` has size() times as many
  /// elements. `result` may be that stretch of `values` itself, or must not overlap it.
  template <class T>
  void reduce_scatter(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                      Vector<T, Space> result, Reduction reduction);
  /// result[r * values.size() + i] = rank r's values[i]. `values` may be this rank's stretch of `result`.
  template <class T>
  void all_gather(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                  Vector<T, Space> result);
  /// values[i] = that of rank `root`.
  template <class T>
  void broadcast(Stream<Space>& stream, const char* label, Vector<T, Space> values, int root);
  /// With values and result [size(), n]: result[r, i] = rank r's values[rank, i]. The two must not overlap.
  template <class T>
  void all_to_all(Stream<Space>& stream, const char* label, Vector<const T, Space> values,
                  Vector<T, Space> result);
  /// The n-th message to a rank goes into its n-th receive() from this one. Both may wait for each other; ranks that
  /// send to each other at the same time do it by send_receive(). Not to this rank itself.
  template <class T>
  void send(Stream<Space>& stream, const char* label, Vector<const T, Space> values, int to);
  template <class T>
  void receive(Stream<Space>& stream, const char* label, Vector<T, Space> values, int from);
  /// Both at the same time, of any sizes. The two must not overlap.
  template <class T>
  void send_receive(Stream<Space>& stream, const char* label, Vector<const T, Space> sent, int to,
                    Vector<T, Space> received, int from);

  /// Names of the graphs alive that recorded an operation.
  std::vector<std::string> graphs() const { return resource_.graphs(); }
  /// Leaves the group. Throws CaptureError at once, naming the graphs, while there are any. Does nothing the second
  /// time.
  void close() { resource_.close(); }

 private:
  template <class Call>
  void run(Stream<Space>& stream, const char* label, const Access& reads, const Access& writes,
           const Call& call);
  void require_member(const char* label, int rank) const;
  void require_other(const char* label, int rank) const;
  void require_sizes(const char* label, std::size_t whole, std::size_t part) const;

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<std::byte> order_;  ///< what every operation is said to write: keeps them in order
  RecordedResource resource_;
};

}  // namespace encore::backend
