#include "engine/logprob.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/session_internal.h"

/* Lanes of the f64 sum: wide enough for one AVX-512 register of doubles, fixed so that the result is the same
 * everywhere. */
enum { LANES = 8 };
/* Floats of one block of logits: 32 MB, beyond which more rows do not make the product faster. */
enum { LOGITS_MAX = 8 << 20 };

struct row_targets {
    int64_t begin;
    int64_t end;
};

struct nmlp_row_scorer {
    nmlp_pool *pool;
    int64_t hidden;
    int64_t vocab;
    int64_t block;              /* rows of one block */
    float *rows;                /* [block,H] */
    float *logits;              /* [block,V] */
    struct row_targets *of_row; /* [block] targets of each gathered row */
    int64_t n_gathered;
    nmlp_score_target *targets;
    int64_t n_targets;
    int64_t n_done;
};

/* exp of x <= 0 as 2^k * e^r with |r| <= ln2/2 and a polynomial of degree 6; plain arithmetic, so that compilers
 * vectorise it. */
static inline float exp_negative(float x) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    x = x < -87.0f ? -87.0f
                   : x; /* e^-87 is the last normal float; below it nothing counts against a sum of at least 1 */
    float shifted = x * 1.44269504f + rounder;
    float k = shifted - rounder;
    float r = x - k * 0.693359375f;
    r -= k * -2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* The low bits of `shifted` are k already; unsigned, so that NaN goes through without a forbidden conversion. */
    uint32_t exponent;
    float scale;
    memcpy(&exponent, &shifted, sizeof exponent);
    exponent = (exponent - 0x4B400000u + 127u) << 23;
    memcpy(&scale, &exponent, sizeof scale);
    return p * scale;
}

static float max_of(const float *x, int64_t n) {
    float lane[LANES];
    float max = x[0];
    int64_t i = 0;
    for (int j = 0; j < LANES; j++) lane[j] = x[0];
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    }
    for (int j = 0; j < LANES; j++) max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

double nmlp_log_sum_exp(const float *logits, int64_t n) {
    double lane[LANES] = {0};
    double sum = 0;
    float max = max_of(logits, n);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float e[LANES];
        for (int j = 0; j < LANES; j++) e[j] = exp_negative(logits[i + j] - max);
        for (int j = 0; j < LANES; j++) lane[j] += (double)e[j];
    }
    for (; i < n; i++) sum += (double)exp_negative(logits[i] - max);
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return (double)max + log(sum);
}

nmlp_status nmlp_row_scorer_create(nmlp_row_scorer **out, const nmlp_session *session, nmlp_err *err) {
    const nmlp_cpu_weights *w = nmlp_session_weights(session);
    const nmlp_config *c = &w->model->config;
    int64_t chunk = nmlp_session_chunk(session);
    int64_t block = LOGITS_MAX / c->vocab;
    nmlp_row_scorer *s = nmlp_mem_new(1, sizeof *s, err);
    *out = NULL;
    if (!s) return NMLP_E_NOMEM;
    s->pool = w->pool;
    s->hidden = c->hidden;
    s->vocab = c->vocab;
    s->block = block < 16 ? 16 : block;
    if (s->block > chunk) s->block = chunk;
    s->rows = nmlp_mem_new((size_t)(s->block * s->hidden), sizeof *s->rows, err);
    s->logits = nmlp_mem_new((size_t)(s->block * s->vocab), sizeof *s->logits, err);
    s->of_row = nmlp_mem_new((size_t)s->block, sizeof *s->of_row, err);
    if (!s->rows || !s->logits || !s->of_row) {
        nmlp_row_scorer_destroy(s);
        return NMLP_E_NOMEM;
    }
    *out = s;
    return NMLP_OK;
}

void nmlp_row_scorer_destroy(nmlp_row_scorer *s) {
    if (!s) return;
    nmlp_mem_free(s->rows);
    nmlp_mem_free(s->logits);
    nmlp_mem_free(s->of_row);
    nmlp_mem_free(s);
}

void nmlp_row_scorer_begin(nmlp_row_scorer *s, nmlp_score_target *targets, int64_t n_targets) {
    s->targets = targets;
    s->n_targets = n_targets;
    s->n_done = 0;
}

static void score_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    nmlp_row_scorer *s = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = s->logits + i * s->vocab;
        double total = nmlp_log_sum_exp(logits, s->vocab);
        for (int64_t t = s->of_row[i].begin; t < s->of_row[i].end; t++)
            s->targets[t].logprob = (double)logits[s->targets[t].token] - total;
    }
}

static void score_block(nmlp_row_scorer *s, nmlp_session *session) {
    if (s->n_gathered == 0) return;
    nmlp_session_logits(session, s->rows, s->n_gathered, s->logits);
    nmlp_pool_for(s->pool, s->n_gathered, 1, score_rows, s);
    s->n_gathered = 0;
}

void nmlp_row_scorer_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t n) {
    nmlp_row_scorer *s = ctx;
    while (s->n_done < s->n_targets && s->targets[s->n_done].row < first + n) {
        int64_t row = s->targets[s->n_done].row;
        int64_t begin = s->n_done;
        while (s->n_done < s->n_targets && s->targets[s->n_done].row == row) s->n_done++;
        memcpy(s->rows + s->n_gathered * s->hidden, rows + (row - first) * s->hidden, (size_t)s->hidden * sizeof *rows);
        s->of_row[s->n_gathered++] = (struct row_targets){.begin = begin, .end = s->n_done};
        if (s->n_gathered == s->block) score_block(s, session);
    }
    score_block(s, session);
}

nmlp_status nmlp_row_scorer_end(nmlp_row_scorer *s, nmlp_err *err) {
    if (s->n_done != s->n_targets)
        return nmlp_fail(err, NMLP_E_ARG, "only %lld of %lld tokens to score were run", (long long)s->n_done,
                         (long long)s->n_targets);
    for (int64_t i = 0; i < s->n_targets; i++) {
        if (!isfinite(s->targets[i].logprob))
            return nmlp_fail(err, NMLP_E_NUMERIC, "the log-probability of token %d is not finite", s->targets[i].token);
    }
    return NMLP_OK;
}
