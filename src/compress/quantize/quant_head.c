/* The output matrix and the embedding in fewer bits. */
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/quantize/quant_file.h"
#include "compress/quantize/quant_pass_internal.h"
#include "compress/quantize/quant_sum.h"
#include "tensor/quant.h"

enum { WINDOWS_MIN = 32, EMBED_ROWS_PER_TASK = 64 };

static void on_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    nmlp_quant_sum *sum = ctx;
    (void)session;
    memcpy(sum->x + first * sum->n, rows, (size_t)(s * sum->n) * sizeof *rows);
}

/* Second moments of what the head sees, from the model as it is on n of the calibration windows, for every process. */
static nmlp_status sum_windows(nmlp_quant_pass *p, const nmlp_quant_summer *summer, nmlp_quant_sum *sum, int64_t n,
                               nmlp_err *err) {
    const nmlp_calib_windows *w = p->share->all;
    const nmlp_process_group *group = p->share->group;
    nmlp_session *session = NULL;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_session_create(&session, p->engine, w->context, w->context, false, err));
    for (int64_t t = 0; t < nmlp_quant_share_turns(p->share, n); t++) {
        int64_t i = t * nmlp_group_size(group) + nmlp_group_rank(group);
        if (i < n) {
            int64_t window = i * w->n_calib / n;
            nmlp_session_truncate(session, 0);
            NMLP_TRY(nmlp_session_append(session, w->ids + window * w->context, w->context, on_rows, sum, err));
        }
        NMLP_TRY(nmlp_quant_pass_advance(p, 0, err));
        NMLP_TRY(nmlp_quant_sum_add(sum, summer, nmlp_quant_share_in_turn(p->share, n, t), err));
    }
    NMLP_TRY(nmlp_quant_sum_finish(sum, summer, n * w->context, 0, err));
    NMLP_TRY(nmlp_group_give(group, sum->second, sum->n * sum->n * (int64_t)sizeof *sum->second, 0, err));
out:
    nmlp_session_destroy(session);
    return st;
}

static nmlp_status head_moments(nmlp_quant_pass *p, double **moments, nmlp_arena *arena, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(p->engine)->config;
    const nmlp_calib_windows *w = p->share->all;
    nmlp_quant_summer summer;
    nmlp_quant_sum sum;
    int64_t n = nmlp_min(w->n_calib, nmlp_max(WINDOWS_MIN, 4 * c->hidden / w->context));
    NMLP_RETURN_IF_FAILED(
        nmlp_quant_summer_init(&summer, p->share, nmlp_engine_isa(p->engine), nmlp_engine_pool(p->engine), arena, err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_sum_init(&sum, &summer, c->hidden, false, arena, err));
    NMLP_RETURN_IF_FAILED(sum_windows(p, &summer, &sum, n, err));
    *moments = sum.second;
    return NMLP_OK;
}

/* The rows of a matrix that this process rounds. */
static nmlp_view own_rows(const nmlp_quant_pass *p, const nmlp_view *view) {
    int rank = nmlp_group_rank(p->share->group);
    int64_t first = nmlp_quant_share_row(p->share, view->shape[0], rank);
    return nmlp_view_rows(view, first, nmlp_quant_share_row(p->share, view->shape[0], rank + 1) - first);
}

static nmlp_status round_head(nmlp_quant_pass *p, double *moments, nmlp_view *head, nmlp_arena *arena, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(p->engine);
    nmlp_pool *pool = nmlp_engine_pool(p->engine);
    nmlp_gptq gptq = {0};
    float *w = NULL;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_gptq_init(&gptq, pool, moments, m->config.hidden, err));
    NMLP_TRY(nmlp_quant_view_new(head, arena, &p->head, m->config.vocab, m->config.hidden, err));
    nmlp_view from = own_rows(p, &m->lm_head), to = own_rows(p, head);
    w = nmlp_quant_widen(&from, pool, err);
    if (!w) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_file_map_release(from.data, nmlp_view_bytes(&from));
    NMLP_TRY(nmlp_gptq_round(&gptq, w, &to, NULL, err));
    NMLP_TRY(nmlp_quant_share_rows(p->share, head, err));
out:
    nmlp_mem_free(w);
    nmlp_gptq_fini(&gptq);
    return st;
}

struct embedding {
    nmlp_view from, to;
    float *rows; /* [threads, H] */
};

/* An embedding of its own sees no inputs: every row by itself. */
static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct embedding *e = ctx;
    float *row = e->rows + thread * e->from.shape[1];
    for (int64_t i = begin; i < end; i++) {
        nmlp_quant_row_to_f32(row, &e->from, i);
        nmlp_quant_row_from_f32(&e->to, i, row);
    }
}

static nmlp_status round_embedding(nmlp_quant_pass *p, nmlp_view *table, nmlp_arena *arena, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(p->engine);
    nmlp_pool *pool = nmlp_engine_pool(p->engine);
    int64_t h = m->config.hidden;
    NMLP_RETURN_IF_FAILED(nmlp_quant_view_new(table, arena, &p->head, m->config.vocab, h, err));
    struct embedding e = {.from = own_rows(p, &m->embedding), .to = own_rows(p, table)};
    e.rows = nmlp_arena_new(arena, (size_t)(nmlp_pool_threads(pool) * h), sizeof *e.rows, err);
    if (!e.rows) return NMLP_E_NOMEM;
    nmlp_pool_for(pool, e.to.shape[0], EMBED_ROWS_PER_TASK, embed_rows, &e);
    return nmlp_quant_share_rows(p->share, table, err);
}

static nmlp_status make_head(nmlp_quant_pass *p, const char *path, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(p->engine);
    nmlp_view head = m->lm_head, table = m->embedding;
    nmlp_view *const views[] = {&table, &head};
    nmlp_arena arena;
    double *moments;
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&arena);
    NMLP_TRY(head_moments(p, &moments, &arena, err));
    NMLP_TRY(round_head(p, moments, &head, &arena, err));
    if (m->embedding.data == m->lm_head.data)
        table = head;
    else
        NMLP_TRY(round_embedding(p, &table, &arena, err));
    if (nmlp_group_leads(p->share->group)) NMLP_TRY(nmlp_quant_file_write(path, p->fingerprint, views, 2, err));
    NMLP_TRY(nmlp_group_meet(p->share->group, err));
out:
    nmlp_arena_fini(&arena);
    return st;
}

nmlp_status nmlp_quant_head_open(nmlp_quant_pass *p, nmlp_work_tally *tally, nmlp_err *err) {
    char path[NMLP_QUANT_PATH_MAX];
    nmlp_view *const views[] = {&p->made->embedding, &p->made->lm_head};
    nmlp_work_state state;
    if (!nmlp_dtype_is_quantised(p->head.dtype)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, p->work_dir, "head.quant", err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_file_open(&p->made->head_map, path, p->fingerprint, views, 2, &state, err));
    NMLP_RETURN_IF_FAILED(nmlp_work_agree(p->share->group, state, p->work_dir, err));
    tally->n[state]++;
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(make_head(p, path, err));
    NMLP_RETURN_IF_FAILED(nmlp_quant_file_open(&p->made->head_map, path, p->fingerprint, views, 2, &state, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
}
