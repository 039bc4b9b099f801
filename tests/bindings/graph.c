/* SPDX-License-Identifier: Apache-2.0 */
/* The graph layer through the C API: recording, replaying, memory, a caller's own nodes, and what is refused. */
#include <math.h>
#include <stdlib.h>

#include "memory.h"

enum { rows = 16, inner = 24, columns = 8 };

/* output = rms_norm(gelu(input * weight)) and then the loss of it, whose gradient stays in its place. */
struct chain {
  encore_backend backend;
  float *input, *weight, *product, *active, *scale, *output, *inverse_rms, *row_losses;
  int32_t* labels;
  double *count, *loss;
  int calls;
  int give_up;
};

static int queue_chain(encore_stream* stream, void* user) {
  struct chain* chain = user;
  int status;
  ++chain->calls;
  if (chain->give_up != 0) return chain->give_up;
  status = encore_multiply(stream, ENCORE_FLOAT32, ENCORE_FLOAT32, 0, chain->input, 0, chain->weight,
                           chain->product, rows, inner, columns, 1.0F, 0.0F, NULL);
  if (status == ENCORE_OK)
    status = encore_activation_forward(stream, ENCORE_FLOAT32, ENCORE_GELU_TANH, chain->product,
                                       chain->active, rows, columns);
  if (status == ENCORE_OK)
    status = encore_rms_norm_forward(stream, ENCORE_FLOAT32, chain->active, chain->scale, chain->output,
                                     chain->inverse_rms, rows, columns, 1e-5);
  if (status == ENCORE_OK)
    status = encore_cross_entropy(stream, ENCORE_FLOAT32, chain->output, chain->labels, chain->row_losses,
                                  chain->count, chain->loss, rows, columns, 1);
  return status;
}

static void make_chain(encore_stream* stream, struct chain* chain) {
  int32_t labels[rows];
  void* memory = NULL;
  int i;
  memset(chain, 0, sizeof *chain);
  chain->input = floats(stream, "input", rows * inner);
  chain->weight = floats(stream, "weight", inner * columns);
  chain->product = floats(stream, "product", rows * columns);
  chain->active = floats(stream, "active", rows * columns);
  chain->scale = floats(stream, "scale", columns);
  chain->output = floats(stream, "output", rows * columns);
  chain->inverse_rms = floats(stream, "inverse_rms", rows);
  chain->row_losses = floats(stream, "row_losses", rows);
  GOOD(encore_allocate(stream, sizeof labels, "labels", &memory));
  chain->labels = memory;
  GOOD(encore_allocate(stream, 2 * sizeof(double), "loss", &memory));
  chain->count = memory;
  chain->loss = chain->count + 1;
  for (i = 0; i < rows; ++i) labels[i] = i == 3 ? -1 : (i * 5) % columns;
  GOOD(encore_copy_to_device(stream, chain->labels, labels, sizeof labels));
  GOOD(encore_fill_normal(stream, ENCORE_FLOAT32, chain->input, rows * inner, 0, 1, 7, 1));
  GOOD(encore_fill_normal(stream, ENCORE_FLOAT32, chain->weight, inner * columns, 0, 0.2, 7, 2));
  GOOD(encore_fill(stream, ENCORE_FLOAT32, chain->scale, columns, 1.0));
  GOOD(encore_stream_synchronize(stream));
}

static double loss_of(encore_stream* stream, const struct chain* chain) {
  double loss = -1;
  GOOD(encore_copy_to_host(stream, &loss, chain->loss, sizeof loss));
  return loss;
}

/* The same in float64 on the host, from what is in the device's memory. */
static double reference_loss(encore_stream* stream, const struct chain* chain) {
  static float input[rows * inner], weight[inner * columns];
  double loss = 0;
  int i, j, k, counted = 0;
  GOOD(encore_copy_to_host(stream, input, chain->input, sizeof input));
  GOOD(encore_copy_to_host(stream, weight, chain->weight, sizeof weight));
  for (i = 0; i < rows; ++i) {
    double y[columns], squares = 0, sum = 0;
    for (j = 0; j < columns; ++j) {
      double x = 0;
      for (k = 0; k < inner; ++k) x += (double)input[i * inner + k] * weight[k * columns + j];
      y[j] = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
      squares += y[j] * y[j] / columns;
    }
    if (i == 3) continue;
    for (j = 0; j < columns; ++j) sum += exp(y[j] / sqrt(squares + 1e-5));
    loss += log(sum) - y[(i * 5) % columns] / sqrt(squares + 1e-5);
    ++counted;
  }
  return loss / counted;
}

