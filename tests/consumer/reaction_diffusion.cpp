// SPDX-License-Identifier: Apache-2.0
// A simulation with a network inside: two substances diffuse and react on a periodic square (Gray and Scott, 1984). A
// reference run knows the chemistry; a second run has a small network instead, which learns the rates from the
// reference while both go on. The whole time step, this program's kernels and the network's inference and training,
// is recorded in one graph and replayed. docs/simulation.md walks through it.
//
//   reaction_diffusion [cells along a side] [hidden width] [steps]
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/model/multilayer_perceptron.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using Space = Kokkos::DefaultExecutionSpace;
using Stream = encore::backend::Stream<Space>;
using Network = encore::model::MultilayerPerceptron<Space>;
using encore::backend::Range, encore::backend::read, encore::backend::write;

// Both substances of all cells, one field behind the other: fields(cell, 0) and fields(cell, 1). The network takes
// such Views as its inputs as they are.
using Fields = Kokkos::View<float**, Kokkos::LayoutLeft, Space>;
// What the network gives: the values of a cell side by side.
using Rates = Kokkos::View<float**, Kokkos::LayoutRight, Space>;

constexpr float diffusion_u = 0.16F, diffusion_v = 0.08F;
constexpr float feed = 0.035F, kill = 0.065F;
// The network deals in numbers of order one; its outputs times this are rates.
constexpr float rate_unit = 0.02F;

struct Grid {
  std::int64_t side;
  std::int64_t cells() const { return side * side; }
};

// The chemistry, in rate units: what a real code would get from an expensive solver, or from measurements.
void react(Stream& stream, Fields fields, Rates rates) {
  encore::backend::launch(
      stream, "simulation::react", {read(fields), write(rates)},
      Range{static_cast<std::int64_t>(fields.extent(0))}, KOKKOS_LAMBDA(std::int64_t cell) {
        const float u = fields(cell, 0), v = fields(cell, 1), reaction = u * v * v;
        rates(cell, 0) = (feed * (1 - u) - reaction) / rate_unit;
        rates(cell, 1) = (reaction - (feed + kill) * v) / rate_unit;
      });
}

// fields += D Laplacian(fields) + rates, with grid spacing and time step 1. `change` is scratch.
void advance(Stream& stream, Grid grid, Fields fields, Rates rates, Fields change) {
  const std::int64_t side = grid.side, cells = grid.cells();
  encore::backend::launch(
      stream, "simulation::change", {read(fields), read(rates), write(change)}, Range{2 * cells},
      KOKKOS_LAMBDA(std::int64_t item) {
        const std::int64_t substance = item / cells, cell = item % cells;
        const std::int64_t x = cell % side, row = cell - x;
        const float here = fields(cell, substance);
        const float around =
            fields(row + (x + 1) % side, substance) + fields(row + (x + side - 1) % side, substance) +
            fields((cell + side) % cells, substance) + fields((cell + cells - side) % cells, substance);
        const float spread = substance == 0 ? diffusion_u : diffusion_v;
        change(cell, substance) = spread * (around - 4 * here) + rate_unit * rates(cell, substance);
      });
  encore::backend::launch(
      stream, "simulation::apply", {read(change), read(fields), write(fields)}, Range{2 * cells},
      KOKKOS_LAMBDA(std::int64_t item) { fields.data()[item] += change.data()[item]; });
}

struct Simulation {
  // Works on the caller's execution space instance.
  Simulation(const Space& instance, Grid cells, std::int64_t hidden)
      : stream(instance),
        grid(cells),
        network(stream, {.widths = {2, hidden, hidden, 2}, .rows = grid.cells(), .output_gain = 0}),
        reference("reference", grid.cells(), 2),
        state("state", grid.cells(), 2),
        change("change", grid.cells(), 2),
        targets("targets", grid.cells(), 2),
        rates("rates", grid.cells(), 2) {
    network.set_optimizer(stream, {.learning_rate = 4e-3, .weight_decay = 0, .clip = 1});
    seed_fields();
    restart();
  }

  // One time step. It allocates nothing and waits for nothing, so that it can be recorded.
  void step() {
    react(stream, reference, targets);
    network.train(stream, reference, targets);
    advance(stream, grid, reference, targets, change);

    network.forward(stream, state, rates);
    advance(stream, grid, state, rates, change);
  }

  // The second run starts again where the reference is.
  void restart() {
    stream.copy(state.data(), reference.data(), state.size() * sizeof(float), "simulation::restart");
  }

  // How far the second run is from the reference, relative to its size.
  double distance() {
    const std::vector<float> is = values(state), should_be = values(reference);
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < is.size(); ++i) {
      difference += std::pow(static_cast<double>(is[i]) - should_be[i], 2);
      size += std::pow(static_cast<double>(should_be[i]), 2);
    }
    return std::sqrt(difference / size);
  }

  // Everything that a step changes.
  std::vector<float> everything() {
    std::vector<float> all;
    const auto add = [&](const auto& view) {
      const std::vector<float> more = values(view);
      all.insert(all.end(), more.begin(), more.end());
    };
    add(reference), add(state), add(targets), add(rates);
    add(network.parameters()), add(network.gradients()), add(network.first_moment()),
        add(network.second_moment());
    all.push_back(static_cast<float>(network.loss(stream)));
    return all;
  }

  template <class View>
  std::vector<float> values(const View& view) {
    std::vector<float> host(view.size());
    stream.copy_to_host(host.data(), view.data(), host.size() * sizeof(float), "simulation::values");
    stream.synchronize("simulation::values");
    return host;
  }

  // u = 1 and v = 0 but for some squares.
  void seed_fields() {
    std::vector<float> host(2 * grid.cells());
    for (std::int64_t cell = 0; cell < grid.cells(); ++cell) {
      const std::int64_t x = cell % grid.side, y = cell / grid.side;
      const bool inside =
          x % 32 >= 10 && x % 32 < 20 && (y + x / 32 * 5) % 32 >= 12 && (y + x / 32 * 5) % 32 < 22;
      host[cell] = inside ? 0.5F : 1.0F;
      host[grid.cells() + cell] = inside ? 0.25F : 0.0F;
    }
    stream.copy_to_device(reference.data(), host.data(), host.size() * sizeof(float), "simulation::seed");
    stream.synchronize("simulation::seed");
  }

  Stream stream;
  Grid grid;
  Network network;
  Fields reference, state, change;
  Rates targets, rates;
};

