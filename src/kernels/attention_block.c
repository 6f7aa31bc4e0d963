/* One block of queries: scores, running softmax, weighted sums, a tile of rows at a time. */
#include <math.h>
#include <string.h>

#include "kernels/attention_int.h"

/* Keys before this one are seen by a row. */
static int64_t row_limit(const nmlp_attend_task *task, int64_t row) {
    int64_t limit = task->run->args->first_pos + task->first_query + row / task->run->group + 1;
    return nmlp_min(limit, task->end_key);
}

static void load_queries(const nmlp_attend_task *task) {
    const nmlp_attend *run = task->run;
    nmlp_attend_scratch *s = task->scratch;
    for (int64_t row = 0; row < task->rows; row++) {
        nmlp_put put = {.src = run->args->q + nmlp_attend_row_offset(task, row),
                        .n_rows = 1,
                        .n = run->args->head_dim,
                        .n_padded = run->dim};
        nmlp_tiles_put(&s->q, run->vec, row, 0, put);
        s->max[row] = -INFINITY;
        s->sum[row] = 0.0f;
    }
    memset(s->out, 0, (size_t)(s->q.n_tiles * run->gemm->mr * run->out_dim) * sizeof(float));
}

static void shrink_row(const nmlp_attend_task *task, int64_t tile, int i, float factor) {
    const nmlp_attend *run = task->run;
    int64_t mr = run->gemm->mr;
    float *out = task->scratch->out + tile * mr * run->out_dim + i * run->width;
    for (int64_t d = 0; d < run->out_dim; d += run->width, out += mr * run->width)
        run->vec->scale(out, out, factor, run->width);
}

/* Scores of row i of a tile to probabilities, in the tile p. */
static void row_probabilities(const nmlp_attend_task *task, int64_t tile, int i, int64_t key, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    nmlp_attend_scratch *s = task->scratch;
    int64_t mr = run->gemm->mr;
    int64_t row = tile * mr + i;
    int64_t n = row_limit(task, row) - key;
    nmlp_softmax softmax = {.scores = s->scores + i * run->width,
                            .block_stride = mr * run->width,
                            .strips = run->gemm->strips,
                            .n = nmlp_max(0, nmlp_min(n, n_padded)),
                            .n_padded = n_padded,
                            .scale = run->args->scale,
                            .line = s->p.data + (size_t)i * NMLP_LINE_BYTES,
                            .step = nmlp_tiles_step(&s->p),
                            .max = s->max[row],
                            .sum = s->sum[row]};
    (nmlp_attend_in_bf16(run) ? run->vec->softmax_bf16 : run->vec->softmax)(&softmax);
    s->max[row] = softmax.max;
    s->sum[row] = softmax.sum;
    if (softmax.shrink != 1.0f) shrink_row(task, tile, i, softmax.shrink);
}

static nmlp_block block_of(const nmlp_tiles *a, int64_t tile, int rows, nmlp_beside *nothing) {
    return (nmlp_block){
        .a = nmlp_tiles_at(a, tile, 0), .a_step = nmlp_tiles_step(a), .rows = rows, .beside = nothing};
}

/* c [rows, n], in blocks of columns that lie mr*width floats apart, = or += a times the strips. */
static void multiply(const nmlp_attend *run, nmlp_block block, float *c, const char *strips, int64_t n) {
    nmlp_dtype dtype = nmlp_attend_in_bf16(run) ? NMLP_DTYPE_BF16 : NMLP_DTYPE_F32;
    for (int64_t at = 0; at < n; at += run->width) {
        block.c = c + at * run->gemm->mr;
        block.b = strips + block.b_step * (size_t)(at / NMLP_STRIP);
        block.strips = (int)nmlp_min(run->gemm->strips, (n - at) / NMLP_STRIP);
        run->gemm->block[dtype](&block);
    }
}

static void tile_step(const nmlp_attend_task *task, int64_t tile, int64_t key, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    nmlp_attend_scratch *s = task->scratch;
    nmlp_beside nothing = {0};
    int64_t mr = run->gemm->mr;
    int rows = (int)nmlp_min(mr, task->rows - tile * mr);
    int64_t seen = row_limit(task, tile * mr + rows - 1) - key; /* by the last row, which sees most */
    size_t input_bytes = (size_t)(NMLP_STRIP * run->gemm->elem_bytes);
    if (seen <= 0) return;
    n_padded = nmlp_min(n_padded, nmlp_pad(seen));
    nmlp_block scores = block_of(&s->q, tile, rows, &nothing);
    scores.k = run->dim;
    scores.b_step = (size_t)run->dim * input_bytes;
    multiply(run, scores, s->scores, s->k_strips, n_padded);
    for (int i = 0; i < rows; i++) row_probabilities(task, tile, i, key, n_padded);
    nmlp_block values = block_of(&s->p, 0, rows, &nothing);
    values.k = n_padded;
    values.b_step = (size_t)run->keys * input_bytes;
    values.accumulate = true;
    multiply(run, values, s->out + tile * mr * run->out_dim, s->v_strips, run->dim);
}

void nmlp_attend_do(const nmlp_attend_task *task) {
    int64_t n_tiles = nmlp_ceil_div(task->rows, task->run->gemm->mr);
    load_queries(task);
    for (int64_t key = task->first_key; key < task->end_key; key += task->run->keys) {
        int64_t n = nmlp_min(task->run->keys, task->end_key - key);
        int64_t n_padded = nmlp_pad(n);
        nmlp_attend_load_keys(task, key, n, n_padded);
        nmlp_attend_load_values(task, key, n, n_padded);
        for (int64_t tile = 0; tile < n_tiles; tile++) tile_step(task, tile, key, n_padded);
    }
}
