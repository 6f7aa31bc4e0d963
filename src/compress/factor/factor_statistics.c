/* Statistics of one layer, made by all processes of a group: each has rows of its own windows. */
#include <string.h>

#include "compress/calibrate/gram.h"
#include "compress/factor/factor_internal.h"
#include "compress/factor/factor_slices.h"
#include "model/slices.h"

static int64_t largest_inner(const nmlp_config *c) {
    int64_t inner = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        if (nmlp_config_mlp_inner(c, l) > inner) inner = nmlp_config_mlp_inner(c, l);
    return inner;
}

nmlp_status nmlp_factor_buffers_new(nmlp_factor_buffers *b, nmlp_arena *arena, const nmlp_factor_pass *s,
                                    nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t tokens = nmlp_calib_windows_tokens(&s->share->own);
    size_t h = (size_t)c->hidden;
    size_t i_dim = (size_t)largest_inner(c);
    b->x = nmlp_arena_new(arena, (size_t)tokens * h, sizeof(float), err);
    b->y = nmlp_arena_new(arena, (size_t)tokens * h, sizeof(float), err);
    b->weights = nmlp_arena_new(arena, (size_t)s->share->calib_tokens, sizeof(float), err);
    b->squares = nmlp_arena_new(arena, (size_t)s->share->all->n_calib * 3 * i_dim, sizeof(double), err);
    double **neurons[] = {&b->gate2, &b->slope2, &b->act2};
    for (size_t i = 0; i < sizeof neurons / sizeof neurons[0]; i++) {
        *neurons[i] = nmlp_arena_new(arena, i_dim, sizeof(double), err);
        if (!*neurons[i]) return NMLP_E_NOMEM;
    }
    b->weights_of_rows = nmlp_arena_new(arena, 2 * i_dim, sizeof(double), err);
    b->input = nmlp_arena_new(arena, h * h, sizeof(double), err);
    b->output = nmlp_arena_new(arena, (size_t)s->options->slices * h * h, sizeof(double), err);
    b->spent = nmlp_arena_new(arena, nmlp_group_size(s->share->group) > 1 ? h * h : 1, sizeof(double), err);
    return b->x && b->y && b->weights && b->squares && b->weights_of_rows && b->input && b->output && b->spent
               ? NMLP_OK
               : NMLP_E_NOMEM;
}

static void scale_rows(float *rows, const float *weights, int64_t s, int64_t h) {
    for (int64_t t = 0; t < s; t++)
        for (int64_t i = 0; i < h; i++) rows[t * h + i] *= weights[t];
}

static nmlp_status weigh_rows(const nmlp_factor_pass *s, nmlp_factor_buffers *b, const float *residual, float *rows,
                              int64_t width, nmlp_err *err) {
    const nmlp_window_share *share = s->share;
    int64_t hidden = nmlp_engine_model(s->engine)->config.hidden;
    int64_t own = nmlp_calib_windows_calib_tokens(&share->own);
    float *weights = b->weights + nmlp_window_share_first(share, false, nmlp_group_rank(share->group));
    nmlp_token_weights(weights, residual, own, hidden);
    NMLP_RETURN_IF_FAILED(nmlp_window_share_gather(share, b->weights, sizeof *b->weights, false, err));
    nmlp_token_weights_scale(b->weights, share->calib_tokens);
    scale_rows(rows, weights, own, width);
    return NMLP_OK;
}

nmlp_status nmlp_factor_gram(const nmlp_factor_pass *s, nmlp_factor_buffers *b, const float *residual, double *gram,
                             float *rows, int64_t width, int owner, nmlp_err *err) {
    const nmlp_compress_options *o = s->options;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    int64_t own = nmlp_calib_windows_calib_tokens(&s->share->own), n_capped;
    if (o->token_weights) NMLP_RETURN_IF_FAILED(weigh_rows(s, b, residual, rows, width, err));
    NMLP_RETURN_IF_FAILED(nmlp_gram_cap_tokens(pool, s->share, rows, own, width, o->cap, &n_capped, err));
    if (nmlp_group_rank(s->share->group) != owner) gram = b->spent;
    return nmlp_gram_mean_shared(b->kernels, pool, s->share, gram, rows, width, owner, err);
}

