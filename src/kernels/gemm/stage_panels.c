/* A stage in panels: a block of columns at a time, whose tiles of rows are delivered one after the other while the next
 * ones are multiplied, in small buffers that stay in L1. */
#include "kernels/gemm/stage_internal.h"

enum { TILE = NMLP_PANEL_TILE, TILE_FLOATS = NMLP_PANEL_TILE_FLOATS };

/* One thread's work on a stage. */
struct shift {
    const nmlp_stage *stage;
    const nmlp_scratch *scratch;
    int turn;        /* of the two tiles that sums go to */
    bool first_task; /* the rows may have left L2 */
    nmlp_stage_part task;
    nmlp_finished finished; /* the last tile made, if it is yet to be delivered */
};

/* The next n rows of a tile. */
static void deliver(void *ctx, const nmlp_finished *tile, int64_t n) {
    const struct shift *shift = ctx;
    nmlp_columns columns = {.c = {(float *)tile->sums[0], (float *)tile->sums[1]},
                            .col = tile->col,
                            .row = tile->row,
                            .n_rows = n,
                            .width = TILE};
    shift->stage->sink(shift->stage->sink_ctx, &columns);
}

/* Lines of a strip to fetch at every step, so that the weights that come next are there when all tiles have passed. */
static int lines_ahead(int64_t n_tiles) {
    enum { LINES_PER_STEP = NMLP_PAD * NMLP_STRIP * 2 / NMLP_LINE_BYTES };
    return n_tiles == 1 ? 0 : (int)nmlp_ceil_div(LINES_PER_STEP, n_tiles); /* alone, a tile fetches for itself */
}

/* Sums kept from stage to stage, from the task's first tile on. */
static float *kept_sums(const struct shift *shift) {
    const nmlp_stage *s = shift->stage;
    return s->acc + shift->task.block * nmlp_stage_block_floats(s->gemm, s->rows) +
           shift->task.first_tile * TILE_FLOATS;
}

/* Where sums go: those of the gate wait for those of up. */
static void place_sums(const struct shift *shift, nmlp_panel *panel, int product) {
    const nmlp_stage *s = shift->stage;
    panel->kept = s->acc != NULL;
    if (s->accumulate) panel->earlier = kept_sums(shift);
    if (!s->sink) {
        panel->c = kept_sums(shift);
    } else if (product + 1 < s->n_products) {
        panel->c = shift->scratch->c;
    } else {
        panel->c = shift->scratch->tiles;
        panel->in_turn = true;
        panel->turn = shift->turn;
    }
}

static void place_results(const struct shift *shift, nmlp_panel *panel) {
    const nmlp_stage *s = shift->stage;
    nmlp_columns columns = {.col = shift->task.block * TILE, .row = shift->task.first_tile * TILE};
    s->describe(s->sink_ctx, &columns, panel);
    panel->first.sums[0] = shift->scratch->c;
    panel->first.row = columns.row;
    panel->first.col = columns.col;
    panel->first.rows = TILE;
}

static void multiply_product(struct shift *shift, int product) {
    const nmlp_stage *s = shift->stage;
    const nmlp_product *p = &s->product[product];
    int64_t n_tiles = shift->task.end_tile - shift->task.first_tile;
    int64_t n_steps = p->k / NMLP_PAD;
    nmlp_stage_next next = nmlp_stage_next_after(s, shift->task.block, product, 0);
    nmlp_panel panel = {
        .a = nmlp_tiles_at(&p->a, shift->task.first_tile, 0),
        .a_step = nmlp_tiles_step(&p->a),
        .a_tile_bytes = (size_t)p->a.k_padded * NMLP_LINE_BYTES,
        .b = nmlp_matrix_at(p->w, shift->task.block * s->gemm->strips, p->w_k),
        .b_step = p->w->strip_bytes,
        .k = p->k,
        .rows = nmlp_min(s->rows, shift->task.end_tile * TILE) - shift->task.first_tile * TILE,
        .backwards = (s->row / TILE + shift->task.first_tile) & 1,
        .stream = n_tiles == 1,
        .far_a = shift->first_task,
        .ahead = next.strips,
        .ahead_step = next.step,
        .ahead_lines = lines_ahead(n_tiles),
        .n_products = s->n_products,
        .rows_per_turn = nmlp_ceil_div(TILE, n_steps),
        .steps_between = n_steps * nmlp_ceil_div(TILE, n_steps) / TILE - 1,
        .finished = &shift->finished,
        .deliver = deliver,
        .ctx = shift,
    };
    bool finishes = s->sink && product + 1 == s->n_products;
    place_sums(shift, &panel, product);
    if (finishes) place_results(shift, &panel);
    s->gemm->panel(&panel);
    if (finishes) shift->turn = (shift->turn + (int)n_tiles) & 1;
}

void nmlp_stage_work_panels(const nmlp_stage *stage, nmlp_worker *worker, const nmlp_scratch *scratch) {
    nmlp_stage_tasks tasks = nmlp_stage_begin(stage, worker);
    struct shift shift = {.stage = stage, .scratch = scratch, .first_task = true};
    while (nmlp_stage_take(&tasks, worker, &shift.task)) {
        for (int i = 0; i < stage->n_products; i++) multiply_product(&shift, i);
        shift.first_task = false;
    }
    if (shift.finished.rows > 0) deliver(&shift, &shift.finished, shift.finished.rows);
}
