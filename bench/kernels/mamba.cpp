// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a Mamba-2 block between its projections, one by one and all of them, and the block with its projections
// (to and from a stream half as wide as the heads; backward with the weights' gradients):
//   mamba/<convolution|scan|gated_norm|all|block>/<forward|backward>/<shape>/<backend>
// On CUDA `floor_us` is the larger of byte_floor_us, all inputs and outputs moved once at 4.0 TB/s, and flop_floor_us,
// the matrix products of the chunked form (half of those that are masked) at 600 TFLOP/s, which an H200 reaches;
// `ratio` is the time over it. What forward saves for backward is no part of the floor; `saved_MB` tells how much it is.
#include "kernel_benchmarks.hpp"

#include <encore/backend/blas.hpp>
#include <encore/kernels/causal_convolution.hpp>
#include <encore/kernels/gated_normalization.hpp>
#include <encore/kernels/state_space.hpp>

namespace encore::bench {

namespace {

constexpr double bytes_per_second = 4.0e12, operations_per_second = 600e12;
constexpr std::int64_t taps = 4;

struct Shape {
  const char* name;
  kernels::StateSpaceShape scan;
  std::int64_t norm_groups;
  bool small;  ///< enough for a host

  std::int64_t inner() const { return scan.heads * scan.head_dim; }
  std::int64_t hidden() const { return inner() / 2; }
  std::int64_t groups_state() const { return scan.groups * scan.state; }
  std::int64_t mixed() const { return inner() + 2 * groups_state(); }
  std::int64_t projected() const { return inner() + mixed() + scan.heads; }
};

const Shape shapes[] = {{"mamba2-130m", {1, 512, 24, 64, 128, 1, 256, 0, 0}, 1, true},
                        {"mamba2-130m-4x2048", {4, 2048, 24, 64, 128, 1, 256, 0, 0}, 1, false},
                        {"nemotron-h-chunk128", {1, 4096, 128, 64, 128, 8, 128, 0, 0}, 8, false},
                        {"nemotron-h-chunk256", {1, 4096, 128, 64, 128, 8, 256, 0, 0}, 8, false}};

enum class Part { convolution, scan, gated_norm, all, block };
enum class Pass { forward, backward };

/// Elements that a part reads and writes, tokens times columns.
std::int64_t elements(const Shape& s, Part part, Pass pass) {
  const std::int64_t rows = s.scan.rows();
  const std::int64_t scan_inputs = rows * (s.mixed() + s.scan.heads), outputs = rows * s.inner();
  switch (part) {
    case Part::convolution: return rows * s.mixed() * (pass == Pass::forward ? 2 : 3);
    case Part::scan: return pass == Pass::forward ? scan_inputs + outputs : 2 * scan_inputs + outputs;
    case Part::gated_norm: return outputs * (pass == Pass::forward ? 3 : 5);
    case Part::all: break;
    case Part::block: {
      const std::int64_t products = rows * (2 * s.hidden() + s.projected() + s.inner());
      const std::int64_t weights = s.hidden() * (s.projected() + s.inner());
      return elements(s, Part::all, pass) + (products + weights) * (pass == Pass::forward ? 1 : 2);
    }
  }
  return elements(s, Part::convolution, pass) + elements(s, Part::scan, pass) +
         elements(s, Part::gated_norm, pass);
}

double operations(const Shape& s, Part part, Pass pass) {
  if (part == Part::convolution || part == Part::gated_norm) return 0;
  const auto rows = static_cast<double>(s.scan.rows()), chunk = static_cast<double>(s.scan.chunk);
  const auto inner = static_cast<double>(s.inner()), state = static_cast<double>(s.scan.state);
  const double scores =
      rows * chunk * static_cast<double>(s.groups_state());  // 2 operations, half of them masked
  const double pairs = rows * chunk * inner;
  const double states = 2 * rows * inner * state;
  const double products = part != Part::block ? 0
                                              : 2 * rows * static_cast<double>(s.hidden()) *
                                                    static_cast<double>(s.projected() + s.inner());
  return pass == Pass::forward ? products + scores + pairs + 2 * states
                               : 2 * products + 3 * scores + 2 * pairs + 4 * states;
}

template <class Space>
class Operands {
 public:
  using T = bfloat16;
  using G = bfloat16;
  using A = float;

