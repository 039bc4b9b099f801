/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_CONFIGURATION_H
#define ENCORE_C_CONFIGURATION_H

#include <encore/c/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Settings of a model and its training, collected from several sources. A later kind wins over an earlier one:
 * defaults < preset < model of a checkpoint < JSON < key=value; within one kind the last. docs/configuration.md lists
 * the keys. Needs no runtime.
 */
typedef struct encore_configuration encore_configuration;

ENCORE_API int encore_configuration_create(encore_configuration** configuration);
ENCORE_API int encore_configuration_destroy(encore_configuration* configuration);

/* The preset's settings. ENCORE_ERROR_CONFIGURATION, with the nearest name, if there is no such preset. */
ENCORE_API int encore_configuration_preset(encore_configuration* configuration, const char* name);
/* A JSON file of nested sections or dotted keys. */
ENCORE_API int encore_configuration_file(encore_configuration* configuration, const char* path);
/* The same as text: {"model": {"layers": 2}, "train.lr": 1e-3}. */
ENCORE_API int encore_configuration_json(encore_configuration* configuration, const char* text);
/* The model of a safetensors file, from its metadata or the config.json beside it. */
ENCORE_API int encore_configuration_checkpoint(encore_configuration* configuration, const char* path);
/* "key=value", or several of them with white space between. */
ENCORE_API int encore_configuration_set(encore_configuration* configuration, const char* assignments);

/*
 * Functions that return a text write as much of it as fits into text[0 .. size - 1], always ended by a zero, and the
 * whole text's bytes without that zero to *length. `text` may be NULL with size 0, to ask for the length, and `length`
 * may be NULL.
 */

/* The resolved configuration as JSON, which as a configuration resolves to itself. Checks all of it. */
ENCORE_API int encore_configuration_text(const encore_configuration* configuration, char* text, size_t size,
                                         size_t* length);
/* What was changed or ignored on the way, a line each with the id of its rule; often empty. */
ENCORE_API int encore_configuration_notes(const encore_configuration* configuration, char* text, size_t size,
                                          size_t* length);

#ifdef __cplusplus
}
#endif

#endif
