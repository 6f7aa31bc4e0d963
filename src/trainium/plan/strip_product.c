/* Products of a strip whose results lie transposed; loops and operands of all products. */
#include "trainium/plan/strip_loops.h"

#include <stdio.h>

const char *nmlp_strip_label(char out[NMLP_NAME_MAX], const nmlp_strip_stream *w, const char *suffix) {
    snprintf(out, NMLP_NAME_MAX, "%s_%s", w->name, suffix);
    return out;
}

/* Column tiles of the stream before the current block: of earlier chunks of the result, and of earlier blocks. */
static nmlp_affine block_start(const nmlp_strip_stream *w, nmlp_strip_operand out, int block) {
    nmlp_affine at = nmlp_affine_var(block, w->block);
    return out.chunk < 0 ? at : nmlp_affine_plus(at, nmlp_affine_var(out.chunk, out.tiles));
}

/* The next run of weights into the next copy of the ring. */
static void load_weights(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine at, nmlp_size elems) {
    nmlp_size rows = nmlp_size_const(nmlp_pack_rows(&w->pack));
    nmlp_program_append_alloc(b->p, w->ring);
    nmlp_buf_ref dst =
        nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, w->ring), 0, rows), 0, nmlp_affine_const(0), elems);
    nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(w->tensor, nmlp_affine_const(0), rows, at, elems),
                             NMLP_WEIGHT_QUEUE);
}

/* The same for one plane that has a tensor of its own: `elems` from element `at` on, to element `to` of the buffer. */
static void load_apart(nmlp_strip *b, const nmlp_strip_stream *w, int plane, nmlp_affine at, nmlp_size elems,
                       int64_t to) {
    nmlp_size rows = nmlp_size_const(nmlp_pack_rows(&w->plane_pack[plane]));
    nmlp_buf_ref dst =
        nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, w->ring), 0, rows), 0, nmlp_affine_const(to), elems);
    nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(w->plane_tensor[plane], nmlp_affine_const(0), rows, at, elems),
                             NMLP_WEIGHT_QUEUE);
}

void nmlp_strip_load_tile_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine at, int64_t row, int64_t n) {
    nmlp_size rows = nmlp_size_const(nmlp_pack_rows(&w->pack));
    nmlp_buf_ref dst = nmlp_buf_parts(nmlp_buf_all(b->p, w->ring), 0, rows);
    nmlp_program_append_load(
        b->p, nmlp_buf_range(dst, 0, nmlp_affine_const(row), nmlp_size_const(n)),
        nmlp_hbm_rect(w->tensor, nmlp_affine_const(0), rows, at, nmlp_size_const(n * w->pack.columns)),
        NMLP_WEIGHT_QUEUE);
}

/* The next column tile, piece by piece: its product begins with the first. */
static void load_pieces(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine at) {
    int64_t k_tiles = w->pack.chunk_tiles, each = nmlp_ceil_div(k_tiles, w->pieces);
    nmlp_program_append_alloc(b->p, w->ring);
    for (int64_t k = 0; k < k_tiles; k += each)
        nmlp_strip_load_tile_rows(b, w, nmlp_affine_plus(at, nmlp_affine_const(k * w->pack.columns)), k,
                                  k + each < k_tiles ? each : k_tiles - k);
}

/* A block of column tiles of both planes; `inside`: where the block begins in what ends at `limit`, NULL: all blocks
 * are full. */
static void load_blocks_apart(nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l,
                              const nmlp_affine *inside, int64_t limit) {
    nmlp_program_append_alloc(b->p, w->ring);
    for (int plane = 0; plane < 2; plane++) {
        int64_t run = nmlp_pack_plane_run(&w->pack, plane), to = w->block * nmlp_pack_plane_start(&w->pack, plane);
        nmlp_size elems = inside ? nmlp_size_until(w->block * run, limit * run, nmlp_affine_times(*inside, run), 1)
                                 : nmlp_size_const(w->block * run);
        load_apart(b, w, plane, nmlp_affine_times(l->first, run), elems, to);
    }
}

