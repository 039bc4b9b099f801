// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/nccl_transport.hpp>

#if ENCORE_HAVE_NCCL
#include "run_apart.hpp"

#include <nccl.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#endif

namespace encore::backend {

#if ENCORE_HAVE_NCCL

namespace {

void check_nccl(ncclResult_t status, const std::string& what, ncclComm_t communicator = nullptr) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const char* details = ncclGetLastError(communicator);
  throw DeviceError(what + ": NCCL says " + ncclGetErrorString(status) +
                    (details != nullptr && *details != '\0' ? std::string(", ") + details : std::string()));
}

ncclDataType_t nccl_type_of(DataType type) {
  switch (type) {
    case DataType::float64: return ncclFloat64;
    case DataType::float32: return ncclFloat32;
    case DataType::bfloat16: return ncclBfloat16;
    case DataType::int64: return ncclInt64;
    case DataType::int32: return ncclInt32;
    case DataType::uint8: return ncclUint8;
    case DataType::uint64: return ncclUint64;
  }
  throw InternalError("NCCL has no such type");
}

ncclRedOp_t nccl_operation_of(Reduction reduction) { return reduction == Reduction::sum ? ncclSum : ncclMax; }

/// A communicator, and what a watch must know to end its operations. Outlives the transport while it is being ended.
struct Handle {
  explicit Handle(std::chrono::milliseconds patience) : interrupting(patience) {}

  const std::chrono::milliseconds interrupting;
  std::timed_mutex calls;  ///< held during calls
  ncclComm_t communicator = nullptr;
  std::atomic<bool> ended = false;  ///< Who sets it destroys the communicator.
  std::promise<void> destroyed;

