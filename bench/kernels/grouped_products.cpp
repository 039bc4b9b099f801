// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of a mixture of experts beside one dense product of as many operations:
//   grouped/<product>/<shape>/<load>/<backend>
// balanced: every expert has as many rows; skewed: one has half of them, and the others share the rest.
// `ratio` is the rate of the grouped product over the dense one's.
#include "kernel_benchmarks.hpp"

#include <encore/backend/grouped_blas.hpp>

#include <numeric>

namespace encore::bench {

namespace {

struct Shape {
  const char* name;
  std::int64_t rows, experts, hidden, ffn;
  bool small;  ///< enough for a host
};

constexpr Shape shapes[] = {{"moe-small", 1024, 16, 512, 1024, true},
                            {"moe-qwen3", 32768, 128, 2048, 768, false}};

/// Forward: rows times the transposed weights. Input gradient: rows times the weights. Weight gradient: transposed
/// rows times rows, into float or bfloat16.
enum class Product { forward, input_gradient, weight_gradient, float_weight_gradient };

/// A projection from `inputs` to `outputs` columns.
struct Case {
  Shape shape;
  std::int64_t inputs, outputs;
  Product product;
  bool skewed;

  double operations() const {
    return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(inputs) * static_cast<double>(outputs);
  }
};

std::vector<std::int32_t> bounds_of(const Case& c) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(c.shape.experts));
  std::int64_t left = c.shape.rows;
  std::size_t first = 0;
  if (c.skewed) {
    counts[0] = c.shape.rows / 2;
    left -= counts[0];
    first = 1;
  }
  const std::int64_t others = c.shape.experts - static_cast<std::int64_t>(first);
  for (std::size_t expert = first; expert < counts.size(); ++expert) {
    const auto place = static_cast<std::int64_t>(expert - first);
    counts[expert] = left * (place + 1) / others - left * place / others;
  }
  std::vector<std::int32_t> bounds(1, 0);
  for (const std::int64_t count : counts) bounds.push_back(bounds.back() + static_cast<std::int32_t>(count));
  return bounds;
}

/// The operands of a case; the dense product works on the same memory.
template <class Space, class Gradient>
class Operands {
 public:
  using T = bfloat16;

  explicit Operands(const Case& c)
      : case_(c),
        blas_(stream_),
        grouped_blas_(stream_),
        inputs_(stream_, c.shape.rows * c.inputs, 1),
        outputs_(stream_, c.shape.rows * c.outputs, 2),
        weights_(stream_, c.shape.experts * c.inputs * c.outputs, 3),
        gradient_(stream_, c.shape.experts * c.inputs * c.outputs, 4),
        bounds_("benchmark", static_cast<std::size_t>(c.shape.experts + 1) * sizeof(std::int32_t)) {
    const std::vector<std::int32_t> bounds = bounds_of(c);
    stream_.copy_to_device(bounds_.data(), bounds.data(), bounds_.bytes(), "benchmark");
    stream_.synchronize("benchmark");
    blas_.enable_tuning(true);
  }

  Stream<Space>& stream() { return stream_; }
  GroupedBlas<Space>& grouped_blas() { return grouped_blas_; }

  void multiply_groups() {
    const auto* bounds = reinterpret_cast<const std::int32_t*>(bounds_.data());
    const RowGroups groups{bounds, bounds + 1, case_.shape.experts, case_.shape.rows};
    switch (case_.product) {
      case Product::forward:
        return grouped_blas_.template multiply_rows<T>(stream_, "grouped", groups, read_only(inputs()),
                                                       Transpose::yes, weights_.data(), outputs());
      case Product::input_gradient:
        return grouped_blas_.template multiply_rows<T>(stream_, "grouped", groups, read_only(outputs()),
                                                       Transpose::no, weights_.data(), inputs());
      default:
        return grouped_blas_.template multiply_weights<T, Gradient>(stream_, "grouped", groups,
                                                                    read_only(outputs()), read_only(inputs()),
                                                                    gradient_.data(), accumulates());
    }
  }

  void multiply_dense() {
    const MatrixOperand<const T> weights{weights_.data(), case_.outputs, case_.inputs, case_.inputs};
    const MatrixOperand<Gradient> gradient{gradient_.data(), case_.outputs, case_.inputs, case_.inputs};
    MatrixProductOptions<Gradient> options;
    if (accumulates()) {
      options.addend = gradient.data;
      options.beta = 1.0F;
    }
    switch (case_.product) {
      case Product::forward:
        return blas_.template multiply<T, T>(stream_, "dense", Transpose::no, read_only(inputs()),
                                             Transpose::yes, weights, outputs());
      case Product::input_gradient:
        return blas_.template multiply<T, T>(stream_, "dense", Transpose::no, read_only(outputs()),
                                             Transpose::no, weights, inputs());
      default:
        return blas_.template multiply<T, Gradient>(stream_, "dense", Transpose::yes, read_only(outputs()),
                                                    Transpose::no, read_only(inputs()), gradient, options);
    }
  }

