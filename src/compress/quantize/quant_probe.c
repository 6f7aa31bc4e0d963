#include "compress/quantize/quant_probe.h"

#include <math.h>

#include "base/mem.h"
#include "tensor/quant.h"

enum { PROBE = 2 }; /* the option that is measured: groups of 32 */

nmlp_quant_format nmlp_quant_option(int option) {
    static const nmlp_quant_format options[NMLP_QUANT_OPTIONS] = {
        {NMLP_DTYPE_Q4, 64, false}, {NMLP_DTYPE_Q4, 64, true}, {NMLP_DTYPE_Q4, 32, false},
        {NMLP_DTYPE_Q4, 32, true},  {NMLP_DTYPE_Q8, 0, false}, {NMLP_DTYPE_BF16, 0, false}};
    return options[option];
}

int64_t nmlp_quant_option_bytes(nmlp_dtype plain, int64_t rows, int64_t cols, int option) {
    nmlp_quant_format format = nmlp_quant_option(option);
    bool fits = option != NMLP_QUANT_OPTION_PLAIN && nmlp_quant_format_fits(&format, rows, cols);
    nmlp_view view = nmlp_view_2d(NULL, fits ? format.dtype : NMLP_DTYPE_Q8, rows, cols);
    if (option == NMLP_QUANT_OPTION_PLAIN) view.dtype = plain;
    if (fits) view.group = format.group;
    size_t zeros = fits && format.zeros ? nmlp_quant_zero_words(rows, nmlp_quant_groups(&view)) * sizeof(uint32_t) : 0;
    return (int64_t)(nmlp_view_bytes(&view) + nmlp_quant_scale_bytes(&view) + zeros);
}

bool nmlp_quant_owns(const nmlp_layer *layer, int view, int matrix) {
    int owner = nmlp_quant_view_matrix(view);
    if (layer->shared_basis && owner == NMLP_QUANT_UP) owner = NMLP_QUANT_GATE;
    return owner == matrix;
}

bool nmlp_quant_is_second_v(const nmlp_layer *layer, const nmlp_view *view) {
    return layer->shared_basis && view == &layer->mlp[NMLP_MLP_UP].v;
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
    nmlp_layer wide;
    float *owned[NMLP_QUANT_VIEWS];
};

static bool trial_changes(const void *ctx, int64_t l) { return ((const struct trial *)ctx)->layer == l; }

static nmlp_status trial_install(void *ctx, int64_t l, nmlp_err *err) {
    struct trial *p = ctx;
    nmlp_layer *w = &p->wide;
    double error;
    *w = nmlp_engine_model(p->engine)->layers[l];
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        nmlp_view *view = nmlp_quant_layer_view(w, i);
        if (!view->data || !nmlp_quant_owns(w, i, p->matrix)) continue;
        if (nmlp_quant_is_second_v(w, view)) {
            *view = w->mlp[NMLP_MLP_GATE].v;
            continue;
        }
        NMLP_RETURN_IF_FAILED(round_nearest(&p->owned[i], &error, view, PROBE, nmlp_engine_pool(p->engine), err));
        *view = nmlp_view_2d(p->owned[i], NMLP_DTYPE_F32, view->shape[0], view->shape[1]);
    }
    nmlp_mlp_desc desc = {.gate = w->mlp[NMLP_MLP_GATE], .up = w->mlp[NMLP_MLP_UP], .down = w->mlp[NMLP_MLP_DOWN]};
    NMLP_RETURN_IF_FAILED(nmlp_engine_set_mlp(p->engine, l, &desc, err));
    return nmlp_engine_set_attention(p->engine, l, w, err);
}

static void trial_remove(void *ctx, int64_t l) {
    struct trial *p = ctx;
    (void)nmlp_engine_set_mlp(p->engine, l, NULL, NULL);
    (void)nmlp_engine_set_attention(p->engine, l, NULL, NULL);
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        nmlp_mem_free(p->owned[i]);
        p->owned[i] = NULL;
    }
}

static nmlp_status probe_head(const nmlp_quant_probe *b, double *kl, nmlp_err *err) {
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
    *kl = loss.kl;
out:
    nmlp_linear_destroy(head);
    nmlp_mem_free(wide);
    return st;
}

/* How much each option loses, relative to the probe, from squared errors alone. */
static nmlp_status option_errors(const nmlp_view *const views[], int n, nmlp_pool *pool,
                                 double errors[NMLP_QUANT_OPTIONS], nmlp_err *err) {
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        errors[option] = 0;
        for (int i = 0; i < n && nmlp_quant_option(option).dtype != NMLP_DTYPE_BF16; i++) {
            float *wide;
            double error = 0;
            nmlp_status st = round_nearest(&wide, &error, views[i], option, pool, err);
            nmlp_mem_free(wide);
            NMLP_RETURN_IF_FAILED(st);
            errors[option] += error;
        }
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
    const nmlp_view *views[NMLP_QUANT_VIEWS];
    double errors[NMLP_QUANT_OPTIONS];
    nmlp_loss measured = {0};
    int n = 0;
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(layer, i);
        if (view->data && nmlp_quant_owns(layer, i, matrix) && !nmlp_quant_is_second_v(layer, view)) views[n++] = view;
    }
    if (n > 0)
        NMLP_RETURN_IF_FAILED(nmlp_heldout_measure(b->heldout, b->engine, l, b->heldout->n_probe, &in, &measured, err));
    NMLP_RETURN_IF_FAILED(option_errors(views, n, nmlp_engine_pool(b->engine), errors, err));
    fill_losses(loss, measured.kl, errors);
    return NMLP_OK;
}

nmlp_status nmlp_quant_probe_run(const nmlp_quant_probe *b, double *loss, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    int64_t n = m->config.n_layers * NMLP_QUANT_MATRICES;
    const nmlp_view *const head[] = {&m->lm_head};
    double errors[NMLP_QUANT_OPTIONS], kl = 0;
    for (int64_t i = 0; i < n; i++) {
        NMLP_RETURN_IF_FAILED(probe_matrix(b, i / NMLP_QUANT_MATRICES, (int)(i % NMLP_QUANT_MATRICES),
                                           loss + i * NMLP_QUANT_OPTIONS, err));
        if (!nmlp_progress_update(b->progress, "probing", (double)(i + 1), (double)(n + 1), "matrices"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "probing was stopped");
    }
    NMLP_RETURN_IF_FAILED(probe_head(b, &kl, err));
    NMLP_RETURN_IF_FAILED(option_errors(head, 1, nmlp_engine_pool(b->engine), errors, err));
    fill_losses(loss + n * NMLP_QUANT_OPTIONS, kl, errors);
    return NMLP_OK;
}
