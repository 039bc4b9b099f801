// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/data_type.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace encore::backend {

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

  /// Leaves the group, so that ranks which still wait for this one are told. No graph may be alive that recorded an
  /// operation. The second time does nothing; the destructor does it too.
  virtual void close() = 0;
};

}  // namespace encore::backend
