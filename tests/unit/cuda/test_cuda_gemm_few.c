/* GEMMs of few rows against float64: the one that holds all it reads, with 1/rms of its rows and the residual stream,
 * and the one that W streams through. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/batch/gemm_resident_plan.h"
#include "cuda/batch/gemm_stream_plan.h"
#include "cuda/device.h"
#include "lib/gpu.h"
#include "lib/testing.h"
#include "tensor/dtype.h"

static const float eps = 1e-5f;

/* Y [s,n] = X [s,k] W^T; k a multiple of 64. */
struct shape {
    int32_t n;
    int32_t k;
    int32_t s;
};

static const struct shape shapes[] = {{16, 64, 1},     {48, 64, 3},      {100, 192, 17},   {250, 576, 8},
                                      {1000, 1024, 9}, {2048, 2048, 8},  {2048, 2048, 16}, {2048, 2048, 32},
                                      {3072, 2048, 8}, {3072, 2048, 16}, {3072, 2048, 32}, {3070, 2048, 29}};

/* One tile, tiles of every height, more than one for each block, more slabs than a ring has stages. */
static const struct shape long_shapes[] = {{1, 64, 1},      {70, 192, 3},     {8448, 128, 8},    {9000, 1024, 11},
                                           {20001, 576, 5}, {8500, 2560, 32}, {17000, 1024, 17}, {4000, 2048, 32}};

/* On both sides. bf16 as its bits. */
struct problem {
    struct shape shape;
    int32_t pitch; /* of results */
    uint16_t *w;
    uint16_t *x;
    float *squares; /* [s, pitch / 8] of the rows of X, made up */
    float *hidden;
    float *bias;
    float *weight;
    nmlp_cuda_device device;
    nmlp_cuda_arena arena;
    void *d_w;
    void *d_x;
    float *d_squares;
    float *d_hidden;
    float *d_bias;
    float *d_weight;
    float *d_y;
    void *d_next;
    float *d_next_squares;
    nmlp_cuda_gemm_resident gemm;
    nmlp_cuda_gemm_stream stream;
};

static void cuda_ok(int code) {
    nmlp_err err;
    nmlp_assert_ok(nmlp_cuda_status(code, "testing", &err), &err);
}

static uint16_t *random_bf16(nmlp_rng *rng, int64_t n) {
    uint16_t *v = nmlp_mem_new((size_t)n, sizeof *v, NULL);
    for (int64_t i = 0; i < n; i++) v[i] = nmlp_f32_to_bf16((float)nmlp_rng_normal(rng));
    return v;
}

static float *random_floats(nmlp_rng *rng, int64_t n) {
    float *v = nmlp_mem_new((size_t)n, sizeof *v, NULL);
    for (int64_t i = 0; i < n; i++) v[i] = (float)nmlp_rng_normal(rng);
    return v;
}

static int32_t n_parts(const struct problem *p) { return p->pitch / NMLP_CUDA_SQUARES_COLS; }

static void lay_out(struct problem *p) {
    nmlp_err err;
    nmlp_cuda_arena *a = &p->arena;
    const struct shape s = p->shape;
    size_t results = (size_t)s.s * (size_t)p->pitch;
    size_t squares = (size_t)s.s * (size_t)n_parts(p) * sizeof(float);
    p->d_w = nmlp_cuda_arena_take(a, (size_t)s.n * (size_t)s.k * 2);
    p->d_x = nmlp_cuda_arena_take(a, (size_t)s.s * (size_t)s.k * 2);
    p->d_squares = nmlp_cuda_arena_take(a, squares);
    p->d_hidden = nmlp_cuda_arena_take(a, results * sizeof(float));
    p->d_bias = nmlp_cuda_arena_take(a, (size_t)p->pitch * sizeof(float));
    p->d_weight = nmlp_cuda_arena_take(a, (size_t)p->pitch * sizeof(float));
    p->d_y = nmlp_cuda_arena_take(a, results * sizeof(float));
    p->d_next = nmlp_cuda_arena_take(a, results * 2);
    p->d_next_squares = nmlp_cuda_arena_take(a, squares);
    const nmlp_cuda_matrix w = {.data = p->d_w, .n = s.n, .k = s.k};
    const nmlp_cuda_gemm_call call = {.w = &w, .x = p->d_x, .y = p->d_y, .x_pitch = s.k, .y_pitch = p->pitch, .s = s.s};
    nmlp_assert_ok(nmlp_cuda_gemm_resident_plan(&p->gemm, &call, &p->device, a, &err), &err);
    nmlp_assert_ok(nmlp_cuda_gemm_stream_plan(&p->stream, &call, &p->device, a, &err), &err);
}

