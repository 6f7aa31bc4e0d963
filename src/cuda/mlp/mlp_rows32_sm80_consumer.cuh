/* The consumer warps of mlp_rows32_sm80.cu: rows of X from L2 into registers, weights from the ring. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_CONSUMER_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_CONSUMER_CUH

#include "cuda/mlp/mlp_rows32_sm80_block.cuh"

namespace {

__device__ __forceinline__ void consumer_sync() {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    static_assert(WARPS == 8, "the barrier counts threads");
}

/* What a lane holds of X for some blocks of 64 columns: the mma's B, 8 neighbouring columns of one token per register.
 */
template <int NT> struct x_blocks {
    uint4 v[shape<NT>::blocks_k_max][NT][2];
};

/* A warp's stages of a tile and the rows of X they are multiplied with. Blocks of columns are counted through its
 * stages. */
template <int NT> struct walk {
    const __nv_bfloat16 *rows; /* the lane's token of the first eight, its columns of block 0 */
    int pitch;
    int factor;
    int first; /* stage along K, within the tile */
    int step;
    int n;                                                   /* stages of the tile */
    int start;                                               /* the tile's first stage along K */
    int stage_shift;                                         /* log2 of blocks per stage */
    int n_blocks;                                            /* of the whole K */
    bool is_before;                                          /* rows that are there already */
    static const bool single = shape<NT>::blocks_k_max == 1; /* a stage is one block: nothing to look up */
    __device__ __forceinline__ int shift() const { return single ? 0 : stage_shift; }
    __device__ __forceinline__ int stage(int block) const { return first + (block >> shift()) * step; }
    __device__ __forceinline__ int in_stage(int block) const { return block & ((1 << shift()) - 1); }
    __device__ __forceinline__ int column_block(int block) const {
        return ((start + stage(block)) << shift()) + in_stage(block);
    }
    __device__ __forceinline__ bool has(int block) const {
        return stage(block) < n && (single || column_block(block) < n_blocks);
    }
};

/* Blocks from `block` on, all at once. */
template <int NT> __device__ __forceinline__ void ask(x_blocks<NT> &x, const walk<NT> &w, int block, int s) {
    const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int b = 0; b < shape<NT>::blocks_k_max; b++) {
        const __nv_bfloat16 *at = w.rows + w.column_block(block + b) * K64;
        const bool has = w.has(block + b);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 &v = x.v[b][i][h];
                v = make_uint4(0, 0, 0, 0);
                if (has && i * 8 + g < s)
                    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                                 : "l"(at + i * 8 * w.pitch + h * 32)
                                 : "memory");
            }
    }
}

template <int NT> __device__ __forceinline__ bool is_there(const x_blocks<NT> &x) {
    bool there = true;
#pragma unroll
    for (int b = 0; b < shape<NT>::blocks_k_max; b++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 v = x.v[b][i][h];
                there = there && v.x != unwritten && v.y != unwritten && v.z != unwritten && v.w != unwritten;
            }
    return there;
}

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* Row of a group a lane takes as the mma's row `g`. Lanes that read at the same time have neighbouring g: their rows
 * differ by four, so that the swizzle puts their columns into different banks. */
__device__ __forceinline__ int row_of(int g) { return (g & 1) * 4 + (g >> 1); }

/* Adds one block of columns; `at` is where its rows begin in the stage. */
template <int NT>
__device__ __forceinline__ void multiply_block(float (&acc)[shape<NT>::groups_max][NT][4], const uint4 (&x)[NT][2],
                                               uint32_t at, int groups) {
    const int row = row_of((threadIdx.x & 31) >> 2);
    const int t = threadIdx.x & 3;
    at += row * K64 * 2;
#pragma unroll
    for (int j = 0; j < shape<NT>::groups_max; j++) {
        if (j >= groups) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t here = at + j * TILE_BYTES + (((h * 4 + t) ^ row) << 4);
            const uint4 lo = load_shared(here);
            const uint4 hi = load_shared(here + 8 * K64 * 2);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                mma(acc[j][i], lo.x, hi.x, lo.y, hi.y, x[i][h].x, x[i][h].y);
                mma(acc[j][i], lo.z, hi.z, lo.w, hi.w, x[i][h].z, x[i][h].w);
            }
        }
    }
}

