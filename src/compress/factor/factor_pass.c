#include "compress/factor/factor_pass.h"

#include <stdio.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "compress/calibrate/expert_sample.h"
#include "compress/calibrate/gram.h"
#include "compress/work.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/factor/expert_ranks.h"
#include "compress/factor/factor_internal.h"
#include "compress/factor/factor_slices.h"
#include "compress/factor/products.h"
#include "model/slices.h"

/* Few tokens say little about correlations: of what `down` [H,width] makes of inputs with mean squares act2 [width]. */
static nmlp_status shrink_output(const nmlp_factor_pass *s, double *gram, const double *down, const double *act2,
                                 int64_t width, bool narrow, nmlp_err *err) {
    if (!s->options->shrink) return NMLP_OK;
    return nmlp_gram_shrink_output(nmlp_engine_pool(s->engine), gram, down, act2,
                                   nmlp_engine_model(s->engine)->config.hidden, width, s->share->calib_tokens, narrow,
                                   err);
}

/* Of an MLP of `inner` neurons. */
static nmlp_module_moments moments_of(const nmlp_factor_pass *s, const nmlp_factor_buffers *b, int64_t inner) {
    const nmlp_compress_options *o = s->options;
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    return (nmlp_module_moments){
        .hidden = c->hidden,
        .n_first = NMLP_MLP_DOWN,
        .rows = {inner, inner},
        .inner = inner,
        .w = {b->w[NMLP_MLP_GATE], b->w[NMLP_MLP_UP], b->w[NMLP_MLP_DOWN]},
        .kernels = b->kernels,
        .input = o->whiten ? b->input : NULL,
        .output = o->whiten ? b->output : NULL,
        .d = {o->row_weights ? b->weights_of_rows : NULL, o->row_weights ? b->weights_of_rows + inner : NULL},
        .separate = o->joint != NMLP_JOINT_ALWAYS,
        .joint = o->joint != NMLP_JOINT_NEVER,
        .times = s->times};
}

static nmlp_status factorise_whole(nmlp_factor_pass *s, int64_t l, nmlp_factor_buffers *b, nmlp_nested *nested,
                                   nmlp_err *err) {
    const nmlp_model *model = nmlp_engine_model(s->engine);
    const nmlp_config *c = &model->config;
    bool narrow = nmlp_dtype_bytes(model->layers[l].mlp[0].w.dtype) == 2;
    nmlp_module_moments moments = moments_of(s, b, c->intermediate);
    if (s->options->whiten)
        NMLP_RETURN_IF_FAILED(shrink_output(s, b->output, b->w[NMLP_MLP_DOWN], b->act2, c->intermediate, narrow, err));
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) moments.views[i] = model->layers[l].mlp[i].w;
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_PRODUCTS);
    return nmlp_factorise_module(nested, &moments, nmlp_engine_pool(s->engine), err);
}

/* Room for one slice. */
struct slice_room {
    double *input; /* [H,H] which a factorisation destroys */
    double *down;  /* [H,width] */
    void *copy;    /* the same as the model stores it */
};

/* Slice `at` of the layer by itself: what it sees is what the whole MLP sees, what it adds is its own. */
static nmlp_status factorise_slice(nmlp_factor_pass *s, int64_t l, int64_t at, nmlp_factor_buffers *b,
                                   struct slice_room *room, nmlp_nested *nested, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    nmlp_layer layer = nmlp_engine_model(s->engine)->layers[l];
    nmlp_factors mlp[NMLP_MLP_MATRICES];
    int64_t width = c->intermediate / s->options->slices, first = at * width;
    nmlp_module_moments moments = moments_of(s, b, c->intermediate);
    layer.slices = s->options->slices;
    nmlp_layer_slice(mlp, &layer, at, room->copy);
    nmlp_widen(pool, room->down, &mlp[NMLP_MLP_DOWN].w);
    if (s->options->whiten) {
        moments.output = b->output + at * c->hidden * c->hidden;
        NMLP_RETURN_IF_FAILED(shrink_output(s, moments.output, room->down, b->act2 + first, width,
                                            nmlp_dtype_bytes(mlp[0].w.dtype) == 2, err));
        memcpy(room->input, b->input, (size_t)(c->hidden * c->hidden) * sizeof *room->input);
        moments.input = room->input;
    }
    moments.inner = width;
    moments.w[NMLP_MLP_DOWN] = room->down;
    for (int i = 0; i < NMLP_MLP_DOWN; i++) {
        moments.rows[i] = width;
        moments.w[i] += first * c->hidden;
        if (moments.d[i]) moments.d[i] += first;
    }
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) moments.views[i] = mlp[i].w;
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_PRODUCTS);
    return nmlp_factorise_module(nested, &moments, pool, err);
}

