/* All inputs of a tile of rows pass at once, so that its sums stay in registers; a finished tile lies in L1 and is
 * delivered beside the multiplication of the next one. */
#include "kernels/stage_int.h"

/* One thread's work on a stage. */
struct shift {
    const nmlp_stage *stage;
    const nmlp_scratch *scratch;
    int buffer;      /* of the scratch's tiles */
    bool first_task; /* the tiles of rows may have left L2 */
    nmlp_stage_part task;
    nmlp_columns finished;
    nmlp_beside delivery; /* of what is finished */
};

static int64_t tile_floats(const nmlp_stage *s) { return (int64_t)s->gemm->mr * nmlp_stage_width(s->gemm); }

static float *kept_sums(const struct shift *shift, int64_t tile) {
    const nmlp_stage *s = shift->stage;
    return s->acc + shift->task.block * nmlp_stage_block_floats(s->gemm, s->rows) + tile * tile_floats(s);
}

/* The gate's sums wait for those of up. */
static float *gate_sums(const struct shift *shift, int64_t tile) {
    return shift->scratch->c + tile * tile_floats(shift->stage);
}

static float *sums_of(const struct shift *shift, int product, int64_t tile) {
    const nmlp_stage *s = shift->stage;
    if (!s->sink) return kept_sums(shift, tile);
    return product + 1 < s->n_products ? gate_sums(shift, tile) : shift->scratch->tile[shift->buffer];
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
enum { ROWS_AT_A_CALL = 4 };

static void finish_tile(struct shift *shift, int64_t tile, float *sums) {
    const nmlp_stage *s = shift->stage;
    int64_t mr = s->gemm->mr;
    int width = nmlp_stage_width(s->gemm);
    shift->finished = (nmlp_columns){.col = shift->task.block * width,
                                     .row = tile * mr,
                                     .n_rows = nmlp_min(mr, s->rows - tile * mr),
                                     .width = width};
    if (s->n_products > 1) shift->finished.c[0] = gate_sums(shift, tile);
    shift->finished.c[s->n_products - 1] = sums;
    shift->delivery = (nmlp_beside){.do_rows = deliver_rows,
                                    .ctx = shift,
                                    .described = s->describe(s->sink_ctx, &shift->finished),
                                    .end = shift->finished.n_rows};
    int64_t at_once = shift->delivery.described.outcome == NMLP_BY_CALL ? ROWS_AT_A_CALL : 1;
    nmlp_beside_pace(&shift->delivery, at_once, s->product[0].k / NMLP_PAD);
    shift->buffer ^= 1;
}

/* Lines of a strip to fetch at every step, so that the weights that come next are there when all tiles have passed. */
static int lines_ahead(const struct shift *shift) {
    enum { LINES_PER_STEP = NMLP_PAD * NMLP_STRIP * 2 / NMLP_LINE_BYTES };
    int64_t n_tiles = shift->task.end_tile - shift->task.first_tile;
    return n_tiles == 1 ? 0 : (int)nmlp_ceil_div(LINES_PER_STEP, n_tiles); /* alone, a block fetches for itself */
}

static void multiply_tile(struct shift *shift, int product, int64_t tile, nmlp_block block) {
    const nmlp_stage *s = shift->stage;
    int64_t mr = s->gemm->mr;
    block.c = sums_of(shift, product, tile);
    block.a = nmlp_tiles_at(&s->product[product].a, tile, 0);
    block.rows = (int)nmlp_min(mr, s->rows - tile * mr);
    block.backwards = (s->row / mr + tile) & 1;
    block.ahead += (tile - shift->task.first_tile) * (block.k / NMLP_PAD) * block.ahead_lines * NMLP_LINE_BYTES;
    if (s->accumulate) block.earlier = kept_sums(shift, tile);
    if (s->acc && tile + 1 < shift->task.end_tile) block.next_c = kept_sums(shift, tile + 1);
    if (block.c == shift->finished.c[0]) deliver_rest(shift); /* with a single tile, the gate's sums take turns */
    s->gemm->block[s->product[product].w->dtype](&block);
    deliver_rest(shift);
    if (s->sink && product + 1 == s->n_products) finish_tile(shift, tile, block.c);
}

static void multiply_product(struct shift *shift, int product) {
    const nmlp_stage *s = shift->stage;
    const nmlp_product *p = &s->product[product];
    int64_t strip = shift->task.block * s->gemm->strips;
    nmlp_stage_next next = nmlp_stage_next_after(s, shift->task.block, product, 0);
    nmlp_block block = {
        .b = nmlp_matrix_at(p->w, strip, p->w_k),
        .a_step = nmlp_tiles_step(&p->a),
        .b_step = p->w->strip_bytes,
        .k = p->k,
        .strips = nmlp_stage_strips_from(s->gemm, p->w, strip),
        .accumulate = s->accumulate,
        .stream = shift->task.end_tile - shift->task.first_tile == 1,
        .ahead = next.strips,
        .ahead_step = next.step,
        .ahead_lines = lines_ahead(shift),
        .far_a = shift->first_task,
        .beside = &shift->delivery,
    };
    for (int64_t tile = shift->task.first_tile; tile < shift->task.end_tile; tile++)
        multiply_tile(shift, product, tile, block);
}

void nmlp_stage_work_beside(const nmlp_stage *stage, nmlp_worker *worker, const nmlp_scratch *scratch) {
    nmlp_stage_tasks tasks = nmlp_stage_begin(stage, worker);
    struct shift shift = {.stage = stage, .scratch = scratch, .first_task = true};
    while (nmlp_stage_take(&tasks, worker, &shift.task)) {
        for (int i = 0; i < stage->n_products; i++) multiply_product(&shift, i);
        shift.first_task = false;
    }
    deliver_rest(&shift);
}
