/* What a device must be able to do to run models: a table of functions that the CPU (backend_cpu.c) and CUDA
 * (backend_cuda.c) fill. Everything above it (generation, scoring, scheduling, evaluation, benchmarks) goes through
 * engine.h, batch.h and score.h, which know this table only.
 *
 * Weights are a model made ready on the device: immutable, shareable. A batch is a set of sequences whose keys and
 * values live in one budget of KV memory: one owner at a time. The callers in batch.c have checked handles, token ids,
 * lengths and the rows of a step, so the functions here need not.
 *
 * An entry marked optional may be NULL: the device cannot do that, and the caller says so or does without. */
#ifndef NMLP_ENGINE_BACKEND_H
#define NMLP_ENGINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/score.h"

typedef struct nmlp_backend {
    const char *name; /* "cpu", "cuda" */

    bool gives_hidden; /* steps can give the states that the head takes */
    int64_t step_rows; /* of a step of prompts, where nobody says otherwise: enough to keep the device busy */

    /* Fails saying why the device cannot be used here. */
    nmlp_status (*probe)(nmlp_err *err);
    /* Optional: what the device can do at best: bytes that a copy reads and writes, operations of a large bf16 matmul.
     */
    nmlp_status (*peak)(double *bytes_per_second, double *flop_per_second, nmlp_err *err);

    /* ---- weights ---- */

    nmlp_status (*weights_create)(void **weights, const nmlp_model *model, const nmlp_engine_options *options,
                                  nmlp_err *err);
    void (*weights_destroy)(void *weights); /* takes NULL */
    /* The kernels that run: "avx512", "cuda (NVIDIA H200)". */
    const char *(*weights_name)(const void *weights);
    /* Bytes of keys and values of that many positions. */
    size_t (*cache_bytes)(const void *weights, int64_t positions);
    /* Optional: see nmlp_engine_hold_layer. */
    nmlp_status (*hold_layer)(void *weights, int64_t layer, nmlp_err *err);
    /* Optional: other weights for the MLP of one layer, or its own again (NULL); see nmlp_engine_set_mlp. */
    nmlp_status (*set_mlp)(void *weights, int64_t layer, const nmlp_mlp_desc *mlp, nmlp_err *err);
    /* Optional: the same for q, k, v and o; see nmlp_engine_set_attention. */
    nmlp_status (*set_attention)(void *weights, int64_t layer, const nmlp_layer *attention, nmlp_err *err);

    /* ---- batches of sequences ---- */

    /* `options` has no zeros left. Sequences are numbered 0..max_sequences-1. */
    nmlp_status (*batch_create)(void **batch, const void *weights, const nmlp_batch_options *options, nmlp_err *err);
    void (*batch_destroy)(void *batch); /* takes NULL */
    /* A free number becomes an empty sequence, or one that already holds the first *n_cached tokens of `ids`, which the
     * caller is about to append: at most n-1, so that the last token is always run. */
    nmlp_status (*open)(void *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached, nmlp_err *err);
    void (*close)(void *batch, int32_t sequence);
    /* Forgets the tokens from position `length` on, or all where a window has let go of what the next row would see.
     * Returns how many are left. */
    int64_t (*truncate)(void *batch, int32_t sequence, int64_t length);
    /* Optional: a free number becomes a sequence that shares the first `length` tokens of `parent`. */
    nmlp_status (*fork)(void *batch, int32_t parent, int64_t length, int32_t child, nmlp_err *err);
    /* KV memory for n more tokens of a sequence, or NMLP_E_LIMIT: other sequences are not touched. */
    nmlp_status (*reserve)(void *batch, int32_t sequence, int64_t n, nmlp_err *err);
    /* Appends the rows of all items; memory for them is reserved. Logits are in place when it returns. */
    nmlp_status (*step)(void *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err);

    /* ---- the next token chosen on the device (optional, both or none) ---- */

    bool (*can_choose)(const nmlp_sampling *sampling);
    /* See nmlp_batch_choose. */
    nmlp_status (*choose)(void *batch, nmlp_choice_item *items, int64_t n_items, int64_t more, nmlp_err *err);
    /* Optional: see nmlp_batch_steps_ahead. */
    int64_t (*steps_ahead)(const void *batch);

    /* ---- scoring of texts ---- */

    /* For texts of up to `positions` + 1 tokens: the last is scored, not run. */
    nmlp_status (*scorer_create)(void **scorer, const void *weights, int64_t positions, nmlp_err *err);
    void (*scorer_destroy)(void *scorer); /* takes NULL */
    /* The most rows of one call, unless one text alone has more; about so many keep the device busy. */
    int64_t (*scorer_tokens)(const void *scorer);
    /* Rows that a text costs after `before` (NULL: as the first of a call), whose beginning it may share. */
    int64_t (*scorer_rows)(const nmlp_score_text *text, const nmlp_score_text *before);
    /* Fills the log-likelihoods of all texts. `on_rows` hears of every row computed and may stop the run with false:
     * NMLP_E_INTERRUPTED. */
    nmlp_status (*scorer_run)(void *scorer, const nmlp_score_text *texts, int64_t n, nmlp_score_on_rows *on_rows,
                              void *ctx, nmlp_err *err);

    /* ---- layers one at a time, observers (optional) ---- */

    /* See session.h. */
    nmlp_status (*session_create)(nmlp_session **session, const void *weights, int64_t context, int64_t chunk,
                                  bool observed, nmlp_err *err);
} nmlp_backend;

const nmlp_backend *nmlp_backend_cpu(void);
const nmlp_backend *nmlp_backend_cuda(void);

/* The one place where a device is chosen. `device`: "cpu" (or NULL), "cuda", or "auto": CUDA where a device is usable
 * and no kernel set of the CPU is asked for. */
nmlp_status nmlp_backend_choose(const nmlp_backend **backend, const char *device, const char *isa, nmlp_err *err);

#endif
