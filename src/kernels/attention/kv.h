/* How keys and values lie in memory (nmlp_kv).
 *
 * Of a page, or of all positions where there are no pages:
 * f32: rows [head][position][D], all keys, then all values.
 * bf16: groups of up to 512 positions one after the other, so that memory is touched as the text grows. In a group, for
 * every head, strips as in gemm.h: keys as outputs of D inputs, 16 of them to a strip, then values as D outputs whose
 * inputs are positions. */
#ifndef NMLP_KERNELS_ATTENTION_KV_H
#define NMLP_KERNELS_ATTENTION_KV_H

#include "kernels/kernels_internal.h"

typedef struct nmlp_kv_layout {
    int64_t dim;          /* D padded */
    int64_t group;        /* positions of a group */
    size_t k_strip_bytes; /* 16 keys */
    size_t v_strip_bytes; /* 16 dimensions of a group's values, to the next strip */
    size_t head_bytes;    /* of a group */
    size_t group_bytes;
    int64_t n_groups;
} nmlp_kv_layout;

nmlp_kv_layout nmlp_kv_layout_of(const nmlp_kv *kv);

/* One head of what nmlp_kv_store takes. */
void nmlp_kv_store_head(const nmlp_kv *kv, int64_t head, const float *k, const float *v, int64_t first, int64_t s);

static inline bool nmlp_kv_in_bf16(const nmlp_kv *kv) { return kv->kernels->bf16_activations; }

static inline int64_t nmlp_kv_page_positions(const nmlp_kv *kv) { return kv->pages ? kv->page : kv->len; }

/* The memory of the page that has position *key, which becomes one within the page. */
static inline char *nmlp_kv_page_of(const nmlp_kv *kv, int64_t *key) {
    if (!kv->pages) return kv->memory;
    int64_t page = *key / kv->page;
    *key -= page * kv->page;
    return (char *)kv->memory + kv->page_step_bytes * (size_t)kv->pages[page];
}

/* Strips of a head's keys from `key` (multiple of 16) on, and of its values from `key` (even) on: up to the end of the
 * group. */
static inline char *nmlp_kv_key_strips(const nmlp_kv *kv, const nmlp_kv_layout *l, int64_t head, int64_t key) {
    char *page = nmlp_kv_page_of(kv, &key);
    int64_t group = key / l->group;
    char *at = page + l->group_bytes * (size_t)group + l->head_bytes * (size_t)head;
    return at + l->k_strip_bytes * (size_t)((key - group * l->group) / NMLP_STRIP);
}
static inline char *nmlp_kv_value_strips(const nmlp_kv *kv, const nmlp_kv_layout *l, int64_t head, int64_t key) {
    char *page = nmlp_kv_page_of(kv, &key);
    int64_t group = key / l->group;
    char *at = page + l->group_bytes * (size_t)group + l->head_bytes * (size_t)head;
    at += l->k_strip_bytes * (size_t)(l->group / NMLP_STRIP);
    return at + (size_t)((key - group * l->group) * NMLP_STRIP) * sizeof(uint16_t);
}

/* Rows of f32: up to the end of the page. */
static inline float *nmlp_kv_key_rows(const nmlp_kv *kv, int64_t head, int64_t key) {
    float *page = (float *)nmlp_kv_page_of(kv, &key);
    return page + (head * nmlp_kv_page_positions(kv) + key) * kv->head_dim;
}
static inline float *nmlp_kv_value_rows(const nmlp_kv *kv, int64_t head, int64_t key) {
    return nmlp_kv_key_rows(kv, kv->n_heads + head, key);
}

#endif
