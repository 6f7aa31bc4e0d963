#include "compress/quantize/quant_budget.h"

#include <math.h>

#include "base/mem.h"
#include "compress/ranks/allocate.h"
#include "tensor/quant.h"

enum { UNITS = 1 << 15, N_OPTIONS = 4, PROBE = 1 };

/* From the smallest on; a matrix whose groups do not fit takes Q8 instead (quant_layer.h). */
static const nmlp_quant_format options[N_OPTIONS] = {
    {NMLP_DTYPE_Q4, 64}, {NMLP_DTYPE_Q4, 32}, {NMLP_DTYPE_Q8, 0}, {NMLP_DTYPE_BF16, 0}};

/* ---- bytes ---- */

static int64_t stored_bytes(const nmlp_view *view) {
    return view->data ? (int64_t)(nmlp_view_bytes(view) + nmlp_quant_scale_bytes(view)) : 0;
}

/* A view as an option stores it, without memory. */
static nmlp_view as_stored(const nmlp_view *view, int option) {
    if (options[option].dtype == NMLP_DTYPE_BF16 || !view->data) return *view;
    nmlp_view v = nmlp_view_2d(view->data, options[option].dtype, view->shape[0], view->shape[1]);
    v.group = options[option].group;
    nmlp_quant_format format = options[option];
    if (!nmlp_quant_format_fits(&format, view->shape[0], view->shape[1])) {
        v.dtype = NMLP_DTYPE_Q8;
        v.group = 0;
    }
    return v;
}

/* Gate and up with a shared v are one choice. */
static bool belongs(const nmlp_layer *layer, int view, int matrix) {
    int owner = nmlp_quant_view_matrix(view);
    if (layer->shared_basis && owner == NMLP_QUANT_UP) owner = NMLP_QUANT_GATE;
    return owner == matrix;
}

static bool is_second_v(const nmlp_layer *layer, const nmlp_view *view) {
    return layer->shared_basis && view == &layer->mlp[NMLP_MLP_UP].v;
}

static int64_t matrix_bytes(nmlp_layer *layer, int matrix, int option) {
    int64_t sum = 0;
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(layer, i);
        if (!belongs(layer, i, matrix) || is_second_v(layer, view)) continue;
        nmlp_view stored = as_stored(view, option);
        sum += stored_bytes(&stored);
    }
    return sum;
}

static int64_t head_bytes(const nmlp_model *m, int option) {
    nmlp_view head = as_stored(&m->lm_head, option), table = as_stored(&m->embedding, option);
    return stored_bytes(&head) + (m->embedding.data == m->lm_head.data ? 0 : stored_bytes(&table));
}

/* Of everything that stays as it is. */
static int64_t fixed_bytes(const nmlp_model *m) {
    int64_t rest = nmlp_model_measure(m).bytes - head_bytes(m, N_OPTIONS - 1);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) rest -= matrix_bytes(&m->layers[l], i, N_OPTIONS - 1);
    return rest;
}

int64_t nmlp_quant_budget_least(const nmlp_model *m) {
    int64_t sum = fixed_bytes(m) + head_bytes(m, 0);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) sum += matrix_bytes(&m->layers[l], i, 0);
    return sum;
}

/* ---- probes ---- */

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
    NMLP_TRY(nmlp_quant_view_new(&stored, &arena, &options[option], rows, k, err));
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

struct probe {
    nmlp_engine *engine;
    int64_t layer;
    int matrix;
    nmlp_layer wide;
    float *owned[NMLP_QUANT_VIEWS];
};

static bool probe_changes(const void *ctx, int64_t l) { return ((const struct probe *)ctx)->layer == l; }