static nmlp_status join_slices(nmlp_nested *nested, const nmlp_nested *parts, int64_t n, nmlp_err *err) {
    const nmlp_nested *of_matrix[NMLP_SLICES_MAX];
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        for (int64_t at = 0; at < n; at++) of_matrix[at] = &parts[at * NMLP_NESTED_COUNT + i];
        NMLP_RETURN_IF_FAILED(nmlp_nested_join(&nested[i], of_matrix, n, err));
    }
    return NMLP_OK;
}

static nmlp_status factorise_slices(nmlp_factor_pass *s, int64_t l, nmlp_factor_buffers *b, nmlp_nested *nested,
                                    nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t n = s->options->slices, width = c->intermediate / n;
    nmlp_status st = NMLP_OK;
    nmlp_arena arena;
    nmlp_arena_init(&arena);
    struct slice_room room = {.input = nmlp_arena_new(&arena, (size_t)(c->hidden * c->hidden), sizeof(double), err),
                              .down = nmlp_arena_new(&arena, (size_t)(c->hidden * width), sizeof(double), err),
                              .copy = nmlp_arena_new(&arena, (size_t)(c->hidden * width), sizeof(float), err)};
    nmlp_nested *parts = nmlp_arena_new(&arena, (size_t)(n * NMLP_NESTED_COUNT), sizeof *parts, err);
    if (!room.input || !room.down || !room.copy || !parts) NMLP_TRY(NMLP_E_NOMEM);
    for (int64_t at = 0; at < n; at++)
        NMLP_TRY(factorise_slice(s, l, at, b, &room, parts + at * NMLP_NESTED_COUNT, err));
    NMLP_TRY(join_slices(nested, parts, n, err));
out:
    for (int64_t i = 0; parts && i < n * NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&parts[i]);
    nmlp_arena_fini(&arena);
    return st;
}

/* The matrices of an MLP in f64, in `room`: only who factorises has such, and only meanwhile. */
static nmlp_status widen_mlp(const nmlp_factor_pass *s, nmlp_factor_buffers *b, nmlp_arena *room,
                             const nmlp_factors mlp[NMLP_MLP_MATRICES], nmlp_err *err) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        b->w[i] = nmlp_arena_new(room, (size_t)nmlp_view_elems(&mlp[i].w), sizeof(double), err);
        if (!b->w[i]) return NMLP_E_NOMEM;
        nmlp_widen(nmlp_engine_pool(s->engine), b->w[i], &mlp[i].w);
    }
    return NMLP_OK;
}

static nmlp_status factorise_layer(nmlp_factor_pass *s, int64_t l, nmlp_factor_buffers *b, const char *path,
                                   nmlp_err *err) {
    const nmlp_compress_options *o = s->options;
    const nmlp_model *model = nmlp_engine_model(s->engine);
    const nmlp_config *c = &model->config;
    nmlp_nested nested[NMLP_NESTED_COUNT] = {0};
    nmlp_status st = NMLP_OK;
    nmlp_arena room;
    double *d_gate = b->weights_of_rows, *d_up = b->weights_of_rows + c->intermediate;
    nmlp_arena_init(&room);
    NMLP_TRY(widen_mlp(s, b, &room, model->layers[l].mlp, err));
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_MOMENTS);
    if (o->whiten && o->shrink) nmlp_gram_shrink(b->input, c->hidden, s->share->calib_tokens);
    if (o->row_weights)
        NMLP_TRY(nmlp_swiglu_weights(d_gate, d_up, b->w[NMLP_MLP_DOWN], b->gate2, b->slope2, c->hidden, c->intermediate,
                                     err));
    NMLP_TRY(o->slices > 1 ? factorise_slices(s, l, b, nested, err) : factorise_whole(s, l, b, nested, err));
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_FILES);
    NMLP_TRY(nmlp_factor_file_write(path, s->fingerprint, nested, o->row_weights ? b->weights_of_rows : NULL,
                                    o->row_weights ? 2 * c->intermediate : 0, err));
out:
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&nested[i]);
    nmlp_arena_fini(&room);
    nmlp_mlp_release(model->layers[l].mlp);
    return st;
}

