/* The paper's fused chain y = (x u) v: for a block of rows the whole strip (x u)^T is computed once and stays in SBUF
 * (caching), in the orientation the second product wants (implicit transposition), tiles gathered in blocks (blocking).
 * Partial sums of a block are added into SBUF by the vector engine, as in the reference. */
#include "trainium/plan/kernel_parts.h"
#include "trainium/plan/kernels.h"
#include "trainium/plan/paper.h"

enum { BLOCK_COPIES = 2 };

typedef struct fused {
    nmlp_program *p;
    nmlp_axis s, h, r, o;
    bool x_transposed; /* x is given as xT[H,S] */
    int x, u, v, y;    /* tensors */
    int xb, ub, vb, xu, ob, acc1, acc2;
} fused;

/* The reference's later choice. */
static const nmlp_paper_blocks later_blocks[] = {
    {1025, 4, 2, 8, 4}, {1024, 4, 4, 8, 1}, {513, 4, 2, 4, 4}, {512, 4, 4, 4, 4}, {256, 4, 2, 2, 4}, {0, 8, 2, 1, 4},
};

static const nmlp_paper_blocks earlier_blocks = {0, 4, 8, 8, 2}; /* the tiling behind the published figure */

static void declare(fused *f, const nmlp_kernel_request *rq, const nmlp_paper_names *names) {
    const nmlp_kernel_shape *s = &rq->shape;
    int64_t kt = nmlp_axis_tiles_per_block(f->s), nt = nmlp_axis_tiles_per_block(f->o);
    if (names->x >= 0)
        f->x = names->x;
    else if (f->x_transposed)
        f->x = nmlp_program_add_tensor(f->p, "xT", NMLP_ROLE_INPUT, rq->dtype, s->h, s->s);
    else
        f->x = nmlp_program_add_tensor(f->p, "x", NMLP_ROLE_INPUT, rq->dtype, s->s, s->h);
    f->u = nmlp_program_add_tensor(f->p, names->u, NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->r);
    f->v = nmlp_program_add_tensor(f->p, names->v, NMLP_ROLE_WEIGHT, rq->dtype, s->r, s->o);
    f->y = nmlp_program_add_tensor(f->p, "y", NMLP_ROLE_OUTPUT, rq->dtype, s->s, s->o);
    f->xb = nmlp_part_sbuf(f->p, rq, "x_blk", BLOCK_COPIES, nmlp_axis_tiles_per_block(f->h), f->s.block, 0);
    f->ub = nmlp_part_sbuf(f->p, rq, "u_blk", BLOCK_COPIES, nmlp_axis_tiles_per_block(f->h), f->r.block, 0);
    f->vb = nmlp_part_sbuf(f->p, rq, "v_blk", BLOCK_COPIES, nmlp_axis_tiles_per_block(f->r), f->o.block, 0);
    f->xu = nmlp_part_sbuf(f->p, rq, "xu", BLOCK_COPIES, nmlp_axis_tiles(f->r), kt, f->s.tile);
    f->ob = nmlp_part_sbuf(f->p, rq, "out", BLOCK_COPIES, kt, nt, f->o.tile);
    int banks = (int)nmlp_machine_psum_banks(rq->machine, !f->x_transposed);
    f->acc1 = names->acc >= 0 ? names->acc : nmlp_part_psum(f->p, rq, "acc1", (banks + 1) / 2, f->s.tile);
    f->acc2 = names->acc >= 0 ? names->acc : nmlp_part_psum(f->p, rq, "acc2", banks / 2, f->o.tile);
}

/* Tile (r of rb, k of kb) of the strip (x u)^T. */
static nmlp_buf_ref strip_tile(const fused *f, int rb, int r, int kb, int k) {
    nmlp_affine index = nmlp_affine_plus(nmlp_affine_var(rb, nmlp_axis_tiles_per_block(f->r)), nmlp_at(r));
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(f->p, f->xu), 0, nmlp_axis_tile_size(f->r, rb, r));
    t = nmlp_buf_at(nmlp_buf_at(t, 0, index), 1, nmlp_at(k));
    return nmlp_buf_range(t, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->s, kb, k));
}

static void clear_strip(const fused *f, int kb) {
    int rb = nmlp_program_begin_loop(f->p, "rz", nmlp_size_const(nmlp_axis_blocks(f->r)), false);
    int r = nmlp_program_begin_loop(f->p, "rzt", nmlp_axis_trips(f->r, rb), false);
    int k = nmlp_program_begin_loop(f->p, "kz", nmlp_axis_trips(f->s, kb), false);
    nmlp_program_append_memset(f->p, strip_tile(f, rb, r, kb, k), 0.0, NMLP_ENGINE_VECTOR);
    for (int i = 0; i < 3; i++) nmlp_program_end(f->p);
}

