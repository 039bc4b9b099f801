// SPDX-License-Identifier: Apache-2.0
#include <encore/c/layers.h>

#include "stream.hpp"

using encore::backend::Accumulator;
using encore::backend::Device;
using encore::c::guarded;
using encore::c::require_pointer;
using encore::c::state_of;
using encore::c::with_type;

namespace {

encore::backend::AttentionShape shape_of(const encore_attention_shape* shape) {
  require_pointer(shape, "shape");
  return {.batch = shape->batch,
          .tokens = shape->tokens,
          .heads = shape->heads,
          .kv_heads = shape->kv_heads,
          .head_dim = shape->head_dim,
          .scale = shape->scale,
          .window = shape->window};
}

/// [batch, tokens, heads, head_dim] without gaps.
template <class T, class Pointer>
encore::backend::HeadsOperand<T> heads(Pointer* data, const encore_attention_shape& shape, std::int64_t count,
                                       const char* name) {
  require_pointer(data, name);
  return {static_cast<T*>(data), shape.tokens * count * shape.head_dim, count * shape.head_dim,
          shape.head_dim};
}

}  // namespace

extern "C" {

int encore_attention_forward(encore_stream* stream, encore_type type, const encore_attention_shape* shape,
                             const void* query, const void* key, const void* value, void* output,
                             void* log_sum_exp) {
  return guarded([&] {
    const auto checked = shape_of(shape);
    require_pointer(log_sum_exp, "log_sum_exp");
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      device.attention().template forward<T>(
          device.stream(), checked, {}, heads<const T>(query, *shape, shape->heads, "query"),
          heads<const T>(key, *shape, shape->kv_heads, "key"),
          heads<const T>(value, *shape, shape->kv_heads, "value"),
          heads<T>(output, *shape, shape->heads, "output"), static_cast<Accumulator<T>*>(log_sum_exp));
    });
  });
}

int encore_attention_backward(encore_stream* stream, encore_type type, const encore_attention_shape* shape,
                              const void* query, const void* key, const void* value, const void* output,
                              const void* log_sum_exp, const void* output_gradient, void* query_gradient,
                              void* key_gradient, void* value_gradient, void* workspace) {
  return guarded([&] {
    const auto checked = shape_of(shape);
    require_pointer(log_sum_exp, "log_sum_exp");
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      if (device.attention().template workspace_bytes<T>(checked, {}) > 0)
        require_pointer(workspace, "workspace");
      device.attention().template backward<T>(
          device.stream(), checked, {}, heads<const T>(query, *shape, shape->heads, "query"),
          heads<const T>(key, *shape, shape->kv_heads, "key"),
          heads<const T>(value, *shape, shape->kv_heads, "value"),
          heads<const T>(output, *shape, shape->heads, "output"),
          static_cast<const Accumulator<T>*>(log_sum_exp),
          heads<const T>(output_gradient, *shape, shape->heads, "output_gradient"),
          heads<T>(query_gradient, *shape, shape->heads, "query_gradient"),
          heads<T>(key_gradient, *shape, shape->kv_heads, "key_gradient"),
          heads<T>(value_gradient, *shape, shape->kv_heads, "value_gradient"),
          static_cast<std::byte*>(workspace));
    });
  });
}

int encore_attention_workspace(encore_stream* stream, encore_type type, const encore_attention_shape* shape,
                               size_t* bytes) {
  return guarded([&] {
    const auto checked = shape_of(shape);
    require_pointer(bytes, "bytes");
    with_type(state_of(stream), type, [&]<class Space, class T>(Device<Space>& device) {
      *bytes = device.attention().template workspace_bytes<T>(checked, {});
    });
  });
}

}  // extern "C"
