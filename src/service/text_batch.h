/* Many requests for text at once on one model: each step of the engine carries all of them. What prompts share at their
 * beginning, with each other or with earlier ones, is computed once as far as the memory remembers it.
 *
 * Belongs to one thread at a time; callbacks come from nmlp_text_batch_step. */
#ifndef NMLP_SERVICE_TEXT_BATCH_H
#define NMLP_SERVICE_TEXT_BATCH_H

#include "service/text_answer.h"

typedef struct nmlp_text_batch nmlp_text_batch;

typedef struct nmlp_text_batch_options {
    int64_t context;       /* most positions of one request */
    int64_t max_sequences; /* that run at once, 1 or more */
    int64_t kv_bytes;      /* of keys and values in all; 0: what max_sequences of `context` need */
} nmlp_text_batch_options;

/* Model and tokenizer are borrowed. */
nmlp_status nmlp_text_batch_create(nmlp_text_batch **out, const nmlp_loaded *loaded, const nmlp_tokenizer *tokenizer,
                                   const nmlp_text_batch_options *options, nmlp_err *err);
void nmlp_text_batch_destroy(nmlp_text_batch *batch); /* NULL is fine; requests under way end without a word */

/* The end of a request, once: `result` is valid during the call, `err` NULL unless status says failure. */
typedef void nmlp_text_on_done(void *ctx, nmlp_status status, const nmlp_text_result *result, const nmlp_err *err);

/* Takes a request; what it points to must live until on_done, which hears the request's ctx. `number` names it. At most
 * max_sequences may be under way. */
nmlp_status nmlp_text_batch_submit(nmlp_text_batch *batch, const nmlp_text_request *request, nmlp_text_on_done *on_done,
                                   uint64_t *number, nmlp_err *err);
/* Ends a request in the next step, with NMLP_FINISH_CALLER. */
void nmlp_text_batch_cancel(nmlp_text_batch *batch, uint64_t number);
/* Requests under way. */
int64_t nmlp_text_batch_count(const nmlp_text_batch *batch);
/* See nmlp_scheduler_memory_used. */
double nmlp_text_batch_memory_used(const nmlp_text_batch *batch);
/* One step of all of them. */
void nmlp_text_batch_step(nmlp_text_batch *batch);

#endif
