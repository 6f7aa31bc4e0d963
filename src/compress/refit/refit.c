#include "compress/refit/refit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/calibrate/gram.h"
#include "compress/refit/refit_internal.h"
#include "compress/work.h"
#include "compress/factor/products.h"

nmlp_status nmlp_refit_path(char *path, size_t path_bytes, const char *work_dir, int64_t layer, int64_t expert,
                            bool refitted, nmlp_err *err) {
    char name[64];
    const char *end = refitted ? "refit" : "plain";
    if (expert == NMLP_REFIT_ATTENTION)
        snprintf(name, sizeof name, "layer-%05lld-attention.%s", (long long)layer, end);
    else if (expert >= 0)
        snprintf(name, sizeof name, "layer-%05lld-%05lld.%s", (long long)layer, (long long)expert, end);
    else
        snprintf(name, sizeof name, "layer-%05lld.%s", (long long)layer, end);
    return nmlp_path_join(path, path_bytes, work_dir, name, err);
}

int nmlp_refit_widened(const nmlp_refit_job *r) { return r->refit_down ? NMLP_MLP_MATRICES : NMLP_MLP_DOWN; }

static nmlp_status pass_open(nmlp_refit_pass *p, const nmlp_refit_job *r, nmlp_arena *arena, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(r->engine)->config;
    int64_t tokens = nmlp_calib_windows_tokens(&r->share->own);
    const nmlp_cpu *cpu = nmlp_cpu_get();
    int64_t largest = 0;
    for (int64_t l = 0; l < c->n_layers; l++) largest = nmlp_max(largest, nmlp_config_mlp_inner(c, l));
    *p = (nmlp_refit_pass){.r = r};
    p->progress = (nmlp_hidden_states_progress){
        .progress = r->progress, .stage = "refitting", .total = 2.0 * (double)tokens * (double)c->n_layers};
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&p->kernels, cpu, nmlp_engine_isa(r->engine), err));
    NMLP_RETURN_IF_FAILED(nmlp_hidden_states_create(&p->dense, r->engine, &r->share->own, r->times, err));
    NMLP_RETURN_IF_FAILED(nmlp_hidden_states_create(&p->compressed, r->engine, &r->share->own, r->times, err));
    float **rows[] = {&p->x, &p->z, &p->y};
    for (int i = 0; i < 3; i++) {
        *rows[i] = nmlp_arena_new(arena, (size_t)(tokens * c->hidden), sizeof(float), err);
        if (!*rows[i]) return NMLP_E_NOMEM;
    }
    p->weights = nmlp_arena_new(arena, (size_t)tokens, sizeof *p->weights, err);
    p->all_weights =
        nmlp_arena_new(arena, (size_t)(r->share->calib_tokens + r->share->heldout_tokens), sizeof *p->all_weights, err);
    for (int i = 0; i < nmlp_refit_widened(r); i++) {
        p->w[i] = nmlp_arena_new(arena, (size_t)(largest * c->hidden), sizeof(double), err);
        if (!p->w[i]) return NMLP_E_NOMEM;
    }
    return p->weights && p->all_weights ? NMLP_OK : NMLP_E_NOMEM;
}

bool nmlp_refit_has_norm_post(const nmlp_refit_pass *p) {
    return nmlp_engine_model(p->r->engine)->config.features->norm_place != NMLP_NORM_BEFORE;
}

/* The dense model through layer l, with its MLP inputs in p->x. */
static nmlp_status run_dense(nmlp_refit_pass *p, int64_t l, nmlp_err *err) {
    nmlp_layer_taps taps = {.x = p->x, .y = nmlp_refit_has_norm_post(p) ? p->y : NULL};
    return nmlp_hidden_states_run_layer(&p->dense, p->r->engine, l, &taps, &p->progress, err);
}

/* The compressed model up to the MLP of layer l: its input in p->z, in p->y what it should add to reach the dense
 * stream. */