static void a_recorded_chain_runs_only_when_replayed_and_gives_the_eager_bits(encore_stream* stream) {
  struct chain chain;
  encore_graph* graph = NULL;
  encore_array arrays[3];
  char labels[256];
  uint64_t launches = 0, after = 0, replays = 0;
  size_t nodes = 0, length = 0;
  double eager;
  make_chain(stream, &chain);

  GOOD(queue_chain(stream, &chain));
  eager = loss_of(stream, &chain);
  CHECK(fabs(eager - reference_loss(stream, &chain)) < 1e-5);

  GOOD(encore_clear(stream, chain.loss, sizeof(double)));
  chain.calls = 0;
  GOOD(encore_graph_record(stream, "chain", queue_chain, &chain, &graph));
  CHECK(chain.calls == 2);
  CHECK(loss_of(stream, &chain) == 0.0);
  GOOD(encore_graph_nodes(graph, &nodes));
  CHECK(nodes >= 6);
  GOOD(encore_graph_labels(graph, labels, sizeof labels, &length));
  CHECK(strstr(labels, "encore_multiply\n") == labels);
  CHECK(length < sizeof labels && strlen(labels) == length);

  GOOD(encore_stream_counters(stream, &launches, NULL));
  GOOD(encore_graph_replay(graph));
  CHECK(loss_of(stream, &chain) == eager);
  GOOD(encore_stream_counters(stream, &after, &replays));
  CHECK(after == launches);
  CHECK(replays == 1);

  arrays[0].name = "output";
  arrays[0].memory = chain.output;
  arrays[0].bytes = rows * columns * sizeof(float);
  arrays[1].name = "product";
  arrays[1].memory = chain.product;
  arrays[1].bytes = rows * columns * sizeof(float);
  arrays[2].name = "loss";
  arrays[2].memory = chain.loss;
  arrays[2].bytes = sizeof(double);
  GOOD(encore_graph_validate(graph, queue_chain, &chain, arrays, 3));

  /* New contents under the same addresses are what a replay computes with. */
  GOOD(encore_fill_normal(stream, ENCORE_FLOAT32, chain.input, rows * inner, 0, 1, 8, 1));
  GOOD(encore_graph_replay(graph));
  CHECK(loss_of(stream, &chain) != eager);
  CHECK(fabs(loss_of(stream, &chain) - reference_loss(stream, &chain)) < 1e-5);
  GOOD(encore_graph_destroy(graph));
}

static int queue_other(encore_stream* stream, void* user) {
  struct chain* chain = user;
  return encore_fill(stream, ENCORE_FLOAT32, chain->product, rows * columns, chain->calls++ == 0 ? 1.0 : 2.0);
}

static void validation_names_the_array_that_differs(encore_stream* stream) {
  struct chain chain;
  encore_graph* graph = NULL;
  encore_array array;
  make_chain(stream, &chain);
  GOOD(encore_graph_record(stream, "fickle", queue_other, &chain, &graph));
  array.name = "product";
  array.memory = chain.product;
  array.bytes = rows * columns * sizeof(float);
  GOOD(encore_graph_validate(graph, queue_other, &chain, &array, 1)); /* both fill 2 */
  chain.calls = 0;                                                    /* eagerly 1 from now on */
  BAD(encore_graph_validate(graph, queue_other, &chain, &array, 1), ENCORE_ERROR_VALIDATION, "'product'");
  GOOD(encore_graph_destroy(graph));
}

static int fill_and_give_up(encore_stream* stream, void* user) {
  struct chain* chain = user;
  const int status = encore_fill(stream, ENCORE_FLOAT32, chain->product, rows * columns, 9.0);
  return status == ENCORE_OK ? chain->give_up : status;
}

static void validation_that_cannot_be_done_leaves_the_arrays_as_they_were(encore_stream* stream) {
  struct chain chain;
  encore_graph* graph = NULL;
  encore_array array;
  float first = 0;
  make_chain(stream, &chain);
  GOOD(encore_graph_record(stream, "fill", fill_and_give_up, &chain, &graph));
  GOOD(encore_fill(stream, ENCORE_FLOAT32, chain.product, rows * columns, 4.0));
  chain.give_up = 77;
  array.name = "product";
  array.memory = chain.product;
  array.bytes = rows * columns * sizeof(float);
  BAD(encore_graph_validate(graph, fill_and_give_up, &chain, &array, 1), ENCORE_ERROR_CAPTURE, "with 77");
  GOOD(encore_copy_to_host(stream, &first, chain.product, sizeof first));
  CHECK(first == 4.0F);
  chain.give_up = 0;
  array.memory = NULL;
  BAD(encore_graph_validate(graph, fill_and_give_up, &chain, &array, 1), ENCORE_ERROR_USAGE,
      "'arrays[0].memory' is NULL");
  array.bytes = 0;
  GOOD(encore_graph_validate(graph, fill_and_give_up, &chain, &array, 1));
  GOOD(encore_graph_destroy(graph));
}

static void a_function_that_gives_up_leaves_the_stream_as_it_was(encore_stream* stream) {
  struct chain chain;
  encore_graph* graph = NULL;
  double before;
  make_chain(stream, &chain);
  GOOD(queue_chain(stream, &chain));
  before = loss_of(stream, &chain);
  chain.give_up = 77;
  BAD(encore_graph_record(stream, "given up", queue_chain, &chain, &graph), ENCORE_ERROR_CAPTURE,
      "gave up with 77");
  chain.give_up = 0;
  chain.product = NULL;
  BAD(encore_graph_record(stream, "wrong", queue_chain, &chain, &graph), ENCORE_ERROR_USAGE,
      "'result' is NULL");
  CHECK(graph == NULL);
  CHECK(loss_of(stream, &chain) == before);
  chain.product = floats(stream, "product", rows * columns);
  GOOD(encore_graph_record(stream, "right", queue_chain, &chain, &graph));
  GOOD(encore_graph_replay(graph));
  CHECK(loss_of(stream, &chain) == before);
  GOOD(encore_graph_destroy(graph));
}

static int synchronize_inside(encore_stream* stream, void* user) {
  (void)user;
  return encore_stream_synchronize(stream);
}
static int allocate_inside(encore_stream* stream, void* user) {
  return encore_allocate(stream, 16, "inside", user);
}
static int record_inside(encore_stream* stream, void* user) {
  return encore_graph_record(stream, "inner", synchronize_inside, NULL, user);
}
static int replay_inside(encore_stream* stream, void* user) {
  (void)stream;
  return encore_graph_replay(user);
}
static int destroy_inside(encore_stream* stream, void* user) {
  (void)user;
  return encore_stream_destroy(stream);
}
static int fill_inside(encore_stream* stream, void* user) {
  return encore_fill(stream, ENCORE_FLOAT32, user, 4, 3.0);
}

static void what_a_recording_may_not_hold_is_refused(encore_stream* stream) {
  encore_graph *graph = NULL, *good = NULL;
  void* memory = NULL;
  float* values = floats(stream, "values", 4);
  BAD(encore_graph_record(stream, "a", synchronize_inside, NULL, &graph), ENCORE_ERROR_CAPTURE,
      "inside a recording");
  BAD(encore_graph_record(stream, "b", allocate_inside, &memory, &graph), ENCORE_ERROR_CAPTURE,
      "encore_allocate");
  BAD(encore_graph_record(stream, "c", record_inside, &graph, &graph), ENCORE_ERROR_CAPTURE,
      "encore_graph_record");
  BAD(encore_graph_record(stream, "d", destroy_inside, NULL, &graph), ENCORE_ERROR_USAGE,
      "encore_stream_destroy");
  GOOD(encore_graph_record(stream, "good", fill_inside, values, &good));
  BAD(encore_graph_record(stream, "e", replay_inside, good, &graph), ENCORE_ERROR_CAPTURE,
      "encore_graph_replay");
  CHECK(graph == NULL && memory == NULL);
  GOOD(encore_graph_replay(good));
  GOOD(encore_graph_destroy(good));
}

static void a_graph_keeps_memory_and_stream_alive(encore_runtime* runtime, encore_backend backend) {
  encore_stream* stream = NULL;
  encore_graph* graph = NULL;
  size_t objects = 0;
  float* values;
  GOOD(encore_stream_create(runtime, backend, NULL, &stream));
  values = floats(stream, "values", 4);
  GOOD(encore_graph_record(stream, "fill", fill_inside, values, &graph));
  GOOD(encore_free(stream, values));
  BAD(encore_free(stream, values), ENCORE_ERROR_USAGE, "freed already");
  GOOD(encore_stream_destroy(stream));
  GOOD(encore_graph_replay(graph)); /* a sanitizer would tell */
  BAD(encore_runtime_destroy(runtime), ENCORE_ERROR_USAGE, "graph 'fill'");
  GOOD(encore_runtime_objects(runtime, &objects));
  CHECK(objects >= 2);
  GOOD(encore_graph_destroy(graph));
}

/* A caller's node: doubles each value on the host. */
struct node {
  float* values;
  int status;
  int calls;
};
static int double_values(void* native, void* user) {
  struct node* node = user;
  int i;
  CHECK(native == NULL);
  ++node->calls;
  for (i = 0; i < 4; ++i) node->values[i] *= 2;
  return node->status;
}
static int queue_node(encore_stream* stream, void* user) {
  struct node* node = user;
  encore_access access;
  int status = encore_fill(stream, ENCORE_FLOAT32, node->values, 4, 3.0);
  access.memory = node->values;
  access.bytes = 4 * sizeof(float);
  access.writes = 1;
  if (status == ENCORE_OK) status = encore_launch(stream, "double_values", double_values, node, &access, 1);
  if (status == ENCORE_OK)
    status = encore_add(stream, ENCORE_FLOAT32, node->values, node->values, node->values, 4);
  return status;
}

static void a_callers_function_is_a_node_of_the_graph(encore_stream* stream) {
  struct node node;
  encore_graph* graph = NULL;
  float values[4] = {1, 1, 1, 1};
  char labels[128];
  memset(&node, 0, sizeof node);
  node.values = values; /* on a host its memory is the device's */
  GOOD(encore_graph_record(stream, "node", queue_node, &node, &graph));
  CHECK(node.calls == 0 && values[0] == 1);
  GOOD(encore_graph_labels(graph, labels, sizeof labels, NULL));
  CHECK(strstr(labels, "double_values\n") != NULL);
  GOOD(encore_graph_replay(graph));
  GOOD(encore_graph_replay(graph));
  CHECK(node.calls == 2 && values[0] == 12 && values[3] == 12);
  node.status = 5;
  BAD(encore_graph_replay(graph), ENCORE_ERROR_DEVICE, "'double_values' failed with 5");
  node.status = 0;
  GOOD(encore_graph_replay(graph));
  GOOD(encore_graph_destroy(graph));
}

struct ending {
  encore_stream* stream;
  encore_graph* graph;
  int statuses[2];
};
static int end_inside(void* native, void* user) {
  struct ending* ending = user;
  (void)native;
  ending->statuses[0] = ending->graph == NULL ? ENCORE_OK : encore_graph_destroy(ending->graph);
  ending->statuses[1] = ending->graph == NULL ? encore_stream_destroy(ending->stream) : ENCORE_OK;
  return 0;
}
static int queue_ending(encore_stream* stream, void* user) {
  return encore_launch(stream, "end_inside", end_inside, user, NULL, 0);
}
static int destroy_graph_inside(encore_stream* stream, void* user) {
  struct ending* ending = user;
  (void)stream;
  return encore_graph_destroy(ending->graph);
}

static void a_node_cannot_end_what_runs_it(encore_stream* stream) {
  struct ending ending;
  encore_graph* graph = NULL;
  memset(&ending, 0, sizeof ending);
  ending.stream = stream;
  GOOD(queue_ending(stream, &ending)); /* no graph yet: it tries to end the stream */
  CHECK(ending.statuses[1] == ENCORE_ERROR_USAGE);
  GOOD(encore_graph_record(stream, "ending", queue_ending, &ending, &graph));
  ending.graph = graph;
  GOOD(encore_graph_replay(graph));
  CHECK(ending.statuses[0] == ENCORE_ERROR_USAGE);
  BAD(encore_graph_validate(graph, destroy_graph_inside, &ending, NULL, 0), ENCORE_ERROR_USAGE,
      "encore_graph_destroy while");
  GOOD(encore_graph_replay(graph));
  GOOD(encore_graph_destroy(graph));
}

int main(int count, char** arguments) {
  const encore_backend backend = backend_of(count, arguments);
  encore_runtime* runtime = NULL;
  encore_stream* stream = NULL;
  CHECK(encore_last_error_status() == ENCORE_OK && strcmp(encore_last_error(), "") == 0);
  CHECK(strlen(encore_version()) >= 5 && strlen(encore_git_revision()) > 0);
  GOOD(encore_runtime_create(2, &runtime));
  GOOD(encore_stream_create(runtime, backend, NULL, &stream));
  if (failures != 0) return report("graph");
  a_recorded_chain_runs_only_when_replayed_and_gives_the_eager_bits(stream);
  validation_names_the_array_that_differs(stream);
  validation_that_cannot_be_done_leaves_the_arrays_as_they_were(stream);
  a_function_that_gives_up_leaves_the_stream_as_it_was(stream);
  what_a_recording_may_not_hold_is_refused(stream);
  a_graph_keeps_memory_and_stream_alive(runtime, backend);
  if (backend != ENCORE_CUDA) {
    a_callers_function_is_a_node_of_the_graph(stream);
    a_node_cannot_end_what_runs_it(stream);
  }
  BAD(encore_runtime_destroy(runtime), ENCORE_ERROR_USAGE, "stream on");
  GOOD(encore_stream_destroy(stream));
  GOOD(encore_runtime_destroy(runtime));
  BAD(encore_runtime_create(0, &runtime), ENCORE_ERROR_USAGE, "finalised");
  return report("graph");
}
