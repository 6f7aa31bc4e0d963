#include "model/expand.h"

#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/target.h"
#include "model/slices.h"
#include "tensor/quant.h"

enum { PATH_MAX_BYTES = 4096, SIDE_FILE_MAX_BYTES = 256 << 20, ROW_GRAIN = 4 };

nmlp_status nmlp_model_copy_side_files(const char *from_dir, const char *to_dir, nmlp_err *err) {
    for (size_t i = 0; nmlp_side_file_names[i]; i++) {
        char from[PATH_MAX_BYTES];
        char to[PATH_MAX_BYTES];
        nmlp_str text;
        NMLP_RETURN_IF_FAILED(nmlp_path_join(from, sizeof from, from_dir, nmlp_side_file_names[i], err));
        NMLP_RETURN_IF_FAILED(nmlp_path_join(to, sizeof to, to_dir, nmlp_side_file_names[i], err));
        if (!nmlp_file_exists(from)) continue;
        nmlp_str_init(&text);
        nmlp_status st = nmlp_file_read(&text, from, SIDE_FILE_MAX_BYTES, err);
        if (st == NMLP_OK) st = nmlp_file_write_text(to, nmlp_str_text(&text), text.len, err);
        nmlp_str_fini(&text);
        if (st != NMLP_OK) return st;
    }
    return NMLP_OK;
}

nmlp_dtype nmlp_model_plain_dtype(nmlp_dtype dtype) { return nmlp_dtype_is_quantised(dtype) ? NMLP_DTYPE_BF16 : dtype; }

/* W [N,K] = u [N,r] v [r,K], rows split over threads; every row sums over r in the same order. */
struct product {
    const nmlp_view *u;
    const float *v;   /* [r,K] f32 */
    nmlp_dtype dtype; /* of W */
    float *rows;      /* per thread: K + r floats */
    char *out;
    int64_t rank;
    int64_t cols;
};

static void multiply_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct product *p = ctx;
    float *row = p->rows + (size_t)thread * (size_t)(p->cols + p->rank);
    float *coefficients = row + p->cols;
    size_t row_bytes = (size_t)p->cols * nmlp_dtype_bytes(p->dtype);
    for (int64_t i = begin; i < end; i++) {
        nmlp_quant_row_to_f32(coefficients, p->u, i);
        memset(row, 0, (size_t)p->cols * sizeof *row);
        for (int64_t r = 0; r < p->rank; r++) {
            const float *v = p->v + r * p->cols;
            float c = coefficients[r];
            for (int64_t j = 0; j < p->cols; j++) row[j] += c * v[j];
        }
        nmlp_from_f32(p->out + (size_t)i * row_bytes, p->dtype, row, (size_t)p->cols);
    }
}

/* A quantised matrix W [N,K] in a plain type, row by row. */
static nmlp_status put_widened(nmlp_checkpoint_writer *writer, const nmlp_view *w, nmlp_err *err) {
    int64_t cols = w->shape[1];
    nmlp_dtype dtype = nmlp_model_plain_dtype(w->dtype);
    size_t row_bytes = (size_t)cols * nmlp_dtype_bytes(dtype);
    float *row = nmlp_mem_new((size_t)cols, sizeof *row, err);
    char *out = nmlp_mem_new(row_bytes, 1, err);
    nmlp_status st = row && out ? NMLP_OK : NMLP_E_NOMEM;
    for (int64_t i = 0; st == NMLP_OK && i < w->shape[0]; i++) {
        nmlp_quant_row_to_f32(row, w, i);
        nmlp_from_f32(out, dtype, row, (size_t)cols);
        st = nmlp_checkpoint_put(writer, out, row_bytes, err);
    }
    nmlp_mem_free(row);
    nmlp_mem_free(out);
    return st;
}

nmlp_status nmlp_model_put_plain(nmlp_checkpoint_writer *writer, const nmlp_view *view, nmlp_err *err) {
    if (nmlp_dtype_is_quantised(view->dtype)) return put_widened(writer, view, err);
    return nmlp_checkpoint_put_view(writer, view, err);
}

