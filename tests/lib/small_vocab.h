/* Random ids and last logits of the tiny checkpoints of tests, whose vocabulary is SMALL_VOCAB. */
#ifndef NMLP_TESTS_SMALL_VOCAB_H
#define NMLP_TESTS_SMALL_VOCAB_H

#include <stdint.h>

enum { SMALL_VOCAB = 96 };

void small_vocab_random_ids(int32_t *ids, int64_t n, uint64_t seed);
/* Logits after the same 40 random ids. */
void small_vocab_last_logits(const char *dir, float logits[SMALL_VOCAB]);
/* The norm of b - a over that of a. */
double small_vocab_distance(const float a[SMALL_VOCAB], const float b[SMALL_VOCAB]);

#endif