void nmlp_strip_begin_blocks(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in, nmlp_strip_operand out,
                             nmlp_tile_loops *l) {
    char name[NMLP_NAME_MAX];
    int64_t n_tiles = w->end - w->first, run = nmlp_pack_tile_run(&w->pack), held = out.chunk < 0 ? n_tiles : out.tiles;
    nmlp_size blocks = nmlp_size_const(nmlp_ceil_div(held, w->block));
    if (n_tiles % held != 0) blocks = nmlp_size_until(blocks.full, n_tiles, nmlp_affine_var(out.chunk, held), w->block);
    l->block = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "b"), blocks, false);
    nmlp_affine first = block_start(w, out, l->block), at = nmlp_affine_times(first, run);
    /* The last block is cut where what is held ends, or, with a shorter last chunk, where the columns end. */
    bool whole = n_tiles % held == 0, even = whole && held % w->block == 0;
    nmlp_affine inside = whole ? nmlp_affine_var(l->block, w->block) : first;
    int64_t limit = whole ? held : n_tiles;
    nmlp_size tiles = even ? nmlp_size_const(w->block) : nmlp_size_until(w->block, limit, inside, 1);
    nmlp_size elems = even ? nmlp_size_const(w->block * run)
                           : nmlp_size_until(w->block * run, limit * run, nmlp_affine_times(inside, run), 1);
    first = nmlp_affine_plus(first, nmlp_affine_const(w->first));
    at = nmlp_affine_plus(at, nmlp_affine_const(w->first * run));
    if (in.chunk >= 0) at = nmlp_affine_plus(at, nmlp_affine_var(in.chunk, nmlp_pack_n_tiles(&w->pack) * run));
    l->at = at;
    l->tiles = tiles;
    l->first = first;
    if (w->pieces > 1)
        load_pieces(b, w, at);
    else if (w->apart && !w->split)
        load_blocks_apart(b, w, l, even ? NULL : &inside, limit);
    else if (!w->split && !w->resident)
        load_weights(b, w, at, elems);
}

void nmlp_strip_begin_tiles(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l) {
    char name[NMLP_NAME_MAX];
    l->n = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "n"), l->tiles, false);
    nmlp_affine column = nmlp_affine_times(nmlp_affine_plus(l->first, nmlp_at(l->n)), w->pack.columns);
    l->columns = w->pack.n % w->pack.columns == 0 ? nmlp_size_const(w->pack.columns)
                                                  : nmlp_size_until(w->pack.columns, w->pack.n, column, 1);
}

static void begin_columns(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in, nmlp_strip_operand out,
                          nmlp_tile_loops *l) {
    nmlp_strip_begin_blocks(b, w, in, out, l);
    nmlp_strip_begin_tiles(b, w, l);
}

int nmlp_strip_begin_rows(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l) {
    char name[NMLP_NAME_MAX];
    l->st = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, "s"), nmlp_axis_trips(b->s, b->strip), false);
    l->rows = nmlp_axis_tile_size(b->s, b->strip, l->st);
    return l->st;
}

nmlp_affine nmlp_strip_begin_row_pieces(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_tile_loops *l, const char *st,
                                        const char *q) {
    char name[NMLP_NAME_MAX];
    l->st = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, st), nmlp_axis_trips(b->s, b->strip), false);
    nmlp_affine s0 = nmlp_axis_start(b->s, b->strip, l->st);
    int64_t pieces = nmlp_ceil_div(b->s.tile, b->s_rows);
    nmlp_size trips =
        b->s.n % b->s.tile == 0 ? nmlp_size_const(pieces) : nmlp_size_until(pieces, b->s.n, s0, b->s_rows);
    l->q = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, q), trips, false);
    s0 = nmlp_affine_plus(s0, nmlp_affine_var(l->q, b->s_rows));
    l->rows = b->s.n % b->s_rows == 0 && b->s.n % b->s.tile == 0 ? nmlp_size_const(b->s_rows)
                                                                 : nmlp_size_until(b->s_rows, b->s.n, s0, 1);
    return s0;
}

