/* Our kernels. `xuv`: y = (x u) v. `mlp`: y = (silu(x Wg) * (x Wu)) Wd with each W dense or a product of two factors;
 * gate and up may share their first factor. One design for both (plan/strip.h); only the list of products differs. */
#include "trainium/plan/kernels.h"
#include "trainium/plan/strip.h"
#include "trainium/plan/strip_plan.h"

static int64_t tiles_of(const nmlp_strip *b, int64_t n) { return nmlp_ceil_div(n, b->parts); }

static nmlp_pack packed(int64_t k, int64_t n, int64_t chunk_tiles, int64_t columns, int64_t planes) {
    return (nmlp_pack){.k = k, .n = n, .chunk_tiles = chunk_tiles, .columns = columns, .planes = planes};
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

static nmlp_held x_held(const nmlp_strip *b, int chunk) {
    int64_t tiles = chunk < 0 ? tiles_of(b, b->rq->shape.h) : b->plan.x_chunk;
    return (nmlp_held){b->xt, b->rq->shape.h, 0, tiles, chunk, false};
}

/* t = (x u)^T for the planes of u, one or two first factors; x is read once. */
static void first_factors(nmlp_strip *b, const nmlp_stream *u, const nmlp_held *t) {
    nmlp_program_add_comment(
        b->p, "first factors stationary, x moving: the products come out transposed, as the next ones want them");
    bool ahead = b->plan.x == NMLP_X_AHEAD;
    nmlp_held first = {b->xt, b->rq->shape.h, 0, b->plan.x_chunk, -1, false};
    if (ahead) nmlp_strip_load_x(b, first);
    int chunk = begin_chunks(b, "xc", tiles_of(b, b->rq->shape.h), b->plan.x_chunk);
    nmlp_held x = x_held(b, chunk);
    x.kept = ahead;
    if (!ahead) nmlp_strip_load_x(b, x);
    nmlp_strip_project(b, u, x, t);
    end_chunks(b, chunk);
}

nmlp_status nmlp_kernel_xuv(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_kernel_shape *s = &rq->shape;
    nmlp_strip b;
    nmlp_strip_plan plan;
    NMLP_RETURN_IF_FAILED(nmlp_strip_plan_of(&plan, NMLP_PLAN_XUV, rq, err));
    NMLP_RETURN_IF_FAILED(nmlp_strip_begin(&b, "xuv", rq, &plan, err));
    int64_t r_tiles = tiles_of(&b, s->r);
    nmlp_stream w[] = {nmlp_strip_weight(&b, "u", packed(s->h, s->r, plan.x_chunk, b.parts, 1), false),
                       nmlp_strip_weight(&b, "v", packed(s->r, s->o, r_tiles, plan.columns, 1), true)};
    nmlp_stream_fit(&w[1], plan.out_tiles);
    nmlp_strip_hold(&b, NULL, NULL, &w[1]);
    nmlp_strip_ring(&b, w, 2);
    nmlp_held t = {nmlp_strip_activation(&b, "xu", r_tiles, 1), s->r, 0, r_tiles, -1, false};
    nmlp_last_product last = nmlp_strip_last(&b, &w[1], false);
    begin_strips(&b);
    first_factors(&b, w, &t);
    nmlp_strip_load_held(&b, &w[1]);
    nmlp_program_add_comment(b.p,
                             "the strip x u is stationary and v moves: rows of y, summed over the whole rank in PSUM");
    nmlp_strip_project_rows(&b, &last, t);
    nmlp_program_end(b.p);
    *out = b.p;
    return NMLP_OK;
}

nmlp_status nmlp_kernel_xw(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_kernel_shape *s = &rq->shape;
    nmlp_strip b;
    nmlp_strip_plan plan;
    NMLP_RETURN_IF_FAILED(nmlp_strip_plan_of(&plan, NMLP_PLAN_XW, rq, err));
    NMLP_RETURN_IF_FAILED(nmlp_strip_begin(&b, "xw", rq, &plan, err));
    nmlp_stream w = nmlp_strip_weight(&b, "w", packed(s->h, s->o, tiles_of(&b, s->h), plan.columns, 1), true);
    nmlp_stream_fit(&w, plan.out_tiles);
    nmlp_strip_hold(&b, NULL, NULL, &w);
    nmlp_strip_ring(&b, &w, 1);
    nmlp_last_product last = nmlp_strip_last(&b, &w, false);
    begin_strips(&b);
    nmlp_program_add_comment(b.p, "x stationary, w moving: rows of y, summed over all inputs in PSUM");
    nmlp_held x = x_held(&b, -1);
    nmlp_strip_load_x(&b, x);
    nmlp_strip_load_held(&b, &w);
    nmlp_strip_project_rows(&b, &last, x);
    nmlp_program_end(b.p);
    *out = b.p;
    return NMLP_OK;
}

/* Second half of the MLP: the activation strip, chunk by chunk, and the down projection of each chunk: to rows of y
 * (`last`), or through a first factor into `t`. `w`: gate and up, then the down projection; with a first factor also
 * what is held of it, and the last product. */
static void gated_down(nmlp_strip *b, const nmlp_stream *w, nmlp_held a, nmlp_held c, const nmlp_last_product *last,
                       const nmlp_held *t) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    int64_t i_tiles = tiles_of(b, s->o);
    int act = nmlp_strip_activation(b, "act", b->plan.act_chunk, b->plan.act_chunk < i_tiles ? 2 : 1);
    nmlp_program_add_comment(
        b->p, "gate and up of one tile follow each other; silu and product on the way out of PSUM, never to HBM");
    int chunk = begin_chunks(b, "ac", i_tiles, b->plan.act_chunk);
    nmlp_held h = {act, s->o, 0, chunk < 0 ? i_tiles : b->plan.act_chunk, chunk, false};
    nmlp_emit_alloc(b->p, act); /* the next chunk is computed while this one is still being contracted */
    nmlp_strip_gate(b, &w[0], a, c, h);
    nmlp_program_add_comment(b->p, "down projection of what is on chip, contracted over the intermediate features");
    if (t) {
        nmlp_strip_project(b, &w[1], h, t);
        nmlp_strip_load_held(b, &w[2]);
        nmlp_strip_load_held(b, &w[3]);
        nmlp_strip_project(b, &w[2], h, t);
    } else {
        nmlp_strip_load_held(b, &w[1]);
        nmlp_strip_project_rows(b, last, h);
    }
    end_chunks(b, chunk);
    if (!t && chunk >= 0) nmlp_strip_store(b, last);
}

