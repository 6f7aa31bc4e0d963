/* A session: one sequence whose layers can be run one at a time and observed, for calibration and training. It runs on
 * the CPU: nmlp_session_create fails with NMLP_E_UNSUPPORTED on devices that cannot do this. Generation and scoring use
 * batches (batch.h, score.h).
 *
 * Letters: S tokens of a chunk, H hidden, V vocabulary, I intermediate. All memory of a session is allocated when it is
 * created. Same input, same bits, whatever the number of threads. */
#ifndef NMLP_ENGINE_SESSION_H
#define NMLP_ENGINE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/engine.h"

/* Looks at a layer while it runs; each may be NULL. Rows are the S tokens of the chunk. */
typedef struct nmlp_observer {
    void *ctx;
    void (*attention_input)(void *ctx, int64_t layer, const float *x, int64_t s); /* [S,H], normalised */
    void (*attention_mixed)(void *ctx, int64_t layer, const float *x, int64_t s); /* [S,n_heads*D], what `o` sees */
    void (*mlp_input)(void *ctx, int64_t layer, const float *x, int64_t s);       /* [S,H], normalised */
    void (*mlp_inside)(void *ctx, int64_t layer, const float *gate, const float *up, const float *act,
                       int64_t s);                                           /* [S,I] each; act = silu(gate)*up */
    void (*mlp_output)(void *ctx, int64_t layer, const float *y, int64_t s); /* [S,H], before the residual */
    bool inputs_only; /* what follows mlp_inside, or mlp_input of experts, is left out: rows are not finished */
} nmlp_observer;

enum { NMLP_CHUNK_DEFAULT = 1024 };

/* Room for `context` positions (at most the model's maximum), worked on in chunks of `chunk` tokens (0: default).
 * `observed` sizes the session for observers. */
nmlp_status nmlp_session_create(nmlp_session **out, const nmlp_engine *engine, int64_t context, int64_t chunk,
                                bool observed, nmlp_err *err);
void nmlp_session_destroy(nmlp_session *session);
void nmlp_session_set_observer(nmlp_session *session, const nmlp_observer *observer);
int64_t nmlp_session_context(const nmlp_session *session);
int64_t nmlp_session_chunk(const nmlp_session *session);
/* Tokens in the cache. */
int64_t nmlp_session_length(const nmlp_session *session);
/* Forgets all tokens from position `length` on. */
void nmlp_session_truncate(nmlp_session *session, int64_t length);

/* Called after each chunk with its last hidden states, final norm applied: rows [S,H] of positions first..first+S-1.
 * They are valid during the call; nmlp_session_logits may be called on them. */
typedef void nmlp_rows_fn(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s);

/* Appends tokens. Fails, changing nothing, when an id is outside the vocabulary or the context would overflow. */
nmlp_status nmlp_session_append(nmlp_session *session, const int32_t *ids, int64_t n, nmlp_rows_fn *on_rows, void *ctx,
                                nmlp_err *err);

/* Tokens at positions first..first+n-1 that see what the segments before them left at 0..first-1. */
typedef struct nmlp_segment {
    const int32_t *ids;
    int64_t n;     /* may be 0 */
    int64_t first; /* at most the end of the segment before; for the first one, the session's length */
} nmlp_segment;

/* Runs segments one after the other as truncate(first) + append would, but with their rows side by side in full chunks:
 * how many short continuations of shared contexts run at the speed of one long text. on_rows hears the index of its
 * first row in the concatenation of all segments. The session ends up holding the last segment. */
nmlp_status nmlp_session_run_packed(nmlp_session *session, const nmlp_segment *segments, int64_t n_segments,
                                    nmlp_rows_fn *on_rows, void *ctx, nmlp_err *err);

/* logits [S,V] of hidden rows [S,H], S at most the chunk. */
void nmlp_session_logits(nmlp_session *session, const float *rows, int64_t s, float *logits);

/* logits [V] after the last appended token; valid until the next call on the session. */
const float *nmlp_session_last_logits(nmlp_session *session);

/* ---- one layer at a time ---- */

/* rows [S,H] of the embedding. */
nmlp_status nmlp_session_embed(nmlp_session *session, const int32_t *ids, int64_t s, float *rows, nmlp_err *err);
/* Runs layer `layer` in place on hidden rows [S,H] of positions first..first+S-1, S at most the chunk; earlier
 * positions of this layer must have been run in this session. */
void nmlp_session_run_layer(nmlp_session *session, int64_t layer, float *rows, int64_t first, int64_t s);
/* Only up to the MLP: rows become the residual stream in front of it, mlp_input [S,H] what it would see. */
void nmlp_session_run_attention(nmlp_session *session, int64_t layer, float *rows, int64_t first, int64_t s,
                                float *mlp_input);
/* Adds what the MLP of a layer computed, y [S,H], to the residual stream as the layer does; y is spent. */
void nmlp_session_add_mlp(nmlp_session *session, int64_t layer, float *rows, float *y, int64_t s);
/* What the router of a layer gives a token. */
typedef struct nmlp_expert_choice {
    int32_t expert;
    float weight;
} nmlp_expert_choice;

/* choices [S,k], k experts for each of what the experts of a layer see, x [S,H], S at most the chunk. */
void nmlp_session_route(nmlp_session *session, int64_t layer, const float *x, int64_t s, nmlp_expert_choice *choices);
/* out [S,H] = final norm of rows. */
void nmlp_session_final_norm(nmlp_session *session, const float *rows, int64_t s, float *out);

#endif
