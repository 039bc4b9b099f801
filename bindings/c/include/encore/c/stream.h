/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_STREAM_H
#define ENCORE_C_STREAM_H

#include <encore/c/runtime.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of arrays. */
typedef enum encore_type {
  ENCORE_FLOAT64 = 0, /* of kernels on the serial backend only: the reference for others */
  ENCORE_FLOAT32 = 1,
  ENCORE_BFLOAT16 = 2, /* stored so; sums are formed in float32 */
  ENCORE_INT32 = 3
} encore_type;

/* An ordered queue of kernels on one device. */
typedef struct encore_stream encore_stream;

/*
 * `native`: on CUDA the caller's cudaStream_t, which must outlive the stream and its graphs and must not be the legacy
 * stream, or NULL for a stream of its own. On hosts NULL. ENCORE_ERROR_DEVICE when this build lacks the backend.
 */
ENCORE_API int encore_stream_create(encore_runtime* runtime, encore_backend backend, void* native,
                                    encore_stream** stream);
/* What the stream's graphs need of it lives on with them. ENCORE_ERROR_USAGE inside a recording. */
ENCORE_API int encore_stream_destroy(encore_stream* stream);

/* The cudaStream_t that kernels are queued on; NULL on hosts. */
ENCORE_API int encore_stream_native(const encore_stream* stream, void** native);
ENCORE_API int encore_stream_backend(const encore_stream* stream, encore_backend* backend);
/* One line about device and matrix library. Text as in configuration.h. */
ENCORE_API int encore_stream_description(const encore_stream* stream, char* text, size_t size,
                                         size_t* length);

/* Waits until everything queued has run. May not be captured. */
ENCORE_API int encore_stream_synchronize(encore_stream* stream);

/*
 * `bytes` of the device's memory, aligned to 256 bytes, contents undefined. `label` names it in errors. Belongs to the
 * stream; graphs recorded while it is there keep it alive. May not be captured.
 */
ENCORE_API int encore_allocate(encore_stream* stream, size_t bytes, const char* label, void** memory);
/* Of encore_allocate on the same stream, or NULL. Waits for the device. May not be captured. */
ENCORE_API int encore_free(encore_stream* stream, void* memory);

/* Queue a copy between host and device and wait for it. May not be captured: a replay would use a stale address. */
ENCORE_API int encore_copy_to_device(encore_stream* stream, void* device, const void* host, size_t bytes);
ENCORE_API int encore_copy_to_host(encore_stream* stream, void* host, const void* device, size_t bytes);
/* Queue a copy inside the device's memory, which must not overlap. May be captured. */
ENCORE_API int encore_copy(encore_stream* stream, void* destination, const void* source, size_t bytes);
/* Queue setting bytes to zero. May be captured. */
ENCORE_API int encore_clear(encore_stream* stream, void* memory, size_t bytes);

/* Kernels launched and graphs replayed since the stream was made. */
ENCORE_API int encore_stream_counters(const encore_stream* stream, uint64_t* launches, uint64_t* replays);

#ifdef __cplusplus
}
#endif

#endif
