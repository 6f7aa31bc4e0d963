/* The dense product with all three dimensions blocked (AWS tutorial, step 4), and the chain of two of them. */
#include "trainium/plan/kernel_parts.h"
#include "trainium/plan/kernels.h"

enum { PSUM_COPIES = 4, BLOCK_COPIES = 2 };

typedef struct opt {
    nmlp_program *p;
    nmlp_axis m, k, n;
    int xT, w, y;
    int lhs, rhs, res, row, acc;
} opt;

/* Buffers do not depend on the contraction, so that both halves of a chain share them. */
static void declare_buffers(opt *o, const nmlp_kernel_request *rq) {
    int64_t kt = nmlp_axis_tiles_per_block(o->k), nt = nmlp_axis_tiles_per_block(o->n);
    o->lhs = nmlp_part_sbuf(o->p, rq, "lhs", BLOCK_COPIES, kt, o->m.block, 0);
    o->rhs = nmlp_part_sbuf(o->p, rq, "rhs", BLOCK_COPIES, kt, o->n.block, 0);
    o->res = nmlp_part_sbuf(o->p, rq, "res", 1, nmlp_axis_tiles(o->m), o->n.block, 0);
    o->row = nmlp_part_sbuf(o->p, rq, "row", BLOCK_COPIES, nt, o->n.tile, 0);
    o->acc = nmlp_part_psum(o->p, rq, "acc", PSUM_COPIES, o->n.tile);
}

/* Tile (m of mb, n of nb) of the result strip. */
static nmlp_buf_ref result(const opt *o, int mb, int m, int nb, int n) {
    nmlp_buf_ref r = nmlp_buf_parts(nmlp_buf_all(o->p, o->res), 0, nmlp_axis_tile_size(o->m, mb, m));
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_var(mb, nmlp_axis_tiles_per_block(o->m)), nmlp_at(m));
    return nmlp_buf_range(nmlp_buf_at(r, 0, index), 1, nmlp_affine_var(n, o->n.tile), nmlp_axis_tile_size(o->n, nb, n));
}

static void clear_results(const opt *o, int nb) {
    int mb = nmlp_program_begin_loop(o->p, "mz", nmlp_size_const(nmlp_axis_blocks(o->m)), false);
    int m = nmlp_program_begin_loop(o->p, "mzt", nmlp_axis_trips(o->m, mb), false);
    int n = nmlp_program_begin_loop(o->p, "nz", nmlp_axis_trips(o->n, nb), false);
    nmlp_program_append_memset(o->p, result(o, mb, m, nb, n), 0.0, NMLP_ENGINE_VECTOR);
    for (int i = 0; i < 3; i++) nmlp_program_end(o->p);
}

