#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda/mlp/mlp_rows32_sm80.h"
#include "cuda/decode/decode_program.h"
#include "cuda/mlp/mlp_cluster4_sm90.h"

enum { BLOCK_ALIGN_BYTES = 256, OLDEST_MAJOR = 8 };

nmlp_status nmlp_cuda_status(int code, const char *doing, nmlp_err *err) {
    cudaError_t e = (cudaError_t)code;
    if (e == cudaSuccess) return NMLP_OK;
    (void)cudaGetLastError();
    return nmlp_fail(err, e == cudaErrorMemoryAllocation ? NMLP_E_NOMEM : NMLP_E_IO, "CUDA: %s failed: %s (%s)", doing,
                     cudaGetErrorString(e), cudaGetErrorName(e));
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float nmlp_cuda_median(float *times, int n) {
    qsort(times, (size_t)n, sizeof *times, compare_floats);
    return times[n / 2];
}

nmlp_status nmlp_cuda_probe(nmlp_cuda_info *info, nmlp_err *err) {
    int n = 0;
    struct cudaDeviceProp prop;
    *info = (nmlp_cuda_info){0};
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        const char *why = e == cudaSuccess                   ? "none is visible"
                          : e == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one too old"
                                                             : cudaGetErrorString(e);
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "no CUDA device: %s", why);
        nmlp_fail_hint(err, "use the device cpu; a GPU needs a driver for CUDA %d.%d or newer", CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
        return NMLP_E_UNSUPPORTED;
    }
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaGetDeviceProperties(&prop, 0), "reading the device's properties", err));
    snprintf(info->name, sizeof info->name, "%s", prop.name);
    info->major = prop.major;
    info->minor = prop.minor;
    info->n_multiprocessors = prop.multiProcessorCount;
    info->l2_bytes = (size_t)prop.l2CacheSize;
    if (prop.major < OLDEST_MAJOR)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s has compute capability %d.%d; %d.0 or newer is needed", prop.name,
                         prop.major, prop.minor, OLDEST_MAJOR);
    return NMLP_CUDA_CHECK(cudaMemGetInfo(&info->free_bytes, &info->total_bytes), "asking for free memory", err);
}

nmlp_status nmlp_cuda_device_open(nmlp_cuda_device *device, nmlp_err *err) {
    int shared = 0;
    *device = (nmlp_cuda_device){0};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_probe(&device->info, err));
    device->n_blocks = device->info.n_multiprocessors;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                                          "asking for shared memory", err));
    device->shared_bytes = (size_t)shared;
    device->n_clusters = nmlp_cuda_mlp_cluster4_clusters(device->shared_bytes);
    NMLP_RETURN_IF_FAILED(
        NMLP_CUDA_CHECK(nmlp_cuda_decode_prepare(device->shared_bytes), "readying the streaming kernel", err));
    int exact = 0;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(nmlp_cuda_decode_check_subnormals(&exact), "trying the tensor cores", err));
    device->multiplies_subnormals = exact != 0;
    return NMLP_CUDA_CHECK(nmlp_cuda_mlp_rows32_prepare(device->shared_bytes), "readying the streaming kernel", err);
}

void nmlp_cuda_arena_init(nmlp_cuda_arena *arena) {
    *arena = (nmlp_cuda_arena){.base = (char *)(uintptr_t)BLOCK_ALIGN_BYTES};
}

void *nmlp_cuda_arena_take(nmlp_cuda_arena *arena, size_t bytes) {
    char *at = arena->base + arena->used_bytes;
    arena->used_bytes += (bytes + BLOCK_ALIGN_BYTES - 1) / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
    return at;
}

nmlp_status nmlp_cuda_arena_commit(nmlp_cuda_arena *arena, const char *what, nmlp_err *err) {
    size_t need = arena->used_bytes;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    void *base = NULL;
    cudaError_t e = cudaMalloc(&base, need);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        nmlp_fail(err, NMLP_E_NOMEM, "the GPU's memory: %s needs %.2f GB, %.2f of %.2f GB are free", what,
                  1e-9 * (double)need, 1e-9 * (double)free_bytes, 1e-9 * (double)total_bytes);
        nmlp_fail_hint(err, "use the device cpu, a smaller `context`, or a smaller or more compressed model");
        return NMLP_E_NOMEM;
    }
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(e, "allocating memory", err));
    *arena = (nmlp_cuda_arena){.base = base, .committed = true};
    e = cudaMemset(base, 0, need);
    if (e != cudaSuccess) nmlp_cuda_arena_release(arena);
    return NMLP_CUDA_CHECK(e, "clearing memory", err);
}

void nmlp_cuda_arena_release(nmlp_cuda_arena *arena) {
    if (arena->committed) (void)cudaFree(arena->base);
    nmlp_cuda_arena_init(arena);
}
