/* The paper's transposed-output kernels. With one pair of factors: yT[O,S] = ((x u) v)^T. With two: gate and up share
 * each block of x and silu(gate) * up is stored transposed, the layout the down projection wants (fused_mlp_up_T).
 * As in the reference, partial sums of a block are added into SBUF by the vector engine. */
#include "trainium/plan/kernel_parts.h"
#include "trainium/plan/kernels.h"
#include "trainium/plan/paper.h"

enum { BLOCK_COPIES = 2, PAIRS_MAX = 2 };

typedef struct pair {
    int u, v;            /* tensors */
    int ub, vb, xu, out; /* buffers */
} pair;

typedef struct turned {
    nmlp_program *p;
    nmlp_axis s, h, r, o; /* s by moving tiles, o by partition tiles */
    bool x_transposed;
    int n_pairs;
    int x, y, xb, acc1, acc2, silu;
    pair pairs[PAIRS_MAX];
} turned;

/* The reference's later choice. */
static const nmlp_paper_blocks later_blocks[] = {
    {1025, 8, 4, 2, 1}, {1024, 8, 4, 1, 4}, {513, 8, 4, 2, 1}, {512, 8, 4, 1, 16}, {128, 8, 4, 1, 4}, {0, 1, 1, 1, 8},
};

static const nmlp_paper_blocks earlier_blocks = {0, 4, 8, 2, 4};

static void declare_pair(turned *f, const nmlp_kernel_request *rq, int i) {
    static const char *const names[2][6] = {{"u_gate", "v_gate", "ug_blk", "vg_blk", "xu_gate", "gate"},
                                            {"u_up", "v_up", "uu_blk", "vu_blk", "xu_up", "up"}};
    static const char *const single[] = {"u", "v", "u_blk", "v_blk", "xu", "out"};
    const char *const *n = f->n_pairs == 1 ? single : names[i];
    const nmlp_kernel_shape *s = &rq->shape;
    int64_t kt = nmlp_axis_tiles_per_block(f->s), nt = nmlp_axis_tiles_per_block(f->o);
    pair *p = &f->pairs[i];
    p->u = nmlp_program_add_tensor(f->p, n[0], NMLP_ROLE_WEIGHT, rq->dtype, s->h, s->r);
    p->v = nmlp_program_add_tensor(f->p, n[1], NMLP_ROLE_WEIGHT, rq->dtype, s->r, s->o);
    p->ub = nmlp_part_sbuf(f->p, rq, n[2], BLOCK_COPIES, nmlp_axis_tiles_per_block(f->h), f->r.block, 0);
    p->vb = nmlp_part_sbuf(f->p, rq, n[3], BLOCK_COPIES, nmlp_axis_tiles_per_block(f->r), f->o.block, 0);
    p->xu = nmlp_part_sbuf(f->p, rq, n[4], BLOCK_COPIES, nmlp_axis_tiles(f->r), kt, f->s.tile);
    p->out = nmlp_part_sbuf(f->p, rq, n[5], BLOCK_COPIES, nt, kt, f->s.tile);
}

/* Tile (t of tb, k of kb) of a buffer [tiles, k, columns]; `per` tiles per block, 0 where only a block is held. */
static nmlp_buf_ref tile_at(const turned *f, int buffer, nmlp_axis axis, int tb, int t, bool whole, int kb, int k) {
    nmlp_affine index =
        whole ? nmlp_affine_plus(nmlp_affine_var(tb, nmlp_axis_tiles_per_block(axis)), nmlp_at(t)) : nmlp_at(t);
    nmlp_buf_ref ref = nmlp_buf_parts(nmlp_buf_all(f->p, buffer), 0, nmlp_axis_tile_size(axis, tb, t));
    ref = nmlp_buf_at(nmlp_buf_at(ref, 0, index), 1, nmlp_at(k));
    return nmlp_buf_range(ref, 2, nmlp_affine_const(0), nmlp_axis_tile_size(f->s, kb, k));
}

