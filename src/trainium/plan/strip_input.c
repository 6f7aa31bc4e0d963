/* Bringing a strip of x on chip, features on partitions. */
#include "trainium/plan/strip.h"

/* Tile of features in which chunk h.chunk begins. */
static nmlp_affine chunk_start(nmlp_strip_operand h) {
    return h.chunk < 0 ? nmlp_affine_const(0) : nmlp_affine_var(h.chunk, h.tiles);
}

static nmlp_size chunk_tiles(const nmlp_strip *b, nmlp_strip_operand h) {
    int64_t tiles = nmlp_ceil_div(h.features, b->parts);
    if (h.chunk < 0) return nmlp_size_const(tiles);
    if (tiles % h.tiles == 0) return nmlp_size_const(h.tiles);
    return nmlp_size_until(h.tiles, tiles, nmlp_affine_var(h.chunk, h.tiles), 1);
}

/* One DMA per tile of features: as it is (xT given) or transposed on the way. */
static void load_by_dma(nmlp_strip *b, nmlp_strip_operand h) {
    bool given = b->plan.x == NMLP_X_GIVEN;
    int t = nmlp_program_begin_loop(b->p, "xh", chunk_tiles(b, h), false);
    int st = nmlp_program_begin_loop(b->p, "xs", nmlp_axis_trips(b->s, b->strip), false);
    nmlp_affine h0 = nmlp_affine_times(nmlp_affine_plus(chunk_start(h), nmlp_at(t)), b->parts),
                s0 = nmlp_axis_start(b->s, b->strip, st);
    nmlp_size sn = nmlp_axis_tile_size(b->s, b->strip, st);
    nmlp_size hn =
        h.features % b->parts == 0 ? nmlp_size_const(b->parts) : nmlp_size_until(b->parts, h.features, h0, 1);
    nmlp_buf_ref dst = nmlp_buf_parts(nmlp_buf_all(b->p, b->xt), 0, hn);
    dst = nmlp_buf_range(nmlp_buf_at(nmlp_buf_at(dst, 0, nmlp_at(t)), 1, nmlp_at(st)), 2, nmlp_affine_const(0), sn);
    if (given)
        nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(b->x, h0, hn, s0, sn), 1);
    else
        nmlp_program_append_dma_transpose(b->p, dst, nmlp_hbm_rect(b->x, s0, sn, h0, hn), 1);
    nmlp_program_end(b->p);
    nmlp_program_end(b->p);
}

/* Some rows of x on their way: which, and of which features. */
typedef struct raw_rows {
    nmlp_affine st, q; /* row tile of the strip, piece of it */
    int part;          /* loop variable: part of the chunk's features */
    nmlp_affine chunk; /* tile of features in which the chunk begins */
    int64_t tiles;     /* of features in it, at most */
    nmlp_affine at;    /* tile of the buffer in which it begins */
    nmlp_affine s0;    /* first row */
    nmlp_size sn;      /* rows */
} raw_rows;

