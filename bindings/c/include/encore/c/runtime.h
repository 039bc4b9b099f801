/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_RUNTIME_H
#define ENCORE_C_RUNTIME_H

#include <encore/c/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum encore_backend { ENCORE_SERIAL = 0, ENCORE_OPENMP = 1, ENCORE_CUDA = 2 } encore_backend;

/* Kokkos, and the list of everything that lives on it. */
typedef struct encore_runtime encore_runtime;

/*
 * Initialises Kokkos, or joins one that the program has initialised already and goes on to own. `threads`: host
 * threads, 0 as OpenMP decides; without effect where it joins. Kokkos can be initialised once in a process:
 * ENCORE_ERROR_USAGE after it was finalised. ENCORE_ERROR_DEVICE when this build includes CUDA and no GPU can be used.
 */
ENCORE_API int encore_runtime_create(int threads, encore_runtime** runtime);

/*
 * Finalises Kokkos, if the runtime initialised it. ENCORE_ERROR_USAGE, with their names, while trainers, streams or
 * graphs are alive: nothing is ended then. Where the program finalises the Kokkos that a runtime joined, memory and
 * graphs are given back just before; their handles are then good for _destroy only.
 */
ENCORE_API int encore_runtime_destroy(encore_runtime* runtime);

/* How many trainers, streams and graphs are alive. */
ENCORE_API int encore_runtime_objects(const encore_runtime* runtime, size_t* count);

/* The number of the GPU that Kokkos uses, as CUDA counts them; -1 in a build without CUDA. */
ENCORE_API int encore_runtime_device(const encore_runtime* runtime, int* device);

/* 1 when this build includes the backend, else 0. Needs no runtime. */
ENCORE_API int encore_has_backend(encore_backend backend);

#ifdef __cplusplus
}
#endif

#endif
