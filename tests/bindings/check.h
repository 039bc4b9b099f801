/* SPDX-License-Identifier: Apache-2.0 */
/* What test programs in C are made of: each has a list of named tests and returns how many failed. */
#ifndef ENCORE_TESTS_CHECK_H
#define ENCORE_TESTS_CHECK_H

#include <encore/encore.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ++failures;                                                               \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                           \
  } while (0)

/* A call that has to go well. */
#define GOOD(call)                                                                                \
  do {                                                                                            \
    const int status_ = (call);                                                                   \
    if (status_ != ENCORE_OK) {                                                                   \
      ++failures;                                                                                 \
      fprintf(stderr, "%s:%d: %s: %s (%s:%d)\n", __FILE__, __LINE__, encore_status_name(status_), \
              encore_last_error(), encore_last_error_file(), encore_last_error_line());           \
    }                                                                                             \
  } while (0)

/* A call that has to fail with a status, and with words that hold `part`. */
#define BAD(call, status, part)                                                                      \
  do {                                                                                               \
    const int status_ = (call);                                                                      \
    if (status_ != (status) || encore_last_error_status() != (status) ||                             \
        strstr(encore_last_error(), (part)) == NULL || encore_last_error_line() == 0) {              \
      ++failures;                                                                                    \
      fprintf(stderr, "%s:%d: expected %s with '%s', got %s: %s\n", __FILE__, __LINE__,              \
              encore_status_name(status), (part), encore_status_name(status_), encore_last_error()); \
    }                                                                                                \
  } while (0)

/* The backend to test: the last argument of the program, or openmp. */
static encore_backend backend_of(int count, char** arguments) {
  const char* name = count > 1 ? arguments[count - 1] : "openmp";
  if (strcmp(name, "serial") == 0) return ENCORE_SERIAL;
  return strcmp(name, "cuda") == 0 ? ENCORE_CUDA : ENCORE_OPENMP;
}

static int report(const char* program) {
  if (failures == 0) printf("%s: all passed\n", program);
  return failures;
}

#endif
