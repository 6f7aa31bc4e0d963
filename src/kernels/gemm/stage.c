#include "kernels/gemm/stage_internal.h"

nmlp_gemm_scratch nmlp_gemm_scratch_carve(nmlp_carver *carver, const nmlp_gemm_blocking *blocking, int64_t k,
                                          int64_t quant_k) {
    nmlp_gemm_scratch scratch = {0};
    const nmlp_gemm *gemm = blocking->gemm;
    int64_t n_sums = gemm->panel ? 1 : NMLP_GEMM_PRODUCTS_MAX;
    size_t c_floats = (size_t)(n_sums * nmlp_gemm_stage_block_floats(gemm, blocking->rows_cap));
    size_t b_floats = blocking->widen ? (size_t)(blocking->kc * nmlp_gemm_stage_width(gemm)) : 0;
    size_t a_elems = gemm->elem_bytes == 2 ? 0 : (size_t)(gemm->mr * nmlp_round_up(quant_k, 64));
    if (gemm->elem_bytes == 2) b_floats = (size_t)(quant_k * nmlp_gemm_stage_width(gemm)) / 2; /* bf16 */
    size_t tiles_floats = gemm->panel ? (size_t)(2 * gemm->mr * nmlp_gemm_stage_width(gemm)) : 0;
    scratch.c = nmlp_carve(carver, c_floats * sizeof(float));
    scratch.tiles = nmlp_carve(carver, tiles_floats * sizeof(float));
    scratch.b = nmlp_carve(carver, b_floats * sizeof(float));
    scratch.a = nmlp_carve(carver, a_elems * sizeof *scratch.a);
    scratch.a_scales = nmlp_carve(carver, a_elems / NMLP_PAD * sizeof(float));
    scratch.a_sums = nmlp_carve(carver, a_elems / NMLP_PAD * sizeof *scratch.a_sums);
    scratch.row = nmlp_carve(carver, (size_t)k * sizeof(float));
    return scratch;
}

int64_t nmlp_gemm_stage_acc_floats(const nmlp_gemm *gemm, int64_t rows, int64_t n) {
    return nmlp_ceil_div(nmlp_pad(n), nmlp_gemm_stage_width(gemm)) * nmlp_gemm_stage_block_floats(gemm, rows);
}

/* What the scratch's int16 inputs are made of. */
struct quantised {
    const void *from;
    int64_t n;
    bool summed;
};

/* One block of columns, some tiles of rows. */
struct task {
    const nmlp_gemm_stage *stage;
    const nmlp_gemm_scratch *scratch;
    nmlp_gemm_stage_part part;
    struct quantised *quantised;
};

static float *sums_of(const struct task *task, int product) {
    const nmlp_gemm_stage *s = task->stage;
    int64_t floats = nmlp_gemm_stage_block_floats(s->gemm, s->rows);
    return s->acc ? s->acc + task->part.block * floats : task->scratch->c + product * floats;
}

size_t nmlp_gemm_stage_unpack(const nmlp_gemm *gemm, const nmlp_gemm_product *p, int64_t strip, int n_strips, int64_t k,
                              int64_t n, void *to) {
    size_t step = (size_t)(n * NMLP_STRIP * gemm->elem_bytes);
    for (int i = 0; i < n_strips; i++) {
        nmlp_gemm_quant_strip from = {
            .spans = nmlp_gemm_weight_at(p->w, strip + i, p->w_k + k), .span = p->w->span, .dtype = p->w->dtype};
        gemm->unpack((char *)to + step * (size_t)i, &from, n);
    }
    return step;
}

/* Weights of one block of columns for inputs k..k+n. */
struct operand {
    const char *strips;
    int n_strips;
    size_t step;
    nmlp_dtype dtype;
    nmlp_gemm_span span; /* quantised as it is */
};

enum { STRIPS_MAX = 4 };