/* Transposes `group` tiles of features, starting at tile `first` of the part, through one PSUM bank. */
static void flip_group(nmlp_strip *b, nmlp_strip_operand h, const raw_rows *r, nmlp_affine first, nmlp_size group,
                       nmlp_nc_engine evict) {
    int64_t ragged = h.features % b->parts;
    nmlp_program_append_alloc(b->p, b->flip);
    int t = nmlp_program_begin_loop(b->p, "xt_t", group, false);
    nmlp_affine tile = nmlp_affine_plus(first, nmlp_at(t)); /* inside the part */
    nmlp_affine part = nmlp_affine_var(r->part, b->plan.x_load), in_chunk = nmlp_affine_plus(part, tile);
    nmlp_affine h0 = nmlp_affine_times(nmlp_affine_plus(r->chunk, in_chunk), b->parts);
    nmlp_size hn = ragged ? nmlp_size_until(b->parts, h.features, h0, 1) : nmlp_size_const(b->parts);
    nmlp_buf_ref raw = nmlp_buf_parts(nmlp_buf_all(b->p, b->raw), 0, r->sn);
    raw = nmlp_buf_range(raw, 0, nmlp_affine_times(tile, b->parts), hn);
    nmlp_buf_ref psum = nmlp_buf_parts(nmlp_buf_all(b->p, b->flip), 0, hn);
    psum = nmlp_buf_range(nmlp_buf_at(psum, 0, nmlp_at(t)), 1, nmlp_affine_const(0), r->sn);
    nmlp_program_append_transpose(b->p, psum, raw, NMLP_ENGINE_TENSOR);
    if (!ragged) nmlp_program_end(b->p);
    /* With ragged features the group has one tile and is read out inside the loop, with its own partitions. */
    nmlp_affine at = nmlp_affine_plus(r->at, ragged ? in_chunk : nmlp_affine_plus(part, first));
    nmlp_size n = ragged ? nmlp_size_const(1) : group, parts = ragged ? hn : nmlp_size_const(b->parts);
    nmlp_buf_ref from = nmlp_buf_parts(nmlp_buf_all(b->p, b->flip), 0, parts);
    from = nmlp_buf_range(nmlp_buf_range(from, 0, nmlp_affine_const(0), n), 1, nmlp_affine_const(0), r->sn);
    nmlp_buf_ref to = nmlp_buf_parts(nmlp_buf_all(b->p, b->xt), 0, parts);
    to = nmlp_buf_at(nmlp_buf_range(to, 0, at, n), 1, r->st);
    to = nmlp_buf_range(to, 2, nmlp_affine_times(r->q, b->s_rows), r->sn);
    if (evict == NMLP_ENGINE_SCALAR && b->rq->machine->scalar_tensor_copy <= 0)
        nmlp_program_append_activation(b->p, to, from, NMLP_FUNC_COPY, 1.0);
    else
        nmlp_program_append_copy(b->p, to, from, evict);
    if (ragged) nmlp_program_end(b->p);
}

/* Pairs of groups: one is read out by VectorE, the other by ScalarE, unless the two take turns on PSUM anyway: then
 * ScalarE would only have to change its function table. A part is a whole number of pairs. */
static void flip_part(nmlp_strip *b, nmlp_strip_operand h, const raw_rows *r, nmlp_size tiles) {
    int64_t group = b->flip_tiles, loads = b->plan.x_load, pairs = nmlp_ceil_div(loads, 2 * group);
    bool turns = b->rq->machine->psum_port_shared > 0;
    nmlp_size trips = nmlp_size_const(pairs);
    if (tiles.clamped) {
        trips = tiles;
        trips.full = pairs;
        trips.step = 2 * group;
    }
    int g = nmlp_program_begin_loop(b->p, "xt_g", trips, false);
    int halves = r->tiles > group ? 2 : 1; /* never anything for the second one otherwise */
    for (int half = 0; half < halves; half++) {
        nmlp_affine first = nmlp_affine_plus(nmlp_affine_const(half * group), nmlp_affine_var(g, 2 * group));
        nmlp_size n = nmlp_size_const(group);
        if (tiles.clamped) {
            n = tiles;
            n.full = group;
            n.rest = nmlp_affine_plus(n.rest, nmlp_affine_times(first, -1));
        }
        flip_group(b, h, r, first, n, half && !turns ? NMLP_ENGINE_SCALAR : NMLP_ENGINE_VECTOR);
    }
    nmlp_program_end(b->p);
}

