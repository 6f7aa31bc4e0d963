/* Declarations of a strip kernel: tensors, buffers, the weight ring. */
#include "trainium/plan/strip.h"

#include <stdio.h>

enum {
    FLIP_BANKS = 4,        /* transposes run ahead of their read-out by that many groups */
    FLIP_BANKS_TURNED = 2, /* fewer where results are turned too */
    TURN_BANKS = 2
};

static int flip_banks(const nmlp_strip *b) { return b->plan.turn == NMLP_TURN_NONE ? FLIP_BANKS : FLIP_BANKS_TURNED; }

static int64_t accumulator_columns(const nmlp_machine *m) {
    return nmlp_min((int64_t)m->moving_max, (int64_t)m->psum_bank_bytes / (int64_t)nmlp_nc_dtype_bytes(NMLP_NC_FP32));
}

static int sbuf(nmlp_strip *b, const char *name, nmlp_nc_dtype dtype, int copies, int n_dims, const int64_t *dims) {
    nmlp_buffer buffer = {.name = name,
                          .space = NMLP_SPACE_SBUF,
                          .dtype = dtype,
                          .partitions = (int)b->parts,
                          .n_dims = n_dims,
                          .copies = copies};
    for (int d = 0; d < n_dims; d++) buffer.dims[d] = dims[d];
    return nmlp_program_add_buffer(b->p, &buffer);
}

int nmlp_strip_activation(nmlp_strip *b, const char *name, int64_t tiles, int copies) {
    const int64_t dims[] = {tiles, nmlp_axis_tiles_per_block(b->s), b->s.tile};
    return sbuf(b, name, b->rq->dtype, copies, 3, dims);
}

/* Transposes on the tensor engine come out in fp32 up to NeuronCore-v2, in the dtype of the data from v3 on. */
static int flip_buffer(nmlp_strip *b, int64_t tiles) {
    const nmlp_machine *m = b->rq->machine;
    nmlp_buffer buffer = {.name = "flip",
                          .space = NMLP_SPACE_PSUM,
                          .dtype = m->generation >= 3 ? b->rq->dtype : NMLP_NC_FP32,
                          .partitions = (int)b->parts,
                          .n_dims = 2,
                          .dims = {tiles, b->s_rows},
                          .copies = flip_banks(b)};
    return nmlp_program_add_buffer(b->p, &buffer);
}

static void declare_x(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    bool given = b->plan.x == NMLP_X_GIVEN;
    b->x = nmlp_program_add_tensor(b->p, given ? "xT" : "x", NMLP_ROLE_INPUT, b->rq->dtype, given ? s->h : s->s,
                                   given ? s->s : s->h);
    int64_t held = b->plan.x == NMLP_X_AHEAD ? nmlp_ceil_div(s->h, b->parts) : b->plan.x_chunk;
    const int64_t xt_dims[] = {held, nmlp_axis_tiles_per_block(b->s), nmlp_strip_x_row(b->rq, &b->plan, b->s.tile)};
    b->xt = sbuf(b, "xt", b->rq->dtype, (int)b->plan.x_copies, 3, xt_dims);
    b->raw = b->flip = -1;
    if (!nmlp_x_is_flipped(b->plan.x)) return;
    const int64_t dims[] = {b->plan.x_load * b->parts};
    b->raw = sbuf(b, "x_rows", b->rq->dtype, (int)nmlp_x_row_copies(&b->plan, s->s, b->s_rows), 1, dims);
    b->flip_tiles = s->h % b->parts == 0 ? 4 : 1; /* a ragged last tile is taken alone */
    b->flip = flip_buffer(b, b->flip_tiles);
}

/* Transposes are exact: y is rounded once, before or behind them. */
static nmlp_nc_dtype turned_dtype(const nmlp_strip *b) { return b->rq->fuse.residual ? NMLP_NC_FP32 : b->rq->dtype; }