static void multiply_xu(const fused *f, int kb, int mb, int rb) {
    int k = nmlp_program_begin_loop(f->p, "k", nmlp_axis_trips(f->s, kb), false);
    int r = nmlp_program_begin_loop(f->p, "r", nmlp_axis_trips(f->r, rb), false);
    nmlp_program_append_alloc(f->p, f->acc1);
    nmlp_buf_ref acc = nmlp_buf_parts(nmlp_buf_all(f->p, f->acc1), 0, nmlp_axis_tile_size(f->r, rb, r));
    acc = nmlp_buf_range(acc, 0, nmlp_affine_const(0), nmlp_axis_tile_size(f->s, kb, k));
    int h = nmlp_program_begin_loop(f->p, "h", nmlp_axis_trips(f->h, mb), false);
    nmlp_size parts = nmlp_axis_tile_size(f->h, mb, h);
    nmlp_buf_ref u = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->ub), 0, parts), 0, nmlp_at(h));
    u = nmlp_buf_range(u, 1, nmlp_affine_var(r, f->r.tile), nmlp_axis_tile_size(f->r, rb, r));
    nmlp_buf_ref x = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->xb), 0, parts), 0, nmlp_at(h));
    x = nmlp_buf_range(x, 1, nmlp_affine_var(k, f->s.tile), nmlp_axis_tile_size(f->s, kb, k));
    nmlp_program_append_matmul(f->p, acc, u, x, nmlp_accumulate_over(1, &h));
    nmlp_program_end(f->p);
    nmlp_buf_ref tile = strip_tile(f, rb, r, kb, k);
    nmlp_program_append_tensor_tensor(f->p, tile, acc, tile, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static nmlp_buf_ref out_tile(const fused *f, int kb, int k, int nb, int n) {
    nmlp_buf_ref t = nmlp_buf_parts(nmlp_buf_all(f->p, f->ob), 0, nmlp_axis_tile_size(f->s, kb, k));
    t = nmlp_buf_at(nmlp_buf_at(t, 0, nmlp_at(k)), 1, nmlp_at(n));
    return nmlp_buf_range(t, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->o, nb, n));
}

static void multiply_out(const fused *f, int kb, int rb, int nb) {
    int k = nmlp_program_begin_loop(f->p, "k", nmlp_axis_trips(f->s, kb), false);
    int n = nmlp_program_begin_loop(f->p, "n", nmlp_axis_trips(f->o, nb), false);
    nmlp_program_append_alloc(f->p, f->acc2);
    nmlp_buf_ref acc = nmlp_buf_parts(nmlp_buf_all(f->p, f->acc2), 0, nmlp_axis_tile_size(f->s, kb, k));
    acc = nmlp_buf_range(acc, 0, nmlp_affine_const(0), nmlp_axis_tile_size(f->o, nb, n));
    int r = nmlp_program_begin_loop(f->p, "r", nmlp_axis_trips(f->r, rb), false);
    nmlp_buf_ref v =
        nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->vb), 0, nmlp_axis_tile_size(f->r, rb, r)), 0, nmlp_at(r));
    v = nmlp_buf_range(v, 1, nmlp_affine_var(n, f->o.tile), nmlp_axis_tile_size(f->o, nb, n));
    nmlp_program_append_matmul(f->p, acc, strip_tile(f, rb, r, kb, k), v, nmlp_accumulate_over(1, &r));
    nmlp_program_end(f->p);
    nmlp_buf_ref tile = out_tile(f, kb, k, nb, n);
    nmlp_program_append_tensor_tensor(f->p, tile, acc, tile, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void clear_out(const fused *f, int kb, int nb) {
    int k = nmlp_program_begin_loop(f->p, "kz", nmlp_axis_trips(f->s, kb), false);
    int n = nmlp_program_begin_loop(f->p, "nz", nmlp_axis_trips(f->o, nb), false);
    nmlp_program_append_memset(f->p, out_tile(f, kb, k, nb, n), 0.0, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void store_out(const fused *f, int kb, int nb) {
    bool even = f->o.n % f->o.block == 0;
    int k = nmlp_program_begin_loop(f->p, "ks", nmlp_axis_trips(f->s, kb), false);
    nmlp_affine s0 = nmlp_axis_start(f->s, kb, k);
    nmlp_size sn = nmlp_axis_tile_size(f->s, kb, k);
    if (even) {
        nmlp_buf_ref row = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, f->ob), 0, sn), 0, nmlp_at(k));
        nmlp_program_append_store(
            f->p, nmlp_hbm_rect(f->y, s0, sn, nmlp_axis_start(f->o, nb, -1), nmlp_size_const(f->o.block)), row, 0);
    } else {
        int n = nmlp_program_begin_loop(f->p, "ns", nmlp_axis_trips(f->o, nb), false);
        nmlp_hbm_ref dst = nmlp_hbm_rect(f->y, s0, sn, nmlp_axis_start(f->o, nb, n), nmlp_axis_tile_size(f->o, nb, n));
        nmlp_program_append_store(f->p, dst, out_tile(f, kb, k, nb, n), 0);
        nmlp_program_end(f->p);
    }
    nmlp_program_end(f->p);
}

