/* Keys and values on their way from the cache to the strips of gemm.h. */
#include <string.h>

#include "kernels/attention_int.h"

enum { TILE_K = 32, TILE_BYTES = 1024 };

static size_t strip_bytes(const nmlp_attend *run, int64_t inputs) {
    return (size_t)(inputs * NMLP_STRIP * run->gemm->elem_bytes);
}

static void keys_f32(const nmlp_attend *run, char *strip, const float *k, int64_t n) {
    int64_t dim = run->args->head_dim;
    run->vec->transpose(strip, k, dim, n, dim);
    memset(strip + strip_bytes(run, dim), 0, strip_bytes(run, run->dim - dim));
}

/* Rows of bf16 are rows of pairs, and a tile of keys as rows, transposed in pairs, is a tile of keys as columns. */
static void keys_bf16(const nmlp_attend_task *task, char *strip, const float *k, int64_t n) {
    const nmlp_attend *run = task->run;
    char *pairs = task->scratch->pairs;
    nmlp_put put = {.dst = pairs,
                    .step = TILE_BYTES,
                    .src = k,
                    .src_stride = run->args->head_dim,
                    .n_rows = n,
                    .n = run->args->head_dim,
                    .n_padded = run->dim};
    run->vec->put_bf16(&put);
    for (int64_t d = 0; d < run->dim; d += TILE_K, pairs += TILE_BYTES, strip += TILE_BYTES)
        run->vec->transpose(strip, pairs, NMLP_STRIP, n, NMLP_STRIP);
}

void nmlp_attend_load_keys(const nmlp_attend_task *task, int64_t key, int64_t n, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    int64_t dim = run->args->head_dim;
    const float *k = run->args->k + (task->kv_head * run->args->cache_len + key) * dim;
    for (int64_t at = 0; at < n_padded; at += NMLP_STRIP) {
        char *strip = task->scratch->k_strips + strip_bytes(run, run->dim) * (size_t)(at / NMLP_STRIP);
        int64_t n_rows = nmlp_max(0, nmlp_min(NMLP_STRIP, n - at));
        if (nmlp_attend_in_bf16(run))
            keys_bf16(task, strip, k + at * dim, n_rows);
        else
            keys_f32(run, strip, k + at * dim, n_rows);
    }
}

/* A strip of values is to the dimensions what a tile is to inputs: 16 of them, row after row of 64 bytes. */
static void values_f32(const nmlp_attend_task *task, const float *v, int64_t n, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    nmlp_put put = {.dst = task->scratch->v_strips,
                    .step = strip_bytes(run, run->keys),
                    .src = v,
                    .src_stride = run->args->head_dim,
                    .n_rows = n,
                    .n = run->args->head_dim,
                    .n_padded = run->dim};
    run->vec->put_f32(&put);
    nmlp_put rest = put;
    rest.dst = task->scratch->v_strips + n * NMLP_LINE_BYTES;
    rest.n_rows = n_padded - n;
    rest.n = 0;
    run->vec->put_f32(&rest);
}

static void values_bf16(const nmlp_attend_task *task, const float *v, int64_t n, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    int64_t dim = run->args->head_dim;
    nmlp_pairing pairing = {.dst = task->scratch->v_strips, .step = strip_bytes(run, run->keys), .n_padded = run->dim};
    for (int64_t key = 0; key < n_padded; key += 2, pairing.dst += NMLP_LINE_BYTES) {
        pairing.even = key < n ? v + key * dim : NULL;
        pairing.odd = key + 1 < n ? v + (key + 1) * dim : NULL;
        pairing.n = dim;
        run->vec->pair_rows(&pairing);
    }
}

void nmlp_attend_load_values(const nmlp_attend_task *task, int64_t key, int64_t n, int64_t n_padded) {
    const nmlp_attention *args = task->run->args;
    const float *v = args->v + (task->kv_head * args->cache_len + key) * args->head_dim;
    (nmlp_attend_in_bf16(task->run) ? values_bf16 : values_f32)(task, v, n, n_padded);
}
