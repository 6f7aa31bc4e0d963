/* The kernel of gemm_stream_sm90.h. */
#include "cuda/batch/gemm_stream_sm90.h"

#include <cstddef>

#include <cuda_runtime.h>

#include "cuda/cooperative_launch.cuh"
#include "cuda/mlp/mlp_cluster4_sm90.h"
#include "cuda/sm90.cuh"

namespace {

enum {
    GROUP_WARPS = 4, /* that multiply */
    WARPS = GROUP_WARPS + 1,
    THREADS = WARPS * 32,
    TILE_ROWS = NMLP_CUDA_GEMM_STREAM_ROWS,
    COLS = NMLP_CUDA_GEMM_STREAM_COLS,
    ROW_BYTES = COLS * 2, /* of a slab */
    STAGE_BYTES = TILE_ROWS * ROW_BYTES,
    K16_BYTES = 32, /* columns of one wgmma */
    STAGES_MAX = NMLP_CUDA_GEMM_STREAM_STAGES_MAX,
    SLABS_MAX = NMLP_CUDA_GEMM_STREAM_SLABS_MAX,
    HEAD_BYTES = 1024
};

struct shared_head {
    uint64_t full[STAGES_MAX];
    uint64_t empty[STAGES_MAX];
    uint64_t x_full[SLABS_MAX];
};
static_assert(sizeof(shared_head) <= HEAD_BYTES, "the head has its place");

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Addresses in shared memory. */
struct block_memory {
    uint32_t full;
    uint32_t empty;
    uint32_t x_full;
    uint32_t x;    /* [slabs][tokens] */
    uint32_t ring; /* [stages][rows of W] */
};

/* NT times 8 tokens. */
template <int NT> struct shape {
    enum { TOKENS = NT * 8, SLAB_BYTES = TOKENS * ROW_BYTES, SUMS = NT * 4 };
};

template <int NT>
__device__ __forceinline__ block_memory lay_out(const nmlp_cuda_gemm_stream &g, const unsigned char *memory) {
    const uint32_t at = sm90::shared_address(memory);
    const uint32_t x = at + HEAD_BYTES;
    return {at + (uint32_t)offsetof(shared_head, full), at + (uint32_t)offsetof(shared_head, empty),
            at + (uint32_t)offsetof(shared_head, x_full), x, x + g.n_slabs * shape<NT>::SLAB_BYTES};
}

struct ring_cursor {
    int stage;
    uint32_t parity;
    __device__ __forceinline__ void advance(int n_stages) {
        if (++stage < n_stages) return;
        stage = 0;
        parity ^= 1;
    }
};

/* Barriers are made ready one at a time, each with a fence, so the warps share them. One lane of every warp. */
__device__ __forceinline__ void init_barriers(const nmlp_cuda_gemm_stream &g, const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    for (int i = warp; i < g.n_stages; i += WARPS) {
        sm90::mbar_init(mem.full + i * 8, 1);
        sm90::mbar_init(mem.empty + i * 8, GROUP_WARPS);
    }
    for (int i = warp; i < g.n_slabs; i += WARPS) sm90::mbar_init(mem.x_full + i * 8, 1);
    sm90::fence_barrier_init();
}

/* One lane. */
__device__ __forceinline__ void request_w(const nmlp_cuda_gemm_stream &g, const block_memory &mem) {
    const int n_slabs = g.n_slabs;
    const int n_stages = g.n_stages;
    const int tile_rows = g.tile_rows;
    const void *const map = g.w_map;
    ring_cursor at = {0, 0};
    for (int tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x)
        for (int i = 0; i < n_slabs; i++) {
            const uint32_t full = mem.full + at.stage * 8;
            sm90::mbar_wait(mem.empty + at.stage * 8, at.parity ^ 1);
            sm90::mbar_expect(full, tile_rows * ROW_BYTES);
            sm90::load_box_once(mem.ring + at.stage * STAGE_BYTES, map, i * COLS, tile * tile_rows, full);
            at.advance(n_stages);
        }
}

/* One lane of every warp that multiplies. */
template <int NT> __device__ __forceinline__ void request_x(const nmlp_cuda_gemm_stream &g, const block_memory &mem) {
    asm volatile("fence.proxy.async.global;" ::: "memory"); /* X was written otherwise than TMA reads */
    for (int i = threadIdx.x >> 5; i < g.n_slabs; i += GROUP_WARPS) {
        sm90::mbar_expect(mem.x_full + i * 8, shape<NT>::SLAB_BYTES);
        sm90::load_box(mem.x + i * shape<NT>::SLAB_BYTES, g.x_map, i * COLS, 0, mem.x_full + i * 8);
    }
}

/* c [64 rows, tokens] (+)= w [64,16] x [tokens,16]^T. */
__device__ __forceinline__ void multiply(float (&c)[4], uint64_t w, uint64_t x, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "l"(w), "l"(x), "r"(add));
}

__device__ __forceinline__ void multiply(float (&c)[8], uint64_t w, uint64_t x, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
                 : "l"(w), "l"(x), "r"(add));
}