static void multiply_block(const opt *o, int kb, int mb, int nb) {
    int n = nmlp_program_begin_loop(o->p, "n", nmlp_axis_trips(o->n, nb), false);
    int m = nmlp_program_begin_loop(o->p, "m", nmlp_axis_trips(o->m, mb), false);
    nmlp_program_append_alloc(o->p, o->acc);
    nmlp_buf_ref acc = nmlp_buf_parts(nmlp_buf_all(o->p, o->acc), 0, nmlp_axis_tile_size(o->m, mb, m));
    acc = nmlp_buf_range(acc, 0, nmlp_affine_const(0), nmlp_axis_tile_size(o->n, nb, n));
    int k = nmlp_program_begin_loop(o->p, "k", nmlp_axis_trips(o->k, kb), false);
    nmlp_buf_ref lhs = nmlp_buf_parts(nmlp_buf_all(o->p, o->lhs), 0, nmlp_axis_tile_size(o->k, kb, k));
    lhs = nmlp_buf_range(nmlp_buf_at(lhs, 0, nmlp_at(k)), 1, nmlp_affine_var(m, o->m.tile),
                         nmlp_axis_tile_size(o->m, mb, m));
    nmlp_buf_ref rhs = nmlp_buf_parts(nmlp_buf_all(o->p, o->rhs), 0, nmlp_axis_tile_size(o->k, kb, k));
    rhs = nmlp_buf_range(nmlp_buf_at(rhs, 0, nmlp_at(k)), 1, nmlp_affine_var(n, o->n.tile),
                         nmlp_axis_tile_size(o->n, nb, n));
    nmlp_program_append_matmul(o->p, acc, lhs, rhs, nmlp_accumulate_over(1, &k));
    nmlp_program_end(o->p);
    nmlp_buf_ref res = result(o, mb, m, nb, n);
    nmlp_program_append_tensor_tensor(o->p, res, acc, res, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(o->p);
    nmlp_program_end(o->p);
}

/* Packs the tiles of a row before the store, so that the DMA moves long rows. */
static void store_results(const opt *o, int nb) {
    int mb = nmlp_program_begin_loop(o->p, "ms", nmlp_size_const(nmlp_axis_blocks(o->m)), false);
    int m = nmlp_program_begin_loop(o->p, "mst", nmlp_axis_trips(o->m, mb), false);
    nmlp_program_append_alloc(o->p, o->row);
    int n = nmlp_program_begin_loop(o->p, "ns", nmlp_axis_trips(o->n, nb), false);
    nmlp_buf_ref row =
        nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(o->p, o->row), 0, nmlp_axis_tile_size(o->m, mb, m)), 0, nmlp_at(n));
    row = nmlp_buf_range(row, 1, nmlp_affine_const(0), nmlp_axis_tile_size(o->n, nb, n));
    nmlp_program_append_activation(o->p, row, result(o, mb, m, nb, n), NMLP_FUNC_COPY,
                                   1.0); /* ScalarE is idle, VectorE is not */
    bool even = o->n.n % o->n.block == 0;
    if (even) nmlp_program_end(o->p);
    /* At a ragged edge tiles are stored one by one: the packed row is not contiguous there. */
    nmlp_buf_ref all = nmlp_buf_parts(nmlp_buf_all(o->p, o->row), 0, nmlp_axis_tile_size(o->m, mb, m));
    all = nmlp_buf_range(all, 0, nmlp_affine_const(0), nmlp_size_const(nmlp_axis_tiles_per_block(o->n)));
    nmlp_affine col = even ? nmlp_axis_start(o->n, nb, -1) : nmlp_axis_start(o->n, nb, n);
    nmlp_size cols = even ? nmlp_size_const(o->n.block) : nmlp_axis_tile_size(o->n, nb, n);
    nmlp_program_append_store(
        o->p, nmlp_hbm_rect(o->y, nmlp_axis_start(o->m, mb, m), nmlp_axis_tile_size(o->m, mb, m), col, cols),
        even ? all : row, 0);
    for (int i = even ? 1 : 0; i < 3; i++) nmlp_program_end(o->p);
}

static void multiply(const opt *o) {
    int nb = nmlp_program_begin_loop(o->p, "nb", nmlp_size_const(nmlp_axis_blocks(o->n)), false);
    nmlp_program_add_comment(o->p,
                             "a strip of results for all rows stays on chip while the contraction is walked once");
    nmlp_program_append_alloc(o->p, o->res);
    clear_results(o, nb);
    int kb = nmlp_program_begin_loop(o->p, "kb", nmlp_size_const(nmlp_axis_blocks(o->k)), true);
    nmlp_program_append_alloc(o->p, o->rhs);
    nmlp_part_load_block(o->p, "kr", o->rhs, o->w, o->k, kb, o->n, nb, false);
    int mb = nmlp_program_begin_loop(o->p, "mb", nmlp_size_const(nmlp_axis_blocks(o->m)), false);
    nmlp_program_append_alloc(o->p, o->lhs);
    nmlp_part_load_block(o->p, "kl", o->lhs, o->xT, o->k, kb, o->m, mb, false);
    multiply_block(o, kb, mb, nb);
    nmlp_program_end(o->p);
    nmlp_program_end(o->p);
    store_results(o, nb);
    nmlp_program_end(o->p);
}

/* m_tiles: AWS's tutorial has 16 row tiles in a block, the paper's baseline 8. */
static void set_axes(opt *o, const nmlp_kernel_request *rq, int64_t k, int64_t n, int64_t m_tiles) {
    const nmlp_machine *m = rq->machine;
    o->m = nmlp_axis_of(rq->shape.s, (int64_t)m->stationary_max, nmlp_tiling_get(rq->tiling, "m", m_tiles));
    o->k = nmlp_axis_of(k, (int64_t)m->partitions, nmlp_tiling_get(rq->tiling, "k", 8));
    o->n = nmlp_axis_of(n, nmlp_part_moving_columns(rq), nmlp_tiling_get(rq->tiling, "n", 2));
}

static void add_params(nmlp_program *p, const nmlp_kernel_request *rq) {
    nmlp_program_add_param(p, "S", rq->shape.s);
    nmlp_program_add_param(p, "H", rq->shape.h);
    if (rq->shape.r) nmlp_program_add_param(p, "R", rq->shape.r);
    nmlp_program_add_param(p, "O", rq->shape.o);
}