  /// Makes kernels and calls under way return. NCCL then waits until no graph refers to the communicator, which is why
  /// it gets a thread of its own.
  static void abort(const std::shared_ptr<Handle>& handle) {
    if (handle->ended.exchange(true)) return;
    std::thread([handle] {
      // A call that is not stuck is left to end first.
      const std::unique_lock lock(handle->calls, handle->interrupting);
      (void)ncclCommAbort(handle->communicator);
      handle->destroyed.set_value();
    }).detach();
  }
  /// The same, for an owner after whom the process may end, which NCCL's threads would not survive.
  static void abort_and_wait(const std::shared_ptr<Handle>& handle) {
    abort(handle);
    (void)handle->destroyed.get_future().wait_for(2 * handle->interrupting);
  }
  /// In order, which waits for the other ranks of a host, unless an abort comes meanwhile.
  ncclResult_t finish() {
    const std::lock_guard lock(calls);
    if (ended) return ncclSuccess;
    const ncclResult_t finalized = ncclCommFinalize(communicator);
    if (ended.exchange(true)) return ncclSuccess;
    const bool good = finalized == ncclSuccess;
    const ncclResult_t status = good ? ncclCommDestroy(communicator) : ncclCommAbort(communicator);
    destroyed.set_value();
    return good ? status : finalized;
  }
  std::string trouble() const {
    ncclResult_t status = ncclSuccess;
    if (ended || ncclCommGetAsyncError(communicator, &status) != ncclSuccess) return "";
    if (status == ncclSuccess || status == ncclInProgress) return "";
    return std::string("NCCL says ") + ncclGetErrorString(status);
  }
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::string name, const NcclId& id, int ranks, int rank, std::shared_ptr<JobWatch> watch)
      : name_(std::move(name)), watch_(std::move(watch)) {
    ncclUniqueId unique;
    static_assert(sizeof unique == sizeof id);
    std::memcpy(&unique, id.data(), sizeof unique);
    int device = 0;
    check_cuda_call(cudaGetDevice(&device));
    const std::string what = "joining '" + name_ + "'";
    std::optional<JobWatch::Waiting> waiting;
    if (watch_) waiting.emplace(*watch_);
    const bool joined = impl::run_apart(
        [handle = handle_, unique, ranks, rank, device, what] {
          check_cuda_call(cudaSetDevice(device));
          check_nccl(ncclCommInitRank(&handle->communicator, ranks, unique, rank), what);
        },
        watch_.get(), patience_.joining);
    if (!joined)
      throw CommunicationError(what + ": not all of " + std::to_string(ranks) + " ranks came within " +
                               std::to_string(patience_.joining.count() / 1000) +
                               " s; do all processes run, with the same id?");
    begin();
  }
  /// Takes the communicator over.
  NcclTransport(std::string name, ncclComm_t communicator, std::shared_ptr<JobWatch> watch)
      : name_(std::move(name)), watch_(std::move(watch)) {
    handle_->communicator = communicator;
    begin();
  }
  ~NcclTransport() override {
    try {
      close();
    } catch (const std::exception&) {
      // The job is ending.
    }
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override {
    int version = 0;
    (void)ncclGetVersion(&version);
    return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }

  void all_reduce(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                  void* queue) override {
    call("all_reduce", [&](ncclComm_t group) {
      return ncclAllReduce(send, receive, count, nccl_type_of(type), nccl_operation_of(reduction), group,
                           static_cast<cudaStream_t>(queue));
    });
  }
  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                      void* queue) override {
    call("reduce_scatter", [&](ncclComm_t group) {
      return ncclReduceScatter(send, receive, count, nccl_type_of(type), nccl_operation_of(reduction), group,
                               static_cast<cudaStream_t>(queue));
    });
  }
  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    call("all_gather", [&](ncclComm_t group) {
      return ncclAllGather(send, receive, count, nccl_type_of(type), group, static_cast<cudaStream_t>(queue));
    });
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, void* queue) override {
    call("broadcast", [&](ncclComm_t group) {
      return ncclBroadcast(data, data, count, nccl_type_of(type), root, group,
                           static_cast<cudaStream_t>(queue));
    });
  }
  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    // Of sends and receives, which every NCCL since 2.7 has; ncclAlltoAll came with 2.28.
    const std::size_t bytes = count * size_of(type);
    together("all_to_all", [&](ncclComm_t group) {
      ncclResult_t status = ncclSuccess;
      for (int peer = 0; peer < size_ && status == ncclSuccess; ++peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
        status = ncclSend(static_cast<const std::byte*>(send) + offset, bytes, ncclUint8, peer, group,
                          static_cast<cudaStream_t>(queue));
        if (status == ncclSuccess)
          status = ncclRecv(static_cast<std::byte*>(receive) + offset, bytes, ncclUint8, peer, group,
                            static_cast<cudaStream_t>(queue));
      }
      return status;
    });
  }

  void send(const void* data, std::size_t count, DataType type, int to, void* queue) override {
    call("send", [&](ncclComm_t group) {
      return ncclSend(data, count, nccl_type_of(type), to, group, static_cast<cudaStream_t>(queue));
    });
  }
  void receive(void* data, std::size_t count, DataType type, int from, void* queue) override {
    call("receive", [&](ncclComm_t group) {
      return ncclRecv(data, count, nccl_type_of(type), from, group, static_cast<cudaStream_t>(queue));
    });
  }
  void send_receive(const void* send, std::size_t send_count, int to, void* receive,
                    std::size_t receive_count, int from, DataType type, void* queue) override {
    together("send_receive", [&](ncclComm_t group) {
      const ncclResult_t status =
          ncclSend(send, send_count, nccl_type_of(type), to, group, static_cast<cudaStream_t>(queue));
      if (status != ncclSuccess) return status;
      return ncclRecv(receive, receive_count, nccl_type_of(type), from, group,
                      static_cast<cudaStream_t>(queue));
    });
  }

  std::shared_ptr<Transport> split(std::string name, int color, int key) override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 1)
    ncclComm_t part = nullptr;
    call("split", [&](ncclComm_t group) {
      return ncclCommSplit(group, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, nullptr);
    });
    if (part == nullptr) return nullptr;
    return std::make_shared<NcclTransport>(std::move(name), part, watch_);
#else
    throw DeviceError("splitting '" + name_ + "' needs NCCL 2.18 or newer, and this build has " +
                      description());