nmlp_size nmlp_strip_contraction_trips(nmlp_strip_operand in) {
    int64_t tiles = nmlp_ceil_div(in.features, in.part);
    if (in.chunk < 0) return nmlp_size_const(tiles);
    if (tiles % in.tiles == 0) return nmlp_size_const(in.tiles);
    return nmlp_size_until(in.tiles, tiles, nmlp_affine_var(in.chunk, in.tiles), 1);
}

nmlp_size nmlp_strip_contraction_parts(nmlp_strip_operand in, int k) {
    if (in.features % in.part == 0) return nmlp_size_const(in.part);
    nmlp_affine at = nmlp_affine_var(k, in.part);
    if (in.chunk >= 0) at = nmlp_affine_plus(at, nmlp_affine_var(in.chunk, in.tiles * in.part));
    return nmlp_size_until(in.part, in.features, at, 1);
}

/* Tile k of the contraction in the weight block: plane, then k, then columns. */
nmlp_buf_ref nmlp_strip_weight_tile(const nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l,
                                    int plane, int k, nmlp_size parts) {
    int64_t columns = w->pack.columns;
    nmlp_buf_ref ring = nmlp_buf_parts(nmlp_buf_all(b->p, w->ring), 0, parts);
    if (w->resident || w->pieces > 1) {
        nmlp_affine tile = nmlp_at(l->n);
        if (w->resident) tile = nmlp_affine_plus(nmlp_affine_plus(l->first, tile), nmlp_affine_const(-w->origin));
        nmlp_affine row = nmlp_affine_plus(nmlp_affine_times(tile, w->pack.chunk_tiles), nmlp_at(k));
        return nmlp_buf_range(nmlp_buf_at(ring, 0, row), 1, nmlp_affine_const(0), l->columns);
    }
    nmlp_affine at = nmlp_affine_var(l->n, nmlp_pack_tile_run(&w->pack));
    at = nmlp_affine_plus(at, nmlp_affine_var(k, columns));
    if (w->apart && !w->split) {
        at = nmlp_affine_var(l->n, nmlp_pack_plane_run(&w->pack, plane));
        at = nmlp_affine_plus(at, nmlp_affine_var(k, columns));
        at = nmlp_affine_plus(at, nmlp_affine_const(w->block * nmlp_pack_plane_start(&w->pack, plane)));
    } else if (w->split)
        at = nmlp_affine_var(k, columns);
    else
        at = nmlp_affine_plus(at, nmlp_affine_const(nmlp_pack_plane_start(&w->pack, plane)));
    return nmlp_buf_range(ring, 0, at, l->columns);
}

nmlp_buf_ref nmlp_strip_held_tile(const nmlp_strip *b, nmlp_strip_operand a, nmlp_affine tile, nmlp_size parts,
                                  int st) {
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_const(a.first), tile);
    if (a.kept) index = nmlp_affine_plus(index, nmlp_affine_var(a.chunk, a.tiles));
    return nmlp_buf_at(nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(b->p, a.buffer), 0, parts), 0, index), 1, nmlp_at(st));
}

nmlp_buf_ref nmlp_strip_accumulator(const nmlp_strip *b, nmlp_size parts, nmlp_size columns) {
    return nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, b->acc), 0, parts), 0, nmlp_affine_const(0), columns);
}

nmlp_buf_ref nmlp_strip_contract(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in,
                                 const nmlp_tile_loops *l, int plane) {
    char name[NMLP_NAME_MAX];
    nmlp_program_append_alloc(b->p, b->acc);
    nmlp_buf_ref acc = nmlp_strip_accumulator(b, l->columns, l->rows);
    int k = nmlp_program_begin_loop(b->p, nmlp_strip_label(name, w, plane ? "k2" : "k"),
                                    nmlp_strip_contraction_trips(in), false);
    nmlp_size parts = nmlp_strip_contraction_parts(in, k);
    nmlp_buf_ref moving =
        nmlp_buf_range(nmlp_strip_held_tile(b, in, nmlp_at(k), parts, l->st), 2, nmlp_affine_const(0), l->rows);
    nmlp_program_append_matmul(b->p, acc, nmlp_strip_weight_tile(b, w, l, plane, k, parts), moving,
                               nmlp_accumulate_over(1, &k));
    nmlp_program_end(b->p);
    return acc;
}

