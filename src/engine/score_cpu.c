#include "engine/score_cpu.h"

#include <stdlib.h>

#include "engine/logprob.h"
#include "engine/session_internal.h"

/* Rows of one call: many chunks, so that a short last one costs little. */
enum { CALL_ROWS = 8192 };

struct nmlp_cpu_scorer {
    nmlp_session *session;
    nmlp_row_scorer *rows;
    int64_t *row_at; /* [positions] the row that holds each position of the current text */
    nmlp_segment *segments;
    size_t segments_capacity;
    nmlp_score_target *targets;
    size_t n_targets, targets_capacity;
    nmlp_score_on_rows *on_rows;
    void *ctx;
    bool stop;
};

nmlp_status nmlp_cpu_scorer_create(nmlp_cpu_scorer **out, const nmlp_cpu_weights *w, int64_t positions, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t most = w->model->config.max_positions;
    int64_t context = positions > NMLP_CHUNK_DEFAULT ? positions : NMLP_CHUNK_DEFAULT; /* room for a full chunk */
    *out = NULL;
    nmlp_cpu_scorer *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->row_at = nmlp_mem_new((size_t)positions, sizeof *s->row_at, err);
    if (!s->row_at) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_session_create_cpu(&s->session, w, context < most ? context : most, 0, false, err));
    NMLP_TRY(nmlp_row_scorer_create(&s->rows, s->session, err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_cpu_scorer_destroy(s);
    return st;
}

void nmlp_cpu_scorer_destroy(nmlp_cpu_scorer *s) {
    if (!s) return;
    nmlp_row_scorer_destroy(s->rows);
    nmlp_session_destroy(s->session);
    nmlp_mem_free(s->row_at);
    nmlp_mem_free(s->segments);
    nmlp_mem_free(s->targets);
    nmlp_mem_free(s);
}

int64_t nmlp_cpu_scorer_tokens(const nmlp_cpu_scorer *s) {
    (void)s;
    return CALL_ROWS;
}

/* Rows at the beginning that are those of the text before. */
static int64_t count_shared(const nmlp_score_text *text, const nmlp_score_text *before) {
    int64_t n = 0;
    if (!before) return 0;
    while (n < text->n - 1 && n < before->n - 1 && text->ids[n] == before->ids[n]) n++;
    return n;
}

int64_t nmlp_cpu_scorer_rows(const nmlp_score_text *text, const nmlp_score_text *before) {
    return text->n - 1 - count_shared(text, before);
}

static nmlp_status add_text(nmlp_cpu_scorer *s, const nmlp_score_text *texts, int64_t i, int64_t *n_rows,
                            nmlp_err *err) {
    const nmlp_score_text *text = &texts[i];
    int64_t shared = count_shared(text, i > 0 ? text - 1 : NULL);
    void *targets = s->targets;
    size_t need = s->n_targets + (size_t)(text->n - text->score);
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&targets, &s->targets_capacity, need, sizeof *s->targets, err));
    s->targets = targets;
    s->segments[i] = (nmlp_segment){.ids = text->ids + shared, .n = text->n - 1 - shared, .first = shared};
    for (int64_t p = shared; p < text->n - 1; p++) s->row_at[p] = (*n_rows)++;
    for (int64_t p = text->score - 1; p < text->n - 1; p++)
        s->targets[s->n_targets++] =
            (nmlp_score_target){.row = s->row_at[p], .token = text->ids[p + 1], .text = (int32_t)i};
    return NMLP_OK;
}

static int by_row(const void *a, const void *b) {
    const nmlp_score_target *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->text < y->text ? -1 : x->text > y->text;
}

static void on_session_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t n) {
    nmlp_cpu_scorer *s = ctx;
    nmlp_row_scorer_rows(s->rows, session, rows, first, n);
    if (!s->on_rows(s->ctx, n)) s->stop = true;
}

nmlp_status nmlp_cpu_scorer_run(nmlp_cpu_scorer *s, const nmlp_score_text *texts, int64_t n,
                                nmlp_score_on_rows *on_rows, void *ctx, nmlp_err *err) {
    void *segments = s->segments;
    int64_t n_rows = 0;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&segments, &s->segments_capacity, (size_t)n, sizeof *s->segments, err));
    s->segments = segments;
    s->n_targets = 0;
    s->on_rows = on_rows;
    s->ctx = ctx;
    s->stop = false;
    for (int64_t i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(add_text(s, texts, i, &n_rows, err));
    qsort(s->targets, s->n_targets, sizeof *s->targets, by_row);
    nmlp_session_truncate(s->session, 0);
    nmlp_row_scorer_begin(s->rows, s->targets, (int64_t)s->n_targets);
    NMLP_RETURN_IF_FAILED(nmlp_session_run_packed(s->session, s->segments, n, on_session_rows, s, err));
    NMLP_RETURN_IF_FAILED(nmlp_row_scorer_end(s->rows, err));
    for (int64_t i = 0; i < n; i++) *texts[i].loglik = 0;
    for (size_t t = 0; t < s->n_targets; t++) *texts[s->targets[t].text].loglik += s->targets[t].logprob;
    return s->stop ? nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped") : NMLP_OK;
}
