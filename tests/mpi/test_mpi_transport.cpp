// SPDX-License-Identifier: Apache-2.0
// Every process of the job runs every case; see tests/CMakeLists.txt for their number.
#include <encore/backend/communicator.hpp>
#include <encore/backend/error.hpp>
#include <encore/backend/job.hpp>
#include <encore/backend/mpi_transport.hpp>
#include <encore/backend/recorded_graph.hpp>

#include "spaces.hpp"
#include "trainers.hpp"

#include <numeric>

using namespace encore;
using namespace encore::backend;
using namespace encore::tests;
using Space = Kokkos::Serial;

namespace {

/// MPI cannot be started twice, so one end lives for the whole program.
const std::shared_ptr<Transport>& world() {
  static const std::shared_ptr<Transport> transport = mpi_transport("world");
  return transport;
}

template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = T(double((rank + 1) * (i % 5 + 1)));
  return values;
}

double sum_of(std::size_t i) {
  double sum = 0;
  for (int rank = 0; rank < world()->size(); ++rank) sum += double((rank + 1) * (i % 5 + 1));
  return sum;
}

template <class T>
Vector<T, Space> view(const TestArray<Space, T>& array) {
  return Vector<T, Space>(array.data(), array.size());
}

}  // namespace

TEST_CASE("the job has the processes that the test asks for") {
  CHECK(world()->size() == ENCORE_TEST_PROCESSES);
  CHECK(world()->description().starts_with("MPI: "));
}

TEST_CASE_TEMPLATE("every process gets the sum and the maximum of all, eagerly and replayed", T, float,
                   double, bfloat16, std::int32_t, std::int64_t) {
  const int rank = world()->rank();
  Stream<Space> stream;
  Communicator<Space> communicator("data", mpi_transport("data"));
  for (const std::size_t count : {1U, 3U, 1001U}) {
    TestArray<Space, T> sums(stream, values_of<T>(rank, count)), maxima(stream, values_of<T>(rank, count));
    const auto reduce = [&] {
      communicator.all_reduce<T>(stream, "test::sum", view(sums), Reduction::sum);
      communicator.all_reduce<T>(stream, "test::maximum", view(maxima), Reduction::maximum);
    };
    const auto check = [&] {
      bool good = true;
      for (std::size_t i = 0; i < count; ++i)
        good = good && double(sums.get()[i]) == sum_of(i) &&
               double(maxima.get()[i]) == double(world()->size() * (i % 5 + 1));
      CHECK(good);
    };
    reduce();
    check();
    sums.set(values_of<T>(rank, count));
    maxima.set(values_of<T>(rank, count));
    RecordedGraph<Space> graph(stream, "collectives", reduce);
    CHECK_THROWS_AS(communicator.close(), CaptureError);
    graph.replay();
    check();
  }
}

TEST_CASE("scattered sums, gathers, broadcasts and exchanges go to the right places, also in place") {
  constexpr std::size_t count = 3;
  const int rank = world()->rank(), ranks = world()->size();
  Stream<Space> stream;
  Communicator<Space> communicator("data", mpi_transport("data"));
  TestArray<Space, float> values(stream, values_of<float>(rank, count * ranks)),
      part(stream, std::vector<float>(count)), whole(stream, std::vector<float>(count * ranks));
  communicator.reduce_scatter<float>(stream, "test::scatter", view(values), view(part), Reduction::sum);
  communicator.all_gather<float>(stream, "test::gather", view(part), view(whole));
  const Vector<float, Space> mine(values.data() + rank * count, count);
  communicator.reduce_scatter<float>(stream, "test::scatter", view(values), mine, Reduction::sum);
  communicator.all_gather<float>(stream, "test::gather", mine, view(values));
  for (std::size_t i = 0; i < count * ranks; ++i) {
    CHECK(whole.get()[i] == float(sum_of(i)));
    CHECK(values.get()[i] == float(sum_of(i)));
  }
  TestArray<Space, double> told(stream, values_of<double>(rank, count));
  communicator.broadcast<double>(stream, "test::broadcast", view(told), ranks - 1);
  CHECK(told.get() == values_of<double>(ranks - 1, count));
  std::vector<std::int32_t> numbers(ranks * count);
  std::iota(numbers.begin(), numbers.end(), 100 * rank);
  TestArray<Space, std::int32_t> sent(stream, numbers), received(stream, numbers);
  communicator.all_to_all<std::int32_t>(stream, "test::exchange", view(sent), view(received));
  for (int from = 0; from < ranks; ++from)
    for (std::size_t i = 0; i < count; ++i)
      CHECK(received.get()[from * count + i] == 100 * from + static_cast<int>(rank * count + i));
}

