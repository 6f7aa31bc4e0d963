/* RMSNorm of a strip of x, features on partitions: x / sqrt(mean(x^2) + epsilon) for every row. Rows lie along the free
 * axis, so their sums of squares are products with a matrix of ones: these leave each sum on every partition, where the
 * division wants it. Weights of the norm are folded into the matrices that read x; codes of FP8 cannot hold them, so
 * that x is multiplied by them on chip. */
#include "trainium/plan/strip.h"

enum { SQUARE_COPIES = 2, ROOT_COPIES = 2, GAIN_QUEUE = 1 /* that of x, behind it */ };

/* Squares must not overflow: fp16 ones are bf16 here. */
static nmlp_nc_dtype square_dtype(const nmlp_kernel_request *rq) {
    return rq->dtype == NMLP_NC_FP32 ? NMLP_NC_FP32 : NMLP_NC_BF16;
}

int64_t nmlp_strip_norm_bytes(const nmlp_kernel_request *rq, int64_t tile, int64_t row_tiles) {
    if (rq->fuse.norm_e12 == 0) return 0;
    int64_t elem = (int64_t)nmlp_nc_dtype_bytes(square_dtype(rq));
    int64_t gain = rq->fp8 ? nmlp_ceil_div(rq->shape.h, (int64_t)rq->machine->partitions) : 0;
    return ((SQUARE_COPIES + 1) * tile + (int64_t)rq->machine->stationary_max) * elem +
           (ROOT_COPIES * row_tiles * tile + gain) * (int64_t)nmlp_nc_dtype_bytes(NMLP_NC_FP32);
}

static int add(nmlp_strip *b, const char *name, nmlp_nc_dtype dtype, int64_t partitions, int64_t length, int copies) {
    nmlp_buffer buffer = {.name = name,
                          .space = NMLP_SPACE_SBUF,
                          .dtype = dtype,
                          .partitions = (int)partitions,
                          .n_dims = 1,
                          .dims = {length},
                          .copies = copies};
    return nmlp_program_add_buffer(b->p, &buffer);
}

void nmlp_strip_declare_norm(nmlp_strip *b) {
    b->ones = b->eps = b->squares = b->root = b->gain = -1;
    if (b->rq->fuse.norm_e12 == 0) return;
    nmlp_nc_dtype dtype = square_dtype(b->rq);
    b->ones = add(b, "ones", dtype, b->parts, (int64_t)b->rq->machine->stationary_max, 1);
    b->eps = add(b, "eps", dtype, 1, b->s.tile, 1);
    b->squares = add(b, "squares", dtype, b->parts, b->s.tile, SQUARE_COPIES);
    nmlp_buffer root = {.name = "root",
                        .space = NMLP_SPACE_SBUF,
                        .dtype = NMLP_NC_FP32,
                        .partitions = (int)b->parts,
                        .n_dims = 2,
                        .dims = {nmlp_axis_tiles_per_block(b->s), b->s.tile},
                        .copies = ROOT_COPIES};
    b->root = nmlp_program_add_buffer(b->p, &root);
    if (!b->rq->fp8) return;
    int64_t h = b->rq->shape.h, tiles = nmlp_ceil_div(h, b->parts);
    b->gain_tensor =
        nmlp_program_add_tensor(b->p, NMLP_GAIN_TENSOR, NMLP_ROLE_WEIGHT, NMLP_NC_FP32, nmlp_min(h, b->parts), tiles);
    b->gain = add(b, "gain", NMLP_NC_FP32, b->parts, tiles, 1);
}

void nmlp_strip_load_gain(nmlp_strip *b) {
    if (b->gain < 0) return;
    const nmlp_tensor *t = &b->p->tensors[b->gain_tensor];
    nmlp_size parts = nmlp_size_const(t->rows), n = nmlp_size_const(t->cols);
    nmlp_affine zero = nmlp_affine_const(0);
    nmlp_buf_ref dst = nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, b->gain), 0, parts), 0, zero, n);
    nmlp_program_append_load(b->p, dst, nmlp_hbm_rect(b->gain_tensor, zero, parts, zero, n), GAIN_QUEUE);
}

void nmlp_strip_fill_norm(nmlp_strip *b) {
    if (b->rq->fuse.norm_e12 == 0) return;
    double epsilon = (double)b->rq->fuse.norm_e12 * 1e-12;
    nmlp_program_append_memset(b->p, nmlp_buf_all(b->p, b->ones), 1.0, NMLP_ENGINE_VECTOR);
    nmlp_program_append_memset(b->p, nmlp_buf_all(b->p, b->eps), epsilon * (double)b->rq->shape.h, NMLP_ENGINE_VECTOR);
}

/* The first `rows` elements of the first `parts` partitions. */
static nmlp_buf_ref corner(const nmlp_strip *b, int buffer, nmlp_size parts, nmlp_size rows) {
    return nmlp_buf_range(nmlp_buf_parts(nmlp_buf_all(b->p, buffer), 0, parts), 0, nmlp_affine_const(0), rows);
}