static void upload(void *to, const void *from, size_t bytes) {
    cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

static void upload_all(const struct problem *p) {
    const struct shape s = p->shape;
    size_t results = (size_t)s.s * (size_t)p->pitch;
    upload(p->d_w, p->w, (size_t)s.n * (size_t)s.k * 2);
    upload(p->d_x, p->x, (size_t)s.s * (size_t)s.k * 2);
    upload(p->d_squares, p->squares, (size_t)s.s * (size_t)n_parts(p) * sizeof(float));
    upload(p->d_hidden, p->hidden, results * sizeof(float));
    upload(p->d_bias, p->bias, (size_t)p->pitch * sizeof(float));
    upload(p->d_weight, p->weight, (size_t)p->pitch * sizeof(float));
}

static void open_problem(struct problem *p, struct shape shape) {
    nmlp_err err;
    nmlp_rng rng;
    memset(p, 0, sizeof *p);
    nmlp_rng_seed(&rng, (uint64_t)(shape.n + shape.s));
    p->shape = shape;
    p->pitch = nmlp_cuda_pad(shape.n);
    p->w = random_bf16(&rng, (int64_t)shape.n * shape.k);
    p->x = random_bf16(&rng, (int64_t)shape.s * shape.k);
    p->squares = random_floats(&rng, (int64_t)shape.s * n_parts(p));
    p->hidden = random_floats(&rng, (int64_t)shape.s * p->pitch);
    p->bias = random_floats(&rng, p->pitch);
    p->weight = random_floats(&rng, p->pitch);
    for (int32_t i = 0; i < shape.s * n_parts(p); i++) p->squares[i] *= p->squares[i];
    nmlp_assert_ok(nmlp_cuda_device_open(&p->device, &err), &err);
    nmlp_cuda_arena_init(&p->arena);
    lay_out(p);
    nmlp_assert_ok(nmlp_cuda_arena_commit(&p->arena, "a test", &err), &err);
    lay_out(p);
    upload_all(p);
}

static void close_problem(struct problem *p) {
    nmlp_cuda_arena_release(&p->arena);
    nmlp_mem_free(p->w);
    nmlp_mem_free(p->x);
    nmlp_mem_free(p->squares);
    nmlp_mem_free(p->hidden);
    nmlp_mem_free(p->bias);
    nmlp_mem_free(p->weight);
}

/* Of a row of X and one of W, and how large its terms are. */
static double dot(const struct problem *p, int32_t token, int32_t row, double *size) {
    const uint16_t *x = p->x + (int64_t)token * p->shape.k;
    const uint16_t *w = p->w + (int64_t)row * p->shape.k;
    double sum = 0;
    double squares = 0;
    for (int32_t i = 0; i < p->shape.k; i++) {
        double term = (double)nmlp_bf16_to_f32(x[i]) * (double)nmlp_bf16_to_f32(w[i]);
        sum += term;
        squares += term * term;
    }
    *size = sqrt(squares);
    return sum;
}

static double scale_of(const struct problem *p, int32_t token) {
    double sum = 0;
    for (int32_t i = 0; i < n_parts(p); i++) sum += (double)p->squares[(int64_t)token * n_parts(p) + i];
    return 1.0 / sqrt(sum / p->shape.k + (double)eps);
}

static void near(double got, double want, double allowed, const struct problem *p, const char *what, int32_t token,
                 int32_t row) {
    if (fabs(got - want) <= allowed) return;
    fail_msg("[%d,%d] x %d rows: %s of token %d, row %d is %g, not %g", p->shape.n, p->shape.k, p->shape.s, what, token,
             row, got, want);
}

/* Of the terms' size, the root of their squares. Sums are up to some four times that, and at each of up to 160 steps of
 * 16 terms the tensor cores cut off what is below 2^-23 of a sum, half of that on average. */
static const double allowed_of_terms = 0x1p-14;

/* Of eight significant bits half of the last is u / (1 + u) of the value at most, u = 2^-8; that is 2^-16 less than u,
 * and the product is rounded to f32 before, by 2^-24. */
static const double allowed_of_bf16 = 0x1p-8;

static void check_plain(struct problem *p, const float *y, bool scaled) {
    double size;
    for (int32_t t = 0; t < p->shape.s; t++) {
        double scale = scaled ? scale_of(p, t) : 1;
        for (int32_t r = 0; r < p->shape.n; r++) {
            double want = dot(p, t, r, &size) * scale;
            near((double)y[(int64_t)t * p->pitch + r], want, size * scale * allowed_of_terms + 0x1p-20 * fabs(want), p,
                 "the result", t, r);
        }
    }
}

static void check_residual(struct problem *p, const float *hidden, const uint16_t *next, const float *squares) {
    double size;
    for (int32_t t = 0; t < p->shape.s; t++) {
        double sum = 0;
        for (int32_t r = 0; r < p->shape.n; r++) {
            int64_t at = (int64_t)t * p->pitch + r;
            double want = dot(p, t, r, &size) + (double)p->hidden[at] + (double)p->bias[r];
            double x = (double)hidden[at] * (double)p->weight[r];
            near((double)hidden[at], want, size * allowed_of_terms + 0x1p-20 * fabs(want), p, "hidden", t, r);
            near((double)nmlp_bf16_to_f32(next[at]), x, fabs(x) * allowed_of_bf16, p, "the next input", t, r);
            sum += (double)hidden[at] * (double)hidden[at];
            if (r % NMLP_CUDA_SQUARES_COLS != NMLP_CUDA_SQUARES_COLS - 1 && r + 1 < p->shape.n) continue;
            near((double)squares[(int64_t)t * n_parts(p) + r / NMLP_CUDA_SQUARES_COLS], sum, sum * 0x1p-20, p,
                 "the sum of squares", t, r);
            sum = 0;
        }
    }
}

static void *fetch(const void *from, size_t bytes) {
    void *v = nmlp_mem_new(bytes, 1, NULL);
    cuda_ok(cudaMemcpy(v, from, bytes, cudaMemcpyDeviceToHost));
    return v;
}

static void run_plain(struct problem *p) {
    size_t bytes = (size_t)p->shape.s * (size_t)p->pitch * sizeof(float);
    p->gemm.scale =
        (nmlp_cuda_row_scale){.squares = p->d_squares, .n_parts = n_parts(p), .dim = p->shape.k, .eps = eps};
    cuda_ok(nmlp_cuda_gemm_resident_launch(&p->gemm, NULL));
    float *y = fetch(p->d_y, bytes);
    check_plain(p, y, true);
    for (int i = 0; i < 20; i++) cuda_ok(nmlp_cuda_gemm_resident_launch(&p->gemm, NULL));
    float *again = fetch(p->d_y, bytes);
    assert_memory_equal(y, again, bytes);
    nmlp_mem_free(y);
    nmlp_mem_free(again);
}

static void run_residual(struct problem *p) {
    size_t results = (size_t)p->shape.s * (size_t)p->pitch;
    p->gemm.scale = (nmlp_cuda_row_scale){0};
    p->gemm.residual = (nmlp_cuda_residual){.hidden = p->d_hidden,
                                            .bias = p->d_bias,
                                            .weight = p->d_weight,
                                            .x = p->d_next,
                                            .squares = p->d_next_squares,
                                            .pitch = p->pitch};
    cuda_ok(nmlp_cuda_gemm_resident_launch(&p->gemm, NULL));
    float *hidden = fetch(p->d_hidden, results * sizeof *hidden);
    uint16_t *next = fetch(p->d_next, results * sizeof *next);
    float *squares = fetch(p->d_next_squares, (size_t)p->shape.s * (size_t)n_parts(p) * sizeof *squares);
    check_residual(p, hidden, next, squares);
    nmlp_mem_free(hidden);
    nmlp_mem_free(next);
    nmlp_mem_free(squares);
}

static void run_stream(struct problem *p) {
    size_t bytes = (size_t)p->shape.s * (size_t)p->pitch * sizeof(float);
    cuda_ok(nmlp_cuda_gemm_stream_launch(&p->stream, NULL));
    float *y = fetch(p->d_y, bytes);
    check_plain(p, y, false);
    for (int i = 0; i < 20; i++) cuda_ok(nmlp_cuda_gemm_stream_launch(&p->stream, NULL));
    float *again = fetch(p->d_y, bytes);
    assert_memory_equal(y, again, bytes);
    nmlp_mem_free(y);
    nmlp_mem_free(again);
}

static void not_planned(const struct problem *p) {
    if (p->device.n_clusters) fail_msg("[%d,%d] x %d rows is not planned", p->shape.n, p->shape.k, p->shape.s);
}

static void few_rows_match_float64(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct problem p;
        open_problem(&p, shapes[i]);
        if (p.gemm.n8_tiles) {
            run_plain(&p);
            run_residual(&p);
        } else {
            not_planned(&p);
        }
        close_problem(&p);
    }
}

static void long_matrices_match_float64(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (size_t i = 0; i < sizeof long_shapes / sizeof long_shapes[0]; i++) {
        struct problem p;
        open_problem(&p, long_shapes[i]);
        if (p.stream.n_stages)
            run_stream(&p);
        else
            not_planned(&p);
        close_problem(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_rows_match_float64),
                                       cmocka_unit_test(long_matrices_match_float64)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