static struct operand operand_of(const struct task *task, int product, int64_t k, int64_t n) {
    const nmlp_gemm_stage *s = task->stage;
    const nmlp_gemm_product *p = &s->product[product];
    int64_t strip = task->part.strip;
    struct operand o = {.strips = nmlp_gemm_weight_at(p->w, strip, p->w_k + k),
                        .n_strips = task->part.n_strips,
                        .step = p->w->strip_bytes,
                        .dtype = p->w->dtype,
                        .span = p->w->span};
    if (nmlp_dtype_is_quantised(o.dtype) && s->gemm->elem_bytes == 2) {
        size_t step = nmlp_gemm_stage_unpack(s->gemm, p, strip, o.n_strips, k, n, task->scratch->b);
        return (struct operand){
            .strips = (const char *)task->scratch->b, .n_strips = o.n_strips, .step = step, .dtype = NMLP_DTYPE_BF16};
    }
    if (!s->widen || o.dtype == NMLP_DTYPE_F32 || nmlp_dtype_is_quantised(o.dtype)) return o;
    float *wide = task->scratch->b;
    for (int i = 0; i < o.n_strips; i++)
        s->gemm->widen(wide + i * n * NMLP_STRIP, o.strips + (size_t)i * o.step, o.dtype, n * NMLP_STRIP);
    return (struct operand){.strips = (const char *)wide,
                            .n_strips = o.n_strips,
                            .step = (size_t)(n * NMLP_STRIP) * sizeof(float),
                            .dtype = NMLP_DTYPE_F32};
}

static void sum_inputs(int32_t *sums, const int16_t *a, int64_t n) {
    for (int64_t i = 0; i < n; i++, a += NMLP_PAD) {
        int32_t sum = 0;
        for (int j = 0; j < NMLP_PAD; j++) sum += a[j];
        sums[i] = sum;
    }
}

/* The tile's inputs k..k+n in int16, in the thread's own memory. One tile that meets one block of columns after the
 * other, as few rows do, is quantised once. */
static void quantise_inputs(const struct task *task, const nmlp_gemm_tiles *tiles, int64_t tile, int64_t k,
                            bool with_sums, nmlp_gemm_microtile *b) {
    const nmlp_gemm_scratch *scratch = task->scratch;
    struct quantised *have = task->quantised;
    if (have->from != b->a || have->n != b->k) {
        nmlp_vec_quantisation q = {.dst = scratch->a,
                                   .scales = scratch->a_scales,
                                   .src = nmlp_gemm_tiles_at(tiles, tile, k),
                                   .step = b->a_step,
                                   .rows = b->rows,
                                   .n_groups = b->k / NMLP_PAD};
        task->stage->vec->quantise(&q);
        *have = (struct quantised){.from = b->a, .n = b->k};
    }
    if (with_sums && !have->summed) {
        sum_inputs(scratch->a_sums, scratch->a, b->k / NMLP_PAD * b->rows);
        have->summed = true;
    }
    b->a = scratch->a;
    b->a_scales = scratch->a_scales;
    b->a_sums = scratch->a_sums;
    b->a_step = (size_t)b->rows * NMLP_LINE_BYTES;
}

static void multiply_tile(const struct task *task, int product, int64_t tile, int64_t k, int64_t n,
                          const struct operand *o) {
    const nmlp_gemm_stage *s = task->stage;
    const nmlp_gemm_product *p = &s->product[product];
    int64_t mr = s->gemm->mr;
    nmlp_gemm_stage_next next = nmlp_gemm_stage_next_after(s, &task->part, product, k);
    nmlp_gemm_microtile b = {
        .c = sums_of(task, product) + tile * mr * nmlp_gemm_stage_width(s->gemm),
        .a = nmlp_gemm_tiles_at(&p->a, tile, k),
        .b = o->strips,
        .a_step = nmlp_gemm_tiles_step(&p->a),
        .b_step = o->step,
        .k = n,
        .rows = (int)nmlp_min(mr, s->rows - tile * mr),
        .strips = o->n_strips,
        .span = o->span,
        .accumulate = s->accumulate || k > 0,
        .stream = task->part.end_tile - task->part.first_tile == 1,
        .ahead = next.strips,
        .ahead_step = next.step,
    };
    bool has_zeros = o->dtype == NMLP_DTYPE_Q4 && o->span.per_group_at > 0;
    if (nmlp_dtype_is_quantised(o->dtype)) quantise_inputs(task, &p->a, tile, k, has_zeros, &b);
    s->gemm->microkernel[o->dtype](&b);
}

