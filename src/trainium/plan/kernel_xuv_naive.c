/* Naive fusion of y = (x u) v, and the paper's ideas as switches on it, for the ablation:
 *   cache  1: x u is computed anew for every block of output columns; 2: once, and kept for all of them
 *   turn   1: x u comes out in rows and is transposed tile by tile;   2: operands swapped, so it comes out transposed
 *   m,r,k,n: tiles per block (1 everywhere: no blocking). Defaults: both off, blocks of 1024 rows and columns. */
#include "trainium/plan/kernel_parts.h"
#include "trainium/plan/kernels.h"
#include "trainium/plan/paper.h"

enum { OFF = 1, ON = 2, FLIP_COPIES = 2 };

typedef struct naive {
    nmlp_program *p;
    nmlp_axis s, h, r, o, wide; /* wide: the rank by moving tiles */
    bool cache, turn;
    int x, u, v, y;
    int xb, ub, vb, xu, rows, out, acc, flip;
} naive;

static void declare(naive *f, const nmlp_kernel_request *rq) {
    const nmlp_kernel_shape *s = &rq->shape;
    const nmlp_machine *m = rq->machine;
    int64_t kt = nmlp_axis_tiles_per_block(f->s), mt = nmlp_axis_tiles_per_block(f->h);
    f->x = nmlp_program_add_tensor(f->p, "x", NMLP_ROLE_INPUT, rq->dtype, s->s, s->h);
    f->u = nmlp_program_add_tensor(f->p, "u", NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->r);
    f->v = nmlp_program_add_tensor(f->p, "v", NMLP_ROLE_WEIGHT, rq->dtype, s->r, s->o);
    f->y = nmlp_program_add_tensor(f->p, "y", NMLP_ROLE_OUTPUT, rq->dtype, s->s, s->o);
    f->xb = nmlp_part_sbuf(f->p, rq, "x_blk", 2, mt, f->s.block, 0);
    f->ub = nmlp_part_sbuf(f->p, rq, "u_blk", 2, mt, f->turn ? f->r.block : f->wide.block, 0);
    f->vb = nmlp_part_sbuf(f->p, rq, "v_blk", 2, nmlp_axis_tiles_per_block(f->r), f->o.block, 0);
    f->xu = nmlp_part_sbuf(f->p, rq, "xu", 1, nmlp_axis_tiles(f->r), kt, f->s.tile);
    f->out = nmlp_part_sbuf(f->p, rq, "out", 2, kt, nmlp_axis_tiles_per_block(f->o), f->o.tile);
    f->rows = f->turn ? -1 : nmlp_part_sbuf(f->p, rq, "xu_rows", 1, kt, nmlp_axis_tiles(f->wide), f->wide.tile);
    nmlp_buffer acc = {.name = "acc",
                       .space = NMLP_SPACE_PSUM,
                       .dtype = NMLP_NC_FP32,
                       .partitions = (int)m->stationary_max,
                       .n_dims = 1,
                       .dims = {f->o.tile > f->wide.tile ? f->o.tile : f->wide.tile},
                       .copies = (int)nmlp_machine_psum_banks(m, true) - FLIP_COPIES};
    f->acc = nmlp_program_add_buffer(f->p, &acc);
    nmlp_buffer flip = acc;
    flip.name = "flip", flip.dims[0] = f->s.tile, flip.copies = FLIP_COPIES;
    if (m->generation >= 3) flip.dtype = rq->dtype;
    f->flip = f->turn ? -1 : nmlp_program_add_buffer(f->p, &flip);
}

static void end_loops(const naive *f, int n) {
    for (int i = 0; i < n; i++) nmlp_program_end(f->p);
}

static nmlp_buf_ref block_tile(const naive *f, int buffer, nmlp_size parts, int row, int64_t width, int col,
                               nmlp_size cols) {
    nmlp_buf_ref ref = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, buffer), 0, parts), 0, nmlp_at(row));
    return nmlp_buf_range(ref, 1, nmlp_affine_var(col, width), cols);
}

/* Tile (r of rb, k of kb) of the transposed strip. */
static nmlp_buf_ref strip_tile(const naive *f, int rb, int r, int kb, int k) {
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_var(rb, nmlp_axis_tiles_per_block(f->r)), nmlp_at(r));
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(f->p, f->xu), 0, nmlp_axis_tile_size(f->r, rb, r));
    t = nmlp_buf_at(nmlp_buf_at(t, 0, index), 1, nmlp_at(k));
    return nmlp_buf_range(t, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->s, kb, k));
}

/* Tile (k of kb, w of wb) of the strip in rows. */
static nmlp_buf_ref rows_tile(const naive *f, int kb, int k, int wb, int w) {
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_var(wb, nmlp_axis_tiles_per_block(f->wide)), nmlp_at(w));
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(f->p, f->rows), 0, nmlp_axis_tile_size(f->s, kb, k));
    t = nmlp_buf_at(nmlp_buf_at(t, 0, nmlp_at(k)), 1, index);
    return nmlp_buf_range(t, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->wide, wb, w));
}

