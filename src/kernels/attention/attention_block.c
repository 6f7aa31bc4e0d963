/* One block of queries: scores, running softmax, weighted sums, a tile of rows at a time. */
#include <math.h>
#include <string.h>

#include "kernels/attention/attention_internal.h"

/* Keys before this one are seen by a row. */
static int64_t row_limit(const nmlp_attention_task *task, int64_t row) {
    int64_t query = (uint32_t)row / (uint32_t)task->run->group; /* twice as fast as with 64 bits */
    int64_t limit = task->run->args->first_pos + task->first_query + query + 1;
    return nmlp_min(limit, task->end_key);
}

/* Keys from this one on are. */
static int64_t row_begin(const nmlp_attention_task *task, int64_t row) {
    int64_t query = (uint32_t)row / (uint32_t)task->run->group;
    return nmlp_attention_window_begin(task->run->args, task->first_query + query);
}

/* Queries lie pages apart, where no hardware fetches ahead. */
static void fetch_ahead(const nmlp_attention_task *task, const float *q) {
    enum { QUERIES_AHEAD = 3, FLOATS = NMLP_LINE_BYTES / sizeof(float) };
    const nmlp_attention *args = task->run->args;
    const float *ahead = q + QUERIES_AHEAD * args->n_heads * args->kv.head_dim;
    for (int64_t i = 0; i < task->run->group * args->kv.head_dim; i += FLOATS) __builtin_prefetch(ahead + i);
}

/* One query's heads that share keys, rotated to its position. */
static const float *rotated(const nmlp_attention_task *task, int64_t query) {
    const nmlp_attention *args = task->run->args;
    int64_t dim = args->kv.head_dim;
    const float *q = args->q + nmlp_attention_row_offset(task, query * task->run->group);
    fetch_ahead(task, q);
    int64_t rotary = args->rope.dim;
    if (!args->rope.angles) return q;
    const float *angles = args->rope.angles + (args->first_pos + task->first_query + query) * rotary;
    for (int64_t head = 0; head < task->run->group; head++) {
        float *to = task->scratch->rotated + head * dim;
        task->run->vec->rotate(to, q + head * dim, angles, rotary / 2);
        memcpy(to + rotary, q + head * dim + rotary, (size_t)(dim - rotary) * sizeof *to);
    }
    return task->scratch->rotated;
}

/* Queries that have rows in the tile, some perhaps in its neighbours too. */
static void load_queries(const nmlp_attention_task *task, int64_t tile) {
    const nmlp_attention_job *run = task->run;
    int64_t dim = run->args->kv.head_dim;
    int64_t mr = run->gemm->mr;
    int64_t end = nmlp_ceil_div(nmlp_min(task->rows, (tile + 1) * mr), run->group);
    for (int64_t query = tile * mr / run->group; query < end; query++) {
        nmlp_vec_put put = {
            .src = rotated(task, query), .src_stride = dim, .n_rows = run->group, .n = dim, .n_padded = run->dim};
        nmlp_gemm_tiles_put(&task->scratch->q, run->vec, query * run->group, 0, put);
    }
}

/* Sums begin as zeros; else the first block of keys writes them. */
static bool adds_to_zeros(const nmlp_attention_task *task) {
    return task->first_key > 0 || task->run->args->window > 0;
}

static void begin_task(const nmlp_attention_task *task) {
    const nmlp_attention_job *run = task->run;
    nmlp_attention_scratch *s = task->scratch;
    for (int64_t row = 0; row < task->rows; row++) s->max[row] = -INFINITY;
    memset(s->sum, 0, (size_t)(task->rows * nmlp_attention_sum_parts(run)) * sizeof *s->sum);
    /* A row that sees nothing of a split, or nothing of its first block, has no block that begins its sums. */
    if (adds_to_zeros(task)) memset(s->out, 0, (size_t)(s->q.n_tiles * run->gemm->mr * run->out_dim) * sizeof(float));
}

/* A tile of rows against a block of keys. Three of them are under way at once: while the scores of one are made, and
 * then the weighted values of the last but one are summed, the vector units turn the scores of the one between them
 * into probabilities, row by row. */
struct tile {
    const nmlp_attention_task *task;
    nmlp_attention_keys keys;
    int64_t at;       /* which tile of rows; -1: none */
    int64_t n_padded; /* keys that some row sees */
    bool all_seen;    /* by every row */
    bool behind;      /* some row's window begins within the block or behind it */
    bool shrinks;     /* some row's sums, by the scratch's factor, before values are added */
    int rows;
    int buffer; /* of what the scratch has two of */
};

static float *sums_of(const struct tile *tile) {
    const nmlp_attention_job *run = tile->task->run;
    return tile->task->scratch->out + tile->at * run->gemm->mr * run->out_dim;
}

