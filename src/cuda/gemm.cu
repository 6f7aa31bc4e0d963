/* y [S,N] = x [S,K] w^T on the tensor cores, for machines without cuBLASLt: 128 x 128 tiles, K in steps of 32 through a three-deep ring. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/prefill.h"

namespace {

enum { TILE = 128, STEP = 32, PITCH = STEP + 8, STAGES = 3, THREADS = 256, TILE_ELEMS = TILE * PITCH };

__device__ __forceinline__ void copy16(__nv_bfloat16 *to, const __nv_bfloat16 *from, bool live) {
    int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(bytes) : "memory");
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
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
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

__device__ __forceinline__ void put(const nmlp_cuda_gemm &g, int row, int col, float value) {
    if (row >= g.s || col >= g.n) return;
    int64_t at = (int64_t)row * g.y_pitch + col;
    if (!g.y_is_f32) {
        static_cast<__nv_bfloat16 *>(g.y)[at] = __float2bfloat16(value);
    } else {
        float *y = static_cast<float *>(g.y) + at;
        *y = g.accumulate ? *y + value : value;
    }
}

__global__ void __launch_bounds__(THREADS) gemm_kernel(const nmlp_cuda_gemm g) {
    extern __shared__ __align__(16) __nv_bfloat16 ring[];
    int warp = threadIdx.x >> 5;
    int lane = threadIdx.x & 31;
    int row0 = blockIdx.y * TILE;
    int col0 = blockIdx.x * TILE;
    const __nv_bfloat16 *x = static_cast<const __nv_bfloat16 *>(g.x);
    const __nv_bfloat16 *w = static_cast<const __nv_bfloat16 *>(g.w);
    float acc[4][4][4] = {};
    int n_steps = g.k / STEP;
    for (int step = 0; step < n_steps + STAGES - 1; step++) {
        if (step < n_steps) {
            __nv_bfloat16 *stage = ring + step % STAGES * 2 * TILE_ELEMS;
            load_tile(stage, x, row0, g.s, g.x_pitch, step * STEP);
            load_tile(stage + TILE_ELEMS, w, col0, g.n, g.w_pitch, step * STEP);
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
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int row = row0 + (warp & 1) * 64 + i * 16 + (lane >> 2);
            int col = col0 + (warp >> 1) * 32 + j * 8 + (lane & 3) * 2;
            put(g, row, col, acc[i][j][0]);
            put(g, row, col + 1, acc[i][j][1]);
            put(g, row + 8, col, acc[i][j][2]);
            put(g, row + 8, col + 1, acc[i][j][3]);
        }
    }
}

} // namespace

int nmlp_cuda_launch_gemm(const nmlp_cuda_gemm *g, void *stream) {
    const int bytes = STAGES * 2 * TILE_ELEMS * (int)sizeof(__nv_bfloat16);
    cudaError_t e = cudaFuncSetAttribute((const void *)gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess) return e;
    dim3 grid((unsigned)((g->n + TILE - 1) / TILE), (unsigned)((g->s + TILE - 1) / TILE));
    gemm_kernel<<<grid, THREADS, bytes, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}
