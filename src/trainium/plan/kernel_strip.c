/* Our kernels. `xw`: y = x w. `xuv`: y = (x u) v. `mlp`: y = (silu(x Wg) * (x Wu)) Wd with each W dense or a product of
 * two factors of its own rank; gate and up may share their first factor. One design for all (plan/strip.h); only the
 * list of products differs. */
#include "trainium/plan/kernels.h"
#include "trainium/plan/strip.h"
#include "trainium/plan/strip_plan.h"

static int64_t tiles_of(const nmlp_strip *b, int64_t n) { return nmlp_ceil_div(n, b->parts); }

static nmlp_pack packed(int64_t k, int64_t n, int64_t chunk_tiles, int64_t columns, int64_t planes) {
    return (nmlp_pack){.k = k, .n = n, .chunk_tiles = chunk_tiles, .columns = columns, .planes = planes};
}

static int64_t rank_tile(const nmlp_strip *b, int64_t rank) { return nmlp_strip_even_tile(rank, b->parts); }

/* A first factor [k,r]: its result lies on partitions, so a tile has as many columns as a tile of the rank. */
static nmlp_pack packed_first(const nmlp_strip *b, int64_t k, int64_t r, int64_t chunk_tiles, int64_t planes) {
    return packed(k, r, chunk_tiles, rank_tile(b, r), planes);
}

/* A second factor [r,n], contracted tile by tile of the rank. */
static nmlp_pack packed_second(const nmlp_strip *b, int64_t r, int64_t n, int64_t columns, int64_t planes) {
    nmlp_pack pack = packed(r, n, tiles_of(b, r), columns, planes);
    pack.partitions = rank_tile(b, r);
    return pack;
}

/* Opens the loop over chunks of an activation; -1 where all of it is held. */
static int begin_chunks(nmlp_strip *b, const char *name, int64_t tiles, int64_t held) {
    if (held >= tiles) return -1;
    return nmlp_program_begin_loop(b->p, name, nmlp_size_const(nmlp_ceil_div(tiles, held)), true);
}

static void end_chunks(nmlp_strip *b, int chunk) {
    if (chunk >= 0) nmlp_program_end(b->p);
}

static void begin_strips(nmlp_strip *b) {
    b->strip = nmlp_program_begin_loop(b->p, "strip", nmlp_size_const(nmlp_axis_blocks(b->s)), false);
}

static nmlp_strip_operand x_held(const nmlp_strip *b, int chunk) {
    int64_t tiles = chunk < 0 ? tiles_of(b, b->rq->shape.h) : b->plan.x_chunk;
    return (nmlp_strip_operand){b->xt, b->rq->shape.h, b->parts, 0, tiles, chunk, false};
}

/* The activation of width `rank` that fills a buffer from tile `first` on. */
static nmlp_strip_operand between(const nmlp_strip *b, int buffer, int64_t rank, int64_t first) {
    return (nmlp_strip_operand){buffer, rank, rank_tile(b, rank), first, tiles_of(b, rank), -1, false};
}

/* First factors: each stream's planes give one activation each, t = (x u)^T; x is read once for all. */
typedef struct first_factors {
    nmlp_strip_stream u[2];
    int n_streams;
    nmlp_strip_operand t[2];         /* in order of streams and planes */
    const nmlp_strip_stream *scales; /* of all weights of an MLP, whose scales come behind x; NULL: none */
} first_factors;

static bool one_strip(const nmlp_strip *b) { return nmlp_axis_blocks(b->s) == 1; }

/* The weights of an MLP in order of use. A dense down projection is LAST alone; otherwise its first factor is DOWN, of
 * which DOWN_HELD has room of its own at the end of a plan with a taper. */
enum { FIRST, SECOND_FIRST, GATED, DOWN, DOWN_HELD, LAST, N_STREAMS };

/* Once for all strips before them, or behind x of the only one: the first product does not wait for them. */
static void load_scales(nmlp_strip *b, const nmlp_strip_stream w[N_STREAMS]) {
    nmlp_strip_load_gain(b);
    if (b->rq->fp8) nmlp_program_add_comment(b->p, "scales of the weights' outputs, once for all strips");
    for (int i = FIRST; i < N_STREAMS; i++)
        if (w[i].name && i != DOWN_HELD) nmlp_strip_load_scales(b, &w[i]);
    if (b->rq->fp8) nmlp_program_append_memset(b->p, nmlp_buf_all(b->p, b->one), 1.0, NMLP_ENGINE_VECTOR);
    nmlp_strip_stand_scales(b, &w[LAST]);
    nmlp_strip_spread_scales(b, &w[LAST]);
}