nmlp_buf_ref nmlp_strip_root(const nmlp_strip *b, int st, nmlp_size parts, nmlp_size rows) {
    nmlp_buf_ref root = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(b->p, b->root), 0, parts), 0, nmlp_at(st));
    return nmlp_buf_range(root, 1, nmlp_affine_const(0), rows);
}

static nmlp_buf_ref x_tile(const nmlp_strip *b, int tile, int st, nmlp_size parts, nmlp_size rows) {
    nmlp_buf_ref x = nmlp_buf_parts(nmlp_buf_all(b->p, b->xt), 0, parts);
    return nmlp_buf_range(nmlp_buf_at(nmlp_buf_at(x, 0, nmlp_at(tile)), 1, nmlp_at(st)), 2, nmlp_affine_const(0), rows);
}

static nmlp_size tile_parts(const nmlp_strip *b, int tile) {
    int64_t h = b->rq->shape.h;
    return h % b->parts == 0 ? nmlp_size_const(b->parts)
                             : nmlp_size_until(b->parts, h, nmlp_affine_var(tile, b->parts), 1);
}

/* In place: x has no other reader before. */
static void divide_x(nmlp_strip *b, int st, nmlp_size rows) {
    int t = nmlp_program_begin_loop(b->p, "nt", nmlp_size_const(nmlp_ceil_div(b->rq->shape.h, b->parts)), false);
    nmlp_size parts = tile_parts(b, t);
    nmlp_buf_ref x = x_tile(b, t, st, parts, rows);
    nmlp_program_append_tensor_tensor(b->p, x, x, nmlp_strip_root(b, st, parts, rows), NMLP_ALU_MUL,
                                      NMLP_ENGINE_VECTOR);
    nmlp_program_end(b->p);
}

static void multiply_x(nmlp_strip *b, int st, nmlp_size rows) {
    int t = nmlp_program_begin_loop(b->p, "ng", nmlp_size_const(nmlp_ceil_div(b->rq->shape.h, b->parts)), false);
    nmlp_size parts = tile_parts(b, t);
    nmlp_buf_ref x = x_tile(b, t, st, parts, rows), gain = nmlp_buf_parts(nmlp_buf_all(b->p, b->gain), 0, parts);
    nmlp_program_append_tensor_scalar(b->p, x, x, nmlp_buf_range(gain, 0, nmlp_at(t), nmlp_size_const(1)), NMLP_ALU_MUL,
                                      NMLP_ENGINE_VECTOR);
    nmlp_program_end(b->p);
}

void nmlp_strip_normalise(nmlp_strip *b, bool apply) {
    if (b->rq->fuse.norm_e12 == 0) return;
    int64_t h = b->rq->shape.h;
    nmlp_size all = nmlp_size_const(b->parts), columns = nmlp_size_const((int64_t)b->rq->machine->stationary_max);
    nmlp_program_add_comment(b->p, "norm: ones times squares leaves the sum of each row on every partition");
    nmlp_program_append_alloc(b->p, b->root);
    int st = nmlp_program_begin_loop(b->p, "ns", nmlp_axis_trips(b->s, b->strip), false);
    nmlp_size rows = nmlp_axis_tile_size(b->s, b->strip, st);
    nmlp_program_append_alloc(b->p, b->acc);
    nmlp_buf_ref sum = corner(b, b->acc, columns, rows);
    int k = nmlp_program_begin_loop(b->p, "nk", nmlp_size_const(nmlp_ceil_div(h, b->parts)), false);
    nmlp_size parts = tile_parts(b, k);
    nmlp_buf_ref x = x_tile(b, k, st, parts, rows), squares = corner(b, b->squares, parts, rows);
    nmlp_program_append_alloc(b->p, b->squares);
    nmlp_program_append_tensor_tensor(b->p, squares, x, x, NMLP_ALU_MUL, NMLP_ENGINE_VECTOR);
    nmlp_program_append_matmul(b->p, sum, corner(b, b->ones, parts, columns), squares, nmlp_accumulate_over(1, &k));
    nmlp_program_end(b->p);
    nmlp_program_append_matmul(b->p, sum, corner(b, b->ones, nmlp_size_const(1), columns),
                               corner(b, b->eps, nmlp_size_const(1), rows), nmlp_accumulate_always());
    nmlp_program_append_activation(b->p, nmlp_strip_root(b, st, all, rows), corner(b, b->acc, all, rows),
                                   NMLP_FUNC_RSQRT, 1.0 / (double)h);
    /* The norm's weights before the roots are there; but x times a weight may be more than fp16 holds. */
    bool late = b->rq->dtype == NMLP_NC_FP16;
    if (b->gain >= 0 && !late) multiply_x(b, st, rows);
    if (apply) divide_x(b, st, rows);
    if (b->gain >= 0 && late) multiply_x(b, st, rows);
    nmlp_program_end(b->p);
}
