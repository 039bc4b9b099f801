// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/nccl_transport.hpp>

#if ENCORE_HAVE_NCCL
#include <nccl.h>

#include <cstring>
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

class NcclTransport final : public Transport {
 public:
  NcclTransport(std::string name, const NcclId& id, int ranks, int rank)
      : name_(std::move(name)), rank_(rank), size_(ranks) {
    ncclUniqueId unique;
    static_assert(sizeof unique == sizeof id);
    std::memcpy(&unique, id.data(), sizeof unique);
    check_nccl(ncclCommInitRank(&communicator_, ranks, unique, rank), "joining '" + name_ + "'");
  }
  /// Takes the communicator over.
  NcclTransport(std::string name, ncclComm_t communicator)
      : name_(std::move(name)), communicator_(communicator) {
    check_nccl(ncclCommUserRank(communicator_, &rank_), "joining '" + name_ + "'", communicator_);
    check_nccl(ncclCommCount(communicator_, &size_), "joining '" + name_ + "'", communicator_);
  }
  ~NcclTransport() override {
    if (communicator_ != nullptr) (void)ncclCommDestroy(communicator_);
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
    check(ncclAllReduce(send, receive, count, nccl_type_of(type), nccl_operation_of(reduction), communicator_,
                        static_cast<cudaStream_t>(queue)),
          "all_reduce");
  }
  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                      void* queue) override {
    check(ncclReduceScatter(send, receive, count, nccl_type_of(type), nccl_operation_of(reduction),
                            communicator_, static_cast<cudaStream_t>(queue)),
          "reduce_scatter");
  }
  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    check(ncclAllGather(send, receive, count, nccl_type_of(type), communicator_,
                        static_cast<cudaStream_t>(queue)),
          "all_gather");
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, void* queue) override {
    check(ncclBroadcast(data, data, count, nccl_type_of(type), root, communicator_,
                        static_cast<cudaStream_t>(queue)),
          "broadcast");
  }
  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    // Of sends and receives, which every NCCL since 2.7 has; ncclAlltoAll came with 2.28.
    const std::size_t bytes = count * size_of(type);
    together("all_to_all", [&] {
      ncclResult_t status = ncclSuccess;
      for (int peer = 0; peer < size_ && status == ncclSuccess; ++peer) {
        const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
        status = ncclSend(static_cast<const std::byte*>(send) + offset, bytes, ncclUint8, peer, communicator_,
                          static_cast<cudaStream_t>(queue));
        if (status == ncclSuccess)
          status = ncclRecv(static_cast<std::byte*>(receive) + offset, bytes, ncclUint8, peer, communicator_,
                            static_cast<cudaStream_t>(queue));
      }
      return status;
    });
  }

  void send(const void* data, std::size_t count, DataType type, int to, void* queue) override {
    check(ncclSend(data, count, nccl_type_of(type), to, communicator_, static_cast<cudaStream_t>(queue)),
          "send");
  }
  void receive(void* data, std::size_t count, DataType type, int from, void* queue) override {
    check(ncclRecv(data, count, nccl_type_of(type), from, communicator_, static_cast<cudaStream_t>(queue)),
          "receive");
  }
  void send_receive(const void* send, std::size_t send_count, int to, void* receive,
                    std::size_t receive_count, int from, DataType type, void* queue) override {
    together("send_receive", [&] {
      const ncclResult_t status =
          ncclSend(send, send_count, nccl_type_of(type), to, communicator_, static_cast<cudaStream_t>(queue));
      if (status != ncclSuccess) return status;
      return ncclRecv(receive, receive_count, nccl_type_of(type), from, communicator_,
                      static_cast<cudaStream_t>(queue));
    });
  }

  std::shared_ptr<Transport> split(std::string name, int color, int key) override {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 1)
    ncclComm_t part = nullptr;
    check(ncclCommSplit(communicator_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, nullptr), "split");
    if (part == nullptr) return nullptr;
    return std::make_shared<NcclTransport>(std::move(name), part);
#else
    throw DeviceError("splitting '" + name_ + "' needs NCCL 2.18 or newer, and this build has " +
                      description());
#endif
  }

  void close() override {
    if (communicator_ == nullptr) return;
    ncclComm_t communicator = std::exchange(communicator_, nullptr);
    check_nccl(ncclCommFinalize(communicator), "leaving '" + name_ + "'", communicator);
    check_nccl(ncclCommDestroy(communicator), "leaving '" + name_ + "'");
  }

 private:
  /// Sends and receives that may wait for one another.
  template <class Calls>
  void together(const char* operation, const Calls& calls) const {
    check(ncclGroupStart(), operation);
    const ncclResult_t status = calls();
    const ncclResult_t ended = ncclGroupEnd();  // Also after a failure: all later calls would wait for it.
    check(status, operation);
    check(ended, operation);
  }
  void check(ncclResult_t status, const char* operation) const {
    if (status != ncclSuccess)
      check_nccl(status, std::string(operation) + " of '" + name_ + "', rank " + std::to_string(rank_),
                 communicator_);
  }

  const std::string name_;
  int rank_ = 0, size_ = 1;
  ncclComm_t communicator_ = nullptr;
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

std::shared_ptr<Transport> nccl_transport(std::string name, const NcclId& id, int ranks, int rank) {
  return std::make_shared<NcclTransport>(std::move(name), id, ranks, rank);
}

#else

namespace {
constexpr const char* without_nccl =
    "this build has no NCCL: build with CUDA and ENCORE_ENABLE_NCCL=ON where NCCL is installed";
}

NcclId make_nccl_id() { throw DeviceError(without_nccl); }

std::shared_ptr<Transport> nccl_transport(std::string, const NcclId&, int, int) {
  throw DeviceError(without_nccl);
}

#endif

}  // namespace encore::backend
