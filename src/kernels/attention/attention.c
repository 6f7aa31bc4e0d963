/* Causal attention, flash style: blocks of queries meet blocks of keys, the softmax is kept running, and nothing grows
 * with the product of the two. Both matmuls go through the set's blocks. Few rows are bound by memory and stay in f32;
 * many go the way of the set's matmuls, so where those round to bf16, queries and probabilities are rounded too. */
#include <math.h>
#include <string.h>

#include "kernels/attention/attention_internal.h"
#include "kernels/caches.h"

enum {
    KEYS = 128,      /* in a block */
    ROWS = 128,      /* query rows in a block, at least one query */
    KEYS_BF16 = 512, /* nothing is laid out, so the longest that lie together: sums of values are exchanged least */
    ROWS_BF16 = 512,
    SPLIT_KEYS = 512, /* in a split, at least */
    SPLITS_MAX = 16
};

static nmlp_attention_scratch carve_scratch(nmlp_carver *carver, const nmlp_attention_job *run) {
    const nmlp_gemm *gemm = run->gemm;
    nmlp_attention_scratch s = {0};
    s.q = nmlp_gemm_tiles_carve(carver, gemm, run->rows, run->dim);
    for (int i = 0; i < 2; i++) {
        s.p[i] = nmlp_gemm_tiles_carve(carver, gemm, nmlp_min(run->rows, gemm->mr), run->keys);
        s.scores[i] = nmlp_carve(carver, (size_t)(gemm->mr * run->keys) * sizeof(float));
    }
    s.rotated = nmlp_carve(carver, (size_t)(run->group * run->args->kv.head_dim) * sizeof(float));
    if (!run->as_stored) {
        s.k_strips = nmlp_carve(carver, (size_t)(run->keys * run->dim) * sizeof(float));
        s.v_strips = nmlp_carve(carver, (size_t)(run->keys * run->dim) * sizeof(float));
    }
    s.out = nmlp_carve(carver, (size_t)(s.q.n_tiles * gemm->mr * run->out_dim) * sizeof(float));
    for (int i = 0; i < 2; i++) {
        s.seen[i] = nmlp_carve(carver, (size_t)gemm->mr * sizeof *s.seen[i]);
        s.shrink[i] = nmlp_carve(carver, (size_t)gemm->mr * sizeof *s.shrink[i]);
    }
    s.max = nmlp_carve(carver, (size_t)run->rows * sizeof(float));
    s.sum = nmlp_carve(carver, (size_t)(run->rows * nmlp_attention_sum_parts(run)) * sizeof(float));
    return s;
}

static int64_t partial_stride(const nmlp_attention_job *run) { return run->args->kv.head_dim + 2; }

static bool has_few_rows(const nmlp_attention *args) {
    return args->s * (args->n_heads / args->kv.n_heads) <= NMLP_ATTENTION_FEW_ROWS;
}

/* A tile of rows alone keeps its queries and sums in L1 while keys and values pass by; where these come from further
 * than L2, or were laid out for the purpose, all tiles take a block of them in turn. */
static int64_t tiles_at_once(const nmlp_attention_job *run) {
    int64_t n_keys = run->args->first_pos + run->args->s;
    size_t bytes = 2 * (size_t)(n_keys * run->layout.dim) * sizeof(uint16_t);
    return run->as_stored && bytes <= nmlp_caches_get()->l2_bytes / 2 ? 1 : INT32_MAX;
}

static size_t carve_run(nmlp_attention_job *run, const nmlp_gemm *gemm, const nmlp_attention *args, int n_threads,
                        void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver scratch = {0};
    const nmlp_kv *kv = &args->kv;
    run->args = args;
    run->gemm = gemm;
    run->vec = kv->kernels->vec;
    run->as_stored = nmlp_kv_in_bf16(kv) && gemm->microkernel[NMLP_DTYPE_BF16];
    run->strip_dtype = run->as_stored ? NMLP_DTYPE_BF16 : NMLP_DTYPE_F32;
    run->layout = nmlp_kv_layout_of(kv);
    run->group = args->n_heads / kv->n_heads;
    run->keys = nmlp_attention_in_bf16(run) ? KEYS_BF16 : KEYS;
    run->queries = nmlp_max(1, (nmlp_attention_in_bf16(run) ? ROWS_BF16 : ROWS) / run->group);
    run->rows = run->queries * run->group;
    run->tiles_at_once = tiles_at_once(run);
    run->dim = nmlp_pad(kv->head_dim);
    run->scores_64 = nmlp_attention_in_bf16(run) && run->dim == 64 ? kv->kernels->scores_64 : NULL;
    run->width = gemm->strips * NMLP_STRIP;
    run->out_dim = nmlp_ceil_div(run->dim, run->width) * run->width;
    run->n_splits = 1;
    if (has_few_rows(args)) run->n_splits = nmlp_max(1, nmlp_min(SPLITS_MAX, (args->first_pos + args->s) / SPLIT_KEYS));
    size_t partial = (size_t)(kv->n_heads * SPLITS_MAX * NMLP_ATTENTION_FEW_ROWS * partial_stride(run));
    run->partial = nmlp_carve(&carver, partial * sizeof(float));
    carve_scratch(&scratch, run);
    run->scratch = nmlp_pieces_carve(&carver, scratch.used_bytes, n_threads);
    return carver.used_bytes;
}

