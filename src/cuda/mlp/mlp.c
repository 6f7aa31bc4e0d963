/* The MLP alone: weights, intermediates and a program for one number of rows. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cuda/mlp/mlp_plan.h"
#include "cuda/mlp/mlp_gemm.h"
#include "cuda/decode/decode_plan.h"

/* What runs it. */
typedef enum mlp_kernel { MLP_GEMM, MLP_DECODE, MLP_ROWS32, MLP_CLUSTER4 } mlp_kernel;

struct nmlp_cuda_mlp {
    nmlp_cuda_device device;
    nmlp_cuda_arena arena;
    nmlp_cuda_mlp_weights weights;
    bool fused; /* one launch, else GEMMs */
    mlp_kernel kernel;
    bool portable; /* as on older chips */
    int32_t s;
    int32_t hidden;
    int32_t pitch;  /* of x and y */
    float *x;       /* [S, pitch] */
    void *x_narrow; /* bf16, or NULL where f32 is read */
    float *y;
    nmlp_cuda_decode_program program; /* of MLP_DECODE */
    nmlp_cuda_mlp_rows32_program rows32;
    nmlp_cuda_mlp_cluster4_program cluster4;
    nmlp_cuda_mlp_gemm_buffers rows; /* of MLP_GEMM */
    nmlp_cuda_blas *blas;
    cudaStream_t stream;
    char text[512];
};

static void describe(nmlp_cuda_mlp *mlp, const nmlp_cuda_decode_plan *plan) {
    int at = snprintf(mlp->text, sizeof mlp->text, "stages=%d", mlp->program.n_stages);
    for (size_t i = 0; i < plan->n_phases && at > 0 && (size_t)at < sizeof mlp->text; i++) {
        const nmlp_cuda_decode_phase *ph = &plan->phases[i];
        at += snprintf(mlp->text + at, sizeof mlp->text - (size_t)at, " matmul=%dx%d/%d%s", ph->n, ph->op[0].k,
                       ph->n_chunks, ph->parts ? "joined" : "");
    }
}

/* Up to NMLP_CUDA_DECODE_ROWS_MAX rows. */
static nmlp_status plan_decode(nmlp_cuda_mlp *mlp, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cuda_decode_plan plan;
    nmlp_cuda_decode_rows x = {.x = mlp->x, .pitch = mlp->pitch, .parts = 1, .cols = mlp->pitch};
    nmlp_cuda_decode_plan_init(&plan, &mlp->device, &mlp->arena, mlp->s);
    NMLP_TRY(nmlp_cuda_decode_plan_mlp(&plan, &mlp->weights, &x, NMLP_CUDA_DECODE_STORE, mlp->y, err));
    NMLP_TRY(nmlp_cuda_decode_plan_finish(&plan, &mlp->program, err));
    describe(mlp, &plan);
out:
    nmlp_cuda_decode_plan_fini(&plan);
    return st;
}

static nmlp_cuda_mlp_call call_of(const nmlp_cuda_mlp *mlp) {
    return (nmlp_cuda_mlp_call){.weights = &mlp->weights,
                                .x = mlp->x_narrow,
                                .y = mlp->y,
                                .x_pitch = mlp->pitch,
                                .y_pitch = mlp->pitch,
                                .s = mlp->s};
}

static nmlp_status plan_rows32(nmlp_cuda_mlp *mlp, nmlp_err *err) {
    const nmlp_cuda_mlp_call call = call_of(mlp);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_mlp_rows32_plan(&mlp->rows32, &call, NULL, &mlp->device, &mlp->arena, err));
    const nmlp_cuda_mlp_rows32_program *p = &mlp->rows32;
    int at = snprintf(mlp->text, sizeof mlp->text, "stages=%dx%d", p->n_stages, p->stage_bytes);
    for (int32_t i = 0; i < p->n_phases && at > 0 && (size_t)at < sizeof mlp->text; i++)
        at += snprintf(mlp->text + at, sizeof mlp->text - (size_t)at, " matmul=%dx%d/%dx%d", p->phase[i].n,
                       p->phase[i].f[0].k, p->phase[i].n_row_tiles, p->phase[i].n_splits);
    return NMLP_OK;
}

