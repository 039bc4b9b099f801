// SPDX-License-Identifier: Apache-2.0
#include <encore/backend/error.hpp>
#include <encore/backend/job_watch.hpp>
#include <encore/graph/profile.hpp>
#include <encore/graph/snapshot.hpp>

#include "chain_program.hpp"
#include "temporary_folder.hpp"

#include <cmath>
#include <string>

using namespace encore;
using namespace encore::graph;
using encore::tests::ChainProgram;
using encore::tests::TestArray;

namespace {

/// Rates that make floors easy to count: a byte takes a nanosecond, a node a microsecond.
constexpr MachineRates round_rates{1e12, 1e9, 1e-6};

ProfileOptions quick() {
  ProfileOptions options;
  options.rates = round_rates;
  options.samples = 3;
  options.sample_milliseconds = 0.02;
  options.step_samples = 3;
  return options;
}

struct SquareTimes {
  double* data;
  double factor;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { data[i] = factor * data[i] * data[i]; }
};

struct Read {
  double* result;
  const double* data;
  KOKKOS_FUNCTION void operator()(std::int64_t i) const { result[i] = data[i]; }
};

/// An activation that one segment makes, the next squares in place, and the last shows and adds to a state that is a
/// part of a larger one; the random streams advance.
template <class Space>
struct InPlaceProgram {
  static constexpr std::int64_t width = 64;

  InPlaceProgram() {
    const auto add = [&](const char* name, std::int64_t size, BufferKind kind) {
      return program.add_buffer({name, backend::DataType::float64, {size}, kind});
    };
    input = add("input", width, BufferKind::input);
    hidden = add("hidden", width, BufferKind::activation);
    shown = add("shown", width, BufferKind::metric);
    whole = add("states", 2 * width, BufferKind::state);
    part = program.add_buffer({"states.1",
                               backend::DataType::float64,
                               {width},
                               BufferKind::state,
                               BufferPart{whole, width * sizeof(double)}});
    const auto copy = [](const char* label, BufferId from, BufferId to) {
      return [=](Execution<Space>& x) {
        const auto* source = x.template pointer<const double>(from);
        auto* destination = x.template pointer<double>(to);
        backend::launch(x.stream(), label, {backend::read(source, width), backend::write(destination, width)},
                        backend::Range{width}, Read{destination, source});
      };
    };
    program.add_segment({"layer.0/mlp/forward", Module::mlp, Phase::forward, 0, -1, {input}, {hidden}},
                        copy("test::make", input, hidden));
    program.add_segment({"layer.1/mlp/forward", Module::mlp, Phase::forward, 1, -1, {hidden}, {hidden}},
                        [id = hidden](Execution<Space>& x) {
                          auto* data = x.template pointer<double>(id);
                          backend::launch(x.stream(), "test::square", {backend::write(data, width)},
                                          backend::Range{width}, SquareTimes{data, 1e3});
                        });
    program.add_segment({"head/forward", Module::head, Phase::forward, -1, -1, {hidden}, {shown}},
                        copy("test::show", hidden, shown));
    program.add_segment({"head/backward", Module::head, Phase::backward, -1, -1, {hidden, part}, {part}},
                        [from = hidden, to = part](Execution<Space>& x) {
                          const auto* source = x.template pointer<const double>(from);
                          auto* sum = x.template pointer<double>(to);
                          backend::launch(x.stream(), "test::add",
                                          {backend::read(source, width), backend::write(sum, width)},
                                          backend::Range{width}, tests::Accumulate{sum, source});
                        });
    program.add_segment({"random/advance", Module::random, Phase::update, -1, -1, {}, {}},
                        [](Execution<Space>& x) { x.device().random().advance(x.stream()); });
    plan = plan_memory(program.outline());
    arena = backend::Allocation<Space>("arena", plan.arena_bytes);
  }

  Bindings bindings() const {
    Bindings result(program.outline());
    const auto bind = [&](BufferId id, const auto& array) {
      result.bind(id, reinterpret_cast<std::byte*>(array.data()));
    };
    bind(input, inputs);
    bind(shown, metrics);
    bind(whole, states);
    result.bind_arena(plan, arena.data());
    result.bind_parts(program.outline());
    return result;
  }

