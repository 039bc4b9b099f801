// SPDX-License-Identifier: Apache-2.0
#include <encore/c/layers.h>
#include <encore/kernels/activation.hpp>
#include <encore/kernels/cross_entropy.hpp>
#include <encore/kernels/embedding.hpp>
#include <encore/kernels/normalization.hpp>

#include "arrays.hpp"

using encore::backend::Device;
using encore::c::extent;
using encore::c::guarded;
using encore::c::matrix;
using encore::c::optional_matrix;
using encore::c::optional_vector;
using encore::c::product;
using encore::c::require_pointer;
using encore::c::state_of;
using encore::c::vector;
using encore::c::with_type;
using encore::c::with_types;
namespace kernels = encore::kernels;
using kernels::Accumulator;

namespace {

std::int64_t input_columns(encore_activation activation, std::int64_t columns) {
  return activation == ENCORE_SWIGLU ? 2 * columns : columns;
}

kernels::Gelu kind_of_gelu(encore_activation activation) {
  return activation == ENCORE_GELU ? kernels::Gelu::exact : kernels::Gelu::tanh;
}

void require_known(encore_activation activation) {
  if (activation < ENCORE_GELU || activation > ENCORE_SWIGLU)
    throw encore::UsageError("activation " + std::to_string(static_cast<int>(activation)) +
                             " is none of encore_activation");
}

/// The order of the tokens, and the rows of sums, one behind the other in one workspace.
struct EmbeddingWorkspace {
  EmbeddingWorkspace(std::int64_t tokens, std::int64_t columns, std::size_t accumulator) {
    constexpr std::size_t alignment = 256;
    const std::size_t order = product({extent(tokens, "tokens"), sizeof(std::int32_t)}, "workspace");
    order_bytes = (order + alignment - 1) / alignment * alignment;
    bytes = order_bytes + product({extent(kernels::embedding_workspace_rows(tokens), "tokens"),
                                   extent(columns, "columns"), accumulator},
                                  "workspace");
  }
  std::size_t order_bytes;
  std::size_t bytes;
};

}  // namespace

extern "C" {

int encore_rms_norm_forward(encore_stream* stream, encore_type type, const void* input, const void* weight,
                            void* output, void* inverse_rms, int64_t rows, int64_t columns, double epsilon) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::rms_norm_forward<Space, T>(
          device.stream(), matrix<const T, Space>(input, rows, columns, "input"),
          vector<const T, Space>(weight, columns, "weight"),
          matrix<T, Space>(output, rows, columns, "output"),
          vector<Accumulator<T>, Space>(inverse_rms, rows, "inverse_rms"), epsilon);
    });
  });
}

int encore_rms_norm_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                             const void* input, const void* weight, const void* inverse_rms,
                             const void* output_gradient, const void* residual_gradient, void* input_gradient,
                             void* weight_gradient, int64_t rows, int64_t columns, int accumulate,
                             void* workspace) {
  return guarded([&] {
    with_types(
        state_of(stream), type, gradient_type, [&]<class Space, class T, class G>(Device<Space>& device) {
          kernels::rms_norm_backward<Space, T, G>(
              device.stream(), matrix<const T, Space>(input, rows, columns, "input"),
              vector<const T, Space>(weight, columns, "weight"),
              vector<const Accumulator<T>, Space>(inverse_rms, rows, "inverse_rms"),
              matrix<const T, Space>(output_gradient, rows, columns, "output_gradient"),
              optional_matrix<const T, Space>(residual_gradient, rows, columns, "residual_gradient"),
              matrix<T, Space>(input_gradient, rows, columns, "input_gradient"),
              vector<G, Space>(weight_gradient, columns, "weight_gradient"),
              matrix<Accumulator<T>, Space>(workspace, kernels::normalization_workspace_rows(rows, columns),
                                            columns, "workspace"),
              accumulate != 0);
        });
  });
}

int encore_layer_norm_forward(encore_stream* stream, encore_type type, const void* input, const void* weight,
                              const void* bias, void* output, void* mean, void* inverse_std, int64_t rows,
                              int64_t columns, double epsilon) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::layer_norm_forward<Space, T>(
          device.stream(), matrix<const T, Space>(input, rows, columns, "input"),
          vector<const T, Space>(weight, columns, "weight"),
          optional_vector<const T, Space>(bias, columns, "bias"),
          matrix<T, Space>(output, rows, columns, "output"),
          vector<Accumulator<T>, Space>(mean, rows, "mean"),
          vector<Accumulator<T>, Space>(inverse_std, rows, "inverse_std"), epsilon);
    });
  });
}

int encore_layer_norm_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                               const void* input, const void* weight, const void* mean,
                               const void* inverse_std, const void* output_gradient,
                               const void* residual_gradient, void* input_gradient, void* weight_gradient,
                               void* bias_gradient, int64_t rows, int64_t columns, int accumulate,
                               void* workspace) {
  return guarded([&] {
    with_types(
        state_of(stream), type, gradient_type, [&]<class Space, class T, class G>(Device<Space>& device) {
          kernels::layer_norm_backward<Space, T, G>(
              device.stream(), matrix<const T, Space>(input, rows, columns, "input"),
              vector<const T, Space>(weight, columns, "weight"),
              vector<const Accumulator<T>, Space>(mean, rows, "mean"),
              vector<const Accumulator<T>, Space>(inverse_std, rows, "inverse_std"),
              matrix<const T, Space>(output_gradient, rows, columns, "output_gradient"),
              optional_matrix<const T, Space>(residual_gradient, rows, columns, "residual_gradient"),
              matrix<T, Space>(input_gradient, rows, columns, "input_gradient"),
              vector<G, Space>(weight_gradient, columns, "weight_gradient"),
              optional_vector<G, Space>(bias_gradient, columns, "bias_gradient"),
              matrix<Accumulator<T>, Space>(
                  workspace, 2 * kernels::normalization_workspace_rows(rows, columns), columns, "workspace"),
              accumulate != 0);
        });
  });
}