  explicit Operands(const Shape& s)
      : shape_(s),
        projected_(stream_, s.scan.rows() * s.projected(), 1),
        mixed_(stream_, s.scan.rows() * s.mixed(), 2),
        scanned_(stream_, s.scan.rows() * s.inner(), 3),
        gated_(stream_, s.scan.rows() * s.inner(), 4),
        projected_gradient_(stream_, s.scan.rows() * s.projected(), 5),
        mixed_gradient_(stream_, s.scan.rows() * s.mixed(), 6),
        gated_gradient_(stream_, s.scan.rows() * s.inner(), 7),
        parameters_(stream_, s.mixed() * (taps + 1) + s.inner() + 3 * s.scan.heads + 64, 8),
        gradients_(stream_, s.mixed() * (taps + 1) + s.inner() + 3 * s.scan.heads + 64, 9),
        tokens_(stream_, 2 * s.scan.heads * s.scan.rows(), 10),
        states_(stream_, states(), 11),
        inverse_(stream_, s.scan.rows() * s.norm_groups, 12),
        workspace_(stream_, workspace_elements(), 13),
        stream_in_(stream_, s.scan.rows() * s.hidden(), 14),
        stream_out_(stream_, s.scan.rows() * s.hidden(), 15),
        projections_(stream_, s.hidden() * (s.projected() + s.inner()), 16),
        projection_gradients_(stream_, s.hidden() * (s.projected() + s.inner()), 17),
        blas_(stream_) {
    forward(Part::all);
  }

  Stream<Space>& stream() { return stream_; }

  std::int64_t states() const {
    return shape_.scan.batch * shape_.scan.chunks() * shape_.inner() * shape_.scan.state;
  }

  void run(Part part, Pass pass) { pass == Pass::forward ? forward(part) : backward(part); }

 private:
  void forward(Part part) {
    const std::int64_t inner = shape_.inner();
    if (part == Part::block) {
      product(stream_in_, shape_.hidden(), 0, shape_.projected(), true, projected_);
      forward(Part::all);
      product(gated_, inner, shape_.hidden() * shape_.projected(), shape_.hidden(), true, stream_out_);
    }
    if (part == Part::convolution || part == Part::all)
      kernels::causal_convolution_forward<Space, T>(
          stream_, shape_.scan.batch, columns(projected_, shape_.projected(), inner, shape_.mixed()),
          weight(), vector(parameters_, weights(), shape_.mixed()),
          columns(mixed_, shape_.mixed(), 0, shape_.mixed()));
    if (part == Part::scan || part == Part::all)
      kernels::state_space_forward<Space, T>(stream_, shape_.scan, inputs(),
                                             columns(scanned_, inner, 0, inner), saved(), workspace());
    if (part == Part::gated_norm || part == Part::all)
      kernels::gated_rms_norm_forward<Space, T>(
          stream_, columns(scanned_, inner, 0, inner), columns(projected_, shape_.projected(), 0, inner),
          norm_weight(), columns(gated_, inner, 0, inner),
          Matrix<A, Space>(inverse_.data(), shape_.scan.rows(), shape_.norm_groups), 1e-5);
  }