/* Weights of the part after this one, brought near while this one is multiplied: a slice per tile of rows. After the
 * last part of a block of columns comes the first one of the next block, which most often is this thread's too. */
struct ahead {
    const char *strips[NMLP_GEMM_PRODUCTS_MAX * STRIPS_MAX];
    int n_strips;
    size_t slice_bytes;
};

static struct ahead ahead_of(const struct task *task, int64_t k) {
    const nmlp_gemm_stage *s = task->stage;
    struct ahead ahead = {0};
    int64_t n_tiles = task->part.end_tile - task->part.first_tile;
    if (n_tiles == 1 || s->stream) return ahead; /* the block fetches for itself */
    for (int i = 0; i < s->n_products; i++) {
        const nmlp_gemm_product *p = &s->product[i];
        bool more = k + s->kc < p->k;
        int64_t strip = (task->part.block + !more) * s->gemm->strips;
        int64_t at = more ? k + s->kc : 0;
        for (int j = 0; j < nmlp_gemm_stage_strips_from(s->gemm, p->w, strip); j++)
            ahead.strips[ahead.n_strips++] = nmlp_gemm_weight_at(p->w, strip + j, p->w_k + at);
        size_t bytes = nmlp_gemm_weight_bytes(p->w, nmlp_min(s->kc, p->k - at));
        ahead.slice_bytes = nmlp_round_up_size(bytes / (size_t)(n_tiles * s->n_products) + 1, NMLP_LINE_BYTES);
    }
    return ahead;
}

static void fetch_slice(struct ahead *ahead) {
    for (int i = 0; i < ahead->n_strips; i++) {
        for (size_t at = 0; at < ahead->slice_bytes; at += NMLP_LINE_BYTES)
            __builtin_prefetch(ahead->strips[i] + at, 0, 2);
        ahead->strips[i] += ahead->slice_bytes;
    }
}

/* One part of the reduction. */
static void multiply_part(const struct task *task, int64_t k) {
    const nmlp_gemm_stage *s = task->stage;
    struct ahead ahead = ahead_of(task, k);
    for (int i = 0; i < s->n_products; i++) {
        int64_t n = nmlp_min(s->kc, s->product[i].k - k);
        if (n <= 0) continue;
        struct operand operand = operand_of(task, i, k, n);
        for (int64_t tile = task->part.first_tile; tile < task->part.end_tile; tile++) {
            fetch_slice(&ahead);
            multiply_tile(task, i, tile, k, n, &operand);
        }
    }
}

/* Complete sums of codes with a scale per row of the weight, times these. */
static void scale_columns(const nmlp_gemm_columns *columns, int product, const float *scales, int64_t n) {
    for (int64_t row = 0; row < columns->n_rows; row++) {
        float *c = columns->c[product] + row * columns->stride;
        for (int64_t j = 0; j < n; j++) c[j] *= scales[columns->col + j];
    }
}

