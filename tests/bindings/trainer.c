/* SPDX-License-Identifier: Apache-2.0 */
/* Training through the C API: configuration, steps, evaluation, parameters, checkpoints and errors. */
#include <math.h>
#include <stdlib.h>

#include "check.h"

static const char tiny[] =
    "{\"model\": {\"family\": \"llama\", \"layers\": 2, \"hidden\": 32, \"heads\": 4, \"kv_heads\": 2,"
    " \"ffn\": 48, \"vocab\": 40, \"seq\": 16},"
    " \"train\": {\"microbatch\": 2, \"microbatches\": 2, \"steps\": 10, \"lr\": 0.01}, \"seed\": 3}";
enum { batch = 2 * 2 * 16, vocabulary = 40 };

static encore_configuration* configure(encore_backend backend, const char* more) {
  static const char* const backends[] = {"backend=serial", "backend=openmp", "backend=cuda"};
  encore_configuration* configuration = NULL;
  GOOD(encore_configuration_create(&configuration));
  GOOD(encore_configuration_json(configuration, tiny));
  GOOD(encore_configuration_set(configuration, backends[backend]));
  GOOD(encore_configuration_set(configuration, more));
  return configuration;
}

static encore_trainer* make(encore_runtime* runtime, encore_backend backend, const char* more) {
  encore_configuration* configuration = configure(backend, more);
  encore_trainer* trainer = NULL;
  GOOD(encore_trainer_create(runtime, configuration, &trainer));
  GOOD(encore_configuration_destroy(configuration));
  return trainer;
}

static void fill_batch(int step, int32_t* ids, int32_t* labels) {
  int i;
  for (i = 0; i < batch; ++i) {
    ids[i] = (i * 7 + step * 3) % vocabulary;
    labels[i] = i % 16 == 15 ? -1 : (ids[i] + 7) % vocabulary;
  }
}

static encore_step_result step(encore_trainer* trainer, int eagerly) {
  int32_t ids[batch], labels[batch];
  encore_step_result result;
  double rate = 0;
  int64_t done = 0;
  memset(&result, 0, sizeof result);
  result.size = sizeof result;
  GOOD(encore_trainer_steps_done(trainer, &done));
  fill_batch((int)done, ids, labels);
  GOOD(encore_trainer_set_batch(trainer, ids, labels, NULL));
  GOOD(encore_trainer_learning_rate(trainer, &rate));
  CHECK(rate > 0);
  if (eagerly) {
    GOOD(encore_trainer_step_eagerly(trainer, rate, &result));
  } else {
    GOOD(encore_trainer_step(trainer, rate, &result));
  }
  return result;
}

static void replayed_steps_give_the_bits_of_eager_ones_and_learn(encore_runtime* runtime,
                                                                 encore_backend backend) {
  encore_trainer* replayed = make(runtime, backend, "graph.warmup_steps=1");
  encore_trainer* eager = make(runtime, backend, "graph.impl=none");
  encore_step_result first, left, right;
  char text[64];
  size_t length = 0;
  int i;
  first = step(replayed, 0);
  CHECK(first.mode == ENCORE_EAGER && first.step == 1 && first.tokens == batch);
  CHECK(fabs(first.loss - log(vocabulary)) < 0.5);
  CHECK(step(eager, 0).loss == first.loss);
  for (i = 2; i <= 10; ++i) {
    left = step(replayed, 0);
    right = step(eager, 0);
    CHECK(left.loss == right.loss && left.gradient_norm == right.gradient_norm);
    CHECK(left.mode == (i == 2 ? ENCORE_CAPTURE : ENCORE_REPLAY) && left.graph_nodes > 0 &&
          left.fallbacks == 0);
    CHECK(right.mode == ENCORE_EAGER && right.eager_launches > 0);
  }
  CHECK(left.loss < first.loss - 0.5);
  CHECK(step(replayed, 1).loss == step(eager, 1).loss);
  GOOD(encore_trainer_refusal(replayed, text, sizeof text, &length));
  CHECK(length == 0 && text[0] == '\0');
  GOOD(encore_trainer_reset_graphs(replayed));
  GOOD(encore_trainer_end_warmup(replayed));
  CHECK(step(replayed, 0).mode == ENCORE_CAPTURE);
  GOOD(encore_trainer_destroy(replayed));
  GOOD(encore_trainer_destroy(eager));
}

