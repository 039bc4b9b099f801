// SPDX-License-Identifier: Apache-2.0
#include <encore/c/kernels.h>
#include <encore/kernels/bias.hpp>
#include <encore/kernels/initialization.hpp>
#include <encore/kernels/optimizer.hpp>
#include <encore/kernels/residual.hpp>

#include "arrays.hpp"

namespace encore::c {

namespace {

using backend::Device;

struct Product {
  bool transpose_first, transpose_second;
  const void *first, *second, *bias;
  void* result;
  std::int64_t rows, inner, columns;
  float alpha, beta;

  template <class T, class Result, class Space>
  void queue(Device<Space>& device) const {
    const auto stored = [](bool transposed, const void* data, std::int64_t height, std::int64_t width) {
      const auto* values = static_cast<const T*>(data);
      return transposed ? backend::MatrixOperand<const T>{values, width, height, height}
                        : backend::MatrixOperand<const T>{values, height, width, width};
    };
    const auto turn = [](bool transposed) {
      return transposed ? backend::Transpose::yes : backend::Transpose::no;
    };
    auto* const values = static_cast<Result*>(result);
    backend::MatrixProductOptions<Result> options;
    options.bias = bias;
    options.alpha = alpha;
    options.beta = beta;
    if (beta != 0) options.addend = values;
    device.blas().template multiply<T, Result>(
        device.stream(), "encore_multiply", turn(transpose_first),
        stored(transpose_first, first, rows, inner), turn(transpose_second),
        stored(transpose_second, second, inner, columns), {values, rows, columns, columns}, options);
  }
};

/// Calls `use.operator()<G, S>()` for the types of gradients and moments that adamw has beside T.
template <class T, class Use>
void with_moment_type(encore_type gradient_type, encore_type moment_type, const Use& use) {
  if constexpr (std::is_same_v<T, double>) {
    if (gradient_type == ENCORE_FLOAT64 && moment_type == ENCORE_FLOAT64)
      return use.template operator()<double, double>();
  } else {
    const auto with_gradient = [&]<class G>() {
      if (moment_type == ENCORE_FLOAT32) return use.template operator()<G, float>();
      if (moment_type == ENCORE_BFLOAT16) return use.template operator()<G, backend::bfloat16>();
      throw ConfigurationError("moments of type " + std::string(name_of(moment_type)) +
                               " do not exist here: use float32 or bfloat16");
    };
    if (gradient_type == ENCORE_FLOAT32) return with_gradient.template operator()<float>();
    if constexpr (std::is_same_v<T, backend::bfloat16>)
      if (gradient_type == ENCORE_BFLOAT16) return with_gradient.template operator()<backend::bfloat16>();
  }
  throw ConfigurationError("gradients of type " + std::string(name_of(gradient_type)) +
                           " with moments of type " + std::string(name_of(moment_type)) +
                           " do not exist for these weights");
}

std::int64_t adamw_workspace_numbers() {
  return kernels::squared_norm_partial_count() + kernels::adamw_factor_count();
}

}  // namespace

}  // namespace encore::c

using encore::backend::Device;
using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;
using encore::c::with_type;
using encore::c::with_types;
namespace kernels = encore::kernels;

extern "C" {

int encore_multiply(encore_stream* stream, encore_type type, encore_type result_type, int transpose_first,
                    const void* first, int transpose_second, const void* second, void* result, int64_t rows,
                    int64_t inner, int64_t columns, float alpha, float beta, const void* bias) {
  return guarded([&] {
    require_pointer(first, "first");
    require_pointer(second, "second");
    require_pointer(result, "result");
    encore::c::extent(rows, "rows");
    encore::c::extent(inner, "inner");
    encore::c::extent(columns, "columns");
    const encore::c::Product product{transpose_first != 0,
                                     transpose_second != 0,
                                     first,
                                     second,
                                     bias,
                                     result,
                                     rows,
                                     inner,
                                     columns,
                                     alpha,
                                     beta};
    with_types(
        state_of(stream), type, result_type,
        [&]<class Space, class T, class Result>(Device<Space>& device) { product.queue<T, Result>(device); });
  });
}

int encore_add(encore_stream* stream, encore_type type, const void* first, const void* second, void* output,
               int64_t elements) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::add<Space, T>(device.stream(), encore::c::matrix<const T, Space>(first, 1, elements, "first"),
                             encore::c::matrix<const T, Space>(second, 1, elements, "second"),
                             encore::c::matrix<T, Space>(output, 1, elements, "output"));
    });
  });
}

int encore_fill(encore_stream* stream, encore_type type, void* values, int64_t elements, double value) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::fill_constant<Space, T>(device.stream(),
                                       encore::c::vector<T, Space>(values, elements, "values"), value);
    });
  });
}