/* One piece of rows, part by part: long rows come in as they are, the tensor engine turns them. */
static void load_piece(nmlp_strip *b, nmlp_strip_operand h, const raw_rows *r) {
    int64_t loads = b->plan.x_load, all = nmlp_ceil_div(h.features, b->parts);
    nmlp_affine tile = nmlp_affine_plus(r->chunk, nmlp_affine_var(r->part, loads)),
                h0 = nmlp_affine_times(tile, b->parts);
    bool even = h.features % (loads * b->parts) == 0 && h.tiles % loads == 0 && (h.chunk < 0 || all % h.tiles == 0);
    nmlp_size cols = even ? nmlp_size_const(loads * b->parts) : nmlp_size_until(loads * b->parts, h.features, h0, 1);
    nmlp_size tiles = even ? nmlp_size_const(loads) : nmlp_size_until(loads, all, tile, 1);
    nmlp_program_append_alloc(b->p, b->raw);
    nmlp_buf_ref dst =
        nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, b->raw), 0, r->sn), 0, nmlp_affine_const(0), cols);
    nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(b->x, r->s0, r->sn, h0, cols), 1);
    flip_part(b, h, r, tiles);
}

static int begin_parts(nmlp_strip *b, nmlp_strip_operand h, nmlp_affine chunk) {
    int64_t parts = nmlp_ceil_div(h.tiles, b->plan.x_load), all = nmlp_ceil_div(h.features, b->parts);
    nmlp_size trips = all % h.tiles == 0 ? nmlp_size_const(parts) : nmlp_size_until(parts, all, chunk, b->plan.x_load);
    return nmlp_program_begin_loop(b->p, "xp", trips, false);
}

/* Rows of piece `r->q` of row tile `r->st`. */
static void set_rows(const nmlp_strip *b, raw_rows *r, nmlp_affine tile_start) {
    r->s0 = nmlp_affine_plus(tile_start, nmlp_affine_times(r->q, b->s_rows));
    r->sn = b->s.n % b->s_rows == 0 && b->s.n % b->s.tile == 0 ? nmlp_size_const(b->s_rows)
                                                               : nmlp_size_until(b->s_rows, b->s.n, r->s0, 1);
}

static void load_by_flipping(nmlp_strip *b, nmlp_strip_operand h) {
    raw_rows r = {.chunk = chunk_start(h), .tiles = h.tiles};
    r.part = begin_parts(b, h, r.chunk);
    int st = nmlp_program_begin_loop(b->p, "xs", nmlp_axis_trips(b->s, b->strip), false);
    nmlp_affine s0 = nmlp_axis_start(b->s, b->strip, st);
    int64_t pieces = nmlp_ceil_div(b->s.tile, b->s_rows);
    nmlp_size trips =
        b->s.n % b->s.tile == 0 ? nmlp_size_const(pieces) : nmlp_size_until(pieces, b->s.n, s0, b->s_rows);
    int q = nmlp_program_begin_loop(b->p, "xq", trips, false);
    r.st = nmlp_at(st);
    r.q = nmlp_at(q);
    set_rows(b, &r, s0);
    load_piece(b, h, &r);
    for (int i = 0; i < 3; i++) nmlp_program_end(b->p);
}

void nmlp_strip_load_x(nmlp_strip *b, nmlp_strip_operand h) {
    nmlp_program_append_alloc(b->p, b->xt);
    if (nmlp_x_is_flipped(b->plan.x))
        load_by_flipping(b, h);
    else
        load_by_dma(b, h);
}

void nmlp_strip_load_ahead(nmlp_strip *b, nmlp_strip_operand h, nmlp_affine step, int64_t steps) {
    int64_t pieces = nmlp_ceil_div(b->s.tile, b->s_rows), each = nmlp_ceil_div(pieces, steps);
    nmlp_affine piece = nmlp_affine_times(step, each);
    nmlp_program_begin_if(b->p, NMLP_WHEN_FIRST, h.chunk);
    int q = nmlp_program_begin_loop(b->p, "xa", nmlp_size_until(each, pieces, piece, 1), false);
    raw_rows r = {.q = nmlp_affine_plus(piece, nmlp_at(q)), .chunk = nmlp_affine_const(h.tiles)};
    r.at = r.chunk;
    r.tiles = nmlp_ceil_div(h.features, b->parts) - h.tiles;
    r.part = begin_parts(b, h, r.chunk);
    set_rows(b, &r, nmlp_axis_start(b->s, b->strip, -1));
    load_piece(b, h, &r);
    for (int i = 0; i < 3; i++) nmlp_program_end(b->p);
}