  backend::Device<Space> device{7};
  Program<Space> program;
  BufferId input, hidden, shown, whole, part;
  MemoryPlan plan;
  backend::Allocation<Space> arena;
  TestArray<Space, double> inputs{device.stream(), std::vector<double>(width, 3.0)};
  TestArray<Space, double> metrics{device.stream(), std::vector<double>(width, -5.0)};
  TestArray<Space, double> states{device.stream(), std::vector<double>(2 * width, 0.25)};
};

/// A group of one with a watch, as NCCL's has; nothing is sent in it.
class WatchedTransport final : public backend::Transport {
 public:
  using Type = backend::DataType;

  explicit WatchedTransport(std::shared_ptr<backend::JobWatch> watch) : watch_(std::move(watch)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string description() const override { return "watched"; }
  void all_reduce(const void*, void*, std::size_t, Type, backend::Reduction, void*) override {}
  void reduce_scatter(const void*, void*, std::size_t, Type, backend::Reduction, void*) override {}
  void all_gather(const void*, void*, std::size_t, Type, void*) override {}
  void broadcast(void*, std::size_t, Type, int, void*) override {}
  void all_to_all(const void*, void*, std::size_t, Type, void*) override {}
  void send(const void*, std::size_t, Type, int, void*) override {}
  void receive(void*, std::size_t, Type, int, void*) override {}
  void send_receive(const void*, std::size_t, int, void*, std::size_t, int, Type, void*) override {}
  std::shared_ptr<Transport> split(std::string, int, int) override { return nullptr; }
  std::shared_ptr<backend::JobWatch> watch() const override { return watch_; }
  void close() override {}

 private:
  const std::shared_ptr<backend::JobWatch> watch_;
};

template <class Space>
struct Positions {
  backend::Device<Space>& device;
  std::vector<std::uint64_t> offsets() const {
    std::vector<std::uint64_t> result;
    for (const auto& state : device.random().snapshot(device.stream())) result.push_back(state.offset);
    return result;
  }
};

}  // namespace

TEST_CASE_TEMPLATE(
    "a profile ends with the rank that fails, and is no reason why segments would not be recorded", Space,
    ENCORE_TEST_SPACES) {
  const TemporaryFolder folder;
  const auto watch = std::make_shared<backend::JobWatch>(folder / "job", 0, 1);
  InPlaceProgram<Space> problem;
  problem.device.join("data", std::make_shared<WatchedTransport>(watch));
  watch->fail("rank 1 has no memory left");
  CHECK_THROWS_WITH_AS((void)profile(problem.device, problem.program, problem.bindings(), quick()),
                       "rank 1 has no memory left", CommunicationError);
}

TEST_CASE_TEMPLATE("a profile leaves states, metrics and random positions as they were, byte by byte", Space,
                   ENCORE_TEST_SPACES) {
  InPlaceProgram<Space> problem;
  const Bindings bindings = problem.bindings();
  problem.device.random().advance(problem.device.stream());
  const auto offsets = Positions<Space>{problem.device}.offsets();
  const Outline& outline = problem.program.outline();
  const Snapshot before = Snapshot::take(problem.device, outline, problem.plan, bindings);
  const StepProfile result = profile(problem.device, problem.program, bindings, quick());
  const Snapshot after = Snapshot::take(problem.device, outline, problem.plan, bindings);
  CHECK(first_difference(outline, before, after, {problem.hidden}) == "");
  CHECK(Positions<Space>{problem.device}.offsets() == offsets);
  CHECK(problem.states.get() == std::vector<double>(2 * problem.width, 0.25));
  CHECK(problem.metrics.get() == std::vector<double>(problem.width, -5.0));
  REQUIRE(result.segments.size() == 5);
  for (const SegmentProfile& segment : result.segments) {
    CHECK(segment.milliseconds > 0);
    CHECK(segment.eager_because == "");
    CHECK(segment.nodes >= 1);
  }
}

TEST_CASE_TEMPLATE("what repeating a segment in place makes infinite reaches no later segment", Space,
                   ENCORE_TEST_SPACES) {
  // 3 squared and times 1000 once more and again overflows after some ten repeats. What the last segments saw is told
  // by a state that the profile must not put back, so they write it through a buffer of the test's own.
  InPlaceProgram<Space> problem;
  TestArray<Space, double> seen(problem.device.stream(), std::vector<double>(problem.width, 0.0));
  problem.program.add_segment(
      {"witness", Module::head, Phase::forward, -1, -1, {problem.hidden, problem.shown}, {}},
      [&seen, id = problem.hidden](Execution<Space>& x) {
        const auto* source = x.template pointer<const double>(id);
        backend::launch(x.stream(), "test::witness",
                        {backend::read(source, seen.size()), backend::write(seen.data(), seen.size())},
                        backend::Range{static_cast<std::int64_t>(seen.size())}, Read{seen.data(), source});
      });
  problem.plan = plan_memory(problem.program.outline());
  problem.arena = backend::Allocation<Space>("arena", problem.plan.arena_bytes);
  ProfileOptions options = quick();
  options.sample_milliseconds = 5;  // many repeats
  options.step_samples = 0;
  profile(problem.device, problem.program, problem.bindings(), options);
  CHECK(seen.get() == std::vector<double>(problem.width, 9e3));
}

TEST_CASE_TEMPLATE("the floor of a segment with twice the work is twice as high", Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 2);
  const auto output = chain.output;
  chain.program.add_segment({"twice/forward", Module::mlp, Phase::forward, 2, -1, {output}, {output}},
                            [output, width = chain.width](Execution<Space>& x) {
                              auto* data = x.template pointer<double>(output);
                              for (int i = 0; i < 2; ++i)
                                backend::launch(x.stream(), "test::square", {backend::write(data, width)},
                                                backend::Range{width}, SquareTimes{data, 0.5});
                            });
  chain.program.add_segment({"once/forward", Module::mlp, Phase::forward, 3, -1, {output}, {output}},
                            [output, width = chain.width](Execution<Space>& x) {
                              auto* data = x.template pointer<double>(output);
                              backend::launch(x.stream(), "test::square", {backend::write(data, width)},
                                              backend::Range{width}, SquareTimes{data, 0.5});
                            });
  const StepProfile result = profile(device, chain.program, chain.bindings(), quick());
  REQUIRE(result.segments.size() == 5);
  const SegmentProfile& twice = result.segments[3];
  const SegmentProfile& once = result.segments[4];
  CHECK(twice.launches.size() == 2);
  CHECK(once.launches.size() == 1);
  CHECK(once.bytes == 8 * chain.width);
  CHECK(twice.bytes == 2 * once.bytes);
  CHECK(once.floor_milliseconds == doctest::Approx(1e-6 * 8 * chain.width + 1e-3));
  CHECK(twice.floor_milliseconds == doctest::Approx(2 * once.floor_milliseconds));
  CHECK(once.bound == Bound::launches);
}

