#include "compress/quantize/quant_probe.h"

#include <math.h>

#include "base/mem.h"
#include "compress/quantize/quant_stand_in.h"
#include "tensor/quant.h"

enum { PROBE = 2 }; /* the option that is measured: groups of 32 */

nmlp_quant_format nmlp_quant_option(int option) {
    static const nmlp_quant_format options[NMLP_QUANT_OPTIONS] = {
        {NMLP_DTYPE_Q4, 64, false},  {NMLP_DTYPE_Q4, 64, true},   {NMLP_DTYPE_Q4, 32, false},
        {NMLP_DTYPE_Q4, 32, true},   {NMLP_DTYPE_Q6, 0, false},   {NMLP_DTYPE_Q4M, 16, false},
        {NMLP_DTYPE_Q5M, 16, false}, {NMLP_DTYPE_Q6M, 16, false}, {NMLP_DTYPE_Q8, 0, false},
        {NMLP_DTYPE_BF16, 0, false}};
    return options[option];
}

int nmlp_quant_option_runs_as(int option) {
    nmlp_dtype dtype = nmlp_quant_option(option).dtype;
    return nmlp_quant_widens_to_q8(dtype) && dtype != NMLP_DTYPE_Q4M ? NMLP_QUANT_OPTION_Q8 : option;
}

int64_t nmlp_quant_option_bytes(nmlp_dtype plain, int64_t rows, int64_t cols, int option) {
    nmlp_quant_format format = nmlp_quant_option(option);
    bool fits = option != NMLP_QUANT_OPTION_PLAIN && nmlp_quant_format_fits(&format, rows, cols);
    nmlp_view view = nmlp_view_2d(NULL, fits ? format.dtype : NMLP_DTYPE_Q8, rows, cols);
    if (option == NMLP_QUANT_OPTION_PLAIN) view.dtype = plain;
    if (fits) view.group = format.group;
    bool zeros = fits && format.zeros;
    size_t words = zeros ? nmlp_quant_per_group_words(rows, nmlp_quant_groups(&view)) : 0;
    return (int64_t)(nmlp_quant_stored_bytes(&view) + words * sizeof(uint32_t));
}

/* Nearest rounding of a view by an option, in f32, and the squared error relative to the matrix itself. */
static nmlp_status round_nearest(float **out, double *error, const nmlp_view *view, int option, nmlp_pool *pool,
                                 nmlp_err *err) {
    int64_t k = view->shape[1], rows = view->shape[0];
    nmlp_arena arena;
    nmlp_view stored;
    nmlp_status st = NMLP_OK;
    double lost = 0, all = 0;
    nmlp_arena_init(&arena);
    *out = nmlp_quant_widen(view, pool, err);
    float *row = nmlp_arena_new(&arena, (size_t)k, sizeof *row, err);
    if (!*out || !row) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_quant_format format = nmlp_quant_option(option);
    NMLP_TRY(nmlp_quant_view_new(&stored, &arena, &format, rows, k, err));
    for (int64_t i = 0; i < rows; i++) {
        float *w = *out + i * k;
        nmlp_quant_row_from_f32(&stored, i, w);
        nmlp_quant_row_to_f32(row, &stored, i);
        for (int64_t j = 0; j < k; j++) {
            lost += ((double)w[j] - (double)row[j]) * ((double)w[j] - (double)row[j]);
            all += (double)w[j] * (double)w[j];
            w[j] = row[j];
        }
    }
    *error = all > 0 ? lost / all : 0;
out:
    nmlp_arena_fini(&arena);
    return st;
}

struct trial {
    nmlp_engine *engine;
    int64_t layer;
    int matrix;
    nmlp_quant_stand_in stand_in;
};

static bool trial_changes(const void *ctx, int64_t l) { return ((const struct trial *)ctx)->layer == l; }

static nmlp_status trial_install(void *ctx, int64_t l, nmlp_err *err) {
    struct trial *p = ctx;
    nmlp_quant_stand_in *s = &p->stand_in;
    NMLP_RETURN_IF_FAILED(nmlp_quant_stand_in_init(s, p->engine, l, &nmlp_engine_model(p->engine)->layers[l], err));
    for (int64_t i = 0; i < s->n_views; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(&s->layer, i);
        float *values = NULL;
        double error;
        if (!view->data || !nmlp_quant_owns(&s->layer, i, p->matrix)) continue;
        nmlp_status st = round_nearest(&values, &error, view, PROBE, nmlp_engine_pool(p->engine), err);
        if (st != NMLP_OK) {
            nmlp_mem_free(values);
            return st;
        }
        nmlp_quant_stand_in_set(s, i, values);
    }
    return nmlp_quant_stand_in_install(s, err);
}

static void trial_remove(void *ctx, int64_t l) {
    struct trial *p = ctx;
    (void)l;
    nmlp_quant_stand_in_remove(&p->stand_in);
}

