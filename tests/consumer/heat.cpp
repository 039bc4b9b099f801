// SPDX-License-Identifier: Apache-2.0
// A small simulation that links Encore: heat spreads on a ring, two explicit time steps are recorded once and
// replayed, and the field is then normalised as the input of a network would be. The result is checked against
// the exact decay of a sine wave.
#include <encore/backend/error.hpp>
#include <encore/backend/launch.hpp>
#include <encore/backend/memory.hpp>
#include <encore/backend/recorded_graph.hpp>
#include <encore/backend/runtime.hpp>
#include <encore/backend/version.hpp>
#include <encore/kernels/normalization.hpp>

#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

namespace backend = encore::backend;
using Space = Kokkos::DefaultExecutionSpace;
using Field = backend::Vector<float, Space>;

namespace {

constexpr std::int64_t cells = 1024;
constexpr int steps = 2000;
constexpr float diffusion = 0.4F;

class Heat {
 public:
  Heat() : memory_("heat", 4 * cells * sizeof(float)) {}

  Field field(int index) const {
    return Field(reinterpret_cast<float*>(memory_.data()) + index * cells, static_cast<std::size_t>(cells));
  }

  // u_i' = u_i + r (u_(i-1) - 2 u_i + u_(i+1)) on a ring.
  void step(backend::Stream<Space>& stream, Field from, Field to) const {
    backend::launch(
        stream, "heat::step", {backend::read(from), backend::write(to)}, backend::Range{cells},
        KOKKOS_LAMBDA(std::int64_t i) {
          const float left = from(i == 0 ? cells - 1 : i - 1);
          const float right = from(i == cells - 1 ? 0 : i + 1);
          to(i) = from(i) + diffusion * (left - 2 * from(i) + right);
        });
  }

 private:
  backend::Allocation<Space> memory_;
};

bool close(const char* name, double actual, double expected, double tolerance) {
  const bool good = std::abs(actual - expected) <= tolerance * std::abs(expected);
  std::printf("%-20s %.6f, expected %.6f%s\n", name, actual, expected, good ? "" : "  WRONG");
  return good;
}

bool simulate() {
  backend::Stream<Space> stream;
  const Heat heat;
  const double wave = 8 * 2 * std::numbers::pi / cells;
  std::vector<float> host(cells);
  for (std::int64_t i = 0; i < cells; ++i)
    host[i] = static_cast<float>(std::sin(wave * static_cast<double>(i)));
  stream.copy_to_device(heat.field(0).data(), host.data(), cells * sizeof(float), "heat::start");

  backend::RecordedGraph<Space> two_steps(stream, "heat", [&] {
    heat.step(stream, heat.field(0), heat.field(1));
    heat.step(stream, heat.field(1), heat.field(0));
  });
  for (int pair = 0; pair < steps / 2; ++pair) two_steps.replay();
  stream.copy_to_host(host.data(), heat.field(0).data(), cells * sizeof(float), "heat::end");
  stream.synchronize("heat::end");

  const double decay = std::pow(1 - 2 * diffusion * (1 - std::cos(wave)), steps);
  bool good = close("amplitude", host[cells / 32], decay, 1e-3);
  good = close("recorded kernels", static_cast<double>(two_steps.nodes()), 2, 0) && good;

  // One row of `cells` values with weight 1: the mean square of the result is 1.
  std::vector<float> ones(cells, 1.0F);
  stream.copy_to_device(heat.field(1).data(), ones.data(), cells * sizeof(float), "heat::weight");
  const backend::Matrix<float, Space> row(heat.field(0).data(), 1, cells);
  const backend::Matrix<float, Space> normalized(heat.field(2).data(), 1, cells);
  const backend::Vector<float, Space> inverse_rms(heat.field(3).data(), 1);
  encore::kernels::rms_norm_forward<Space, float>(stream, row, heat.field(1), normalized, inverse_rms, 0.0);
  stream.copy_to_host(host.data(), normalized.data(), cells * sizeof(float), "heat::normalized");
  stream.synchronize("heat::normalized");
  double mean_square = 0;
  for (const float value : host) mean_square += static_cast<double>(value) * value / cells;
  return close("normalized field", mean_square, 1, 1e-4) && good;
}

}  // namespace

int main() {
  std::printf("Encore %s (%.*s)\n", ENCORE_VERSION_STRING, static_cast<int>(backend::git_revision().size()),
              backend::git_revision().data());
  try {
    backend::Runtime runtime;
    return simulate() ? 0 : 1;
  } catch (const encore::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.exit_code();
  }
}