TEST_CASE_TEMPLATE("a profile's sums are those of its segments, and the whole step is replayed", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 3);
  const StepProfile result = profile(device, chain.program, chain.bindings(), quick());
  REQUIRE(result.segments.size() == 4);
  double milliseconds = 0, floors = 0;
  for (std::size_t i = 0; i < result.segments.size(); ++i) {
    CHECK(result.segments[i].index == i);
    CHECK(result.segments[i].name == chain.program.outline().segments()[i].name);
    milliseconds += result.segments[i].milliseconds;
    floors += result.segments[i].floor_milliseconds;
  }
  CHECK(result.milliseconds() == doctest::Approx(milliseconds));
  CHECK(result.floor_milliseconds() == doctest::Approx(floors));
  REQUIRE(result.replay_milliseconds);
  CHECK(*result.replay_milliseconds > 0);
  CHECK(result.replay_nodes == 4);
  CHECK(result.replay_refusal == "");
  CHECK(chain.total_values() == std::vector<double>(chain.width, 0.0));
}

TEST_CASE_TEMPLATE("segments that may not be captured are timed eagerly and say why", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 1);
  Segment waits{"waits", Module::comm, Phase::forward, -1, -1, {chain.output}, {}};
  waits.eager_because = "waits for the host";
  const auto body = [id = chain.output](Execution<Space>& x) {
    double host = 0;
    x.stream().copy_to_host(&host, x.template pointer<const double>(id), sizeof host, "norm");
  };
  chain.program.add_segment(waits, body);
  // This one does not say so, and turns out so.
  chain.program.add_segment({"copies", Module::comm, Phase::forward, -1, -1, {chain.output}, {chain.output}},
                            [=, output = chain.output, width = chain.width](Execution<Space>& x) {
                              auto* data = x.template pointer<double>(output);
                              backend::launch(x.stream(), "test::square", {backend::write(data, width)},
                                              backend::Range{width}, SquareTimes{data, 0.5});
                              body(x);
                            });
  const StepProfile result = profile(device, chain.program, chain.bindings(), quick());
  REQUIRE(result.segments.size() == 4);
  CHECK(result.segments[0].eager_because == "");
  CHECK(result.segments[2].eager_because == "waits for the host");
  CHECK(result.segments[3].eager_because.find("host copy 'norm'") != std::string::npos);
  CHECK(result.segments[3].milliseconds > 0);
  CHECK(result.segments[3].nodes == 1);
  CHECK(result.replay_refusal.find("copies") != std::string::npos);
  CHECK(chain.output_values() == std::vector<double>(chain.width, -1.0));
}

