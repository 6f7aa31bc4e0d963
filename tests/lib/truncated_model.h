/* A checkpoint with every MLP matrix replaced by factors, made without the compressor: W is projected on the row space
 * of a random combination of its rows. Poor factors, which is what a test of training wants. */
#ifndef NMLP_TESTS_TRUNCATED_MODEL_H
#define NMLP_TESTS_TRUNCATED_MODEL_H

#include <stdint.h>

void truncated_model_write(const char *source_dir, const char *out_dir, int64_t rank);

#endif
