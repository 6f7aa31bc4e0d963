/* The second pass through a layer with experts: one after the other is fitted to what the others leave of the target,
 * on the tokens that the compressed model's router sends to it. */
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/calibrate/expert_sample.h"
#include "compress/factor/products.h"
#include "compress/refit/refit_internal.h"

enum { PATH_MAX_BYTES = 4096 };

/* Fewer held-out tokens cannot say whether a fit is better. */
static const int64_t least_heldout = 16;
/* What an expert should add is divided by the weight it gets. */
static const float least_weight = 1e-6f;

struct experts {
    nmlp_refit_pass *p;
    int64_t layer;
    nmlp_layer_mlps base;
    nmlp_layer_file *files;      /* [E] */
    nmlp_expert_choice *choices; /* [T,k] */
    float *out;                  /* [T,H] what all experts add */
    /* Of the expert at hand, its tokens in order. */
    int64_t n, n_calib;
    int64_t *tokens;                 /* [n] */
    float *routed;                   /* [n] the router's weights */
    float *weights;                  /* [n] the same times those of the pass */
    float *x, *z, *target, *y, *fit; /* [n,H] */
    nmlp_arena arena;
};

static const nmlp_config *config_of(const struct experts *x) { return &nmlp_engine_model(x->p->r->engine)->config; }

static nmlp_status new_memory(struct experts *x, nmlp_err *err) {
    const nmlp_config *c = config_of(x);
    int64_t n_tokens = nmlp_calib_windows_tokens(&x->p->r->share->own), most = 1;
    int64_t n_choices = n_tokens * c->experts_per_token;
    x->files = nmlp_arena_new(&x->arena, (size_t)c->n_experts, sizeof *x->files, err);
    x->choices = nmlp_arena_new(&x->arena, (size_t)n_choices, sizeof *x->choices, err);
    x->out = nmlp_arena_new(&x->arena, (size_t)(n_tokens * c->hidden), sizeof *x->out, err);
    int64_t *counts = nmlp_arena_new(&x->arena, (size_t)c->n_experts, sizeof *counts, err);
    if (!x->files || !x->choices || !x->out || !counts) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(nmlp_expert_route_rows(x->p->r->engine, x->layer, x->p->z, n_tokens, x->choices, err));
    for (int64_t i = 0; i < n_choices; i++) most = nmlp_max(most, ++counts[x->choices[i].expert]);
    x->tokens = nmlp_arena_new(&x->arena, (size_t)most, sizeof *x->tokens, err);
    x->routed = nmlp_arena_new(&x->arena, (size_t)most, sizeof(float), err);
    x->weights = nmlp_arena_new(&x->arena, (size_t)most, sizeof(float), err);
    float **const rows[] = {&x->x, &x->z, &x->target, &x->y, &x->fit};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        *rows[i] = nmlp_arena_new(&x->arena, (size_t)(most * c->hidden), sizeof(float), err);
        if (!*rows[i]) return NMLP_E_NOMEM;
    }
    return x->tokens && x->routed && x->weights ? NMLP_OK : NMLP_E_NOMEM;
}

/* Tokens, weights and compressed inputs of expert e. */
static void gather(struct experts *x, int64_t e) {
    const nmlp_config *c = config_of(x);
    int64_t n_tokens = nmlp_calib_windows_tokens(&x->p->r->share->own), k = c->experts_per_token;
    int64_t calib_end = nmlp_calib_windows_calib_tokens(&x->p->r->share->own);
    x->n = x->n_calib = 0;
    for (int64_t i = 0; i < n_tokens * k; i++) {
        if (x->choices[i].expert != e) continue;
        int64_t t = i / k;
        float weight = x->choices[i].weight > least_weight ? x->choices[i].weight : least_weight;
        x->tokens[x->n] = t;
        x->routed[x->n] = weight;
        x->weights[x->n] = weight * x->p->weights[t];
        memcpy(x->z + x->n * c->hidden, x->p->z + t * c->hidden, (size_t)c->hidden * sizeof(float));
        x->n_calib += t < calib_end;
        x->n++;
    }
}

