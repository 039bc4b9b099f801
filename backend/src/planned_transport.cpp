// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/planned_transport.hpp>

#include <array>
#include <utility>

namespace encore::backend {

namespace {

/// Notes every call before `pass_on` does it.
class NotingTransport : public Transport {
 public:
  explicit NotingTransport(std::shared_ptr<TransportLog> log) : log_(std::move(log)) {}

  void all_reduce(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                  void* queue) override {
    note(TransportOperation::all_reduce, count, type);
    if (Transport* const to = target()) to->all_reduce(send, receive, count, type, reduction, queue);
  }
  void reduce_scatter(const void* send, void* receive, std::size_t count, DataType type, Reduction reduction,
                      void* queue) override {
    note(TransportOperation::reduce_scatter, whole(count), type);
    if (Transport* const to = target()) to->reduce_scatter(send, receive, count, type, reduction, queue);
  }
  void all_gather(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    note(TransportOperation::all_gather, whole(count), type);
    if (Transport* const to = target()) to->all_gather(send, receive, count, type, queue);
  }
  void broadcast(void* data, std::size_t count, DataType type, int root, void* queue) override {
    note(TransportOperation::broadcast, count, type);
    if (Transport* const to = target()) to->broadcast(data, count, type, root, queue);
  }
  void all_to_all(const void* send, void* receive, std::size_t count, DataType type, void* queue) override {
    note(TransportOperation::all_to_all, whole(count), type);
    if (Transport* const to = target()) to->all_to_all(send, receive, count, type, queue);
  }
  void send(const void* data, std::size_t count, DataType type, int rank, void* queue) override {
    note(TransportOperation::send, count, type, rank);
    if (Transport* const to = target()) to->send(data, count, type, rank, queue);
  }
  void receive(void* data, std::size_t count, DataType type, int rank, void* queue) override {
    note(TransportOperation::receive, count, type, rank);
    if (Transport* const to = target()) to->receive(data, count, type, rank, queue);
  }
  void send_receive(const void* send, std::size_t send_count, int send_to, void* receive,
                    std::size_t receive_count, int receive_from, DataType type, void* queue) override {
    note(TransportOperation::send, send_count, type, send_to);
    note(TransportOperation::receive, receive_count, type, receive_from);
    if (Transport* const to = target())
      to->send_receive(send, send_count, send_to, receive, receive_count, receive_from, type, queue);
  }

 protected:
  /// What does the work, or nothing.
  virtual Transport* target() = 0;

  std::shared_ptr<TransportLog> log_;

 private:
  std::size_t whole(std::size_t count) const { return count * static_cast<std::size_t>(size()); }
  void note(TransportOperation operation, std::size_t count, DataType type, int peer = -1) {
    if (log_ == nullptr) throw InternalError("a planned group of ranks runs nothing");
    log_->push_back({operation, count * size_of(type), peer});
  }
};

class PlannedTransport final : public NotingTransport {
 public:
  PlannedTransport(int ranks, int rank, std::shared_ptr<TransportLog> log)
      : NotingTransport(std::move(log)), ranks_(ranks), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string description() const override { return "planned"; }
  bool lists() const { return log_ != nullptr; }
  std::shared_ptr<Transport> split(std::string, int, int) override {
    throw InternalError("a planned group of ranks is not split");
  }
  void close() override {}

 private:
  Transport* target() override { return nullptr; }

  int ranks_, rank_;
};

class CountingTransport final : public NotingTransport {
 public:
  CountingTransport(std::shared_ptr<Transport> counted, std::shared_ptr<TransportLog> log)
      : NotingTransport(std::move(log)), counted_(std::move(counted)) {}
  int rank() const override { return counted_->rank(); }
  int size() const override { return counted_->size(); }
  std::string description() const override { return counted_->description(); }
  std::shared_ptr<Transport> split(std::string name, int color, int key) override {
    return counted_->split(std::move(name), color, key);
  }
  void close() override { counted_->close(); }

 private:
  Transport* target() override { return counted_.get(); }

  std::shared_ptr<Transport> counted_;
};

}  // namespace

std::string_view name_of(TransportOperation operation) {
  constexpr std::array<std::string_view, transport_operations> names{
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "receive"};
  return names[static_cast<std::size_t>(operation)];
}

std::shared_ptr<Transport> planned_transport(int ranks, int rank, std::shared_ptr<TransportLog> log) {
  return std::make_shared<PlannedTransport>(ranks, rank, std::move(log));
}

bool lists_operations(const Transport& transport) {
  const auto* const planned = dynamic_cast<const PlannedTransport*>(&transport);
  return planned != nullptr && planned->lists();
}

std::shared_ptr<Transport> counting_transport(std::shared_ptr<Transport> counted,
                                              std::shared_ptr<TransportLog> log) {
  return std::make_shared<CountingTransport>(std::move(counted), std::move(log));
}

}  // namespace encore::backend
