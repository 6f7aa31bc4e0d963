/* Scales of FP8 weights, one in fp32 for each output. Where outputs lie on partitions, a scale is one number of a
 * partition, which instructions that read PSUM apply as they go. Where outputs lie along the free axis, every partition
 * needs all of them: the product of a column of ones and the row of scales, exact in fp32, spreads them once. A single
 * row of activations needs one partition, where they are already. Where results of the last product are turned
 * (nmlp_turn) the row of its scales must lie on partitions: its product with 1. */
#include "trainium/plan/strip.h"

#include <stdio.h>

enum { SCALE_QUEUE = 1 /* that of x, behind it: the first weights do not wait for them */ };

static int64_t spread_rows(const nmlp_strip *b) { return nmlp_min(b->rq->shape.s, b->s_rows); }

int64_t nmlp_strip_scale_bytes(const nmlp_kernel_request *rq, int64_t n, int64_t columns, int64_t planes, bool rows) {
    if (!rq->fp8) return 0;
    int64_t spread = rq->shape.s > 1 ? n + (int64_t)rq->machine->stationary_max : 0;
    int64_t elems = nmlp_ceil_div(n, columns) * planes;
    if (rows) elems += n + spread;
    return elems * (int64_t)nmlp_nc_dtype_bytes(NMLP_NC_FP32);
}

static int add(nmlp_strip *b, const char *weight, const char *suffix, int64_t partitions, int64_t length) {
    char name[NMLP_NAME_MAX];
    snprintf(name, sizeof name, "%.30s%s", weight, suffix);
    nmlp_buffer buffer = {.name = name,
                          .space = NMLP_SPACE_SBUF,
                          .dtype = NMLP_NC_FP32,
                          .partitions = (int)partitions,
                          .n_dims = 1,
                          .dims = {length},
                          .copies = 1};
    return nmlp_program_add_buffer(b->p, &buffer);
}

static int scale_tensor(nmlp_strip *b, const char *weight, int64_t rows, int64_t cols) {
    char name[NMLP_NAME_MAX];
    snprintf(name, sizeof name, "%.40s_scale", weight);
    return nmlp_program_add_tensor(b->p, name, NMLP_ROLE_WEIGHT, NMLP_NC_FP32, rows, cols);
}

static int64_t tile_outputs(const nmlp_pack *pack) { return nmlp_min(pack->columns, pack->n); }

/* Scales of a plane with a tensor of its own, or of all planes of a stream. */
static void declare_tiles(nmlp_strip *b, nmlp_strip_stream *w, int plane, const char *weight, int64_t planes) {
    int64_t n = nmlp_pack_n_tiles(&w->pack) * planes;
    w->scale_tensor[plane] = scale_tensor(b, weight, tile_outputs(&w->pack), n);
    w->scale[plane] = add(b, weight, "_s", b->parts, n);
}

void nmlp_strip_declare_scales(nmlp_strip *b, nmlp_strip_stream *w, bool rows) {
    w->scale[0] = w->scale[1] = w->scale_tensor[0] = w->scale_tensor[1] = -1;
    if (!b->rq->fp8) return;
    if (rows) {
        w->scale_tensor[0] = scale_tensor(b, w->weight, 1, w->pack.n);
        w->scale[0] = w->scale[1] = add(b, w->weight, "_s", 1, w->pack.n);
        b->one = add(b, "one", "", 1, spread_rows(b));
        if (b->plan.turn != NMLP_TURN_NONE)
            b->stood = add(b, w->weight, "_stood", b->parts, nmlp_pack_n_tiles(&w->pack));
        if (b->plan.turn != NMLP_TURN_ALL && spread_rows(b) > 1)
            w->scale[1] = add(b, w->weight, "_spread", spread_rows(b), w->pack.n);
        return;
    }
    if (!w->apart) {
        declare_tiles(b, w, 0, w->weight, w->pack.planes);
        w->scale[1] = w->scale[0];
        return;
    }
    for (int plane = 0; plane < 2; plane++) declare_tiles(b, w, plane, b->p->tensors[w->plane_tensor[plane]].name, 1);
}

static nmlp_buf_ref line(const nmlp_strip *b, int buffer, nmlp_size parts, nmlp_affine at, nmlp_size n) {
    return nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, buffer), 0, parts), 0, at, n);
}