static nmlp_status probe_install(void *ctx, int64_t l, nmlp_err *err) {
    struct probe *p = ctx;
    nmlp_layer *w = &p->wide;
    double error;
    *w = nmlp_engine_model(p->engine)->layers[l];
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        nmlp_view *view = nmlp_quant_layer_view(w, i);
        if (!view->data || !belongs(w, i, p->matrix)) continue;
        if (is_second_v(w, view)) {
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

static void probe_remove(void *ctx, int64_t l) {
    struct probe *p = ctx;
    (void)nmlp_engine_set_mlp(p->engine, l, NULL, NULL);
    (void)nmlp_engine_set_attention(p->engine, l, NULL, NULL);
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        nmlp_mem_free(p->owned[i]);
        p->owned[i] = NULL;
    }
}

static nmlp_status probe_head(const nmlp_quant_budget *b, double *kl, nmlp_err *err) {
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
static nmlp_status option_errors(const nmlp_view *const views[], int n, nmlp_pool *pool, double errors[N_OPTIONS],
                                 nmlp_err *err) {
    for (int option = 0; option < N_OPTIONS; option++) {
        errors[option] = 0;
        for (int i = 0; i < n && options[option].dtype != NMLP_DTYPE_BF16; i++) {
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

/* ---- the choice ---- */

struct choice {
    nmlp_rank_group *groups; /* of all layers, then the head */
    nmlp_rank_option *options;
    int64_t *chosen;
    int64_t n;
};

static void fill_group(struct choice *c, int64_t group, double kl, const double errors[N_OPTIONS],
                       const int64_t bytes[N_OPTIONS]) {
    nmlp_rank_option *o = c->options + group * N_OPTIONS;
    for (int i = 0; i < N_OPTIONS; i++)
        o[i] = (nmlp_rank_option){.cost = (double)bytes[i],
                                  .loss = errors[PROBE] > 0 ? fmax(kl, 0) * errors[i] / errors[PROBE] : 0};
    c->groups[group] = (nmlp_rank_group){.options = o, .n_options = N_OPTIONS};
}

static nmlp_status fill_matrix(const nmlp_quant_budget *b, struct choice *c, int64_t l, int matrix, nmlp_err *err) {
    nmlp_layer *layer = &nmlp_engine_model(b->engine)->layers[l];
    struct probe probe = {.engine = b->engine, .layer = l, .matrix = matrix};
    nmlp_mlp_overrides in = {.ctx = &probe, .changes = probe_changes, .install = probe_install, .remove = probe_remove};
    const nmlp_view *views[NMLP_QUANT_VIEWS];
    double errors[N_OPTIONS];
    int64_t bytes[N_OPTIONS];
    nmlp_loss loss = {0};
    int n = 0;
    for (int i = 0; i < NMLP_QUANT_VIEWS; i++) {
        const nmlp_view *view = nmlp_quant_layer_view(layer, i);
        if (view->data && belongs(layer, i, matrix) && !is_second_v(layer, view)) views[n++] = view;
    }
    if (n > 0)
        NMLP_RETURN_IF_FAILED(nmlp_heldout_measure(b->heldout, b->engine, l, b->heldout->n_probe, &in, &loss, err));
    NMLP_RETURN_IF_FAILED(option_errors(views, n, nmlp_engine_pool(b->engine), errors, err));
    for (int i = 0; i < N_OPTIONS; i++) bytes[i] = matrix_bytes(layer, matrix, i);
    fill_group(c, l * NMLP_QUANT_MATRICES + matrix, loss.kl, errors, bytes);
    return NMLP_OK;
}

static nmlp_status fill_head(const nmlp_quant_budget *b, struct choice *c, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    const nmlp_view *const views[] = {&m->lm_head};
    double errors[N_OPTIONS], kl = 0;
    int64_t bytes[N_OPTIONS];
    NMLP_RETURN_IF_FAILED(probe_head(b, &kl, err));
    NMLP_RETURN_IF_FAILED(option_errors(views, 1, nmlp_engine_pool(b->engine), errors, err));
    for (int i = 0; i < N_OPTIONS; i++) bytes[i] = head_bytes(m, i);
    fill_group(c, c->n - 1, kl, errors, bytes);
    return NMLP_OK;
}

static nmlp_status fill_groups(const nmlp_quant_budget *b, struct choice *c, nmlp_err *err) {
    for (int64_t g = 0; g < c->n - 1; g++) {
        NMLP_RETURN_IF_FAILED(fill_matrix(b, c, g / NMLP_QUANT_MATRICES, (int)(g % NMLP_QUANT_MATRICES), err));
        if (!nmlp_progress_update(b->progress, "probing", (double)(g + 1), (double)c->n, "matrices"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "probing was stopped");
    }
    return fill_head(b, c, err);
}

static nmlp_status check_bytes(const nmlp_quant_budget *b, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    int64_t least = nmlp_quant_budget_least(m), most = nmlp_model_measure(m).bytes;
    if (b->bytes >= most)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "is %lld; the checkpoint has %lld: nothing to do",
                               (long long)b->bytes, (long long)most);
    if (b->bytes >= least) return NMLP_OK;
    nmlp_fail_field(err, NMLP_E_LIMIT, "budget_bytes", "is %lld; with all weights in 4 bits it takes %lld",
                    (long long)b->bytes, (long long)least);
    nmlp_fail_hint(err, "fewer bytes need lower ranks too: compress the checkpoint first");
    return NMLP_E_LIMIT;
}

nmlp_status nmlp_quant_budget_choose(const nmlp_quant_budget *b, nmlp_quant_format *formats, nmlp_quant_format *head,
                                     nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    struct choice c = {.n = m->config.n_layers * NMLP_QUANT_MATRICES + 1};
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(check_bytes(b, err));
    nmlp_arena_init(&arena);
    c.groups = nmlp_arena_new(&arena, (size_t)c.n, sizeof *c.groups, err);
    c.options = nmlp_arena_new(&arena, (size_t)(c.n * N_OPTIONS), sizeof *c.options, err);
    c.chosen = nmlp_arena_new(&arena, (size_t)c.n, sizeof *c.chosen, err);
    if (!c.groups || !c.options || !c.chosen) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(fill_groups(b, &c, err));
    /* Costs are rounded up to units: the least bytes must still fit. */
    double room = (double)(b->bytes - fixed_bytes(m)), unit = room / UNITS;
    st = nmlp_knapsack_solve(c.groups, c.n, room, unit, c.chosen, err);
    if (st == NMLP_E_LIMIT) {
        st = NMLP_OK;
        for (int64_t g = 0; g < c.n; g++) c.chosen[g] = 0;
    }
    if (st != NMLP_OK) goto out;
    for (int64_t g = 0; g < c.n - 1; g++) formats[g] = options[c.chosen[g]];
    for (int64_t l = 0; l < m->config.n_layers; l++)
        if (m->layers[l].shared_basis)
            formats[l * NMLP_QUANT_MATRICES + NMLP_QUANT_UP] = formats[l * NMLP_QUANT_MATRICES + NMLP_QUANT_GATE];
    *head = options[c.chosen[c.n - 1]];
out:
    nmlp_arena_fini(&arena);
    return st;
}