  void backward(Part part) {
    const std::int64_t inner = shape_.inner(), state = shape_.groups_state(), heads = shape_.scan.heads;
    const std::int64_t behind = weights() + shape_.mixed() + inner;
    if (part == Part::block) {
      const std::int64_t hidden = shape_.hidden(), projected = shape_.projected(),
                         second = hidden * projected;
      product(stream_out_, hidden, second, inner, false, gated_gradient_);
      weight_gradient(stream_out_, hidden, gated_, inner, second);
      backward(Part::all);
      product(projected_gradient_, projected, 0, hidden, false, stream_in_);
      weight_gradient(projected_gradient_, projected, stream_in_, hidden, 0);
    }
    if (part == Part::gated_norm || part == Part::all)
      kernels::gated_rms_norm_backward<Space, T, G>(
          stream_, columns(scanned_, inner, 0, inner), columns(projected_, shape_.projected(), 0, inner),
          norm_weight(), Matrix<const A, Space>(inverse_.data(), shape_.scan.rows(), shape_.norm_groups),
          columns(gated_, inner, 0, inner), columns(gated_gradient_, inner, 0, inner),
          columns(projected_gradient_, shape_.projected(), 0, inner),
          gradient(weights() + shape_.mixed(), inner),
          Matrix<A, Space>(workspace_.data(), kernels::gated_rms_norm_workspace_rows(shape_.scan.rows()),
                           inner),
          false);
    if (part == Part::scan || part == Part::all)
      kernels::state_space_backward<Space, T, G>(
          stream_, shape_.scan, inputs(), columns(gated_gradient_, inner, 0, inner), saved(),
          {columns(mixed_gradient_, shape_.mixed(), 0, inner),
           columns(mixed_gradient_, shape_.mixed(), inner, state),
           columns(mixed_gradient_, shape_.mixed(), inner + state, state),
           columns(projected_gradient_, shape_.projected(), inner + shape_.mixed(), heads),
           gradient(behind, heads), gradient(behind + heads, heads), gradient(behind + 2 * heads, heads),
           false},
          workspace());
    if (part == Part::convolution || part == Part::all)
      kernels::causal_convolution_backward<Space, T, G>(
          stream_, shape_.scan.batch, columns(projected_, shape_.projected(), inner, shape_.mixed()),
          weight(), vector(parameters_, weights(), shape_.mixed()),
          columns(mixed_gradient_, shape_.mixed(), 0, shape_.mixed()),
          columns(projected_gradient_, shape_.projected(), inner, shape_.mixed()),
          Matrix<G, Space>(gradients_.data(), shape_.mixed(), taps), gradient(weights(), shape_.mixed()),
          Matrix<A, Space>(workspace_.data(), convolution_rows(), shape_.mixed() * (taps + 1)), false);
  }

  /// output [rows, outputs] = input [rows, inputs] * the projection that begins at `weight`, [outputs, inputs] if
  /// transposed and else [inputs, outputs].
  void product(const NoiseArray<Space, T>& input, std::int64_t inputs, std::int64_t weight,
               std::int64_t outputs, bool transposed, const NoiseArray<Space, T>& output) {
    const std::int64_t rows = shape_.scan.rows();
    const T* weights = projections_.data() + weight;
    blas_.template multiply<T, T>(stream_, "projection", Transpose::no, {input.data(), rows, inputs, inputs},
                                  transposed ? Transpose::yes : Transpose::no,
                                  transposed ? MatrixOperand<const T>{weights, outputs, inputs, inputs}
                                             : MatrixOperand<const T>{weights, inputs, outputs, outputs},
                                  {output.data(), rows, outputs, outputs});
  }
  /// The gradient of the projection that begins at `weight`: first [rows, m] transposed * second [rows, n].
  void weight_gradient(const NoiseArray<Space, T>& first, std::int64_t m, const NoiseArray<Space, T>& second,
                       std::int64_t n, std::int64_t weight) {
    const std::int64_t rows = shape_.scan.rows();
    blas_.template multiply<T, T>(stream_, "projection", Transpose::yes, {first.data(), rows, m, m},
                                  Transpose::no, {second.data(), rows, n, n},
                                  {projection_gradients_.data() + weight, m, n, n});
  }

