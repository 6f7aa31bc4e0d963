/* The dense product in the first three steps of AWS's matrix multiplication tutorial; the fourth is kernel_xw_opt.c.
 * Buffers are managed: in the tutorial's dialect the compiler chooses how many copies exist. */
#include "trainium/plan/kernel_parts.h"
#include "trainium/plan/kernels.h"

typedef struct xw {
    nmlp_program *p;
    nmlp_axis m, k, n;      /* S in stationary tiles, H in partition tiles, O in moving tiles */
    int xT, w, y;           /* tensors */
    int lhs, rhs, acc, out; /* buffers */
} xw;

enum { PSUM_COPIES = 2, STREAM_COPIES = 8, BLOCK_COPIES = 2 };

static nmlp_status begin_xw(xw *k, const char *name, const nmlp_kernel_request *rq, int64_t m_tiles, int64_t n_tiles,
                            nmlp_err *err) {
    const nmlp_machine *m = rq->machine;
    const nmlp_kernel_shape *s = &rq->shape;
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&k->p, name, err));
    k->m = nmlp_axis_of(s->s, (int64_t)m->stationary_max, m_tiles);
    k->k = nmlp_axis_of(s->h, (int64_t)m->partitions, 1);
    k->n = nmlp_axis_of(s->o, nmlp_part_moving_columns(rq), n_tiles);
    nmlp_program_add_param(k->p, "S", s->s);
    nmlp_program_add_param(k->p, "H", s->h);
    nmlp_program_add_param(k->p, "O", s->o);
    k->xT = nmlp_program_add_tensor(k->p, "xT", NMLP_ROLE_INPUT, rq->dtype, s->h, s->s);
    k->w = nmlp_program_add_tensor(k->p, "w", NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->o);
    k->y = nmlp_program_add_tensor(k->p, "y", NMLP_ROLE_OUTPUT, rq->dtype, s->s, s->o);
    return NMLP_OK;
}

/* Where an operand's tile stands: its buffer's leading indices and the loop variables that place it in HBM. */
typedef struct tile_at {
    nmlp_affine i0, i1;
    int block, tile;
} tile_at;

static nmlp_buf_ref lhs_tile(const xw *k, int kt, tile_at m) {
    nmlp_buf_ref r = nmlp_buf_parts(nmlp_buf_all(k->p, k->lhs), 0, nmlp_axis_tile_size(k->k, -1, kt));
    r = nmlp_buf_at(nmlp_buf_at(r, 0, m.i0), 1, m.i1);
    return nmlp_buf_range(r, 2, nmlp_affine_const(0), nmlp_axis_tile_size(k->m, m.block, m.tile));
}

static nmlp_buf_ref rhs_tile(const xw *k, int kt, tile_at n) {
    nmlp_buf_ref r = nmlp_buf_parts(nmlp_buf_all(k->p, k->rhs), 0, nmlp_axis_tile_size(k->k, -1, kt));
    r = nmlp_buf_at(nmlp_buf_at(r, 0, n.i0), 1, n.i1);
    return nmlp_buf_range(r, 2, nmlp_affine_const(0), nmlp_axis_tile_size(k->n, n.block, n.tile));
}

static void load_lhs(const xw *k, int kt, tile_at m) {
    nmlp_hbm_ref src =
        nmlp_hbm_rect(k->xT, nmlp_axis_start(k->k, -1, kt), nmlp_axis_tile_size(k->k, -1, kt),
                      nmlp_axis_start(k->m, m.block, m.tile), nmlp_axis_tile_size(k->m, m.block, m.tile));
    nmlp_program_append_load(k->p, lhs_tile(k, kt, m), src, 0);
}

static void load_rhs(const xw *k, int kt, tile_at n) {
    nmlp_hbm_ref src =
        nmlp_hbm_rect(k->w, nmlp_axis_start(k->k, -1, kt), nmlp_axis_tile_size(k->k, -1, kt),
                      nmlp_axis_start(k->n, n.block, n.tile), nmlp_axis_tile_size(k->n, n.block, n.tile));
    nmlp_program_append_load(k->p, rhs_tile(k, kt, n), src, 0);
}