static nmlp_refit_layer layer_of(const struct experts *x, int64_t e) {
    const nmlp_refit_pass *p = x->p;
    const nmlp_model *m = nmlp_engine_model(p->r->engine);
    nmlp_refit_layer layer = {.r = p->r,
                              .layer = x->layer,
                              .dense = m->layers[x->layer].experts[e].mlp,
                              .kernels = p->kernels,
                              .pool = nmlp_engine_pool(p->r->engine),
                              .hidden = m->config.hidden,
                              .intermediate = m->config.expert_intermediate,
                              .n_calib = x->n_calib,
                              .calib_tokens = x->n_calib,
                              .n_heldout = x->n - x->n_calib,
                              .context = p->r->share->all->context,
                              .x = x->x,
                              .z = x->z,
                              .target = x->target,
                              .weights = x->weights,
                              .weighted = true,
                              .row_weights = p->r->factor_files[x->layer].experts[e].row_weights};
    memcpy(layer.w, p->w, sizeof layer.w);
    return layer;
}

/* out += sign * weight * rows of the expert at hand. */
static void add_rows(struct experts *x, const float *rows, float sign) {
    int64_t h = config_of(x)->hidden;
    for (int64_t i = 0; i < x->n; i++) {
        float factor = sign * x->routed[i];
        for (int64_t j = 0; j < h; j++) x->out[x->tokens[i] * h + j] += factor * rows[i * h + j];
    }
}

/* out = what the experts add with these MLPs [E]. */
static nmlp_status run_all(struct experts *x, const nmlp_mlp_desc *descs, nmlp_err *err) {
    const nmlp_config *c = config_of(x);
    memset(x->out, 0, (size_t)(nmlp_calib_windows_tokens(&x->p->r->share->own) * c->hidden) * sizeof *x->out);
    for (int64_t e = 0; e < c->n_experts; e++) {
        gather(x, e);
        nmlp_refit_layer layer = layer_of(x, e);
        if (x->n == 0) continue;
        NMLP_RETURN_IF_FAILED(nmlp_refit_run_mlp(&layer, &descs[e], x->z, x->n, x->y, NULL, err));
        add_rows(x, x->y, 1);
    }
    return NMLP_OK;
}

/* Weighted squared distance of what the layer adds from what it should, on held-out tokens. */
static double heldout_error(const struct experts *x) {
    const nmlp_calib_windows *w = &x->p->r->share->own;
    int64_t h = config_of(x)->hidden;
    double error = 0;
    for (int64_t t = nmlp_calib_windows_calib_tokens(w); t < nmlp_calib_windows_tokens(w); t++) {
        double sum = 0, weight = (double)x->p->weights[t];
        for (int64_t i = t * h; i < (t + 1) * h; i++) {
            double d = (double)x->p->y[i] - (double)x->out[i];
            sum += d * d;
        }
        error += sum * weight * weight;
    }
    return error;
}

/* What expert e should add: its part of what the others leave. */
static void set_target(struct experts *x) {
    int64_t h = config_of(x)->hidden;
    for (int64_t i = 0; i < x->n; i++) {
        const float *want = x->p->y + x->tokens[i] * h, *have = x->out + x->tokens[i] * h;
        memcpy(x->x + i * h, x->p->x + x->tokens[i] * h, (size_t)h * sizeof(float));
        for (int64_t j = 0; j < h; j++) x->target[i * h + j] = x->y[i * h + j] + (want[j] - have[j]) / x->routed[i];
    }
}

/* Fits expert e, moves `out` to the result and writes its file. */
static nmlp_status refit_expert(struct experts *x, int64_t e, double error_before, nmlp_err *err) {
    const nmlp_refit_job *r = x->p->r;
    const nmlp_factors *dense = nmlp_engine_model(r->engine)->layers[x->layer].experts[e].mlp;
    nmlp_refit_variant tall = {0}, down = {.desc = x->base.descs[e]};
    char path[PATH_MAX_BYTES];
    double own[2], errors[2] = {error_before, error_before}, energy;
    nmlp_status st = NMLP_OK;
    gather(x, e);
    nmlp_refit_layer layer = layer_of(x, e);
    NMLP_TRY(nmlp_expert_ranks_of(&r->factor_files[x->layer], &r->ranks[x->layer], e, &layer.ranks, err));
    if (x->n_calib > 0 && layer.n_heldout >= least_heldout) {
        NMLP_TRY(nmlp_refit_run_mlp(&layer, &x->base.descs[e], x->z, x->n, x->y, NULL, err));
        set_target(x);
        for (int i = 0; i < nmlp_refit_widened(r); i++) nmlp_widen(layer.pool, x->p->w[i], &dense[i].w);
        NMLP_TRY(nmlp_refit_mlp(&layer, &x->base.descs[e], &tall, &down, own, err));
        NMLP_TRY(nmlp_refit_run_mlp(&layer, &down.desc, x->z, x->n, x->fit, NULL, err));
        add_rows(x, x->y, -1);
        add_rows(x, x->fit, 1);
    }
    errors[1] = heldout_error(x);
    NMLP_TRY(nmlp_refit_energy(x->p, &energy, err));
    nmlp_layer_file file = nmlp_refit_file_of(&layer, &down, errors, energy);
    NMLP_TRY(nmlp_refit_path(path, sizeof path, r->work_dir, x->layer, e, true, err));
    NMLP_TRY(nmlp_layer_file_write(path, r->fingerprint, &file, NMLP_MODULE_MLP, dense, err));
out:
    nmlp_refit_variant_fini(&down);
    nmlp_refit_variant_fini(&tall);
    nmlp_mlp_release(dense);
    return st;
}

