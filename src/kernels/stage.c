#include "kernels/stage.h"

static int block_width(const nmlp_gemm *gemm) { return gemm->strips * NMLP_STRIP; }

/* Rows of full tiles: what blocks write, and the distance between blocks of columns in acc. */
static int64_t tile_rows(const nmlp_gemm *gemm, int64_t rows) { return nmlp_ceil_div(rows, gemm->mr) * gemm->mr; }

static int64_t block_floats(const nmlp_gemm *gemm, int64_t rows) { return tile_rows(gemm, rows) * block_width(gemm); }

nmlp_scratch nmlp_scratch_carve(nmlp_carver *carver, const nmlp_plan *plan, int64_t k) {
    nmlp_scratch scratch;
    size_t c_floats = (size_t)(NMLP_PRODUCTS_MAX * block_floats(plan->gemm, plan->rows_cap));
    size_t b_floats = plan->widen ? (size_t)(plan->kc * block_width(plan->gemm)) : 0;
    scratch.c[0] = nmlp_carve(carver, c_floats * sizeof(float));
    scratch.c[1] = plan->gemm->works_beside ? nmlp_carve(carver, c_floats * sizeof(float)) : scratch.c[0];
    scratch.b = nmlp_carve(carver, b_floats * sizeof(float));
    scratch.row = nmlp_carve(carver, (size_t)k * sizeof(float));
    return scratch;
}

int64_t nmlp_stage_acc_floats(const nmlp_gemm *gemm, int64_t rows, int64_t n) {
    return nmlp_ceil_div(nmlp_pad(n), block_width(gemm)) * block_floats(gemm, rows);
}

/* One thread's work on a stage. Finished sums are delivered beside the multiplication of the next task's. */
struct shift {
    const nmlp_stage *stage;
    const nmlp_scratch *scratch;
    int buffer; /* of the scratch's sums */
    bool first_task;
    nmlp_columns finished;
    nmlp_beside delivery; /* of what is finished */
};

/* One block of columns, some tiles of rows. */
struct task {
    const nmlp_stage *stage;
    struct shift *shift;
    int64_t block;
    int64_t first_tile;
    int64_t end_tile;
};

static float *sums_of(const struct task *task, int product) {
    const nmlp_stage *s = task->stage;
    int64_t floats = block_floats(s->gemm, s->rows);
    return s->acc ? s->acc + task->block * floats : task->shift->scratch->c[task->shift->buffer] + product * floats;
}

/* Weights of one block of columns for inputs k..k+n. */
struct operand {
    const char *strips;
    int n_strips;
    size_t step;
    nmlp_dtype dtype;
};

enum { STRIPS_MAX = 4 };

/* Strips of the block that begins at `strip`. */
static int strips_from(const nmlp_stage *s, const nmlp_matrix *w, int64_t strip) {
    return (int)nmlp_min(s->gemm->strips, w->n_padded / NMLP_STRIP - strip);
}

static struct operand operand_of(const struct task *task, int product, int64_t k, int64_t n) {
    const nmlp_stage *s = task->stage;
    const nmlp_product *p = &s->product[product];
    int64_t strip = task->block * s->gemm->strips;
    struct operand o = {.strips = nmlp_matrix_at(p->w, strip, p->w_k + k),
                        .n_strips = strips_from(s, p->w, strip),
                        .step = p->w->strip_bytes,
                        .dtype = p->w->dtype};
    if (!s->widen || o.dtype == NMLP_DTYPE_F32) return o;
    float *wide = task->shift->scratch->b;
    for (int i = 0; i < o.n_strips; i++)
        s->gemm->widen(wide + i * n * NMLP_STRIP, o.strips + (size_t)i * o.step, o.dtype, n * NMLP_STRIP);
    return (struct operand){.strips = (const char *)wide,
                            .n_strips = o.n_strips,
                            .step = (size_t)(n * NMLP_STRIP) * sizeof(float),
                            .dtype = NMLP_DTYPE_F32};
}

struct next {
    const char *strips;
    size_t step;
};

/* The weights used after this part: the other product's same part; then the next part; after the last, the first of the
 * next block of columns, which most often is this thread's too. A tile loop takes all rows over one part before it goes
 * on, so there it is the next part of the same product that must be near in time. */
static struct next next_after(const struct task *task, int product, int64_t k) {
    const nmlp_stage *s = task->stage;
    int other = s->gemm->works_beside ? product : (product + 1) % s->n_products;
    bool same_part = other > product;
    const nmlp_product *p = &s->product[other];
    bool more = same_part || k + s->kc < p->k;
    int64_t strip = (task->block + !more) * s->gemm->strips;
    int64_t at = same_part ? k : more ? k + s->kc : 0;
    return (struct next){.strips = nmlp_matrix_at(p->w, strip, p->w_k + at), .step = p->w->strip_bytes};
}

