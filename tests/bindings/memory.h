/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_TESTS_MEMORY_H
#define ENCORE_TESTS_MEMORY_H

#include "check.h"

/* Memory of the stream for that many numbers. */
static float* floats(encore_stream* stream, const char* label, size_t count) {
  void* memory = NULL;
  GOOD(encore_allocate(stream, count * sizeof(float), label, &memory));
  return memory;
}

#endif
