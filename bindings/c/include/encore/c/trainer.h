/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_TRAINER_H
#define ENCORE_C_TRAINER_H

#include <encore/c/configuration.h>
#include <encore/c/runtime.h>
#include <encore/c/stream.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model with its optimizer on one device, trained step by step under the configuration's capture policy. */
typedef struct encore_trainer encore_trainer;

/*
 * Allocates everything and initialises the weights from the configuration's seed. ENCORE_ERROR_OUT_OF_MEMORY, before
 * anything is allocated, when it does not fit. The configuration may be destroyed afterwards.
 */
ENCORE_API int encore_trainer_create(encore_runtime* runtime, const encore_configuration* configuration,
                                     encore_trainer** trainer);
ENCORE_API int encore_trainer_destroy(encore_trainer* trainer);

/* What a trainer of the configuration would allocate, found without allocating it, in bytes. */
ENCORE_API int encore_forecast_memory(encore_runtime* runtime, const encore_configuration* configuration,
                                      uint64_t* bytes);

/* train.microbatches, sequences in each, and tokens in a sequence, of the configuration. */
ENCORE_API int encore_trainer_batch_shape(const encore_trainer* trainer, int64_t shape[3]);

/*
 * Copies the next step's tokens to the device. ids and labels: host, [microbatches, sequences, tokens]; a negative label
 * is ignored. `shape` holds these extents, NULL for those of the configuration; others are treated as graph.buckets
 * says, or ENCORE_ERROR_REPLAY_CONTRACT. ENCORE_ERROR_INPUT_FILE for a token outside the vocabulary.
 */
ENCORE_API int encore_trainer_set_batch(encore_trainer* trainer, const int32_t* ids, const int32_t* labels,
                                        const int64_t shape[3]);

typedef enum encore_step_mode { ENCORE_EAGER = 0, ENCORE_CAPTURE = 1, ENCORE_REPLAY = 2 } encore_step_mode;

/*
 * Set `size` to sizeof(encore_step_result) before the call: later versions append members, and fill as many as that
 * size has room for.
 */
typedef struct encore_step_result {
  size_t size;
  int64_t step;               /* 1 for the first */
  double loss;                /* before the update, mean over the labels that count, in nats */
  double gradient_norm;       /* before clipping */
  double milliseconds;        /* from queueing the step until its numbers were on the host */
  double device_milliseconds; /* between the step's start and end on the device */
  int64_t tokens;             /* of the batch */
  int32_t mode;               /* encore_step_mode */
  int32_t skipped;            /* 1: train.skip_above left the update out */
  uint64_t graph_nodes;       /* replayed */
  uint64_t eager_launches;    /* kernels launched one by one */
  uint64_t fallbacks;         /* runs that the policy captures but that ran eagerly, after warm-up */
  uint64_t graph_bytes;       /* of the graphs recorded in this step */
} encore_step_result;

/* The rate that train.lr and its schedule give the next step. */
ENCORE_API int encore_trainer_learning_rate(const encore_trainer* trainer, double* learning_rate);
/* Trains one step on the batch that was set last, and waits for its numbers. `result` may be NULL. */
ENCORE_API int encore_trainer_step(encore_trainer* trainer, double learning_rate, encore_step_result* result);
/* The same without graphs: every bit comes out the same. */
ENCORE_API int encore_trainer_step_eagerly(encore_trainer* trainer, double learning_rate,
                                           encore_step_result* result);
/* Steps done, counting those before a resume. */
ENCORE_API int encore_trainer_steps_done(const encore_trainer* trainer, int64_t* steps);

/*
 * Loss of `sequences` of train.seq tokens, at most train.microbatch, without dropout; changes no training state.
 * ids and labels: host, [sequences, train.seq].
 */
ENCORE_API int encore_trainer_evaluate(encore_trainer* trainer, const int32_t* ids, const int32_t* labels,
                                       int64_t sequences, double* loss);
/* What encore_trainer_logits gives: sequences of the last evaluation (0 before the first), train.seq, vocabulary. */
ENCORE_API int encore_trainer_logits_shape(const encore_trainer* trainer, int64_t shape[3]);
/* Of the last evaluation, to host memory of `count` floats: [sequences, train.seq, vocabulary]. */
ENCORE_API int encore_trainer_logits(encore_trainer* trainer, float* logits, size_t count);