static void mlp_dense(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    int64_t h_tiles = tiles_of(b, s->h), i_tiles = tiles_of(b, s->o);
    nmlp_stream w[] = {nmlp_strip_weight(b, "w_gate_up", packed(s->h, s->o, h_tiles, b->parts, 2), false),
                       nmlp_strip_weight(b, "w_down", packed(s->o, s->h, b->plan.act_chunk, b->plan.columns, 1), true)};
    bool whole = b->plan.act_chunk < i_tiles;
    if (whole)
        nmlp_stream_fit(&w[0], b->plan.act_chunk);
    else
        nmlp_stream_fit(&w[1], b->plan.out_tiles);
    nmlp_strip_hold(b, NULL, NULL, &w[1]);
    nmlp_strip_ring(b, w, 2);
    nmlp_last_product last = nmlp_strip_last(b, &w[1], whole);
    begin_strips(b);
    nmlp_program_add_comment(b->p, "x is read once for gate and up");
    nmlp_held x = x_held(b, -1);
    nmlp_strip_load_x(b, x);
    gated_down(b, w, x, x, &last, NULL);
    nmlp_program_end(b->p);
}

static void mlp_low_rank(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    int64_t r_tiles = tiles_of(b, s->r), i_tiles = tiles_of(b, s->o);
    int n_u = b->plan.shared ? 1 : 2;
    enum { FIRST, GATED, DOWN, DOWN_HELD, LAST, N_STREAMS };
    nmlp_stream w[N_STREAMS];
    w[FIRST] = nmlp_strip_weight(b, b->plan.shared ? "u_shared" : "u_gate_up",
                                 packed(s->h, s->r, b->plan.x_chunk, b->parts, n_u), false);
    w[GATED] = nmlp_strip_weight(b, "v_gate_up", packed(s->r, s->o, r_tiles, b->parts, 2), false);
    w[DOWN] = nmlp_strip_weight(b, "u_down", packed(s->o, s->r, b->plan.act_chunk, b->parts, 1), true);
    w[DOWN_HELD] = w[DOWN];
    w[LAST] = nmlp_strip_weight(b, "v_down", packed(s->r, s->h, r_tiles, b->plan.columns, 1), true);
    if (b->plan.x == NMLP_X_AHEAD) w[FIRST].split = n_u > 1; /* half of the run: the first product starts sooner */
    if (b->plan.act_chunk < i_tiles) nmlp_stream_fit(&w[GATED], b->plan.act_chunk);
    nmlp_stream_fit(&w[LAST], b->plan.out_tiles);
    nmlp_strip_hold(b, &w[DOWN], &w[DOWN_HELD], &w[LAST]);
    nmlp_strip_ring(b, w, N_STREAMS);
    int tb = nmlp_strip_activation(b, "t", n_u * r_tiles, 1);
    nmlp_held t[] = {{tb, s->r, 0, r_tiles, -1, false}, {tb, s->r, (n_u - 1) * r_tiles, r_tiles, -1, false}};
    nmlp_held d = {nmlp_strip_activation(b, "td", r_tiles, 1), s->r, 0, r_tiles, -1, false};
    nmlp_last_product last = nmlp_strip_last(b, &w[LAST], false);
    begin_strips(b);
    first_factors(b, &w[FIRST], t);
    gated_down(b, &w[GATED], t[0], t[1], NULL, &d);
    nmlp_program_add_comment(b->p, "last factor moving: rows of y, long enough for the DMA engines");
    nmlp_strip_project_rows(b, &last, d);
    nmlp_program_end(b->p);
}

nmlp_status nmlp_kernel_mlp(nmlp_program **out, const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_strip b;
    nmlp_strip_plan plan;
    NMLP_RETURN_IF_FAILED(nmlp_strip_plan_of(&plan, NMLP_PLAN_MLP, rq, err));
    NMLP_RETURN_IF_FAILED(nmlp_strip_begin(&b, "mlp", rq, &plan, err));
    if (rq->shape.r == 0)
        mlp_dense(&b);
    else
        mlp_low_rank(&b);
    *out = b.p;
    return NMLP_OK;
}
