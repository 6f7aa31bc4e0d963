/* Declarations of a strip kernel: tensors, buffers, the weight ring. */
#include "plan/strip.h"

#include <stdio.h>

enum { FLIP_BANKS = 4 /* transposes run ahead of their read-out by that many groups */ };

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t accumulator_columns(const nmlp_machine *m) {
    return min64((int64_t)m->moving_max, (int64_t)m->psum_bank_bytes / (int64_t)nmlp_nc_dtype_bytes(NMLP_NC_FP32));
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
                          .copies = FLIP_BANKS};
    return nmlp_program_add_buffer(b->p, &buffer);
}

static void declare_x(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    bool given = b->plan.x == NMLP_X_GIVEN;
    b->x = nmlp_program_add_tensor(b->p, given ? "xT" : "x", NMLP_ROLE_INPUT, b->rq->dtype, given ? s->h : s->s,
                                   given ? s->s : s->h);
    int64_t held = b->plan.x == NMLP_X_AHEAD ? nmlp_ceil_div(s->h, b->parts) : b->plan.x_chunk;
    b->xt = nmlp_strip_activation(b, "xt", held, (int)b->plan.x_copies);
    b->raw = b->flip = -1;
    if (!nmlp_x_is_flipped(b->plan.x)) return;
    const int64_t dims[] = {b->plan.x_load * b->parts};
    b->raw = sbuf(b, "x_rows", b->rq->dtype, (int)nmlp_x_row_copies(&b->plan, s->s, b->s_rows), 1, dims);
    b->flip = flip_buffer(b, s->h % b->parts == 0 ? 4 : 1); /* a ragged last tile is taken alone */
}

static void declare_accumulators(nmlp_strip *b) {
    const nmlp_machine *m = b->rq->machine;
    int free_banks = (int)m->psum_banks - (b->flip >= 0 ? FLIP_BANKS : 0);
    nmlp_buffer acc = {.name = "acc",
                       .space = NMLP_SPACE_PSUM,
                       .dtype = NMLP_NC_FP32,
                       .partitions = (int)m->stationary_max,
                       .n_dims = 1,
                       .dims = {accumulator_columns(m)},
                       .copies = free_banks};
    b->acc = nmlp_program_add_buffer(b->p, &acc);
}

static void add_params(nmlp_strip *b) {
    const nmlp_kernel_shape *s = &b->rq->shape;
    const nmlp_strip_plan *t = &b->plan;
    const nmlp_param params[] = {
        {"S", s->s},
        {"H", s->h},
        {"R", s->r},
        {"O", s->o},
        {"rows", t->rows},
        {"x_chunk", t->x_chunk},
        {"act_chunk", t->act_chunk},
        {"columns", t->columns},
        {"ring", t->ring},
        {"shared", t->shared},
    };
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++)
        nmlp_program_add_param(b->p, params[i].name, params[i].value);
}

nmlp_status nmlp_strip_begin(nmlp_strip *b, const char *name, const nmlp_kernel_request *rq,
                             const nmlp_strip_plan *plan, nmlp_err *err) {
    const nmlp_machine *m = rq->machine;
    *b = (nmlp_strip){.rq = rq, .plan = *plan, .ring = -1};
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&b->p, name, err));
    b->parts = (int64_t)m->partitions;
    b->s_rows = (int64_t)m->stationary_max;
    int64_t tile = min64(accumulator_columns(m), min64(plan->rows, rq->shape.s));
    b->s = nmlp_axis_of(rq->shape.s, tile, nmlp_ceil_div(plan->rows, tile));
    add_params(b);
    declare_x(b);
    declare_accumulators(b);
    return NMLP_OK;
}

nmlp_stream nmlp_strip_weight(nmlp_strip *b, const char *name, int64_t k, int64_t n, int64_t chunk_tiles,
                              int64_t columns, int64_t planes) {
    nmlp_pack pack = {
        .k = k, .n = n, .partitions = b->parts, .chunk_tiles = chunk_tiles, .columns = columns, .planes = planes};
    pack.chunk_tiles = min64(chunk_tiles, nmlp_pack_k_tiles(&pack));
    int64_t run_bytes = nmlp_pack_tile_run(&pack) * (int64_t)nmlp_nc_dtype_bytes(b->rq->dtype);
    nmlp_stream w = {.name = name, .pack = pack, .end = nmlp_pack_n_tiles(&pack)};
    w.split = planes > 1 && run_bytes > b->plan.ring_bytes;
    w.block = min64(max64(b->plan.ring_bytes / run_bytes, 1), nmlp_pack_n_tiles(&pack));
    w.tensor = nmlp_pack_declare(b->p, name, b->rq->dtype, &pack);
    return w;
}

void nmlp_strip_ring(nmlp_strip *b, nmlp_stream *streams, int n_streams) {
    bool own = b->plan.out_ring > 1;
    int64_t run = 0;
    for (int i = 0; i < n_streams - own; i++) run = max64(run, nmlp_stream_run(&streams[i]));
    b->ring = b->out_ring = run > 0 ? sbuf(b, "w", b->rq->dtype, (int)b->plan.ring, 1, &run) : -1;
    if (own) {
        run = nmlp_stream_run(&streams[n_streams - 1]);
        b->out_ring = sbuf(b, "w_last", b->rq->dtype, (int)b->plan.out_ring, 1, &run);
    }
    for (int i = 0; i < n_streams; i++) streams[i].ring = i == n_streams - 1 ? b->out_ring : b->ring;
}

static nmlp_rows_out output_rows(nmlp_strip *b, const char *name, const nmlp_stream *w, int64_t tiles, int64_t copies) {
    const int64_t dims[] = {nmlp_axis_tiles_per_block(b->s), nmlp_ceil_div(b->s.tile, b->s_rows),
                            tiles * w->pack.columns};
    return (nmlp_rows_out){sbuf(b, name, b->rq->dtype, (int)copies, 3, dims), tiles};
}

nmlp_last_product nmlp_strip_last(nmlp_strip *b, const nmlp_stream *w, bool whole) {
    int64_t n_tiles = nmlp_pack_n_tiles(&w->pack), tail = whole ? 0 : min64(b->plan.tail, n_tiles - 1);
    nmlp_last_product last = {.part = {*w, *w}, .n_parts = tail > 0 ? 2 : 1};
    b->y = nmlp_program_add_tensor(b->p, "y", NMLP_ROLE_OUTPUT, b->rq->dtype, b->rq->shape.s, w->pack.n);
    last.part[0].end = n_tiles - tail;
    last.out[0] =
        output_rows(b, "out", w, whole ? n_tiles : b->plan.out_tiles, whole ? 1 : b->plan.out_copies);
    if (tail == 0) return last;
    const int64_t dims[] = {tail, nmlp_pack_tile_run(&w->pack)};
    last.part[1].name = "tail";
    last.part[1].first = n_tiles - tail;
    last.part[1].block = 1;
    last.part[1].resident = true;
    last.part[1].ring = sbuf(b, "w_tail", b->rq->dtype, 1, 2, dims);
    last.out[1] = output_rows(b, "out_tail", w, 1, min64(tail, 2));
    return last;
}