__device__ __forceinline__ void multiply(float (&c)[16], uint64_t w, uint64_t x, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
                 : "l"(w), "l"(x), "r"(add));
}

/* The warp has read the stage. */
__device__ __forceinline__ void release(const block_memory &mem, int stage) {
    if ((threadIdx.x & 31) == 0) sm90::mbar_arrive(mem.empty + stage * 8);
}

/* One tile. While the tensor cores have a slab the one before is given back. */
template <int NT>
__device__ __forceinline__ void multiply_tile(float (&c)[shape<NT>::SUMS], const nmlp_cuda_gemm_stream &g,
                                              const block_memory &mem, ring_cursor &at, bool awaits_x) {
    const int n_slabs = g.n_slabs;
    const int n_stages = g.n_stages;
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < n_slabs; i++) {
        sm90::mbar_wait(mem.full + at.stage * 8, at.parity);
        if (awaits_x) sm90::mbar_wait(mem.x_full + i * 8, 0);
        const uint64_t w = sm90::descriptor(mem.ring + at.stage * STAGE_BYTES);
        const uint64_t x = sm90::descriptor(mem.x + i * shape<NT>::SLAB_BYTES);
        sm90::wgmma_begin();
#pragma unroll
        for (int k = 0; k < COLS * 2 / K16_BYTES; k++)
            multiply(c, w + k * (K16_BYTES >> 4), x + k * (K16_BYTES >> 4), i + k);
        sm90::wgmma_commit();
        sm90::wgmma_wait<1>();
        if (i > 0) release(mem, before);
        before = at.stage;
        at.advance(n_stages);
    }
    sm90::wgmma_wait<0>();
    sm90::wgmma_results(c);
    release(mem, before);
}

/* A lane has rows g and g + 8 of its warp's 16, of each eight tokens two. */
template <int NT>
__device__ __forceinline__ void store_tile(const float (&c)[shape<NT>::SUMS], const nmlp_cuda_gemm_stream &g,
                                           int tile) {
    const int lane = threadIdx.x & 31;
    const int in_tile = (threadIdx.x >> 5) * 16 + lane / 4;
    const int row = tile * g.tile_rows + in_tile;
    const bool first = in_tile < g.tile_rows && row < g.n;
    const bool second = in_tile + 8 < g.tile_rows && row + 8 < g.n;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int token = j * 8 + lane % 4 * 2 + k;
            float *to = g.y + (int64_t)token * g.y_pitch + row;
            if (token >= g.s) continue;
            if (first) to[0] = c[j * 4 + k];
            if (second) to[8] = c[j * 4 + 2 + k];
        }
}

template <int NT> __device__ __forceinline__ void consume(const nmlp_cuda_gemm_stream &g, const block_memory &mem) {
    ring_cursor at = {0, 0};
    bool awaits_x = true;
    for (int tile = blockIdx.x; tile < g.n_tiles; tile += gridDim.x) {
        float c[shape<NT>::SUMS];
        multiply_tile<NT>(c, g, mem, at, awaits_x);
        store_tile<NT>(c, g, tile);
        awaits_x = false;
    }
}

#endif

template <int NT>
__global__ void __launch_bounds__(THREADS, 1) gemm_stream_kernel(const __grid_constant__ nmlp_cuda_gemm_stream g) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    const block_memory mem = lay_out<NT>(g, memory);
    const bool first_lane = (threadIdx.x & 31) == 0;
    begin_dependents();
    if (first_lane) {
        sm90::prefetch_map(g.w_map);
        init_barriers(g, mem);
    }
    __syncthreads();
    if (threadIdx.x >> 5 == GROUP_WARPS) {
        if (first_lane) request_w(g, mem);
        return;
    }
    await_previous();
    if (first_lane) request_x<NT>(g, mem);
    __syncwarp();
    consume<NT>(g, mem);
#endif
}

typedef void kernel_fn(const nmlp_cuda_gemm_stream);

kernel_fn *kernel_for(int32_t s) {
    if (s <= 8) return gemm_stream_kernel<1>;
    return s <= 16 ? gemm_stream_kernel<2> : gemm_stream_kernel<4>;
}

} // namespace

size_t nmlp_cuda_gemm_stream_shared_bytes(const nmlp_cuda_gemm_stream *g) {
    const size_t tokens = (size_t)nmlp_cuda_mlp_cluster4_tokens(g->s);
    return HEAD_BYTES + (size_t)g->n_slabs * tokens * ROW_BYTES + (size_t)g->n_stages * STAGE_BYTES;
}

int nmlp_cuda_gemm_stream_prepare(int32_t s, size_t shared_bytes) {
    return cudaFuncSetAttribute((const void *)kernel_for(s), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)shared_bytes);
}

int nmlp_cuda_gemm_stream_launch(const nmlp_cuda_gemm_stream *g, void *stream) {
    return launch_dependent(kernel_for(g->s), dim3((unsigned)g->n_blocks), THREADS,
                            nmlp_cuda_gemm_stream_shared_bytes(g), stream, *g);
}
