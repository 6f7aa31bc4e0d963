/* Bringing a strip of x on chip, features on partitions. */
#include "plan/strip.h"

/* Tile `t` of chunk h.chunk: first feature, and how many it has. */
static nmlp_affine feature_start(const nmlp_strip *b, nmlp_held h, int t) {
    nmlp_affine at = h.chunk < 0 ? nmlp_affine_const(0) : nmlp_affine_var(h.chunk, h.tiles * b->parts);
    return t < 0 ? at : nmlp_affine_plus(at, nmlp_affine_var(t, b->parts));
}

static nmlp_size chunk_tiles(const nmlp_strip *b, nmlp_held h) {
    int64_t tiles = nmlp_ceil_div(h.features, b->parts);
    if (h.chunk < 0) return nmlp_size_const(tiles);
    if (tiles % h.tiles == 0) return nmlp_size_const(h.tiles);
    return nmlp_size_until(h.tiles, tiles, nmlp_affine_var(h.chunk, h.tiles), 1);
}

/* One DMA per tile of features: as it is (xT given) or transposed on the way. */
static void load_by_dma(nmlp_strip *b, nmlp_held h) {
    bool given = b->plan.x == NMLP_X_GIVEN;
    int t = nmlp_program_begin_loop(b->p, "xh", chunk_tiles(b, h), false);
    int st = nmlp_program_begin_loop(b->p, "xs", nmlp_axis_trips(b->s, b->strip), false);
    nmlp_affine h0 = feature_start(b, h, t), s0 = nmlp_axis_start(b->s, b->strip, st);
    nmlp_size sn = nmlp_axis_tile_size(b->s, b->strip, st);
    nmlp_size hn =
        h.features % b->parts == 0 ? nmlp_size_const(b->parts) : nmlp_size_until(b->parts, h.features, h0, 1);
    nmlp_buf_ref dst = nmlp_buf_parts(nmlp_buf_all(b->p, b->xt), 0, hn);
    dst = nmlp_buf_range(nmlp_buf_at(nmlp_buf_at(dst, 0, nmlp_at(t)), 1, nmlp_at(st)), 2, nmlp_affine_const(0), sn);
    if (given)
        nmlp_emit_load(b->p, dst, nmlp_hbm_rect(b->x, h0, hn, s0, sn), 1);
    else
        nmlp_emit_dma_transpose(b->p, dst, nmlp_hbm_rect(b->x, s0, sn, h0, hn), 1);
    nmlp_program_end(b->p);
    nmlp_program_end(b->p);
}

typedef struct raw_rows {
    int st, q, part; /* loop variables: row tile, rows of it, part of the features */
    nmlp_affine s0;
    nmlp_size sn; /* rows */
} raw_rows;

/* Transposes `group` tiles of features, starting at tile g*group of the part, through one PSUM bank. */
static void flip_group(nmlp_strip *b, nmlp_held h, const raw_rows *r, nmlp_affine first, nmlp_size group,
                       nmlp_nc_engine evict) {
    int64_t ragged = h.features % b->parts;
    nmlp_emit_alloc(b->p, b->flip);
    int t = nmlp_program_begin_loop(b->p, "xt_t", group, false);
    nmlp_affine tile = nmlp_affine_plus(first, nmlp_at(t)); /* inside the part */
    nmlp_affine in_chunk = nmlp_affine_plus(nmlp_affine_var(r->part, b->plan.x_load), tile);
    nmlp_affine h0 = nmlp_affine_plus(feature_start(b, h, -1), nmlp_affine_times(in_chunk, b->parts));
    nmlp_size hn = ragged ? nmlp_size_until(b->parts, h.features, h0, 1) : nmlp_size_const(b->parts);
    nmlp_buf_ref raw = nmlp_buf_parts(nmlp_buf_all(b->p, b->raw), 0, r->sn);
    raw = nmlp_buf_range(raw, 0, nmlp_affine_times(tile, b->parts), hn);
    nmlp_buf_ref psum = nmlp_buf_parts(nmlp_buf_all(b->p, b->flip), 0, hn);
    psum = nmlp_buf_range(nmlp_buf_at(psum, 0, nmlp_at(t)), 1, nmlp_affine_const(0), r->sn);
    nmlp_emit_transpose(b->p, psum, raw, NMLP_ENGINE_TENSOR);
    if (!ragged) nmlp_program_end(b->p);
    /* With ragged features the group has one tile and is read out inside the loop, with its own partitions. */
    nmlp_affine at = ragged ? in_chunk : nmlp_affine_plus(nmlp_affine_var(r->part, b->plan.x_load), first);
    nmlp_size n = ragged ? nmlp_size_const(1) : group, parts = ragged ? hn : nmlp_size_const(b->parts);
    nmlp_buf_ref from = nmlp_buf_parts(nmlp_buf_all(b->p, b->flip), 0, parts);
    from = nmlp_buf_range(nmlp_buf_range(from, 0, nmlp_affine_const(0), n), 1, nmlp_affine_const(0), r->sn);
    nmlp_buf_ref to = nmlp_buf_parts(nmlp_buf_all(b->p, b->xt), 0, parts);
    to = nmlp_buf_at(nmlp_buf_range(to, 0, at, n), 1, nmlp_at(r->st));
    to = nmlp_buf_range(to, 2, nmlp_affine_var(r->q, b->s_rows), r->sn);
    if (evict == NMLP_ENGINE_SCALAR)
        nmlp_emit_activation(b->p, to, from, NMLP_FUNC_COPY, 1.0);
    else
        nmlp_emit_copy(b->p, to, from, NMLP_ENGINE_VECTOR);
    if (ragged) nmlp_program_end(b->p);
}