static nmlp_status plan_cluster4(nmlp_cuda_mlp *mlp, nmlp_err *err) {
    const nmlp_cuda_mlp_call call = call_of(mlp);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_mlp_cluster4_plan(&mlp->cluster4, &call, NULL, &mlp->device, &mlp->arena, err));
    const nmlp_cuda_mlp_cluster4_program *p = &mlp->cluster4;
    int at =
        snprintf(mlp->text, sizeof mlp->text, "clusters=%d stages=%dx%d", p->n_clusters, p->n_stages, p->stage_bytes);
    for (int32_t i = 0; i < p->n_products && at > 0 && (size_t)at < sizeof mlp->text; i++)
        at += snprintf(mlp->text + at, sizeof mlp->text - (size_t)at, " matmul=%dx%d/%dx%d", p->product[i].n,
                       p->product[i].blocks * NMLP_CUDA_MLP_CLUSTER4_COLS, p->product[i].n_passes,
                       p->product[i].stage_n8);
    return NMLP_OK;
}

/* More rows than a few, on clusters where there are such and their shared memory is enough. */
static mlp_kernel choose_kernel(const nmlp_cuda_mlp *mlp) {
    const nmlp_cuda_mlp_call call = call_of(mlp);
    if (!mlp->fused) return MLP_GEMM;
    if (mlp->s <= NMLP_CUDA_DECODE_ROWS_MAX) return MLP_DECODE;
    return !mlp->portable && nmlp_cuda_mlp_cluster4_fits(&call, &mlp->device) ? MLP_CLUSTER4 : MLP_ROWS32;
}

/* Called twice, see decode_plan.h. */
static nmlp_status lay_out(nmlp_cuda_mlp *mlp, const nmlp_factors m[NMLP_MLP_MATRICES], nmlp_err *err) {
    nmlp_cuda_arena *arena = &mlp->arena;
    NMLP_RETURN_IF_FAILED(
        nmlp_cuda_upload_mlp(&mlp->weights, arena, &m[NMLP_MLP_GATE], &m[NMLP_MLP_UP], &m[NMLP_MLP_DOWN], err));
    size_t bytes = (size_t)mlp->s * (size_t)mlp->pitch * sizeof(float);
    mlp->x = nmlp_cuda_arena_take(arena, bytes);
    mlp->y = nmlp_cuda_arena_take(arena, bytes);
    mlp->kernel = choose_kernel(mlp);
    if (mlp->kernel != MLP_DECODE) mlp->x_narrow = nmlp_cuda_arena_take(arena, bytes / 2);
    if (mlp->kernel == MLP_GEMM) {
        const nmlp_cuda_mlp_weights *all[] = {&mlp->weights};
        nmlp_cuda_mlp_gemm_buffers_take(&mlp->rows, arena, all, 1, mlp->s);
        void *workspace = nmlp_cuda_arena_take(arena, NMLP_CUDA_BLAS_WORKSPACE_BYTES);
        if (!arena->committed) return NMLP_OK;
        NMLP_RETURN_IF_FAILED(nmlp_cuda_blas_create(&mlp->blas, workspace, !mlp->portable, err));
        nmlp_cuda_blas_measure(mlp->blas, true); /* it runs for one number of rows only */
        snprintf(mlp->text, sizeof mlp->text, "matmuls=%s", nmlp_cuda_blas_has_library(mlp->blas) ? "cublaslt" : "own");
        return NMLP_OK;
    }
    if (mlp->kernel == MLP_CLUSTER4) return plan_cluster4(mlp, err);
    return mlp->kernel == MLP_ROWS32 ? plan_rows32(mlp, err) : plan_decode(mlp, err);
}

/* Of all matrices, in bf16. */
static size_t weight_bytes(const nmlp_factors m[NMLP_MLP_MATRICES]) {
    int64_t elems = 0;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        const nmlp_view *views[] = {&m[i].w, &m[i].u, &m[i].v};
        for (int j = 0; j < 3; j++)
            if (views[j]->data) elems += nmlp_view_elems(views[j]);
    }
    return 2 * (size_t)elems;
}

/* What was measured faster (docs/performance-gpu.md), with clusters and without. */
int32_t nmlp_cuda_mlp_fused_rows(const nmlp_cuda_device *device, size_t weight_bytes) {
    const int32_t rows_large = device->n_clusters ? 16 : 8;
    const size_t small_bytes = (size_t)(device->n_clusters ? 170 : 100) << 20;
    return weight_bytes <= small_bytes || !nmlp_cuda_blas_available() ? NMLP_CUDA_MLP_ROWS_MAX : rows_large;
}

static bool should_fuse(const nmlp_cuda_device *device, const nmlp_factors m[NMLP_MLP_MATRICES], int64_t s,
                        nmlp_cuda_path path) {
    if (path == NMLP_CUDA_PATH_GEMM) return false;
    return s <=
           (path == NMLP_CUDA_PATH_AUTO ? nmlp_cuda_mlp_fused_rows(device, weight_bytes(m)) : NMLP_CUDA_MLP_ROWS_MAX);
}