/* One expert by the tokens of its sample, which is spent. */
static nmlp_status factorise_expert(nmlp_factor_pass *s, const nmlp_factors mlp[NMLP_MLP_MATRICES],
                                    nmlp_factor_buffers *b, const nmlp_mlp_sample *sample, const char *path,
                                    nmlp_err *err) {
    const nmlp_compress_options *o = s->options;
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t h = c->hidden, inner = c->expert_intermediate, n_capped;
    nmlp_nested nested[NMLP_NESTED_COUNT] = {0};
    nmlp_status st = NMLP_OK;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    nmlp_arena room;
    nmlp_arena_init(&room);
    NMLP_TRY(widen_mlp(s, b, &room, mlp, err));
    nmlp_module_moments moments = moments_of(s, b, inner);
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) moments.views[i] = mlp[i].w;
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_MOMENTS);
    if (o->whiten) {
        NMLP_TRY(nmlp_gram_cap_tokens(pool, NULL, sample->x, sample->n, h, o->cap, &n_capped, err));
        NMLP_TRY(nmlp_gram_cap_tokens(pool, NULL, sample->y, sample->n, h, o->cap, &n_capped, err));
        NMLP_TRY(nmlp_gram_mean(b->kernels, pool, b->input, sample->x, sample->n, h, err));
        NMLP_TRY(nmlp_gram_mean(b->kernels, pool, b->output, sample->y, sample->n, h, err));
    }
    if (o->whiten && o->shrink) {
        nmlp_gram_shrink(b->input, h, sample->n);
        NMLP_TRY(nmlp_gram_shrink_output(pool, b->output, b->w[NMLP_MLP_DOWN], sample->act2, h, inner, sample->n,
                                         nmlp_dtype_bytes(mlp[0].w.dtype) == 2, err));
    }
    if (o->row_weights)
        NMLP_TRY(nmlp_swiglu_weights(b->weights_of_rows, b->weights_of_rows + inner, b->w[NMLP_MLP_DOWN], sample->gate2,
                                     sample->slope2, h, inner, err));
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_PRODUCTS);
    NMLP_TRY(nmlp_factorise_module(nested, &moments, pool, err));
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_FILES);
    NMLP_TRY(nmlp_factor_file_write(path, s->fingerprint, nested, o->row_weights ? b->weights_of_rows : NULL,
                                    o->row_weights ? 2 * inner : 0, err));
out:
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&nested[i]);
    nmlp_arena_fini(&room);
    nmlp_mlp_release(mlp);
    return st;
}

nmlp_status nmlp_factor_path(const nmlp_factor_pass *s, int64_t block, int64_t index, char path[NMLP_FACTOR_PATH_MAX],
                             nmlp_err *err) {
    char name[64];
    int64_t l = s->blocks[block].layer;
    if (s->blocks[block].kind == NMLP_MODULE_ATTENTION)
        snprintf(name, sizeof name, "layer-%05lld-attention.nested", (long long)l);
    else if (nmlp_config_has_experts(&nmlp_engine_model(s->engine)->config, l))
        snprintf(name, sizeof name, "layer-%05lld-%05lld.nested", (long long)l, (long long)index);
    else
        snprintf(name, sizeof name, "layer-%05lld.nested", (long long)l);
    return nmlp_path_join(path, NMLP_FACTOR_PATH_MAX, s->work_dir, name, err);
}

/* The file of one of the block's MLPs, where it is there. */
static nmlp_status open_file(const nmlp_factor_pass *s, int64_t block, int64_t index, nmlp_factor_file *layer,
                             nmlp_work_state *state, nmlp_err *err) {
    char path[NMLP_FACTOR_PATH_MAX];
    NMLP_RETURN_IF_FAILED(nmlp_factor_path(s, block, index, path, err));
    return nmlp_factor_file_open(layer->experts ? &layer->experts[index] : layer, path, s->fingerprint,
                                 &s->blocks[block], layer->experts ? 1 : s->options->slices, state, err);
}