nmlp_status nmlp_kernel_xw_opt(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    opt o = {0};
    const nmlp_kernel_shape *s = &rq->shape;
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&o.p, "xw_opt", err));
    add_params(o.p, rq);
    set_axes(&o, rq, s->h, s->o, 16);
    o.xT = nmlp_program_add_tensor(o.p, "xT", NMLP_ROLE_INPUT, rq->dtype, s->h, s->s);
    o.w = nmlp_program_add_tensor(o.p, "w", NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->o);
    o.y = nmlp_program_add_tensor(o.p, "y", NMLP_ROLE_OUTPUT, rq->dtype, s->s, s->o);
    declare_buffers(&o, rq);
    multiply(&o);
    *out = o.p;
    return NMLP_OK;
}

/* xuT = xu^T through SBUF, as the framework does it between two kernels; it is free to move rows that are long enough
 * for the DMA engines. */
static void transpose_in_hbm(opt *o, const nmlp_kernel_request *rq, int xu, int xuT) {
    int64_t columns = (int64_t)rq->machine->dma_small_row_bytes / (int64_t)nmlp_nc_dtype_bytes(rq->dtype);
    nmlp_axis r = nmlp_axis_of(rq->shape.r, (int64_t)rq->machine->partitions, 1),
              s = nmlp_axis_of(rq->shape.s, columns, 1);
    int flip = nmlp_part_sbuf(o->p, rq, "flip", BLOCK_COPIES, 1, s.tile, 0);
    nmlp_program_add_comment(o->p, "the second product wants x u with the rank on partitions: transpose it in HBM");
    int st = nmlp_program_begin_loop(o->p, "st", nmlp_size_const(nmlp_axis_tiles(s)), false);
    int rt = nmlp_program_begin_loop(o->p, "rt", nmlp_size_const(nmlp_axis_tiles(r)), false);
    nmlp_program_append_alloc(o->p, flip);
    nmlp_buf_ref tile = nmlp_buf_parts(nmlp_buf_all(o->p, flip), 0, nmlp_axis_tile_size(r, -1, rt));
    tile = nmlp_buf_range(nmlp_buf_at(tile, 0, nmlp_affine_const(0)), 1, nmlp_affine_const(0),
                          nmlp_axis_tile_size(s, -1, st));
    nmlp_affine row = nmlp_axis_start(s, -1, st), col = nmlp_axis_start(r, -1, rt);
    nmlp_size rows = nmlp_axis_tile_size(s, -1, st), cols = nmlp_axis_tile_size(r, -1, rt);
    nmlp_program_append_dma_transpose(o->p, tile, nmlp_hbm_rect(xu, row, rows, col, cols), 0);
    nmlp_program_append_store(o->p, nmlp_hbm_rect(xuT, col, cols, row, rows), tile, 0);
    nmlp_program_end(o->p);
    nmlp_program_end(o->p);
}

nmlp_status nmlp_kernel_xuv_seq(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    opt o = {0};
    const nmlp_kernel_shape *s = &rq->shape;
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&o.p, "xuv_seq", err));
    add_params(o.p, rq);
    int xT = nmlp_program_add_tensor(o.p, "xT", NMLP_ROLE_INPUT, rq->dtype, s->h, s->s);
    int u = nmlp_program_add_tensor(o.p, "u", NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->r);
    int v = nmlp_program_add_tensor(o.p, "v", NMLP_ROLE_WEIGHT, rq->dtype, s->r, s->o);
    int xu = nmlp_program_add_tensor(o.p, "xu", NMLP_ROLE_SCRATCH, rq->dtype, s->s, s->r);
    int xuT = nmlp_program_add_tensor(o.p, "xuT", NMLP_ROLE_SCRATCH, rq->dtype, s->r, s->s);
    int y = nmlp_program_add_tensor(o.p, "y", NMLP_ROLE_OUTPUT, rq->dtype, s->s, s->o);
    int64_t widest = s->r > s->o ? s->r : s->o, longest = s->h > s->r ? s->h : s->r;
    set_axes(&o, rq, longest, widest, 8); /* buffers for the larger of both products */
    declare_buffers(&o, rq);
    set_axes(&o, rq, s->h, s->r, 8);
    o.xT = xT, o.w = u, o.y = xu;
    multiply(&o);
    transpose_in_hbm(&o, rq, xu, xuT);
    set_axes(&o, rq, s->r, s->o, 8);
    o.xT = xuT, o.w = v, o.y = y;
    multiply(&o);
    *out = o.p;
    return NMLP_OK;
}
