#include "model/model_shard.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pages.h"
#include "model/expand.h"
#include "tensor/quant.h"

enum { COPIES_PER_LAYER = 9 }; /* columns of o and down, each with scales and zero points; products of factors */

/* What one part takes: items first..first+n-1 of n * size. */
struct range {
    int64_t first, n;
};

struct cut {
    nmlp_model_shard *shard;
    int rank, size;
    nmlp_pool *pool;
};

static struct range part_of(const struct cut *c, int64_t total) {
    int64_t n = total / c->size;
    return (struct range){.first = c->rank * n, .n = n};
}

int64_t nmlp_model_shard_vocab(int64_t vocab, int rank, int size) { return vocab * rank / size; }

int64_t nmlp_model_shard_first(int64_t n, int rank, int size) { return n * rank / size; }

static struct range uneven_part_of(const struct cut *c, int64_t total) {
    int64_t first = nmlp_model_shard_first(total, c->rank, c->size);
    return (struct range){.first = first, .n = nmlp_model_shard_first(total, c->rank + 1, c->size) - first};
}

static bool has_factors(const nmlp_layer *layer) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++)
        if (!nmlp_factors_is_dense(&layer->mlp[i])) return true;
    return false;
}

nmlp_cluster_split nmlp_model_shard_usual(const nmlp_layer *layer) {
    if (layer->slices > 0) return NMLP_CLUSTER_SPLIT_SLICES;
    return has_factors(layer) ? NMLP_CLUSTER_SPLIT_REPLICATED : NMLP_CLUSTER_SPLIT_DENSE;
}

bool nmlp_model_shard_allows(const nmlp_layer *layer, nmlp_cluster_split split, int size) {
    nmlp_cluster_split usual = nmlp_model_shard_usual(layer);
    if (usual != NMLP_CLUSTER_SPLIT_REPLICATED) return split == usual;
    if (split != NMLP_CLUSTER_SPLIT_ALL) return split != NMLP_CLUSTER_SPLIT_SLICES;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        const nmlp_factors *f = &layer->mlp[i];
        if (!nmlp_factors_is_dense(f) && (nmlp_factors_rank(f) < size || f->u.shape[0] < size)) return false;
    }
    return true;
}

static nmlp_view rows_of(const nmlp_view *whole, struct range range) {
    nmlp_view part = *whole;
    if (!whole->data) return part;
    if (whole->n_dims > 1) return nmlp_view_rows(whole, range.first, range.n);
    part.data = (const char *)whole->data + (size_t)range.first * nmlp_dtype_bytes(whole->dtype);
    part.shape[0] = range.n;
    return part;
}

/* Columns of a matrix of bytes: `n` of each of `rows` rows that lie `stride` apart, from `first` on. In pages of their
 * own, so that whoever packs them can give the memory back. */
static const void *copy_columns(struct cut *c, const void *from, int64_t rows, size_t stride, size_t first, size_t n,
                                nmlp_err *err) {
    nmlp_model_shard *s = c->shard;
    char *copy = nmlp_pages_new((size_t)rows * n, err);
    if (!copy) return NULL;
    s->copies[s->n_copies] = copy;
    s->copy_bytes[s->n_copies++] = (size_t)rows * n;
    for (int64_t i = 0; i < rows; i++) memcpy(copy + (size_t)i * n, (const char *)from + (size_t)i * stride + first, n);
    return copy;
}

