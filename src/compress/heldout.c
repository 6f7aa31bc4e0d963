#include "compress/heldout.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { LOGIT_ROWS = 32, RUN = 64 };

/* Compares a few rows of logits; one row is one task. */
struct compare {
    const float *want, *got; /* [rows, V] */
    const int32_t *next;     /* [rows] */
    int64_t vocab;
    double *kl, *nll; /* [rows] */
};

/* e^x for x <= 0, to about 2e-7: branchless, so that the loops below become vector code. */
static inline float exp_small(float x) {
    float t = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    float whole = (t + 12582912.0f) - 12582912.0f; /* rounds to the nearest integer */
    float f = (t - whole) * 0.69314718f;
    float p = 1.0f + f * (1.0f + f * (0.5f + f * (0.16666667f + f * (0.041666668f + f * (0.0083333338f + f * 0.0013888889f)))));
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static float largest(const float *x, int64_t n) {
    float top = x[0];
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* sum of e^(x-top) and, weighted by it, of x-y; short runs in f32, their sums in f64. */
static void exp_sums(const float *x, const float *y, float top, int64_t n, double *sum, double *difference) {
    *sum = 0;
    *difference = 0;
    for (int64_t i = 0; i < n; i += RUN) {
        int64_t end = i + RUN < n ? i + RUN : n;
        float e[RUN], d[RUN];
        for (int64_t k = i; k < end; k++) e[k - i] = exp_small(x[k] - top);
        for (int64_t k = i; k < end; k++) d[k - i] = e[k - i] * (x[k] - y[k]);
        float run_e = 0;
        float run_d = 0;
        for (int64_t k = 0; k < end - i; k++) {
            run_e += e[k];
            run_d += d[k];
        }
        *sum += (double)run_e;
        *difference += (double)run_d;
    }
}

static void compare_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct compare *c = ctx;
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *p = c->want + r * c->vocab;
        const float *q = c->got + r * c->vocab;
        float top_p = largest(p, c->vocab);
        float top_q = largest(q, c->vocab);
        double sum_p, sum_q, difference, unused;
        exp_sums(p, q, top_p, c->vocab, &sum_p, &difference);
        exp_sums(q, q, top_q, c->vocab, &sum_q, &unused);
        double lse_p = (double)top_p + log(sum_p);
        double lse_q = (double)top_q + log(sum_q);
        c->kl[r] = difference / sum_p - lse_p + lse_q;
        c->nll[r] = lse_q - (double)q[c->next[r]];
    }
}

struct scorer {
    const nmlp_heldout *heldout;
    nmlp_session *session;
    float *rows;   /* [context, H] */
    float *want;   /* [LOGIT_ROWS, V] */
    float *got;
    double kl_sum, nll_sum;
    int64_t n;
};

/* Scores positions 0..context-2 of a window, whose final rows are in s->rows. */
static void score_window(struct scorer *s, int64_t window) {
    const nmlp_heldout *h = s->heldout;
    const nmlp_windows *w = h->windows;
    const nmlp_engine *engine = nmlp_session_engine(s->session);
    int64_t vocab = nmlp_engine_model(engine)->config.vocab;
    const float *reference = h->reference + window * w->context * h->hidden;
    const int32_t *ids = w->ids + (w->n_calib + window) * w->context;
    double kl[LOGIT_ROWS], nll[LOGIT_ROWS];
    for (int64_t at = 0; at < w->context - 1; at += LOGIT_ROWS) {
        int64_t n = w->context - 1 - at < LOGIT_ROWS ? w->context - 1 - at : LOGIT_ROWS;
        nmlp_session_logits(s->session, reference + at * h->hidden, n, s->want);
        nmlp_session_logits(s->session, s->rows + at * h->hidden, n, s->got);
        struct compare compare = {.want = s->want, .got = s->got, .next = ids + at + 1, .vocab = vocab, .kl = kl, .nll = nll};
        nmlp_pool_for(nmlp_engine_pool(engine), n, 1, compare_rows, &compare);
        for (int64_t i = 0; i < n; i++) {
            s->kl_sum += kl[i];
            s->nll_sum += nll[i];
        }
        s->n += n;
    }
}

static nmlp_status scorer_open(struct scorer *s, const nmlp_heldout *heldout, const nmlp_engine *engine, nmlp_err *err) {
    int64_t context = heldout->windows->context;
    int64_t vocab = nmlp_engine_model(engine)->config.vocab;
    *s = (struct scorer){.heldout = heldout};
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&s->session, engine, context, context, false, err));
    s->rows = nmlp_mem_new((size_t)(context * heldout->hidden), sizeof *s->rows, err);
    s->want = nmlp_mem_new((size_t)(LOGIT_ROWS * vocab), sizeof *s->want, err);
    s->got = nmlp_mem_new((size_t)(LOGIT_ROWS * vocab), sizeof *s->got, err);
    return s->rows && s->want && s->got ? NMLP_OK : NMLP_E_NOMEM;
}