/* The tile of a held result that the loops point at. */
static nmlp_buf_ref result_tile(const nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand out,
                                const nmlp_tile_loops *l) {
    nmlp_affine tile = nmlp_affine_plus(nmlp_affine_var(l->block, w->block), nmlp_at(l->n));
    tile = nmlp_affine_plus(tile, nmlp_affine_const(w->first));
    return nmlp_buf_range(nmlp_strip_held_tile(b, out, tile, l->columns, l->st), 2, nmlp_affine_const(0), l->rows);
}

void nmlp_strip_end_loops(nmlp_strip *b, int n) {
    for (int i = 0; i < n; i++) nmlp_program_end(b->p);
}

nmlp_affine nmlp_strip_column_tile(const nmlp_tile_loops *l) { return nmlp_affine_plus(l->first, nmlp_at(l->n)); }

/* dst = acc times the scales of its outputs, which lie on partitions. */
static void take_scaled(nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l, int plane,
                        nmlp_buf_ref dst, nmlp_buf_ref acc) {
    nmlp_program_append_tensor_scalar(b->p, dst, acc,
                                      nmlp_strip_scale(b, w, plane, nmlp_strip_column_tile(l), l->columns),
                                      NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
}

void nmlp_strip_take_sum(nmlp_strip *b, nmlp_buf_ref dst, nmlp_buf_ref acc, int chunk, nmlp_nc_engine copier) {
    if (chunk >= 0) nmlp_program_begin_if(b->p, NMLP_WHEN_FIRST, chunk);
    if (copier == NMLP_ENGINE_SCALAR && b->rq->machine->scalar_tensor_copy <= 0) /* loads a function table */
        nmlp_program_append_activation(b->p, dst, acc, NMLP_FUNC_COPY, 1.0);
    else
        nmlp_program_append_copy(b->p, dst, acc, copier);
    if (chunk < 0) return;
    nmlp_program_end(b->p);
    nmlp_program_begin_if(b->p, NMLP_WHEN_LATER, chunk);
    nmlp_program_append_tensor_tensor(b->p, dst, acc, dst, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(b->p);
}

/* Where plane `plane` of the current column tile begins in the packed tensor. */
static nmlp_affine plane_start(const nmlp_strip_stream *w, const nmlp_tile_loops *l, int plane) {
    nmlp_affine at = nmlp_affine_plus(l->at, nmlp_affine_var(l->n, nmlp_pack_tile_run(&w->pack)));
    return nmlp_affine_plus(at, nmlp_affine_const(nmlp_pack_plane_start(&w->pack, plane)));
}

static void load_plane(nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l, int plane) {
    if (w->apart) {
        int64_t run = nmlp_pack_plane_run(&w->pack, plane);
        nmlp_affine tile = nmlp_affine_plus(l->first, nmlp_at(l->n));
        nmlp_program_append_alloc(b->p, w->ring);
        load_apart(b, w, plane, nmlp_affine_times(tile, run), nmlp_size_const(run), 0);
        return;
    }
    load_weights(b, w, plane_start(w, l, plane), nmlp_size_const(nmlp_pack_plane_run(&w->pack, plane)));
}

void nmlp_strip_project(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in,
                        const nmlp_strip_operand *out) {
    nmlp_tile_loops l;
    if (w->first == w->end) return;
    begin_columns(b, w, in, out[0], &l);
    for (int plane = 0; plane < w->pack.planes; plane++) {
        if (w->split) load_plane(b, w, &l, plane);
        nmlp_strip_begin_rows(b, w, &l);
        nmlp_buf_ref acc = nmlp_strip_contract(b, w, in, &l, plane);
        if (w->scaled)
            nmlp_program_append_tensor_tensor(b->p, result_tile(b, w, out[plane], &l), acc,
                                              nmlp_strip_root(b, l.st, l.columns, l.rows), NMLP_ALU_MUL,
                                              NMLP_ENGINE_VECTOR);
        else if (b->rq->fp8)
            take_scaled(b, w, &l, plane, result_tile(b, w, out[plane], &l), acc);
        else
            nmlp_strip_take_sum(b, result_tile(b, w, out[plane], &l), acc, in.chunk, NMLP_ENGINE_VECTOR);
        nmlp_program_end(b->p);
    }
    nmlp_affine tile = nmlp_affine_plus(nmlp_affine_var(l.block, w->block), nmlp_at(l.n));
    if (w->brings_x) nmlp_strip_load_ahead(b, in, tile, w->end - w->first);
    nmlp_strip_end_loops(b, 2);
}

static int silu_buffer(nmlp_strip *b, int64_t row_tiles) {
    nmlp_buffer tmp = {.name = "silu",
                       .space = NMLP_SPACE_SBUF,
                       .dtype = NMLP_NC_FP32,
                       .partitions = (int)b->parts,
                       .n_dims = 2,
                       .dims = {row_tiles, b->s.tile},
                       .copies = 2};
    return nmlp_program_add_buffer(b->p, &tmp);
}

static nmlp_buf_ref silu_tile(const nmlp_strip *b, int silu, const nmlp_tile_loops *l, bool split) {
    nmlp_buf_ref s = nmlp_buf_parts(nmlp_buf_all(b->p, silu), 0, l->columns);
    s = nmlp_buf_at(s, 0, split ? nmlp_at(l->st) : nmlp_affine_const(0));
    return nmlp_buf_range(s, 1, nmlp_affine_const(0), l->rows);
}

static void take_gate(nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l, nmlp_buf_ref silu,
                      nmlp_buf_ref gate) {
    if (b->rq->fp8)
        nmlp_program_append_scaled(b->p, silu, gate, NMLP_FUNC_SILU,
                                   nmlp_strip_scale(b, w, 0, nmlp_strip_column_tile(l), l->columns));
    else
        nmlp_program_append_activation(b->p, silu, gate, NMLP_FUNC_SILU, 1.0);
}

static void take_up(nmlp_strip *b, const nmlp_strip_stream *w, const nmlp_tile_loops *l, nmlp_buf_ref dst,
                    nmlp_buf_ref up, nmlp_buf_ref silu) {
    nmlp_program_append_tensor_tensor(b->p, b->rq->fp8 ? silu : dst, up, silu, NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
    if (b->rq->fp8) take_scaled(b, w, l, 1, dst, silu);
}

/* One plane after the other, each with its own weights: gate for all rows of the strip, then up. */
static void gate_split(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand a, nmlp_strip_operand c,
                       nmlp_strip_operand out) {
    nmlp_tile_loops l;
    int silu = silu_buffer(b, nmlp_axis_tiles_per_block(b->s));
    begin_columns(b, w, a, out, &l);
    nmlp_program_append_alloc(b->p, silu);
    load_plane(b, w, &l, 0);
    nmlp_strip_begin_rows(b, w, &l);
    nmlp_buf_ref gate = nmlp_strip_contract(b, w, a, &l, 0);
    take_gate(b, w, &l, silu_tile(b, silu, &l, true), gate);
    nmlp_program_end(b->p);
    load_plane(b, w, &l, 1);
    nmlp_strip_begin_rows(b, w, &l);
    nmlp_buf_ref up = nmlp_strip_contract(b, w, c, &l, 1);
    take_up(b, w, &l, result_tile(b, w, out, &l), up, silu_tile(b, silu, &l, true));
    nmlp_strip_end_loops(b, 3);
}

void nmlp_strip_gate(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand a, nmlp_strip_operand c,
                     nmlp_strip_operand out) {
    nmlp_tile_loops l;
    if (w->split) {
        gate_split(b, w, a, c, out);
        return;
    }
    int silu = silu_buffer(b, 1);
    begin_columns(b, w, a, out, &l);
    nmlp_strip_begin_rows(b, w, &l);
    nmlp_buf_ref gate = nmlp_strip_contract(b, w, a, &l, 0);
    nmlp_program_append_alloc(b->p, silu);
    take_gate(b, w, &l, silu_tile(b, silu, &l, false), gate);
    nmlp_buf_ref up = nmlp_strip_contract(b, w, c, &l, 1);
    take_up(b, w, &l, result_tile(b, w, out, &l), up, silu_tile(b, silu, &l, false));
    nmlp_strip_end_loops(b, 3);
}