TEST_CASE("messages go round, eagerly and replayed, and a message of another size is refused") {
  constexpr std::size_t count = 1001;
  const int rank = world()->rank(), ranks = world()->size();
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  Stream<Space> stream;
  Communicator<Space> communicator("pipeline", mpi_transport("pipeline"));
  TestArray<Space, float> sent(stream, values_of<float>(rank, count)),
      received(stream, std::vector<float>(count));
  const auto turn = [&] {
    communicator.send_receive<float>(stream, "test::turn", view(sent), next, view(received), last);
    if (rank == 0) communicator.send<float>(stream, "test::send", view(received), 1);
    if (rank == 1) communicator.receive<float>(stream, "test::receive", view(received), 0);
  };
  const std::vector<float> expected = values_of<float>(rank == 1 ? ranks - 1 : last, count);
  turn();
  CHECK(received.get() == expected);
  received.set(std::vector<float>(count));
  RecordedGraph<Space> graph(stream, "turn", turn);
  graph.replay();
  CHECK(received.get() == expected);
  std::vector<float> values(4);
  if (rank == 0) world()->send(values.data(), 3, DataType::float32, 1, nullptr);
  if (rank == 1)
    CHECK_THROWS_WITH_AS(
        world()->receive(values.data(), 4, DataType::float32, 0, nullptr),
        "the ranks of 'world' do not do the same: rank 0 sends 3 elements, rank 1 receives 4",
        CommunicationError);
}

TEST_CASE("a split makes a group of each color, in the order of the keys") {
  const int rank = world()->rank(), ranks = world()->size();
  const auto part = world()->split("part", rank == 0 ? 0 : 1, -rank);
  CHECK(part->size() == (rank == 0 ? 1 : ranks - 1));
  CHECK(part->rank() == (rank == 0 ? 0 : ranks - 1 - rank));
  double total = rank;
  part->all_reduce(&total, &total, 1, DataType::float64, Reduction::sum, nullptr);
  CHECK(total == (rank == 0 ? 0 : ranks * (ranks - 1) / 2));
  CHECK((world()->split("some", rank == 1 ? 0 : -1, 0) != nullptr) == (rank == 1));
}

TEST_CASE(
    "processes that train together end with the same bits, and with the loss of one with all microbatches") {
  const int rank = world()->rank(), ranks = world()->size();
  const auto with = [&](int data, int microbatches) {
    return resolve(tiny_model("llama"), {"backend=serial", "parallel.data=" + std::to_string(data),
                                         "train.microbatches=" + std::to_string(microbatches)});
  };
  const model::Configuration configuration = with(ranks, 1), whole = with(1, ranks);
  const auto together = model::make_trainer(configuration, {mpi_transport("data")});
  const auto alone = model::make_trainer(whole);
  const auto count = static_cast<std::size_t>(configuration.train.microbatch * configuration.train.seq);
  for (std::int64_t step = 0; step < 10; ++step) {
    const Batch batch = random_batch(whole, step);
    together->set_batch(std::span(batch.ids).subspan(rank * count, count),
                        std::span(batch.labels).subspan(rank * count, count));
    alone->set_batch(batch.ids, batch.labels);
    const model::StepResult result = together->step(0.002);
    CHECK(result.loss == doctest::Approx(alone->step(0.002).loss).epsilon(1e-4));
    if (step == 9) CHECK(result.report.mode == graph::StepMode::replay);
  }
  const TrainingState state = state_of(*together);
  std::vector<std::byte> of_the_first = state.bytes;
  world()->broadcast(of_the_first.data(), of_the_first.size(), DataType::uint8, 0, nullptr);
  CHECK(of_the_first == state.bytes);
}

TEST_CASE("a process started by mpiexec joins the world of its job, and no other") {
  ProcessRank process = process_rank();
  CHECK(process.from_mpi());
  CHECK(process.rank == world()->rank());
  CHECK(process.size == world()->size());
  const Job job = join_host_job(process);
  CHECK(job.world->size() == process.size);
  ++process.size;
  CHECK_THROWS_AS(join_host_job(process), ConfigurationError);
}

TEST_CASE("a closed end says so instead of calling MPI") {
  const auto transport = mpi_transport("short");
  transport->close();
  float value = 1;
  CHECK_THROWS_AS(transport->all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr),
                  CommunicationError);
}

// Run by itself: the job does not survive it.
TEST_CASE("a rank that throws ends the job, which does not wait for it" * doctest::skip()) {
  const auto transport = mpi_transport("world");
  if (transport->rank() == 1) throw InternalError("rank 1 ends here");
  float value = 1;
  transport->all_reduce(&value, &value, 1, DataType::float32, Reduction::sum, nullptr);
}