static nmlp_status open_again(const nmlp_factor_pass *s, int64_t block, int64_t index, nmlp_factor_file *layer,
                              const char *path, nmlp_err *err) {
    nmlp_work_state state;
    NMLP_RETURN_IF_FAILED(open_file(s, block, index, layer, &state, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
}

static bool is_open(const nmlp_factor_file *layer, int64_t index) {
    return (layer->experts ? layer->experts[index] : *layer).map.data != NULL;
}

/* Opens what an earlier run left; says how many MLPs are still to do. */
static nmlp_status open_found(const nmlp_factor_pass *s, nmlp_factor_file *factor_files, int64_t *n_missing,
                              nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_work_tally tally = {0};
    *n_missing = 0;
    for (int64_t b = 0; b < s->n_blocks; b++) {
        int64_t n = s->blocks[b].count;
        if (s->blocks[b].kind == NMLP_MODULE_MLP && nmlp_config_has_experts(c, s->blocks[b].layer)) {
            factor_files[b].experts = nmlp_mem_new((size_t)n, sizeof(nmlp_factor_file), err);
            if (!factor_files[b].experts) return NMLP_E_NOMEM;
            factor_files[b].n_experts = n;
            factor_files[b].tile = s->options->tile;
        }
        for (int64_t e = 0; e < n; e++) {
            nmlp_work_state state;
            NMLP_RETURN_IF_FAILED(open_file(s, b, e, &factor_files[b], &state, err));
            tally.n[state]++;
            *n_missing += state != NMLP_WORK_VALID;
        }
    }
    nmlp_work_tally_note(&tally, "statistics of layers", s->options->progress);
    return NMLP_OK;
}

static nmlp_status run_experts(nmlp_factor_pass *s, nmlp_hidden_states *stream, int64_t l, nmlp_factor_buffers *b,
                               nmlp_factor_file *factor_file, nmlp_hidden_states_progress *progress, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(s->engine);
    nmlp_layer_taps taps = nmlp_factor_attention_taps(b, l);
    char path[NMLP_FACTOR_PATH_MAX];
    taps.x = b->x;
    NMLP_RETURN_IF_FAILED(nmlp_hidden_states_run_layer(stream, s->engine, l, &taps, progress, err));
    if (!b->sampler.engine)
        NMLP_RETURN_IF_FAILED(
            nmlp_expert_sampler_init(&b->sampler, s->engine, b->kernels, s->share->calib_tokens, err));
    NMLP_RETURN_IF_FAILED(nmlp_expert_sampler_route(&b->sampler, l, b->x, err));
    for (int64_t e = 0; e < m->config.n_experts; e++) {
        if (is_open(factor_file, e)) continue;
        nmlp_compress_work before = nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_FORWARD);
        NMLP_RETURN_IF_FAILED(nmlp_factor_path(s, l, e, path, err));
        NMLP_RETURN_IF_FAILED(nmlp_expert_sampler_take(&b->sampler, e, err));
        NMLP_RETURN_IF_FAILED(factorise_expert(s, m->layers[l].experts[e].mlp, b, &b->sampler.sample, path, err));
        nmlp_compress_times_enter(s->times, before);
        NMLP_RETURN_IF_FAILED(open_again(s, l, e, factor_file, path, err));
    }
    return NMLP_OK;
}

static bool is_whole(const nmlp_factor_file *file) {
    int64_t n_open = 0;
    for (int64_t e = 0; e < nmlp_factor_file_mlps(file); e++) n_open += is_open(file, e);
    return n_open == nmlp_factor_file_mlps(file);
}

/* All processes through layer l; where its factors are missing, process `owner` gets what it makes them of. */
static nmlp_status run_layer(nmlp_factor_pass *s, nmlp_hidden_states *stream, int64_t l, nmlp_factor_buffers *b,
                             nmlp_factor_file *factor_file, nmlp_hidden_states_progress *progress, int owner,
                             nmlp_err *err) {
    const nmlp_window_share *share = s->share;
    nmlp_layer_taps taps = nmlp_factor_attention_taps(b, l);
    if (is_whole(factor_file)) return nmlp_hidden_states_run_layer(stream, s->engine, l, &taps, progress, err);
    if (factor_file->experts) return run_experts(s, stream, l, b, factor_file, progress, err);
    int64_t window = 3 * nmlp_engine_model(s->engine)->config.intermediate;
    double *squares =
        b->squares + window * nmlp_group_share(share->group, share->all->n_calib, nmlp_group_rank(share->group));
    memset(squares, 0, (size_t)(window * share->own.n_calib) * sizeof *squares);
    taps.x = b->x;
    taps.y = b->y;
    taps.squares = squares;
    NMLP_RETURN_IF_FAILED(nmlp_hidden_states_run_layer(stream, s->engine, l, &taps, progress, err));
    return nmlp_factor_gather_statistics(s, l, b, stream->rows, owner, err);
}

/* As many layers as there are processes, from l on: the statistics of one after the other, then all of their factors at
 * the same time. */
static nmlp_status run_layers(nmlp_factor_pass *s, nmlp_hidden_states *stream, int64_t l, nmlp_factor_buffers *b,
                              nmlp_factor_file *factor_files, nmlp_hidden_states_progress *progress, nmlp_err *err) {
    const nmlp_process_group *group = s->share->group;
    int64_t n = nmlp_min(nmlp_group_size(group), nmlp_engine_model(s->engine)->config.n_layers - l);
    int64_t own = l + nmlp_group_rank(group);
    char path[NMLP_FACTOR_PATH_MAX];
    for (int64_t i = 0; i < n; i++) {
        nmlp_status st = run_layer(s, stream, l + i, b, &factor_files[l + i], progress, (int)i, err);
        if (st != NMLP_OK && st != NMLP_E_NUMERIC) nmlp_fail_context(err, "layer %lld", (long long)(l + i));
        if (st != NMLP_OK) return st;
    }
    if (nmlp_group_rank(group) < n && !is_whole(&factor_files[own])) {
        nmlp_compress_work before = nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_OTHER);
        NMLP_RETURN_IF_FAILED(nmlp_factor_path(s, own, 0, path, err));
        nmlp_status st = factorise_layer(s, own, b, path, err);
        nmlp_compress_times_enter(s->times, before);
        if (st != NMLP_OK && st != NMLP_E_NUMERIC) nmlp_fail_context(err, "layer %lld", (long long)own);
        if (st != NMLP_OK) return st;
    }
    NMLP_RETURN_IF_FAILED(nmlp_group_meet(group, err));
    for (int64_t i = l; i < l + n; i++) {
        if (is_whole(&factor_files[i])) continue;
        NMLP_RETURN_IF_FAILED(nmlp_factor_path(s, i, 0, path, err));
        NMLP_RETURN_IF_FAILED(open_again(s, i, 0, &factor_files[i], path, err));
    }
    if (!b->attention_done || b->attention_done[l]) return NMLP_OK;
    int64_t attention = nmlp_engine_model(s->engine)->config.n_layers + l;
    NMLP_RETURN_IF_FAILED(nmlp_factor_attention_write(s, attention, b, stream->rows, err));
    NMLP_RETURN_IF_FAILED(nmlp_factor_path(s, attention, 0, path, err));
    return open_again(s, attention, 0, &factor_files[attention], path, err);
}

