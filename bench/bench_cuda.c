/* The GPU's MLP against its bytes: CSV on stdout, one line per shape and number of rows.
 *
 * Weights go round as many copies of the MLP as make four times the L2 cache, captured as one graph of at least 16 runs
 * (one round above 32 rows); the time is the median over launches divided by the runs. tb_s is bytes of weights over
 * time, share_of_copy that over the rate of a device-to-device copy, bytes read plus bytes written. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/cuda.h"

struct shape {
    const char *model;
    int64_t hidden;
    int64_t intermediate;
    double ratio;
    int64_t rank; /* 0: dense */
};

static const struct shape shapes[] = {
    {"llama-3.2-1b", 2048, 8192, 0.0, 0},     {"llama-3.2-1b", 2048, 8192, 0.2, 1280},
    {"llama-3.2-1b", 2048, 8192, 0.5, 768},   {"qwen3-4b", 2560, 9728, 0.0, 0},
    {"qwen3-4b", 2560, 9728, 0.2, 1536},      {"llama-3.1-8b", 4096, 14336, 0.0, 0},
    {"llama-3.1-8b", 4096, 14336, 0.2, 2432}, {"llama-3.1-8b", 4096, 14336, 0.5, 1536},
};

enum { COPIES_MAX = 64, TIMED = 200, TIMED_LARGE = 30 };

/* bf16 values around 0 of a size that keeps outputs near 1; cheap to make. */
static nmlp_view random_matrix(int64_t n, int64_t k, uint64_t seed) {
    nmlp_rng rng;
    uint16_t *bits = nmlp_mem_new((size_t)(n * k), sizeof *bits, NULL);
    if (!bits) exit(1);
    nmlp_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n * k; i += 4) {
        uint64_t r = nmlp_rng_next(&rng);
        for (int64_t j = i; j < i + 4 && j < n * k; j++, r >>= 16)
            bits[j] = (uint16_t)(0x3c00u + (r & 0x81ffu) - 0x0080u); /* ±0.004 to 0.06 */
    }
    return nmlp_view_2d(bits, NMLP_DTYPE_BF16, n, k);
}

static void free_view(nmlp_view *view) { nmlp_mem_free((void *)(uintptr_t)view->data); }

static nmlp_factors random_factors(int64_t n, int64_t k, int64_t rank) {
    nmlp_factors f = {0};
    if (rank == 0) {
        f.w = random_matrix(n, k, 1);
    } else {
        f.u = random_matrix(n, rank, 2);
        f.v = random_matrix(rank, k, 3);
    }
    return f;
}

static int die(const nmlp_err *err) {
    fprintf(stderr, "bench_cuda: %s\n", err->message);
    return 1;
}

static nmlp_status time_shape(const struct shape *s, int64_t rows, nmlp_cuda_path path, size_t l2_bytes,
                              double copy_rate, nmlp_err *err) {
    nmlp_cuda_mlp *mlps[COPIES_MAX] = {0};
    nmlp_status st = NMLP_OK;
    double us = 0;
    char plan[512];
    int n = 0;
    nmlp_factors m[] = {random_factors(s->intermediate, s->hidden, s->rank),
                        random_factors(s->intermediate, s->hidden, s->rank),
                        random_factors(s->hidden, s->intermediate, s->rank)};
    size_t bytes = 0;
    int64_t elems = rows * s->hidden;
    nmlp_rng rng;
    float *x = nmlp_mem_new((size_t)elems, sizeof *x, err);
    float *y = nmlp_mem_new((size_t)elems, sizeof *y, err);
    if (!x || !y) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_rng_seed(&rng, 7);
    for (int64_t i = 0; i < elems; i++) x[i] = (float)(2 * nmlp_rng_uniform(&rng) - 1);
    do {
        NMLP_TRY(nmlp_cuda_mlp_create(&mlps[n], m, rows, path, err));
        NMLP_TRY(nmlp_cuda_mlp_run(mlps[n], y, x, err)); /* the input stays; zeros would be faster than real data */
        bytes += nmlp_cuda_mlp_weight_bytes(mlps[n++]);
    } while (n < COPIES_MAX && bytes < 4 * l2_bytes);
    NMLP_TRY(nmlp_cuda_mlp_time(mlps, n, rows > 32 ? TIMED_LARGE : TIMED, &us, err));
    double one = (double)nmlp_cuda_mlp_weight_bytes(mlps[0]);
    double flops = one * (double)rows;
    nmlp_cuda_mlp_describe(mlps[0], plan, sizeof plan);
    printf("%s,%.1f,%" PRId64 ",%" PRId64 ",%.0f,%.2f,%.3f,%.3f,%.1f,%s\n", s->model, s->ratio, s->rank, rows, one, us,
           1e-6 * one / us, 1e6 * one / us / copy_rate, 1e-6 * flops / us, plan);
    fflush(stdout);
out:
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    for (int i = 0; i < COPIES_MAX; i++) nmlp_cuda_mlp_destroy(mlps[i]);
    for (int i = 0; i < 3; i++) {
        free_view(&m[i].w);
        free_view(&m[i].u);
        free_view(&m[i].v);
    }
    return st;
}

/* bench_cuda [ROWS,ROWS,... [MODEL [stream]]]; "stream" leaves the matmul path out. */
int main(int argc, char **argv) {
    nmlp_cuda_info info;
    nmlp_err err;
    double copy_rate = 0;
    const char *rows = argc > 1 ? argv[1] : "1,8,32,2048,8192";
    if (nmlp_cuda_probe(&info, &err) != NMLP_OK || nmlp_cuda_copy_rate(&copy_rate, &err) != NMLP_OK) return die(&err);
    printf("# %s, %d multiprocessors, L2 %.0f MB, copy %.2f TB/s (read + write)\n", info.name, info.n_multiprocessors,
           1e-6 * (double)info.l2_bytes, 1e-12 * copy_rate);
    printf("model,ratio,rank,rows,weight_bytes,median_us,tb_s,share_of_copy,tflop_s,plan\n");
    for (const char *at = rows; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (argc > 2 && strcmp(argv[2], "all") != 0 && strcmp(argv[2], shapes[i].model) != 0) continue;
            int64_t n = atoll(at);
            if (n <= 32 && time_shape(&shapes[i], n, NMLP_CUDA_PATH_FUSED, info.l2_bytes, copy_rate, &err) != NMLP_OK)
                return die(&err);
            if (argc > 3 && strcmp(argv[3], "stream") == 0) continue;
            if (time_shape(&shapes[i], n, NMLP_CUDA_PATH_GEMM, info.l2_bytes, copy_rate, &err) != NMLP_OK)
                return die(&err);
        }
    }
    return 0;
}