/* Scales of Q4, and all that is per group, belong to groups of columns, of which the range has whole ones. */
static nmlp_status columns_of(struct cut *c, nmlp_view *part, const nmlp_view *whole, struct range range,
                              nmlp_err *err) {
    int64_t rows = whole->shape[0], width = whole->shape[1];
    size_t bits = (size_t)nmlp_dtype_bits(whole->dtype), row_bytes = nmlp_view_bytes(whole) / (size_t)rows;
    *part = *whole;
    part->shape[1] = range.n;
    part->data =
        copy_columns(c, whole->data, rows, row_bytes, (size_t)range.first * bits / 8, (size_t)range.n * bits / 8, err);
    if (!part->data) return NMLP_E_NOMEM;
    nmlp_file_map_release(whole->data, nmlp_view_bytes(whole));
    if (!whole->group) return NMLP_OK;
    size_t groups = (size_t)((width + whole->group - 1) / whole->group), scale = sizeof(uint16_t);
    size_t first = (size_t)(range.first / whole->group), n = (size_t)(range.n / whole->group);
    if (whole->dtype == NMLP_DTYPE_Q4)
        part->scales = copy_columns(c, whole->scales, rows, groups * scale, first * scale, n * scale, err);
    if (!part->scales) return NMLP_E_NOMEM;
    if (whole->per_group) part->per_group = copy_columns(c, whole->per_group, rows, groups, first, n, err);
    return part->per_group || !whole->per_group ? NMLP_OK : NMLP_E_NOMEM;
}

/* A part of the factors becomes the part of their product. */
static nmlp_status multiply_out(struct cut *c, nmlp_factors *part, nmlp_err *err) {
    nmlp_model_shard *s = c->shard;
    int64_t rows = nmlp_factors_rows(part), cols = nmlp_factors_cols(part);
    size_t bytes = (size_t)(rows * cols) * sizeof(float);
    void *product = nmlp_pages_new(bytes, err);
    if (!product) return NMLP_E_NOMEM;
    s->copies[s->n_copies] = product;
    s->copy_bytes[s->n_copies++] = bytes;
    NMLP_RETURN_IF_FAILED(nmlp_factors_multiply(product, NMLP_DTYPE_F32, part, c->pool, err));
    *part = (nmlp_factors){.w = nmlp_view_2d(product, NMLP_DTYPE_F32, rows, cols)};
    return NMLP_OK;
}

/* Whole slices: nothing is in two parts. */
static void cut_slices(const struct cut *c, nmlp_layer *layer, const nmlp_layer *whole) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        const nmlp_factors *f = &whole->mlp[i];
        if (nmlp_factors_is_dense(f)) continue;
        layer->mlp[i].u = rows_of(&f->u, part_of(c, f->u.shape[0]));
        layer->mlp[i].v = rows_of(&f->v, part_of(c, f->v.shape[0]));
    }
    layer->slices = whole->slices / c->size > 1 ? whole->slices / c->size : 0;
}

/* Rows of the factors on the side of the hidden state. */
static void cut_thin(const struct cut *c, nmlp_layer *layer, const nmlp_layer *whole) {
    for (int i = NMLP_MLP_GATE; i <= NMLP_MLP_UP; i++) {
        const nmlp_view *v = &whole->mlp[i].v;
        if (v->data) layer->mlp[i].v = rows_of(v, uneven_part_of(c, v->shape[0]));
    }
    const nmlp_view *u = &whole->mlp[NMLP_MLP_DOWN].u;
    if (u->data) layer->mlp[NMLP_MLP_DOWN].u = rows_of(u, uneven_part_of(c, u->shape[0]));
    layer->thin_split = true;
}

static nmlp_status cut_mlp(struct cut *c, nmlp_layer *layer, const nmlp_layer *whole, int64_t intermediate,
                           nmlp_err *err) {
    struct range range = part_of(c, intermediate);
    const nmlp_factors *down = &whole->mlp[NMLP_MLP_DOWN];
    nmlp_factors *part = &layer->mlp[NMLP_MLP_DOWN];
    for (int i = NMLP_MLP_GATE; i <= NMLP_MLP_UP; i++) {
        layer->mlp[i].w = rows_of(&whole->mlp[i].w, range);
        layer->mlp[i].u = rows_of(&whole->mlp[i].u, range);
    }
    if (whole->slices > 0) cut_slices(c, layer, whole);
    if (whole->slices > 0 && !nmlp_factors_is_dense(down)) return NMLP_OK;
    return nmlp_factors_is_dense(down) ? columns_of(c, &part->w, &down->w, range, err)
                                       : columns_of(c, &part->v, &down->v, range, err);
}

