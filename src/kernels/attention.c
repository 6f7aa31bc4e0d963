/* Causal attention, flash style: blocks of queries meet blocks of keys, the softmax is kept running, and nothing grows
 * with the product of the two. Both matmuls go through the set's f32 block: keys are transposed into strips and values
 * copied into them once per block of keys, for all queries of all heads that share them. */
#include <math.h>
#include <string.h>

#include "kernels/tiles.h"

enum {
    KEYS = 128,       /* in a block */
    ROWS = 128,       /* query rows (queries x heads of one group) in a block, at least one query */
    SPLIT_ROWS = 16,  /* up to here the keys are split too: decoding has few rows */
    SPLIT_KEYS = 512, /* in a split, at least */
    SPLITS_MAX = 16
};

/* A thread's own memory. */
struct scratch {
    nmlp_tiles q;    /* [rows,D] */
    nmlp_tiles p;    /* one tile of probabilities [mr,KEYS] */
    float *k_strips; /* [KEYS/16][D][16] */
    float *v_strips; /* [D/16][KEYS][16] */
    float *scores;   /* one tile: [KEYS/width][mr][width] */
    float *out;      /* [tiles][D/width][mr][width] */
    float *max;      /* [rows] */
    float *sum;      /* [rows] */
};

struct run {
    const nmlp_attention *args;
    const nmlp_gemm *gemm;
    const nmlp_vec *vec;
    int64_t group;   /* heads that share keys and values */
    int64_t queries; /* in a block */
    int64_t rows;    /* in a block: queries*group */
    int64_t dim;     /* D padded */
    int64_t out_dim; /* D padded to blocks of columns */
    int width;
    int64_t n_splits;
    float *partial; /* [kv heads][splits][rows][D + max, sum] */
    char *scratch;
    size_t scratch_bytes;
};

static struct scratch carve_scratch(nmlp_carver *carver, const struct run *run) {
    const nmlp_gemm *gemm = run->gemm;
    struct scratch s;
    s.q = nmlp_tiles_carve(carver, gemm, run->rows, run->dim);
    s.p = nmlp_tiles_carve(carver, gemm, nmlp_min(run->rows, gemm->mr), KEYS);
    size_t strips_bytes = (size_t)(KEYS * run->dim) * sizeof(float);
    s.k_strips = nmlp_carve(carver, strips_bytes);
    s.v_strips = nmlp_carve(carver, strips_bytes);
    s.scores = nmlp_carve(carver, (size_t)(gemm->mr * KEYS) * sizeof(float));
    s.out = nmlp_carve(carver, (size_t)(s.q.n_tiles * gemm->mr * run->out_dim) * sizeof(float));
    s.max = nmlp_carve(carver, (size_t)run->rows * sizeof(float));
    s.sum = nmlp_carve(carver, (size_t)run->rows * sizeof(float));
    return s;
}

static int64_t partial_stride(const struct run *run) { return run->args->head_dim + 2; }

static size_t carve_run(struct run *run, const nmlp_kernels *kernels, const nmlp_attention *args, int n_threads,
                        void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver scratch = {0};
    *run = (struct run){.args = args, .gemm = kernels->exact, .vec = kernels->vec};
    run->group = args->n_heads / args->n_kv_heads;
    run->queries = nmlp_max(1, ROWS / run->group);
    run->rows = run->queries * run->group;
    run->dim = nmlp_pad(args->head_dim);
    run->width = run->gemm->strips * NMLP_STRIP;
    run->out_dim = nmlp_ceil_div(run->dim, run->width) * run->width;
    run->n_splits = 1;
    if (args->s * run->group <= SPLIT_ROWS)
        run->n_splits = nmlp_max(1, nmlp_min(SPLITS_MAX, (args->first_pos + args->s) / SPLIT_KEYS));
    size_t partial = (size_t)(args->n_kv_heads * SPLITS_MAX * SPLIT_ROWS * partial_stride(run));
    run->partial = nmlp_carve(&carver, partial * sizeof(float));
    carve_scratch(&scratch, run);
    run->scratch_bytes = scratch.used_bytes;
    run->scratch = nmlp_carve(&carver, scratch.used_bytes * (size_t)n_threads);
    return carver.used_bytes;
}