static void run_epilogue(const struct task *task) {
    const nmlp_gemm_stage *s = task->stage;
    int width = nmlp_gemm_stage_width(s->gemm);
    int64_t row = task->part.first_tile * s->gemm->mr;
    nmlp_gemm_columns columns = {
        .col = task->part.strip * NMLP_STRIP, .row = row, .width = task->part.n_strips * NMLP_STRIP, .stride = width};
    columns.n_rows = nmlp_min(task->part.end_tile * s->gemm->mr, s->rows) - row;
    for (int i = 0; i < s->n_products; i++) {
        const nmlp_gemm_weight *w = s->product[i].w;
        columns.c[i] = sums_of(task, i) + row * width;
        if (w->scales) scale_columns(&columns, i, w->scales, columns.width);
    }
    s->epilogue(s->epilogue_ctx, &columns);
}

static void do_task(const struct task *task) {
    const nmlp_gemm_stage *s = task->stage;
    int64_t k_end = s->product[0].k;
    if (s->n_products > 1) k_end = nmlp_max(k_end, s->product[1].k);
    for (int64_t k = 0; k < k_end; k += s->kc) multiply_part(task, k);
    if (s->epilogue) run_epilogue(task);
}

/* As many at a time as the micro-kernels know. */
static void do_strips(const struct task *task) {
    struct task some = *task;
    for (int left = task->part.n_strips; left > 0; left -= some.part.n_strips) {
        some.part.n_strips = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        do_task(&some);
        some.part.strip += some.part.n_strips;
    }
}

enum { UNPACKED_K = 256 }; /* of a quantised block, as bf16: L1 holds them */

/* Parts of equal length instead of a short last one; spans stay whole. */
static int64_t balanced_kc(const nmlp_gemm_stage *stage) {
    int64_t k = stage->product[0].k;
    int64_t unit = NMLP_PAD;
    for (int i = 0; i < stage->n_products; i++)
        if (nmlp_dtype_is_quantised(stage->product[i].w->dtype)) unit = NMLP_SPAN;
    int64_t kc = stage->kc;
    for (int i = 0; i < stage->n_products; i++)
        if (stage->gemm->elem_bytes == 2 && nmlp_dtype_is_quantised(stage->product[i].w->dtype))
            kc = nmlp_min(kc, UNPACKED_K);
    int64_t most = nmlp_max(unit, kc / unit * unit);
    return nmlp_round_up(nmlp_ceil_div(k, nmlp_ceil_div(k, most)), unit);
}

enum { TASKS_PER_THREAD = 3 };

/* Parts the rows are cut into, so that few columns feed all threads too. Results do not depend on it. */
static int64_t row_parts(int64_t n_blocks, int64_t n_tiles, int n_threads) {
    int64_t wanted = (int64_t)n_threads * (n_threads > 1 ? TASKS_PER_THREAD : 1);
    return n_blocks < wanted ? nmlp_min(n_tiles, nmlp_ceil_div(wanted, n_blocks)) : 1;
}

nmlp_gemm_stage_tasks nmlp_gemm_stage_begin(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker) {
    int64_t n_blocks = nmlp_ceil_div(stage->product[0].w->n_padded, nmlp_gemm_stage_width(stage->gemm));
    int64_t n_tiles = nmlp_ceil_div(stage->rows, stage->gemm->mr);
    int64_t n_strips = stage->product[0].w->n_padded / NMLP_STRIP;
    bool by_strip = n_tiles == 1 && !stage->acc && nmlp_gemm_stage_by_strip(stage->gemm, worker->share->n_threads);
    int64_t parts = by_strip ? 1 : row_parts(n_blocks, n_tiles, worker->share->n_threads);
    nmlp_gemm_worker_begin_step(worker, by_strip ? n_strips : n_blocks * parts);
    return (nmlp_gemm_stage_tasks){
        .gemm = stage->gemm, .n_strips = n_strips, .n_tiles = n_tiles, .parts = parts, .by_strip = by_strip};
}