int encore_fill_normal(encore_stream* stream, encore_type type, void* values, int64_t elements, double mean,
                       double deviation, uint64_t seed, uint32_t segment) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::fill_normal<Space, T>(device.stream(), encore::c::vector<T, Space>(values, elements, "values"),
                                     mean, deviation, seed, segment);
    });
  });
}

int encore_convert(encore_stream* stream, encore_type input_type, const void* input, encore_type output_type,
                   void* output, int64_t elements) {
  return guarded([&] {
    state_of(stream).with_device([&]<class Space>(Device<Space>& device) {
      const auto queue = [&]<class From, class To>() {
        kernels::convert<Space, From, To>(device.stream(),
                                          encore::c::vector<const From, Space>(input, elements, "input"),
                                          encore::c::vector<To, Space>(output, elements, "output"));
      };
      using encore::backend::bfloat16;
      if (input_type == ENCORE_FLOAT32 && output_type == ENCORE_BFLOAT16)
        return queue.template operator()<float, bfloat16>();
      if (input_type == ENCORE_BFLOAT16 && output_type == ENCORE_FLOAT32)
        return queue.template operator()<bfloat16, float>();
      throw encore::ConfigurationError("encore_convert from " + std::string(encore::c::name_of(input_type)) +
                                       " to " + std::string(encore::c::name_of(output_type)) +
                                       " does not exist: it is for float32 and bfloat16");
    });
  });
}

int encore_bias_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                         const void* output_gradient, void* gradient, int64_t rows, int64_t columns,
                         int accumulate, void* workspace) {
  return guarded([&] {
    with_types(state_of(stream), type, gradient_type,
               [&]<class Space, class T, class G>(Device<Space>& device) {
                 kernels::bias_backward<Space, T, G>(
                     device.stream(),
                     encore::c::matrix<const T, Space>(output_gradient, rows, columns, "output_gradient"),
                     encore::c::vector<G, Space>(gradient, columns, "gradient"),
                     encore::c::matrix<kernels::Accumulator<T>, Space>(
                         workspace, kernels::bias_workspace_rows(rows), columns, "workspace"),
                     accumulate != 0);
               });
  });
}

int encore_bias_workspace(encore_type type, int64_t rows, int64_t columns, size_t* bytes) {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    encore::c::extent(rows, "rows");
    *bytes = encore::c::product({encore::c::extent(kernels::bias_workspace_rows(rows), "rows"),
                                 encore::c::extent(columns, "columns"), encore::c::accumulator_size(type)},
                                "workspace");
  });
}

int encore_adamw(encore_stream* stream, encore_type type, encore_type gradient_type, encore_type moment_type,
                 const void* gradients, void* weights, void* master, void* first_moment, void* second_moment,
                 int64_t elements, int64_t decayed, const double* scalars, double* norm, void* workspace) {
  return guarded([&] {
    require_pointer(scalars, "scalars");
    require_pointer(norm, "norm");
    require_pointer(workspace, "workspace");
    const kernels::AdamwScalars addresses{
        scalars + ENCORE_ADAMW_LEARNING_RATE, scalars + ENCORE_ADAMW_WEIGHT_DECAY,
        scalars + ENCORE_ADAMW_BETA1,         scalars + ENCORE_ADAMW_BETA2,
        scalars + ENCORE_ADAMW_EPSILON,       scalars + ENCORE_ADAMW_CLIP,
        scalars + ENCORE_ADAMW_STEP,          scalars + ENCORE_ADAMW_GRADIENT_SCALE,
        scalars + ENCORE_ADAMW_SKIP_ABOVE};
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      encore::c::with_moment_type<T>(gradient_type, moment_type, [&]<class G, class S>() {
        using A = kernels::Accumulator<T>;
        const auto count = kernels::squared_norm_partial_count();
        const auto partials = encore::c::vector<double, Space>(workspace, count, "workspace");
        const auto factors = encore::c::vector<A, Space>(static_cast<void*>(partials.data() + count),
                                                         kernels::adamw_factor_count(), "workspace");
        const auto all_gradients = encore::c::vector<const G, Space>(gradients, elements, "gradients");
        kernels::squared_norm_partials<Space, G>(device.stream(), all_gradients, partials);
        kernels::adamw_prepare<Space, A>(device.stream(), partials, addresses, norm, factors);
        kernels::adamw<Space, T, G, S>(device.stream(), all_gradients, factors,
                                       encore::c::vector<T, Space>(weights, elements, "weights"),
                                       encore::c::optional_vector<A, Space>(master, elements, "master"),
                                       encore::c::vector<S, Space>(first_moment, elements, "first_moment"),
                                       encore::c::vector<S, Space>(second_moment, elements, "second_moment"),
                                       decayed);
      });
    });
  });
}

int encore_adamw_workspace(size_t* bytes) {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    *bytes = static_cast<std::size_t>(encore::c::adamw_workspace_numbers()) * sizeof(double);
  });
}

}  // extern "C"
