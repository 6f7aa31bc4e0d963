/* The product of gemm_resident_sm90.cu: each warp multiplies its own slabs. */
#ifndef NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_MULTIPLY_CUH
#define NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_MULTIPLY_CUH

#include "cuda/batch/gemm_resident_sm90_block.cuh"

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Where the 16 bytes `chunk` of a row of a slab are: at place chunk ^ row, modulo 8. */
__device__ __forceinline__ uint32_t in_slab(int row, int chunk) { return row * ROW_BYTES + ((chunk ^ row) & 7) * 16; }

/* 32 columns of X, 16 for each step. Of eight tokens one instruction has all. */
template <int NT>
__device__ __forceinline__ void load_x(uint32_t (&a)[2][shape<NT>::tiles][4], uint32_t slab, int half) {
    const int lane = threadIdx.x & 31;
    if (NT == 1) {
        uint32_t r[4];
        load_matrices(r, slab + in_slab(lane & 7, half * 4 + (lane >> 3)));
#pragma unroll
        for (int step = 0; step < 2; step++) {
            a[step][0][0] = r[step * 2];
            a[step][0][2] = r[step * 2 + 1];
            a[step][0][1] = a[step][0][3] = 0;
        }
    } else {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                load_matrices(a[step][i], slab + in_slab(i * 16 + (lane & 15), half * 4 + step * 2 + (lane >> 4)));
    }
}

template <int NT, int N8_TILES> using sums = float[N8_TILES][shape<NT>::tiles][4];

template <int NT, int N8_TILES>
__device__ __forceinline__ void multiply_half(sums<NT, N8_TILES> &acc, uint32_t w, uint32_t x, int half) {
    const int lane = threadIdx.x & 31;
    uint32_t a[2][shape<NT>::tiles][4];
    uint32_t b[N8_TILES][4];
    load_x<NT>(a, x, half);
#pragma unroll
    for (int j = 0; j < N8_TILES; j++)
        load_matrices(b[j], w + j * N8_BYTES + in_slab(lane & 7, half * 4 + (lane >> 3)));
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int j = 0; j < N8_TILES; j++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++) mma(acc[j][i], a[step][i], b[j][step * 2], b[j][step * 2 + 1]);
}

/* The warp's slabs; its sums then lie where its first slab of W was. */
template <int NT, int N8_TILES> __device__ __forceinline__ void multiply(const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    sums<NT, N8_TILES> acc = {};
    if (warp >= mem.n) return;
    sm90::mbar_wait(shared_address(&mem.sh->w_full[warp]), 0);
    sm90::mbar_wait(shared_address(&mem.sh->x_full[warp]), 0);
#pragma unroll 1
    for (int i = warp; i < mem.n; i += WARPS)
#pragma unroll
        for (int half = 0; half < 2; half++)
            multiply_half<NT, N8_TILES>(acc, shared_address(mem.w + i * N8_TILES * N8_BYTES),
                                        shared_address(mem.x + i * shape<NT>::slab_bytes), half);
    __syncwarp();
    static_assert(shape<NT>::n8_sum_bytes <= N8_BYTES, "sums are no larger than a slab");
#pragma unroll
    for (int j = 0; j < N8_TILES; j++)
#pragma unroll
        for (int i = 0; i < shape<NT>::tiles; i++)
            *reinterpret_cast<float4 *>(mem.w + warp * N8_TILES * N8_BYTES + j * shape<NT>::n8_sum_bytes +
                                        i * M16_SUM_BYTES + lane * 16) =
                make_float4(acc[j][i][0], acc[j][i][1], acc[j][i][2], acc[j][i][3]);
}

#endif

} // namespace

#endif
