/* The GPU backend: a whole model resident on one CUDA device, and the fused MLP alone.
 *
 * Semantics follow engine.h and kernels.h: weights as the checkpoint stores them (rounded to bf16 where they are not
 * bf16 already), sums in f32. Up to 4 rows at a time activations keep 16 bits of mantissa; more rows round them to bf16
 * at each matmul. Keys and values are cached in bf16. Same input, same bits. One owner at a time per session; an engine
 * may be shared.
 *
 * In a build without CUDA every call here exists and fails saying so. */
#ifndef NMLP_CUDA_CUDA_H
#define NMLP_CUDA_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "model/model.h"
#include "tensor/factors.h"

typedef struct nmlp_cuda_info {
    char name[256];
    int major; /* compute capability */
    int minor;
    int n_multiprocessors;
    size_t total_bytes;
    size_t free_bytes;
    size_t l2_bytes;
} nmlp_cuda_info;

/* Device 0, or why there is none: no backend in this build, no driver, no device, or one too old (below 8.0). */
nmlp_status nmlp_cuda_probe(nmlp_cuda_info *info, nmlp_err *err);

/* ---- the MLP alone, for benchmarks and tests ---- */

typedef struct nmlp_cuda_mlp nmlp_cuda_mlp;

/* One launch of a decode kernel (up to 32 rows), or large matmuls. AUTO takes what was measured faster: streaming up
 * to 16 rows, up to 32 where the weights are 170 MiB at most or cuBLASLt is missing (on chips without clusters of
 * blocks: 8 rows, 100 MiB). PORTABLE: as on a chip before Hopper without cuBLASLt. */
typedef enum nmlp_cuda_path {
    NMLP_CUDA_PATH_AUTO,
    NMLP_CUDA_PATH_FUSED,
    NMLP_CUDA_PATH_GEMM,
    NMLP_CUDA_PATH_PORTABLE
} nmlp_cuda_path;

/* Uploads gate, up and down; runs of exactly `s` rows. */
nmlp_status nmlp_cuda_mlp_create(nmlp_cuda_mlp **out, const nmlp_factors matrices[NMLP_MLP_MATRICES], int64_t s,
                                 nmlp_cuda_path path, nmlp_err *err);
void nmlp_cuda_mlp_destroy(nmlp_cuda_mlp *mlp);
/* y [S,H] = mlp(x [S,H]), host memory, f32. */
nmlp_status nmlp_cuda_mlp_run(nmlp_cuda_mlp *mlp, float *y, const float *x, nmlp_err *err);
/* Bytes of weights one run reads. */
size_t nmlp_cuda_mlp_weight_bytes(const nmlp_cuda_mlp *mlp);
/* One line of "name=value": phases, units and split-K chunks. */
void nmlp_cuda_mlp_describe(const nmlp_cuda_mlp *mlp, char *text, size_t text_bytes);
/* Median, in microseconds, of `n_timed` launches of a CUDA graph, per run in it. Runs go round `n` MLPs of one shape
 * (so that weights come from memory, not from L2), often enough that launching the graph does not count. */
nmlp_status nmlp_cuda_mlp_time(nmlp_cuda_mlp *const *mlps, int n, int n_timed, double *median_us, nmlp_err *err);
/* ---- what the device can do at best ---- */

/* Median device-to-device copy rate in bytes per second, counting bytes read plus bytes written. */
nmlp_status nmlp_cuda_copy_rate(double *bytes_per_second, nmlp_err *err);
/* Median rate of a bf16 matmul of 8192 by 8192 by 8192. */
nmlp_status nmlp_cuda_matmul_rate(double *flop_per_second, nmlp_err *err);

/* ---- the whole model ---- */

typedef struct nmlp_cuda_engine nmlp_cuda_engine;
typedef struct nmlp_cuda_session nmlp_cuda_session;

/* The model must outlive the engine. */
nmlp_status nmlp_cuda_engine_create(nmlp_cuda_engine **out, const nmlp_model *model, const nmlp_progress *progress,
                                    nmlp_err *err);
void nmlp_cuda_engine_destroy(nmlp_cuda_engine *engine);
/* "cuda (NVIDIA H200)" */
const char *nmlp_cuda_engine_name(const nmlp_cuda_engine *engine);
/* Bytes of all weights a decode step reads. */
size_t nmlp_cuda_engine_step_bytes(const nmlp_cuda_engine *engine);

/* Room for `context` positions. `rope` [context, D] holds cos|sin of every position (copied). */
nmlp_status nmlp_cuda_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, int64_t context,
                                     const float *rope, nmlp_err *err);
void nmlp_cuda_session_destroy(nmlp_cuda_session *session);
int64_t nmlp_cuda_session_length(const nmlp_cuda_session *session);
/* Forgets all tokens from position `length` on. */
void nmlp_cuda_session_truncate(nmlp_cuda_session *session, int64_t length);

/* How nmlp_cuda_session_next chooses: temperature 0 is greedy, otherwise a draw from softmax(logits / temperature). The
 * draw depends on seed, position and logits alone, but is not the draw the CPU makes from the same seed. */
void nmlp_cuda_session_set_sampling(nmlp_cuda_session *session, double temperature, uint64_t seed);

