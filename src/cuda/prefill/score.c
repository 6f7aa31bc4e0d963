/* Log-probabilities of texts: packed one after the other, through all layers, then logits and their log-softmax a block
 * of rows at a time. */
#include <string.h>

#include "cuda/engine_internal.h"

enum {
    TOKENS = 8192,               /* rows of one pass */
    LOGITS_BYTES_MAX = 256 << 20 /* f32 logits of one block of rows */
};

struct nmlp_cuda_scorer {
    const nmlp_cuda_engine *engine;
    nmlp_cuda_arena arena;
    nmlp_cuda_prefill prefill;
    int64_t positions;  /* of a text, at most */
    int64_t rows;       /* of one pass */
    int32_t logit_rows; /* of one block of logits */
    float *rope;        /* [positions, D] */
    void **k;           /* the same memory for every layer: nothing is loaded later */
    void **v;
    int32_t *begins;  /* [rows] first row of each row's text, on the device as what follows */
    int32_t *targets; /* [rows] */
    float *logits;    /* [logit_rows, V padded] */
    float *logprobs;  /* [rows] */
    /* the pass being filled, on the host */
    int32_t *host_ids;
    int32_t *host_begins;
    int32_t *host_targets;
    float *host_logprobs;
    cudaStream_t stream;
};

static nmlp_status lay_out(nmlp_cuda_scorer *s, const float *rope, nmlp_err *err) {
    const nmlp_config *c = &s->engine->model->config;
    nmlp_cuda_arena *arena = &s->arena;
    size_t rows = (size_t)s->rows;
    size_t cache_bytes = (size_t)(c->n_kv_heads * c->head_dim) * rows * 2;
    size_t rope_bytes = (size_t)(s->positions * c->head_dim) * sizeof *rope;
    void *k = nmlp_cuda_arena_take(arena, cache_bytes);
    void *v = nmlp_cuda_arena_take(arena, cache_bytes);
    for (int64_t l = 0; l < c->n_layers; l++) {
        s->k[l] = k;
        s->v[l] = v;
    }
    s->rope = nmlp_cuda_arena_take(arena, rope_bytes);
    s->begins = nmlp_cuda_arena_take(arena, rows * sizeof *s->begins);
    s->targets = nmlp_cuda_arena_take(arena, rows * sizeof *s->targets);
    s->logprobs = nmlp_cuda_arena_take(arena, rows * sizeof *s->logprobs);
    s->logits =
        nmlp_cuda_arena_take(arena, (size_t)s->logit_rows * (size_t)nmlp_cuda_pad(c->vocab) * sizeof *s->logits);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_lay_out(&s->prefill, s->engine, arena, s->rows, err));
    if (!arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemcpy(s->rope, rope, rope_bytes, cudaMemcpyHostToDevice), "uploading the rotation",
                           err);
}

static nmlp_status make_host(nmlp_cuda_scorer *s, nmlp_err *err) {
    size_t rows = (size_t)s->rows;
    size_t n_layers = (size_t)s->engine->model->config.n_layers;
    s->k = nmlp_mem_new(n_layers, sizeof *s->k, err);
    s->v = nmlp_mem_new(n_layers, sizeof *s->v, err);
    s->host_ids = nmlp_mem_new(rows, sizeof *s->host_ids, err);
    s->host_begins = nmlp_mem_new(rows, sizeof *s->host_begins, err);
    s->host_targets = nmlp_mem_new(rows, sizeof *s->host_targets, err);
    s->host_logprobs = nmlp_mem_new(rows, sizeof *s->host_logprobs, err);
    bool made = s->k && s->v && s->host_ids && s->host_begins && s->host_targets && s->host_logprobs;
    return made ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_cuda_scorer_create(nmlp_cuda_scorer **out, const nmlp_cuda_engine *engine, int64_t positions,
                                    const float *rope, nmlp_err *err) {
    const nmlp_config *c = &engine->model->config;
    nmlp_status st = NMLP_OK;
    *out = NULL;
    if (positions < 1 || positions > c->max_positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "texts of %lld positions were asked for; the model takes 1 to %lld",
                         (long long)positions, (long long)c->max_positions);
    nmlp_cuda_scorer *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    nmlp_cuda_arena_init(&s->arena);
    s->engine = engine;
    s->positions = positions;
    s->rows = positions > TOKENS ? positions : TOKENS;
    int64_t fit = LOGITS_BYTES_MAX / ((int64_t)nmlp_cuda_pad(c->vocab) * (int64_t)sizeof(float));
    s->logit_rows = (int32_t)(fit < 1 ? 1 : fit < s->rows ? fit : s->rows);
    NMLP_TRY(make_host(s, err));
    NMLP_TRY(lay_out(s, rope, err));
    NMLP_TRY(nmlp_cuda_arena_commit(&s->arena, "scoring texts of that length", err));
    NMLP_TRY(lay_out(s, rope, err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "making a stream", err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaDeviceSynchronize(), "preparing to score", err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_cuda_scorer_destroy(s);
    return st;
}

void nmlp_cuda_scorer_destroy(nmlp_cuda_scorer *s) {
    if (!s) return;
    if (s->stream) (void)cudaStreamSynchronize(s->stream);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    nmlp_cuda_blas_destroy(s->prefill.blas);
    nmlp_cuda_arena_release(&s->arena);
    nmlp_mem_free(s->k);
    nmlp_mem_free(s->v);
    nmlp_mem_free(s->host_ids);
    nmlp_mem_free(s->host_begins);
    nmlp_mem_free(s->host_targets);
    nmlp_mem_free(s->host_logprobs);
    nmlp_mem_free(s);
}

int64_t nmlp_cuda_scorer_tokens(const nmlp_cuda_scorer *s) { return s->rows; }

/* logprobs [n] of the hidden states a pass left. */
static nmlp_status score_rows(nmlp_cuda_scorer *s, const nmlp_cuda_prefill_pass *pass, int32_t n, nmlp_err *err) {
    const nmlp_cuda_matrix *head = &s->engine->lm_head;
    const uint16_t *normed = s->prefill.normed;
    int32_t vocab = (int32_t)s->engine->model->config.vocab;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_norm(pass, s->prefill.hidden, s->engine->final_norm, n, err));
    for (int32_t at = 0; at < n; at += s->logit_rows) {
        int32_t here = n - at < s->logit_rows ? n - at : s->logit_rows;
        NMLP_RETURN_IF_FAILED(
            nmlp_cuda_prefill_gemm(pass, s->logits, false, normed + (int64_t)at * head->k, head, here, err));
        NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_launch_logprob(s->logprobs + at, s->logits, s->targets + at,
                                                                       here, vocab, nmlp_cuda_pad(vocab), s->stream),
                                              "launching log-softmax", err));
    }
    return NMLP_OK;
}