size_t nmlp_attention_workspace_bytes(const nmlp_kernels *kernels, const nmlp_attention *shape, int n_threads) {
    struct run run;
    return carve_run(&run, kernels, shape, n_threads, NULL);
}

/* A block of queries of one group of heads against a range of keys. */
struct task {
    const struct run *run;
    struct scratch *scratch;
    int64_t kv_head;
    int64_t first_query;
    int64_t rows; /* row i is query first_query + i/group of head kv_head*group + i%group */
    int64_t first_key;
    int64_t end_key;
};

/* Keys before this one are seen by row i. */
static int64_t row_limit(const struct task *task, int64_t row) {
    int64_t limit = task->run->args->first_pos + task->first_query + row / task->run->group + 1;
    return nmlp_min(limit, task->end_key);
}

static int64_t row_offset(const struct task *task, int64_t row) {
    const struct run *run = task->run;
    int64_t query = task->first_query + row / run->group;
    int64_t head = task->kv_head * run->group + row % run->group;
    return (query * run->args->n_heads + head) * run->args->head_dim;
}

static void begin_task(const struct task *task) {
    const struct run *run = task->run;
    struct scratch *s = task->scratch;
    for (int64_t row = 0; row < task->rows; row++) {
        nmlp_put put = {
            .src = run->args->q + row_offset(task, row), .n_rows = 1, .n = run->args->head_dim, .n_padded = run->dim};
        nmlp_tiles_put(&s->q, run->vec, row, 0, put);
        s->max[row] = -INFINITY;
        s->sum[row] = 0.0f;
    }
    memset(s->out, 0, (size_t)(s->q.n_tiles * run->gemm->mr * run->out_dim) * sizeof(float));
}

static void load_keys(const struct task *task, int64_t key, int64_t n, int64_t n_padded) {
    const struct run *run = task->run;
    int64_t dim = run->args->head_dim;
    const float *k = run->args->k + (task->kv_head * run->args->cache_len + key) * dim;
    for (int64_t at = 0; at < n_padded; at += NMLP_STRIP) {
        float *strip = task->scratch->k_strips + at * run->dim;
        run->vec->transpose(strip, k + at * dim, dim, nmlp_max(0, nmlp_min(NMLP_STRIP, n - at)), dim);
        memset(strip + dim * NMLP_STRIP, 0, (size_t)((run->dim - dim) * NMLP_STRIP) * sizeof *strip);
    }
}

/* A strip of values is to the dimensions what a tile is to inputs: 16 of them, row after row of 64 bytes. */
static void load_values(const struct task *task, int64_t key, int64_t n, int64_t n_padded) {
    const struct run *run = task->run;
    int64_t dim = run->args->head_dim;
    nmlp_put put = {.dst = task->scratch->v_strips,
                    .step = (size_t)(KEYS * NMLP_STRIP) * sizeof(float),
                    .src = run->args->v + (task->kv_head * run->args->cache_len + key) * dim,
                    .src_stride = dim,
                    .n_rows = n,
                    .n = dim,
                    .n_padded = run->dim};
    run->vec->put_f32(&put);
    nmlp_put rest = put;
    rest.dst = task->scratch->v_strips + n * NMLP_STRIP;
    rest.n_rows = n_padded - n;
    rest.n = 0;
    run->vec->put_f32(&rest);
}

static nmlp_block block_of(const nmlp_tiles *a, int64_t tile, const float *strips, int64_t strip_rows, int rows) {
    return (nmlp_block){.a = nmlp_tiles_at(a, tile, 0),
                        .b = strips,
                        .a_step = nmlp_tiles_step(a),
                        .b_step = (size_t)(strip_rows * NMLP_STRIP) * sizeof(float),
                        .rows = rows};
}