nmlp_status nmlp_factor_pass_run(nmlp_factor_pass *s, nmlp_factor_file *factor_files, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t tokens = nmlp_calib_windows_tokens(&s->share->own);
    nmlp_hidden_states stream = {0};
    nmlp_arena arena;
    nmlp_factor_buffers b = {0};
    nmlp_status st = NMLP_OK;
    nmlp_hidden_states_progress progress = {
        .progress = s->options->progress, .stage = "statistics", .total = (double)tokens * (double)c->n_layers};
    int64_t n_missing;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_arena_init(&arena);
    NMLP_TRY(open_found(s, factor_files, &n_missing, err));
    NMLP_TRY(nmlp_work_agree(s->share->group, n_missing, s->work_dir, err)); /* nobody writes before */
    if (n_missing == 0) goto curves;
    NMLP_TRY(nmlp_factor_buffers_new(&b, &arena, s, err));
    if (s->n_blocks > c->n_layers) NMLP_TRY(nmlp_factor_attention_buffers(s, &b, &arena, factor_files, err));
    NMLP_TRY(nmlp_kernels_select(&b.kernels, cpu, nmlp_engine_isa(s->engine), err));
    NMLP_TRY(nmlp_hidden_states_create(&stream, s->engine, &s->share->own, s->times, err));
    for (int64_t l = 0; l < c->n_layers; l += nmlp_group_size(s->share->group))
        NMLP_TRY(run_layers(s, &stream, l, &b, factor_files, &progress, err));
curves:
    for (int64_t l = 0; l < c->n_layers; l++)
        if (factor_files[l].experts) NMLP_TRY(nmlp_expert_ranks_curves(&factor_files[l], err));
out:
    nmlp_hidden_states_destroy(&stream);
    nmlp_expert_sampler_fini(&b.sampler);
    nmlp_arena_fini(&arena);
    return st;
}
