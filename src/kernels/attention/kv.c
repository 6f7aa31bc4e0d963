#include "kernels/attention/kv.h"

#include <string.h>

enum {
    GROUP_MAX = 512,
    STAGGER_BYTES = 1088, /* strips a power of two apart would meet in the same sets of the caches */
    TILE_K = 32,          /* bf16 in a line */
    TILE_BYTES = 1024,
    PAIR_BYTES = 4
};

nmlp_kv_layout nmlp_kv_layout_of(const nmlp_kv *kv) {
    int64_t positions = nmlp_kv_page_positions(kv);
    nmlp_kv_layout l = {.dim = nmlp_pad(kv->head_dim), .group = nmlp_min(GROUP_MAX, nmlp_pad(positions))};
    l.k_strip_bytes = (size_t)(l.dim * NMLP_STRIP) * sizeof(uint16_t);
    l.v_strip_bytes = (size_t)(l.group * NMLP_STRIP) * sizeof(uint16_t) + STAGGER_BYTES;
    l.head_bytes = l.k_strip_bytes * (size_t)(l.group / NMLP_STRIP) + l.v_strip_bytes * (size_t)(l.dim / NMLP_STRIP);
    l.group_bytes = l.head_bytes * (size_t)kv->n_heads;
    l.n_groups = nmlp_ceil_div(positions, l.group);
    return l;
}

int64_t nmlp_kv_page_size(const nmlp_kernels *kernels) {
    enum { PAGE_F32 = 128 }; /* keys of a block of attention */
    return kernels->bf16_activations ? GROUP_MAX : PAGE_F32;
}

size_t nmlp_kv_bytes(const nmlp_kv *kv) {
    if (!nmlp_kv_in_bf16(kv))
        return (size_t)(2 * kv->n_heads * nmlp_kv_page_positions(kv) * kv->head_dim) * sizeof(float);
    nmlp_kv_layout l = nmlp_kv_layout_of(kv);
    return l.group_bytes * (size_t)l.n_groups;
}

static void store_head_f32(const nmlp_kv *kv, int64_t head, const float *k, const float *v, int64_t first, int64_t s) {
    size_t row_bytes = (size_t)kv->head_dim * sizeof *k;
    for (int64_t i = 0; i < s; i++) {
        int64_t at = (i * kv->n_heads + head) * kv->head_dim;
        memcpy(nmlp_kv_key_rows(kv, head, first + i), k + at, row_bytes);
        memcpy(nmlp_kv_value_rows(kv, head, first + i), v + at, row_bytes);
    }
}

/* One head's rows on their way into strips. */
struct storing {
    const nmlp_kv *kv;
    nmlp_kv_layout layout;
    int64_t head;
    const float *k; /* of position `first` */
    const float *v;
    int64_t first;
    int64_t end;
};

static int64_t row_stride(const struct storing *s) { return s->kv->n_heads * s->kv->head_dim; }

/* Up to 16 rows of 32 dimensions from d on as rows of bf16, zeros beyond the last dimension. */
static void round_rows(const struct storing *s, void *lines, const float *rows, int64_t n_rows, int64_t d) {
    nmlp_vec_put put = {.dst = lines,
                        .step = TILE_BYTES,
                        .src = rows + d,
                        .src_stride = row_stride(s),
                        .n_rows = n_rows,
                        .n = nmlp_min(TILE_K, s->kv->head_dim - d),
                        .n_padded = TILE_K};
    s->kv->kernels->vec->put_bf16(&put);
}

/* A whole strip of 16 keys: rows of bf16 are rows of pairs, and keys as rows, transposed in pairs, are keys as columns.
 */
static void store_16_keys(const struct storing *s, int64_t key) {
    _Alignas(NMLP_LINE_BYTES) char tile[TILE_BYTES];
    char *strip = nmlp_kv_key_strips(s->kv, &s->layout, s->head, key);
    for (int64_t d = 0; d < s->layout.dim; d += TILE_K, strip += TILE_BYTES) {
        round_rows(s, tile, s->k + (key - s->first) * row_stride(s), NMLP_STRIP, d);
        s->kv->kernels->vec->transpose(strip, tile, NMLP_STRIP, NMLP_STRIP, NMLP_STRIP);
    }
}

static void store_key(const struct storing *s, int64_t key) {
    _Alignas(NMLP_LINE_BYTES) char line[NMLP_LINE_BYTES];
    char *strip = nmlp_kv_key_strips(s->kv, &s->layout, s->head, key) + key % NMLP_STRIP * PAIR_BYTES;
    for (int64_t d = 0; d < s->layout.dim; d += TILE_K) {
        round_rows(s, line, s->k + (key - s->first) * row_stride(s), 1, d);
        for (int pair = 0; pair < TILE_K / 2; pair++, strip += NMLP_LINE_BYTES)
            memcpy(strip, line + pair * PAIR_BYTES, PAIR_BYTES);
    }
}

static void store_value_pair(const struct storing *s, int64_t key) {
    const float *row = s->v + (key - s->first) * row_stride(s);
    nmlp_vec_pairing pairing = {.dst = nmlp_kv_value_strips(s->kv, &s->layout, s->head, key),
                                .step = s->layout.v_strip_bytes,
                                .even = row,
                                .odd = row + row_stride(s),
                                .n = s->kv->head_dim,
                                .n_padded = s->layout.dim};
    s->kv->kernels->vec->pair_rows(&pairing);
}

static void store_value(const struct storing *s, int64_t key) {
    _Alignas(NMLP_LINE_BYTES) uint16_t line[TILE_K];
    uint16_t *strip = (uint16_t *)nmlp_kv_value_strips(s->kv, &s->layout, s->head, key & ~(int64_t)1) + (key & 1);
    for (int64_t d = 0; d < s->layout.dim; d += TILE_K) {
        round_rows(s, line, s->v + (key - s->first) * row_stride(s), 1, d);
        for (int i = 0; i < TILE_K; i++) {
            size_t at = s->layout.v_strip_bytes / sizeof *strip * (size_t)((d + i) / NMLP_STRIP);
            strip[at + (size_t)((d + i) % NMLP_STRIP * 2)] = line[i];
        }
    }
}

static void store_head_bf16(const struct storing *s) {
    for (int64_t key = s->first; key < s->end;) {
        bool whole = key % NMLP_STRIP == 0 && key + NMLP_STRIP <= s->end;
        (whole ? store_16_keys : store_key)(s, key);
        key += whole ? NMLP_STRIP : 1;
    }
    for (int64_t key = s->first; key < s->end;) {
        bool whole = key % 2 == 0 && key + 2 <= s->end;
        (whole ? store_value_pair : store_value)(s, key);
        key += whole ? 2 : 1;
    }
}

void nmlp_kv_store_head(const nmlp_kv *kv, int64_t head, const float *k, const float *v, int64_t first, int64_t s) {
    if (!nmlp_kv_in_bf16(kv)) {
        store_head_f32(kv, head, k, v, first, s);
        return;
    }
    struct storing storing = {.kv = kv,
                              .layout = nmlp_kv_layout_of(kv),
                              .head = head,
                              .k = k + head * kv->head_dim,
                              .v = v + head * kv->head_dim,
                              .first = first,
                              .end = first + s};
    store_head_bf16(&storing);
}

void nmlp_kv_store(const nmlp_kv *kv, const float *k, const float *v, int64_t first, int64_t s) {
    for (int64_t head = 0; head < kv->n_heads; head++) nmlp_kv_store_head(kv, head, k, v, first, s);
}