/* Scores of one tile of rows to probabilities, in the tile p. */
static void tile_probabilities(const struct task *task, int64_t tile, int rows, int64_t key, int64_t n_padded) {
    const struct run *run = task->run;
    struct scratch *s = task->scratch;
    int64_t mr = run->gemm->mr;
    for (int i = 0; i < rows; i++) {
        int64_t row = tile * mr + i;
        int64_t n = row_limit(task, row) - key;
        char *line = s->p.data + (size_t)i * NMLP_LINE_BYTES;
        if (n <= 0) {
            nmlp_put none = {
                .dst = line, .step = nmlp_tiles_step(&s->p), .src = s->max, .n_rows = 1, .n_padded = n_padded};
            run->vec->put_f32(&none);
            continue;
        }
        nmlp_softmax softmax = {.scores = s->scores + i * run->width,
                                .block_stride = mr * run->width,
                                .strips = run->gemm->strips,
                                .n = nmlp_min(n, n_padded),
                                .n_padded = n_padded,
                                .scale = run->args->scale,
                                .line = line,
                                .step = nmlp_tiles_step(&s->p),
                                .max = s->max[row],
                                .sum = s->sum[row]};
        run->vec->softmax(&softmax);
        s->max[row] = softmax.max;
        s->sum[row] = softmax.sum;
        if (softmax.shrink == 1.0f) continue;
        float *out = s->out + tile * mr * run->out_dim + i * run->width;
        for (int64_t d = 0; d < run->out_dim; d += run->width, out += mr * run->width)
            run->vec->scale(out, out, softmax.shrink, run->width);
    }
}

static void tile_step(const struct task *task, int64_t tile, int64_t key, int64_t n_padded) {
    const struct run *run = task->run;
    struct scratch *s = task->scratch;
    nmlp_block_fn *multiply = run->gemm->block[NMLP_DTYPE_F32];
    int64_t mr = run->gemm->mr;
    int rows = (int)nmlp_min(mr, task->rows - tile * mr);
    int64_t seen = row_limit(task, tile * mr + rows - 1) - key; /* by the last row, which sees most */
    if (seen <= 0) return;
    n_padded = nmlp_min(n_padded, nmlp_pad(seen));
    nmlp_block scores = block_of(&s->q, tile, s->k_strips, run->dim, rows);
    scores.k = run->dim;
    for (int64_t at = 0; at < n_padded; at += run->width) {
        scores.c = s->scores + at * mr;
        scores.b = s->k_strips + at * run->dim;
        scores.strips = (int)nmlp_min(run->gemm->strips, (n_padded - at) / NMLP_STRIP);
        multiply(&scores);
    }
    tile_probabilities(task, tile, rows, key, n_padded);
    nmlp_block values = block_of(&s->p, 0, s->v_strips, KEYS, rows);
    values.k = n_padded;
    values.accumulate = true;
    for (int64_t d = 0; d < run->dim; d += run->width) {
        values.c = s->out + (tile * run->out_dim + d) * mr;
        values.b = s->v_strips + d * KEYS;
        values.strips = (int)nmlp_min(run->gemm->strips, (run->dim - d) / NMLP_STRIP);
        multiply(&values);
    }
}

static void do_task(const struct task *task) {
    int64_t n_tiles = nmlp_ceil_div(task->rows, task->run->gemm->mr);
    begin_task(task);
    for (int64_t key = task->first_key; key < task->end_key; key += KEYS) {
        int64_t n = nmlp_min(KEYS, task->end_key - key);
        int64_t n_padded = nmlp_pad(n);
        load_keys(task, key, n, n_padded);
        load_values(task, key, n, n_padded);
        for (int64_t tile = 0; tile < n_tiles; tile++) tile_step(task, tile, key, n_padded);
    }
}

/* dst [D] = row's sums times factor. */
static void read_row(const struct task *task, int64_t row, float factor, float *dst) {
    const struct run *run = task->run;
    int64_t mr = run->gemm->mr;
    const float *out = task->scratch->out + row / mr * mr * run->out_dim + row % mr * run->width;
    for (int64_t d = 0; d < run->args->head_dim; d += run->width, out += mr * run->width)
        run->vec->scale(dst + d, out, factor, nmlp_min(run->width, run->args->head_dim - d));
}