#endif
  }

  std::shared_ptr<JobWatch> watch() const override { return watch_; }

  void close() override {
    if (std::exchange(closed_, true)) return;
    guard_.reset();
    if (handle_->communicator == nullptr) return;
    const bool by_exception = std::uncaught_exceptions() > exceptions_;
    if (by_exception && watch_)
      watch_->fail("rank " + std::to_string(watch_->rank()) +
                   " has ended by an exception; its own output may say which");
    // In order it would wait for ranks that wait for this one.
    if (by_exception || (watch_ && watch_->failed())) return Handle::abort_and_wait(handle_);
    int device = 0;
    check_cuda_call(cudaGetDevice(&device));
    const auto finish = [handle = handle_, device, what = "leaving '" + name_ + "'"] {
      check_cuda_call(cudaSetDevice(device));
      check_nccl(handle->finish(), what);
    };
    try {
      // This rank is done, and so is its part for the others, which may need longer for theirs.
      if (!impl::run_apart(finish, watch_.get(), patience_.ending)) Handle::abort_and_wait(handle_);
    } catch (const CommunicationError&) {
      Handle::abort_and_wait(handle_);
      throw;
    }
  }

 private:
  static void check_cuda_call(cudaError_t status) {
    if (status != cudaSuccess)
      throw DeviceError(std::string("choosing the GPU of a group: CUDA says ") + cudaGetErrorString(status));
  }

  void begin() {
    check(ncclCommUserRank(handle_->communicator, &rank_), "joining");
    check(ncclCommCount(handle_->communicator, &size_), "joining");
    if (!watch_) return;
    guard_ = watch_->guard({[handle = handle_, name = name_] {
                              const std::string trouble = handle->trouble();
                              return trouble.empty() ? trouble : "the group '" + name + "' broke, " + trouble;
                            },
                            [handle = handle_] { Handle::abort(handle); }});
  }

  void refuse_ended(const char* operation) const {
    if (!closed_ && !handle_->ended) return;
    if (watch_) watch_->check();
    throw CommunicationError(std::string(operation) + ": rank " + std::to_string(rank_) + " has left '" +
                             name_ + "'");
  }

  template <class Calls>
  void call(const char* operation, const Calls& calls) const {
    // Calls too may wait for other ranks, such as the first of each kind, which connects them.
    std::optional<JobWatch::Waiting> waiting;
    if (watch_) waiting.emplace(*watch_);
    std::unique_lock lock(handle_->calls, std::defer_lock);
    do {
      refuse_ended(operation);
    } while (!lock.try_lock_for(std::chrono::milliseconds(100)));
    refuse_ended(operation);
    check(calls(handle_->communicator), operation);
  }
  /// Sends and receives that may wait for one another.
  template <class Calls>
  void together(const char* operation, const Calls& calls) const {
    call(operation, [&](ncclComm_t group) {
      ncclResult_t status = ncclGroupStart();
      if (status != ncclSuccess) return status;
      status = calls(group);
      const ncclResult_t ended = ncclGroupEnd();  // Also after a failure: all later calls would wait for it.
      return status == ncclSuccess ? ended : status;
    });
  }
  void check(ncclResult_t status, const char* operation) const {
    if (status == ncclSuccess) return;
    if (watch_) watch_->explain();
    check_nccl(status, std::string(operation) + " of '" + name_ + "', rank " + std::to_string(rank_),
               handle_->communicator);
  }

  const std::string name_;
  const std::shared_ptr<JobWatch> watch_;
  const JobPatience patience_ = watch_ ? watch_->patience() : JobPatience();
  const std::shared_ptr<Handle> handle_ = std::make_shared<Handle>(patience_.interrupting);
  const int exceptions_ = std::uncaught_exceptions();
  int rank_ = 0, size_ = 1;
  bool closed_ = false;
  std::shared_ptr<void> guard_;
};

}  // namespace

NcclId make_nccl_id() {
  ncclUniqueId unique;
  check_nccl(ncclGetUniqueId(&unique), "making the id of a group");
  NcclId id;
  static_assert(sizeof unique == sizeof id);
  std::memcpy(id.data(), &unique, sizeof unique);
  return id;
}

std::shared_ptr<Transport> nccl_transport(std::string name, const NcclId& id, int ranks, int rank,
                                          std::shared_ptr<JobWatch> watch) {
  return std::make_shared<NcclTransport>(std::move(name), id, ranks, rank, std::move(watch));
}

#else

namespace {
constexpr const char* without_nccl =
    "this build has no NCCL: build with CUDA and ENCORE_ENABLE_NCCL=ON where NCCL is installed";
}

NcclId make_nccl_id() { throw DeviceError(without_nccl); }

std::shared_ptr<Transport> nccl_transport(std::string, const NcclId&, int, int, std::shared_ptr<JobWatch>) {
  throw DeviceError(without_nccl);
}

#endif

}  // namespace encore::backend
