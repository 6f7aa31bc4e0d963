/* The product of a strip whose results are rows of y: its weights move, or they are stationary and results are turned
 * (nmlp_turn). */
#include "trainium/plan/strip_loops.h"

#include <stdio.h>

/* The rows of an output buffer that the loops point at. */
static nmlp_buf_ref rows_of(const nmlp_strip *b, int buffer, const nmlp_tile_loops *l) {
    nmlp_buf_ref out = nmlp_buf_parts(nmlp_buf_all(b->p, buffer), 0, l->rows);
    return nmlp_buf_at(nmlp_buf_at(out, 0, nmlp_at(l->st)), 1, nmlp_at(l->q));
}

/* Rows leave PSUM by ScalarE, since VectorE has the results of all other products; but the last ones by whoever is
 * quicker from start to readable result. */
static nmlp_nc_engine row_copier(const nmlp_strip *b, const nmlp_strip_stream *w) {
    const nmlp_machine *m = b->rq->machine;
    double n = (double)w->pack.columns, vector = m->vector_overhead_ns + n / m->vector_clock_ghz + m->vector_latency_ns,
           scalar = m->scalar_overhead_ns + n / m->scalar_clock_ghz + m->scalar_latency_ns;
    return w->resident && vector < scalar ? NMLP_ENGINE_VECTOR : NMLP_ENGINE_SCALAR;
}

/* Rows of y: the sum, times scales that it does not have yet, and with a residual what x adds. Sums over chunks start
 * from x, which is in `dst` already. */
static void take_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_rows_out out, const nmlp_tile_loops *l,
                      nmlp_affine column, nmlp_buf_ref acc, int chunk) {
    bool residual = b->rq->fuse.residual;
    nmlp_buf_ref dst = nmlp_buf_range(rows_of(b, out.buffer, l), 2, column, l->columns);
    nmlp_affine first = nmlp_affine_times(nmlp_strip_column_tile(l), w->pack.columns);
    if (b->rq->fp8 && !w->turned) {
        nmlp_buf_ref scaled = dst;
        if (residual) {
            nmlp_program_append_alloc(b->p, b->scaled);
            scaled = nmlp_buf_parts(nmlp_buf_all(b->p, b->scaled), 0, l->rows);
            scaled = nmlp_buf_range(scaled, 0, nmlp_affine_const(0), l->columns);
        }
        nmlp_program_append_tensor_tensor(b->p, scaled, acc, nmlp_strip_row_scale(b, w, first, l->columns, l->rows),
                                          NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
        if (!residual) return;
        acc = scaled;
    }
    if (!residual) {
        nmlp_strip_take_sum(b, dst, acc, chunk, row_copier(b, w));
        return;
    }
    if (out.all_x) column = first;
    nmlp_buf_ref x = chunk >= 0 ? dst : nmlp_buf_range(rows_of(b, out.residual, l), 2, column, l->columns);
    nmlp_program_append_tensor_tensor(b->p, dst, acc, x, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
}

/* acc[rows; columns]: the strip is stationary, the weights move. */
static void contract_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in, const nmlp_tile_loops *l,
                          nmlp_rows_out out, nmlp_affine out_column) {
    char name[NMLP_NAME_MAX];
    nmlp_program_append_alloc(b->p, b->acc);
    nmlp_buf_ref acc = nmlp_strip_accumulator(b, l->rows, l->columns);
    int k = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "k"), nmlp_strip_contraction_trips(in), false);
    nmlp_size parts = nmlp_strip_contraction_parts(in, k);
    nmlp_buf_ref rows = nmlp_buf_range(nmlp_strip_held_tile(b, in, nmlp_at(k), parts, l->st), 2,
                                       nmlp_affine_var(l->q, b->s_rows), l->rows);
    nmlp_program_append_matmul(b->p, acc, rows, nmlp_strip_weight_tile(b, w, l, 0, k, parts),
                               nmlp_accumulate_over(1, &k));
    nmlp_program_end(b->p);
    take_rows(b, w, out, l, out_column, acc, in.chunk);
}