/* Lines of a strip to fetch at every step, so that a part of the reduction is there when all tiles have passed. */
static int lines_ahead(const struct task *task) {
    enum { LINES_PER_STEP = NMLP_PAD * NMLP_STRIP * 2 / NMLP_LINE_BYTES };
    int64_t n_tiles = task->end_tile - task->first_tile;
    return n_tiles == 1 ? 0 : (int)nmlp_ceil_div(LINES_PER_STEP, n_tiles); /* alone, a block fetches for itself */
}

static void multiply_tile(const struct task *task, int product, int64_t tile, int64_t k, int64_t n,
                          const struct operand *o) {
    const nmlp_stage *s = task->stage;
    const nmlp_product *p = &s->product[product];
    int64_t mr = s->gemm->mr;
    int ahead_lines = s->gemm->works_beside ? lines_ahead(task) : 0;
    int64_t steps_done = (tile - task->first_tile) * (n / NMLP_PAD);
    struct next next = next_after(task, product, k);
    bool adds = s->accumulate || k > 0;
    float *c = sums_of(task, product) + tile * mr * block_width(s->gemm);
    nmlp_block b = {
        .c = c,
        .a = nmlp_tiles_at(&p->a, tile, k),
        .b = o->strips,
        .a_step = nmlp_tiles_step(&p->a),
        .b_step = o->step,
        .k = n,
        .rows = (int)nmlp_min(mr, s->rows - tile * mr),
        .strips = o->n_strips,
        .accumulate = adds,
        .stream = task->end_tile - task->first_tile == 1,
        .ahead = next.strips + steps_done * ahead_lines * NMLP_LINE_BYTES,
        .ahead_step = next.step,
        .ahead_lines = ahead_lines,
        .next_c = adds ? c + mr * block_width(s->gemm) : NULL,
        .far_a = task->shift->first_task,
        .beside = &task->shift->delivery,
    };
    s->gemm->block[o->dtype](&b);
}

/* Weights of the part after this one, brought near while this one is multiplied: a slice per tile of rows. After the
 * last part of a block of columns comes the first one of the next block, which most often is this thread's too. */
struct ahead {
    const char *strips[NMLP_PRODUCTS_MAX * STRIPS_MAX];
    int n_strips;
    size_t slice_bytes;
};