static size_t product_bytes(const nmlp_factors *f) {
    return (size_t)(nmlp_factors_rows(f) * nmlp_factors_cols(f)) * nmlp_dtype_bytes(nmlp_model_plain_dtype(f->u.dtype));
}

nmlp_status nmlp_factors_multiply(void *out, nmlp_dtype dtype, const nmlp_factors *f, nmlp_pool *pool, nmlp_err *err) {
    int64_t rows = nmlp_factors_rows(f);
    int64_t cols = nmlp_factors_cols(f);
    int64_t rank = nmlp_factors_rank(f);
    nmlp_status st = NMLP_E_NOMEM;
    float *v = nmlp_mem_new((size_t)(rank * cols), sizeof *v, err);
    float *scratch = nmlp_mem_new((size_t)nmlp_pool_threads(pool) * (size_t)(cols + rank), sizeof *scratch, err);
    if (v && scratch) {
        for (int64_t r = 0; r < rank; r++) nmlp_quant_row_to_f32(v + r * cols, &f->v, r);
        struct product product = {
            .u = &f->u, .v = v, .dtype = dtype, .rows = scratch, .out = out, .rank = rank, .cols = cols};
        nmlp_pool_for(pool, rows, ROW_GRAIN, multiply_rows, &product);
        st = NMLP_OK;
    }
    nmlp_mem_free(v);
    nmlp_mem_free(scratch);
    return st;
}

static nmlp_status put_product(nmlp_checkpoint_writer *writer, const nmlp_factors *f, nmlp_pool *pool, nmlp_err *err) {
    char *out = nmlp_mem_new(product_bytes(f), 1, err);
    if (!out) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_factors_multiply(out, nmlp_model_plain_dtype(f->u.dtype), f, pool, err);
    if (st == NMLP_OK) st = nmlp_checkpoint_put(writer, out, product_bytes(f), err);
    nmlp_mem_free(out);
    return st;
}

/* The products of all slices: below each other for gate and up, side by side for down. */
static nmlp_status put_slices(nmlp_checkpoint_writer *writer, const nmlp_layer *layer, int matrix, nmlp_pool *pool,
                              nmlp_err *err) {
    size_t n = (size_t)layer->slices, copy_bytes = nmlp_layer_slice_copy_bytes(layer);
    nmlp_factors mlp[NMLP_MLP_MATRICES];
    nmlp_status st = NMLP_OK;
    char *copy = nmlp_mem_new(copy_bytes > 0 ? copy_bytes : 1, 1, err), *out = NULL;
    if (!copy) return NMLP_E_NOMEM;
    nmlp_layer_slice(mlp, layer, 0, copy);
    size_t bytes = product_bytes(&mlp[matrix]), rows = (size_t)nmlp_factors_rows(&mlp[matrix]);
    out = nmlp_mem_new(n * bytes, 1, err);
    if (!out) st = NMLP_E_NOMEM;
    for (size_t s = 0; s < n && st == NMLP_OK; s++) {
        nmlp_layer_slice(mlp, layer, (int64_t)s, copy);
        st = nmlp_factors_multiply(out + s * bytes, nmlp_model_plain_dtype(mlp[matrix].u.dtype), &mlp[matrix], pool,
                                   err);
    }
    size_t row_bytes = bytes / rows;
    if (st == NMLP_OK && matrix != NMLP_MLP_DOWN) st = nmlp_checkpoint_put(writer, out, n * bytes, err);
    for (size_t i = 0; i < rows && st == NMLP_OK && matrix == NMLP_MLP_DOWN; i++)
        for (size_t s = 0; s < n && st == NMLP_OK; s++)
            st = nmlp_checkpoint_put(writer, out + s * bytes + i * row_bytes, row_bytes, err);
    nmlp_mem_free(copy);
    nmlp_mem_free(out);
    return st;
}