static nmlp_buf_ref result_tile(const xw *k, int buffer, tile_at m, tile_at n) {
    nmlp_buf_ref r = nmlp_buf_parts(nmlp_buf_all(k->p, buffer), 0, nmlp_axis_tile_size(k->m, m.block, m.tile));
    int last = k->p->failure.code ? 0 : k->p->buffers[buffer].n_dims - 1;
    for (int d = 0; d < last; d++) r = nmlp_buf_at(r, d, nmlp_affine_const(0));
    return nmlp_buf_range(r, last, nmlp_affine_const(0), nmlp_axis_tile_size(k->n, n.block, n.tile));
}

static void matmul(const xw *k, int kt, tile_at m, tile_at n) {
    nmlp_program_append_matmul(k->p, result_tile(k, k->acc, m, n), lhs_tile(k, kt, m), rhs_tile(k, kt, n),
                               nmlp_accumulate_over(1, &kt));
}

static void evict(const xw *k, tile_at m, tile_at n) {
    nmlp_program_append_alloc(k->p, k->out);
    nmlp_program_append_copy(k->p, result_tile(k, k->out, m, n), result_tile(k, k->acc, m, n), NMLP_ENGINE_VECTOR);
    nmlp_hbm_ref dst =
        nmlp_hbm_rect(k->y, nmlp_axis_start(k->m, m.block, m.tile), nmlp_axis_tile_size(k->m, m.block, m.tile),
                      nmlp_axis_start(k->n, n.block, n.tile), nmlp_axis_tile_size(k->n, n.block, n.tile));
    nmlp_program_append_store(k->p, dst, result_tile(k, k->out, m, n), 0);
}

static tile_at tile_only(int var) { return (tile_at){nmlp_affine_const(0), nmlp_affine_const(0), -1, var}; }

nmlp_status nmlp_kernel_xw_tiled(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    xw k = {0};
    NMLP_RETURN_IF_FAILED(begin_xw(&k, "xw_tiled", rq, 1, 1, err));
    k.lhs = nmlp_part_sbuf(k.p, rq, "lhs", STREAM_COPIES, 1, 1, k.m.tile);
    k.rhs = nmlp_part_sbuf(k.p, rq, "rhs", STREAM_COPIES, 1, 1, k.n.tile);
    k.acc = nmlp_part_psum(k.p, rq, "acc", PSUM_COPIES, k.n.tile);
    k.out = nmlp_part_sbuf(k.p, rq, "out", PSUM_COPIES, 1, 1, k.n.tile);
    int m = nmlp_program_begin_loop(k.p, "m", nmlp_size_const(nmlp_axis_tiles(k.m)), false);
    int n = nmlp_program_begin_loop(k.p, "n", nmlp_size_const(nmlp_axis_tiles(k.n)), false);
    nmlp_program_append_alloc(k.p, k.acc);
    int kt = nmlp_program_begin_loop(k.p, "k", nmlp_size_const(nmlp_axis_tiles(k.k)), false);
    nmlp_program_add_comment(k.p, "both operands come from HBM for every product: the baseline to improve on");
    nmlp_program_append_alloc(k.p, k.lhs);
    nmlp_program_append_alloc(k.p, k.rhs);
    load_lhs(&k, kt, tile_only(m));
    load_rhs(&k, kt, tile_only(n));
    matmul(&k, kt, tile_only(m), tile_only(n));
    nmlp_program_end(k.p);
    evict(&k, tile_only(m), tile_only(n));
    nmlp_program_end(k.p);
    nmlp_program_end(k.p);
    *out = k.p;
    return NMLP_OK;
}