/* spread[row; n] = 1 * scale[n], as many columns at a time as PSUM takes. */
void nmlp_strip_spread_scales(nmlp_strip *b, const nmlp_strip_stream *w) {
    if (!b->rq->fp8 || w->scale[1] == w->scale[0]) return;
    int64_t n = w->pack.n, width = b->p->buffers[b->acc].dims[0];
    nmlp_size rows = nmlp_size_const(spread_rows(b)), one = nmlp_size_const(1);
    int t = nmlp_program_begin_loop(b->p, "spread_t", nmlp_size_const(nmlp_ceil_div(n, width)), false);
    nmlp_affine at = nmlp_affine_var(t, width);
    nmlp_size columns = n % width == 0 ? nmlp_size_const(width) : nmlp_size_until(width, n, at, 1);
    nmlp_program_append_alloc(b->p, b->acc);
    nmlp_buf_ref sum = line(b, b->acc, rows, nmlp_affine_const(0), columns);
    nmlp_program_append_matmul(b->p, sum, nmlp_buf_all(b->p, b->one), line(b, w->scale[0], one, at, columns),
                               nmlp_accumulate_none());
    nmlp_program_append_copy(b->p, line(b, w->scale[1], rows, at, columns), sum, NMLP_ENGINE_VECTOR);
    nmlp_program_end(b->p);
}

/* stood[n; tile] = scale[tile, n] * 1. */
void nmlp_strip_stand_scales(nmlp_strip *b, const nmlp_strip_stream *w) {
    if (!b->rq->fp8 || b->plan.turn == NMLP_TURN_NONE) return;
    nmlp_size one = nmlp_size_const(1);
    int t = nmlp_program_begin_loop(b->p, "stand_t", nmlp_size_const(nmlp_pack_n_tiles(&w->pack)), false);
    nmlp_affine at = nmlp_affine_var(t, w->pack.columns);
    nmlp_size columns = w->pack.n % w->pack.columns == 0 ? nmlp_size_const(w->pack.columns)
                                                         : nmlp_size_until(w->pack.columns, w->pack.n, at, 1);
    nmlp_program_append_alloc(b->p, b->acc);
    nmlp_buf_ref column = line(b, b->acc, columns, nmlp_affine_const(0), one);
    nmlp_program_append_matmul(b->p, column, line(b, w->scale[0], one, at, columns),
                               line(b, b->one, one, nmlp_affine_const(0), one), nmlp_accumulate_none());
    nmlp_program_append_copy(b->p, line(b, b->stood, columns, nmlp_at(t), one), column, NMLP_ENGINE_VECTOR);
    nmlp_program_end(b->p);
}

void nmlp_strip_load_scales(nmlp_strip *b, const nmlp_strip_stream *w) {
    if (!b->rq->fp8) return;
    for (int plane = 0; plane < 2; plane++) {
        if (w->scale_tensor[plane] < 0) continue;
        const nmlp_tensor *t = &b->p->tensors[w->scale_tensor[plane]];
        nmlp_size parts = nmlp_size_const(t->rows), n = nmlp_size_const(t->cols);
        nmlp_program_append_load(
            b->p, line(b, w->scale[plane], parts, nmlp_affine_const(0), n),
            nmlp_hbm_rect(w->scale_tensor[plane], nmlp_affine_const(0), parts, nmlp_affine_const(0), n), SCALE_QUEUE);
    }
}

nmlp_buf_ref nmlp_strip_scale(const nmlp_strip *b, const nmlp_strip_stream *w, int plane, nmlp_affine tile,
                              nmlp_size parts) {
    nmlp_affine at =
        w->apart ? tile : nmlp_affine_plus(nmlp_affine_times(tile, w->pack.planes), nmlp_affine_const(plane));
    return line(b, w->scale[plane], parts, at, nmlp_size_const(1));
}

nmlp_buf_ref nmlp_strip_stood_scale(const nmlp_strip *b, nmlp_affine tile, nmlp_size parts) {
    return line(b, b->stood, parts, tile, nmlp_size_const(1));
}

nmlp_buf_ref nmlp_strip_row_scale(const nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine column,
                                  nmlp_size columns, nmlp_size rows) {
    return line(b, w->scale[1], rows, column, columns);
}