TEST_CASE_TEMPLATE("an error in the middle of a profile leaves the state as it was too", Space,
                   ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  ChainProgram<Space> chain(device, 2);
  chain.program.add_segment({"fails", Module::mlp, Phase::forward, -1, -1, {}, {}},
                            [](Execution<Space>&) { throw ConfigurationError("no"); });
  CHECK_THROWS_AS(profile(device, chain.program, chain.bindings(), quick()), ConfigurationError);
  CHECK(chain.output_values() == std::vector<double>(chain.width, -1.0));
  CHECK(chain.total_values() == std::vector<double>(chain.width, 0.0));
}

TEST_CASE_TEMPLATE("the profile of an empty program is empty", Space, ENCORE_TEST_SPACES) {
  backend::Device<Space> device(1);
  const Program<Space> program;
  const StepProfile result = profile(device, program, Bindings(program.outline()), quick());
  CHECK(result.segments.empty());
  CHECK(result.milliseconds() == 0);
  CHECK(result.floor_milliseconds() == 0);
  CHECK_FALSE(result.replay_milliseconds);
}

TEST_CASE_TEMPLATE("the rates of a device are measured for the type of a program's parameters", Space,
                   ENCORE_TEST_SPACES) {
  Outline outline;
  CHECK(product_type(outline) == backend::DataType::float32);
  outline.add_buffer({"ids", backend::DataType::int32, {1}, BufferKind::input});
  outline.add_buffer({"rate", backend::DataType::float64, {1}, BufferKind::scalar});
  CHECK(product_type(outline) == backend::DataType::float64);
  outline.add_buffer({"weights", backend::DataType::bfloat16, {1}, BufferKind::parameter});
  CHECK(product_type(outline) == backend::DataType::bfloat16);

  backend::Device<Space> device(1);
  const MachineRates rates = measure_rates<Space>(device, backend::DataType::float32);
  // No machine that this runs on is slower, or faster, than that.
  CHECK(rates.flops_per_second > 1e7);
  CHECK(rates.flops_per_second < 1e17);
  CHECK(rates.bytes_per_second > 1e7);
  CHECK(rates.bytes_per_second < 1e14);
  CHECK(rates.seconds_per_node > 1e-10);
  CHECK(rates.seconds_per_node < 1e-2);
}

TEST_CASE("the bound of a segment is the largest part of its floor") {
  SegmentProfile segment;
  segment.nodes = 2;
  segment.launches = {{"product", 1e10, 1e6}, {"copy", 0, 2e6}};
  set_floor(segment, round_rates);  // 10 ms of arithmetic, 2 ms of memory, 2 us of launches
  CHECK(segment.bound == Bound::arithmetic);
  CHECK(segment.floor_milliseconds == doctest::Approx(10 + 2 + 0.002));
  CHECK(segment.flops == 1e10);
  CHECK(segment.bytes == 3e6);
  segment.launches[0].flops = 0;
  set_floor(segment, round_rates);
  CHECK(segment.bound == Bound::memory);
  CHECK(segment.floor_milliseconds == doctest::Approx(3.002));
  segment.nodes = 1e6;
  set_floor(segment, round_rates);
  CHECK(segment.bound == Bound::launches);
}
