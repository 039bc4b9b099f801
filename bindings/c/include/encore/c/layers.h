/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a network's layers, forward and backward; what is common to them is told in kernels.h. */
#ifndef ENCORE_C_LAYERS_H
#define ENCORE_C_LAYERS_H

#include <encore/c/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * output = input * inverse_rms * weight with inverse_rms = 1 / sqrt(mean(input^2) + epsilon) of each row. input and
 * output [rows, columns], may be the same; weight [columns]; inverse_rms [rows], accumulator, is kept for backward.
 */
ENCORE_API int encore_rms_norm_forward(encore_stream* stream, encore_type type, const void* input,
                                       const void* weight, void* output, void* inverse_rms, int64_t rows,
                                       int64_t columns, double epsilon);
/*
 * Gradients of it. residual_gradient [rows, columns] is added to input_gradient, or NULL; input_gradient may be
 * residual_gradient or output_gradient. Workspace: encore_norm_workspace.
 */
ENCORE_API int encore_rms_norm_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                                        const void* input, const void* weight, const void* inverse_rms,
                                        const void* output_gradient, const void* residual_gradient,
                                        void* input_gradient, void* weight_gradient, int64_t rows,
                                        int64_t columns, int accumulate, void* workspace);

/* output = (input - mean) * inverse_std * weight + bias by row; bias NULL or [columns]; mean and inverse_std [rows]. */
ENCORE_API int encore_layer_norm_forward(encore_stream* stream, encore_type type, const void* input,
                                         const void* weight, const void* bias, void* output, void* mean,
                                         void* inverse_std, int64_t rows, int64_t columns, double epsilon);
/* Gradients of it, as above; bias_gradient NULL where there is no bias. */
ENCORE_API int encore_layer_norm_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                                          const void* input, const void* weight, const void* mean,
                                          const void* inverse_std, const void* output_gradient,
                                          const void* residual_gradient, void* input_gradient,
                                          void* weight_gradient, void* bias_gradient, int64_t rows,
                                          int64_t columns, int accumulate, void* workspace);
/* Bytes of the workspace of both backward passes. Needs no device. */
ENCORE_API int encore_norm_workspace(encore_type type, int64_t rows, int64_t columns, size_t* bytes);

typedef enum encore_activation {
  ENCORE_GELU = 0,         /* x * Phi(x) */
  ENCORE_GELU_TANH = 1,    /* its approximation by tanh */
  ENCORE_RELU_SQUARED = 2, /* max(x, 0)^2 */
  ENCORE_SWIGLU = 3 /* gate / (1 + exp(-gate)) * up; the input [rows, 2 * columns]: gate, then up, in a row */
} encore_activation;

/* output [rows, columns] = activation(input); input [rows, columns], or twice the columns for ENCORE_SWIGLU. */
ENCORE_API int encore_activation_forward(encore_stream* stream, encore_type type,
                                         encore_activation activation, const void* input, void* output,
                                         int64_t rows, int64_t columns);
/* input_gradient, in the input's shape, of output_gradient [rows, columns]. */
ENCORE_API int encore_activation_backward(encore_stream* stream, encore_type type,
                                          encore_activation activation, const void* input,
                                          const void* output_gradient, void* input_gradient, int64_t rows,
                                          int64_t columns);

/* output[i] = table[ids[i]]. ids [tokens] int32, not checked; table [vocabulary, columns]; output [tokens, columns]. */
ENCORE_API int encore_embedding_forward(encore_stream* stream, encore_type type, const int32_t* ids,
                                        const void* table, void* output, int64_t tokens, int64_t vocabulary,
                                        int64_t columns);
/* table_gradient[v] (+)= sum of output_gradient[i] where ids[i] is v, in order of i. */
ENCORE_API int encore_embedding_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                                         const int32_t* ids, const void* output_gradient,
                                         void* table_gradient, int64_t tokens, int64_t vocabulary,
                                         int64_t columns, int accumulate, void* workspace);
ENCORE_API int encore_embedding_workspace(encore_type type, int64_t tokens, int64_t columns, size_t* bytes);

/*
 * *loss = mean over the labels that are not negative of log(sum of exp(logits[i])) - logits[i, labels[i]], and *count
 * (float64, device) their number. logits [rows, columns]; labels [rows] int32, below columns; row_losses [rows],
 * accumulator. With write_gradient other than 0 the logits become the gradient of that mean.
 */
ENCORE_API int encore_cross_entropy(encore_stream* stream, encore_type type, void* logits,
                                    const int32_t* labels, void* row_losses, double* count, double* loss,
                                    int64_t rows, int64_t columns, int write_gradient);

/* Causal attention: softmax(scale * Q K^T) V, where a query sees its own position and those before it. */
typedef struct encore_attention_shape {
  int64_t batch;
  int64_t tokens;
  int64_t heads;
  int64_t kv_heads; /* divides heads */
  int64_t head_dim; /* at most 256 */
  int64_t window;   /* positions that a query sees, its own among them; 0: all */
  float scale;      /* usually 1 / sqrt(head_dim) */
} encore_attention_shape;

/*
 * query and output [batch, tokens, heads, head_dim]; key and value [batch, tokens, kv_heads, head_dim]; log_sum_exp
 * [batch, heads, tokens], accumulator, is kept for backward.
 */
ENCORE_API int encore_attention_forward(encore_stream* stream, encore_type type,
                                        const encore_attention_shape* shape, const void* query,
                                        const void* key, const void* value, void* output, void* log_sum_exp);
ENCORE_API int encore_attention_backward(encore_stream* stream, encore_type type,
                                         const encore_attention_shape* shape, const void* query,
                                         const void* key, const void* value, const void* output,
                                         const void* log_sum_exp, const void* output_gradient,
                                         void* query_gradient, void* key_gradient, void* value_gradient,
                                         void* workspace);
/* Bytes of the backward pass' workspace on this stream's device; may be 0. */
ENCORE_API int encore_attention_workspace(encore_stream* stream, encore_type type,
                                          const encore_attention_shape* shape, size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