/* Stores the output buffer, from column tile `tile` of the stream on; or, on the queue of x, loads these rows of x into
 * `buffer`. */
static void move_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_rows_out out, int buffer, nmlp_affine tile,
                      int queue) {
    nmlp_tile_loops l;
    bool load = queue == NMLP_X_QUEUE;
    int64_t width = out.tiles * w->pack.columns, limit = w->end * w->pack.columns;
    nmlp_affine s0 = nmlp_strip_begin_row_pieces(b, w, &l, load ? "rs" : "ss", load ? "rq" : "sq"),
                col = nmlp_affine_times(nmlp_affine_plus(tile, nmlp_affine_const(w->first)), w->pack.columns);
    bool even = limit <= w->pack.n && (w->end - w->first) % out.tiles == 0;
    if (limit > w->pack.n) limit = w->pack.n;
    nmlp_size n = even ? nmlp_size_const(width) : nmlp_size_until(width, limit, col, 1);
    nmlp_buf_ref rows = nmlp_buf_range(rows_of(b, buffer, &l), 2, nmlp_affine_const(0), n);
    if (load)
        nmlp_program_append_load(b->p, rows, nmlp_hbm_rect(b->x, s0, l.rows, col, n), queue);
    else
        nmlp_program_append_store(b->p, nmlp_hbm_rect(b->y, s0, l.rows, col, n), rows, queue);
    nmlp_strip_end_loops(b, 2);
}

void nmlp_strip_load_held(nmlp_strip *b, const nmlp_strip_stream *w) {
    if (!w->resident) return;
    char text[2 * NMLP_NAME_MAX];
    snprintf(text, sizeof text, "%s has room of its own and comes in blocks that shrink", w->weight);
    nmlp_program_add_comment(b->p, text);
    int64_t origin = w->origin * w->pack.chunk_tiles, from = origin;
    for (int i = 0; i < w->taper.n; i++) {
        nmlp_strip_load_tile_rows(b, w, nmlp_affine_const(from * w->pack.columns), from - origin,
                                  w->taper.end[i] - from);
        from = w->taper.end[i];
    }
}

static void load_tail(nmlp_strip *b, const nmlp_strip_stream *tail) {
    int64_t run = nmlp_pack_tile_run(&tail->pack), k_tiles = tail->pack.chunk_tiles;
    nmlp_size rows = nmlp_size_const(nmlp_pack_rows(&tail->pack)), elems = nmlp_size_const(run);
    int t = nmlp_program_begin_loop(b->p, "tail_t", nmlp_size_const(tail->end - tail->first), false);
    nmlp_affine at = nmlp_affine_plus(nmlp_affine_const(tail->first * run), nmlp_affine_var(t, run));
    nmlp_buf_ref dst = nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, tail->ring), 0, rows), 0,
                                      nmlp_affine_var(t, k_tiles), nmlp_size_const(k_tiles));
    nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(tail->tensor, nmlp_affine_const(0), rows, at, elems),
                             NMLP_WEIGHT_QUEUE);
    nmlp_program_end(b->p);
}

/* What stationary weights leave of a column tile, until it is turned. */
static nmlp_buf_ref turned_tile(const nmlp_strip *b, const nmlp_tile_loops *l) {
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(b->p, b->turned), 0, l->columns);
    return nmlp_buf_range(nmlp_buf_at(t, 0, nmlp_strip_column_tile(l)), 1, nmlp_affine_const(0), l->rows);
}

/* Some column tiles of a part of the last product: number `loop` of those of out.tiles, or all where it is -1. */
typedef struct tile_group {
    nmlp_strip_stream w;
    nmlp_rows_out out;
    int loop;
    int queue; /* of their store */
} tile_group;