/* A consumer warp. */
struct consumer {
    ring_cursor ring; /* the block's next stage */
    int n_tiles;      /* tiles done */
    uint32_t set;
    bool knows_set;
};

/* With two factors half of the warps work on each. */
template <int NT>
__device__ __forceinline__ walk<NT> begin_walk(const nmlp_cuda_mlp_rows32_program &prog,
                                               const nmlp_cuda_mlp_rows32_phase &ph, const block_tile &p,
                                               uint32_t set) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    const bool two = ph.n_factors == 2;
    walk<NT> w;
    w.factor = two ? warp / FACTOR_RUN : 0;
    w.first = two ? warp % FACTOR_RUN : warp;
    w.step = two ? (int)FACTOR_RUN : (int)WARPS;
    w.n = w.factor ? p.n[1] : p.n[0];
    w.start = w.factor ? p.first[1] : p.first[0];
    w.stage_shift = 31 - __clz(ph.blocks_k);
    const nmlp_cuda_mlp_rows32_factor &f = ph.f[w.factor];
    w.n_blocks = f.k / K64;
    w.is_before = f.from_before != 0;
    w.pitch = f.x_pitch;
    const char *x = static_cast<const char *>(f.x) + (w.is_before ? 0 : set * prog.set_bytes);
    w.rows = reinterpret_cast<const __nv_bfloat16 *>(x) + (lane >> 2) * w.pitch + (lane & 3) * 8;
    return w;
}

/* This warp's stages of a tile. What the next blocks need of X is loaded before these are multiplied. */
template <int NT>
__device__ __forceinline__ void
multiply_tile(float (&acc)[shape<NT>::groups_max][NT][4], const nmlp_cuda_mlp_rows32_program &prog,
              const nmlp_cuda_mlp_rows32_phase &ph, const block_tile &p, const block_memory &mem, const consumer &c) {
    const int AT_ONCE = shape<NT>::blocks_k_max; /* a multiple of the blocks of a stage */
    const walk<NT> w = begin_walk<NT>(prog, ph, p, c.set);
    x_blocks<NT> x;
    ask(x, w, 0, prog.s);
    for (int block = 0; w.stage(block) < w.n; block += AT_ONCE) {
        x_blocks<NT> next;
        ask(next, w, block + AT_ONCE, prog.s);
        if (!w.is_before)
            while (!is_there(x)) ask(x, w, block, prog.s);
        __syncwarp();
#pragma unroll
        for (int b = 0; b < AT_ONCE; b++) {
            const int in_stage = w.in_stage(block + b);
            if (w.stage(block + b) >= w.n) break;
            ring_cursor at = c.ring;
            at.advance_far(place_of(p, w.factor, w.stage(block + b)), prog.n_stages);
            if (in_stage == 0) mbar_wait(&mem.sh->full[at.stage], at.parity);
            if (w.has(block + b))
                multiply_block<NT>(acc, x.v[b],
                                   shared_address(mem.ring + at.stage * prog.stage_bytes) +
                                       in_stage * ph.groups * TILE_BYTES,
                                   ph.groups);
            if (in_stage == (1 << w.shift()) - 1) warp_arrive(&mem.sh->empty[at.stage]);
        }
        x = next;
    }
}

template <int NT>
__device__ __forceinline__ void put_sums(float *sums, const float (&acc)[shape<NT>::groups_max][NT][4], int groups) {
    const int row = row_of((threadIdx.x & 31) >> 2);
    const int t = threadIdx.x & 3;
    float *mine = sums + (threadIdx.x >> 5) * groups * shape<NT>::group_sums;
#pragma unroll
    for (int j = 0; j < shape<NT>::groups_max; j++) {
        if (j >= groups) continue;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float *at = mine + j * shape<NT>::group_sums + (i * 8 + t * 2) * TOKEN_PITCH + row;
            at[0] = acc[j][i][0];
            at[TOKEN_PITCH] = acc[j][i][1];
            at[8] = acc[j][i][2];
            at[TOKEN_PITCH + 8] = acc[j][i][3];
        }
    }
}

} // namespace

#endif