static float *partial_at(const struct run *run, int64_t kv_head, int64_t split, int64_t row) {
    int64_t rows = run->args->s * run->group;
    return run->partial + ((kv_head * run->n_splits + split) * rows + row) * partial_stride(run);
}

static void end_task(const struct task *task, int64_t split) {
    const struct run *run = task->run;
    const struct scratch *s = task->scratch;
    for (int64_t row = 0; row < task->rows; row++) {
        if (run->n_splits == 1) {
            read_row(task, row, 1.0f / s->sum[row], run->args->out + row_offset(task, row));
            continue;
        }
        float *partial = partial_at(run, task->kv_head, split, row);
        read_row(task, row, 1.0f, partial);
        partial[run->args->head_dim] = s->max[row];
        partial[run->args->head_dim + 1] = s->sum[row];
    }
}

/* The last blocks of queries see the most keys, so they go first. */
static void run_blocks(void *arg, int64_t begin, int64_t end, int thread) {
    const struct run *run = arg;
    const nmlp_attention *a = run->args;
    nmlp_carver carver = {.base = run->scratch + run->scratch_bytes * (size_t)thread};
    struct scratch scratch = carve_scratch(&carver, run);
    int64_t n_blocks = nmlp_ceil_div(a->s, run->queries);
    int64_t n_keys = a->first_pos + a->s;
    for (int64_t at = begin; at < end; at++) {
        int64_t block = n_blocks - 1 - at / (a->n_kv_heads * run->n_splits);
        int64_t split = at % run->n_splits;
        int64_t n_queries = nmlp_min(run->queries, a->s - block * run->queries);
        struct task task = {.run = run,
                            .scratch = &scratch,
                            .kv_head = at / run->n_splits % a->n_kv_heads,
                            .first_query = block * run->queries,
                            .rows = n_queries * run->group,
                            .first_key = n_keys * split / run->n_splits,
                            .end_key = n_keys * (split + 1) / run->n_splits};
        task.end_key = nmlp_min(task.end_key, a->first_pos + task.first_query + n_queries);
        do_task(&task);
        end_task(&task, split);
    }
}

/* Puts the splits of one row together, in their order. */
static void merge_row(const struct run *run, int64_t kv_head, int64_t row) {
    int64_t dim = run->args->head_dim;
    struct task task = {.run = run, .kv_head = kv_head};
    float *out = run->args->out + row_offset(&task, row);
    float max = -INFINITY;
    float sum = 0.0f;
    for (int64_t split = 0; split < run->n_splits; split++) max = fmaxf(max, partial_at(run, kv_head, split, row)[dim]);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int64_t split = 0; split < run->n_splits; split++) {
        const float *partial = partial_at(run, kv_head, split, row);
        float factor = partial[dim] == -INFINITY ? 0.0f : expf(partial[dim] - max);
        sum += factor * partial[dim + 1];
        for (int64_t d = 0; d < dim; d++) out[d] += factor * partial[d];
    }
    run->vec->scale(out, out, 1.0f / sum, dim);
}

static void merge_heads(void *arg, int64_t begin, int64_t end, int thread) {
    const struct run *run = arg;
    (void)thread;
    for (int64_t kv_head = begin; kv_head < end; kv_head++)
        for (int64_t row = 0; row < run->args->s * run->group; row++) merge_row(run, kv_head, row);
}

void nmlp_attention_run(const nmlp_kernels *kernels, const nmlp_attention *args, void *workspace, nmlp_pool *pool) {
    struct run run;
    carve_run(&run, kernels, args, nmlp_pool_threads(pool), workspace);
    int64_t n_blocks = nmlp_ceil_div(args->s, run.queries);
    nmlp_pool_for(pool, n_blocks * args->n_kv_heads * run.n_splits, 1, run_blocks, &run);
    if (run.n_splits > 1) nmlp_pool_for(pool, args->n_kv_heads, 1, merge_heads, &run);
}