static tile_group group_of(const nmlp_last_product *last, int part, int64_t first, int64_t end, int loop) {
    tile_group g = {.w = last->part[part], .out = last->out[part], .loop = loop};
    g.queue = part > 0 && part + 1 == last->n_parts ? NMLP_LAST_QUEUE : NMLP_STORE_QUEUE;
    g.w.first = first;
    g.w.end = end;
    if (loop < 0) g.out.tiles = end - first;
    return g;
}

/* `tail`: what to load behind the block; NULL: nothing. */
static void contract_group(nmlp_strip *b, const tile_group *g, nmlp_strip_operand in, const nmlp_strip_stream *tail) {
    nmlp_strip_operand group = {.chunk = g->loop, .tiles = g->out.tiles};
    nmlp_tile_loops l;
    nmlp_strip_begin_blocks(b, &g->w, in, group, &l);
    if (tail) load_tail(b, tail);
    nmlp_strip_begin_tiles(b, &g->w, &l);
    nmlp_strip_begin_rows(b, &g->w, &l);
    nmlp_buf_ref acc = nmlp_strip_contract(b, &g->w, in, &l, 0), to = turned_tile(b, &l);
    if (b->rq->fp8)
        nmlp_program_append_tensor_scalar(b->p, to, acc,
                                          nmlp_strip_stood_scale(b, nmlp_strip_column_tile(&l), l.columns),
                                          NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
    else
        nmlp_program_append_copy(b->p, to, acc, NMLP_ENGINE_VECTOR);
    nmlp_strip_end_loops(b, 3);
}

/* Rows of y from column tiles that lie transposed. */
static void turn_group(nmlp_strip *b, const tile_group *g) {
    char name[NMLP_NAME_MAX];
    nmlp_strip_stream w = g->w;
    int64_t n_tiles = w.end - w.first, held = g->out.tiles;
    nmlp_affine first = g->loop < 0 ? nmlp_affine_const(0) : nmlp_affine_var(g->loop, held);
    nmlp_tile_loops l = {.first = nmlp_affine_plus(first, nmlp_affine_const(w.first))};
    l.tiles = n_tiles % held == 0 ? nmlp_size_const(held) : nmlp_size_until(held, n_tiles, first, 1);
    w.name = nmlp_strip_label(name, &g->w, "turn");
    nmlp_program_append_alloc(b->p, g->out.buffer);
    nmlp_strip_begin_tiles(b, &w, &l);
    nmlp_strip_begin_row_pieces(b, &w, &l, "s", "q");
    nmlp_program_append_alloc(b->p, b->turn);
    nmlp_buf_ref rows = nmlp_buf_parts(nmlp_buf_all(b->p, b->turn), 0, l.rows);
    rows = nmlp_buf_range(rows, 0, nmlp_affine_const(0), l.columns);
    nmlp_program_append_transpose(b->p, rows, turned_tile(b, &l), NMLP_ENGINE_TENSOR);
    take_rows(b, &w, g->out, &l, nmlp_affine_var(l.n, w.pack.columns), rows, -1);
    nmlp_strip_end_loops(b, 3);
    move_rows(b, &g->w, g->out, g->out.buffer, first, g->queue);
}

/* `tail`: what to load behind the block of `w`; NULL: nothing. */
static void project_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in, nmlp_rows_out out,
                         const nmlp_strip_stream *tail, int queue) {
    char name[NMLP_NAME_MAX];
    nmlp_tile_loops l;
    bool whole = in.chunk >= 0;
    nmlp_strip_operand group = {.chunk = -1};
    if (!whole) {
        int64_t groups = nmlp_ceil_div(w->end - w->first, out.tiles);
        group.tiles = out.tiles;
        group.chunk = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "g"), nmlp_size_const(groups), false);
        nmlp_program_append_alloc(b->p, out.buffer);
        if (out.residual >= 0 && !out.all_x) {
            nmlp_program_append_alloc(b->p, out.residual);
            move_rows(b, w, out, out.residual, nmlp_affine_var(group.chunk, out.tiles), NMLP_X_QUEUE);
        }
    }
    nmlp_strip_begin_blocks(b, w, in, group, &l);
    if (tail) load_tail(b, tail);
    nmlp_strip_begin_tiles(b, w, &l);
    nmlp_strip_begin_row_pieces(b, w, &l, "s", "q");
    nmlp_affine tile = nmlp_affine_plus(nmlp_affine_var(l.block, w->block), nmlp_at(l.n));
    contract_rows(b, w, in, &l, out, nmlp_affine_times(tile, w->pack.columns));
    nmlp_strip_end_loops(b, 4);
    if (whole) return;
    move_rows(b, w, out, out.buffer, nmlp_affine_var(group.chunk, out.tiles), queue);
    nmlp_program_end(b->p);
}