static nmlp_status upload(nmlp_cuda_scorer *s, int32_t *to, const int32_t *from, int32_t n, nmlp_err *err) {
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(to, from, (size_t)n * sizeof *from, cudaMemcpyHostToDevice, s->stream),
                           "uploading rows", err);
}

/* The n rows of host_ids. */
static nmlp_status run_pass(nmlp_cuda_scorer *s, int32_t n, nmlp_err *err) {
    nmlp_cuda_prefill_pass pass = {.engine = s->engine,
                                   .prefill = &s->prefill,
                                   .rope = s->rope,
                                   .k = s->k,
                                   .v = s->v,
                                   .context = s->rows,
                                   .text_begin = s->begins,
                                   .stream = s->stream};
    NMLP_RETURN_IF_FAILED(upload(s, s->begins, s->host_begins, n, err));
    NMLP_RETURN_IF_FAILED(upload(s, s->targets, s->host_targets, n, err));
    NMLP_RETURN_IF_FAILED(nmlp_cuda_prefill_run(&pass, s->host_ids, n, err));
    NMLP_RETURN_IF_FAILED(score_rows(s, &pass, n, err));
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(cudaMemcpyAsync(s->host_logprobs, s->logprobs, (size_t)n * sizeof *s->host_logprobs,
                                        cudaMemcpyDeviceToHost, s->stream),
                        "fetching log-probabilities", err));
    return NMLP_CUDA_CHECK(cudaStreamSynchronize(s->stream), "scoring", err);
}

static nmlp_status check_texts(const nmlp_cuda_scorer *s, const nmlp_cuda_text *texts, int64_t n, nmlp_err *err) {
    int64_t vocab = s->engine->model->config.vocab;
    for (int64_t i = 0; i < n; i++) {
        if (texts[i].n < 2 || texts[i].n - 1 > s->positions)
            return nmlp_fail(err, NMLP_E_LIMIT, "text %lld has %lld tokens; 2 to %lld can be scored", (long long)i,
                             (long long)texts[i].n, (long long)s->positions + 1);
        for (int64_t j = 0; j < texts[i].n; j++) {
            if (texts[i].ids[j] < 0 || texts[i].ids[j] >= vocab)
                return nmlp_fail(err, NMLP_E_ARG,
                                 "token id %d at position %lld of text %lld is outside the vocabulary of %lld",
                                 texts[i].ids[j], (long long)j, (long long)i, (long long)vocab);
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_cuda_scorer_run(nmlp_cuda_scorer *s, const nmlp_cuda_text *texts, int64_t n, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_texts(s, texts, n, err));
    for (int64_t i = 0; i < n;) {
        int64_t first = i;
        int32_t rows = 0;
        for (; i < n && rows + texts[i].n - 1 <= s->rows; i++) {
            int32_t begin = rows;
            for (int64_t j = 0; j + 1 < texts[i].n; j++, rows++) {
                s->host_ids[rows] = texts[i].ids[j];
                s->host_targets[rows] = texts[i].ids[j + 1];
                s->host_begins[rows] = begin;
            }
        }
        NMLP_RETURN_IF_FAILED(run_pass(s, rows, err));
        const float *from = s->host_logprobs;
        for (; first < i; from += texts[first].n - 1, first++)
            memcpy(texts[first].logprob, from, (size_t)(texts[first].n - 1) * sizeof *from);
    }
    return NMLP_OK;
}