static void shrink_row(const struct tile *tile, int64_t i, float factor) {
    const nmlp_attention_job *run = tile->task->run;
    int64_t mr = run->gemm->mr;
    float *out = sums_of(tile) + i * run->width;
    for (int64_t d = 0; d < run->out_dim; d += run->width, out += mr * run->width)
        run->vec->scale(out, out, factor, run->width);
}

/* Before the tile's probabilities are made. */
static void count_seen(const struct tile *tile) {
    int64_t *seen = tile->task->scratch->seen[tile->buffer];
    int64_t first_row = tile->at * tile->task->run->gemm->mr;
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t n = tile->all_seen ? tile->n_padded : row_limit(tile->task, first_row + i) - tile->keys.first;
        seen[i] = nmlp_max(0, nmlp_min(n, tile->n_padded));
    }
}

/* Keys of the block that lie behind the window of row i of the tile. */
static int64_t behind_window(const struct tile *tile, int64_t i) {
    int64_t row = tile->at * tile->task->run->gemm->mr + i;
    return nmlp_max(0, nmlp_min(row_begin(tile->task, row) - tile->keys.first, tile->n_padded));
}

/* Scores are capped, and those behind the row's window become -infinity. In place, since nobody else reads them. */
static void adjust_scores(const struct tile *tile, int64_t i) {
    const nmlp_attention_job *run = tile->task->run;
    const nmlp_attention *args = run->args;
    float *scores = tile->task->scratch->scores[tile->buffer] + i * run->width;
    int64_t unseen = tile->behind ? behind_window(tile, i) : 0;
    for (int64_t at = 0; at < tile->n_padded; at += run->width, scores += run->gemm->mr * run->width) {
        int64_t n = nmlp_min(run->width, tile->n_padded - at);
        if (args->softcap > 0) run->vec->softcap(scores, args->scale / args->softcap, args->softcap, n);
        for (int64_t key = 0; key < nmlp_min(unseen - at, n); key++) scores[key] = -INFINITY;
    }
}

/* Their probabilities are next to nothing; nothing they become, since subnormal sums take long. */
static void clear_behind_window(const struct tile *tile, int64_t i) {
    const nmlp_gemm_tiles *p = &tile->task->scratch->p[tile->buffer];
    size_t bytes = (size_t)(behind_window(tile, i) * tile->task->run->gemm->elem_bytes);
    char *line = p->data + (size_t)i * NMLP_LINE_BYTES;
    for (; bytes > 0; line += nmlp_gemm_tiles_step(p)) {
        size_t n = bytes < NMLP_LINE_BYTES ? bytes : NMLP_LINE_BYTES;
        memset(line, 0, n);
        bytes -= n;
    }
}

/* What scores are yet to be multiplied with. */
static float scale_left(const nmlp_attention *args) { return args->softcap > 0 ? 1.0f : args->scale; }

static void probabilities_bf16(struct tile *tile, int64_t row, int64_t n) {
    const nmlp_attention_job *run = tile->task->run;
    nmlp_attention_scratch *s = tile->task->scratch;
    const nmlp_gemm_tiles *p = &s->p[tile->buffer];
    int64_t first = tile->at * run->gemm->mr + row;
    nmlp_vec_softmax_rows rows = {.scores = s->scores[tile->buffer] + row * run->width,
                                  .block_stride = run->gemm->mr * run->width,
                                  .n_rows = n,
                                  .n = tile->all_seen ? NULL : s->seen[tile->buffer] + row,
                                  .n_padded = tile->n_padded,
                                  .scale = scale_left(run->args),
                                  .lines = p->data + (size_t)row * NMLP_LINE_BYTES,
                                  .step = nmlp_gemm_tiles_step(p),
                                  .max = s->max + first,
                                  .sums = s->sum + first * nmlp_attention_sum_parts(run),
                                  .shrink = s->shrink[tile->buffer] + row};
    if (!run->vec->softmax_bf16(&rows)) tile->shrinks = true;
}

static void probabilities_f32(struct tile *tile, int64_t i) {
    const nmlp_attention_job *run = tile->task->run;
    nmlp_attention_scratch *s = tile->task->scratch;
    const nmlp_gemm_tiles *p = &s->p[tile->buffer];
    int64_t mr = run->gemm->mr;
    int64_t row = tile->at * mr + i;
    nmlp_vec_softmax softmax = {.scores = s->scores[tile->buffer] + i * run->width,
                                .block_stride = mr * run->width,
                                .strips = run->gemm->strips,
                                .n = s->seen[tile->buffer][i],
                                .n_padded = tile->n_padded,
                                .scale = scale_left(run->args),
                                .line = p->data + (size_t)i * NMLP_LINE_BYTES,
                                .step = nmlp_gemm_tiles_step(p),
                                .max = s->max[row],
                                .sum = s->sum[row]};
    run->vec->softmax(&softmax);
    s->max[row] = softmax.max;
    s->sum[row] = softmax.sum;
    s->shrink[tile->buffer][i] = softmax.shrink;
    if (softmax.shrink != 1.0f) tile->shrinks = true;
}

