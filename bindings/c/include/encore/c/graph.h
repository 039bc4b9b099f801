/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_GRAPH_H
#define ENCORE_C_GRAPH_H

#include <encore/c/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels recorded once and replayed: a CUDA graph, or on a host a list that runs in one parallel region. */
typedef struct encore_graph encore_graph;

/*
 * Launches kernels on the stream by functions that may be captured, the same ones whenever it is called. Returns 0, or
 * any other number to give up: an encore_status of a call that failed keeps that call's error.
 */
typedef int (*encore_record_function)(encore_stream* stream, void* user);

/*
 * Calls `function` twice on this thread, to load what it launches and to record it. No kernel runs, so no array
 * changes. What the kernels refer to must outlive the graph, but for memory of encore_allocate, which the graph keeps.
 * `name` stands in errors. May not be captured itself.
 */
ENCORE_API int encore_graph_record(encore_stream* stream, const char* name, encore_record_function function,
                                   void* user, encore_graph** graph);
/* ENCORE_ERROR_USAGE while the graph is replayed or validated. NULL is nothing. */
ENCORE_API int encore_graph_destroy(encore_graph* graph);

/* Queues all recorded kernels once, on the stream of the recording. Hosts have run them when it returns. */
ENCORE_API int encore_graph_replay(encore_graph* graph);
/* Graph nodes (CUDA) or recorded kernels (hosts). */
ENCORE_API int encore_graph_nodes(const encore_graph* graph, size_t* nodes);
/* The kernels' labels in the order of recording, a line each. Text as in configuration.h. */
ENCORE_API int encore_graph_labels(const encore_graph* graph, char* text, size_t size, size_t* length);

/* An array in the device's memory. */
typedef struct encore_array {
  const char* name; /* for the error */
  void* memory;
  size_t bytes;
} encore_array;

/*
 * Calls `function` to run eagerly what it recorded, then replays from the same contents of `arrays`, and compares every
 * bit of them: ENCORE_ERROR_VALIDATION names the first array that differs and the byte. `arrays` are all that the
 * kernels write. They are left as the replay left them: as if the graph had been replayed once; or as they were where
 * `function` gave up. May not be captured.
 */
ENCORE_API int encore_graph_validate(encore_graph* graph, encore_record_function function, void* user,
                                     const encore_array* arrays, size_t count);

/* Memory that a node reads or writes. */
typedef struct encore_access {
  const void* memory;
  size_t bytes;
  int writes;
} encore_access;

/*
 * A caller's own work as a node. On CUDA it queues kernels on `native`, a cudaStream_t, each time it is called; on hosts
 * `native` is NULL and it computes. Other than 0 is a failure.
 */
typedef int (*encore_node_function)(void* native, void* user);

/*
 * Runs `function`, or records it. On CUDA it is called at once, while recording too (what it queues is captured then);
 * each of its kernels must have run once before. On hosts it is called by each replay, on any thread and with `user`,
 * which must outlive the graph. `accesses` are all that it touches: on them depends what may run beside it; with count 0
 * it waits for everything before it, and everything after waits for it. More than eight count as none. A copy of each
 * text that was a `label` stays until the stream and its graphs end: use few different ones.
 * `function` must not call this library on its stream or that stream's graphs: hosts hold the stream while it runs.
 * A node that fails in a replay makes that fail with ENCORE_ERROR_DEVICE, and what the other nodes did is undefined.
 * May be captured.
 */
ENCORE_API int encore_launch(encore_stream* stream, const char* label, encore_node_function function,
                             void* user, const encore_access* accesses, size_t count);

#ifdef __cplusplus
}
#endif

#endif
