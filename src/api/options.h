/* Structs that start with their own size, between programs and libraries of different versions
 * (include/neuronmlp/api.h). */
#ifndef NMLP_API_OPTIONS_H
#define NMLP_API_OPTIONS_H

#include <stddef.h>

#include "base/status.h"

/* Copies ours (defaults, results) into a caller's struct of `their_bytes` and writes its size; fields we do not know
 * become zero. */
void nmlp_options_give(void *theirs, size_t their_bytes, const void *ours, size_t our_bytes);

/* Copies a caller's options over our defaults; NULL changes nothing. `name` is the struct's, for errors: a struct that
 * was never initialised, and fields from a newer header that are not zero. */
nmlp_status nmlp_options_take(void *ours, size_t our_bytes, const void *theirs, const char *name, nmlp_err *err);

#endif