/* A part whose weights are stationary, group by group. The tensor engine takes its instructions in order and would
 * wait until a group has left PSUM, so that one is turned after the products of the next: `late` is what the part
 * before has left to turn, and then what this one leaves. */
static void project_turned(nmlp_strip *b, const nmlp_last_product *last, int part, nmlp_strip_operand in,
                           const nmlp_strip_stream *tail, tile_group *late) {
    char name[NMLP_NAME_MAX];
    const nmlp_strip_stream *w = &last->part[part];
    int64_t each = last->out[part].tiles, groups = nmlp_ceil_div(w->end - w->first, each);
    tile_group first = group_of(last, part, w->first, nmlp_min(w->first + each, w->end), -1);
    contract_group(b, &first, in, tail);
    if (late->out.tiles > 0) turn_group(b, late);
    if (groups > 1) {
        int loop = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "g"), nmlp_size_const(groups - 1), false);
        tile_group next = group_of(last, part, w->first + each, w->end, loop),
                   before = group_of(last, part, w->first, w->first + (groups - 1) * each, loop);
        contract_group(b, &next, in, NULL);
        turn_group(b, &before);
        nmlp_program_end(b->p);
    }
    *late = group_of(last, part, w->first + (groups - 1) * each, w->end, -1);
}

void nmlp_strip_project_rows(nmlp_strip *b, const nmlp_last_product *last, nmlp_strip_operand in) {
    tile_group late = {0};
    if (last->out[0].all_x) {
        tile_group all = group_of(last, 0, 0, last->part[last->n_parts - 1].end, -1);
        nmlp_program_append_alloc(b->p, all.out.residual);
        move_rows(b, &all.w, all.out, all.out.residual, nmlp_affine_const(0), NMLP_X_QUEUE);
    }
    for (int i = 0; i < last->n_parts; i++) {
        const nmlp_strip_stream *next = i + 1 < last->n_parts ? &last->part[i + 1] : NULL;
        bool comes_now = next && next->resident && !last->part[i].resident;
        int queue = i > 0 && !next ? NMLP_LAST_QUEUE : NMLP_STORE_QUEUE;
        if (last->part[i].turned) {
            project_turned(b, last, i, in, comes_now ? next : NULL, &late);
            continue;
        }
        if (late.out.tiles > 0) turn_group(b, &late);
        late.out.tiles = 0;
        project_rows(b, &last->part[i], in, last->out[i], comes_now ? next : NULL, queue);
    }
    if (late.out.tiles > 0) turn_group(b, &late);
}

void nmlp_strip_store(nmlp_strip *b, const nmlp_last_product *last) {
    move_rows(b, &last->part[0], last->out[0], last->out[0].buffer, nmlp_affine_const(0), NMLP_STORE_QUEUE);
}

void nmlp_strip_load_residual(nmlp_strip *b, const nmlp_last_product *last) {
    if (b->rq->fuse.residual)
        move_rows(b, &last->part[0], last->out[0], last->out[0].buffer, nmlp_affine_const(0), NMLP_X_QUEUE);
}