/* First block of the contraction writes, later ones add. */
static void gather(const naive *f, nmlp_buf_ref dst, nmlp_buf_ref acc, int block) {
    nmlp_program_begin_if(f->p, NMLP_WHEN_FIRST, block);
    nmlp_program_append_copy(f->p, dst, acc, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_begin_if(f->p, NMLP_WHEN_LATER, block);
    nmlp_program_append_tensor_tensor(f->p, dst, acc, dst, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
}

static nmlp_buf_ref accumulator(const naive *f, nmlp_size parts, nmlp_size columns) {
    nmlp_program_append_alloc(f->p, f->acc);
    return nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(f->p, f->acc), 0, parts), 0, nmlp_affine_const(0), columns);
}

/* A block of x u: transposed (u stationary) or in rows (x stationary). */
static void multiply_xu(const naive *f, int kb, int mb, int rb) {
    nmlp_axis r = f->turn ? f->r : f->wide;
    int k = nmlp_program_begin_loop(f->p, "k", nmlp_axis_trips(f->s, kb), false);
    int t = nmlp_program_begin_loop(f->p, "r", nmlp_axis_trips(r, rb), false);
    nmlp_size kn = nmlp_axis_tile_size(f->s, kb, k), rn = nmlp_axis_tile_size(r, rb, t);
    nmlp_buf_ref acc = f->turn ? accumulator(f, rn, kn) : accumulator(f, kn, rn);
    int h = nmlp_program_begin_loop(f->p, "h", nmlp_axis_trips(f->h, mb), false);
    nmlp_size hn = nmlp_axis_tile_size(f->h, mb, h);
    nmlp_buf_ref u = block_tile(f, f->ub, hn, h, r.tile, t, rn), x = block_tile(f, f->xb, hn, h, f->s.tile, k, kn);
    nmlp_program_append_matmul(f->p, acc, f->turn ? u : x, f->turn ? x : u, nmlp_accumulate_over(1, &h));
    nmlp_program_end(f->p);
    gather(f, f->turn ? strip_tile(f, rb, t, kb, k) : rows_tile(f, kb, k, rb, t), acc, mb);
    end_loops(f, 2);
}

/* The detour the swap of operands avoids: every tile of x u through the tensor engine and PSUM. */
static void transpose_strip(const naive *f, int kb) {
    int64_t per = f->wide.tile / f->r.tile;
    nmlp_axis inner = {f->r.n, f->r.tile, f->wide.tile}; /* rank tiles inside a moving tile */
    int k = nmlp_program_begin_loop(f->p, "kt", nmlp_axis_trips(f->s, kb), false);
    int w = nmlp_program_begin_loop(f->p, "wt", nmlp_size_const(nmlp_axis_tiles(f->wide)), false);
    int t = nmlp_program_begin_loop(f->p, "tt", nmlp_axis_trips(inner, w), false);
    nmlp_size kn = nmlp_axis_tile_size(f->s, kb, k), rn = nmlp_axis_tile_size(inner, w, t);
    nmlp_program_append_alloc(f->p, f->flip);
    nmlp_buf_ref flip = nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(f->p, f->flip), 0, rn), 0, nmlp_affine_const(0), kn);
    nmlp_buf_ref from =
        nmlp_buf_at(nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->rows), 0, kn), 0, nmlp_at(k)), 1, nmlp_at(w));
    nmlp_program_append_transpose(f->p, flip, nmlp_buf_range(from, 2, nmlp_affine_var(t, f->r.tile), rn),
                                  NMLP_ENGINE_TENSOR);
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_var(w, per), nmlp_at(t));
    nmlp_buf_ref to =
        nmlp_buf_at(nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->xu), 0, rn), 0, index), 1, nmlp_at(k));
    nmlp_program_append_copy(f->p, nmlp_buf_range(to, 2, nmlp_affine_const(0), kn), flip, NMLP_ENGINE_VECTOR);
    end_loops(f, 3);
}

static void first_stage(const naive *f, int kb) {
    nmlp_axis r = f->turn ? f->r : f->wide;
    nmlp_program_append_alloc(f->p, f->xu);
    int mb = nmlp_program_begin_loop(f->p, "mb", nmlp_size_const(nmlp_axis_blocks(f->h)), true);
    nmlp_program_append_alloc(f->p, f->xb);
    nmlp_part_load_block(f->p, "xl", f->xb, f->x, f->h, mb, f->s, kb, true);
    int rb = nmlp_program_begin_loop(f->p, "rb", nmlp_size_const(nmlp_axis_blocks(r)), false);
    nmlp_program_append_alloc(f->p, f->ub);
    nmlp_part_load_block(f->p, "ul", f->ub, f->u, f->h, mb, r, rb, false);
    multiply_xu(f, kb, mb, rb);
    end_loops(f, 2);
    if (f->turn) return;
    nmlp_program_add_comment(f->p, "the second product wants the rank on partitions: transpose tile by tile");
    transpose_strip(f, kb);
}

