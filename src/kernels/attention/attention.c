/* Causal attention, flash style: blocks of queries meet blocks of keys, the softmax is kept running, and nothing grows
 * with the product of the two. Both matmuls go through the set's blocks. Few rows are bound by memory and stay in f32;
 * many go the way of the set's matmuls, so where those round to bf16, queries and probabilities are rounded too.
 *
 * In f32, keys are divided into splits of a fixed length whose results are put together in their order. For few rows
 * threads share the splits, for many rows a thread takes them one after the other: a row's bits depend neither on the
 * rows that come with it nor on the threads. */
#include <math.h>
#include <string.h>

#include "kernels/attention/attention_internal.h"
#include "kernels/caches.h"

enum {
    KEYS = 128,                      /* in a block */
    ROWS = 128,                      /* query rows in a block, at least one query */
    KEYS_BF16 = NMLP_ATTENTION_SPAN, /* nothing is laid out, so the longest that lie together: sums of values are
                                        exchanged least */
    ROWS_BF16 = 512,
    SPLIT_KEYS = NMLP_ATTENTION_SPAN,
    SPLITS_AT_ONCE = 16,  /* of a sequence */
    JOBS_AT_ONCE = 64,    /* sequences */
    PARTIAL_SEQUENCES = 4 /* with all their splits and as many rows as few are: room for partial results */
};

/* Sequences that run together, and the part of their splits that is under way. */
struct round {
    nmlp_attention_job *jobs; /* [JOBS_AT_ONCE] */
    int64_t *first_task;      /* [JOBS_AT_ONCE + 1] */
    int64_t n_jobs;
    int64_t first_split;
    float *partial;
    int64_t partial_floats;
    nmlp_pieces scratch; /* of threads */
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
    s.merged = nmlp_carve(carver, (size_t)run->rows * sizeof *s.merged);
    return s;
}

/* Floats of one row's sums over a split, with their max and sum. */
static int64_t partial_stride(const nmlp_attention *args) { return args->kv.head_dim + 2; }

static int64_t group_of(const nmlp_attention *args) { return args->n_heads / args->kv.n_heads; }

static bool has_few_rows(const nmlp_attention *args) { return args->s * group_of(args) <= NMLP_ATTENTION_FEW_ROWS; }

/* A tile of rows alone keeps its queries and sums in L1 while keys and values pass by; where these come from further
 * than L2, or were laid out for the purpose, all tiles take a block of them in turn. */
static int64_t tiles_at_once(const nmlp_attention_job *run) {
    int64_t n_keys = run->args->first_pos + run->args->s;
    size_t bytes = 2 * (size_t)(n_keys * run->layout.dim) * sizeof(uint16_t);
    return run->as_stored && bytes <= nmlp_caches_get()->l2_bytes / 2 ? 1 : INT32_MAX;
}

static nmlp_attention_job make_job(const nmlp_attention *args, const nmlp_gemm *gemm) {
    const nmlp_kv *kv = &args->kv;
    nmlp_attention_job run = {.args = args, .gemm = gemm, .vec = kv->kernels->vec, .group = group_of(args)};
    run.as_stored = nmlp_kv_in_bf16(kv) && gemm->microkernel[NMLP_DTYPE_BF16];
    run.strip_dtype = run.as_stored ? NMLP_DTYPE_BF16 : NMLP_DTYPE_F32;
    run.layout = nmlp_kv_layout_of(kv);
    run.keys = nmlp_attention_in_bf16(&run) ? KEYS_BF16 : KEYS;
    run.queries = nmlp_max(1, (nmlp_attention_in_bf16(&run) ? ROWS_BF16 : ROWS) / run.group);
    run.rows = run.queries * run.group;
    run.tiles_at_once = tiles_at_once(&run);
    run.dim = nmlp_pad(kv->head_dim);
    run.scores_64 = nmlp_attention_in_bf16(&run) && run.dim == 64 ? kv->kernels->scores_64 : NULL;
    run.width = gemm->strips * NMLP_STRIP;
    run.out_dim = nmlp_ceil_div(run.dim, run.width) * run.width;
    run.few = has_few_rows(args);
    run.first_split = nmlp_attention_in_bf16(&run) ? 0 : nmlp_attention_window_begin(args, 0) / SPLIT_KEYS;
    run.n_splits =
        nmlp_attention_in_bf16(&run) ? 1 : nmlp_ceil_div(args->first_pos + args->s, SPLIT_KEYS) - run.first_split;
    return run;
}

static size_t scratch_bytes(const nmlp_attention *args, const nmlp_gemm *gemm) {
    nmlp_attention_job run = make_job(args, gemm);
    nmlp_carver scratch = {0};
    carve_scratch(&scratch, &run);
    return scratch.used_bytes;
}