static nmlp_status run_compressed(nmlp_refit_pass *p, int64_t l, nmlp_err *err) {
    int64_t n = nmlp_calib_windows_tokens(&p->r->share->own) * p->dense.hidden;
    nmlp_layer_taps taps = {.x = p->z};
    NMLP_RETURN_IF_FAILED(nmlp_refit_run_attention(p, l, &taps, err));
    double scale = nmlp_engine_model(p->r->engine)->config.residual_scale;
    if (nmlp_refit_has_norm_post(p)) return NMLP_OK;
    for (int64_t i = 0; i < n; i++) p->y[i] = p->dense.rows[i] - p->compressed.rows[i];
    for (int64_t i = 0; i < n && scale != 1; i++) p->y[i] = (float)(p->y[i] / scale);
    return NMLP_OK;
}

/* The compressed stream through the MLP; p->y is spent. */
static nmlp_status finish_compressed(nmlp_refit_pass *p, const nmlp_refit_layer *layer, const nmlp_mlp_desc *mlp,
                                     nmlp_err *err) {
    int64_t tokens = nmlp_calib_windows_tokens(&p->r->share->own);
    NMLP_RETURN_IF_FAILED(nmlp_refit_run_mlp(layer, mlp, p->z, tokens, p->y, NULL, err));
    return nmlp_hidden_states_add_mlp(&p->compressed, p->r->engine, layer->layer, p->y, err);
}

nmlp_status nmlp_refit_energy(const nmlp_refit_pass *p, double *energy, nmlp_err *err) {
    const nmlp_calib_windows *w = &p->r->share->own;
    int64_t h = p->dense.hidden, first = nmlp_calib_windows_calib_tokens(w), n = nmlp_calib_windows_heldout_tokens(w);
    double *values = nmlp_mem_new((size_t)n + 1, sizeof *values, err);
    if (!values) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        const float *row = p->dense.rows + (first + i) * h;
        double norm2 = 0;
        for (int64_t j = 0; j < h; j++) norm2 += (double)row[j] * (double)row[j];
        values[i] = norm2 * (double)p->weights[first + i] * (double)p->weights[first + i];
    }
    nmlp_status st = nmlp_refit_sum_heldout(p->r->share, values, n, energy, err);
    nmlp_mem_free(values);
    return st;
}

/* p->weights of own tokens, scaled by those of all. */
static nmlp_status weigh_tokens(nmlp_refit_pass *p, nmlp_err *err) {
    const nmlp_window_share *share = p->r->share;
    int64_t n = nmlp_calib_windows_tokens(&share->own), n_calib = nmlp_calib_windows_calib_tokens(&share->own);
    int rank = nmlp_group_rank(share->group);
    for (int64_t t = 0; t < n; t++) p->weights[t] = 1;
    if (!p->r->token_weights) return NMLP_OK;
    nmlp_token_weights(p->weights, p->dense.rows, n, p->dense.hidden);
    float *calib = p->all_weights, *heldout = calib + share->calib_tokens;
    float *own_calib = calib + nmlp_window_share_first(share, false, rank);
    float *own_heldout = heldout + nmlp_window_share_first(share, true, rank);
    memcpy(own_calib, p->weights, (size_t)n_calib * sizeof *calib);
    memcpy(own_heldout, p->weights + n_calib, (size_t)(n - n_calib) * sizeof *calib);
    NMLP_RETURN_IF_FAILED(nmlp_window_share_gather(share, calib, sizeof *calib, false, err));
    NMLP_RETURN_IF_FAILED(nmlp_window_share_gather(share, heldout, sizeof *heldout, true, err));
    nmlp_token_weights_scale(p->all_weights, share->calib_tokens + share->heldout_tokens);
    memcpy(p->weights, own_calib, (size_t)n_calib * sizeof *calib);
    memcpy(p->weights + n_calib, own_heldout, (size_t)(n - n_calib) * sizeof *calib);
    return NMLP_OK;
}

/* Keeps the better of `best` and `tried` by held-out error; the loser is released. */
static nmlp_status keep_better(const nmlp_refit_layer *l, nmlp_refit_variant *best, double *error,
                               nmlp_refit_variant *tried, nmlp_err *err) {
    double found;
    nmlp_status st = nmlp_refit_error(l, &tried->desc, &found, err);
    if (st == NMLP_OK && isfinite(found) && found < *error) {
        nmlp_refit_variant swap = *best;
        *best = *tried;
        *tried = swap;
        *error = found;
    }
    nmlp_refit_variant_fini(tried);
    return st;
}