static nmlp_buf_ref out_tile(const naive *f, int kb, int k, int nb, int n) {
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(f->p, f->out), 0, nmlp_axis_tile_size(f->s, kb, k));
    t = nmlp_buf_at(nmlp_buf_at(t, 0, nmlp_at(k)), 1, nmlp_at(n));
    return nmlp_buf_range(t, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->o, nb, n));
}

static void second_stage(const naive *f, int kb, int nb) {
    nmlp_program_append_alloc(f->p, f->out);
    int rb = nmlp_program_begin_loop(f->p, "rv", nmlp_size_const(nmlp_axis_blocks(f->r)), true);
    nmlp_program_append_alloc(f->p, f->vb);
    nmlp_part_load_block(f->p, "vl", f->vb, f->v, f->r, rb, f->o, nb, false);
    int k = nmlp_program_begin_loop(f->p, "ko", nmlp_axis_trips(f->s, kb), false);
    int n = nmlp_program_begin_loop(f->p, "no", nmlp_axis_trips(f->o, nb), false);
    nmlp_size on = nmlp_axis_tile_size(f->o, nb, n);
    nmlp_buf_ref acc = accumulator(f, nmlp_axis_tile_size(f->s, kb, k), on);
    int r = nmlp_program_begin_loop(f->p, "ro", nmlp_axis_trips(f->r, rb), false);
    nmlp_buf_ref v = block_tile(f, f->vb, nmlp_axis_tile_size(f->r, rb, r), r, f->o.tile, n, on);
    nmlp_program_append_matmul(f->p, acc, strip_tile(f, rb, r, kb, k), v, nmlp_accumulate_over(1, &r));
    nmlp_program_end(f->p);
    gather(f, out_tile(f, kb, k, nb, n), acc, rb);
    end_loops(f, 3);
    int ks = nmlp_program_begin_loop(f->p, "ks", nmlp_axis_trips(f->s, kb), false);
    int ns = nmlp_program_begin_loop(f->p, "ns", nmlp_axis_trips(f->o, nb), false);
    nmlp_hbm_ref dst = nmlp_hbm_rect(f->y, nmlp_axis_start(f->s, kb, ks), nmlp_axis_tile_size(f->s, kb, ks),
                                     nmlp_axis_start(f->o, nb, ns), nmlp_axis_tile_size(f->o, nb, ns));
    nmlp_program_append_store(f->p, dst, out_tile(f, kb, ks, nb, ns), 0);
    end_loops(f, 2);
}

nmlp_status nmlp_kernel_xuv_naive(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_machine *m = rq->machine;
    const nmlp_kernel_shape *s = &rq->shape;
    int64_t moving = nmlp_part_moving_columns(rq);
    int64_t r_tiles = nmlp_tiling_get(rq->tiling, "r", 8);
    naive f = {.cache = nmlp_tiling_get(rq->tiling, "cache", OFF) == ON,
               .turn = nmlp_tiling_get(rq->tiling, "turn", OFF) == ON};
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&f.p, "xuv_naive", err));
    f.s = nmlp_axis_of(s->s, (int64_t)m->stationary_max, nmlp_tiling_get(rq->tiling, "k", 8));
    f.h = nmlp_axis_of(s->h, (int64_t)m->partitions, nmlp_tiling_get(rq->tiling, "m", 8));
    f.r = nmlp_axis_of(s->r, (int64_t)m->partitions, r_tiles);
    f.wide = nmlp_axis_of(s->r, moving, nmlp_ceil_div(r_tiles * f.r.tile, moving));
    f.o = nmlp_axis_of(s->o, moving, nmlp_tiling_get(rq->tiling, "n", 2));
    nmlp_paper_params(f.p, s);
    declare(&f, rq);
    int kb = nmlp_program_begin_loop(f.p, "kb", nmlp_size_const(nmlp_axis_blocks(f.s)), false);
    nmlp_program_add_comment(f.p, f.cache ? "x u of these rows is computed once"
                                          : "x u of these rows is computed again for every block of columns");
    if (f.cache) first_stage(&f, kb);
    int nb = nmlp_program_begin_loop(f.p, "nb", nmlp_size_const(nmlp_axis_blocks(f.o)), false);
    if (!f.cache) first_stage(&f, kb);
    second_stage(&f, kb, nb);
    end_loops(&f, 2);
    *out = f.p;
    return NMLP_OK;
}
