/* What the device can do at best: limits that benchmarks hold their figures against. */
#include "base/mem.h"
#include "cuda/blas.h"
#include "cuda/device.h"

enum { RUNS = 20, MATMUL_SIZE = 8192 };

typedef nmlp_status run_once(void *ctx, nmlp_err *err);

/* Milliseconds of the middle one of several runs on the default stream. */
static nmlp_status time_runs(double *median_ms, run_once *run, void *ctx, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    cudaEvent_t events[RUNS + 1] = {0};
    float ms[RUNS];
    for (int i = 0; i <= RUNS; i++) NMLP_TRY(NMLP_CUDA_CHECK(cudaEventCreate(&events[i]), "making an event", err));
    for (int i = 0; i <= RUNS; i++) {
        NMLP_TRY(NMLP_CUDA_CHECK(cudaEventRecord(events[i], NULL), "recording an event", err));
        if (i < RUNS) NMLP_TRY(run(ctx, err));
    }
    NMLP_TRY(NMLP_CUDA_CHECK(cudaEventSynchronize(events[RUNS]), "waiting for a benchmark", err));
    for (int i = 0; i < RUNS; i++)
        NMLP_TRY(NMLP_CUDA_CHECK(cudaEventElapsedTime(&ms[i], events[i], events[i + 1]), "reading events", err));
    *median_ms = (double)nmlp_cuda_median(ms, RUNS);
out:
    for (int i = 0; i <= RUNS; i++)
        if (events[i]) (void)cudaEventDestroy(events[i]);
    return st;
}

/* ---- copies ---- */

struct copy {
    char *base;
    size_t bytes;
};

static nmlp_status run_copy(void *ctx, nmlp_err *err) {
    const struct copy *c = ctx;
    return NMLP_CUDA_CHECK(cudaMemcpyAsync(c->base + c->bytes, c->base, c->bytes, cudaMemcpyDeviceToDevice, NULL),
                           "copying", err);
}

nmlp_status nmlp_cuda_copy_rate(double *bytes_per_second, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cuda_arena arena;
    struct copy c = {.bytes = (size_t)2 << 30};
    double ms = 0;
    *bytes_per_second = 0;
    nmlp_cuda_arena_init(&arena);
    (void)nmlp_cuda_arena_take(&arena, 2 * c.bytes);
    NMLP_TRY(nmlp_cuda_arena_commit(&arena, "the copy benchmark", err));
    c.base = arena.base;
    NMLP_TRY(time_runs(&ms, run_copy, &c, err));
    *bytes_per_second = 2.0 * (double)c.bytes / (1e-3 * ms);
out:
    nmlp_cuda_arena_release(&arena);
    return st;
}

/* ---- matmuls ---- */

struct matmul {
    nmlp_cuda_blas *blas;
    nmlp_cuda_gemm gemm;
};

static nmlp_status run_matmul(void *ctx, nmlp_err *err) {
    struct matmul *m = ctx;
    return nmlp_cuda_blas_run(m->blas, &m->gemm, NULL, err);
}

/* Numbers of either sign below 1: zeros would be faster. */
static nmlp_status fill(char *to, size_t bytes, nmlp_err *err) {
    enum { BLOCK = 1 << 16 };
    nmlp_status st = NMLP_OK;
    uint32_t state = 1;
    uint16_t *block = nmlp_mem_new(BLOCK, sizeof *block, err);
    if (!block) return NMLP_E_NOMEM;
    for (int i = 0; i < BLOCK; i++) {
        state = state * 1664525u + 1013904223u;
        block[i] = (uint16_t)((state >> 16 & 0x807f) | 0x3f00); /* sign and mantissa */
    }
    for (size_t at = 0; at < bytes && st == NMLP_OK; at += BLOCK * sizeof *block)
        st = NMLP_CUDA_CHECK(cudaMemcpy(to + at, block, BLOCK * sizeof *block, cudaMemcpyHostToDevice),
                             "filling a matrix", err);
    nmlp_mem_free(block);
    return st;
}

/* x and w, then y, then the library's workspace. Called twice: to measure, and for real. */
static void *lay_out(nmlp_cuda_arena *arena, nmlp_cuda_gemm *g) {
    const size_t bytes = (size_t)MATMUL_SIZE * MATMUL_SIZE * 2;
    const int32_t n = MATMUL_SIZE;
    void *x = nmlp_cuda_arena_take(arena, 2 * bytes);
    void *y = nmlp_cuda_arena_take(arena, bytes);
    *g = (nmlp_cuda_gemm){
        .y = y, .x = x, .w = (char *)x + bytes, .s = n, .n = n, .k = n, .y_pitch = n, .x_pitch = n, .w_pitch = n};
    return nmlp_cuda_arena_take(arena, NMLP_CUDA_BLAS_WORKSPACE_BYTES);
}

nmlp_status nmlp_cuda_matmul_rate(double *flop_per_second, nmlp_err *err) {
    const double size = MATMUL_SIZE;
    nmlp_status st = NMLP_OK;
    nmlp_cuda_arena arena;
    struct matmul m = {0};
    double ms = 0;
    *flop_per_second = 0;
    nmlp_cuda_arena_init(&arena);
    (void)lay_out(&arena, &m.gemm);
    NMLP_TRY(nmlp_cuda_arena_commit(&arena, "the matmul benchmark", err));
    void *workspace = lay_out(&arena, &m.gemm);
    NMLP_TRY(fill(arena.base, 2 * (size_t)MATMUL_SIZE * MATMUL_SIZE * 2, err));
    NMLP_TRY(nmlp_cuda_blas_create(&m.blas, workspace, true, err));
    NMLP_TRY(time_runs(&ms, run_matmul, &m, err));
    *flop_per_second = 2 * size * size * size / (1e-3 * ms);
out:
    nmlp_cuda_blas_destroy(m.blas);
    nmlp_cuda_arena_release(&arena);
    return st;
}