nmlp_status nmlp_refit_mlp(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *tall,
                           nmlp_refit_variant *down, double errors[2], nmlp_err *err) {
    nmlp_refit_variant tried;
    *tall = (nmlp_refit_variant){.desc = *base};
    NMLP_RETURN_IF_FAILED(nmlp_refit_error(l, base, &errors[0], err));
    errors[1] = errors[0];
    const nmlp_layer_ranks *ranks = &l->ranks;
    bool factored = ranks->rank[NMLP_MLP_GATE] > 0 || ranks->rank[NMLP_MLP_UP] > 0;
    if (l->layer > 0 && factored) { /* the first layer's inputs are the dense model's */
        NMLP_RETURN_IF_FAILED(nmlp_refit_gate_up(l, base, &tried, err));
        NMLP_RETURN_IF_FAILED(keep_better(l, tall, &errors[1], &tried, err));
    }
    *down = (nmlp_refit_variant){.desc = tall->desc};
    if (!l->r->refit_down) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_refit_down_of(l, &tall->desc, &tried, err));
    return keep_better(l, down, &errors[1], &tried, err);
}

static nmlp_refit_layer layer_of(const nmlp_refit_pass *p, int64_t l) {
    const nmlp_model *model = nmlp_engine_model(p->r->engine);
    nmlp_refit_layer layer = {.r = p->r,
                              .layer = l,
                              .ranks = p->r->ranks[l],
                              .dense = model->layers[l].mlp,
                              .kernels = p->kernels,
                              .pool = nmlp_engine_pool(p->r->engine),
                              .hidden = model->config.hidden,
                              .intermediate = model->config.intermediate,
                              .share = p->r->share,
                              .owner = (int)(l % nmlp_group_size(p->r->share->group)),
                              .n_calib = nmlp_calib_windows_calib_tokens(&p->r->share->own),
                              .n_heldout = nmlp_calib_windows_heldout_tokens(&p->r->share->own),
                              .calib_tokens = p->r->share->calib_tokens,
                              .context = p->r->share->all->context,
                              .x = p->x,
                              .z = p->z,
                              .target = p->y,
                              .weights = p->weights,
                              .weighted = p->r->token_weights,
                              .row_weights = p->r->factor_files[l].row_weights};
    memcpy(layer.w, p->w, sizeof layer.w);
    return layer;
}

nmlp_layer_file nmlp_refit_file_of(const nmlp_refit_layer *l, const nmlp_refit_variant *result, const double errors[2],
                                   double energy) {
    return (nmlp_layer_file){.ranks = l->ranks,
                             .factors = {result->desc.gate, result->desc.up, result->desc.down},
                             .dense_refitted = l->ranks.rank[NMLP_MLP_DOWN] == 0 && result->u[NMLP_MLP_DOWN] != NULL,
                             .error = energy > 0 ? errors[1] / energy : 0,
                             .error_before = energy > 0 ? errors[0] / energy : 0};
}