static void probabilities(void *ctx, int64_t row, int64_t n) {
    struct tile *tile = ctx;
    bool adjusted = tile->behind || tile->task->run->args->softcap > 0;
    for (int64_t i = row; adjusted && i < row + n; i++) adjust_scores(tile, i);
    if (nmlp_attention_in_bf16(tile->task->run))
        probabilities_bf16(tile, row, n);
    else
        for (int64_t i = row; i < row + n; i++) probabilities_f32(tile, i);
    for (int64_t i = row; tile->behind && i < row + n; i++) clear_behind_window(tile, i);
}

/* c [rows, n], in blocks of columns that lie mr*width floats apart, = or += a times the strips. */
static void multiply(const nmlp_attention_job *run, nmlp_gemm_microtile block, float *c, const char *strips,
                     int64_t n) {
    block.ahead_step = block.b_step;
    for (int64_t at = 0; at < n; at += run->width) {
        block.c = c + at * run->gemm->mr;
        block.b = strips + block.b_step * (size_t)(at / NMLP_STRIP);
        block.ahead = (const char *)block.b + block.b_step * (size_t)run->gemm->strips;
        block.strips = (int)nmlp_min(run->gemm->strips, (n - at) / NMLP_STRIP);
        run->gemm->microkernel[run->strip_dtype](&block);
    }
}

static void make_scores(const struct tile *tile, nmlp_gemm_overlap *overlap) {
    const nmlp_attention_job *run = tile->task->run;
    nmlp_attention_scratch *s = tile->task->scratch;
    if (run->scores_64) {
        run->scores_64(s->scores[tile->buffer], nmlp_gemm_tiles_at(&s->q, tile->at, 0), tile->keys.k, tile->n_padded,
                       overlap);
        return;
    }
    nmlp_gemm_microtile block = {.a = nmlp_gemm_tiles_at(&s->q, tile->at, 0),
                                 .a_step = nmlp_gemm_tiles_step(&s->q),
                                 .b_step = tile->keys.k_step,
                                 .k = run->dim,
                                 .rows = tile->rows,
                                 .overlap = overlap};
    multiply(run, block, s->scores[tile->buffer], tile->keys.k, tile->n_padded);
}

/* Whether what the first row does not see may be multiplied with its probability of 0. */
static bool unseen_are_finite(const struct tile *tile) {
    const nmlp_attention_job *run = tile->task->run;
    if (tile->all_seen && !tile->behind) return true;
    int64_t first = tile->behind ? 0 : tile->task->scratch->seen[tile->buffer][0];
    int64_t per_line = run->strip_dtype == NMLP_DTYPE_BF16 ? 2 : 1;
    const char *line = tile->keys.v + first / per_line * NMLP_LINE_BYTES;
    int64_t n_lines = tile->n_padded / per_line - first / per_line;
    for (int64_t d = 0; d < run->dim; d += NMLP_STRIP, line += tile->keys.v_step)
        if (!run->vec->is_finite(line, n_lines, run->strip_dtype)) return false;
    return true;
}

static void add_values_seen(const struct tile *tile) {
    const nmlp_attention_job *run = tile->task->run;
    const nmlp_attention_scratch *s = tile->task->scratch;
    nmlp_attention_values values = {.run = run, .keys = &tile->keys, .p = &s->p[tile->buffer], .c = sums_of(tile)};
    if (tile->keys.first == 0 && !adds_to_zeros(tile->task))
        memset(values.c, 0, (size_t)(run->gemm->mr * run->out_dim) * sizeof(float));
    for (int64_t i = 0; i < tile->rows; i++) {
        int64_t row = tile->at * run->gemm->mr + i;
        int64_t first = tile->behind ? behind_window(tile, i) : 0;
        int64_t end = nmlp_min(row_limit(tile->task, row) - tile->keys.first, tile->n_padded);
        nmlp_attention_add_seen(&values, i, first, end);
    }
}

static void add_values(const struct tile *tile, nmlp_gemm_overlap *overlap) {
    const nmlp_attention_job *run = tile->task->run;
    const nmlp_gemm_tiles *p = &tile->task->scratch->p[tile->buffer];
    nmlp_gemm_microtile block = {.a = nmlp_gemm_tiles_at(p, 0, 0),
                                 .a_step = nmlp_gemm_tiles_step(p),
                                 .b_step = tile->keys.v_step,
                                 .k = tile->n_padded,
                                 .rows = tile->rows,
                                 .accumulate = tile->keys.first > 0 || adds_to_zeros(tile->task),
                                 .overlap = overlap};
    for (int64_t i = 0; tile->shrinks && i < tile->rows; i++)
        shrink_row(tile, i, tile->task->scratch->shrink[tile->buffer][i]);
    if (unseen_are_finite(tile))
        multiply(run, block, sums_of(tile), tile->keys.v, run->dim);
    else
        add_values_seen(tile);
}