static void parameters_are_read_and_written_by_both_names(encore_runtime* runtime, encore_backend backend) {
  static const char* const own = "layer.1/attn/norm.weight";
  static const char* const published = "model.layers.1.input_layernorm.weight";
  encore_trainer* trainer = make(runtime, backend, "train.precision=bf16 train.master_weights=true");
  encore_parameter parameter;
  const char* name = NULL;
  float values[32], read[32];
  size_t count = 0, i;
  memset(&parameter, 0, sizeof parameter);
  parameter.size = sizeof parameter;
  GOOD(encore_trainer_parameter_count(trainer, &count));
  CHECK(count > 8);
  for (i = 0; i < count; ++i) {
    GOOD(encore_trainer_parameter_name(trainer, i, &name));
    GOOD(encore_trainer_parameter(trainer, ENCORE_WEIGHTS, name, &parameter));
    CHECK(strcmp(parameter.name, name) == 0 && parameter.memory != NULL && parameter.type == ENCORE_BFLOAT16);
    CHECK(parameter.shape[0] * parameter.shape[1] * parameter.shape[2] * parameter.shape[3] ==
          parameter.elements);
  }
  BAD(encore_trainer_parameter_name(trainer, count, &name), ENCORE_ERROR_USAGE, "'index'");
  for (i = 0; i < 32; ++i) values[i] = 1.0F + (float)i / 64;
  GOOD(encore_trainer_write(trainer, ENCORE_WEIGHTS, own, values, 32));
  GOOD(encore_trainer_read(trainer, ENCORE_WEIGHTS, published, read, 32));
  CHECK(memcmp(values, read, sizeof read) == 0);
  GOOD(encore_trainer_read(trainer, ENCORE_MASTER, own, read, 32));
  CHECK(memcmp(values, read, sizeof read) == 0);
  GOOD(encore_trainer_parameter(trainer, ENCORE_MASTER, published, &parameter));
  CHECK(parameter.type == ENCORE_FLOAT32 && parameter.dimensions == 1 && parameter.shape[0] == 32);
  GOOD(encore_trainer_write(trainer, ENCORE_FIRST_MOMENT, own, values, 32));
  GOOD(encore_trainer_read(trainer, ENCORE_FIRST_MOMENT, own, read, 32));
  CHECK(memcmp(values, read, sizeof read) == 0);
  BAD(encore_trainer_read(trainer, ENCORE_WEIGHTS, own, read, 31), ENCORE_ERROR_USAGE, "has 32 elements");
  BAD(encore_trainer_read(trainer, ENCORE_WEIGHTS, "layer.1/attn/norm.wait", read, 32), ENCORE_ERROR_USAGE,
      own);
  BAD(encore_trainer_read(trainer, (encore_parameter_array)9, own, read, 32), ENCORE_ERROR_USAGE, "array 9");
  GOOD(encore_trainer_destroy(trainer));

  trainer = make(runtime, backend, "");
  BAD(encore_trainer_read(trainer, ENCORE_MASTER, own, read, 32), ENCORE_ERROR_USAGE, "train.master_weights");
  step(trainer, 0);
  GOOD(encore_trainer_read(trainer, ENCORE_GRADIENTS, own, read, 32));
  for (i = 0; i < 32 && read[i] == 0; ++i) continue;
  CHECK(i < 32);
  GOOD(encore_trainer_destroy(trainer));
}