static nmlp_status check_rows(int64_t s, nmlp_cuda_path path, nmlp_err *err) {
    if (s < 1 || s > INT32_MAX / 2) return nmlp_fail(err, NMLP_E_ARG, "an MLP of %lld rows", (long long)s);
    if (path == NMLP_CUDA_PATH_FUSED && s > NMLP_CUDA_MLP_ROWS_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "the fused kernel takes up to %d rows, not %lld", NMLP_CUDA_MLP_ROWS_MAX,
                         (long long)s);
    return NMLP_OK;
}

nmlp_status nmlp_cuda_mlp_create(nmlp_cuda_mlp **out, const nmlp_factors m[NMLP_MLP_MATRICES], int64_t s,
                                 nmlp_cuda_path path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check_rows(s, path, err));
    nmlp_cuda_mlp *mlp = nmlp_mem_new(1, sizeof *mlp, err);
    if (!mlp) return NMLP_E_NOMEM;
    nmlp_cuda_arena_init(&mlp->arena);
    mlp->portable = path == NMLP_CUDA_PATH_PORTABLE;
    mlp->s = (int32_t)s;
    mlp->hidden = (int32_t)nmlp_factors_rows(&m[NMLP_MLP_DOWN]);
    mlp->pitch = nmlp_cuda_pad(mlp->hidden);
    NMLP_TRY(nmlp_cuda_device_open(&mlp->device, err));
    mlp->fused = should_fuse(&mlp->device, m, s, path);
    NMLP_TRY(lay_out(mlp, m, err));
    NMLP_TRY(nmlp_cuda_arena_commit(&mlp->arena, "the MLP", err));
    NMLP_TRY(lay_out(mlp, m, err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaDeviceSynchronize(), "uploading the MLP", err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaStreamCreateWithFlags(&mlp->stream, cudaStreamNonBlocking), "making a stream", err));
    *out = mlp;
out:
    if (st != NMLP_OK) nmlp_cuda_mlp_destroy(mlp);
    return st;
}

void nmlp_cuda_mlp_destroy(nmlp_cuda_mlp *mlp) {
    if (!mlp) return;
    if (mlp->stream) (void)cudaStreamDestroy(mlp->stream);
    nmlp_cuda_blas_destroy(mlp->blas);
    nmlp_cuda_arena_release(&mlp->arena);
    nmlp_mem_free(mlp);
}

size_t nmlp_cuda_mlp_weight_bytes(const nmlp_cuda_mlp *mlp) { return nmlp_cuda_mlp_weights_bytes(&mlp->weights); }

void nmlp_cuda_mlp_describe(const nmlp_cuda_mlp *mlp, char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "%s", mlp->text);
}

static nmlp_status enqueue(nmlp_cuda_mlp *mlp, cudaStream_t stream, nmlp_err *err) {
    static const char doing[] = "launching the fused MLP";
    switch (mlp->kernel) {
    case MLP_DECODE:
        return NMLP_CUDA_CHECK(nmlp_cuda_decode_launch(&mlp->program, mlp->device.n_blocks, stream), doing, err);
    case MLP_ROWS32:
        return NMLP_CUDA_CHECK(nmlp_cuda_mlp_rows32_launch(&mlp->rows32, mlp->device.n_blocks, stream), doing, err);
    case MLP_CLUSTER4: return NMLP_CUDA_CHECK(nmlp_cuda_mlp_cluster4_launch(&mlp->cluster4, stream), doing, err);
    case MLP_GEMM: break;
    }
    nmlp_cuda_mlp_gemm many = {.w = &mlp->weights,
                               .rows = &mlp->rows,
                               .x = mlp->x_narrow,
                               .y = mlp->y,
                               .s = mlp->s,
                               .n_multiprocessors = mlp->device.n_blocks,
                               .portable = mlp->portable,
                               .blas = mlp->blas,
                               .stream = stream};
    return nmlp_cuda_mlp_gemm_run(&many, err);
}

/* More than a few rows are given in bf16; the conversion is not part of the MLP. */
static nmlp_status narrow_input(nmlp_cuda_mlp *mlp, nmlp_err *err) {
    if (!mlp->x_narrow) return NMLP_OK;
    return NMLP_CUDA_CHECK(nmlp_cuda_launch_narrow(mlp->x_narrow, mlp->x, (int64_t)mlp->s * mlp->pitch, mlp->stream),
                           "launching a conversion", err);
}