template <class Step>
double milliseconds_of(Simulation& simulation, int steps, const Step& step) {
  for (int i = 0; i < 10; ++i) step();  // First uses are not what is measured.
  simulation.stream.synchronize("simulation::warm");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  simulation.stream.synchronize("simulation::time");
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / steps;
}

// Two simulations from the same beginning: one runs eagerly, one replays its step. Returns whether all went well.
bool learn_in_the_loop(const Space& instance, Grid grid, std::int64_t hidden, int steps, const char* file) {
  Simulation eager(instance, grid, hidden), replayed(instance, grid, hidden);
  encore::backend::RecordedGraph<Space> graph(replayed.stream, "time step", [&] { replayed.step(); });
  std::printf("%s, %lld x %lld cells, network {2, %lld, %lld, 2}: a step is %zu nodes\n", Space::name(),
              static_cast<long long>(grid.side), static_cast<long long>(grid.side),
              static_cast<long long>(hidden), static_cast<long long>(hidden), graph.nodes());

  const double eager_time = milliseconds_of(eager, steps, [&] { eager.step(); });
  const double replay_time = milliseconds_of(replayed, steps, [&] { graph.replay(); });
  std::printf("eager %.4f ms a step, replay %.4f ms: %.2f times as fast\n", eager_time, replay_time,
              eager_time / replay_time);

  // By now the network knows something: from here on its run has to follow the reference.
  for (Simulation* simulation : {&eager, &replayed}) simulation->restart();
  for (int i = 0; i < steps; ++i) {
    eager.step();
    graph.replay();
  }
  const std::vector<float> one = eager.everything(), other = replayed.everything();
  const bool equal =
      one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
  std::printf("after %d steps fields, weights and moments, %zu numbers, are %s\n", 2 * steps + 10, one.size(),
              equal ? "equal bit for bit" : "NOT EQUAL");

  const double loss = replayed.network.loss(replayed.stream), distance = replayed.distance();
  const bool learned = std::isfinite(loss) && loss < 0.05 && distance < 0.05;
  std::printf("the network's mean squared error is %.2e, its run is %.2f %% from the reference%s\n", loss,
              100 * distance, learned ? "" : ": TOO FAR");
  replayed.network.save(replayed.stream, file);
  return equal && learned;
}

// The trained network in a run without a reference: inference alone, with none of the memory that training needs.
bool infer_in_the_loop(const Space& instance, Grid grid, int steps, const char* file) {
  Stream stream(instance);
  encore::model::NetworkDescription description = encore::model::described_in(file);
  description.rows = grid.cells();
  description.trains = false;
  Network network(stream, description);
  network.load(stream, file);

  Simulation simulation(instance, grid, description.widths[1]);
  Fields change("change", grid.cells(), 2);
  const auto step = [&] {
    network.forward(stream, simulation.state, simulation.rates);
    advance(stream, grid, simulation.state, simulation.rates, change);
  };
  const auto run = [&](const auto& one_step) {
    simulation.restart();
    simulation.stream.synchronize("simulation::restart");
    for (int i = 0; i < steps; ++i) one_step();
    stream.synchronize("simulation::run");
    return simulation.values(simulation.state);
  };
  const std::vector<float> eager = run(step);
  encore::backend::RecordedGraph<Space> graph(stream, "time step without training", step);
  const std::vector<float> replayed = run([&] { graph.replay(); });
  const bool equal = std::memcmp(eager.data(), replayed.data(), eager.size() * sizeof(float)) == 0;
  std::printf("inference alone: %zu nodes, %.1f MB instead of %.1f MB; %d steps are %s\n", graph.nodes(),
              static_cast<double>(network.bytes()) / 1e6,
              static_cast<double>(simulation.network.bytes()) / 1e6, steps,
              equal ? "equal bit for bit" : "NOT EQUAL");
  return equal;
}

int main(int argc, char** argv) {
  const auto argument = [&](int index, int otherwise) {
    return argc > index ? std::atoi(argv[index]) : otherwise;
  };
  const Grid grid{argument(1, 64)};
  const std::int64_t hidden = argument(2, 32);
  const int steps = argument(3, 300);
  const std::string file = argc > 4 ? argv[4] : "closure.safetensors";
  const Kokkos::ScopeGuard kokkos(argc, argv);
  try {
    // The simulation's own instance: its work is ordered among itself and by nobody else's.
    const Space instance = Kokkos::Experimental::partition_space(Space(), 1)[0];
    const bool learned = learn_in_the_loop(instance, grid, hidden, steps, file.c_str());
    const bool inferred = infer_in_the_loop(instance, grid, steps, file.c_str());
    return learned && inferred ? 0 : 1;
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