nmlp_status nmlp_kernel_xw_hoist(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    xw k = {0};
    NMLP_RETURN_IF_FAILED(begin_xw(&k, "xw_hoist", rq, 1, 1, err));
    int64_t k_tiles = nmlp_axis_tiles(k.k);
    k.lhs = nmlp_part_sbuf(k.p, rq, "lhs", BLOCK_COPIES, k_tiles, 1, k.m.tile);
    k.rhs = nmlp_part_sbuf(k.p, rq, "rhs", BLOCK_COPIES, k_tiles, 1, k.n.tile);
    k.acc = nmlp_part_psum(k.p, rq, "acc", PSUM_COPIES, k.n.tile);
    k.out = nmlp_part_sbuf(k.p, rq, "out", PSUM_COPIES, 1, 1, k.n.tile);
    int m = nmlp_program_begin_loop(k.p, "m", nmlp_size_const(nmlp_axis_tiles(k.m)), false);
    nmlp_program_add_comment(k.p, "the row tile is loaded once and used for every column tile");
    nmlp_program_append_alloc(k.p, k.lhs);
    int load = nmlp_program_begin_loop(k.p, "kl", nmlp_size_const(k_tiles), false);
    load_lhs(&k, load, (tile_at){nmlp_at(load), nmlp_affine_const(0), -1, m});
    nmlp_program_end(k.p);
    int n = nmlp_program_begin_loop(k.p, "n", nmlp_size_const(nmlp_axis_tiles(k.n)), false);
    nmlp_program_append_alloc(k.p, k.rhs);
    load = nmlp_program_begin_loop(k.p, "kr", nmlp_size_const(k_tiles), false);
    load_rhs(&k, load, (tile_at){nmlp_at(load), nmlp_affine_const(0), -1, n});
    nmlp_program_end(k.p);
    nmlp_program_append_alloc(k.p, k.acc);
    int kt = nmlp_program_begin_loop(k.p, "k", nmlp_size_const(k_tiles), false);
    tile_at mt = {nmlp_at(kt), nmlp_affine_const(0), -1, m}, nt = {nmlp_at(kt), nmlp_affine_const(0), -1, n};
    matmul(&k, kt, mt, nt);
    nmlp_program_end(k.p);
    evict(&k, mt, nt);
    nmlp_program_end(k.p);
    nmlp_program_end(k.p);
    *out = k.p;
    return NMLP_OK;
}

/* Loads all tiles of block `b` of an operand over the whole contraction. */
static void load_block(const xw *k, bool lhs, int b) {
    nmlp_axis axis = lhs ? k->m : k->n;
    int kt = nmlp_program_begin_loop(k->p, lhs ? "kl" : "kr", nmlp_size_const(nmlp_axis_tiles(k->k)), false);
    int t = nmlp_program_begin_loop(k->p, lhs ? "ml" : "nr", nmlp_axis_trips(axis, b), false);
    tile_at at = {nmlp_at(kt), nmlp_at(t), b, t};
    if (lhs)
        load_lhs(k, kt, at);
    else
        load_rhs(k, kt, at);
    nmlp_program_end(k->p);
    nmlp_program_end(k->p);
}

nmlp_status nmlp_kernel_xw_block(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    xw k = {0};
    NMLP_RETURN_IF_FAILED(
        begin_xw(&k, "xw_block", rq, nmlp_tiling_get(rq->tiling, "m", 2), nmlp_tiling_get(rq->tiling, "n", 2), err));
    int64_t k_tiles = nmlp_axis_tiles(k.k);
    k.lhs = nmlp_part_sbuf(k.p, rq, "lhs", BLOCK_COPIES, k_tiles, nmlp_axis_tiles_per_block(k.m), k.m.tile);
    k.rhs = nmlp_part_sbuf(k.p, rq, "rhs", BLOCK_COPIES, k_tiles, nmlp_axis_tiles_per_block(k.n), k.n.tile);
    k.acc = nmlp_part_psum(k.p, rq, "acc", PSUM_COPIES, k.n.tile);
    k.out = nmlp_part_sbuf(k.p, rq, "out", PSUM_COPIES, 1, 1, k.n.tile);
    int mb = nmlp_program_begin_loop(k.p, "mb", nmlp_size_const(nmlp_axis_blocks(k.m)), false);
    nmlp_program_add_comment(
        k.p, "blocks of rows and columns with the whole contraction on chip: every load serves a block");
    nmlp_program_append_alloc(k.p, k.lhs);
    load_block(&k, true, mb);
    int nb = nmlp_program_begin_loop(k.p, "nb", nmlp_size_const(nmlp_axis_blocks(k.n)), false);
    nmlp_program_append_alloc(k.p, k.rhs);
    load_block(&k, false, nb);
    int m = nmlp_program_begin_loop(k.p, "m", nmlp_axis_trips(k.m, mb), false);
    int n = nmlp_program_begin_loop(k.p, "n", nmlp_axis_trips(k.n, nb), false);
    nmlp_program_append_alloc(k.p, k.acc);
    int kt = nmlp_program_begin_loop(k.p, "k", nmlp_size_const(k_tiles), false);
    tile_at mt = {nmlp_at(kt), nmlp_at(m), mb, m}, nt = {nmlp_at(kt), nmlp_at(n), nb, n};
    matmul(&k, kt, mt, nt);
    nmlp_program_end(k.p);
    evict(&k, mt, nt);
    for (int i = 0; i < 4; i++) nmlp_program_end(k.p);
    *out = k.p;
    return NMLP_OK;
}