static void a_checkpoint_resumes_bit_by_bit(encore_runtime* runtime, encore_backend backend,
                                            const char* folder) {
  encore_trainer *straight = make(runtime, backend, ""), *resumed = make(runtime, backend, "seed=99");
  encore_configuration* from_file = NULL;
  char path[1024], text[4096];
  int resumes = 0;
  size_t length = 0;
  snprintf(path, sizeof path, "%s/c_trainer.safetensors", folder);
  step(straight, 0);
  step(straight, 0);
  GOOD(encore_trainer_save(straight, path));
  GOOD(encore_trainer_load(resumed, path, &resumes));
  CHECK(resumes == 1);
  CHECK(step(straight, 0).loss == step(resumed, 0).loss);
  CHECK(step(straight, 0).loss == step(resumed, 0).loss);
  BAD(encore_trainer_load(resumed, "no/such/file.safetensors", NULL), ENCORE_ERROR_INPUT_FILE,
      "no/such/file");
  BAD(encore_trainer_save(resumed, "/no/such/folder/file.safetensors"), ENCORE_ERROR_OUTPUT_FILE,
      "/no/such/folder");
  GOOD(encore_trainer_destroy(straight));
  GOOD(encore_trainer_destroy(resumed));

  GOOD(encore_configuration_create(&from_file));
  GOOD(encore_configuration_checkpoint(from_file, path));
  GOOD(encore_configuration_text(from_file, text, sizeof text, &length));
  CHECK(strstr(text, "\"hidden\": 32") != NULL && length < sizeof text);
  GOOD(encore_configuration_destroy(from_file));
  remove(path);
}

static void evaluation_changes_nothing_and_gives_logits(encore_runtime* runtime, encore_backend backend) {
  encore_trainer *evaluated = make(runtime, backend, ""), *other = make(runtime, backend, "");
  int32_t ids[batch], labels[batch];
  static float logits[2 * 16 * vocabulary];
  double loss = 0, expected = 0;
  int i, j, counted = 0;
  fill_batch(0, ids, labels);
  GOOD(encore_trainer_evaluate(evaluated, ids, labels, 2, &loss));
  GOOD(encore_trainer_logits(evaluated, logits, 2 * 16 * vocabulary));
  for (i = 0; i < 2 * 16; ++i) {
    double sum = 0;
    if (labels[i] < 0) continue;
    for (j = 0; j < vocabulary; ++j) sum += exp((double)logits[i * vocabulary + j]);
    expected += log(sum) - (double)logits[i * vocabulary + labels[i]];
    ++counted;
  }
  CHECK(fabs(loss - expected / counted) < 1e-5);
  CHECK(step(evaluated, 0).loss == step(other, 0).loss);
  CHECK(step(evaluated, 0).loss == step(other, 0).loss);
  BAD(encore_trainer_logits(evaluated, logits, 1), ENCORE_ERROR_USAGE, "has 1280 logits");
  BAD(encore_trainer_evaluate(evaluated, ids, labels, 3, &loss), ENCORE_ERROR_USAGE,
      "train.microbatch, which is 2");
  GOOD(encore_trainer_destroy(evaluated));
  GOOD(encore_trainer_destroy(other));
}

static void texts_tell_what_was_planned(encore_runtime* runtime, encore_backend backend) {
  encore_trainer* trainer = make(runtime, backend, "");
  encore_configuration* configuration = configure(backend, "train.lr=0.5 train.steps=7");
  uint64_t forecast = 0;
  size_t length = 0;
  char* text;
  GOOD(encore_trainer_plan(trainer, NULL, 0, &length));
  CHECK(length > 100);
  text = malloc(length + 1);
  GOOD(encore_trainer_plan(trainer, text, length + 1, NULL));
  CHECK(strlen(text) == length && strstr(text, "layer.0/attn/forward") != NULL);
  free(text);
  GOOD(encore_trainer_configuration(trainer, NULL, 0, &length));
  CHECK(length > 100);
  GOOD(encore_configuration_text(configuration, NULL, 0, &length));
  text = malloc(length + 1);
  GOOD(encore_configuration_text(configuration, text, length + 1, NULL));
  CHECK(strstr(text, "\"steps\": 7") != NULL);
  free(text);
  GOOD(encore_forecast_memory(runtime, configuration, &forecast));
  CHECK(forecast > 100000);
  GOOD(encore_configuration_destroy(configuration));
  GOOD(encore_trainer_destroy(trainer));
}