 private:
  /// Float gradients are those that microbatches add up in.
  static constexpr bool accumulates() { return std::is_same_v<Gradient, float>; }
  MatrixOperand<T> inputs() const { return {inputs_.data(), case_.shape.rows, case_.inputs, case_.inputs}; }
  MatrixOperand<T> outputs() const {
    return {outputs_.data(), case_.shape.rows, case_.outputs, case_.outputs};
  }
  static MatrixOperand<const T> read_only(const MatrixOperand<T>& matrix) {
    return {matrix.data, matrix.rows, matrix.columns, matrix.stride};
  }

  Case case_;
  Stream<Space> stream_;
  Blas<Space> blas_;
  GroupedBlas<Space> grouped_blas_;
  NoiseArray<Space, T> inputs_, outputs_, weights_;
  NoiseArray<Space, Gradient> gradient_;
  Allocation<Space> bounds_;
};

template <class Space, class Gradient>
void time_case(benchmark::State& state, const Case& c, int tile) {
  Operands<Space, Gradient> operands(c);
  operands.grouped_blas().force_tiles(tile, tile);
  RecordedCall<Space> dense(operands.stream(), [&] { operands.multiply_dense(); });
  RecordedCall<Space> grouped(operands.stream(), [&] { operands.multiply_groups(); });
  double seconds = 0;
  for (auto iteration : state) {
    (void)iteration;
    const double once = grouped.seconds();
    state.SetIterationTime(once);
    seconds += once;
  }
  const double rate = c.operations() * static_cast<double>(state.iterations()) / seconds;
  const double dense_rate = c.operations() / dense.median_seconds(is_host_space<Space> ? 3 : 15);
  state.counters["TFLOP/s"] = rate / 1e12;
  state.counters["dense_TFLOP/s"] = dense_rate / 1e12;
  state.counters["ratio"] = rate / dense_rate;
}

template <class Space>
void add_case(const Case& c, const std::string& name, int tile) {
  add_benchmark(name, [c, tile](benchmark::State& state) {
    if (c.product == Product::float_weight_gradient)
      time_case<Space, float>(state, c, tile);
    else
      time_case<Space, bfloat16>(state, c, tile);
  });
}

template <class Space>
void add_cases(const Options& options) {
  const std::string backend(name_of(backend_of<Space>()));
  Stream<Space> stream;
  const GroupedBlas<Space> blas(stream);
  benchmark::AddCustomContext("grouped products on " + backend, blas.description());
  const std::pair<const char*, Product> products[] = {
      {"forward", Product::forward},
      {"input_gradient", Product::input_gradient},
      {"weight_gradient", Product::weight_gradient},
      {"float_weight_gradient", Product::float_weight_gradient}};
  for (const Shape& shape : shapes) {
    if (is_host_space<Space> && !shape.small) continue;
    for (const bool skewed : {false, true})
      for (const bool down : {false, true})
        for (const auto& [product_name, product] : products) {
          const std::int64_t inputs = down ? shape.ffn : shape.hidden;
          const std::int64_t outputs = down ? shape.hidden : 2 * shape.ffn;
          const Case c{shape, inputs, outputs, product, skewed};
          const std::string name = std::string("/") + (down ? "down_" : "up_") + product_name + "/" +
                                   shape.name + "/" + (skewed ? "skewed" : "balanced") + "/" + backend;
          add_case<Space>(c, "grouped" + name, -1);
          if (!options.tiles) continue;
          const bool of_weights =
              product == Product::weight_gradient || product == Product::float_weight_gradient;
          const std::vector<std::string> tiles = of_weights ? blas.tiles_of_weights() : blas.tiles_of_rows();
          for (std::size_t tile = 0; tile < tiles.size(); ++tile)
            add_case<Space>(c, "tile" + name + "/" + tiles[tile], static_cast<int>(tile));
        }
  }
}

}  // namespace

void add_grouped_products(const Options& options) {
#define ENCORE_ADD(SPACE) \
  if (options.has<SPACE>()) add_cases<SPACE>(options);
  ENCORE_FOR_EACH_SPACE(ENCORE_ADD)
#undef ENCORE_ADD
}

}  // namespace encore::bench
