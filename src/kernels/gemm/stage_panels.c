/* A stage in panels: a block of columns at a time, whose tiles of rows are stored one after the other while the next
 * ones are multiplied, in small buffers that stay in L1. */
#include "kernels/gemm/stage_internal.h"

enum { TILE = NMLP_GEMM_PANEL_TILE, TILE_FLOATS = NMLP_GEMM_PANEL_TILE_FLOATS };

/* One thread's work on a stage. */
struct panel_pass {
    const nmlp_gemm_stage *stage;
    const nmlp_gemm_scratch *scratch;
    int buffer;      /* of the two tiles that sums go to */
    bool first_task; /* the rows may have left L2 */
    nmlp_gemm_stage_part task;
    nmlp_gemm_finished_tile finished; /* the last tile made, if it is yet to be stored */
};

/* The next n rows of a tile. */
static void store_rows(void *ctx, const nmlp_gemm_finished_tile *tile, int64_t n) {
    const struct panel_pass *pass = ctx;
    nmlp_gemm_columns columns = {.c = {(float *)tile->sums[0], (float *)tile->sums[1]},
                                 .col = tile->col,
                                 .row = tile->row,
                                 .n_rows = n,
                                 .width = TILE,
                                 .stride = TILE};
    pass->stage->epilogue(pass->stage->epilogue_ctx, &columns);
}

/* Lines of a strip to fetch at every step, so that the weights that come next are there when all tiles have passed. */
static int lines_ahead(const nmlp_gemm_weight *w, int64_t step_inputs, int64_t n_tiles) {
    int64_t lines_per_step = (int64_t)nmlp_gemm_weight_bytes(w, step_inputs) / NMLP_LINE_BYTES;
    return n_tiles == 1 ? 0 : (int)nmlp_ceil_div(lines_per_step, n_tiles); /* alone, a tile fetches for itself */
}

/* Sums kept from stage to stage, from the task's first tile on. */
static float *kept_sums(const struct panel_pass *pass) {
    const nmlp_gemm_stage *s = pass->stage;
    return s->acc + pass->task.block * nmlp_gemm_stage_block_floats(s->gemm, s->rows) +
           pass->task.first_tile * TILE_FLOATS;
}

/* Where sums go: those of the gate wait for those of up. */
static void place_sums(const struct panel_pass *pass, nmlp_gemm_panel *panel, int product) {
    const nmlp_gemm_stage *s = pass->stage;
    panel->kept = s->acc != NULL;
    if (s->accumulate) panel->earlier = kept_sums(pass);
    if (!s->epilogue) {
        panel->c = kept_sums(pass);
    } else if (product + 1 < s->n_products) {
        panel->c = pass->scratch->c;
    } else {
        panel->c = pass->scratch->tiles;
        panel->double_buffered = true;
        panel->buffer = pass->buffer;
    }
}

static void place_results(const struct panel_pass *pass, nmlp_gemm_panel *panel) {
    const nmlp_gemm_stage *s = pass->stage;
    nmlp_gemm_columns columns = {.col = pass->task.block * TILE, .row = pass->task.first_tile * TILE};
    s->describe(s->epilogue_ctx, &columns, panel);
    panel->first.sums[0] = pass->scratch->c;
    panel->first.row = columns.row;
    panel->first.col = columns.col;
    panel->first.rows = TILE;
}

static void multiply_product(struct panel_pass *pass, int product) {
    const nmlp_gemm_stage *s = pass->stage;
    const nmlp_gemm_product *p = &s->product[product];
    int64_t n_tiles = pass->task.end_tile - pass->task.first_tile;
    bool int8 = p->a.elem_bytes == 1;
    int64_t step_inputs = int8 ? NMLP_GEMM_INT8_PAD : NMLP_PAD;
    int64_t n_steps = p->k / step_inputs;
    nmlp_gemm_stage_next next = nmlp_gemm_stage_next_after(s, &pass->task, product, 0);
    nmlp_gemm_panel panel = {
        .a = nmlp_gemm_tiles_at(&p->a, pass->task.first_tile, 0),
        .a_step = nmlp_gemm_tiles_step(&p->a),
        .a_tile_bytes = (size_t)(p->a.k_padded / step_inputs) * nmlp_gemm_tiles_step(&p->a),
        .b = nmlp_gemm_weight_at(p->w, pass->task.block * s->gemm->strips, p->w_k),
        .b_step = p->w->strip_bytes,
        .k = p->k,
        .rows = nmlp_min(s->rows, pass->task.end_tile * TILE) - pass->task.first_tile * TILE,
        .backwards = (s->row / TILE + pass->task.first_tile) & 1,
        .stream = n_tiles == 1,
        .far_a = pass->first_task,
        .ahead = next.strips,
        .ahead_step = next.step,
        .ahead_lines = lines_ahead(p->w, step_inputs, n_tiles),
        .n_products = s->n_products,
        .rows_per_store = nmlp_ceil_div(TILE, n_steps),
        .steps_between = n_steps * nmlp_ceil_div(TILE, n_steps) / TILE - 1,
        .finished = &pass->finished,
        .store_rows = store_rows,
        .ctx = pass,
    };
    int64_t strip = pass->task.block * s->gemm->strips;
    if (int8) {
        panel.scales = p->w->scales + strip * NMLP_STRIP;
        panel.row_scales = p->a.scales + pass->task.first_tile * TILE;
    } else if (nmlp_dtype_is_quantised(p->w->dtype)) {
        panel.b_step = nmlp_gemm_stage_unpack(s->gemm, p, strip, s->gemm->strips, 0, p->k, pass->scratch->b);
        panel.b = (const char *)pass->scratch->b;
        panel.stream = false;
    }
    if (!int8 && p->w->scales && s->epilogue) panel.scales = p->w->scales + strip * NMLP_STRIP;
    bool finishes = s->epilogue && product + 1 == s->n_products;
    place_sums(pass, &panel, product);
    if (finishes) place_results(pass, &panel);
    s->gemm->panel(&panel);
    if (finishes) pass->buffer = (pass->buffer + (int)n_tiles) & 1;
}

void nmlp_gemm_stage_work_panels(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker,
                                 const nmlp_gemm_scratch *scratch) {
    nmlp_gemm_stage_tasks tasks = nmlp_gemm_stage_begin(stage, worker);
    struct panel_pass pass = {.stage = stage, .scratch = scratch, .first_task = true};
    while (nmlp_gemm_stage_take(&tasks, worker, &pass.task)) {
        for (int i = 0; i < stage->n_products; i++) multiply_product(&pass, i);
        pass.first_task = false;
    }
    if (pass.finished.rows > 0) store_rows(&pass, &pass.finished, pass.finished.rows);
}