/* Means of the squares of all windows, in the order of windows. */
static nmlp_status add_squares(const nmlp_factor_pass *s, nmlp_factor_buffers *b, int owner, nmlp_err *err) {
    const nmlp_window_share *share = s->share;
    const nmlp_process_group *group = share->group;
    int64_t inner = nmlp_engine_model(s->engine)->config.intermediate, n_windows = share->all->n_calib;
    int64_t *first = nmlp_mem_new((size_t)nmlp_group_size(group) + 1, sizeof *first, err);
    if (!first) return NMLP_E_NOMEM;
    for (int k = 0; k <= nmlp_group_size(group); k++) first[k] = nmlp_group_share(group, n_windows, k);
    nmlp_status st = nmlp_group_gather(group, b->squares, (size_t)(3 * inner) * sizeof *b->squares, first, err);
    nmlp_mem_free(first);
    double *sums[] = {b->gate2, b->slope2, b->act2};
    for (int i = 0; i < 3 && st == NMLP_OK && nmlp_group_rank(group) == owner; i++) {
        memset(sums[i], 0, (size_t)inner * sizeof *sums[i]);
        for (int64_t w = 0; w < n_windows; w++)
            for (int64_t j = 0; j < inner; j++) sums[i][j] += b->squares[(w * 3 + i) * inner + j];
        for (int64_t j = 0; j < inner; j++) sums[i][j] /= (double)share->calib_tokens;
    }
    return st;
}

static int64_t square_elems(const nmlp_factor_pass *s) {
    int64_t hidden = nmlp_engine_model(s->engine)->config.hidden;
    return hidden * hidden;
}

/* What each slice adds: the Gram matrices of their outputs, from inputs b->x that stay. */
static nmlp_status gather_slices(const nmlp_factor_pass *s, int64_t l, nmlp_factor_buffers *b, const float *residual,
                                 int owner, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_layer layer = nmlp_engine_model(s->engine)->layers[l];
    int64_t n = s->options->slices, own = nmlp_calib_windows_calib_tokens(&s->share->own);
    nmlp_status st = NMLP_OK;
    void *copy = nmlp_mem_new((size_t)(c->hidden * (c->intermediate / n)), sizeof(float), err);
    if (!copy) return NMLP_E_NOMEM;
    layer.slices = n;
    memcpy(b->y, b->x, (size_t)(own * c->hidden) * sizeof *b->y); /* the slices will see x as it is */
    NMLP_TRY(nmlp_factor_gram(s, b, residual, b->input, b->y, c->hidden, owner, err));
    for (int64_t at = 0; at < n; at++) {
        nmlp_factors mlp[NMLP_MLP_MATRICES];
        nmlp_layer_slice(mlp, &layer, at, copy);
        nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_FORWARD);
        NMLP_TRY(nmlp_slice_run(mlp, c->activation, b->kernels, b->y, b->x, own, c->hidden, nmlp_engine_pool(s->engine),
                                err));
        nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_MOMENTS);
        NMLP_TRY(nmlp_factor_gram(s, b, residual, b->output + at * square_elems(s), b->y, c->hidden, owner, err));
    }
out:
    nmlp_mem_free(copy);
    return st;
}

/* Of layer l, whose inputs and outputs are in b, for process `owner`. */
nmlp_status nmlp_factor_gather_statistics(const nmlp_factor_pass *s, int64_t l, nmlp_factor_buffers *b,
                                          const float *residual, int owner, nmlp_err *err) {
    int64_t hidden = nmlp_engine_model(s->engine)->config.hidden;
    nmlp_compress_work before = nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_MOMENTS);
    NMLP_RETURN_IF_FAILED(add_squares(s, b, owner, err));
    if (s->options->whiten && s->options->slices > 1) {
        NMLP_RETURN_IF_FAILED(gather_slices(s, l, b, residual, owner, err));
    } else if (s->options->whiten) {
        NMLP_RETURN_IF_FAILED(nmlp_factor_gram(s, b, residual, b->input, b->x, hidden, owner, err));
        NMLP_RETURN_IF_FAILED(nmlp_factor_gram(s, b, residual, b->output, b->y, hidden, owner, err));
    }
    nmlp_compress_times_enter(s->times, before);
    return NMLP_OK;
}
