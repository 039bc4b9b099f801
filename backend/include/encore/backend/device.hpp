// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/attention.hpp>
#include <encore/backend/blas.hpp>
#include <encore/backend/grouped_blas.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/random_tracker.hpp>
#include <encore/backend/stream.hpp>

#include <cstdint>
#include <string>

namespace encore::backend {

/// Everything a model needs of one device: a stream, the random streams, and the vendor handles with their
/// workspaces. Several devices and models may live in one process. Not copyable; used by one thread at a time.
template <class Space>
class Device {
 public:
  /// Throws DeviceError.
  explicit Device(std::uint64_t seed)
      : random_(stream_, seed), blas_(stream_), grouped_blas_(stream_), attention_(stream_) {}
  /// Works on the caller's execution space instance, which must outlive the device.
  Device(const Space& instance, std::uint64_t seed)
      : stream_(instance),
        random_(stream_, seed),
        blas_(stream_),
        grouped_blas_(stream_),
        attention_(stream_) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Stream<Space>& stream() { return stream_; }
  RandomTracker<Space>& random() { return random_; }
  Blas<Space>& blas() { return blas_; }
  GroupedBlas<Space>& grouped_blas() { return grouped_blas_; }
  Attention<Space>& attention() { return attention_; }

 private:
  Stream<Space> stream_;
  RandomTracker<Space> random_;
  Blas<Space> blas_;
  GroupedBlas<Space> grouped_blas_;
  Attention<Space> attention_;
};

/// One line about the device: model, memory, threads, driver.
template <class Space>
std::string describe_device();

}  // namespace encore::backend