/* Fewer queries may take the other gemm, so a thread has room for both. */
static size_t carve_round(struct round *round, const nmlp_attention *args, int n_threads, void *workspace) {
    const nmlp_kernels *kernels = args->kv.kernels;
    nmlp_carver carver = nmlp_carver_of(workspace);
    size_t bytes = scratch_bytes(args, kernels->exact);
    size_t wide_bytes = kernels->bf16_activations ? scratch_bytes(args, kernels->wide) : 0;
    round->jobs = nmlp_carve(&carver, JOBS_AT_ONCE * sizeof *round->jobs);
    round->first_task = nmlp_carve(&carver, (JOBS_AT_ONCE + 1) * sizeof *round->first_task);
    round->partial_floats =
        args->kv.n_heads * PARTIAL_SEQUENCES * NMLP_ATTENTION_FEW_ROWS * (SPLITS_AT_ONCE * partial_stride(args) + 2);
    round->partial = nmlp_carve(&carver, (size_t)round->partial_floats * sizeof(float));
    round->scratch = nmlp_pieces_carve(&carver, bytes > wide_bytes ? bytes : wide_bytes, n_threads);
    return carver.used_bytes;
}

size_t nmlp_attention_workspace_bytes(const nmlp_attention *shape, int n_threads) {
    struct round round;
    return carve_round(&round, shape, n_threads, NULL);
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

/* Of a row's probabilities. */
static float total_of(const nmlp_attention_task *task, int64_t row) {
    if (nmlp_attention_sum_parts(task->run) == 1) return task->scratch->sum[row];
    const float *parts = task->scratch->sum + row * NMLP_STRIP;
    float sum[NMLP_STRIP / 2];
    for (int i = 0; i < 8; i++) sum[i] = parts[i] + parts[i + 8];
    for (int i = 0; i < 4; i++) sum[i] += sum[i + 4];
    return sum[0] + sum[2] + (sum[1] + sum[3]);
}

/* Adds a split to what the splits before it made: out [dim] unscaled, with its max and sum. */
static void merge_split(float *out, nmlp_attention_merged *merged, const float *part, float max, float sum,
                        int64_t dim) {
    if (max == -INFINITY) return; /* the row sees nothing of it */
    if (merged->max == -INFINITY) {
        memcpy(out, part, (size_t)dim * sizeof *out);
        *merged = (nmlp_attention_merged){.max = max, .sum = sum};
        return;
    }
    float top = fmaxf(merged->max, max);
    float keep = expf(merged->max - top);
    float add = expf(max - top);
    for (int64_t d = 0; d < dim; d++) out[d] = keep * out[d] + add * part[d];
    *merged = (nmlp_attention_merged){.max = top, .sum = keep * merged->sum + add * sum};
}

/* ---- few rows: splits are tasks of their own ---- */

static int64_t splits_now(const struct round *round, const nmlp_attention_job *run) {
    return nmlp_max(0, nmlp_min(SPLITS_AT_ONCE, run->n_splits - round->first_split));
}

/* A row's merged max and sum, then its partial results. */
static float *partials_of(const nmlp_attention_job *run, int64_t kv_head, int64_t row) {
    int64_t floats = nmlp_min(SPLITS_AT_ONCE, run->n_splits) * partial_stride(run->args) + 2;
    return run->partial + (kv_head * run->args->s * run->group + row) * floats;
}

/* What the task reads first. A split holds all positions that share cache lines. */
static void store_new_keys(const nmlp_attention_task *task) {
    const nmlp_attention *a = task->run->args;
    int64_t row_dim = a->kv.n_heads * a->kv.head_dim;
    int64_t first = nmlp_max(a->first_pos, task->first_key), end = nmlp_min(a->first_pos + a->s, task->end_key);
    if (!a->k || first >= end) return;
    int64_t at = (first - a->first_pos) * row_dim;
    for (int64_t i = 0; i < end - first; i++)
        nmlp_rope(a->k + at + i * row_dim + task->kv_head * a->kv.head_dim, &a->k_rope, 1, first + i, 1, a->kv.head_dim,
                  NULL);
    nmlp_kv_store_head(&a->kv, task->kv_head, a->k + at, a->v + at, first, end - first);
}

static void run_split(const struct round *round, const nmlp_attention_job *run, nmlp_attention_scratch *scratch,
                      int64_t at) {
    const nmlp_attention *a = run->args;
    int64_t n = splits_now(round, run);
    int64_t split = run->first_split + round->first_split + at % n;
    nmlp_attention_task task = {.run = run,
                                .scratch = scratch,
                                .kv_head = at / n,
                                .rows = a->s * run->group,
                                .first_key = split * SPLIT_KEYS,
                                .end_key = nmlp_min((split + 1) * SPLIT_KEYS, a->first_pos + a->s)};
    store_new_keys(&task);
    nmlp_attention_do(&task);
    for (int64_t row = 0; row < task.rows; row++) {
        if (run->n_splits == 1) {
            read_row(&task, row, 1.0f / total_of(&task, row), a->out + nmlp_attention_row_offset(&task, row));
            continue;
        }
        float *partial = partials_of(run, task.kv_head, row) + 2 + at % n * partial_stride(a);
        read_row(&task, row, 1.0f, partial);
        partial[a->kv.head_dim] = scratch->max[row];
        partial[a->kv.head_dim + 1] = total_of(&task, row);
    }
}

static void merge_row(const struct round *round, const nmlp_attention_job *run, int64_t kv_head, int64_t row) {
    const nmlp_attention *a = run->args;
    int64_t dim = a->kv.head_dim;
    nmlp_attention_task task = {.run = run, .kv_head = kv_head};
    float *out = a->out + nmlp_attention_row_offset(&task, row);
    float *kept = partials_of(run, kv_head, row);
    nmlp_attention_merged merged = {.max = -INFINITY};
    if (round->first_split > 0) merged = (nmlp_attention_merged){.max = kept[0], .sum = kept[1]};
    int64_t n = splits_now(round, run);
    for (int64_t split = 0; split < n; split++) {
        const float *partial = kept + 2 + split * partial_stride(a);
        merge_split(out, &merged, partial, partial[dim], partial[dim + 1], dim);
    }
    kept[0] = merged.max;
    kept[1] = merged.sum;
    if (round->first_split + n == run->n_splits) run->vec->scale(out, out, 1.0f / merged.sum, dim);
}

/* ---- many rows: a task is a block of queries ---- */

static void merge_task(const nmlp_attention_task *task) {
    const nmlp_attention_job *run = task->run;
    nmlp_attention_scratch *s = task->scratch;
    int64_t dim = run->args->kv.head_dim;
    for (int64_t row = 0; row < task->rows; row++) {
        float *part = s->rotated; /* no query is being loaded */
        read_row(task, row, 1.0f, part);
        merge_split(run->args->out + nmlp_attention_row_offset(task, row), &s->merged[row], part, s->max[row],
                    s->sum[row], dim);
    }
}

/* The last blocks of queries see the most keys, so they go first. */
static void run_block(const nmlp_attention_job *run, nmlp_attention_scratch *scratch, int64_t at) {
    const nmlp_attention *a = run->args;
    int64_t block = nmlp_ceil_div(a->s, run->queries) - 1 - at / a->kv.n_heads;
    int64_t n_queries = nmlp_min(run->queries, a->s - block * run->queries);
    int64_t end_key = a->first_pos + block * run->queries + n_queries;
    int64_t unit = nmlp_attention_in_bf16(run) ? KEYS_BF16 : SPLIT_KEYS;
    int64_t begin = nmlp_attention_window_begin(a, block * run->queries) / unit * unit;
    nmlp_attention_task task = {.run = run,
                                .scratch = scratch,
                                .kv_head = at % a->kv.n_heads,
                                .first_query = block * run->queries,
                                .rows = n_queries * run->group,
                                .first_key = begin,
                                .end_key = end_key};
    if (nmlp_attention_in_bf16(run) || end_key <= begin + SPLIT_KEYS) {
        nmlp_attention_do(&task);
        for (int64_t row = 0; row < task.rows; row++)
            read_row(&task, row, 1.0f / total_of(&task, row), a->out + nmlp_attention_row_offset(&task, row));
        return;
    }
    for (int64_t row = 0; row < task.rows; row++) scratch->merged[row] = (nmlp_attention_merged){.max = -INFINITY};
    for (; task.first_key < end_key; task.first_key += SPLIT_KEYS) {
        task.end_key = nmlp_min(task.first_key + SPLIT_KEYS, end_key);
        nmlp_attention_do(&task);
        merge_task(&task);
    }
    for (int64_t row = 0; row < task.rows; row++) {
        float *out = a->out + nmlp_attention_row_offset(&task, row);
        run->vec->scale(out, out, 1.0f / scratch->merged[row].sum, a->kv.head_dim);
    }
}

/* ---- rounds ---- */

static int64_t tasks_of(const struct round *round, const nmlp_attention_job *run) {
    const nmlp_attention *a = run->args;
    if (run->few) return a->kv.n_heads * splits_now(round, run);
    return round->first_split == 0 ? a->kv.n_heads * nmlp_ceil_div(a->s, run->queries) : 0;
}

/* False when nothing is left to do. */
static bool count_tasks(struct round *round) {
    round->first_task[0] = 0;
    for (int64_t i = 0; i < round->n_jobs; i++)
        round->first_task[i + 1] = round->first_task[i] + tasks_of(round, &round->jobs[i]);
    return round->first_task[round->n_jobs] > 0;
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int thread) {
    const struct round *round = arg;
    int64_t job = 0;
    for (int64_t at = begin; at < end; at++) {
        while (round->first_task[job + 1] <= at) job++;
        const nmlp_attention_job *run = &round->jobs[job];
        nmlp_carver carver = nmlp_piece(round->scratch, thread);
        nmlp_attention_scratch scratch = carve_scratch(&carver, run);
        if (run->gemm->begin) run->gemm->begin();
        if (run->few)
            run_split(round, run, &scratch, at - round->first_task[job]);
        else
            run_block(run, &scratch, at - round->first_task[job]);
        if (run->gemm->end) run->gemm->end();
    }
}

static void merge_jobs(void *arg, int64_t begin, int64_t end, int thread) {
    const struct round *round = arg;
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        int64_t n_heads = round->jobs[0].args->kv.n_heads;
        const nmlp_attention_job *run = &round->jobs[at / n_heads];
        if (!run->few || run->n_splits == 1 || splits_now(round, run) == 0) continue;
        for (int64_t row = 0; row < run->args->s * run->group; row++) merge_row(round, run, at % n_heads, row);
    }
}