/* Fits layer l, writes its file and moves the compressed stream behind it. */
static nmlp_status refit_layer(nmlp_refit_pass *p, int64_t l, const char *path, nmlp_err *err) {
    const nmlp_refit_job *r = p->r;
    const nmlp_factors *dense = nmlp_engine_model(r->engine)->layers[l].mlp;
    nmlp_layer_mlp base = {0};
    nmlp_refit_variant tall = {0};
    nmlp_refit_variant down = {0};
    double errors[2], energy;
    nmlp_status st = NMLP_OK;
    nmlp_pool *pool = nmlp_engine_pool(r->engine);
    nmlp_refit_layer layer = layer_of(p, l);
    NMLP_TRY(nmlp_layer_mlp_build(&base, &r->factor_files[l], dense, &r->ranks[l], pool, err));
    for (int i = 0; i < nmlp_refit_widened(r) && nmlp_refit_solves(&layer); i++) nmlp_widen(pool, p->w[i], &dense[i].w);
    NMLP_TRY(nmlp_refit_mlp(&layer, &base.desc, &tall, &down, errors, err));
    NMLP_TRY(nmlp_refit_energy(p, &energy, err));
    if (nmlp_refit_solves(&layer)) {
        nmlp_layer_file file = nmlp_refit_file_of(&layer, &down, errors, energy);
        nmlp_compress_work before = nmlp_compress_times_enter(r->times, NMLP_COMPRESS_WORK_FILES);
        NMLP_TRY(nmlp_layer_file_write(path, r->fingerprint, &file, NMLP_MODULE_MLP, dense, err));
        nmlp_compress_times_enter(r->times, before);
    }
    NMLP_TRY(finish_compressed(p, &layer, &down.desc, err));
out:
    nmlp_refit_variant_fini(&down);
    nmlp_refit_variant_fini(&tall);
    nmlp_layer_mlp_fini(&base);
    nmlp_factor_file_release(&r->factor_files[l]);
    nmlp_mlp_release(dense);
    return st;
}

/* A layer finished by an earlier run: only the stream moves, by the same arithmetic. */
static nmlp_status replay_layer(nmlp_refit_pass *p, int64_t l, const nmlp_layer_file *file, nmlp_err *err) {
    const nmlp_factors *dense = nmlp_engine_model(p->r->engine)->layers[l].mlp;
    nmlp_mlp_desc desc = nmlp_layer_file_mlp(file, dense);
    nmlp_refit_layer layer = layer_of(p, l);
    nmlp_status st = finish_compressed(p, &layer, &desc, err);
    nmlp_mlp_release(dense);
    return st;
}

/* A layer with one MLP. */
static nmlp_status refit_or_replay(nmlp_refit_pass *p, int64_t l, nmlp_work_tally *tally, nmlp_err *err) {
    const nmlp_refit_job *r = p->r;
    char path[4096];
    nmlp_layer_file file;
    nmlp_work_state state;
    NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, sizeof path, r->work_dir, l, NMLP_REFIT_ONLY, true, err));
    NMLP_RETURN_IF_FAILED(nmlp_layer_file_open(&file, path, r->fingerprint, &r->ranks[l], r->slices, NMLP_MODULE_MLP,
                                               nmlp_engine_model(r->engine)->layers[l].mlp, &state, err));
    tally->n[state]++;
    nmlp_status st = state == NMLP_WORK_VALID ? replay_layer(p, l, &file, err) : refit_layer(p, l, path, err);
    nmlp_layer_file_close(&file);
    return st;
}

static nmlp_status run_layer(nmlp_refit_pass *p, int64_t l, nmlp_work_tally *tally, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_refit_attention(p, l, tally, err));
    NMLP_RETURN_IF_FAILED(run_dense(p, l, err));
    NMLP_RETURN_IF_FAILED(run_compressed(p, l, err));
    NMLP_RETURN_IF_FAILED(weigh_tokens(p, err));
    if (!p->r->factor_files[l].experts) return refit_or_replay(p, l, tally, err);
    NMLP_RETURN_IF_FAILED(nmlp_refit_experts(p, l, err));
    return nmlp_hidden_states_add_mlp(&p->compressed, p->r->engine, l, p->y, err);
}

nmlp_status nmlp_refit_run(const nmlp_refit_job *r, nmlp_err *err) {
    nmlp_refit_pass p = {0};
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    int64_t n_layers = nmlp_engine_model(r->engine)->config.n_layers;
    nmlp_work_tally tally = {0};
    nmlp_arena_init(&arena);
    NMLP_TRY(pass_open(&p, r, &arena, err));
    for (int64_t l = 0; l < n_layers; l++) {
        st = run_layer(&p, l, &tally, err);
        if (st != NMLP_OK) {
            nmlp_fail_context(err, "layer %lld", (long long)l);
            goto out;
        }
    }
    nmlp_work_tally_note(&tally, "refitted layers", r->progress);
out:
    nmlp_hidden_states_destroy(&p.dense);
    nmlp_hidden_states_destroy(&p.compressed);
    nmlp_arena_fini(&arena);
    return st;
}
