/* What every test file includes: cmocka, and a few helpers around it. */
#ifndef NMLP_TESTS_TESTING_H
#define NMLP_TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* Fails with the error's message when st is not NMLP_OK. */
void nmlp_assert_ok(nmlp_status st, const nmlp_err *err);
/* Fails unless the call failed with `code` and its message contains every given part (NULL-ended list). */
void nmlp_assert_fails(nmlp_status st, const nmlp_err *err, nmlp_status code, ...);
/* Path below ../shared, or NULL (after saying so on stderr) where it is absent: the test then calls skip(). */
const char *nmlp_test_shared_path(char *out, size_t out_bytes, const char *relative);
/* A fresh directory for the test; removed by nmlp_test_rmdir. */
void nmlp_test_mkdtemp(char *out, size_t out_bytes);
void nmlp_test_rmdir(const char *path);
void nmlp_test_write_file(const char *path, const void *bytes, size_t len);

#endif