static void declare_accumulators(nmlp_strip *b) {
    const nmlp_machine *m = b->rq->machine;
    bool turned = b->plan.turn != NMLP_TURN_NONE;
    int free_banks = (int)nmlp_machine_psum_banks(m, b->plan.x == NMLP_X_DMA) - (b->flip >= 0 ? flip_banks(b) : 0) -
                     (turned ? TURN_BANKS : 0);
    nmlp_buffer acc = {.name = "acc",
                       .space = NMLP_SPACE_PSUM,
                       .dtype = NMLP_NC_FP32,
                       .partitions = (int)m->stationary_max,
                       .n_dims = 1,
                       .dims = {accumulator_columns(m)},
                       .copies = free_banks};
    b->acc = nmlp_program_add_buffer(b->p, &acc);
    nmlp_buffer turn = acc;
    turn.name = "turn";
    turn.copies = TURN_BANKS;
    turn.dtype = m->generation >= 3 ? turned_dtype(b) : NMLP_NC_FP32;
    turn.dims[0] = nmlp_min(b->plan.columns, acc.dims[0]);
    b->turn = turned ? nmlp_program_add_buffer(b->p, &turn) : -1;
}

static void add_ranks(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_mlp_ranks *r = &b->rq->ranks;
    bool mixed = r->gate > 0 || r->up > 0 || r->down > 0;
    if (!mixed) nmlp_program_add_param(b->p, "R", s->r);
    if (r->gate > 0) nmlp_program_add_param(b->p, "RG", r->gate);
    if (r->up > 0 && !b->plan.shared) nmlp_program_add_param(b->p, "RU", r->up);
    if (r->down > 0) nmlp_program_add_param(b->p, "RD", r->down);
}

static void add_params(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_strip_plan *t = &b->plan;
    nmlp_program_add_param(b->p, "S", s->s);
    nmlp_program_add_param(b->p, "H", s->h);
    add_ranks(b);
    nmlp_program_add_param(b->p, "O", s->o);
    nmlp_program_add_param(b->p, "rows", t->rows);
    nmlp_program_add_param(b->p, "x_chunk", t->x_chunk);
    nmlp_program_add_param(b->p, "act_chunk", t->act_chunk);
    nmlp_program_add_param(b->p, "columns", t->columns);
    nmlp_program_add_param(b->p, "ring", t->ring);
    nmlp_program_add_param(b->p, "shared", t->shared);
    if (b->rq->fuse.norm_e12 > 0) nmlp_program_add_param(b->p, "norm_e12", b->rq->fuse.norm_e12);
    if (b->rq->fuse.residual) nmlp_program_add_param(b->p, "residual", 1);
    if (b->rq->fp8) nmlp_program_add_param(b->p, "fp8", 1);
}

nmlp_status nmlp_strip_begin(nmlp_strip *b, const char *name, const nmlp_kernel_request *rq,
                             const nmlp_strip_plan *plan, nmlp_err *err) {
    const nmlp_machine *m = rq->machine;
    *b = (nmlp_strip){.rq = rq, .plan = *plan, .one = -1, .stood = -1, .scaled = -1};
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&b->p, name, err));
    b->parts = (int64_t)m->partitions;
    b->s_rows = (int64_t)m->stationary_max;
    int64_t tile = nmlp_min(accumulator_columns(m), nmlp_min(plan->rows, rq->shape.s));
    b->s = nmlp_axis_of(rq->shape.s, tile, nmlp_ceil_div(plan->rows, tile));
    add_params(b);
    declare_x(b);
    declare_accumulators(b);
    nmlp_strip_declare_norm(b);
    return NMLP_OK;
}

static nmlp_strip_stream stream_of(const nmlp_strip *b, const char *name, nmlp_pack pack, bool late) {
    if (pack.partitions == 0) pack.partitions = b->parts;
    pack.chunk_tiles = nmlp_min(pack.chunk_tiles, nmlp_pack_k_tiles(&pack));
    nmlp_strip_stream w = {.name = name,
                           .weight = name,
                           .pack = pack,
                           .end = nmlp_pack_n_tiles(&pack),
                           .late = late && b->plan.out_ring > 1};
    w.pieces = 1;
    int64_t run_bytes = nmlp_pack_tile_run(&pack) * (int64_t)nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(b->rq)),
            aim = late && b->plan.out_bytes > 0 ? b->plan.out_bytes : b->plan.ring_bytes;
    w.split = pack.planes > 1 && run_bytes > aim;
    w.block = nmlp_strip_block(b->rq, nmlp_pack_tile_run(&pack), aim, w.end);
    return w;
}