/* Where there are more parts than key/value heads, parts that share one each hold it. */
static struct range kv_heads_of(const struct cut *c, int64_t n_kv_heads) {
    if (n_kv_heads >= c->size) return part_of(c, n_kv_heads);
    return (struct range){.first = c->rank / (c->size / n_kv_heads), .n = 1};
}

static nmlp_status cut_layer(struct cut *c, nmlp_layer *layer, const nmlp_layer *whole, const nmlp_config *config,
                             nmlp_err *err) {
    struct range q = part_of(c, config->n_heads * config->head_dim);
    struct range kv = kv_heads_of(c, config->n_kv_heads);
    kv = (struct range){.first = kv.first * config->head_dim, .n = kv.n * config->head_dim};
    *layer = *whole;
    for (int i = 0; i < NMLP_ATTENTION_O; i++)
        layer->attention[i].w = rows_of(&whole->attention[i].w, i == NMLP_ATTENTION_Q ? q : kv);
    layer->q_bias = rows_of(&whole->q_bias, q);
    layer->k_bias = rows_of(&whole->k_bias, kv);
    layer->v_bias = rows_of(&whole->v_bias, kv);
    if (c->rank > 0) layer->o_bias = (nmlp_view){0}; /* once in the sum */
    NMLP_RETURN_IF_FAILED(
        columns_of(c, &layer->attention[NMLP_ATTENTION_O].w, &whole->attention[NMLP_ATTENTION_O].w, q, err));
    return cut_mlp(c, layer, whole, config->intermediate, err);
}

/* Behind the cut of the layer, which leaves thin factors whole. */
static nmlp_status split_factors(struct cut *c, nmlp_layer *layer, const nmlp_layer *whole, nmlp_cluster_split split,
                                 nmlp_err *err) {
    if (nmlp_model_shard_usual(whole) == split) return NMLP_OK;
    if (split == NMLP_CLUSTER_SPLIT_ALL) cut_thin(c, layer, whole);
    for (int i = 0; i < NMLP_MLP_MATRICES && split == NMLP_CLUSTER_SPLIT_DENSE; i++)
        if (!nmlp_factors_is_dense(&layer->mlp[i])) NMLP_RETURN_IF_FAILED(multiply_out(c, &layer->mlp[i], err));
    if (split == NMLP_CLUSTER_SPLIT_DENSE) layer->shared_basis = false;
    return NMLP_OK;
}

/* Columns that processes take whole: groups, and words of 32 bits. */
static int inseparable(const nmlp_view *v) {
    if (v->dtype == NMLP_DTYPE_Q5M) return 32;
    if (v->dtype == NMLP_DTYPE_Q6) return 16;
    return v->group > 0 ? v->group : 1;
}

static nmlp_status check_groups(const nmlp_model *m, int size, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    int64_t cut[] = {c->n_heads * c->head_dim / size, c->intermediate / size};
    for (int64_t l = 0; l < c->n_layers; l++) {
        const nmlp_factors *parted[] = {&m->layers[l].attention[NMLP_ATTENTION_O], &m->layers[l].mlp[NMLP_MLP_DOWN]};
        for (int i = 0; i < 2; i++) {
            const nmlp_view *v = nmlp_factors_is_dense(parted[i]) ? &parted[i]->w : &parted[i]->v;
            bool slices = i == 1 && m->layers[l].slices > 0 && !nmlp_factors_is_dense(parted[i]);
            int whole = inseparable(v);
            if (slices || cut[i] % whole == 0) continue;
            nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %d processes cannot share groups of %d of %lld quantised columns",
                      m->checkpoint.dir, size, whole, (long long)cut[i] * size);
            nmlp_fail_hint(err, "start fewer processes, or quantise in smaller groups or as q8");
            return NMLP_E_UNSUPPORTED;
        }
    }
    return NMLP_OK;
}

