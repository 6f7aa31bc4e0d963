/* Generation: prompt in, tokens out one by one. */
#ifndef NMLP_ENGINE_GENERATE_H
#define NMLP_ENGINE_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/sampler.h"

/* Which tokens may come next, decided while the text grows. Called by one thread at a time, not always the same. */
typedef struct nmlp_token_constraint {
    /* Bits [ceil(V/32)] of the tokens that may come next, valid until the next call. NULL: the text is complete. */
    const uint32_t *(*allowed)(void *ctx);
    void (*accept)(void *ctx, int32_t id); /* a token that is now part of the answer */
    void *ctx;
} nmlp_token_constraint;

typedef struct nmlp_generation {
    const int32_t *prompt;
    int64_t n_prompt;
    int64_t n_held;  /* of them at its beginning, fewer than n_prompt: the sequence already has them */
    int64_t max_new; /* at most; also ends where the context is full */
    nmlp_sampling sampling;
    const int64_t *stop_ids;
    int n_stop_ids;
    /* A batch of a smaller model of the same vocabulary that proposes tokens (speculation.h); NULL: none. The device
     * itself then does not choose, and there are no penalties or biases. */
    nmlp_batch *draft;
    /* Borrowed until the end; NULL: any token may come. With it the device itself does not choose, and there is no
     * draft. A text that is complete ends with NMLP_FINISH_STOP. */
    const nmlp_token_constraint *constraint;
    /* The logits [V] after every token of the prompt, which then shares nothing with other texts and is run in small
     * pieces. Several threads call it at once, for different positions. May be NULL. */
    void (*on_prompt_logits)(void *ctx, int64_t position, const float *logits);
    /* [H] out: the state after the last token of the prompt, normalised as the head takes it. NULL: not wanted. */
    float *hidden;
    /* The logits [V] a token was chosen from, before on_token; may be NULL. With it the device itself does not choose.
     */
    void (*on_logits)(void *ctx, const float *logits, int32_t id);
    bool (*on_token)(void *ctx, int32_t id); /* false stops; may be NULL */
    void *ctx;
} nmlp_generation;

typedef enum nmlp_finish { NMLP_FINISH_LENGTH, NMLP_FINISH_STOP, NMLP_FINISH_CONTEXT, NMLP_FINISH_CALLER } nmlp_finish;

typedef struct nmlp_generation_stats {
    int64_t n_generated;
    int64_t n_cached; /* tokens of the prompt that a new sequence of the scheduler shared and did not run */
    nmlp_finish finish;
    double ttft_ms;     /* prompt to first token */
    double decode_ms;   /* the tokens after the first */
    int64_t n_proposed; /* by the draft */
    int64_t n_accepted; /* of them */
} nmlp_generation_stats;

/* Hands a chosen token over, after which `room` more fit: false ends the generation, and stats say why. */
bool nmlp_generation_take(const nmlp_generation *request, nmlp_generation_stats *stats, int32_t id, const float *logits,
                          int64_t room);

/* Continues a sequence of a batch, which keeps the text. Stop tokens are not handed to on_token. Where the device can
 * choose tokens that way it does, while the next steps are already under way; otherwise its logits are fetched and
 * nmlp_sampler chooses. */
nmlp_status nmlp_generate(nmlp_batch *batch, int32_t sequence, const nmlp_generation *request,
                          nmlp_generation_stats *stats, nmlp_err *err);

#endif
