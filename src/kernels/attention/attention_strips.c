/* Keys and values on their way from the cache to the blocks of gemm.h: as they lie there, widened, or laid out. */
#include <string.h>

#include "kernels/attention/attention_internal.h"

static size_t strip_bytes(int64_t inputs) { return (size_t)(inputs * NMLP_STRIP) * sizeof(float); }

static void widen_strips(const nmlp_attention_task *task, nmlp_attention_keys *keys) {
    const nmlp_attention_job *run = task->run;
    for (int64_t at = 0; at < keys->n_padded / NMLP_STRIP; at++)
        run->gemm->widen((float *)(task->scratch->k_strips + strip_bytes(run->dim) * (size_t)at),
                         keys->k + keys->k_step * (size_t)at, NMLP_DTYPE_BF16, run->dim * NMLP_STRIP);
    for (int64_t at = 0; at < run->dim / NMLP_STRIP; at++)
        run->gemm->widen((float *)(task->scratch->v_strips + strip_bytes(run->keys) * (size_t)at),
                         keys->v + keys->v_step * (size_t)at, NMLP_DTYPE_BF16, keys->n_padded * NMLP_STRIP);
}

static void lay_out_keys(const nmlp_attention_task *task, int64_t key, int64_t n, int64_t n_padded) {
    const nmlp_attention_job *run = task->run;
    int64_t dim = run->args->kv.head_dim;
    const float *k = nmlp_kv_key_rows(&run->args->kv, task->kv_head, key);
    for (int64_t at = 0; at < n_padded; at += NMLP_STRIP) {
        char *strip = task->scratch->k_strips + strip_bytes(run->dim) * (size_t)(at / NMLP_STRIP);
        run->vec->transpose(strip, k + at * dim, dim, nmlp_max(0, nmlp_min(NMLP_STRIP, n - at)), dim);
        memset(strip + strip_bytes(dim), 0, strip_bytes(run->dim - dim));
    }
}

/* A strip of values is to the dimensions what a tile is to inputs: 16 of them, row after row of 64 bytes. */
static void lay_out_values(const nmlp_attention_task *task, int64_t key, int64_t n, int64_t n_padded) {
    const nmlp_attention_job *run = task->run;
    nmlp_vec_put put = {.dst = task->scratch->v_strips,
                        .step = strip_bytes(run->keys),
                        .src = nmlp_kv_value_rows(&run->args->kv, task->kv_head, key),
                        .src_stride = run->args->kv.head_dim,
                        .n_rows = n,
                        .n = run->args->kv.head_dim,
                        .n_padded = run->dim};
    run->vec->put_f32(&put);
    nmlp_vec_put rest = put;
    rest.dst = task->scratch->v_strips + n * NMLP_LINE_BYTES;
    rest.n_rows = n_padded - n;
    rest.n = 0;
    run->vec->put_f32(&rest);
}

static nmlp_attention_keys in_scratch(const nmlp_attention_task *task, int64_t first, int64_t n_padded) {
    return (nmlp_attention_keys){.first = first,
                                 .n_padded = n_padded,
                                 .k = task->scratch->k_strips,
                                 .k_step = strip_bytes(task->run->dim),
                                 .v = task->scratch->v_strips,
                                 .v_step = strip_bytes(task->run->keys)};
}

static nmlp_attention_keys in_cache(const nmlp_attention_task *task, int64_t first, int64_t n_padded) {
    const nmlp_attention_job *run = task->run;
    const nmlp_kv *kv = &run->args->kv;
    return (nmlp_attention_keys){.first = first,
                                 .n_padded = n_padded,
                                 .k = nmlp_kv_key_strips(kv, &run->layout, task->kv_head, first),
                                 .k_step = run->layout.k_strip_bytes,
                                 .v = nmlp_kv_value_strips(kv, &run->layout, task->kv_head, first),
                                 .v_step = run->layout.v_strip_bytes};
}

nmlp_attention_keys nmlp_attention_load(const nmlp_attention_task *task, int64_t first) {
    const nmlp_attention_job *run = task->run;
    int64_t n = nmlp_min(run->keys, task->end_key - first);
    if (!nmlp_kv_in_bf16(&run->args->kv)) {
        lay_out_keys(task, first, n, nmlp_pad(n));
        lay_out_values(task, first, n, nmlp_pad(n));
        return in_scratch(task, first, nmlp_pad(n));
    }
    n = nmlp_min(n, run->layout.group - first % run->layout.group); /* the next group is elsewhere */
    nmlp_attention_keys keys = in_cache(task, first, nmlp_pad(n));
    if (run->as_stored) return keys;
    widen_strips(task, &keys);
    return in_scratch(task, first, keys.n_padded);
}

/* Value d of position `at` of the block. */
static float value_at(const nmlp_attention_values *values, int64_t at, int64_t d) {
    const char *strip = values->keys->v + values->keys->v_step * (size_t)(d / NMLP_STRIP);
    int64_t in_strip = d % NMLP_STRIP;
    if (values->run->strip_dtype == NMLP_DTYPE_F32) return ((const float *)strip)[at * NMLP_STRIP + in_strip];
    return nmlp_bf16_to_f32(((const uint16_t *)strip)[(at / 2 * NMLP_STRIP + in_strip) * 2 + at % 2]);
}

static float probability_at(const nmlp_attention_values *values, int64_t row, int64_t at) {
    int64_t per_line = NMLP_LINE_BYTES / values->run->gemm->elem_bytes;
    const char *line =
        values->p->data + nmlp_gemm_tiles_step(values->p) * (size_t)(at / per_line) + row * NMLP_LINE_BYTES;
    if (values->run->gemm->elem_bytes == 4) return ((const float *)line)[at % per_line];
    return nmlp_bf16_to_f32(((const uint16_t *)line)[at % per_line]);
}

void nmlp_attention_add_seen(const nmlp_attention_values *values, int64_t row, int64_t first, int64_t end) {
    const nmlp_attention_job *run = values->run;
    for (int64_t d = 0; d < run->dim; d++) {
        float *sum = values->c + d / run->width * run->width * run->gemm->mr + row * run->width + d % run->width;
        for (int64_t at = first; at < end; at++) *sum += probability_at(values, row, at) * value_at(values, at, d);
    }
}
