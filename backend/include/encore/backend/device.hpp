// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/attention.hpp>
#include <encore/backend/blas.hpp>
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/grouped_blas.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/random_tracker.hpp>
#include <encore/backend/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

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

  /// Joins a group of ranks under a name, such as "data". The operations of all groups keep one order.
  void join(const std::string& group, std::shared_ptr<Transport> transport) {
    if (auto watch = transport->watch()) watch_ = std::move(watch);
    communicators_[group] = std::make_unique<Communicator<Space>>(group, std::move(transport), order_);
  }
  bool is_in(std::string_view group) const { return communicators_.contains(group); }
  /// Throws InternalError when the device is in no such group.
  Communicator<Space>& communicator(std::string_view group) {
    const auto found = communicators_.find(group);
    if (found == communicators_.end())
      throw InternalError("the device is in no group of ranks called '" + std::string(group) + "'");
    return *found->second;
  }
  /// What waits for the device are given, as in wait(event, stream, watch); nullptr where no rank is watched.
  JobWatch* watch() const { return watch_.get(); }

 private:
  Stream<Space> stream_;
  RandomTracker<Space> random_;
  Blas<Space> blas_;
  GroupedBlas<Space> grouped_blas_;
  Attention<Space> attention_;
  std::shared_ptr<std::byte> order_ = std::make_shared<std::byte>();
  std::shared_ptr<JobWatch> watch_;
  std::map<std::string, std::unique_ptr<Communicator<Space>>, std::less<>> communicators_;
};

/// One line about the device: model, memory, threads, driver.
template <class Space>
std::string describe_device();

}  // namespace encore::backend
