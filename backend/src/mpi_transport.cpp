// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/mpi_transport.hpp>

#if ENCORE_HAVE_MPI
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>
#endif

namespace encore::backend {

#if ENCORE_HAVE_MPI

namespace {

void check_mpi(int status, const std::string& what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  (void)MPI_Error_string(status, words.data(), &length);
  throw CommunicationError(what + ": MPI says " +
                           std::string(words.data(), static_cast<std::size_t>(length)));
}

/// MPI, started and ended by Encore unless the program has started it.
class Session {
 public:
  Session() {
    int started = 0, ended = 0;
    check_mpi(MPI_Initialized(&started), "asking for MPI");
    check_mpi(MPI_Finalized(&ended), "asking for MPI");
    if (ended != 0)
      throw CommunicationError("MPI has been ended in this process and cannot be started again");
    if (started == 0) {
      // A replay on several threads makes its calls on one of them, one after the other.
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads_), "starting MPI");
      owned_ = true;
    }
    check_mpi(MPI_Query_thread(&threads_), "asking MPI for its threads");
  }
  ~Session() {
    int ended = 0;
    if (owned_ && !abandoned_ && MPI_Finalized(&ended) == MPI_SUCCESS && ended == 0) (void)MPI_Finalize();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Whether this thread may: a replay may run on another one than MPI was started for.
  bool may_call() const {
    int main_thread = 0;
    return threads_ >= MPI_THREAD_SERIALIZED ||
           (MPI_Is_thread_main(&main_thread) == MPI_SUCCESS && main_thread != 0);
  }

  /// Ending MPI would wait for ranks that wait for this one. Without it the process' end ends the job, as mpiexec does.
  void abandon() { abandoned_ = true; }
  /// The exception that was the reason has been caught, and the process goes on.
  void go_on() { abandoned_ = false; }

  /// MPI itself is one for the process.
  static std::shared_ptr<Session> shared() {
    static std::mutex mutex;
    static std::weak_ptr<Session> running;
    const std::lock_guard lock(mutex);
    std::shared_ptr<Session> session = running.lock();
    if (!session) running = session = std::make_shared<Session>();
    return session;
  }

 private:
  int threads_ = MPI_THREAD_SINGLE;
  bool owned_ = false;
  bool abandoned_ = false;
};

template <class Combine>
void combine(void* values, void* totals, const int* count, const Combine& rule) {
  const auto* in = static_cast<const bfloat16*>(values);
  auto* out = static_cast<bfloat16*>(totals);
  for (int i = 0; i < *count; ++i)
    out[i] = bfloat16(rule(static_cast<float>(out[i]), static_cast<float>(in[i])));
}
void add_bfloat16(void* values, void* totals, int* count, MPI_Datatype*) {
  combine(values, totals, count, [](float a, float b) { return a + b; });
}
void larger_bfloat16(void* values, void* totals, int* count, MPI_Datatype*) {
  combine(values, totals, count, [](float a, float b) { return std::max(a, b); });
}

MPI_Datatype mpi_type_of(DataType type) {
  switch (type) {
    case DataType::float64: return MPI_DOUBLE;
    case DataType::float32: return MPI_FLOAT;
    case DataType::bfloat16: return MPI_UINT16_T;  // with operations of our own
    case DataType::int64: return MPI_INT64_T;
    case DataType::int32: return MPI_INT32_T;
    case DataType::uint8: return MPI_UINT8_T;
    case DataType::uint64: return MPI_UINT64_T;
  }
  throw InternalError("MPI has no such type");
}

class MpiTransport final : public Transport {
 public:
  /// Takes the communicator over.
  MpiTransport(std::string name, std::shared_ptr<Session> session, MPI_Comm communicator)
      : name_(std::move(name)), session_(std::move(session)), communicator_(communicator) {
    check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "joining '" + name_ + "'");
    check_mpi(MPI_Comm_rank(communicator_, &rank_), "joining '" + name_ + "'");
    check_mpi(MPI_Comm_size(communicator_, &size_), "joining '" + name_ + "'");
    check_mpi(MPI_Op_create(add_bfloat16, 1, &add_), "joining '" + name_ + "'");
    check_mpi(MPI_Op_create(larger_bfloat16, 1, &larger_), "joining '" + name_ + "'");
  }
  ~MpiTransport() override {
    if (by_exception()) session_->abandon();
    try {
      close();
    } catch (const std::exception&) {
      // The job is ending.
    }
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string description() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> words{};
    int length = 0;
    (void)MPI_Get_library_version(words.data(), &length);
    const std::string all(words.data(), static_cast<std::size_t>(length));
    return "MPI: " + all.substr(0, all.find_first_of(",\n"));
  }