struct output {
    nmlp_tensor_spec spec;
    const nmlp_factors *factors; /* NULL: copy `source` */
    int n_factors;               /* one below the other */
    const nmlp_layer *layer;     /* whose slices' factors they are; NULL: factors of whole matrices */
    int matrix;
    const nmlp_view *source;
};

static bool is_factor_name(const char *name) {
    size_t len = strlen(name);
    return len > 2 && (strcmp(name + len - 2, ".u") == 0 || strcmp(name + len - 2, ".v") == 0);
}

static nmlp_dtype dtype_of(const nmlp_factors *f) {
    return nmlp_model_plain_dtype(nmlp_factors_is_dense(f) ? f->w.dtype : f->u.dtype);
}

/* Gate and up of a layer whose family has them in one tensor, which compression took apart. */
static bool is_split(const nmlp_model *m, int64_t layer) {
    char name[128];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.gate_up_proj.weight", (long long)layer);
    return m->config.features->fused && !nmlp_checkpoint_find(&m->checkpoint, name);
}

static bool is_split_part(const nmlp_model *m, const char *name) {
    return m->config.features->fused && (strstr(name, ".mlp.gate_proj.") || strstr(name, ".mlp.up_proj."));
}

static nmlp_status add_fused(const nmlp_model *m, nmlp_arena *arena, int64_t layer, struct output *o, nmlp_err *err) {
    const nmlp_factors *f = m->layers[layer].mlp;
    char name[128];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.gate_up_proj.weight", (long long)layer);
    if (dtype_of(&f[NMLP_MLP_GATE]) != dtype_of(&f[NMLP_MLP_UP]))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: gate and up of layer %lld have different types",
                         m->checkpoint.dir, (long long)layer);
    *o = (struct output){.factors = f, .n_factors = 2};
    o->spec = (nmlp_tensor_spec){.name = nmlp_arena_strdup(arena, name, err),
                                 .dtype = dtype_of(f),
                                 .n_dims = 2,
                                 .shape = {2 * nmlp_factors_rows(f), nmlp_factors_cols(f)}};
    return o->spec.name ? NMLP_OK : NMLP_E_NOMEM;
}

/* Of a factorised matrix, whose name without ".weight" is `path`. */
static nmlp_status set_product_spec(nmlp_arena *arena, const char *path, int64_t rows, int64_t cols, struct output *o,
                                    nmlp_err *err) {
    char name[NMLP_MATRIX_PATH_MAX + 8];
    snprintf(name, sizeof name, "%s.weight", path);
    o->spec = (nmlp_tensor_spec){.name = nmlp_arena_strdup(arena, name, err),
                                 .dtype = nmlp_model_plain_dtype(o->factors->u.dtype),
                                 .n_dims = 2,
                                 .shape = {rows, cols}};
    return o->spec.name ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status list_attention(const nmlp_model *m, nmlp_arena *arena, int64_t l, struct output *outputs, size_t *n,
                                  nmlp_err *err) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        const nmlp_factors *f = &m->layers[l].attention[i];
        char path[NMLP_MATRIX_PATH_MAX];
        if (nmlp_factors_is_dense(f)) continue;
        struct output *o = &outputs[(*n)++];
        *o = (struct output){.factors = f, .n_factors = 1, .matrix = i};
        nmlp_module_matrix_path(path, &m->config, NMLP_MODULE_ATTENTION, l, 0, i);
        NMLP_RETURN_IF_FAILED(set_product_spec(arena, path, nmlp_factors_rows(f), nmlp_factors_cols(f), o, err));
    }
    return NMLP_OK;
}