int encore_norm_workspace(encore_type type, int64_t rows, int64_t columns, size_t* bytes) {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    extent(rows, "rows");
    *bytes = product({2, extent(kernels::normalization_workspace_rows(rows, columns), "rows"),
                      extent(columns, "columns"), encore::c::accumulator_size(type)},
                     "workspace");
  });
}

int encore_activation_forward(encore_stream* stream, encore_type type, encore_activation activation,
                              const void* input, void* output, int64_t rows, int64_t columns) {
  return guarded([&] {
    require_known(activation);
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      const auto from = matrix<const T, Space>(input, rows, input_columns(activation, columns), "input");
      const auto to = matrix<T, Space>(output, rows, columns, "output");
      if (activation == ENCORE_SWIGLU) return kernels::swiglu_forward<Space, T>(device.stream(), from, to);
      if (activation == ENCORE_RELU_SQUARED)
        return kernels::relu_squared_forward<Space, T>(device.stream(), from, to);
      kernels::gelu_forward<Space, T>(device.stream(), kind_of_gelu(activation), from, to);
    });
  });
}

int encore_activation_backward(encore_stream* stream, encore_type type, encore_activation activation,
                               const void* input, const void* output_gradient, void* input_gradient,
                               int64_t rows, int64_t columns) {
  return guarded([&] {
    require_known(activation);
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      const std::int64_t width = input_columns(activation, columns);
      const auto from = matrix<const T, Space>(input, rows, width, "input");
      const auto gradient = matrix<const T, Space>(output_gradient, rows, columns, "output_gradient");
      const auto to = matrix<T, Space>(input_gradient, rows, width, "input_gradient");
      if (activation == ENCORE_SWIGLU)
        return kernels::swiglu_backward<Space, T>(device.stream(), from, gradient, to);
      if (activation == ENCORE_RELU_SQUARED)
        return kernels::relu_squared_backward<Space, T>(device.stream(), from, gradient, to);
      kernels::gelu_backward<Space, T>(device.stream(), kind_of_gelu(activation), from, gradient, to);
    });
  });
}

int encore_embedding_forward(encore_stream* stream, encore_type type, const int32_t* ids, const void* table,
                             void* output, int64_t tokens, int64_t vocabulary, int64_t columns) {
  return guarded([&] {
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      kernels::embedding_forward<Space, T>(device.stream(),
                                           vector<const std::int32_t, Space>(ids, tokens, "ids"),
                                           matrix<const T, Space>(table, vocabulary, columns, "table"), {},
                                           tokens, matrix<T, Space>(output, tokens, columns, "output"));
    });
  });
}

int encore_embedding_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                              const int32_t* ids, const void* output_gradient, void* table_gradient,
                              int64_t tokens, int64_t vocabulary, int64_t columns, int accumulate,
                              void* workspace) {
  return guarded([&] {
    require_pointer(workspace, "workspace");
    with_types(state_of(stream), type, gradient_type,
               [&]<class Space, class T, class G>(Device<Space>& device) {
                 const EmbeddingWorkspace layout(tokens, columns, sizeof(Accumulator<T>));
                 void* const sums = static_cast<std::byte*>(workspace) + layout.order_bytes;
                 const auto all_ids = vector<const std::int32_t, Space>(ids, tokens, "ids");
                 const auto order = vector<std::int32_t, Space>(workspace, tokens, "workspace");
                 kernels::token_order<Space>(device.stream(), all_ids, order);
                 kernels::embedding_backward<Space, T, G>(
                     device.stream(), all_ids, order,
                     matrix<const T, Space>(output_gradient, tokens, columns, "output_gradient"),
                     matrix<G, Space>(table_gradient, vocabulary, columns, "table_gradient"),
                     matrix<Accumulator<T>, Space>(sums, kernels::embedding_workspace_rows(tokens), columns,
                                                   "workspace"),
                     accumulate != 0);
               });
  });
}

int encore_embedding_workspace(encore_type type, int64_t tokens, int64_t columns, size_t* bytes) {
  return guarded([&] {
    require_pointer(bytes, "bytes");
    *bytes = EmbeddingWorkspace(tokens, columns, encore::c::accumulator_size(type)).bytes;
  });
}

int encore_cross_entropy(encore_stream* stream, encore_type type, void* logits, const int32_t* labels,
                         void* row_losses, double* count, double* loss, int64_t rows, int64_t columns,
                         int write_gradient) {
  return guarded([&] {
    require_pointer(count, "count");
    require_pointer(loss, "loss");
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      using A = Accumulator<T>;
      const auto all_labels = vector<const std::int32_t, Space>(labels, rows, "labels");
      const auto losses = vector<A, Space>(row_losses, rows, "row_losses");
      kernels::count_labels<Space>(device.stream(), all_labels, count);
      kernels::cross_entropy<Space, T>(device.stream(), matrix<T, Space>(logits, rows, columns, "logits"),
                                       all_labels, count, losses, write_gradient != 0);
      kernels::reduce_loss<Space, A>(device.stream(), losses, count, loss, false);
    });
  });
}

}  // extern "C"