nmlp_strip_stream nmlp_strip_weight(nmlp_strip *b, const char *name, nmlp_pack pack, bool late) {
    nmlp_strip_stream w = stream_of(b, name, pack, late);
    w.tensor = nmlp_pack_declare(b->p, name, nmlp_kernel_weight_dtype(b->rq), &w.pack);
    return w;
}

nmlp_strip_stream nmlp_strip_weights_apart(nmlp_strip *b, const char *name, const char *const names[2],
                                           nmlp_pack pair) {
    nmlp_strip_stream w = stream_of(b, name, pair, false);
    w.apart = true;
    w.tensor = -1;
    for (int plane = 0; plane < 2; plane++) {
        nmlp_pack *one = &w.plane_pack[plane];
        *one = (nmlp_pack){.k = nmlp_pack_plane_k(&w.pack, plane),
                           .n = w.pack.n,
                           .partitions = nmlp_pack_plane_rows(&w.pack, plane),
                           .chunk_tiles = nmlp_pack_plane_tiles(&w.pack, plane),
                           .columns = w.pack.columns,
                           .planes = 1};
        w.plane_tensor[plane] = nmlp_pack_declare(b->p, names[plane], nmlp_kernel_weight_dtype(b->rq), one);
    }
    return w;
}

/* A stream passes through a ring unless it is held or empty. */
static bool rings(const nmlp_strip_stream *w, bool late) {
    return w->late == late && !w->resident && w->first < w->end;
}

static void make_ring(nmlp_strip *b, const char *name, nmlp_strip_stream *streams, int n_streams, bool late,
                      int64_t copies) {
    int64_t dims[2] = {0};
    for (int i = 0; i < n_streams; i++) {
        if (!rings(&streams[i], late)) continue;
        dims[0] = nmlp_max(dims[0], nmlp_strip_stream_run(&streams[i]));
        if (streams[i].pieces > 1) dims[1] = streams[i].pack.columns; /* the only stream in its ring */
    }
    bool pieces = dims[1] > 0;
    if (pieces) dims[0] /= dims[1];
    nmlp_nc_dtype dtype = nmlp_kernel_weight_dtype(b->rq);
    int ring = dims[0] > 0 ? sbuf(b, name, dtype, (int)copies, pieces ? 2 : 1, dims) : -1;
    for (int i = 0; i < n_streams; i++)
        if (rings(&streams[i], late)) streams[i].ring = ring;
}

static int resident_buffer(nmlp_strip *b, const char *name, const nmlp_strip_stream *w, int64_t tiles) {
    const int64_t dims[] = {tiles * w->pack.chunk_tiles, w->pack.columns};
    return sbuf(b, name, nmlp_kernel_weight_dtype(b->rq), 1, 2, dims);
}

void nmlp_strip_hold(nmlp_strip *b, nmlp_strip_stream *u, nmlp_strip_stream *u_held, nmlp_strip_stream *last) {
    if (u) u_held->first = u_held->end;
    if (b->plan.taper == 0) return;
    nmlp_taper_plan late = nmlp_taper_plan_of(b->rq, &b->plan, u ? &u->pack : NULL, &last->pack);
    last->resident = true;
    last->taper = late.last;
    last->block = last->end;
    last->ring = resident_buffer(b, "w_last", last, last->end);
    if (!u) return;
    u_held->first = u_held->origin = u->end = late.held_from;
    if (u->late && late.rows < u->pack.chunk_tiles) u->pieces = nmlp_ceil_div(u->pack.chunk_tiles, late.rows);
    if (u->end > 0) nmlp_strip_stream_fit(u, u->end);
    if (u_held->first == u_held->end) return;
    u_held->name = "held";
    u_held->resident = true;
    u_held->taper = late.before;
    u_held->block = u_held->end - u_held->first;
    u_held->ring = resident_buffer(b, "w_held", u_held, u_held->block);
}