static struct ahead ahead_of(const struct task *task, int64_t k) {
    const nmlp_stage *s = task->stage;
    struct ahead ahead = {0};
    int64_t n_tiles = task->end_tile - task->first_tile;
    if (n_tiles == 1 || s->stream || s->gemm->works_beside) return ahead; /* the block fetches for itself */
    for (int i = 0; i < s->n_products; i++) {
        const nmlp_product *p = &s->product[i];
        bool more = k + s->kc < p->k;
        int64_t strip = (task->block + !more) * s->gemm->strips;
        int64_t at = more ? k + s->kc : 0;
        for (int j = 0; j < strips_from(s, p->w, strip); j++)
            ahead.strips[ahead.n_strips++] = nmlp_matrix_at(p->w, strip + j, p->w_k + at);
        size_t bytes = (size_t)(nmlp_min(s->kc, p->k - at) * NMLP_STRIP) * nmlp_dtype_bytes(p->w->dtype);
        ahead.slice_bytes = nmlp_round_up(bytes / (size_t)(n_tiles * s->n_products) + 1, NMLP_LINE_BYTES);
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
    const nmlp_stage *s = task->stage;
    struct ahead ahead = ahead_of(task, k);
    for (int i = 0; i < s->n_products; i++) {
        int64_t n = nmlp_min(s->kc, s->product[i].k - k);
        if (n <= 0) continue;
        struct operand operand = operand_of(task, i, k, n);
        for (int64_t tile = task->first_tile; tile < task->end_tile; tile++) {
            fetch_slice(&ahead);
            multiply_tile(task, i, tile, k, n, &operand);
        }
    }
}

/* Rows row.. of what is finished. */
static void deliver_rows(void *ctx, int64_t row, int64_t n) {
    struct shift *shift = ctx;
    nmlp_columns part = shift->finished;
    part.row += row;
    part.n_rows = n;
    for (int i = 0; i < shift->stage->n_products; i++) part.c[i] += row * part.width;
    shift->stage->sink(shift->stage->sink_ctx, &part);
}

static void deliver_rest(struct shift *shift) {
    nmlp_beside *d = &shift->delivery;
    if (d->row < d->end) deliver_rows(shift, d->row, d->end - d->row);
    d->row = d->end;
}

/* Few enough not to hold up the tiles, enough to share the cost of the call. */
enum { ROWS_AT_ONCE = 4 };

/* What the task made is finished; the buffer it lies in stays as it is until the next but one. */
static void finish_task(const struct task *task) {
    const nmlp_stage *s = task->stage;
    struct shift *shift = task->shift;
    int width = block_width(s->gemm);
    int64_t row = task->first_tile * s->gemm->mr;
    int64_t n_rows = nmlp_min(task->end_tile * s->gemm->mr, s->rows) - row;
    int64_t n_steps = 0;
    deliver_rest(shift);
    shift->finished = (nmlp_columns){.col = task->block * width, .row = row, .n_rows = n_rows, .width = width};
    for (int i = 0; i < s->n_products; i++) {
        shift->finished.c[i] = sums_of(task, i) + row * width;
        n_steps += (task->end_tile - task->first_tile) * (s->product[i].k / NMLP_PAD);
    }
    shift->delivery = (nmlp_beside){.do_rows = deliver_rows,
                                    .ctx = shift,
                                    .described = s->describe(s->sink_ctx, &shift->finished),
                                    .end = n_rows};
    nmlp_beside_pace(&shift->delivery, shift->delivery.described.outcome == NMLP_BY_CALL ? ROWS_AT_ONCE : 1, n_steps);
    if (!s->gemm->works_beside) deliver_rest(shift);
    shift->buffer ^= 1;
}

static void do_task(const struct task *task) {
    const nmlp_stage *s = task->stage;
    int64_t k_end = s->product[0].k;
    if (s->n_products > 1) k_end = nmlp_max(k_end, s->product[1].k);
    for (int64_t k = 0; k < k_end; k += s->kc) multiply_part(task, k);
    if (s->sink) finish_task(task);
    task->shift->first_task = false;
}

/* Parts of equal length instead of a short last one. For tiles, what exceeds one part by a fifth is still one: another
 * pass over the sums costs more. */
static int64_t balanced_kc(const nmlp_stage *stage) {
    int64_t k = stage->product[0].k;
    int64_t more = stage->gemm->works_beside ? stage->kc / 5 : 0;
    int64_t n_parts = k <= stage->kc + more ? 1 : nmlp_ceil_div(k, stage->kc);
    return nmlp_pad(nmlp_ceil_div(k, n_parts));
}

enum { TASKS_PER_THREAD = 3 };

/* Parts the rows are cut into, so that few columns feed all threads too. Results do not depend on it. */
static int64_t row_parts(int64_t n_blocks, int64_t n_tiles, int n_threads) {
    int64_t wanted = (int64_t)n_threads * (n_threads > 1 ? TASKS_PER_THREAD : 1);
    return n_blocks < wanted ? nmlp_min(n_tiles, nmlp_ceil_div(wanted, n_blocks)) : 1;
}

void nmlp_stage_work(const nmlp_stage *stage, nmlp_worker *worker, const nmlp_scratch *scratch) {
    int64_t n_blocks = nmlp_ceil_div(stage->product[0].w->n_padded, block_width(stage->gemm));
    int64_t n_tiles = nmlp_ceil_div(stage->rows, stage->gemm->mr);
    int64_t parts = row_parts(n_blocks, n_tiles, worker->share->n_threads);
    nmlp_stage balanced = *stage;
    balanced.kc = balanced_kc(stage);
    struct shift shift = {.stage = &balanced, .scratch = scratch, .first_task = true};
    nmlp_worker_begin_step(worker, n_blocks * parts);
    for (int64_t at = nmlp_worker_take(worker); at >= 0; at = nmlp_worker_take(worker)) {
        int64_t part = at % parts;
        struct task task = {.stage = &balanced,
                            .shift = &shift,
                            .block = at / parts,
                            .first_tile = n_tiles * part / parts,
                            .end_tile = n_tiles * (part + 1) / parts};
        do_task(&task);
    }
    deliver_rest(&shift);
}

enum { FETCH_BYTES = 1 << 20, FETCH_PIECE_BYTES = 4 * NMLP_LINE_BYTES };

nmlp_fetch nmlp_fetch_of(const nmlp_gemm *gemm, const nmlp_matrix *w, int64_t k, const nmlp_worker *worker) {
    int64_t n_blocks = nmlp_ceil_div(w->n_padded, block_width(gemm));
    int64_t strip = n_blocks * worker->thread / worker->share->n_threads * gemm->strips;
    return (nmlp_fetch){.strips = nmlp_matrix_at(w, strip, k),
                        .step = w->strip_bytes,
                        .n_strips = gemm->strips,
                        .strip_bytes = w->strip_bytes - (size_t)(k * NMLP_STRIP) * nmlp_dtype_bytes(w->dtype),
                        .left_bytes = FETCH_BYTES};
}

/* Past the end of the matrix there may be nothing; asking for it does no harm. */
bool nmlp_fetch_piece(nmlp_fetch *fetch) {
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