/* Fewer queries than the shape's may take the other way. */
size_t nmlp_attention_workspace_bytes(const nmlp_attention *shape, int n_threads) {
    const nmlp_kernels *kernels = shape->kv.kernels;
    nmlp_attention_job run;
    size_t exact = carve_run(&run, kernels->exact, shape, n_threads, NULL);
    if (!kernels->bf16_activations) return exact;
    size_t wide = carve_run(&run, kernels->wide, shape, n_threads, NULL);
    return wide > exact ? wide : exact;
}

static const nmlp_gemm *gemm_of(const nmlp_attention *args) {
    const nmlp_kernels *kernels = args->kv.kernels;
    return has_few_rows(args) || !kernels->bf16_activations ? kernels->exact : kernels->wide;
}

/* dst [D] = row's sums times factor. */
static void read_row(const nmlp_attention_task *task, int64_t row, float factor, float *dst) {
    const nmlp_attention_job *run = task->run;
    int64_t mr = run->gemm->mr;
    const float *out = task->scratch->out + row / mr * mr * run->out_dim + row % mr * run->width;
    for (int64_t d = 0; d < run->args->kv.head_dim; d += run->width, out += mr * run->width)
        run->vec->scale(dst + d, out, factor, nmlp_min(run->width, run->args->kv.head_dim - d));
}

static float *partial_at(const nmlp_attention_job *run, int64_t kv_head, int64_t split, int64_t row) {
    int64_t rows = run->args->s * run->group;
    return run->partial + ((kv_head * run->n_splits + split) * rows + row) * partial_stride(run);
}

/* Of a row's probabilities. */
static float total_of(const nmlp_attention_task *task, int64_t row) {
    if (nmlp_attention_sum_parts(task->run) == 1) return task->scratch->sum[row];
    const float *parts = task->scratch->sum + row * NMLP_STRIP;
    float sum[NMLP_STRIP / 2];
    for (int i = 0; i < 8; i++) sum[i] = parts[i] + parts[i + 8];
    for (int i = 0; i < 4; i++) sum[i] += sum[i + 4];
    return sum[0] + sum[2] + (sum[1] + sum[3]);
}

static void end_task(const nmlp_attention_task *task, int64_t split) {
    const nmlp_attention_job *run = task->run;
    const nmlp_attention_scratch *s = task->scratch;
    for (int64_t row = 0; row < task->rows; row++) {
        if (run->n_splits == 1) {
            read_row(task, row, 1.0f / total_of(task, row), run->args->out + nmlp_attention_row_offset(task, row));
            continue;
        }
        float *partial = partial_at(run, task->kv_head, split, row);
        read_row(task, row, 1.0f, partial);
        partial[run->args->kv.head_dim] = s->max[row];
        partial[run->args->kv.head_dim + 1] = total_of(task, row);
    }
}

/* Where a split begins: whole steps of the second product. */
static int64_t split_at(const nmlp_attention_job *run, int64_t split) {
    int64_t n_keys = run->args->first_pos + run->args->s;
    return split == run->n_splits ? n_keys : n_keys * split / run->n_splits / NMLP_PAD * NMLP_PAD;
}

/* The last blocks of queries see the most keys, so they go first. */
static void run_blocks(void *arg, int64_t begin, int64_t end, int thread) {
    const nmlp_attention_job *run = arg;
    const nmlp_attention *a = run->args;
    nmlp_carver carver = nmlp_piece(run->scratch, thread);
    nmlp_attention_scratch scratch = carve_scratch(&carver, run);
    int64_t n_blocks = nmlp_ceil_div(a->s, run->queries);
    if (run->gemm->begin) run->gemm->begin();
    for (int64_t at = begin; at < end; at++) {
        int64_t block = n_blocks - 1 - at / (a->kv.n_heads * run->n_splits);
        int64_t split = at % run->n_splits;
        int64_t n_queries = nmlp_min(run->queries, a->s - block * run->queries);
        nmlp_attention_task task = {.run = run,
                                    .scratch = &scratch,
                                    .kv_head = at / run->n_splits % a->kv.n_heads,
                                    .first_query = block * run->queries,
                                    .rows = n_queries * run->group,
                                    .first_key = split_at(run, split),
                                    .end_key = split_at(run, split + 1)};
        task.end_key = nmlp_min(task.end_key, a->first_pos + task.first_query + n_queries);
        nmlp_attention_do(&task);
        end_task(&task, split);
    }
    if (run->gemm->end) run->gemm->end();
}

/* Puts the splits of one row together, in their order. */
static void merge_row(const nmlp_attention_job *run, int64_t kv_head, int64_t row) {
    int64_t dim = run->args->kv.head_dim;
    nmlp_attention_task task = {.run = run, .kv_head = kv_head};
    float *out = run->args->out + nmlp_attention_row_offset(&task, row);
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
    const nmlp_attention_job *run = arg;
    (void)thread;
    for (int64_t kv_head = begin; kv_head < end; kv_head++)
        for (int64_t row = 0; row < run->args->s * run->group; row++) merge_row(run, kv_head, row);
}

void nmlp_attention_run(const nmlp_attention *args, void *workspace, nmlp_pool *pool) {
    nmlp_attention_job run;
    carve_run(&run, gemm_of(args), args, nmlp_pool_threads(pool), workspace);
    int64_t n_blocks = nmlp_ceil_div(args->s, run.queries);
    nmlp_pool_for(pool, n_blocks * args->kv.n_heads * run.n_splits, 1, run_blocks, &run);
    if (run.n_splits > 1) nmlp_pool_for(pool, args->kv.n_heads, 1, merge_heads, &run);
}