/* Opens what an earlier run finished; descs [E] of it where all of it is there. */
static nmlp_status open_finished(struct experts *x, nmlp_mlp_desc *descs, bool *all, nmlp_err *err) {
    const nmlp_refit_job *r = x->p->r;
    const nmlp_layer *dense = &nmlp_engine_model(r->engine)->layers[x->layer];
    *all = true;
    for (int64_t e = 0; e < config_of(x)->n_experts && *all; e++) {
        char path[PATH_MAX_BYTES];
        nmlp_work_state state;
        nmlp_layer_ranks ranks;
        nmlp_layer_file_close(&x->files[e]);
        NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, sizeof path, r->work_dir, x->layer, e, true, err));
        NMLP_RETURN_IF_FAILED(nmlp_expert_ranks_of(&r->factor_files[x->layer], &r->ranks[x->layer], e, &ranks, err));
        NMLP_RETURN_IF_FAILED(nmlp_layer_file_open(&x->files[e], path, r->fingerprint, &ranks, 1, NMLP_MODULE_MLP,
                                                   dense->experts[e].mlp, &state, err));
        *all = state == NMLP_WORK_VALID;
        if (*all) descs[e] = nmlp_layer_file_mlp(&x->files[e], dense->experts[e].mlp);
    }
    return NMLP_OK;
}

static nmlp_status refit_all(struct experts *x, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(run_all(x, x->base.descs, err));
    double before = heldout_error(x);
    for (int64_t e = 0; e < config_of(x)->n_experts; e++) NMLP_RETURN_IF_FAILED(refit_expert(x, e, before, err));
    return NMLP_OK;
}

nmlp_status nmlp_refit_experts(nmlp_refit_pass *p, int64_t l, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(p->r->engine);
    struct experts x = {.p = p, .layer = l};
    nmlp_status st = NMLP_OK;
    bool all;
    nmlp_arena_init(&x.arena);
    nmlp_mlp_desc *descs = nmlp_arena_new(&x.arena, (size_t)m->config.n_experts, sizeof *descs, err);
    if (!descs) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(new_memory(&x, err));
    NMLP_TRY(open_finished(&x, descs, &all, err));
    if (!all)
        NMLP_TRY(nmlp_layer_mlps_build(&x.base, &p->r->factor_files[l], &m->layers[l], &p->r->ranks[l],
                                       nmlp_engine_pool(p->r->engine), err));
    /* What is handed on is the sum of the finished experts, added up as a run that finds all of them does: sums that
     * changed one by one are rounded differently. */
    if (!all) {
        NMLP_TRY(refit_all(&x, err));
        NMLP_TRY(open_finished(&x, descs, &all, err));
        if (!all) NMLP_TRY(nmlp_fail(err, NMLP_E_IO, "%s: experts written a moment ago are gone", p->r->work_dir));
    }
    NMLP_TRY(run_all(&x, descs, err));
    memcpy(p->y, x.out, (size_t)(nmlp_calib_windows_tokens(&p->r->share->own) * m->config.hidden) * sizeof *p->y);
out:
    for (int64_t e = 0; x.files && e < m->config.n_experts; e++) nmlp_layer_file_close(&x.files[e]);
    nmlp_layer_mlps_fini(&x.base);
    nmlp_factor_file_release(&p->r->factor_files[l]);
    nmlp_layer_release(&m->layers[l], &p->r->factor_files[l]);
    nmlp_arena_fini(&x.arena);
    return st;
}
