// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <encore/backend/blas.hpp>
#include <encore/backend/memory.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace encore::tests {

using namespace encore::backend;

/// A product and everything that may vary about it; strides are extents plus padding.
struct ProductCase {
  std::int64_t m, n, k;
  bool first_transposed = false, second_transposed = false;
  bool bias = false;
  enum class Addend { none, separate, result } addend = Addend::none;
  float alpha = 1.0F, beta = 0.0F;
  std::int64_t padding = 0;
};

inline std::string name_of(const ProductCase& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) +
         (c.first_transposed ? " T" : " N") + (c.second_transposed ? "T" : "N") + (c.bias ? " bias" : "") +
         " addend " + std::to_string(static_cast<int>(c.addend)) + " alpha " + std::to_string(c.alpha) +
         " beta " + std::to_string(c.beta) + " padding " + std::to_string(c.padding);
}

template <class T>
std::vector<T> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<T> values(count);
  for (T& value : values) value = T(uniform(generator));
  return values;
}

template <class T, class Result>
struct ProductProblem {
  explicit ProductProblem(const ProductCase& c)
      : shape(c),
        first_stride((c.first_transposed ? c.m : c.k) + c.padding),
        second_stride((c.second_transposed ? c.k : c.n) + c.padding),
        result_stride(c.n + 2 * c.padding),
        addend_stride(c.addend == ProductCase::Addend::result ? result_stride : c.n + c.padding),
        first(random_values<T>((c.first_transposed ? c.k : c.m) * first_stride, 1)),
        second(random_values<T>((c.second_transposed ? c.n : c.k) * second_stride, 2)),
        bias(random_values<T>(c.n, 3)),
        addend(random_values<Result>(c.m * addend_stride, 4)),
        result(c.m * result_stride, Result(std::numeric_limits<float>::quiet_NaN())) {
    if (c.addend == ProductCase::Addend::result) result = addend;
  }

  /// Copies everything to the space's memory, once; `result` comes back by `download`.
  template <class Space>
  struct OnDevice {
    OnDevice(Stream<Space>& its_stream, const ProductProblem& problem)
        : stream(its_stream),
          first(upload(problem.first)),
          second(upload(problem.second)),
          bias(upload(problem.bias)),
          addend(upload(problem.addend)),
          result(upload(problem.result)) {}

    template <class Element>
    Allocation<Space> upload(const std::vector<Element>& values) {
      // One more element, so that nothing is empty.
      Allocation<Space> memory("product test", (values.size() + 1) * sizeof(Element));
      stream.copy_to_device(memory.data(), values.data(), values.size() * sizeof(Element), "test");
      stream.synchronize("test");
      return memory;
    }

    Stream<Space>& stream;
    Allocation<Space> first, second, bias, addend, result;
  };

  template <class Space>
  void multiply(Blas<Space>& blas, const OnDevice<Space>& device) const {
    const ProductCase& c = shape;
    MatrixProductOptions<Result> options;
    options.alpha = c.alpha;
    options.beta = c.beta;
    if (c.bias) options.bias = device.bias.data();
    auto* result_data = reinterpret_cast<Result*>(device.result.data());
    if (c.addend == ProductCase::Addend::separate) {
      options.addend = reinterpret_cast<const Result*>(device.addend.data());
      options.addend_stride = addend_stride;
    }
    if (c.addend == ProductCase::Addend::result) options.addend = result_data;
    using Operand = MatrixOperand<const T>;
    const Operand first_operand{reinterpret_cast<const T*>(device.first.data()),
                                c.first_transposed ? c.k : c.m, c.first_transposed ? c.m : c.k, first_stride};
    const Operand second_operand{reinterpret_cast<const T*>(device.second.data()),
                                 c.second_transposed ? c.n : c.k, c.second_transposed ? c.k : c.n,
                                 second_stride};
    blas.template multiply<T, Result>(device.stream, "product",
                                      c.first_transposed ? Transpose::yes : Transpose::no, first_operand,
                                      c.second_transposed ? Transpose::yes : Transpose::no, second_operand,
                                      MatrixOperand<Result>{result_data, c.m, c.n, result_stride}, options);
  }

  template <class Space>
  void download(const OnDevice<Space>& device) {
    device.stream.copy_to_host(result.data(), device.result.data(), result.size() * sizeof(Result), "test");
    device.stream.synchronize("test");
  }