  void all_reduce(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                  void*) override {
    for (std::size_t begin = 0; begin < count; begin += most_elements) {
      const std::size_t bytes = begin * size_of(type);
      void* to = static_cast<std::byte*>(receive) + bytes;
      const void* from = send == receive ? MPI_IN_PLACE : static_cast<const std::byte*>(send) + bytes;
      check(MPI_Allreduce(from, to, static_cast<int>(std::min(most_elements, count - begin)),
                          mpi_type_of(type), operation_of(type, reduction), open("all_reduce")),
            "all_reduce");
    }
  }
  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                      void*) override {
    const std::size_t bytes = count * size_of(type);
    // MPI's operands must not overlap.
    const bool inside = receive >= send && receive < static_cast<const std::byte*>(send) + size_ * bytes;
    if (inside) scratch_.resize(bytes);
    check(MPI_Reduce_scatter_block(send, inside ? scratch_.data() : receive, small(count, "reduce_scatter"),
                                   mpi_type_of(type), operation_of(type, reduction), open("reduce_scatter")),
          "reduce_scatter");
    if (inside) std::memcpy(receive, scratch_.data(), bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void*) override {
    const auto* mine =
        static_cast<std::byte*>(receive) + static_cast<std::size_t>(rank_) * count * size_of(type);
    check(MPI_Allgather(send == mine ? MPI_IN_PLACE : send, small(count, "all_gather"), mpi_type_of(type),
                        receive, small(count, "all_gather"), mpi_type_of(type), open("all_gather")),
          "all_gather");
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, void*) override {
    for (std::size_t begin = 0; begin < count; begin += most_elements)
      check(MPI_Bcast(static_cast<std::byte*>(data) + begin * size_of(type),
                      static_cast<int>(std::min(most_elements, count - begin)), mpi_type_of(type), root,
                      open("broadcast")),
            "broadcast");
  }
  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void*) override {
    check(MPI_Alltoall(send, small(count, "all_to_all"), mpi_type_of(type), receive,
                       small(count, "all_to_all"), mpi_type_of(type), open("all_to_all")),
          "all_to_all");
  }

  void send(const void* data, std::size_t count, DataType type, int to, void*) override {
    check(MPI_Send(data, small(count, "send"), mpi_type_of(type), to, message_tag, open("send")), "send");
  }
  void receive(void* data, std::size_t count, DataType type, int from, void*) override {
    MPI_Status status;
    check(MPI_Recv(data, small(count, "receive"), mpi_type_of(type), from, message_tag, open("receive"),
                   &status),
          "receive");
    require_count(status, count, type, from);
  }
  void send_receive(const void* send, std::size_t send_count, int to, void* receive,
                    std::size_t receive_count, int from, DataType type, void*) override {
    MPI_Status status;
    check(MPI_Sendrecv(send, small(send_count, "send_receive"), mpi_type_of(type), to, message_tag, receive,
                       small(receive_count, "send_receive"), mpi_type_of(type), from, message_tag,
                       open("send_receive"), &status),
          "send_receive");
    require_count(status, receive_count, type, from);
  }

  std::shared_ptr<Transport> split(std::string name, int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(open("split"), color < 0 ? MPI_UNDEFINED : color, key, &part), "split");
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_shared<MpiTransport>(std::move(name), session_, part);
  }

  void close() override {
    if (communicator_ == MPI_COMM_NULL) return;
    MPI_Comm communicator = std::exchange(communicator_, MPI_COMM_NULL);
    if (by_exception())
      return session_->abandon();  // In order it would wait for ranks that wait for this one.
    session_->go_on();
    int ended = 0;
    if (MPI_Finalized(&ended) != MPI_SUCCESS || ended != 0) return;  // The program has ended MPI already.
    check_mpi(MPI_Op_free(&add_), "leaving '" + name_ + "'");
    check_mpi(MPI_Op_free(&larger_), "leaving '" + name_ + "'");
    check_mpi(MPI_Comm_free(&communicator), "leaving '" + name_ + "'");
  }

 private:
  bool by_exception() const { return std::uncaught_exceptions() > exceptions_; }

  /// MPI counts in int.
  static constexpr std::size_t most_elements = std::size_t{1} << 30;
  static constexpr int message_tag = 0;

  void require_count(const MPI_Status& status, std::size_t count, DataType type, int from) const {
    int received = 0;
    check(MPI_Get_count(&status, mpi_type_of(type), &received), "receive");
    if (received < 0 || static_cast<std::size_t>(received) != count)
      throw CommunicationError("the ranks of '" + name_ + "' do not do the same: rank " +
                               std::to_string(from) + " sends " + std::to_string(received) +
                               " elements, rank " + std::to_string(rank_) + " receives " +
                               std::to_string(count));
  }

  MPI_Op operation_of(DataType type, Reduction reduction) const {
    if (type == DataType::bfloat16) return reduction == Reduction::sum ? add_ : larger_;
    return reduction == Reduction::sum ? MPI_SUM : MPI_MAX;
  }
  MPI_Comm open(const char* operation) const {
    if (communicator_ == MPI_COMM_NULL)
      throw CommunicationError(std::string(operation) + ": rank " + std::to_string(rank_) + " has left '" +
                               name_ + "'");
    if (!session_->may_call())
      throw CommunicationError(
          std::string(operation) + " of '" + name_ +
          "': MPI was started for calls of one thread alone, and this is another one: start it by "
          "MPI_Init_thread with MPI_THREAD_SERIALIZED, or replay on one thread");
    session_->go_on();
    return communicator_;
  }
  int small(std::size_t count, const char* operation) const {
    if (count > static_cast<std::size_t>(std::numeric_limits<int>::max()))
      throw CommunicationError(std::string(operation) + " of '" + name_ + "': " + std::to_string(count) +
                               " elements are more than MPI counts at once; use smaller parts");
    return static_cast<int>(count);
  }
  void check(int status, const char* operation) const {
    if (status != MPI_SUCCESS)
      check_mpi(status, std::string(operation) + " of '" + name_ + "', rank " + std::to_string(rank_));
  }

  const std::string name_;
  const std::shared_ptr<Session> session_;  ///< ends after the communicator
  const int exceptions_ = std::uncaught_exceptions();
  MPI_Comm communicator_ = MPI_COMM_NULL;
  MPI_Op add_ = MPI_OP_NULL, larger_ = MPI_OP_NULL;
  int rank_ = 0, size_ = 1;
  std::vector<std::byte> scratch_;
};

}  // namespace

namespace {

std::shared_ptr<Transport> duplicate_of(MPI_Comm communicator, std::string name,
                                        std::shared_ptr<Session> session) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(communicator, &duplicate), "joining '" + name + "'");
  return std::make_shared<MpiTransport>(std::move(name), std::move(session), duplicate);
}

}  // namespace

std::shared_ptr<Transport> mpi_transport(std::string name) {
  auto session = Session::shared();
  return duplicate_of(MPI_COMM_WORLD, std::move(name), std::move(session));
}

std::shared_ptr<Transport> mpi_transport(std::string name, int fortran_communicator) {
  auto session = Session::shared();
  return duplicate_of(MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_communicator)), std::move(name),
                      std::move(session));
}

#else

namespace {
constexpr const char* without_mpi =
    "this build has no MPI: build with ENCORE_ENABLE_MPI=ON where MPI is installed";
}

std::shared_ptr<Transport> mpi_transport(std::string) { throw DeviceError(without_mpi); }
std::shared_ptr<Transport> mpi_transport(std::string, int) { throw DeviceError(without_mpi); }

#endif

}  // namespace encore::backend
