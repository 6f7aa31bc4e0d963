/* The factors of attentions: q, k and v by what they see, o by what it adds. One process does it. */
#include <math.h>

#include "compress/calibrate/gram.h"
#include "compress/factor/factor_internal.h"
#include "compress/factor/products.h"
#include "linalg/linalg.h"

nmlp_status nmlp_factor_attention_buffers(const nmlp_factor_pass *s, nmlp_factor_buffers *b, nmlp_arena *arena,
                                          const nmlp_factor_file *factor_files, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    size_t tokens = (size_t)nmlp_calib_windows_tokens(&s->share->own), q = (size_t)(c->n_heads * c->head_dim);
    b->attention_x = nmlp_arena_new(arena, tokens * (size_t)c->hidden, sizeof(float), err);
    b->attention_mixed = nmlp_arena_new(arena, tokens * q, sizeof(float), err);
    b->mixed_gram = nmlp_arena_new(arena, q * q, sizeof(double), err);
    b->attention_done = nmlp_arena_new(arena, (size_t)c->n_layers, sizeof(bool), err);
    if (!b->attention_x || !b->attention_mixed || !b->mixed_gram || !b->attention_done) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < c->n_layers; l++) b->attention_done[l] = factor_files[c->n_layers + l].map.data != NULL;
    return NMLP_OK;
}

nmlp_layer_taps nmlp_factor_attention_taps(const nmlp_factor_buffers *b, int64_t l) {
    nmlp_layer_taps taps = {0};
    if (!b->attention_done || b->attention_done[l]) return taps;
    taps.attention_x = b->attention_x;
    taps.attention_mixed = b->attention_mixed;
    return taps;
}

/* Row weights by head: errors count relative to what q, k or v of a head are, and those of keys and values once for
 * every query head that reads them. w [rows,H], c [H,H] the Gram of the input. */
static nmlp_status weigh_heads(double *d, const double *w, const double *c, int64_t rows, int64_t hidden,
                               int64_t head_dim, double readers, nmlp_pool *pool, nmlp_err *err) {
    double *seen = nmlp_mem_new((size_t)(rows * hidden), sizeof *seen, err);
    if (!seen) return NMLP_E_NOMEM;
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, rows, hidden, hidden, w, c, seen);
    for (int64_t first = 0; first < rows; first += head_dim) {
        double energy = 0;
        for (int64_t i = first * hidden; i < (first + head_dim) * hidden; i++) energy += seen[i] * w[i];
        for (int64_t i = first; i < first + head_dim; i++) d[i] = energy > 0 ? sqrt(readers / energy) : 1;
    }
    nmlp_mem_free(seen);
    return NMLP_OK;
}

/* b->input and b->output of an attention whose o [H,Q] in f64 is w. The rows tapped are spent. */
static nmlp_status make_grams(const nmlp_factor_pass *s, nmlp_factor_buffers *b, const float *residual, const double *w,
                              nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    int64_t h = c->hidden, q = c->n_heads * c->head_dim, tokens = s->share->calib_tokens;
    NMLP_RETURN_IF_FAILED(nmlp_factor_gram(s, b, residual, b->input, b->attention_x, h, 0, err));
    NMLP_RETURN_IF_FAILED(nmlp_factor_gram(s, b, residual, b->mixed_gram, b->attention_mixed, q, 0, err));
    if (s->options->shrink) {
        nmlp_gram_shrink(b->input, h, tokens);
        nmlp_gram_shrink(b->mixed_gram, q, tokens);
    }
    double *half = nmlp_mem_new((size_t)(h * q), sizeof *half, err);
    if (!half) return NMLP_E_NOMEM;
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, h, q, q, w, b->mixed_gram, half);
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_TRANSPOSED, h, h, q, half, w, b->output);
    nmlp_mem_free(half);
    return NMLP_OK;
}

/* Weights of the rows of q, k and v, one after the other in d. */
static nmlp_status weigh_rows(const nmlp_factor_pass *s, const nmlp_factor_buffers *b, const nmlp_block *block,
                              double *const w[], double *d, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t at = 0;
    for (int i = 0; i < block->n_first; i++) {
        double readers = i == NMLP_ATTENTION_Q ? 1 : (double)(c->n_heads / c->n_kv_heads);
        NMLP_RETURN_IF_FAILED(weigh_heads(d + at, w[i], b->input, block->rows[i], c->hidden, c->head_dim, readers,
                                          nmlp_engine_pool(s->engine), err));
        at += block->rows[i];
    }
    return NMLP_OK;
}

nmlp_status nmlp_factor_attention_write(const nmlp_factor_pass *s, int64_t at, nmlp_factor_buffers *b,
                                        const float *residual, nmlp_err *err) {
    const nmlp_compress_options *o = s->options;
    const nmlp_block *block = &s->blocks[at];
    const nmlp_layer *layer = &nmlp_engine_model(s->engine)->layers[block->layer];
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    int last = block->n_first, joint = last + 1;
    nmlp_nested nested[NMLP_NESTED_COUNT] = {0};
    double *w[NMLP_ATTENTION_MATRICES], *d = NULL;
    char path[NMLP_FACTOR_PATH_MAX];
    nmlp_status st = NMLP_OK;
    nmlp_arena arena;
    nmlp_compress_work before = nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_MOMENTS);
    nmlp_arena_init(&arena);
    nmlp_module_moments m = {.hidden = block->cols[0],
                             .n_first = last,
                             .inner = block->cols[last],
                             .kernels = b->kernels,
                             .input = o->whiten ? b->input : NULL,
                             .output = o->whiten ? b->output : NULL,
                             .separate = o->joint != NMLP_JOINT_ALWAYS,
                             .joint = o->joint != NMLP_JOINT_NEVER,
                             .times = s->times};
    for (int i = 0; i <= last; i++) {
        w[i] = nmlp_arena_new(&arena, (size_t)(block->rows[i] * block->cols[i]), sizeof(double), err);
        if (!w[i]) NMLP_TRY(NMLP_E_NOMEM);
        nmlp_widen(pool, w[i], &layer->attention[i].w);
        m.w[i] = w[i];
        m.rows[i] = block->rows[i];
        m.views[i] = layer->attention[i].w;
    }
    if (o->whiten) NMLP_TRY(make_grams(s, b, residual, w[last], err));
    if (o->row_weights && o->whiten) {
        d = nmlp_arena_new(&arena, (size_t)block->rows[joint], sizeof *d, err);
        if (!d) NMLP_TRY(NMLP_E_NOMEM);
        NMLP_TRY(weigh_rows(s, b, block, w, d, err));
        for (int64_t i = 0, row = 0; i < last; row += block->rows[i++]) m.d[i] = d + row;
    }
    NMLP_TRY(nmlp_factorise_module(nested, &m, pool, err));
    nmlp_compress_times_enter(s->times, NMLP_COMPRESS_WORK_FILES);
    NMLP_TRY(nmlp_factor_path(s, at, 0, path, err));
    NMLP_TRY(nmlp_factor_file_write(path, s->fingerprint, nested, d, d ? block->rows[joint] : 0, err));
out:
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&nested[i]);
    nmlp_arena_fini(&arena);
    nmlp_compress_times_enter(s->times, before);
    return st;
}