static void errors_name_what_is_wrong(encore_runtime* runtime, encore_backend backend) {
  encore_configuration* configuration = configure(backend, "");
  encore_trainer *trainer = make(runtime, backend, ""), *none = NULL;
  int32_t ids[batch], labels[batch];
  const int64_t longer[3] = {2, 2, 17};
  encore_step_result result;
  BAD(encore_configuration_preset(configuration, "tiny-lunch"), ENCORE_ERROR_CONFIGURATION, "tiny-launch");
  BAD(encore_configuration_set(configuration, "train.lr=fast"), ENCORE_ERROR_CONFIGURATION, "train.lr");
  BAD(encore_configuration_set(configuration, "train.rl=1"), ENCORE_ERROR_CONFIGURATION, "train.lr");
  BAD(encore_configuration_json(configuration, "{"), ENCORE_ERROR_CONFIGURATION, "JSON text");
  BAD(encore_configuration_file(configuration, "no.json"), ENCORE_ERROR_INPUT_FILE, "no.json");
  GOOD(encore_configuration_text(configuration, NULL, 0, NULL)); /* what was refused left nothing behind */
  GOOD(encore_configuration_set(configuration, "model.heads=5"));
  BAD(encore_trainer_create(runtime, configuration, &none), ENCORE_ERROR_CONFIGURATION, "heads");
  GOOD(encore_configuration_set(configuration, "model.heads=4 graph.memory_limit=1000"));
  BAD(encore_trainer_create(runtime, configuration, &none), ENCORE_ERROR_OUT_OF_MEMORY, "graph.memory_limit");
  CHECK(none == NULL);
  fill_batch(0, ids, labels);
  ids[5] = vocabulary;
  BAD(encore_trainer_set_batch(trainer, ids, labels, NULL), ENCORE_ERROR_INPUT_FILE, "40");
  ids[5] = 0;
  BAD(encore_trainer_set_batch(trainer, ids, labels, longer), ENCORE_ERROR_REPLAY_CONTRACT, "17");
  BAD(encore_trainer_set_scalar(trainer, "wait_decay", 1), ENCORE_ERROR_REPLAY_CONTRACT, "weight_decay");
  GOOD(encore_trainer_set_scalar(trainer, "weight_decay", 0.2));
  memset(&result, 0, sizeof result);
  BAD(encore_trainer_step(trainer, 1e-3, &result), ENCORE_ERROR_USAGE, "size");
  BAD(encore_trainer_step(NULL, 1e-3, NULL), ENCORE_ERROR_USAGE, "'trainer' is NULL");
  CHECK(encore_last_error_function()[0] != '\0' && strstr(encore_last_error_file(), ".cpp") != NULL);
  /* A caller built against an older header has a smaller structure: no byte behind it is written. */
  GOOD(encore_trainer_set_batch(trainer, ids, labels, NULL));
  memset(&result, 0x5a, sizeof result);
  result.size = offsetof(encore_step_result, loss);
  GOOD(encore_trainer_step(trainer, 1e-3, &result));
  CHECK(result.step == 1 && ((unsigned char*)&result.loss)[0] == 0x5a);
  GOOD(encore_trainer_destroy(trainer));
  GOOD(encore_configuration_destroy(configuration));
}

int main(int count, char** arguments) {
  const encore_backend backend = backend_of(count, arguments);
  const char* folder = count > 2 ? arguments[1] : ".";
  encore_runtime* runtime = NULL;
  encore_trainer* alive;
  GOOD(encore_runtime_create(2, &runtime));
  if (failures != 0) return report("trainer");
  replayed_steps_give_the_bits_of_eager_ones_and_learn(runtime, backend);
  parameters_are_read_and_written_by_both_names(runtime, backend);
  a_checkpoint_resumes_bit_by_bit(runtime, backend, folder);
  evaluation_changes_nothing_and_gives_logits(runtime, backend);
  texts_tell_what_was_planned(runtime, backend);
  errors_name_what_is_wrong(runtime, backend);
  alive = make(runtime, backend, "");
  BAD(encore_runtime_destroy(runtime), ENCORE_ERROR_USAGE, "trainer of a llama model");
  step(alive, 0);
  GOOD(encore_trainer_destroy(alive));
  GOOD(encore_runtime_destroy(runtime));
  return report("trainer");
}
