/* SPDX-License-Identifier: Apache-2.0 */
/* Single kernels through the C API, and what is said about arguments that cannot be. */
#include <math.h>

#include "memory.h"

static void adamw_takes_the_textbook_step(encore_stream* stream) {
  const double numbers[ENCORE_ADAMW_SCALARS] = {0.1, 0.01, 0.9, 0.99, 1e-8, 0, 1, 1, 0};
  const float start[2] = {1.0F, -2.0F}, slopes[2] = {0.5F, -0.25F};
  float *weights = floats(stream, "weights", 2), *gradients = floats(stream, "gradients", 2);
  float *first = floats(stream, "first", 2), *second = floats(stream, "second", 2), result[2];
  void *scalars = NULL, *workspace = NULL, *norm = NULL;
  double norm_value = 0;
  size_t bytes = 0;
  int i;
  GOOD(encore_adamw_workspace(&bytes));
  GOOD(encore_allocate(stream, bytes, "workspace", &workspace));
  GOOD(encore_allocate(stream, sizeof numbers, "scalars", &scalars));
  GOOD(encore_allocate(stream, sizeof(double), "norm", &norm));
  GOOD(encore_copy_to_device(stream, scalars, numbers, sizeof numbers));
  GOOD(encore_copy_to_device(stream, weights, start, sizeof start));
  GOOD(encore_copy_to_device(stream, gradients, slopes, sizeof slopes));
  GOOD(encore_clear(stream, first, sizeof start));
  GOOD(encore_clear(stream, second, sizeof start));
  GOOD(encore_adamw(stream, ENCORE_FLOAT32, ENCORE_FLOAT32, ENCORE_FLOAT32, gradients, weights, NULL, first,
                    second, 2, 2, scalars, norm, workspace));
  GOOD(encore_copy_to_host(stream, result, weights, sizeof result));
  GOOD(encore_copy_to_host(stream, &norm_value, norm, sizeof norm_value));
  /* After one step both corrected moments are those of the gradient alone: the update is its sign. */
  for (i = 0; i < 2; ++i)
    CHECK(fabs(result[i] - (start[i] * (1 - 0.1 * 0.01) - 0.1 * (slopes[i] > 0 ? 1 : -1))) < 1e-5);
  CHECK(fabs(norm_value - sqrt(0.5 * 0.5 + 0.25 * 0.25)) < 1e-6);
}

static void impossible_arguments_are_errors_in_words(encore_runtime* runtime, encore_stream* stream) {
  encore_stream* other = NULL;
  float* values = floats(stream, "values", 4);
  size_t bytes = 0;
  char small[8];
  size_t length = 0;
  BAD(encore_fill(NULL, ENCORE_FLOAT32, values, 4, 0), ENCORE_ERROR_USAGE, "'stream' is NULL");
  BAD(encore_fill(stream, ENCORE_FLOAT32, NULL, 4, 0), ENCORE_ERROR_USAGE, "'values' is NULL");
  BAD(encore_fill(stream, ENCORE_FLOAT32, values, -1, 0), ENCORE_ERROR_CONFIGURATION,
      "an extent of 'values' is negative");
  BAD(encore_fill(stream, ENCORE_INT32, values, 4, 0), ENCORE_ERROR_CONFIGURATION, "int32");
  BAD(encore_norm_workspace((encore_type)9, 1, 1, &bytes), ENCORE_ERROR_CONFIGURATION, "do not exist");
  BAD(encore_fill(stream, ENCORE_FLOAT32, values, INT64_MAX / 3, 0), ENCORE_ERROR_CONFIGURATION,
      "any memory");
  BAD(encore_rms_norm_forward(stream, ENCORE_FLOAT32, values, values, values, values, INT64_C(1) << 32,
                              INT64_C(1) << 32, 1e-5),
      ENCORE_ERROR_CONFIGURATION, "more bytes than any memory");
  BAD(encore_bias_workspace(ENCORE_FLOAT32, 1 << 20, INT64_C(1) << 60, &bytes), ENCORE_ERROR_CONFIGURATION,
      "more bytes than any memory");
  BAD(encore_norm_workspace(ENCORE_FLOAT32, 1 << 20, INT64_C(1) << 60, &bytes), ENCORE_ERROR_CONFIGURATION,
      "more bytes than any memory");
  BAD(encore_embedding_workspace(ENCORE_FLOAT32, INT64_C(1) << 40, INT64_C(1) << 30, &bytes),
      ENCORE_ERROR_CONFIGURATION, "more bytes than any memory");
  BAD(encore_embedding_workspace(ENCORE_FLOAT32, INT64_MAX, 1, &bytes), ENCORE_ERROR_CONFIGURATION,
      "any memory");
  BAD(encore_activation_forward(stream, ENCORE_FLOAT32, (encore_activation)9, values, values, 1, 1),
      ENCORE_ERROR_USAGE, "encore_activation");
  BAD(encore_stream_create(runtime, (encore_backend)9, NULL, &other), ENCORE_ERROR_USAGE, "encore_backend");
  BAD(encore_stream_create(runtime, ENCORE_SERIAL, values, &other), ENCORE_ERROR_USAGE, "'native'");
  if (!encore_has_backend(ENCORE_CUDA))
    BAD(encore_stream_create(runtime, ENCORE_CUDA, NULL, &other), ENCORE_ERROR_DEVICE, "no cuda backend");
  GOOD(encore_stream_description(stream, small, sizeof small, &length));
  CHECK(length > sizeof small && strlen(small) == sizeof small - 1);
  GOOD(encore_stream_destroy(NULL));
  GOOD(encore_graph_destroy(NULL));
  GOOD(encore_free(stream, NULL));
}

int main(int count, char** arguments) {
  encore_runtime* runtime = NULL;
  encore_stream* stream = NULL;
  GOOD(encore_runtime_create(2, &runtime));
  GOOD(encore_stream_create(runtime, backend_of(count, arguments), NULL, &stream));
  if (failures != 0) return report("kernels");
  adamw_takes_the_textbook_step(stream);
  impossible_arguments_are_errors_in_words(runtime, stream);
  GOOD(encore_stream_destroy(stream));
  GOOD(encore_runtime_destroy(runtime));
  return report("kernels");
}