  /// All of the above, once.
  template <class Space>
  void run(Blas<Space>& blas, Stream<Space>& stream) {
    const OnDevice<Space> device(stream, *this);
    multiply(blas, device);
    download(device);
  }

  /// The largest error against sums in double, in units of what rounding may cost. Where bias and addend meet,
  /// cuBLASLt rounds to the result's type between the additions, the host kernels only after the last.
  double worst_error(bool rounds_between = false) const {
    const ProductCase& c = shape;
    double worst = 0;
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t p = 0; p < c.k; ++p) {
          const double term =
              double(first[c.first_transposed ? p * first_stride + i : i * first_stride + p]) *
              double(second[c.second_transposed ? j * second_stride + p : p * second_stride + j]);
          sum += term;
          magnitude += std::abs(term);
        }
        double expected = c.alpha * sum;
        magnitude = std::abs(c.alpha) * magnitude + 1;
        if (c.addend != ProductCase::Addend::none) expected += c.beta * double(addend[i * addend_stride + j]);
        if (c.bias) expected += double(bias[j]);
        const double unit = std::is_same_v<Accumulator<T>, double> ? 1e-15 : 1e-7;
        double rounded = std::abs(expected);
        if (rounds_between && c.bias && c.addend != ProductCase::Addend::none)
          rounded += std::abs(c.alpha * sum) + std::abs(c.beta * double(addend[i * addend_stride + j])) +
                     std::abs(double(bias[j]));
        const double storage = std::is_same_v<Result, bfloat16> ? rounded / 256 : 0;
        const double error =
            std::abs(double(result[i * result_stride + j]) - expected) / (4 * unit * magnitude + storage);
        if (!(error <= worst)) worst = error;
      }
    }
    return worst;
  }

  /// Whether the padding between rows of the result still holds what it held.
  bool padding_untouched() const {
    for (std::int64_t i = 0; i < shape.m; ++i) {
      for (std::int64_t j = shape.n; j < result_stride; ++j) {
        const float value = float(result[i * result_stride + j]);
        if (shape.addend == ProductCase::Addend::result ? value != float(addend[i * addend_stride + j])
                                                        : !std::isnan(value))
          return false;
      }
    }
    return true;
  }

  ProductCase shape;
  std::int64_t first_stride, second_stride, result_stride, addend_stride;
  std::vector<T> first, second, bias;
  std::vector<Result> addend, result;
};

inline std::vector<ProductCase> product_cases() {
  std::vector<ProductCase> all;
  const std::int64_t shapes[][3] = {{1, 1, 1},     {1, 7, 3},      {5, 1, 9},     {3, 50, 257},
                                    {17, 33, 65},  {64, 64, 64},   {70, 200, 31}, {130, 300, 20},
                                    {40, 70, 515}, {257, 129, 48}, {8, 1000, 16}, {300, 5, 300}};
  for (const auto& [m, n, k] : shapes) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool first = (variant & 1) != 0;
      const bool second = (variant & 2) != 0;
      all.push_back({m, n, k, first, second});
      all.push_back({m, n, k, first, second, true, ProductCase::Addend::separate, 0.5F, -2.0F, 3});
      all.push_back(
          {m, n, k, first, second, variant % 2 == 0, ProductCase::Addend::result, 1.0F, 1.0F, variant});
    }
  }
  for (const bool bias : {false, true})
    for (const auto addend :
         {ProductCase::Addend::none, ProductCase::Addend::separate, ProductCase::Addend::result})
      for (const std::int64_t k : {0, 9}) {
        all.push_back({6, 70, k, false, true, bias, addend, 0.0F, 0.75F, 1});
        all.push_back({6, 70, k, true, false, bias, addend, 2.0F,
                       addend == ProductCase::Addend::none ? 0.0F : 0.75F, 0});
      }
  return all;
}

/// Runs every case and compares with sums in double.
template <class Space, class T, class Result, class Check>
void for_each_product(Blas<Space>& blas, Stream<Space>& stream, const Check& check) {
  for (const ProductCase& c : product_cases()) {
    ProductProblem<T, Result> problem(c);
    problem.run(blas, stream);
    check(name_of(c), problem.worst_error(!is_host_space<Space>), problem.padding_untouched());
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace encore::tests
