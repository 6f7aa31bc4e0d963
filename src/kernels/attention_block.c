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

/* A tile of rows against a block of keys. Three of them are under way at once: while the scores of one are made, and
 * then the weighted values of the last but one are summed, the vector units turn the scores of the one between them
 * into probabilities, row by row. */
struct tile {
    const nmlp_attend_task *task;
    int64_t at; /* which tile of rows; -1: none */
    int64_t key;
    int64_t n_padded; /* keys that some row sees */
    int rows;
    int buffer; /* of the scratch's scores and probabilities */
};

static void shrink_row(const struct tile *tile, int64_t i, float factor) {
    const nmlp_attend *run = tile->task->run;
    int64_t mr = run->gemm->mr;
    float *out = tile->task->scratch->out + tile->at * mr * run->out_dim + i * run->width;
    for (int64_t d = 0; d < run->out_dim; d += run->width, out += mr * run->width)
        run->vec->scale(out, out, factor, run->width);
}

static void row_probabilities(const struct tile *tile, int64_t i) {
    const nmlp_attend *run = tile->task->run;
    nmlp_attend_scratch *s = tile->task->scratch;
    const nmlp_tiles *p = &s->p[tile->buffer];
    int64_t mr = run->gemm->mr;
    int64_t row = tile->at * mr + i;
    int64_t n = row_limit(tile->task, row) - tile->key;
    nmlp_softmax softmax = {.scores = s->scores[tile->buffer] + i * run->width,
                            .block_stride = mr * run->width,
                            .strips = run->gemm->strips,
                            .n = nmlp_max(0, nmlp_min(n, tile->n_padded)),
                            .n_padded = tile->n_padded,
                            .scale = run->args->scale,
                            .line = p->data + (size_t)i * NMLP_LINE_BYTES,
                            .step = nmlp_tiles_step(p),
                            .max = s->max[row],
                            .sum = s->sum[row]};
    (nmlp_attend_in_bf16(run) ? run->vec->softmax_bf16 : run->vec->softmax)(&softmax);
    s->max[row] = softmax.max;
    s->sum[row] = softmax.sum;
    if (softmax.shrink != 1.0f) shrink_row(tile, i, softmax.shrink);
}

static void probabilities(void *ctx, int64_t row, int64_t n) {
    for (int64_t i = row; i < row + n; i++) row_probabilities(ctx, i);
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

static void make_scores(const struct tile *tile, nmlp_beside *beside) {
    const nmlp_attend *run = tile->task->run;
    nmlp_attend_scratch *s = tile->task->scratch;
    nmlp_block block = {.a = nmlp_tiles_at(&s->q, tile->at, 0),
                        .a_step = nmlp_tiles_step(&s->q),
                        .b_step = (size_t)(run->dim * NMLP_STRIP * run->gemm->elem_bytes),
                        .k = run->dim,
                        .rows = tile->rows,
                        .beside = beside};
    multiply(run, block, s->scores[tile->buffer], s->k_strips, tile->n_padded);
}

static void add_values(const struct tile *tile, nmlp_beside *beside) {
    const nmlp_attend *run = tile->task->run;
    nmlp_attend_scratch *s = tile->task->scratch;
    const nmlp_tiles *p = &s->p[tile->buffer];
    nmlp_block block = {.a = nmlp_tiles_at(p, 0, 0),
                        .a_step = nmlp_tiles_step(p),
                        .b_step = (size_t)(run->keys * NMLP_STRIP * run->gemm->elem_bytes),
                        .k = tile->n_padded,
                        .rows = tile->rows,
                        .accumulate = true,
                        .beside = beside};
    multiply(run, block, s->out + tile->at * run->gemm->mr * run->out_dim, s->v_strips, run->dim);
}

/* Steps of 32 inputs in both products: how often there is time for vector work. */
static int64_t steps_of(const nmlp_attend *run, const struct tile *scores, const struct tile *values) {
    int64_t steps = 0;
    if (scores->at >= 0) steps += run->dim / NMLP_PAD * nmlp_ceil_div(scores->n_padded, run->width);
    if (values->at >= 0) steps += values->n_padded / NMLP_PAD * nmlp_ceil_div(run->dim, run->width);
    return nmlp_max(1, steps);
}

/* One step of three tiles under way; each may be none. */
static void advance(const nmlp_attend *run, const struct tile *scores, struct tile *softmax,
                    const struct tile *values) {
    nmlp_beside beside = {.do_rows = probabilities, .ctx = softmax};
    if (softmax->at >= 0) {
        beside.end = softmax->rows;
        nmlp_beside_pace(&beside, 1, steps_of(run, scores, values));
    }
    if (scores->at >= 0) make_scores(scores, &beside);
    if (values->at >= 0) add_values(values, &beside);
    if (beside.row < beside.end) probabilities(softmax, beside.row, beside.end - beside.row);
}

/* The tile as far as its rows see keys from `key` on; none where they see nothing. */
static struct tile tile_of(const nmlp_attend_task *task, int64_t at, int64_t key, int64_t n_padded) {
    int64_t mr = task->run->gemm->mr;
    struct tile tile = {.task = task, .at = at, .key = key, .rows = (int)nmlp_min(mr, task->rows - at * mr)};
    int64_t seen = row_limit(task, at * mr + tile.rows - 1) - key; /* by the last row, which sees most */
    tile.n_padded = nmlp_min(n_padded, nmlp_pad(seen));
    if (seen <= 0) tile.at = -1;
    return tile;
}

static void do_keys(const nmlp_attend_task *task, int64_t key, int64_t n_padded) {
    const nmlp_attend *run = task->run;
    const struct tile none = {.at = -1};
    struct tile under_way[3] = {none, none, none}; /* scores, softmax, values */
    int64_t n_tiles = nmlp_ceil_div(task->rows, run->gemm->mr);
    for (int64_t at = 0; at < n_tiles + 2; at++) {
        under_way[2] = under_way[1];
        under_way[1] = under_way[0];
        under_way[0] = at < n_tiles ? tile_of(task, at, key, n_padded) : none;
        under_way[0].buffer = at & 1;
        advance(run, &under_way[0], &under_way[1], &under_way[2]);
    }
}

void nmlp_attend_do(const nmlp_attend_task *task) {
    load_queries(task);
    for (int64_t key = task->first_key; key < task->end_key; key += task->run->keys) {
        int64_t n = nmlp_min(task->run->keys, task->end_key - key);
        int64_t n_padded = nmlp_pad(n);
        nmlp_attend_load_keys(task, key, n, n_padded);
        nmlp_attend_load_values(task, key, n, n_padded);
        do_keys(task, key, n_padded);
    }
}