/* The embedding has the format of the head, and is the same matrix in many models. */
static nmlp_status measure_embedding(const nmlp_quant_probe *b, const float *rounded_head, double *kl, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    float *wide = NULL;
    double error;
    nmlp_loss loss;
    nmlp_status st = NMLP_OK;
    if (m->embedding.data != m->lm_head.data) {
        NMLP_TRY(round_nearest(&wide, &error, &m->embedding, PROBE, nmlp_engine_pool(b->engine), err));
        rounded_head = wide;
    }
    NMLP_TRY(nmlp_heldout_measure_embedding(b->heldout, b->engine, rounded_head, b->heldout->n_probe, &loss, err));
    *kl = fmax(loss.kl, 0);
out:
    nmlp_mem_free(wide);
    return st;
}

static nmlp_status measure_head(const nmlp_quant_probe *b, double *kl, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    nmlp_pool *pool = nmlp_engine_pool(b->engine);
    const nmlp_kernels *kernels;
    nmlp_linear *head = NULL;
    nmlp_view no_bias = {0}, view;
    float *wide = NULL;
    double error;
    nmlp_loss loss;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(round_nearest(&wide, &error, &m->lm_head, PROBE, pool, err));
    view = nmlp_view_2d(wide, NMLP_DTYPE_F32, m->config.vocab, m->config.hidden);
    NMLP_TRY(nmlp_kernels_select(&kernels, nmlp_cpu_get(), nmlp_engine_isa(b->engine), err));
    NMLP_TRY(nmlp_linear_create(&head, kernels, &view, &no_bias, pool, err));
    NMLP_TRY(nmlp_heldout_score_head(b->heldout, b->engine, head, &loss, err));
    NMLP_TRY(measure_embedding(b, wide, kl, err));
    *kl += loss.kl;
out:
    nmlp_linear_destroy(head);
    nmlp_mem_free(wide);
    return st;
}

/* How much each option loses, relative to the probe, from squared errors alone: added up over views. */
static nmlp_status add_errors(const nmlp_view *view, nmlp_pool *pool, double errors[NMLP_QUANT_OPTIONS],
                              nmlp_err *err) {
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        float *wide;
        double error = 0;
        if (nmlp_quant_option(option).dtype == NMLP_DTYPE_BF16) continue;
        nmlp_status st = round_nearest(&wide, &error, view, option, pool, err);
        nmlp_mem_free(wide);
        NMLP_RETURN_IF_FAILED(st);
        errors[option] += error;
    }
    return NMLP_OK;
}

static void fill_losses(double *loss, double kl, const double errors[NMLP_QUANT_OPTIONS]) {
    for (int i = 0; i < NMLP_QUANT_OPTIONS; i++)
        loss[i] = errors[PROBE] > 0 ? fmax(kl, 0) * errors[i] / errors[PROBE] : 0;
}

static nmlp_status probe_matrix(const nmlp_quant_probe *b, int64_t l, int matrix, double *loss, nmlp_err *err) {
    nmlp_layer *layer = &nmlp_engine_model(b->engine)->layers[l];
    struct trial trial = {.engine = b->engine, .layer = l, .matrix = matrix};
    nmlp_mlp_overrides in = {.ctx = &trial, .changes = trial_changes, .install = trial_install, .remove = trial_remove};
    double errors[NMLP_QUANT_OPTIONS] = {0};
    nmlp_loss measured = {0};
    bool any = false;
    int64_t n_views = nmlp_quant_layer_views(&nmlp_engine_model(b->engine)->config, l);
    for (int64_t i = 0; i < n_views; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(layer, i);
        if (!view->data || !nmlp_quant_owns(layer, i, matrix)) continue;
        any = true;
        NMLP_RETURN_IF_FAILED(add_errors(view, nmlp_engine_pool(b->engine), errors, err));
    }
    if (any)
        NMLP_RETURN_IF_FAILED(nmlp_heldout_measure(b->heldout, b->engine, l, b->heldout->n_probe, &in, &measured, err));
    fill_losses(loss, measured.kl, errors);
    return NMLP_OK;
}

static nmlp_status probe_head(const nmlp_quant_probe *b, double *loss, nmlp_err *err) {
    double errors[NMLP_QUANT_OPTIONS] = {0}, kl = 0;
    NMLP_RETURN_IF_FAILED(measure_head(b, &kl, err));
    NMLP_RETURN_IF_FAILED(add_errors(&nmlp_engine_model(b->engine)->lm_head, nmlp_engine_pool(b->engine), errors, err));
    fill_losses(loss, kl, errors);
    return NMLP_OK;
}

nmlp_status nmlp_quant_probe_run(const nmlp_quant_probe *b, double *loss, nmlp_err *err) {
    const nmlp_process_group *group = b->heldout->group;
    int64_t n = nmlp_engine_model(b->engine)->config.n_layers * NMLP_QUANT_MATRICES;
    for (int64_t i = 0; i <= n; i++) {
        double *to = loss + i * NMLP_QUANT_OPTIONS;
        if (!nmlp_group_deals(group, i)) continue;
        NMLP_RETURN_IF_FAILED(i == n
                                  ? probe_head(b, to, err)
                                  : probe_matrix(b, i / NMLP_QUANT_MATRICES, (int)(i % NMLP_QUANT_MATRICES), to, err));
        if (!nmlp_progress_update(b->progress, "probing", (double)(i + 1), (double)(n + 1), "matrices"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "probing was stopped");
    }
    return nmlp_group_gather_dealt(group, loss, NMLP_QUANT_OPTIONS * sizeof *loss, n + 1, err);
}
