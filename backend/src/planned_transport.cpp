// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/planned_transport.hpp>

namespace encore::backend {

namespace {

class PlannedTransport final : public Transport {
 public:
  PlannedTransport(int ranks, int rank) : ranks_(ranks), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }
  std::string description() const override { return "planned"; }
  void all_reduce(const void*, void*, std::size_t, DataType, Reduction, void*) override { refuse(); }
  void reduce_scatter(const void*, void*, std::size_t, DataType, Reduction, void*) override { refuse(); }
  void all_gather(const void*, void*, std::size_t, DataType, void*) override { refuse(); }
  void broadcast(void*, std::size_t, DataType, int, void*) override { refuse(); }
  void all_to_all(const void*, void*, std::size_t, DataType, void*) override { refuse(); }
  void send(const void*, std::size_t, DataType, int, void*) override { refuse(); }
  void receive(void*, std::size_t, DataType, int, void*) override { refuse(); }
  void send_receive(const void*, std::size_t, int, void*, std::size_t, int, DataType, void*) override {
    refuse();
  }
  std::shared_ptr<Transport> split(std::string, int, int) override { refuse(); }
  void close() override {}

 private:
  [[noreturn]] static void refuse() { throw InternalError("a planned group of ranks runs nothing"); }

  int ranks_, rank_;
};

}  // namespace

std::shared_ptr<Transport> planned_transport(int ranks, int rank) {
  return std::make_shared<PlannedTransport>(ranks, rank);
}

}  // namespace encore::backend