static void project_first(nmlp_strip *b, const first_factors *f) {
    nmlp_program_add_comment(
        b->p, "first factors stationary, x moving: the products come out transposed, as the next ones want them");
    bool ahead = b->plan.x == NMLP_X_AHEAD;
    nmlp_strip_operand first = {b->xt, b->rq->shape.h, b->parts, 0, b->plan.x_chunk, -1, false};
    if (ahead) nmlp_strip_load_x(b, first);
    int chunk = begin_chunks(b, "xc", tiles_of(b, b->rq->shape.h), b->plan.x_chunk);
    nmlp_strip_operand x = x_held(b, chunk);
    x.kept = ahead;
    if (!ahead) nmlp_strip_load_x(b, x);
    if (f->scales && one_strip(b)) load_scales(b, f->scales);
    nmlp_strip_normalise(b, !f->u[0].scaled);
    for (int i = 0; i < f->n_streams; i++) {
        nmlp_strip_stream u = f->u[i];
        u.brings_x = ahead && i == 0;
        nmlp_strip_project(b, &u, x, &f->t[i]);
    }
    end_chunks(b, chunk);
}

static void build_xuv(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_strip_plan *plan = &b->plan;
    int64_t r_tiles = tiles_of(b, s->r);
    nmlp_strip_stream w[] = {nmlp_strip_weight(b, "u", packed_first(b, s->h, s->r, plan->x_chunk, 1), false),
                             nmlp_strip_weight(b, "v", packed_second(b, s->r, s->o, plan->columns, 1), true)};
    nmlp_strip_stream_fit(&w[1], plan->out_tiles);
    nmlp_strip_hold(b, NULL, NULL, &w[1]);
    nmlp_strip_ring(b, w, 2);
    first_factors f = {.u = {w[0]}, .n_streams = 1};
    f.t[0] = between(b, nmlp_strip_activation(b, "xu", r_tiles, 1), s->r, 0);
    nmlp_last_product last = nmlp_strip_last(b, &w[1], false);
    begin_strips(b);
    project_first(b, &f);
    nmlp_strip_load_held(b, &w[1]);
    nmlp_program_add_comment(b->p,
                             "the strip x u is stationary and v moves: rows of y, summed over the whole rank in PSUM");
    nmlp_strip_project_rows(b, &last, f.t[0]);
    nmlp_program_end(b->p);
}

static void build_xw(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    nmlp_strip_stream w = nmlp_strip_weight(b, "w", packed(s->h, s->o, tiles_of(b, s->h), b->plan.columns, 1), true);
    nmlp_strip_stream_fit(&w, b->plan.out_tiles);
    nmlp_strip_hold(b, NULL, NULL, &w);
    nmlp_strip_ring(b, &w, 1);
    nmlp_last_product last = nmlp_strip_last(b, &w, false);
    begin_strips(b);
    nmlp_program_add_comment(b->p, "x stationary, w moving: rows of y, summed over all inputs in PSUM");
    nmlp_strip_operand x = x_held(b, -1);
    nmlp_strip_load_x(b, x);
    nmlp_strip_load_held(b, &w);
    nmlp_strip_project_rows(b, &last, x);
    nmlp_program_end(b->p);
}

typedef struct mlp {
    nmlp_mlp_ranks ranks;
    nmlp_strip_stream w[N_STREAMS];
    first_factors first;
    nmlp_strip_operand gate, up; /* inputs of the gated product: x, or what a first factor made of it */
    nmlp_strip_operand down;     /* act u_down, where the down projection has factors */
    nmlp_last_product last;
    bool chunked_rows; /* rows of y are summed over chunks of the activation */
} mlp;

/* Weights of the first factors: interleaved where gate and up have the same rank, one after the other where not. */
static void declare_first(nmlp_strip *b, mlp *m) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_mlp_ranks *r = &m->ranks;
    int64_t chunk = b->plan.x_chunk;
    bool pair = r->gate > 0 && r->gate == r->up;
    if (pair) {
        int planes = r->shared ? 1 : 2;
        m->w[FIRST] = nmlp_strip_weight(b, r->shared ? "u_shared" : "u_gate_up",
                                        packed_first(b, s->h, r->gate, chunk, planes), false);
        /* half of the run: the first product starts sooner */
        if (b->plan.x == NMLP_X_AHEAD) m->w[FIRST].split = planes > 1;
        return;
    }
    int at = FIRST;
    if (r->gate > 0) m->w[at++] = nmlp_strip_weight(b, "u_gate", packed_first(b, s->h, r->gate, chunk, 1), false);
    if (r->up > 0) m->w[at] = nmlp_strip_weight(b, "u_up", packed_first(b, s->h, r->up, chunk, 1), false);
}

