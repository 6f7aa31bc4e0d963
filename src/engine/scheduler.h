/* Many generations on one batch. Every step takes one row of each sequence that is generating and as much of the
 * waiting prompts as the rest of its rows allows; requests join when a sequence and memory for their prompt are free,
 * in the order they came, and leave when they are done. Decoding sequences take turns where a step has fewer rows than
 * they need, and a part of every step is the prompts', so that no request waits forever. Prompts take as many rows
 * beside decoding sequences as do not hold these up (prompt_pace.h).
 *
 * A sequence that gets no memory for its next token waits until others have left. When all wait for memory, the one
 * that came last fails with NMLP_E_LIMIT and the others go on.
 *
 * One owner at a time; callbacks come from nmlp_scheduler_step. A step allocates nothing. */
#ifndef NMLP_ENGINE_SCHEDULER_H
#define NMLP_ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/batch.h"
#include "engine/generate.h"

typedef struct nmlp_scheduler nmlp_scheduler;

/* Borrows the batch, all of whose other sequences stay as they are. */
nmlp_status nmlp_scheduler_create(nmlp_scheduler **out, nmlp_batch *batch, nmlp_err *err);
/* Requests that are not done are dropped without a word. */
void nmlp_scheduler_destroy(nmlp_scheduler *scheduler);

typedef struct nmlp_scheduler_request {
    nmlp_generation generation; /* prompt and stop_ids are borrowed until on_done */
    /* A sequence of the batch to continue, which stays the caller's and keeps the text; NMLP_SEQUENCE_NEW: one that is
     * opened for the request, shares what it can of the prompt and is closed at the end. */
    int32_t sequence;
    /* Once, at the end, with the generation's ctx; may be NULL. `err` is NULL unless status says failure. A request
     * that was cancelled ends with NMLP_OK and NMLP_FINISH_CALLER. */
    void (*on_done)(void *ctx, nmlp_status status, const nmlp_generation_stats *stats, const nmlp_err *err);
} nmlp_scheduler_request;

enum { NMLP_SEQUENCE_NEW = -1 };

/* Queues a request and gives its number. Fails where it can never run. */
nmlp_status nmlp_scheduler_submit(nmlp_scheduler *scheduler, const nmlp_scheduler_request *request, uint64_t *number,
                                  nmlp_err *err);
/* Ends a request before the next step; nothing happens when it is done already. */
void nmlp_scheduler_cancel(nmlp_scheduler *scheduler, uint64_t number);
/* Requests that wait or run. */
int64_t nmlp_scheduler_count(const nmlp_scheduler *scheduler);
/* The part of the memory for keys and values that requests hold, 0 to 1; what they share counts for each of them. */
double nmlp_scheduler_memory_used(const nmlp_scheduler *scheduler);
/* One step of all requests that can go on. A failure of the device ends all requests of the step and is returned. */
nmlp_status nmlp_scheduler_step(nmlp_scheduler *scheduler, nmlp_err *err);

#endif