/* Steps of 32 inputs and 32 columns, where there is time for vector work. */
static int64_t steps_of(const nmlp_attention_job *run, const struct tile *tile) {
    return tile->at < 0 ? 0 : tile->n_padded / NMLP_PAD * (run->dim / NMLP_PAD);
}

/* One step of three tiles under way; each may be none. */
static void advance(const nmlp_attention_job *run, const struct tile *scores, struct tile *softmax,
                    const struct tile *values) {
    nmlp_gemm_overlap overlap = {.do_rows = probabilities, .ctx = softmax};
    if (softmax->at >= 0) {
        if (!softmax->all_seen || !nmlp_attention_in_bf16(run)) count_seen(softmax);
        uint32_t steps = (uint32_t)nmlp_max(1, steps_of(run, scores) + steps_of(run, values));
        overlap.end = softmax->rows;
        overlap.rows_per_step = ((uint32_t)softmax->rows + steps - 1) / steps;
    }
    if (scores->at >= 0) make_scores(scores, &overlap);
    if (values->at >= 0) add_values(values, &overlap);
    if (overlap.row < overlap.end) probabilities(softmax, overlap.row, overlap.end - overlap.row);
}

/* The tile as far as its rows see keys of the block; none where they see nothing. */
static struct tile tile_of(const nmlp_attention_task *task, int64_t at, const nmlp_attention_keys *keys) {
    int64_t mr = task->run->gemm->mr;
    struct tile tile = {.task = task, .keys = *keys, .at = at, .rows = (int)nmlp_min(mr, task->rows - at * mr)};
    int64_t seen = row_limit(task, at * mr + tile.rows - 1) - keys->first; /* by the last row, which sees most */
    tile.n_padded = nmlp_min(keys->n_padded, nmlp_pad(seen));
    tile.all_seen = row_limit(task, at * mr) >= keys->first + tile.n_padded;
    tile.behind = row_begin(task, at * mr + tile.rows - 1) > keys->first;
    if (seen <= 0 || row_begin(task, at * mr) >= keys->first + tile.n_padded) tile.at = -1;
    return tile;
}

/* Scores, softmax, values. */
struct under_way {
    struct tile tile[3];
    int next_buffer;
};

static void feed(struct under_way *u, const nmlp_attention_job *run, const struct tile *tile) {
    u->tile[2] = u->tile[1];
    u->tile[1] = u->tile[0];
    u->tile[0] = *tile;
    u->tile[0].buffer = u->next_buffer;
    u->next_buffer ^= 1;
    advance(run, &u->tile[0], &u->tile[1], &u->tile[2]);
}

static void drain(struct under_way *u, const nmlp_attention_job *run) {
    const struct tile none = {.at = -1};
    for (int i = 0; i < 2; i++) feed(u, run, &none);
}

/* Some tiles of rows, which take one block of keys after the other in turn. */
static void do_tiles(const nmlp_attention_task *task, int64_t first, int64_t end, struct under_way *u) {
    const nmlp_attention_job *run = task->run;
    int64_t last_row = nmlp_min(end * run->gemm->mr, task->rows) - 1;
    int64_t end_key = row_limit(task, last_row);
    nmlp_attention_keys keys;
    for (int64_t at = first; at < end; at++) load_queries(task, at);
    /* What lies behind the window of every row is not read: it may not be there any more. */
    int64_t first_seen = row_begin(task, first * run->gemm->mr) / run->keys * run->keys;
    for (int64_t key = nmlp_max(task->first_key, first_seen); key < end_key; key += keys.n_padded) {
        keys = nmlp_attention_load(task, key);
        for (int64_t at = first; at < end; at++) {
            struct tile tile = tile_of(task, at, &keys);
            if (tile.at >= 0) feed(u, run, &tile);
        }
        if (!run->as_stored) drain(u, run); /* the next keys take the place of these */
    }
}

void nmlp_attention_do(const nmlp_attention_task *task) {
    const nmlp_attention_job *run = task->run;
    int64_t n_tiles = nmlp_ceil_div(task->rows, run->gemm->mr);
    struct under_way u = {.tile = {{.at = -1}, {.at = -1}, {.at = -1}}};
    begin_task(task);
    for (int64_t at = 0; at < n_tiles; at += run->tiles_at_once)
        do_tiles(task, at, nmlp_min(n_tiles, at + run->tiles_at_once), &u);
    drain(&u, run);
}
