// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace encore::backend {

class JobWatch;

/// How the numbers of all ranks become one. Sums of bfloat16 are formed in float where the transport is our own.
enum class Reduction : std::uint8_t { sum, maximum };

/// One rank's end of a group of ranks, below Communicator. Every rank calls the same operations in the same order,
/// with the same counts. On hosts a call returns when this rank's part is done; on CUDA it queues work on `queue`, the
/// stream's native handle, and may be captured. Threads: throws CommunicationError, naming the rank, when one is gone,
/// does not come in time, or calls something else. MPI and NCCL: throws CommunicationError and DeviceError, in their words.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What carries the data, with its version.
  virtual std::string description() const = 0;

  /// receive[i] = the reduction of all ranks' send[i]; `receive` may be `send`.
  virtual void all_reduce(const void* send, void* receive, std::size_t count, DataType type,
                          Reduction reduction, void* queue) = 0;
  /// receive[i] = the reduction of all ranks' send[rank * count + i]; `receive` may be send + rank * count.
  virtual void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type,
                              Reduction reduction, void* queue) = 0;
  /// receive[r * count + i] = rank r's send[i]; `send` may be receive + rank * count.
  virtual void all_gather(const void* send, void* receive, std::size_t count, DataType type, void* queue) = 0;
  /// data[i] = that of rank `root`.
  virtual void broadcast(void* data, std::size_t count, DataType type, int root, void* queue) = 0;
  /// receive[r * count + i] = rank r's send[rank * count + i]; the two do not overlap.
  virtual void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void* queue) = 0;

  /// Point to point: the n-th message from one rank to another goes into the n-th receive there, of the same count and
  /// type. Either may wait for the other, so ranks that send to each other at the same time do it by send_receive.
  virtual void send(const void* data, std::size_t count, DataType type, int to, void* queue) = 0;
  virtual void receive(void* data, std::size_t count, DataType type, int from, void* queue) = 0;
  /// Both at the same time. The two do not overlap.
  virtual void send_receive(const void* send, std::size_t send_count, int to, void* receive,
                            std::size_t receive_count, int from, DataType type, void* queue) = 0;

  /// New groups, one of each color, in which ranks are ordered by key and then by their rank here. Every rank calls it;
  /// a negative color stands for none and gives nullptr. Not while anything is queued or recorded here; it may wait
  /// for the device. `name` is what errors call the group of this color.
  virtual std::shared_ptr<Transport> split(std::string name, int color, int key) = 0;

  /// Who sees to it that ranks which end do not leave this one waiting for ever; nullptr where the operations do.
  virtual std::shared_ptr<JobWatch> watch() const { return nullptr; }

  /// Leaves the group, so that ranks which still wait for this one are told. No graph may be alive that recorded an
  /// operation. The second time does nothing; the destructor does it too.
  virtual void close() = 0;
};

}  // namespace encore::backend