static void first_stage(const fused *f, int kb) {
    nmlp_program_add_comment(
        f->p, "u stationary and x moving: the product comes out transposed, ready to be stationary next");
    nmlp_program_append_alloc(f->p, f->xu);
    clear_strip(f, kb);
    int mb = nmlp_program_begin_loop(f->p, "mb", nmlp_size_const(nmlp_axis_blocks(f->h)), true);
    nmlp_program_append_alloc(f->p, f->xb);
    nmlp_part_load_block(f->p, "xl", f->xb, f->x, f->h, mb, f->s, kb, !f->x_transposed);
    int rb = nmlp_program_begin_loop(f->p, "rb", nmlp_size_const(nmlp_axis_blocks(f->r)), false);
    nmlp_program_append_alloc(f->p, f->ub);
    nmlp_part_load_block(f->p, "ul", f->ub, f->u, f->h, mb, f->r, rb, false);
    multiply_xu(f, kb, mb, rb);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void second_stage(const fused *f, int kb) {
    nmlp_program_add_comment(f->p, "the strip stays in SBUF for every block of output columns");
    int nb = nmlp_program_begin_loop(f->p, "nb", nmlp_size_const(nmlp_axis_blocks(f->o)), false);
    nmlp_program_append_alloc(f->p, f->ob);
    clear_out(f, kb, nb);
    int rb = nmlp_program_begin_loop(f->p, "rb", nmlp_size_const(nmlp_axis_blocks(f->r)), true);
    nmlp_program_append_alloc(f->p, f->vb);
    nmlp_part_load_block(f->p, "vl", f->vb, f->v, f->r, rb, f->o, nb, false);
    multiply_out(f, kb, rb, nb);
    nmlp_program_end(f->p);
    store_out(f, kb, nb);
    nmlp_program_end(f->p);
}

void nmlp_paper_chain(nmlp_program *p, const nmlp_kernel_request *rq, bool x_transposed,
                      const nmlp_paper_names *names) {
    const nmlp_machine *m = rq->machine;
    nmlp_paper_blocks t = nmlp_paper_choose_blocks(rq, earlier_blocks, later_blocks, 1);
    fused f = {.p = p, .x_transposed = x_transposed};
    f.s = nmlp_axis_of(rq->shape.s, (int64_t)m->stationary_max, t.k);
    f.h = nmlp_axis_of(rq->shape.h, (int64_t)m->partitions, t.m);
    f.r = nmlp_axis_of(rq->shape.r, (int64_t)m->partitions, t.r);
    f.o = nmlp_axis_of(rq->shape.o, nmlp_part_moving_columns(rq), t.n);
    declare(&f, rq, names);
    int kb = nmlp_program_begin_loop(f.p, "kb", nmlp_size_const(nmlp_axis_blocks(f.s)), false);
    first_stage(&f, kb);
    second_stage(&f, kb);
    nmlp_program_end(f.p);
}

static nmlp_status build(nmlp_program **out, const nmlp_kernel_request *rq, bool x_transposed, nmlp_err *err) {
    nmlp_paper_names names = {.x = -1, .acc = -1, .u = "u", .v = "v"};
    NMLP_RETURN_IF_FAILED(nmlp_program_create(out, x_transposed ? "xtuv_fused" : "xuv_fused", err));
    nmlp_paper_params(*out, &rq->shape);
    nmlp_paper_chain(*out, rq, x_transposed, &names);
    return NMLP_OK;
}

nmlp_status nmlp_kernel_xuv_fused(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build(out, rq, false, err);
}

nmlp_status nmlp_kernel_xtuv_fused(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build(out, rq, true, err);
}
