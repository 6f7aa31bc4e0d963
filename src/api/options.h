/* Structs that start with their own size, between programs and libraries of different versions
 * (include/neuronmlp/api.h). */
#ifndef NMLP_API_OPTIONS_H
#define NMLP_API_OPTIONS_H

#include <stddef.h>

#include "base/progress.h"
#include "base/status.h"
#include "neuronmlp/api.h"

/* Copies ours (defaults, results) into a caller's struct of `their_bytes` and writes its size; fields we do not know
 * become zero. */
void nmlp_options_give(void *theirs, size_t their_bytes, const void *ours, size_t our_bytes);

/* Copies a caller's options over our defaults; NULL changes nothing. `name` is the struct's, for errors: a struct that
 * was never initialised, and fields from a newer header that are not zero. */
nmlp_status nmlp_options_take(void *ours, size_t our_bytes, const void *theirs, const char *name, nmlp_err *err);

/* Arguments of a function that makes one checkpoint of another. */
nmlp_status nmlp_api_check_conversion(const char *function, const char *model_dir, const char *out_dir, int n_threads,
                                      nmlp_err *err);

/* A caller's progress function as the library's. */
typedef struct nmlp_api_progress {
    nmlp_on_progress *on_progress; /* may be NULL */
    void *ctx;
} nmlp_api_progress;

/* `forward` must live as long as the result is used. */
nmlp_progress nmlp_api_progress_of(nmlp_api_progress *forward);

#endif