/* Pairs of groups: one is read out by VectorE, the other by ScalarE, unless the two take turns on PSUM anyway: then
 * ScalarE would only have to change its function table. A part is a whole number of pairs. */
static void flip_part(nmlp_strip *b, nmlp_held h, const raw_rows *r, nmlp_size tiles) {
    int64_t group = b->p->buffers[b->flip].dims[0], loads = b->plan.x_load, pairs = nmlp_ceil_div(loads, 2 * group);
    bool turns = b->rq->machine->psum_port_shared > 0;
    nmlp_size trips = nmlp_size_const(pairs);
    if (tiles.clamped) {
        trips = tiles;
        trips.full = pairs;
        trips.step = 2 * group;
    }
    int g = nmlp_program_begin_loop(b->p, "xt_g", trips, false);
    int halves = nmlp_ceil_div(h.features, b->parts) > group ? 2 : 1; /* never anything for the second one otherwise */
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

/* Long rows of x come in as they are; the tensor engine turns them, tile by tile. */
static void load_by_flipping(nmlp_strip *b, nmlp_held h) {
    int64_t loads = b->plan.x_load, all = nmlp_ceil_div(h.features, b->parts);
    raw_rows r;
    r.part = nmlp_program_begin_loop(b->p, "xp", nmlp_size_const(nmlp_ceil_div(h.tiles, loads)), false);
    r.st = nmlp_program_begin_loop(b->p, "xs", nmlp_axis_trips(b->s, b->strip), false);
    r.s0 = nmlp_axis_start(b->s, b->strip, r.st);
    int64_t quarters = nmlp_ceil_div(b->s.tile, b->s_rows);
    nmlp_size trips =
        b->s.n % b->s.tile == 0 ? nmlp_size_const(quarters) : nmlp_size_until(quarters, b->s.n, r.s0, b->s_rows);
    r.q = nmlp_program_begin_loop(b->p, "xq", trips, false);
    r.s0 = nmlp_affine_plus(r.s0, nmlp_affine_var(r.q, b->s_rows));
    r.sn = b->s.n % b->s_rows == 0 && b->s.n % b->s.tile == 0 ? nmlp_size_const(b->s_rows)
                                                              : nmlp_size_until(b->s_rows, b->s.n, r.s0, 1);
    nmlp_affine part = nmlp_affine_var(r.part, loads * b->parts), h0 = nmlp_affine_plus(feature_start(b, h, -1), part);
    bool even = h.features % (loads * b->parts) == 0 && h.tiles % loads == 0 && (h.chunk < 0 || all % h.tiles == 0);
    nmlp_size cols = even ? nmlp_size_const(loads * b->parts) : nmlp_size_until(loads * b->parts, h.features, h0, 1);
    nmlp_size tiles = nmlp_size_const(loads);
    if (!even) {
        nmlp_affine at = nmlp_affine_var(r.part, loads);
        if (h.chunk >= 0) at = nmlp_affine_plus(at, nmlp_affine_var(h.chunk, h.tiles));
        tiles = nmlp_size_until(loads, all, at, 1);
    }
    nmlp_emit_alloc(b->p, b->raw);
    nmlp_buf_ref dst =
        nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, b->raw), 0, r.sn), 0, nmlp_affine_const(0), cols);
    nmlp_emit_load(b->p, dst, nmlp_hbm_rect(b->x, r.s0, r.sn, h0, cols), 1);
    flip_part(b, h, &r, tiles);
    for (int i = 0; i < 3; i++) nmlp_program_end(b->p);
}

void nmlp_strip_load_x(nmlp_strip *b, nmlp_held h) {
    nmlp_emit_alloc(b->p, b->xt);
    if (b->plan.x == NMLP_X_PE)
        load_by_flipping(b, h);
    else
        load_by_dma(b, h);
}