static bool take_strips(const nmlp_gemm_stage_tasks *tasks, nmlp_gemm_worker *worker, nmlp_gemm_stage_part *part) {
    int64_t strip = 0;
    int64_t n = nmlp_gemm_worker_take_some(worker, tasks->gemm->strips, &strip);
    *part = (nmlp_gemm_stage_part){.strip = strip, .n_strips = (int)n, .end_tile = 1};
    return n > 0;
}

bool nmlp_gemm_stage_take(const nmlp_gemm_stage_tasks *tasks, nmlp_gemm_worker *worker, nmlp_gemm_stage_part *part) {
    if (tasks->by_strip) return take_strips(tasks, worker, part);
    int64_t at = nmlp_gemm_worker_take(worker);
    if (at < 0) return false;
    int64_t rows_part = at % tasks->parts;
    int64_t strip = at / tasks->parts * tasks->gemm->strips;
    *part = (nmlp_gemm_stage_part){.block = at / tasks->parts,
                                   .strip = strip,
                                   .n_strips = (int)nmlp_min(tasks->gemm->strips, tasks->n_strips - strip),
                                   .first_tile = tasks->n_tiles * rows_part / tasks->parts,
                                   .end_tile = tasks->n_tiles * (rows_part + 1) / tasks->parts};
    return true;
}

void nmlp_gemm_stage_work(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker, const nmlp_gemm_scratch *scratch) {
    if (stage->gemm->panel) {
        nmlp_gemm_stage_work_panels(stage, worker, scratch);
        return;
    }
    nmlp_gemm_stage balanced = *stage;
    balanced.kc = balanced_kc(stage);
    nmlp_gemm_stage_tasks tasks = nmlp_gemm_stage_begin(stage, worker);
    struct quantised quantised = {0};
    struct task task = {.stage = &balanced, .scratch = scratch, .quantised = &quantised};
    while (nmlp_gemm_stage_take(&tasks, worker, &task.part)) {
        if (tasks.by_strip)
            do_strips(&task);
        else
            do_task(&task);
    }
}

/* As much as a thread reads while memory answers; panels share L2 with their rows, of which none may go. */
enum { FETCH_BYTES = 1 << 20, FETCH_BYTES_PANELS = 1 << 17, FETCH_PIECE_BYTES = 4 * NMLP_LINE_BYTES };

nmlp_gemm_prefetch nmlp_gemm_prefetch_of(const nmlp_gemm *gemm, const nmlp_gemm_weight *w, int64_t k,
                                         const nmlp_gemm_worker *worker) {
    int n_threads = worker->share->n_threads;
    int64_t unit = nmlp_gemm_stage_by_strip(gemm, n_threads) ? 1 : gemm->strips;
    int64_t strip = nmlp_ceil_div(w->n_padded / NMLP_STRIP, unit) * worker->thread / n_threads * unit;
    return (nmlp_gemm_prefetch){.strips = nmlp_gemm_weight_at(w, strip, k),
                                .step = w->strip_bytes,
                                .n_strips = gemm->strips,
                                .strip_bytes = w->strip_bytes - nmlp_gemm_weight_bytes(w, k),
                                .left_bytes = gemm->panel ? FETCH_BYTES_PANELS : FETCH_BYTES};
}

/* Past the end of the matrix there may be nothing; asking for it does no harm. */
bool nmlp_gemm_prefetch_next(nmlp_gemm_prefetch *fetch) {
    if (fetch->left_bytes <= 0) return false;
    for (int i = 0; i < fetch->n_strips; i++)
        for (int at = 0; at < FETCH_PIECE_BYTES; at += NMLP_LINE_BYTES)
            __builtin_prefetch(fetch->strips + fetch->step * (size_t)i + fetch->at + at, 0, 2);
    fetch->left_bytes -= FETCH_PIECE_BYTES * fetch->n_strips;
    fetch->at += FETCH_PIECE_BYTES;
    if (fetch->at < fetch->strip_bytes) return true;
    fetch->at = 0;
    fetch->strips += fetch->step * (size_t)fetch->n_strips;
    return true;
}