nmlp_status nmlp_cuda_mlp_run(nmlp_cuda_mlp *mlp, float *y, const float *x, nmlp_err *err) {
    size_t row_bytes = (size_t)mlp->hidden * sizeof *x;
    size_t pitch_bytes = (size_t)mlp->pitch * sizeof *x;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaMemcpy2DAsync(mlp->x, pitch_bytes, x, row_bytes, row_bytes,
                                                            (size_t)mlp->s, cudaMemcpyHostToDevice, mlp->stream),
                                          "uploading the input", err));
    NMLP_RETURN_IF_FAILED(narrow_input(mlp, err));
    NMLP_RETURN_IF_FAILED(enqueue(mlp, mlp->stream, err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaStreamSynchronize(mlp->stream), "running the MLP", err));
    return NMLP_CUDA_CHECK(
        cudaMemcpy2D(y, row_bytes, mlp->y, pitch_bytes, row_bytes, (size_t)mlp->s, cudaMemcpyDeviceToHost),
        "fetching the output", err);
}

/* Few rows are over soon, and launching a graph takes some microseconds: that many of them share it. */
enum { TIMED_MAX = 1000, RUNS_PER_GRAPH = 16 };

/* Times launches of `graph`; each stands for `per_launch` runs. */
static nmlp_status time_graph(cudaGraphExec_t graph, cudaStream_t stream, int per_launch, int n_timed,
                              double *median_us, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    float ms[TIMED_MAX];
    cudaEvent_t begin = NULL;
    cudaEvent_t end = NULL;
    if (n_timed > TIMED_MAX) n_timed = TIMED_MAX;
    NMLP_TRY(NMLP_CUDA_CHECK(cudaEventCreate(&begin), "making an event", err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaEventCreate(&end), "making an event", err));
    for (int i = -3; i < n_timed; i++) {
        NMLP_TRY(NMLP_CUDA_CHECK(cudaEventRecord(begin, stream), "recording an event", err));
        NMLP_TRY(NMLP_CUDA_CHECK(cudaGraphLaunch(graph, stream), "launching a graph", err));
        NMLP_TRY(NMLP_CUDA_CHECK(cudaEventRecord(end, stream), "recording an event", err));
        NMLP_TRY(NMLP_CUDA_CHECK(cudaEventSynchronize(end), "running a graph", err));
        if (i >= 0) NMLP_TRY(NMLP_CUDA_CHECK(cudaEventElapsedTime(&ms[i], begin, end), "reading events", err));
    }
    *median_us = 1e3 * (double)nmlp_cuda_median(ms, n_timed) / per_launch;
out:
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    return st;
}

#ifdef NMLP_CUDA_CLOCKS
/* One more run of each, and what the clocks said in the last. */
static nmlp_status run_with_clocks(nmlp_cuda_mlp *const *mlps, int n, nmlp_err *err) {
    for (int i = n - 1; i >= 0; i--) NMLP_RETURN_IF_FAILED(enqueue(mlps[i], mlps[0]->stream, err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaStreamSynchronize(mlps[0]->stream), "running with clocks", err));
    return nmlp_cuda_decode_print_clocks(&mlps[0]->program, mlps[0]->device.n_blocks, err);
}
#endif

nmlp_status nmlp_cuda_mlp_time(nmlp_cuda_mlp *const *mlps, int n, int n_timed, double *median_us, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    cudaStream_t stream = mlps[0]->stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const int rounds = mlps[0]->s > NMLP_CUDA_MLP_ROWS_MAX ? 1 : (RUNS_PER_GRAPH + n - 1) / n;
    *median_us = 0;
    for (int i = 0; i < n; i++) {
        NMLP_TRY(narrow_input(mlps[i], err));
        NMLP_TRY(enqueue(mlps[i], mlps[i]->stream, err));
        NMLP_TRY(NMLP_CUDA_CHECK(cudaStreamSynchronize(mlps[i]->stream), "warming up", err));
    }
    NMLP_TRY(
        NMLP_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a graph", err));
    for (int i = 0; i < n * rounds && st == NMLP_OK; i++) st = enqueue(mlps[i % n], stream, err);
    cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (st != NMLP_OK) goto out;
    NMLP_TRY(NMLP_CUDA_CHECK(ended, "ending a graph", err));
    NMLP_TRY(NMLP_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0), "instantiating a graph", err));
    st = time_graph(exec, stream, n * rounds, n_timed, median_us, err);
#ifdef NMLP_CUDA_CLOCKS
    if (st == NMLP_OK && mlps[0]->kernel == MLP_DECODE) st = run_with_clocks(mlps, n, err);
#endif
out:
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (graph) (void)cudaGraphDestroy(graph);
    return st;
}