/*
 * Changes a number that steps read from device memory, for all steps to come: weight_decay, clip, dropout, ...
 * ENCORE_ERROR_REPLAY_CONTRACT for other names, with the known ones.
 */
ENCORE_API int encore_trainer_set_scalar(encore_trainer* trainer, const char* name, double value);

/* Count the warm-up as done, so that the next step records; and drop all graphs, so that the next steps record anew. */
ENCORE_API int encore_trainer_end_warmup(encore_trainer* trainer);
ENCORE_API int encore_trainer_reset_graphs(encore_trainer* trainer);

/*
 * A safetensors file of the weights by their Hugging Face names, and of what an exact resume needs. Written beside and
 * renamed: after ENCORE_ERROR_OUTPUT_FILE an older file of that name is as it was.
 */
ENCORE_API int encore_trainer_save(encore_trainer* trainer, const char* path);
/* Such a file, or published weights. *resumes (may be NULL): 1 when training goes on where it was saved. */
ENCORE_API int encore_trainer_load(encore_trainer* trainer, const char* path, int* resumes);

/* Texts as in configuration.h. The configuration that it was made of, as JSON. */
ENCORE_API int encore_trainer_configuration(const encore_trainer* trainer, char* text, size_t size,
                                            size_t* length);
/* The runs that a step is cut into, which of them are captured, their segments, and the buffers. */
ENCORE_API int encore_trainer_plan(const encore_trainer* trainer, char* text, size_t size, size_t* length);
/* Empty, or why capturing was given up. */
ENCORE_API int encore_trainer_refusal(const encore_trainer* trainer, char* text, size_t size, size_t* length);
/* Empty, or why the last step ran eagerly although graphs were asked for. */
ENCORE_API int encore_trainer_eager_reason(const encore_trainer* trainer, char* text, size_t size,
                                           size_t* length);

/* Arrays that have the shape of the parameters. */
typedef enum encore_parameter_array {
  ENCORE_WEIGHTS = 0,
  ENCORE_GRADIENTS = 1,
  ENCORE_FIRST_MOMENT = 2,
  ENCORE_SECOND_MOMENT = 3,
  ENCORE_MASTER = 4 /* weights in float32, where train.master_weights is set */
} encore_parameter_array;

typedef struct encore_parameter {
  size_t size;        /* sizeof(encore_parameter), as above */
  const char* name;   /* of the trainer's own: valid as long as it lives */
  void* memory;       /* in the device's memory; the same address as long as the trainer lives */
  int64_t elements;   /* without gaps, the last dimension fastest */
  int64_t shape[4];   /* ones behind the rank */
  int32_t dimensions; /* rank */
  int32_t type;       /* encore_type */
} encore_parameter;

/* Parameters in the model's own names, such as layer.0/attn/qkv.weight: their number, and the name of one. */
ENCORE_API int encore_trainer_parameter_count(const encore_trainer* trainer, size_t* count);
ENCORE_API int encore_trainer_parameter_name(const encore_trainer* trainer, size_t index, const char** name);

/*
 * A parameter, or its gradient, ..., where it lies. `name`: the model's own or that of a published file's tensor, such
 * as model.layers.0.self_attn.q_proj.weight. A step overwrites it; to read it on another stream, call
 * encore_trainer_step first, which waits. Weights written there take effect with the next step unless there are master
 * weights, from which a step makes the weights anew. ENCORE_ERROR_USAGE for an unknown name, with the nearest one.
 */
ENCORE_API int encore_trainer_parameter(const encore_trainer* trainer, encore_parameter_array array,
                                        const char* name, encore_parameter* parameter);
/* The same as floats, copied from the device, and to it: weights rounded to their type, and master weights with them.
 * `count`: the parameter's elements. */
ENCORE_API int encore_trainer_read(encore_trainer* trainer, encore_parameter_array array, const char* name,
                                   float* values, size_t count);
ENCORE_API int encore_trainer_write(encore_trainer* trainer, encore_parameter_array array, const char* name,
                                    const float* values, size_t count);

#ifdef __cplusplus
}
#endif

#endif