static nmlp_status check(const nmlp_model *m, int size, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    const struct {
        const char *what;
        int64_t n;
    } parted[] = {{"key/value heads", c->n_kv_heads}, {"heads", c->n_heads}, {"columns of the MLP", c->intermediate}};
    for (size_t i = 0; i < sizeof parted / sizeof parted[0]; i++) {
        if (parted[i].n % size == 0 || (i == 0 && size % c->n_kv_heads == 0)) continue;
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %d processes cannot share %lld %s evenly", m->checkpoint.dir, size,
                  (long long)parted[i].n, parted[i].what);
        nmlp_fail_hint(err, "start a number of processes that divides it");
        return NMLP_E_UNSUPPORTED;
    }
    if (c->slices > 0 && c->slices % size != 0) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: factors belong to %lld slices, which %d processes cannot share evenly",
                  m->checkpoint.dir, (long long)c->slices, size);
        nmlp_fail_hint(err, "start a number of processes that divides it");
        return NMLP_E_UNSUPPORTED;
    }
    if (c->attention_factored)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: factorised attention is not shared by processes",
                         m->checkpoint.dir);
    if (m->config.n_experts > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: experts are not shared by processes", m->checkpoint.dir);
    if (c->features->qk_norm != NMLP_QK_NORM_NONE && c->features->qk_norm != NMLP_QK_NORM_HEAD)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: norms over all heads together are not shared by processes",
                         m->checkpoint.dir);
    return check_groups(m, size, err);
}

static nmlp_status cut_layers(struct cut *c, const nmlp_model *whole, const nmlp_cluster_split *splits, nmlp_err *err) {
    nmlp_model_shard *s = c->shard;
    for (int64_t l = 0; l < whole->config.n_layers; l++) {
        const nmlp_layer *source = &whole->layers[l];
        s->splits[l] = splits ? splits[l] : nmlp_model_shard_usual(source);
        if (!nmlp_model_shard_allows(source, s->splits[l], c->size))
            return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "split",
                                   "%s: layer %lld cannot be shared by %d processes as \"%s\"", whole->checkpoint.dir,
                                   (long long)l, c->size, nmlp_cluster_split_name(s->splits[l]));
        NMLP_RETURN_IF_FAILED(cut_layer(c, &s->model.layers[l], source, &whole->config, err));
        NMLP_RETURN_IF_FAILED(split_factors(c, &s->model.layers[l], source, s->splits[l], err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_model_shard_create(nmlp_model_shard **out, const nmlp_model *whole, int rank, int size,
                                    const nmlp_cluster_split *splits, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_config *config = &whole->config;
    size_t n = (size_t)config->n_layers;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check(whole, size, err));
    nmlp_model_shard *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    struct cut cut = {.shard = s, .rank = rank, .size = size, .pool = pool};
    s->model = *whole;
    s->model.layers = nmlp_mem_new(n, sizeof *s->model.layers, err);
    s->copies = nmlp_mem_new(COPIES_PER_LAYER * n, sizeof *s->copies, err);
    s->copy_bytes = nmlp_mem_new(COPIES_PER_LAYER * n, sizeof *s->copy_bytes, err);
    s->splits = nmlp_mem_new(n, sizeof *s->splits, err);
    if (!s->model.layers || !s->copies || !s->copy_bytes || !s->splits) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(cut_layers(&cut, whole, splits, err));
    int64_t first = nmlp_model_shard_vocab(config->vocab, rank, size);
    int64_t end = nmlp_model_shard_vocab(config->vocab, rank + 1, size);
    s->model.lm_head = rows_of(&whole->lm_head, (struct range){.first = first, .n = end - first});
    s->model.config.n_heads /= size;
    s->model.config.n_kv_heads = kv_heads_of(&cut, config->n_kv_heads).n;
    s->model.config.intermediate /= size;
    s->model.config.slices /= size;
    *out = s;
out:
    if (st != NMLP_OK) nmlp_model_shard_destroy(s);
    return st;
}

void nmlp_model_shard_destroy(nmlp_model_shard *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n_copies; i++) nmlp_pages_free(s->copies[i], s->copy_bytes[i]);
    nmlp_mem_free(s->copies);
    nmlp_mem_free(s->copy_bytes);
    nmlp_mem_free(s->splits);
    nmlp_mem_free(s->model.layers);
    nmlp_mem_free(s);
}