static void clear_strip(const turned *f, int buffer, int kb) {
    int rb = nmlp_program_begin_loop(f->p, "rz", nmlp_size_const(nmlp_axis_blocks(f->r)), false);
    int r = nmlp_program_begin_loop(f->p, "rzt", nmlp_axis_trips(f->r, rb), false);
    int k = nmlp_program_begin_loop(f->p, "kz", nmlp_axis_trips(f->s, kb), false);
    nmlp_program_append_memset(f->p, tile_at(f, buffer, f->r, rb, r, true, kb, k), 0.0, NMLP_ENGINE_VECTOR);
    for (int i = 0; i < 3; i++) nmlp_program_end(f->p);
}

/* dst tile += sum over the tiles of `in` block ib: weights stationary, the strip moving. */
typedef struct product {
    int weights, acc, dst;
    nmlp_axis in, out;
    int ib, ob;     /* blocks of in and out */
    bool dst_whole; /* dst holds all blocks of out */
} product;

static void multiply(const turned *f, const product *m, int moving, bool strip, int kb) {
    int k = nmlp_program_begin_loop(f->p, "k", nmlp_axis_trips(f->s, kb), false);
    int o = nmlp_program_begin_loop(f->p, "o", nmlp_axis_trips(m->out, m->ob), false);
    nmlp_size on = nmlp_axis_tile_size(m->out, m->ob, o), kn = nmlp_axis_tile_size(f->s, kb, k);
    nmlp_program_append_alloc(f->p, m->acc);
    nmlp_buf_ref acc = nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(f->p, m->acc), 0, on), 0, nmlp_affine_const(0), kn);
    int i = nmlp_program_begin_loop(f->p, "i", nmlp_axis_trips(m->in, m->ib), false);
    nmlp_size parts = nmlp_axis_tile_size(m->in, m->ib, i);
    nmlp_buf_ref w = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, m->weights), 0, parts), 0, nmlp_at(i));
    w = nmlp_buf_range(w, 1, nmlp_affine_var(o, m->out.tile), on);
    nmlp_buf_ref x;
    if (strip) {
        x = tile_at(f, moving, m->in, m->ib, i, true, kb, k);
    } else {
        x = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(f->p, moving), 0, parts), 0, nmlp_at(i));
        x = nmlp_buf_range(x, 1, nmlp_affine_var(k, f->s.tile), kn);
    }
    nmlp_program_append_matmul(f->p, acc, w, x, nmlp_accumulate_over(1, &i));
    nmlp_program_end(f->p);
    nmlp_buf_ref dst = tile_at(f, m->dst, m->out, m->ob, o, m->dst_whole, kb, k);
    nmlp_program_append_tensor_tensor(f->p, dst, acc, dst, NMLP_ALU_ADD, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void first_stage(const turned *f, int kb) {
    nmlp_program_add_comment(f->p,
                             "x u for a block of rows, kept transposed on chip; each block of x serves all pairs");
    for (int i = 0; i < f->n_pairs; i++) {
        nmlp_program_append_alloc(f->p, f->pairs[i].xu);
        clear_strip(f, f->pairs[i].xu, kb);
    }
    int mb = nmlp_program_begin_loop(f->p, "mb", nmlp_size_const(nmlp_axis_blocks(f->h)), true);
    nmlp_program_append_alloc(f->p, f->xb);
    nmlp_part_load_block(f->p, "xl", f->xb, f->x, f->h, mb, f->s, kb, !f->x_transposed);
    int rb = nmlp_program_begin_loop(f->p, "rb", nmlp_size_const(nmlp_axis_blocks(f->r)), false);
    for (int i = 0; i < f->n_pairs; i++) {
        const pair *p = &f->pairs[i];
        nmlp_program_append_alloc(f->p, p->ub);
        nmlp_part_load_block(f->p, "ul", p->ub, p->u, f->h, mb, f->r, rb, false);
        product m = {p->ub, f->acc1, p->xu, f->h, f->r, mb, rb, true};
        multiply(f, &m, f->xb, false, kb);
    }
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

/* out = silu(gate) * up on the way to HBM, or the single result. */
static void store_block(const turned *f, int kb, int nb) {
    int o = nmlp_program_begin_loop(f->p, "os", nmlp_axis_trips(f->o, nb), false);
    int k = nmlp_program_begin_loop(f->p, "ks", nmlp_axis_trips(f->s, kb), false);
    nmlp_buf_ref out = tile_at(f, f->pairs[0].out, f->o, nb, o, false, kb, k);
    if (f->n_pairs == 2) {
        nmlp_program_append_alloc(f->p, f->silu);
        nmlp_buf_ref s = nmlp_buf_parts(nmlp_buf_all(f->p, f->silu), 0, out.parts);
        s = nmlp_buf_range(nmlp_buf_at(s, 0, nmlp_affine_const(0)), 1, nmlp_affine_const(0),
                           nmlp_axis_tile_size(f->s, kb, k));
        nmlp_program_append_activation(f->p, s, out, NMLP_FUNC_SILU, 1.0);
        nmlp_program_append_tensor_tensor(f->p, out, s, tile_at(f, f->pairs[1].out, f->o, nb, o, false, kb, k),
                                          NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
    }
    nmlp_affine row = nmlp_axis_start(f->o, nb, o), col = nmlp_axis_start(f->s, kb, k);
    nmlp_program_append_store(
        f->p, nmlp_hbm_rect(f->y, row, nmlp_axis_tile_size(f->o, nb, o), col, nmlp_axis_tile_size(f->s, kb, k)), out,
        0);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void clear_out(const turned *f, int buffer, int kb, int nb) {
    int o = nmlp_program_begin_loop(f->p, "oz", nmlp_axis_trips(f->o, nb), false);
    int k = nmlp_program_begin_loop(f->p, "kz", nmlp_axis_trips(f->s, kb), false);
    nmlp_program_append_memset(f->p, tile_at(f, buffer, f->o, nb, o, false, kb, k), 0.0, NMLP_ENGINE_VECTOR);
    nmlp_program_end(f->p);
    nmlp_program_end(f->p);
}

static void second_stage(const turned *f, int kb) {
    nmlp_program_add_comment(f->p, f->n_pairs == 2
                                       ? "gate and up for a block of columns, silu and product, stored transposed"
                                       : "the strip moves, v is stationary: the result comes out transposed");
    int nb = nmlp_program_begin_loop(f->p, "nb", nmlp_size_const(nmlp_axis_blocks(f->o)), false);
    for (int i = 0; i < f->n_pairs; i++) {
        nmlp_program_append_alloc(f->p, f->pairs[i].out);
        clear_out(f, f->pairs[i].out, kb, nb);
    }
    int rb = nmlp_program_begin_loop(f->p, "rb", nmlp_size_const(nmlp_axis_blocks(f->r)), true);
    for (int i = 0; i < f->n_pairs; i++) {
        const pair *p = &f->pairs[i];
        nmlp_program_append_alloc(f->p, p->vb);
        nmlp_part_load_block(f->p, "vl", p->vb, p->v, f->r, rb, f->o, nb, false);
        product m = {p->vb, f->acc2, p->out, f->r, f->o, rb, nb, false};
        multiply(f, &m, p->xu, true, kb);
    }
    nmlp_program_end(f->p);
    store_block(f, kb, nb);
    nmlp_program_end(f->p);
}

typedef struct emitted {
    int result, acc; /* tensor [O,S], PSUM buffer */
} emitted;

static emitted emit(nmlp_program *p, const nmlp_kernel_request *rq, int n_pairs, bool x_transposed, nmlp_role out_role,
                    const char *out_name) {
    const nmlp_machine *m = rq->machine;
    const nmlp_kernel_shape *s = &rq->shape;
    nmlp_paper_blocks t = nmlp_paper_choose_blocks(rq, earlier_blocks, later_blocks, 2);
    int64_t moving = nmlp_part_moving_columns(rq);
    turned f = {.p = p, .n_pairs = n_pairs, .x_transposed = x_transposed};
    f.s = nmlp_axis_of(s->s, moving < s->s ? moving : s->s, t.k);
    f.h = nmlp_axis_of(s->h, (int64_t)m->partitions, t.m);
    f.r = nmlp_axis_of(s->r, (int64_t)m->partitions, t.r);
    f.o = nmlp_axis_of(s->o, (int64_t)m->partitions, t.n);
    f.x = x_transposed ? nmlp_program_add_tensor(p, "xT", NMLP_ROLE_INPUT, rq->dtype, s->h, s->s)
                       : nmlp_program_add_tensor(p, "x", NMLP_ROLE_INPUT, rq->dtype, s->s, s->h);
    f.xb = nmlp_part_sbuf(p, rq, "x_in", BLOCK_COPIES, nmlp_axis_tiles_per_block(f.h), f.s.block, 0);
    for (int i = 0; i < n_pairs; i++) declare_pair(&f, rq, i);
    if (n_pairs == 2) f.silu = nmlp_part_sbuf(p, rq, "silu", BLOCK_COPIES, 1, f.s.tile, 0);
    f.y = nmlp_program_add_tensor(p, out_name, out_role, rq->dtype, s->o, s->s);
    f.acc1 = f.acc2 = nmlp_part_psum(p, rq, "acc", (int)nmlp_machine_psum_banks(m, !x_transposed), moving);
    int kb = nmlp_program_begin_loop(p, "kb", nmlp_size_const(nmlp_axis_blocks(f.s)), false);
    first_stage(&f, kb);
    second_stage(&f, kb);
    nmlp_program_end(p);
    return (emitted){f.y, f.acc1};
}

static nmlp_status build_turned(nmlp_program **out, const char *name, const nmlp_kernel_request *rq, int n_pairs,
                                bool x_transposed, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_program_create(out, name, err));
    nmlp_paper_params(*out, &rq->shape);
    emit(*out, rq, n_pairs, x_transposed, NMLP_ROLE_OUTPUT, "yT");
    return NMLP_OK;
}

nmlp_status nmlp_kernel_xuv_turned(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_turned(out, "xuv_turned", rq, 1, false, err);
}

nmlp_status nmlp_kernel_xtuv_turned(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_turned(out, "xtuv_turned", rq, 1, true, err);
}

nmlp_status nmlp_kernel_mlp_up_paper(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_turned(out, "mlp_up_paper", rq, 2, false, err);
}

nmlp_status nmlp_kernel_mlp_paper(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_tiling table = {0};
    nmlp_kernel_request down = *rq;
    if (rq->shape.r == 0) return nmlp_fail(err, NMLP_E_SHAPE, "kernel mlp-paper: R=0; the paper's MLP has factors");
    NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&table, "table", 2, err));
    down.shape = (nmlp_kernel_shape){rq->shape.s, rq->shape.o, rq->shape.r, rq->shape.h};
    down.tiling = &table;
    NMLP_RETURN_IF_FAILED(nmlp_program_create(out, "mlp_paper", err));
    nmlp_paper_params(*out, &rq->shape);
    emitted up = emit(*out, rq, 2, false, NMLP_ROLE_SCRATCH, "actT");
    nmlp_paper_names names = {.x = up.result, .acc = up.acc, .u = "u_down", .v = "v_down"};
    nmlp_program_add_comment(*out, "the down projection reads the activation back, transposed as it was stored");
    nmlp_paper_chain(*out, &down, true, &names);
    return NMLP_OK;
}
