/* y [S,N] = x [S,K] w^T on the tensor cores, for machines without cuBLASLt: 128 x 128 tiles, K in steps of 32 through a
 * three-deep ring. And gate and up in one kernel (swiglu_gemm_sm90.h) for chips before Hopper, the same loop twice. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/swiglu_gemm_sm90.h"
#include "cuda/prefill/prefill.h"

namespace {

enum { TILE = 128, STEP = 32, PITCH = STEP + 8, STAGES = 3, THREADS = 256, TILE_ELEMS = TILE * PITCH };

__device__ __forceinline__ void copy16(__nv_bfloat16 *to, const __nv_bfloat16 *from, bool live) {
    int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}

/* TILE rows of STEP columns; rows past the end are zero. */
__device__ void load_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *src, int first, int n_rows, int pitch, int k0) {
    for (int i = threadIdx.x; i < TILE * (STEP / 8); i += THREADS) {
        int row = i / (STEP / 8);
        int col = i % (STEP / 8) * 8;
        bool live = first + row < n_rows;
        copy16(tile + row * PITCH + col, src + (int64_t)(live ? first + row : 0) * pitch + k0 + col, live);
    }
}

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const __nv_bfloat16 *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A warp owns 64 rows of x and 32 of w: acc[4][4] tiles of 16 x 8. */
__device__ void multiply(float (&acc)[4][4][4], const __nv_bfloat16 *x, const __nv_bfloat16 *w, int lane) {
#pragma unroll
    for (int kk = 0; kk < STEP; kk += 16) {
        uint32_t a[4][4];
        uint32_t b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) ldmatrix4(a[i], x + (i * 16 + (lane & 15)) * PITCH + kk + (lane >> 4) * 8);
#pragma unroll
        for (int j = 0; j < 2; j++)
            ldmatrix4(b[j], w + (j * 16 + (lane >> 4) * 8 + (lane & 7)) * PITCH + kk + ((lane >> 3) & 1) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) mma(acc[i][j], a[i], b[j >> 1][(j & 1) * 2], b[j >> 1][(j & 1) * 2 + 1]);
    }
}

/* What is multiplied for one tile of the result. */
struct factors {
    const __nv_bfloat16 *x;
    const __nv_bfloat16 *w;
    int k;
    int x_pitch;
    int w_pitch;
    int n_rows; /* of x */
    int n_cols; /* rows of w */
};

/* acc = the tile at row0, col0. */
__device__ void multiply_tile(float (&acc)[4][4][4], __nv_bfloat16 *ring, const factors &f, int row0, int col0) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    const int n_steps = f.k / STEP;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j][0] = acc[i][j][1] = acc[i][j][2] = acc[i][j][3] = 0;
    for (int step = 0; step < n_steps + STAGES - 1; step++) {
        if (step < n_steps) {
            __nv_bfloat16 *stage = ring + step % STAGES * 2 * TILE_ELEMS;
            load_tile(stage, f.x, row0, f.n_rows, f.x_pitch, step * STEP);
            load_tile(stage + TILE_ELEMS, f.w, col0, f.n_cols, f.w_pitch, step * STEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        int ready = step - (STAGES - 1);
        if (ready < 0) continue;
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        __syncthreads();
        const __nv_bfloat16 *stage = ring + ready % STAGES * 2 * TILE_ELEMS;
        multiply(acc, stage + (warp & 1) * 64 * PITCH, stage + TILE_ELEMS + (warp >> 1) * 32 * PITCH, lane);
        __syncthreads();
    }
}

/* Calls put(i, j, e, row, col) for every element of a thread. */
template <class Put> __device__ __forceinline__ void for_each_element(int row0, int col0, const Put put) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                put(i, j, e, row0 + (warp & 1) * 64 + i * 16 + (lane >> 2) + e / 2 * 8,
                    col0 + (warp >> 1) * 32 + j * 8 + (lane & 3) * 2 + e % 2);
}

__global__ void __launch_bounds__(THREADS) gemm_kernel(const nmlp_cuda_gemm g) {
    extern __shared__ __align__(16) __nv_bfloat16 ring[];
    const int row0 = blockIdx.y * TILE;
    const int col0 = blockIdx.x * TILE;
    const factors f = {static_cast<const __nv_bfloat16 *>(g.x),
                       static_cast<const __nv_bfloat16 *>(g.w),
                       g.k,
                       g.x_pitch,
                       g.w_pitch,
                       g.s,
                       g.n};
    float acc[4][4][4];
    multiply_tile(acc, ring, f, row0, col0);
    for_each_element(row0, col0, [&](int i, int j, int e, int row, int col) {
        if (row >= g.s || col >= g.n) return;
        const int64_t at = (int64_t)row * g.y_pitch + col;
        if (!g.y_is_f32) {
            static_cast<__nv_bfloat16 *>(g.y)[at] = __float2bfloat16(acc[i][j][e]);
        } else {
            float *y = static_cast<float *>(g.y) + at;
            *y = g.accumulate ? *y + acc[i][j][e] : acc[i][j][e];
        }
    });
}

__global__ void __launch_bounds__(THREADS, 1) swiglu_gemm_sm80_kernel(const nmlp_cuda_swiglu_gemm g) {
    extern __shared__ __align__(16) __nv_bfloat16 ring[];
    const int row0 = blockIdx.y * TILE;
    const int col0 = blockIdx.x * TILE;
    float acc[2][4][4][4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const factors f = {static_cast<const __nv_bfloat16 *>(g.x[m]),
                           static_cast<const __nv_bfloat16 *>(g.w[m]),
                           g.k[m],
                           g.x_pitch[m],
                           g.k[m],
                           g.s,
                           g.n};
        multiply_tile(acc[m], ring, f, row0, col0);
    }
    for_each_element(row0, col0, [&](int i, int j, int e, int row, int col) {
        if (row >= g.s || col >= g.out_pitch) return;
        const float gate = acc[0][i][j][e];
        static_cast<__nv_bfloat16 *>(g.out)[(int64_t)row * g.out_pitch + col] =
            __float2bfloat16(gate / (1.0f + __expf(-gate)) * acc[1][i][j][e]);
    });
}

const int shared_bytes = STAGES * 2 * TILE_ELEMS * (int)sizeof(__nv_bfloat16);

dim3 tiles(int n, int s) { return dim3((unsigned)((n + TILE - 1) / TILE), (unsigned)((s + TILE - 1) / TILE)); }

} // namespace

int nmlp_cuda_launch_gemm(const nmlp_cuda_gemm *g, void *stream) {
    cudaError_t e =
        cudaFuncSetAttribute((const void *)gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (e != cudaSuccess) return e;
    gemm_kernel<<<tiles(g->n, g->s), THREADS, shared_bytes, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}

int nmlp_cuda_swiglu_gemm_sm80_launch(const nmlp_cuda_swiglu_gemm *g, void *stream) {
    cudaError_t e = cudaFuncSetAttribute((const void *)swiglu_gemm_sm80_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (e != cudaSuccess) return e;
    swiglu_gemm_sm80_kernel<<<tiles(g->out_pitch, g->s), THREADS, shared_bytes, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}