static const char *gated_name(const nmlp_mlp_ranks *r) {
    if (r->gate > 0) return r->up > 0 ? "v_gate_up" : "v_gate_w_up";
    return r->up > 0 ? "w_gate_v_up" : "w_gate_up";
}

static void declare_weights(nmlp_strip *b, mlp *m) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_mlp_ranks *r = &m->ranks;
    int64_t i_tiles = tiles_of(b, s->o), k_gate = r->gate > 0 ? r->gate : s->h, k_up = r->up > 0 ? r->up : s->h;
    declare_first(b, m);
    nmlp_pack gated = r->gate > 0 ? packed_second(b, k_gate, s->o, b->parts, 2)
                                  : packed(k_gate, s->o, tiles_of(b, k_gate), b->parts, 2);
    if (gated.partitions == 0) gated.partitions = b->parts;
    if (k_up != k_gate || (r->gate > 0) != (r->up > 0)) { /* a rank is cut into tiles of its own height */
        gated.k_second = k_up;
        gated.partitions_second = r->up > 0 ? rank_tile(b, r->up) : b->parts;
    }
    const char *const names[2] = {r->gate > 0 ? "v_gate" : "w_gate", r->up > 0 ? "v_up" : "w_up"};
    m->w[GATED] = gated.k_second > 0 && nmlp_pack_plane_rows(&gated, 0) != nmlp_pack_plane_rows(&gated, 1)
                      ? nmlp_strip_weights_apart(b, gated_name(r), names, gated)
                      : nmlp_strip_weight(b, gated_name(r), gated, false);
    if (r->down > 0) {
        m->w[DOWN] = nmlp_strip_weight(b, "u_down", packed_first(b, s->o, r->down, b->plan.act_chunk, 1), true);
        m->w[DOWN_HELD] = m->w[DOWN];
        m->w[LAST] = nmlp_strip_weight(b, "v_down", packed_second(b, r->down, s->h, b->plan.columns, 1), true);
    } else {
        m->w[LAST] = nmlp_strip_weight(b, "w_down", packed(s->o, s->h, b->plan.act_chunk, b->plan.columns, 1), true);
    }
    m->chunked_rows = r->down == 0 && b->plan.act_chunk < i_tiles;
    if (b->plan.act_chunk < i_tiles) nmlp_strip_stream_fit(&m->w[GATED], b->plan.act_chunk);
    if (!m->chunked_rows) nmlp_strip_stream_fit(&m->w[LAST], b->plan.out_tiles);
    m->w[LAST].turned = b->plan.turn != NMLP_TURN_NONE;
    nmlp_strip_hold(b, r->down > 0 ? &m->w[DOWN] : NULL, &m->w[DOWN_HELD], &m->w[LAST]);
    nmlp_strip_ring(b, m->w, N_STREAMS);
}

static void declare_scales(nmlp_strip *b, mlp *m) {
    for (int i = FIRST; i < N_STREAMS; i++)
        if (m->w[i].name && i != DOWN_HELD) nmlp_strip_declare_scales(b, &m->w[i], i == LAST);
    for (int plane = 0; plane < 2; plane++) m->w[DOWN_HELD].scale[plane] = m->w[DOWN].scale[plane];
}

static void declare_activations(nmlp_strip *b, mlp *m) {
    const nmlp_mlp_ranks *r = &m->ranks;
    int64_t gate_tiles = tiles_of(b, r->gate), up_tiles = r->shared ? 0 : tiles_of(b, r->up);
    int t = gate_tiles + up_tiles > 0 ? nmlp_strip_activation(b, "t", gate_tiles + up_tiles, 1) : -1;
    m->gate = r->gate > 0 ? between(b, t, r->gate, 0) : x_held(b, -1);
    m->up = r->up > 0 ? between(b, t, r->up, r->shared ? 0 : gate_tiles) : x_held(b, -1);
    if (r->down > 0) m->down = between(b, nmlp_strip_activation(b, "td", tiles_of(b, r->down), 1), r->down, 0);
    int n = 0;
    if (r->gate > 0) m->first.t[n++] = m->gate;
    if (r->up > 0) m->first.t[n] = m->up;
    for (int i = FIRST; i <= SECOND_FIRST; i++)
        if (m->w[i].end > 0) m->first.u[m->first.n_streams++] = m->w[i];
    /* where nothing else reads x, the norm's division costs nothing on the way out of PSUM, unless scales are applied
     */
    bool scaled = b->rq->fuse.norm_e12 > 0 && r->gate > 0 && r->up > 0 && !b->rq->fp8;
    for (int i = 0; i < m->first.n_streams; i++) m->first.u[i].scaled = scaled;
}

