/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that any program may need: products, sums, filling, the optimizer. Those of a network's layers are in
 * layers.h. Common to both:
 * - arrays lie in the device's memory, row-major without gaps, and belong to the caller: nothing is allocated;
 * - calls are queued on the stream and return; all may be captured;
 * - `type` is that of activations and weights, `gradient_type` that of weight gradients: the same, or float32 beside
 *   bfloat16; statistics, losses by row and workspaces have the `accumulator`: float32, and float64 beside float64;
 * - `accumulate` 0 sets a weight's gradient, other numbers add to it;
 * - results do not depend on the number of threads, nor on whether they are replayed;
 * - NULL for an array that is needed is ENCORE_ERROR_USAGE, a shape that cannot be ENCORE_ERROR_CONFIGURATION.
 */
#ifndef ENCORE_C_KERNELS_H
#define ENCORE_C_KERNELS_H

#include <encore/c/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * result = alpha * op(first) * op(second) + beta * result + bias, where op transposes if its flag is not 0.
 * op(first) [rows, inner], op(second) [inner, columns], result [rows, columns]; bias [columns] of `type` or NULL.
 * `result_type`: `type`, or float32 beside bfloat16. With beta 0 the result is only written.
 */
ENCORE_API int encore_multiply(encore_stream* stream, encore_type type, encore_type result_type,
                               int transpose_first, const void* first, int transpose_second,
                               const void* second, void* result, int64_t rows, int64_t inner, int64_t columns,
                               float alpha, float beta, const void* bias);

/* output = first + second, [elements] each; output may be one of them. */
ENCORE_API int encore_add(encore_stream* stream, encore_type type, const void* first, const void* second,
                          void* output, int64_t elements);

/* values[i] = value. */
ENCORE_API int encore_fill(encore_stream* stream, encore_type type, void* values, int64_t elements,
                           double value);
/* values[i] = mean + deviation * a normal number that depends on (seed, segment, i) alone: a replay fills the same. */
ENCORE_API int encore_fill_normal(encore_stream* stream, encore_type type, void* values, int64_t elements,
                                  double mean, double deviation, uint64_t seed, uint32_t segment);
/* output[i] = input[i], between float32 and bfloat16, rounded to nearest even; they must not overlap. */
ENCORE_API int encore_convert(encore_stream* stream, encore_type input_type, const void* input,
                              encore_type output_type, void* output, int64_t elements);

/* gradient[c] (+)= sum over rows of output_gradient[., c]: of a bias. output_gradient [rows, columns]. */
ENCORE_API int encore_bias_backward(encore_stream* stream, encore_type type, encore_type gradient_type,
                                    const void* output_gradient, void* gradient, int64_t rows,
                                    int64_t columns, int accumulate, void* workspace);
/* Bytes of that workspace. Needs no device. */
ENCORE_API int encore_bias_workspace(encore_type type, int64_t rows, int64_t columns, size_t* bytes);

/* What an AdamW step depends on: float64 numbers in the device's memory, in this order, so that a replay reads new ones. */
enum {
  ENCORE_ADAMW_LEARNING_RATE = 0,
  ENCORE_ADAMW_WEIGHT_DECAY = 1,
  ENCORE_ADAMW_BETA1 = 2,
  ENCORE_ADAMW_BETA2 = 3,
  ENCORE_ADAMW_EPSILON = 4,
  ENCORE_ADAMW_CLIP = 5,           /* largest norm of all gradients; 0: any */
  ENCORE_ADAMW_STEP = 6,           /* 1 for the first */
  ENCORE_ADAMW_GRADIENT_SCALE = 7, /* by which gradients count, such as 1 / microbatches */
  ENCORE_ADAMW_SKIP_ABOVE =
      8,                   /* a norm above it, or one that is not finite, changes nothing; 0: no norm does */
  ENCORE_ADAMW_SCALARS = 9 /* how many they are */
};

/*
 * One step of decoupled weight decay as torch.optim.AdamW takes it. All arrays [elements], the first `decayed` of them
 * with weight decay; moments of `moment_type` (float32 or bfloat16; float64 beside float64); master NULL, or the
 * weights in the accumulator, of which `weights` are then the rounded copy. *norm (float64, device) becomes the norm of
 * the scaled gradients.
 */
ENCORE_API int encore_adamw(encore_stream* stream, encore_type type, encore_type gradient_type,
                            encore_type moment_type, const void* gradients, void* weights, void* master,
                            void* first_moment, void* second_moment, int64_t elements, int64_t decayed,
                            const double* scalars, double* norm, void* workspace);
/* Bytes of that workspace, for any number of elements. Needs no device. */
ENCORE_API int encore_adamw_workspace(size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif
