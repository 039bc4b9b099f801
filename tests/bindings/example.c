/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small model, and records one kernel and replays it. */
#include <encore/encore.h>
#include <stdio.h>
#include <string.h>

/* Ends the program with the library's own sentence. */
static int check(int status) {
  if (status != ENCORE_OK) fprintf(stderr, "%s error: %s\n", encore_status_name(status), encore_last_error());
  return status;
}
#define TRY(call) \
  if (check(call) != ENCORE_OK) return 1

static int train(encore_runtime* runtime, const char* backend) {
  encore_configuration* configuration;
  encore_trainer* trainer;
  int32_t ids[64], labels[64];
  encore_step_result result = {.size = sizeof result};
  double first = 0;
  char set[64];
  TRY(encore_configuration_create(&configuration));
  TRY(encore_configuration_json(
      configuration,
      "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"hidden\": 32, \"heads\": 4,"
      " \"ffn\": 64, \"vocab\": 50, \"seq\": 32}, \"train\": {\"microbatch\": 2}}"));
  snprintf(set, sizeof set, "train.lr=0.01 backend=%s", backend);
  TRY(encore_configuration_set(configuration, set));
  TRY(encore_trainer_create(runtime, configuration, &trainer));
  TRY(encore_configuration_destroy(configuration));
  for (int i = 0; i < 64; ++i) {
    ids[i] = i % 32;
    labels[i] = ids[i] + 1; /* what comes next */
  }
  for (int step = 0; step < 20; ++step) {
    TRY(encore_trainer_set_batch(trainer, ids, labels, NULL));
    TRY(encore_trainer_step(trainer, 0.01, &result));
    if (step == 0) first = result.loss;
  }
  printf("loss %.3f, then %.3f; the last step replayed %d graph nodes\n", first, result.loss,
         (int)result.graph_nodes);
  TRY(encore_trainer_destroy(trainer));
  return !(result.loss < first / 2 && result.mode == ENCORE_REPLAY);
}

/* Called twice when it is recorded; launches the same kernels each time. */
static int double_it(encore_stream* stream, void* values) {
  return encore_add(stream, ENCORE_FLOAT32, values, values, values, 1000);
}

static int replay(encore_runtime* runtime, encore_backend backend) {
  encore_stream* stream;
  encore_graph* graph;
  void* values;
  float last;
  TRY(encore_stream_create(runtime, backend, NULL, &stream));
  TRY(encore_allocate(stream, 1000 * sizeof(float), "values", &values));
  TRY(encore_fill(stream, ENCORE_FLOAT32, values, 1000, 1.0));
  TRY(encore_graph_record(stream, "double it", double_it, values, &graph));
  for (int i = 0; i < 10; ++i) TRY(encore_graph_replay(graph));
  TRY(encore_copy_to_host(stream, &last, (float*)values + 999, sizeof last));
  printf("ten replays made 1 into %.0f\n", last);
  TRY(encore_graph_destroy(graph));
  TRY(encore_stream_destroy(stream));
  return last != 1024.0F;
}

int main(int count, char** arguments) {
  const char* name = count > 1 ? arguments[1] : "openmp";
  const encore_backend backend = strcmp(name, "cuda") == 0     ? ENCORE_CUDA
                                 : strcmp(name, "serial") == 0 ? ENCORE_SERIAL
                                                               : ENCORE_OPENMP;
  encore_runtime* runtime;
  TRY(encore_runtime_create(0, &runtime));
  if (train(runtime, name) != 0 || replay(runtime, backend) != 0) return 1;
  TRY(encore_runtime_destroy(runtime));
  return 0;
}