static nmlp_status list_outputs(const nmlp_model *m, nmlp_arena *arena, struct output *outputs, size_t *n,
                                nmlp_err *err) {
    const nmlp_config *c = &m->config;
    *n = 0;
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        if (is_factor_name(t->name) || is_split_part(m, t->name)) continue;
        struct output *o = &outputs[(*n)++];
        *o = (struct output){.source = &t->view};
        o->spec = nmlp_tensor_spec_of(t->name, &t->view);
        o->spec.dtype = nmlp_model_plain_dtype(t->view.dtype);
    }
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        NMLP_RETURN_IF_FAILED(list_attention(m, arena, l, outputs, n, err));
        if (is_split(m, l)) NMLP_RETURN_IF_FAILED(add_fused(m, arena, l, &outputs[(*n)++], err));
        for (int64_t e = 0; e < nmlp_config_mlp_count(&m->config, l); e++)
            for (int i = m->config.features->fused ? NMLP_MLP_DOWN : 0; i < NMLP_MLP_MATRICES; i++) {
                const nmlp_factors *f = &nmlp_layer_mlp_at(&m->layers[l], e)[i];
                char path[NMLP_MATRIX_PATH_MAX];
                nmlp_mlp_matrix_path(path, &m->config, l, e, i);
                if (nmlp_factors_is_dense(f)) continue;
                struct output *o = &outputs[(*n)++];
                int64_t inner = nmlp_config_mlp_inner(c, l), rows = i == NMLP_MLP_DOWN ? c->hidden : inner;
                *o = (struct output){.factors = f, .n_factors = 1, .matrix = i};
                if (m->layers[l].slices > 0) o->layer = &m->layers[l];
                NMLP_RETURN_IF_FAILED(set_product_spec(arena, path, rows, c->hidden + inner - rows, o, err));
            }
    }
    return NMLP_OK;
}

struct expansion {
    const struct output *outputs;
    nmlp_pool *pool;
};

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const struct expansion *e = ctx;
    const struct output *o = &e->outputs[i];
    if (o->source) return nmlp_model_put_plain(writer, o->source, err);
    if (o->layer) return put_slices(writer, o->layer, o->matrix, e->pool, err);
    for (int f = 0; f < o->n_factors; f++) {
        const nmlp_factors *part = &o->factors[f];
        NMLP_RETURN_IF_FAILED(nmlp_factors_is_dense(part) ? nmlp_model_put_plain(writer, &part->w, err)
                                                          : put_product(writer, part, e->pool, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_model_expand(const nmlp_model *m, const char *dir, nmlp_pool *pool, const nmlp_progress *progress,
                              int64_t *bytes, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_dir_stage stage = {0};
    nmlp_arena arena;
    size_t n = 0;
    size_t max_outputs = m->checkpoint.n_tensors + (size_t)(m->config.n_layers * NMLP_MLP_MATRICES);
    NMLP_RETURN_IF_FAILED(nmlp_target_check(dir, m->checkpoint.dir, err));
    nmlp_arena_init(&arena);
    struct output *outputs = nmlp_arena_new(&arena, max_outputs, sizeof *outputs, err);
    nmlp_tensor_spec *specs = nmlp_arena_new(&arena, max_outputs, sizeof *specs, err);
    if (!outputs || !specs) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    NMLP_TRY(list_outputs(m, &arena, outputs, &n, err));
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        specs[i] = outputs[i].spec;
        *bytes += (int64_t)nmlp_tensor_spec_bytes(&specs[i]);
    }
    NMLP_TRY(nmlp_dir_stage_open(&stage, dir, false, err));
    struct expansion expansion = {.outputs = outputs, .pool = pool};
    nmlp_checkpoint_source source = {
        .specs = specs, .n_specs = n, .put = put, .ctx = &expansion, .progress = progress, .stage = "expanding"};
    NMLP_TRY(nmlp_checkpoint_write(stage.temp_path, &source, err));
    NMLP_TRY(nmlp_config_save(&m->config, NULL, specs, n, stage.temp_path, err));
    NMLP_TRY(nmlp_model_copy_side_files(m->checkpoint.dir, stage.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&stage, err));
out:
    nmlp_dir_stage_abort(&stage);
    nmlp_arena_fini(&arena);
    return st;
}