/* Appends tokens. Fails, changing nothing, when an id is outside the vocabulary or the context would overflow. */
nmlp_status nmlp_cuda_session_append(nmlp_cuda_session *session, const int32_t *ids, int64_t n, nmlp_err *err);
/* logits [V] after the last appended token. */
nmlp_status nmlp_cuda_session_last_logits(nmlp_cuda_session *session, float *logits, nmlp_err *err);
/* The token chosen after the last appended one; it is not part of the text yet. `more`: how many times the caller will
 * append exactly the token it got and ask again, as far as it knows, so that those steps are started before this call
 * waits for the choice. Appending something else is allowed at any time; what was run ahead is forgotten. */
nmlp_status nmlp_cuda_session_next(nmlp_cuda_session *session, int64_t more, int32_t *id, nmlp_err *err);

/* ---- a batch of sequences ---- */

/* Sequences that run together; keys and values of all are pages of one pool. Sequences are numbered
 * 0..max_sequences-1; a number not in use is an empty sequence. Activations are rounded to bf16 at each GEMM,
 * but keep 16 bits of mantissa in a step of one row. A row's result does not depend on the other rows but for the
 * number of them, 1 or rounded up to 8, 16, 32 or not at all: that decides the kernels, and with them the order of
 * sums. One owner at a time. */
typedef struct nmlp_cuda_batch nmlp_cuda_batch;

typedef struct nmlp_cuda_batch_options {
    int64_t context; /* most positions of one sequence */
    int64_t n_pages; /* of NMLP_CUDA_PAGE_POSITIONS positions each, of all sequences together */
    int64_t max_sequences;
    int64_t max_rows;  /* of one step */
    const float *rope; /* [context, D] cos|sin of every position (copied) */
} nmlp_cuda_batch_options;

/* Rows that a step appends to one sequence. */
typedef struct nmlp_cuda_batch_item {
    int32_t sequence;
    const int32_t *ids; /* [n], inside the vocabulary */
    int64_t n;
    int64_t n_logits; /* of the last rows */
    float *logits;    /* [n_logits, V] out, host memory */
    bool choose;      /* the token after the last row, as nmlp_cuda_session_set_sampling says */
    double temperature;
    uint64_t seed;
} nmlp_cuda_batch_item;

typedef struct nmlp_cuda_batch_choice {
    int32_t sequence;
    int32_t id; /* out */
} nmlp_cuda_batch_choice;

nmlp_status nmlp_cuda_batch_create(nmlp_cuda_batch **out, const nmlp_cuda_engine *engine,
                                   const nmlp_cuda_batch_options *options, nmlp_err *err);
void nmlp_cuda_batch_destroy(nmlp_cuda_batch *batch);
/* Which page holds which positions is the caller's business: the first n pages of a sequence, in the order of its
 * positions. They must be set before a step or a choice that writes into them; pages that several sequences have are
 * only read. */
void nmlp_cuda_batch_set_pages(nmlp_cuda_batch *batch, int32_t sequence, const int32_t *pages, int64_t n);
/* The sequence's next token goes to position `length`; what is before lies in its pages. Steps that were run ahead and
 * choices not fetched are forgotten. */
void nmlp_cuda_batch_set_length(nmlp_cuda_batch *batch, int32_t sequence, int64_t length);
/* Copies a page of all layers, behind the steps that were started. */
nmlp_status nmlp_cuda_batch_copy_page(nmlp_cuda_batch *batch, int32_t to, int32_t from, nmlp_err *err);
/* Appends rows to several sequences, each at most once. Logits are in place when it returns; without any it returns
 * before the device has run. */
nmlp_status nmlp_cuda_batch_step(nmlp_cuda_batch *batch, const nmlp_cuda_batch_item *items, int64_t n_items,
                                 nmlp_err *err);
enum { NMLP_CUDA_BATCH_AHEAD = 8 };
/* The choices after the last tokens. `more` as in nmlp_cuda_session_next, for the sequences of the last step; up to
 * NMLP_CUDA_BATCH_AHEAD of them are run, for which pages are set. */
nmlp_status nmlp_cuda_batch_choose(nmlp_cuda_batch *batch, nmlp_cuda_batch_choice *items, int64_t n_items, int64_t more,
                                   nmlp_err *err);
/* Steps that were started and whose tokens were not appended yet. */
int64_t nmlp_cuda_batch_steps_ahead(const nmlp_cuda_batch *batch);

/* ---- scoring texts ---- */

/* A text of n >= 2 tokens; logprob[i] receives log p(ids[i + 1] | ids[0..i]). */
typedef struct nmlp_cuda_text {
    const int32_t *ids;
    int64_t n;
    float *logprob; /* [n - 1] */
} nmlp_cuda_text;

typedef struct nmlp_cuda_scorer nmlp_cuda_scorer;

/* For texts of up to `positions` + 1 tokens: the last is scored, not run. `rope` [positions, D] as for sessions. Texts
 * run side by side, some thousand tokens at a time; logits stay on the device. */
nmlp_status nmlp_cuda_scorer_create(nmlp_cuda_scorer **out, const nmlp_cuda_engine *engine, int64_t positions,
                                    const float *rope, nmlp_err *err);
void nmlp_cuda_scorer_destroy(nmlp_cuda_scorer *scorer);
/* Tokens that fill the device: fewer at a time run slower. */
int64_t nmlp_cuda_scorer_tokens(const nmlp_cuda_scorer *scorer);
nmlp_status nmlp_cuda_scorer_run(nmlp_cuda_scorer *scorer, const nmlp_cuda_text *texts, int64_t n, nmlp_err *err);

#endif
