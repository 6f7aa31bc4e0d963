/* A batch: sequences that run together on one engine and share one budget of KV memory. A step appends rows of several
 * sequences at once, decode rows and pieces of prompts side by side.
 *
 * One owner at a time. All memory is allocated when the batch is created or a sequence is opened: a step allocates
 * nothing. */
#ifndef NMLP_ENGINE_BATCH_H
#define NMLP_ENGINE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/sampler.h"

typedef struct nmlp_batch nmlp_batch;

enum { NMLP_SEQUENCES_MAX = 1 << 16 };

typedef struct nmlp_batch_options {
    int64_t context;       /* most positions of one sequence; 1 to the model's maximum */
    int64_t positions;     /* KV memory of all sequences together; 0: max_sequences times context */
    int64_t max_sequences; /* 0: 1 */
    int64_t max_rows;      /* of one step; 0: what suits the device, at most `positions` */
} nmlp_batch_options;

nmlp_status nmlp_batch_create(nmlp_batch **out, const nmlp_engine *engine, const nmlp_batch_options *options,
                              nmlp_err *err);
void nmlp_batch_destroy(nmlp_batch *batch);
const nmlp_engine *nmlp_batch_engine(const nmlp_batch *batch);
/* As used, defaults filled in. */
const nmlp_batch_options *nmlp_batch_limits(const nmlp_batch *batch);

/* ---- sequences ---- */

/* Opens a sequence for a text that is about to be appended. What the device still holds of its beginning is shared:
 * nmlp_batch_length says how many tokens need not be appended, at most n-1. `n` may be 0. */
nmlp_status nmlp_batch_open(nmlp_batch *batch, const int32_t *ids, int64_t n, int32_t *sequence, nmlp_err *err);
void nmlp_batch_close(nmlp_batch *batch, int32_t sequence);
/* Tokens in the sequence. */
int64_t nmlp_batch_length(const nmlp_batch *batch, int32_t sequence);
/* Forgets all tokens from position `length` on. A model with windows may have let go of what the next token would see,
 * if many are forgotten: then none is left. nmlp_batch_length says how many are. */
void nmlp_batch_truncate(nmlp_batch *batch, int32_t sequence, int64_t length);
/* Opens a sequence that begins with the first `length` tokens of another. NMLP_E_UNSUPPORTED where the device cannot
 * share them. */
nmlp_status nmlp_batch_fork(nmlp_batch *batch, int32_t parent, int64_t length, int32_t *child, nmlp_err *err);
/* KV memory for n more tokens of a sequence, which later steps then have. NMLP_E_LIMIT, changing nothing, when the
 * context or the memory of the batch is used up. */
nmlp_status nmlp_batch_reserve(nmlp_batch *batch, int32_t sequence, int64_t n, nmlp_err *err);

/* ---- running ---- */

/* Rows that a step appends to one sequence. */
typedef struct nmlp_step_item {
    int32_t sequence;
    const int32_t *ids;
    int64_t n;        /* 1 or more */
    int64_t n_logits; /* of the last rows; 0: none are wanted */
    float *logits;    /* [n_logits, V] out */
    float *hidden;    /* [H] out: the last row as the head takes it; NULL: not wanted. Not every device gives it */
    /* The device chooses the token after the last row this way; nmlp_batch_choose then gives it. NULL: it does not. */
    const nmlp_sampling *choose;
} nmlp_step_item;

/* Appends rows to several sequences, each at most once, at most max_rows in all. Fails, appending nothing, when a token
 * id is outside the vocabulary or a sequence cannot have the memory. After a failure of the device itself the sequences
 * of the step can only be closed. */
nmlp_status nmlp_batch_step(nmlp_batch *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err);

/* Appends a text of any length in steps of max_rows; logits [V] after its last token and `choose` as in a step, both
 * may be NULL. */
nmlp_status nmlp_batch_append(nmlp_batch *batch, int32_t sequence, const int32_t *ids, int64_t n, float *logits,
                              const nmlp_sampling *choose, nmlp_err *err);

/* Whether steps give the states of rows (nmlp_step_item.hidden). */
bool nmlp_batch_gives_hidden(const nmlp_batch *batch);

/* ---- tokens chosen on the device ---- */

typedef struct nmlp_choice_item {
    int32_t sequence;
    int32_t id; /* out */
} nmlp_choice_item;

/* Whether the device itself can choose tokens that way. */
bool nmlp_batch_can_choose(const nmlp_batch *batch, const nmlp_sampling *sampling);
/* The token after the last appended one of each sequence, whose last step asked for it; it is not part of the text yet.
 * `more`: how many times the caller will append exactly the tokens it got and ask again, as far as it knows, so that
 * the device may start those steps before this call returns. Doing something else instead is allowed at any time; what
 * was run ahead is dropped. A choice depends on seed, position and logits alone, but is not the one that nmlp_sampler
 * makes from the same seed. */
nmlp_status nmlp_batch_choose(nmlp_batch *batch, nmlp_choice_item *items, int64_t n_items, int64_t more, nmlp_err *err);
/* Steps of the sequences of the last choice that the device has started already. A step of anything else has to wait
 * until they have run, and their results are lost. */
int64_t nmlp_batch_steps_ahead(const nmlp_batch *batch);

#endif