void nmlp_strip_ring(nmlp_strip *b, nmlp_strip_stream *streams, int n_streams) {
    make_ring(b, "w", streams, n_streams, false, b->plan.ring);
    make_ring(b, b->plan.taper > 0 ? "w_down" : "w_last", streams, n_streams, true, b->plan.out_ring);
}

static nmlp_rows_out output_rows(nmlp_strip *b, const char *name, const nmlp_strip_stream *w, int64_t tiles,
                                 int64_t copies) {
    const int64_t dims[] = {nmlp_axis_tiles_per_block(b->s), nmlp_ceil_div(b->s.tile, b->s_rows),
                            tiles * w->pack.columns};
    return (nmlp_rows_out){sbuf(b, name, b->rq->dtype, (int)copies, 3, dims), tiles, -1, false};
}

/* The next rows of x come while those before are added. */
static void add_residual(nmlp_strip *b, nmlp_rows_out *out, const char *name, const nmlp_strip_stream *w,
                         int64_t copies) {
    if (b->rq->fuse.residual) out->residual = output_rows(b, name, w, out->tiles, copies).buffer;
}

static void add_part(nmlp_last_product *last, const nmlp_strip_stream *w, int64_t first, int64_t end,
                     nmlp_rows_out out) {
    if (first >= end) return;
    last->part[last->n_parts] = *w;
    last->part[last->n_parts].first = first;
    last->part[last->n_parts].end = end;
    nmlp_strip_stream_fit(&last->part[last->n_parts], out.tiles);
    last->out[last->n_parts++] = out;
}

nmlp_last_product nmlp_strip_last(nmlp_strip *b, const nmlp_strip_stream *w, bool whole) {
    int64_t n_tiles = nmlp_pack_n_tiles(&w->pack),
            tail = whole ? 0 : nmlp_min(w->resident ? 1 : b->plan.tail, n_tiles - 1);
    nmlp_last_product last = {0};
    b->y = nmlp_program_add_tensor(b->p, "y", NMLP_ROLE_OUTPUT, b->rq->dtype, b->rq->shape.s, w->pack.n);
    nmlp_rows_out out = output_rows(b, "out", w, whole ? n_tiles : b->plan.out_tiles, whole ? 1 : b->plan.out_copies);
    out.all_x = b->rq->fuse.residual && w->turned;
    if (out.all_x)
        out.residual = output_rows(b, "residual", w, n_tiles, 1).buffer;
    else if (!whole)
        add_residual(b, &out, "residual", w, NMLP_RESIDUAL_COPIES);
    if (b->rq->fp8 && b->rq->fuse.residual && b->plan.turn != NMLP_TURN_ALL) {
        const int64_t dims[] = {w->pack.columns};
        b->scaled = sbuf(b, "scaled", NMLP_NC_FP32, NMLP_SCALED_COPIES, 1, dims);
    }
    if (w->turned) {
        const int64_t dims[] = {n_tiles, b->s.tile};
        b->turned = sbuf(b, "turned", turned_dtype(b), 1, 2, dims);
    }
    if (tail == 0) {
        add_part(&last, w, 0, n_tiles, out);
        return last;
    }
    int64_t main_end = n_tiles - tail, last_block = nmlp_max(main_end - w->block, 0);
    nmlp_strip_stream single = *w, before = *w;
    before.name = "before_tail";
    before.block = main_end - last_block;
    single.name = "tail";
    single.block = 1;
    single.resident = true;
    single.origin = main_end;
    if (w->resident) {
        single.origin = w->origin;
        add_part(&last, w, 0, main_end, out);
    } else {
        single.ring = resident_buffer(b, "w_tail", w, tail);
        add_part(&last, w, 0, last_block, out);
        out.tiles = before.block;
        add_part(&last, &before, last_block, main_end, out);
    }
    nmlp_rows_out end = output_rows(b, "out_tail", w, 1, nmlp_min(tail, 2));
    end.all_x = out.all_x;
    if (out.all_x)
        end.residual = out.residual;
    else
        add_residual(b, &end, "residual_tail", w, nmlp_min(tail, 2));
    single.turned = b->plan.turn == NMLP_TURN_ALL;
    add_part(&last, &single, main_end, n_tiles, end);
    return last;
}