/* One thread's time for the tasks of this round, roughly: keys and values from L3, or products in f32, and what every
 * head takes besides. */
static double serial_ns(const struct round *round) {
    const double bytes_per_ns = 20, flop_per_ns = 100, task_ns = 1500;
    double ns = 0;
    for (int64_t i = 0; i < round->n_jobs; i++) {
        const nmlp_attention *a = round->jobs[i].args;
        double elems = 2.0 * (double)((a->first_pos + a->s) * a->kv.n_heads * a->kv.head_dim);
        double bytes = elems * (nmlp_kv_in_bf16(&a->kv) ? sizeof(uint16_t) : sizeof(float));
        double flop = 2.0 * elems * (double)(a->s * round->jobs[i].group);
        ns += fmax(bytes / bytes_per_ns, flop / flop_per_ns);
        ns += task_ns * (double)a->kv.n_heads;
    }
    return ns;
}

/* Pieces so large that no more threads start than are worth it. */
static int64_t tasks_per_piece(const struct round *round, const nmlp_pool *pool) {
    int width = nmlp_pool_width(pool, serial_ns(round));
    return width == nmlp_pool_threads(pool) ? 1 : nmlp_ceil_div(round->first_task[round->n_jobs], width);
}

/* As many of the n sequences as there is room for, at least one. */
static void fill_round(struct round *round, const nmlp_attention *args, int64_t n) {
    int64_t used = 0;
    round->n_jobs = 0;
    round->first_split = 0;
    for (int64_t i = 0; i < n && round->n_jobs < JOBS_AT_ONCE; i++) {
        nmlp_attention_job run = make_job(&args[i], gemm_of(&args[i]));
        if (run.few && run.n_splits > 1) {
            int64_t floats = nmlp_min(SPLITS_AT_ONCE, run.n_splits) * partial_stride(&args[i]) + 2;
            floats *= args[i].kv.n_heads * args[i].s * run.group;
            if (used + floats > round->partial_floats) break;
            run.partial = round->partial + used;
            used += floats;
        }
        round->jobs[round->n_jobs++] = run;
    }
}

static bool has_partials(const struct round *round) {
    for (int64_t i = 0; i < round->n_jobs; i++)
        if (round->jobs[i].partial) return true;
    return false;
}

void nmlp_attention_run_all(const nmlp_attention *args, int64_t n, void *workspace, nmlp_pool *pool) {
    struct round round;
    if (n == 0) return;
    carve_round(&round, &args[0], nmlp_pool_threads(pool), workspace);
    for (int64_t done = 0; done < n; done += round.n_jobs) {
        fill_round(&round, args + done, n - done);
        for (; count_tasks(&round); round.first_split += SPLITS_AT_ONCE) {
            nmlp_pool_for(pool, round.first_task[round.n_jobs], tasks_per_piece(&round, pool), run_tasks, &round);
            if (has_partials(&round)) nmlp_pool_for(pool, round.n_jobs * args[0].kv.n_heads, 1, merge_jobs, &round);
        }
    }
}

void nmlp_attention_run(const nmlp_attention *args, void *workspace, nmlp_pool *pool) {
    nmlp_attention_run_all(args, 1, workspace, pool);
}
