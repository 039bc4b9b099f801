/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENCORE_C_STATUS_H
#define ENCORE_C_STATUS_H

#if defined(__GNUC__)
#define ENCORE_API __attribute__((visibility("default")))
#else
#define ENCORE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns, as an int. */
typedef enum encore_status {
  ENCORE_OK = 0,
  ENCORE_ERROR_USAGE = 1, /* an argument that this function cannot take, or a call at the wrong time */
  ENCORE_ERROR_CONFIGURATION = 2, /* a key, a value or a shape that is not allowed */
  ENCORE_ERROR_INPUT_FILE = 3,    /* a file or a batch that is missing, truncated or lies about itself */
  ENCORE_ERROR_OUTPUT_FILE = 4,   /* a file cannot be written; what stood there before is untouched */
  ENCORE_ERROR_DEVICE = 5,        /* no such device, or it reported a failure */
  ENCORE_ERROR_OUT_OF_MEMORY = 6, /* host or device memory, or a stated limit, does not suffice */
  ENCORE_ERROR_CAPTURE = 7,       /* something cannot be recorded, or could not be */
  ENCORE_ERROR_REPLAY_CONTRACT =
      8, /* a replay was asked for with something that differs from what was recorded */
  ENCORE_ERROR_COMMUNICATION =
      9, /* a rank of a group is gone, is late, or does something else than the others */
  ENCORE_ERROR_VALIDATION = 10, /* a result differs from its reference */
  ENCORE_ERROR_INTERNAL = 11    /* a defect of the library */
} encore_status;

/* "usage", "configuration", ...; "ok" for 0 and "unknown" for other numbers. Never NULL. */
ENCORE_API const char* encore_status_name(int status);

/*
 * Of the last call of this thread that failed. Calls that go well leave it as it is. The texts are this thread's own
 * and valid until its next call that fails; empty, with status ENCORE_OK and line 0, before any did.
 */
ENCORE_API int encore_last_error_status(void);
/* One sentence that names the thing and, where there is one, the fix. */
ENCORE_API const char* encore_last_error(void);
/* Where in the library's source it was found. */
ENCORE_API const char* encore_last_error_file(void);
ENCORE_API int encore_last_error_line(void);
ENCORE_API const char* encore_last_error_function(void);

/* "0.1.0". */
ENCORE_API const char* encore_version(void);
/* Of the source it was built from; "-dirty" at its end where that had changes. */
ENCORE_API const char* encore_git_revision(void);

#ifdef __cplusplus
}
#endif

#endif