  std::int64_t weights() const { return shape_.mixed() * taps; }
  std::int64_t convolution_rows() const {
    return kernels::causal_convolution_workspace_rows(shape_.scan.batch, shape_.scan.tokens);
  }
  std::int64_t workspace_elements() const {
    return std::max({kernels::state_space_forward_workspace(shape_.scan),
                     kernels::state_space_backward_workspace(shape_.scan),
                     convolution_rows() * shape_.mixed() * (taps + 1),
                     kernels::gated_rms_norm_workspace_rows(shape_.scan.rows()) * shape_.inner()});
  }
  kernels::Columns<T> columns(const NoiseArray<Space, T>& array, std::int64_t stride, std::int64_t first,
                              std::int64_t count) const {
    return {array.data() + first, shape_.scan.rows(), count, stride};
  }
  static Vector<const T, Space> vector(const NoiseArray<Space, T>& array, std::int64_t first,
                                       std::int64_t count) {
    return Vector<const T, Space>(array.data() + first, count);
  }
  Vector<G, Space> gradient(std::int64_t first, std::int64_t count) const {
    return Vector<G, Space>(gradients_.data() + first, count);
  }
  Matrix<const T, Space> weight() const {
    return Matrix<const T, Space>(parameters_.data(), shape_.mixed(), taps);
  }
  Vector<const T, Space> norm_weight() const {
    return vector(parameters_, weights() + shape_.mixed(), shape_.inner());
  }
  Vector<A, Space> workspace() const { return Vector<A, Space>(workspace_.data(), workspace_elements()); }
  kernels::StateSpaceInputs<Space, T> inputs() const {
    const std::int64_t inner = shape_.inner(), state = shape_.groups_state(), heads = shape_.scan.heads;
    const std::int64_t behind = weights() + shape_.mixed() + inner;
    return {columns(mixed_, shape_.mixed(), 0, inner),
            columns(mixed_, shape_.mixed(), inner, state),
            columns(mixed_, shape_.mixed(), inner + state, state),
            columns(projected_, shape_.projected(), inner + shape_.mixed(), heads),
            vector(parameters_, behind, heads),
            vector(parameters_, behind + heads, heads),
            vector(parameters_, behind + 2 * heads, heads)};
  }
  kernels::StateSpaceSaved<Space, A> saved() const {
    const std::int64_t heads = shape_.scan.heads, rows = shape_.scan.rows();
    return {Matrix<A, Space>(tokens_.data(), heads, rows),
            Matrix<A, Space>(tokens_.data() + heads * rows, heads, rows),
            Matrix<A, Space>(states_.data(), shape_.scan.batch * shape_.scan.chunks() * heads,
                             shape_.scan.head_dim * shape_.scan.state)};
  }

  Shape shape_;
  Stream<Space> stream_;
  NoiseArray<Space, T> projected_, mixed_, scanned_, gated_;
  NoiseArray<Space, T> projected_gradient_, mixed_gradient_, gated_gradient_;
  NoiseArray<Space, T> parameters_, gradients_;
  NoiseArray<Space, A> tokens_, states_, inverse_, workspace_;
  NoiseArray<Space, T> stream_in_, stream_out_, projections_, projection_gradients_;
  Blas<Space> blas_;
};

template <class Space>
void time_part(benchmark::State& state, const Shape& shape, Part part, Pass pass) {
  Operands<Space> operands(shape);
  RecordedCall<Space> call(operands.stream(), [&] { operands.run(part, pass); });
  double seconds = 0;
  for (auto iteration : state) {
    (void)iteration;
    const double once = call.seconds();
    state.SetIterationTime(once);
    seconds += once;
  }
  if (is_host_space<Space>) return;
  const double bytes = static_cast<double>(elements(shape, part, pass)) * sizeof(bfloat16);
  const double byte_floor = bytes / bytes_per_second;
  const double flop_floor = operations(shape, part, pass) / operations_per_second;
  state.counters["byte_floor_us"] = byte_floor * 1e6;
  state.counters["flop_floor_us"] = flop_floor * 1e6;
  state.counters["floor_us"] = std::max(byte_floor, flop_floor) * 1e6;
  state.counters["ratio"] =
      seconds / static_cast<double>(state.iterations()) / std::max(byte_floor, flop_floor);
  if (part == Part::scan || part == Part::all || part == Part::block)
    state.counters["saved_MB"] = static_cast<double>(operands.states()) * sizeof(float) * 1e-6;
}

template <class Space>
void add_shapes() {
  const std::string backend(name_of(backend_of<Space>()));
  const std::pair<const char*, Part> parts[] = {{"convolution", Part::convolution},
                                                {"scan", Part::scan},
                                                {"gated_norm", Part::gated_norm},
                                                {"all", Part::all},
                                                {"block", Part::block}};
  const std::pair<const char*, Pass> passes[] = {{"forward", Pass::forward}, {"backward", Pass::backward}};
  for (const Shape& shape : shapes) {
    if (is_host_space<Space> && !shape.small) continue;
    for (const auto& [part_name, part] : parts)
      for (const auto& [pass_name, pass] : passes)
        add_benchmark(std::string("mamba/") + part_name + "/" + pass_name + "/" + shape.name + "/" + backend,
                      [shape, part = part, pass = pass](benchmark::State& state) {
                        time_part<Space>(state, shape, part, pass);
                      });
  }
}

}  // namespace

void add_mamba(const Options& options) {
#define ENCORE_ADD(SPACE) \
  if (options.has<SPACE>()) add_shapes<SPACE>();
  ENCORE_FOR_EACH_SPACE(ENCORE_ADD)
#undef ENCORE_ADD
}

}  // namespace encore::bench
