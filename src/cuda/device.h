/* The device behind every other file here: errors of the CUDA runtime as statuses, and memory handed out of one block.
 */
#ifndef NMLP_CUDA_DEVICE_H
#define NMLP_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"
#include "cuda/cuda.h"

/* A status for the runtime's code, naming what was being done. */
nmlp_status nmlp_cuda_status(int code, const char *doing, nmlp_err *err);

#define NMLP_CUDA_CHECK(expr, doing, err) nmlp_cuda_status((int)(expr), doing, err)

/* The middle one of n times, which are sorted. */
float nmlp_cuda_median(float *times, int n);

/* What programs are sized by. */
typedef struct nmlp_cuda_device {
    nmlp_cuda_info info;
    int n_blocks;               /* of a decode program: one per multiprocessor */
    int n_clusters;             /* of four such blocks that are resident together; 0: none */
    size_t shared_bytes;        /* a block may use */
    bool multiplies_subnormals; /* its tensor cores, exactly: nmlp_cuda_decode_check_subnormals */
} nmlp_cuda_device;

/* Probes device 0 and readies the decode kernel. */
nmlp_status nmlp_cuda_device_open(nmlp_cuda_device *device, nmlp_err *err);

/* Device memory, zeroed, released all at once. First measured (addresses are then made up and must not be followed),
 * then had in one piece, then polled again in the same order. */
typedef struct nmlp_cuda_arena {
    char *base;
    size_t used_bytes;
    bool committed;
} nmlp_cuda_arena;

void nmlp_cuda_arena_init(nmlp_cuda_arena *arena);
void *nmlp_cuda_arena_take(nmlp_cuda_arena *arena, size_t bytes);
/* Has the memory measured so far; the message says how much was needed for `what` and how much is free. */
nmlp_status nmlp_cuda_arena_commit(nmlp_cuda_arena *arena, const char *what, nmlp_err *err);
void nmlp_cuda_arena_release(nmlp_cuda_arena *arena);

#endif
