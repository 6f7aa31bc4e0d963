#include "model/model_shard.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/pages.h"

enum { COPIES_PER_LAYER = 2 }; /* o and down */

/* What one part takes: items first..first+n-1 of n * size. */
struct range {
    int64_t first, n;
};

struct cut {
    nmlp_model_shard *shard;
    int rank, size;
};

static struct range part_of(const struct cut *c, int64_t total) {
    int64_t n = total / c->size;
    return (struct range){.first = c->rank * n, .n = n};
}

int64_t nmlp_model_shard_vocab(int64_t vocab, int rank, int size) { return vocab * rank / size; }

static nmlp_view rows_of(const nmlp_view *whole, struct range range) {
    nmlp_view part = *whole;
    if (!whole->data) return part;
    int64_t width = whole->n_dims > 1 ? whole->shape[1] : 1;
    part.data = (const char *)whole->data + (size_t)(range.first * width) * nmlp_dtype_bytes(whole->dtype);
    part.shape[0] = range.n;
    return part;
}

/* In pages of their own, so that whoever packs them can give the memory back. */
static nmlp_status columns_of(struct cut *c, nmlp_view *part, const nmlp_view *whole, struct range range,
                              nmlp_err *err) {
    nmlp_model_shard *s = c->shard;
    size_t elem = nmlp_dtype_bytes(whole->dtype), row = (size_t)range.n * elem;
    *part = *whole;
    part->shape[1] = range.n;
    size_t bytes = nmlp_view_bytes(part);
    char *copy = nmlp_pages_new(bytes, err);
    if (!copy) return NMLP_E_NOMEM;
    s->copies[s->n_copies] = copy;
    s->copy_bytes[s->n_copies++] = bytes;
    for (int64_t i = 0; i < whole->shape[0]; i++)
        memcpy(copy + (size_t)i * row, (const char *)nmlp_view_row(whole, i) + (size_t)range.first * elem, row);
    nmlp_file_map_release(whole->data, nmlp_view_bytes(whole));
    part->data = copy;
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
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++)
        if (m->checkpoint.tensors[i].view.scales)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s: quantised weights are not shared by processes",
                             m->checkpoint.dir, m->checkpoint.tensors[i].name);
    return NMLP_OK;
}

nmlp_status nmlp_model_shard_create(nmlp_model_shard **out, const nmlp_model *whole, int rank, int size,
                                    nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_config *config = &whole->config;
    size_t n = (size_t)config->n_layers;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check(whole, size, err));
    nmlp_model_shard *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    struct cut cut = {.shard = s, .rank = rank, .size = size};
    s->model = *whole;
    s->model.layers = nmlp_mem_new(n, sizeof *s->model.layers, err);
    s->copies = nmlp_mem_new(COPIES_PER_LAYER * n, sizeof *s->copies, err);
    s->copy_bytes = nmlp_mem_new(COPIES_PER_LAYER * n, sizeof *s->copy_bytes, err);
    if (!s->model.layers || !s->copies || !s->copy_bytes) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t l = 0; l < n; l++) NMLP_TRY(cut_layer(&cut, &s->model.layers[l], &whole->layers[l], config, err));
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
    nmlp_mem_free(s->model.layers);
    nmlp_mem_free(s);
}