/* The activation strip, chunk by chunk, and the down projection of each chunk: to rows of y, or through a first factor
 * into `down`. */
static void gated_down(nmlp_strip *b, const mlp *m) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    int64_t i_tiles = tiles_of(b, s->o);
    int act = nmlp_strip_activation(b, "act", b->plan.act_chunk, b->plan.act_chunk < i_tiles ? 2 : 1);
    nmlp_program_add_comment(
        b->p, "gate and up of one tile follow each other; silu and product on the way out of PSUM, never to HBM");
    if (m->chunked_rows) nmlp_strip_load_residual(b, &m->last);
    int chunk = begin_chunks(b, "ac", i_tiles, b->plan.act_chunk);
    nmlp_strip_operand h = {act, s->o, b->parts, 0, chunk < 0 ? i_tiles : b->plan.act_chunk, chunk, false};
    nmlp_program_append_alloc(b->p, act); /* the next chunk is computed while this one is still being contracted */
    nmlp_strip_gate(b, &m->w[GATED], m->gate, m->up, h);
    nmlp_program_add_comment(b->p, "down projection of what is on chip, contracted over the intermediate features");
    if (m->ranks.down > 0) {
        nmlp_strip_project(b, &m->w[DOWN], h, &m->down);
        nmlp_strip_load_held(b, &m->w[DOWN_HELD]);
        nmlp_strip_load_held(b, &m->w[LAST]);
        nmlp_strip_project(b, &m->w[DOWN_HELD], h, &m->down);
    } else {
        nmlp_strip_load_held(b, &m->w[LAST]);
        nmlp_strip_project_rows(b, &m->last, h);
    }
    end_chunks(b, chunk);
    if (m->chunked_rows) nmlp_strip_store(b, &m->last);
}

static void build_mlp(nmlp_strip *b) {
    mlp m = {.ranks = nmlp_kernel_mlp_ranks(b->rq)};
    declare_weights(b, &m);
    declare_scales(b, &m);
    declare_activations(b, &m);
    m.last = nmlp_strip_last(b, &m.w[LAST], m.chunked_rows);
    nmlp_strip_fill_norm(b);
    if (!one_strip(b)) load_scales(b, m.w);
    m.first.scales = m.w;
    begin_strips(b);
    if (m.first.n_streams == 0) {
        nmlp_program_add_comment(b->p, "x is read once for gate and up");
        nmlp_strip_load_x(b, x_held(b, -1));
        if (one_strip(b)) load_scales(b, m.w);
        nmlp_strip_normalise(b, true);
    } else {
        project_first(b, &m.first);
    }
    gated_down(b, &m);
    if (m.ranks.down > 0) {
        nmlp_program_add_comment(b->p, "last factor moving: rows of y, long enough for the DMA engines");
        nmlp_strip_project_rows(b, &m.last, m.down);
    }
    nmlp_program_end(b->p);
}

nmlp_status nmlp_strip_plan_build(nmlp_program **out, nmlp_plan_op op, const nmlp_kernel_request *rq,
                                  const nmlp_strip_plan *plan, nmlp_err *err) {
    nmlp_strip b;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_strip_begin(&b, nmlp_plan_op_name(op), rq, plan, err));
    switch (op) {
    case NMLP_PLAN_XW: build_xw(&b); break;
    case NMLP_PLAN_XUV: build_xuv(&b); break;
    case NMLP_PLAN_MLP: build_mlp(&b); break;
    }
    nmlp_status st = nmlp_program_finish(b.p, err);
    if (st == NMLP_OK)
        *out = b.p;
    else
        nmlp_program_destroy(b.p);
    return st;
}

static nmlp_status build_with_estimate(nmlp_program **out, nmlp_plan_op op, const nmlp_kernel_request *rq,
                                       nmlp_err *err) {
    nmlp_strip_plan plan;
    NMLP_RETURN_IF_FAILED(nmlp_strip_plan_of(&plan, op, rq, err));
    return nmlp_strip_plan_build(out, op, rq, &plan, err);
}

nmlp_status nmlp_kernel_xw(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_with_estimate(out, NMLP_PLAN_XW, rq, err);
}

nmlp_status nmlp_kernel_xuv(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_with_estimate(out, NMLP_PLAN_XUV, rq, err);
}

nmlp_status nmlp_kernel_mlp(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    return build_with_estimate(out, NMLP_PLAN_MLP, rq, err);
}
