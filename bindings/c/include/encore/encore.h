/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encore for C, and for whatever calls C (Fortran's iso_c_binding, Python, Julia, ...): training a model, and recording
 * kernels once and replaying them. Pure C99. docs/bindings.md has a program in each language.
 *
 * Every function returns an encore_status unless it says otherwise: 0 when all went well, else what encore_last_error()
 * tells in words. No exception leaves a function, and none exits or prints. A function that failed changed nothing,
 * unless it says otherwise; `out` arguments are then left alone.
 *
 * Handles are made by _create or _record functions and ended by _destroy, which take NULL. All belong to a runtime and
 * must be destroyed before it. Calls on one handle from several threads come one after the other; so do those on a
 * stream and on its graphs.
 */
#ifndef ENCORE_ENCORE_H
#define ENCORE_ENCORE_H

#include <encore/c/configuration.h>
#include <encore/c/graph.h>
#include <encore/c/kernels.h>
#include <encore/c/layers.h>
#include <encore/c/runtime.h>
#include <encore/c/status.h>
#include <encore/c/stream.h>
#include <encore/c/trainer.h>

#endif