static void scorer_close(struct scorer *s) {
    nmlp_session_destroy(s->session);
    nmlp_mem_free(s->rows);
    nmlp_mem_free(s->want);
    nmlp_mem_free(s->got);
}

static nmlp_loss scorer_loss(const struct scorer *s) {
    double n = s->n > 0 ? (double)s->n : 1;
    return (nmlp_loss){.kl = s->kl_sum / n, .nll = s->nll_sum / n, .n_tokens = s->n};
}

static nmlp_status run_dense(nmlp_heldout *h, struct scorer *s, nmlp_err *err) {
    const nmlp_windows *w = h->windows;
    size_t row_bytes = (size_t)h->hidden * sizeof(float);
    for (int64_t i = 0; i < w->n_heldout; i++) {
        int64_t first = i * w->context;
        NMLP_RETURN_IF_FAILED(
            nmlp_session_embed(s->session, w->ids + w->n_calib * w->context + first, w->context, s->rows, err));
        for (int64_t l = 0; l < h->n_layers; l++) {
            if (i < h->n_probe) memcpy(h->inputs[l] + first * h->hidden, s->rows, (size_t)w->context * row_bytes);
            nmlp_session_run_layer(s->session, l, s->rows, 0, w->context);
        }
        float *reference = h->reference + first * h->hidden;
        nmlp_session_final_norm(s->session, s->rows, w->context, reference);
        memcpy(s->rows, reference, (size_t)w->context * row_bytes);
        score_window(s, i);
    }
    return NMLP_OK;
}

nmlp_status nmlp_heldout_create(nmlp_heldout *h, const nmlp_engine *dense, const nmlp_windows *windows, int64_t n_probe,
                                nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(dense)->config;
    struct scorer s = {0};
    nmlp_status st = NMLP_OK;
    *h = (nmlp_heldout){.windows = windows, .hidden = c->hidden, .n_layers = c->n_layers};
    h->n_probe = n_probe < windows->n_heldout ? n_probe : windows->n_heldout;
    h->reference = nmlp_mem_new((size_t)(nmlp_windows_heldout_tokens(windows) * c->hidden), sizeof(float), err);
    h->inputs = nmlp_mem_new((size_t)c->n_layers, sizeof *h->inputs, err);
    if (!h->reference || !h->inputs) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int64_t l = 0; l < c->n_layers && h->n_probe > 0; l++) {
        h->inputs[l] = nmlp_mem_new((size_t)(h->n_probe * windows->context * c->hidden), sizeof(float), err);
        if (!h->inputs[l]) {
            st = NMLP_E_NOMEM;
            goto out;
        }
    }
    NMLP_TRY(scorer_open(&s, h, dense, err));
    NMLP_TRY(run_dense(h, &s, err));
    h->dense = scorer_loss(&s);
out:
    scorer_close(&s);
    if (st != NMLP_OK) nmlp_heldout_destroy(h);
    return st;
}

void nmlp_heldout_destroy(nmlp_heldout *h) {
    for (int64_t l = 0; h->inputs && l < h->n_layers; l++) nmlp_mem_free(h->inputs[l]);
    nmlp_mem_free(h->inputs);
    nmlp_mem_free(h->reference);
    *h = (nmlp_heldout){0};
}

nmlp_status nmlp_heldout_measure(const nmlp_heldout *h, const nmlp_engine *engine, int64_t from_layer, int64_t n_windows,
                                 nmlp_loss *loss, nmlp_err *err) {
    const nmlp_windows *w = h->windows;
    struct scorer s;
    nmlp_status st = NMLP_OK;
    if (n_windows > w->n_heldout) n_windows = w->n_heldout;
    NMLP_TRY(scorer_open(&s, h, engine, err));
    for (int64_t i = 0; i < n_windows; i++) {
        int64_t first = i * w->context;
        if (from_layer > 0) {
            memcpy(s.rows, h->inputs[from_layer] + first * h->hidden, (size_t)(w->context * h->hidden) * sizeof(float));
        } else {
            NMLP_TRY(nmlp_session_embed(s.session, w->ids + w->n_calib * w->context + first, w->context, s.rows, err));
        }
        for (int64_t l = from_layer; l < h->n_layers; l++) nmlp_session_run_layer(s.session, l, s.rows, 0, w->context);
        nmlp_session_final_norm(s.session, s.rows, w->context, s.rows);
        score_window(&s, i);
    }
    *loss = scorer_loss(&s);
out:
    scorer_close(&s);
    return st;
}
