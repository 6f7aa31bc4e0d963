/* The consumer warps of mlp_cluster4_sm90.cu: rows of X from L2 into shared memory, weights from the ring. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_CONSUMER_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_CONSUMER_CUH

#include "cuda/mlp/mlp_cluster4_sm90_block.cuh"

namespace {

__device__ __forceinline__ uint4 get_words(const __nv_bfloat16 *from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t largest(uint4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }

/* Bytes from a row of the block's X to the next, and from the first factor's columns to the second's. */
struct x_layout {
    int pitch;
    int second;
};

__device__ __forceinline__ x_layout layout_of(const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p) {
    const int one = p.n_blocks * COLS * 2;
    const bool two = ph.n_factors == 2 && !ph.same_x;
    return {(two ? 2 : 1) * one + X_SKEW_BYTES, two ? one : 0};
}

/* The block's columns of one factor's X, counted in pieces of 8. */
struct x_columns {
    const __nv_bfloat16 *x;
    int pitch;
    int n;       /* pieces that exist */
    bool before; /* all of them are there */
};

__device__ __forceinline__ x_columns columns_of(const nmlp_cuda_mlp_cluster4_input &in, const block_tile &p,
                                                int64_t into_set) {
    const __nv_bfloat16 *x =
        reinterpret_cast<const __nv_bfloat16 *>(static_cast<const char *>(in.x) + (in.from_before ? 0 : into_set));
    return {x + p.column, in.pitch, min(p.n_blocks * COLS, in.k - p.column) / 8, in.from_before != 0};
}

/* Waits for one token of every piece of the block's columns. Asking for all of X all the time, as many blocks do while
 * they wait, would leave the memory little time for weights; the last product's have come by then. */
__device__ __forceinline__ void poll_input(const x_columns &one, const x_columns &two, int per_factor, int n,
                                           int token) {
    for (int at = threadIdx.x; at < n; at += WARPS * 32) {
        const bool second = at >= per_factor;
        const int in_factor = second ? at - per_factor : at;
        if (in_factor >= (second ? two.n : one.n) || (second ? two.before : one.before)) continue;
        const __nv_bfloat16 *from =
            (second ? two.x : one.x) + in_factor * 8 + (int64_t)token * (second ? two.pitch : one.pitch);
        while (largest(get_words(from)) == unwritten) {
        }
    }
    consumer_sync();
}

/* The block's columns of X, of both factors side by side. A warp's tokens are NT, eight apart. What is not there yet is
 * polled again. */
template <int NT>
__device__ __forceinline__ void stage_input(const nmlp_cuda_mlp_cluster4_program &prog,
                                            const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p,
                                            const block_memory &mem, int64_t into_set) {
    const int AT_ONCE = 3; /* loads of a token in flight per lane */
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const x_layout layout = layout_of(ph, p);
    const int per_factor = p.n_blocks * COLS / 8;
    const int n = layout.second ? 2 * per_factor : per_factor;
    const x_columns one = columns_of(ph.in[0], p, into_set);
    const x_columns two = columns_of(ph.in[1], p, into_set);
    const bool before = one.before && (!layout.second || two.before);
    after_readers();
    if (NT > 1 && !before && ph.kind != NMLP_CUDA_MLP_CLUSTER4_DOWN) poll_input(one, two, per_factor, n, prog.s - 1);
    for (int first = lane; first < n; first += 32 * AT_ONCE) {
        uint4 v[NT][AT_ONCE];
        bool awaited[AT_ONCE];
        uint32_t top; /* unwritten: so is some word */
        do {
            top = 0;
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                const int at = first + j * 32;
                const bool second = at >= per_factor;
                const int in_factor = second ? at - per_factor : at;
                const bool wanted = at < n && in_factor < (second ? two.n : one.n);
                const __nv_bfloat16 *from = (second ? two.x : one.x) + in_factor * 8;
                const int pitch = second ? two.pitch : one.pitch;
                awaited[j] = !(second ? two.before : one.before);
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    const int token = i * 8 + warp;
                    v[i][j] =
                        wanted && token < prog.s ? get_words(from + (int64_t)token * pitch) : make_uint4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++)
                    if (awaited[j]) top = max(top, largest(v[i][j]));
        } while (top == unwritten);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (first + j * 32 < n)
                    *reinterpret_cast<uint4 *>(mem.x + (i * 8 + warp) * layout.pitch + (first + j * 32) * 16) = v[i][j];
    }
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <int NT> using sums = float[shape<NT>::n8_max][shape<NT>::tiles][4];

/* Where a lane reads X for the mma's A: of eight tokens, 32 columns with one instruction; of 16, 16 columns. */
template <int NT> __device__ __forceinline__ uint32_t lane_of_x(uint32_t x, int pitch) {
    const int lane = threadIdx.x & 31;
    return NT == 1 ? x + (lane & 7) * pitch + (lane >> 3) * 16 : x + (lane & 15) * pitch + (lane >> 4) * 16;
}

/* What the mma takes of 32 columns of a stage. */
template <int NT, int N8_TILES> struct fragments {
    uint32_t a[2][shape<NT>::tiles][4]; /* of X, 16 columns each */
    uint32_t b[N8_TILES][4];
};

/* Where a lane reads 32 columns, half of a stage. */
struct half_stage {
    uint32_t x;
    uint32_t w;
};

template <int NT, int N8_TILES>
__device__ __forceinline__ void load_half(fragments<NT, N8_TILES> &f, const half_stage &from, int x_pitch) {
    if (NT == 1) {
        uint32_t r[4];
        load_matrices(r, from.x);
#pragma unroll
        for (int step = 0; step < 2; step++) {
            f.a[step][0][0] = r[step * 2];
            f.a[step][0][2] = r[step * 2 + 1];
            f.a[step][0][1] = f.a[step][0][3] = 0;
        }
    } else {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                load_matrices(f.a[step][i], from.x + i * 16 * x_pitch + step * 32);
    }
#pragma unroll
    for (int j = 0; j < N8_TILES; j++) load_matrices(f.b[j], from.w + j * N8_BYTES);
}

template <int NT, int N8_TILES>
__device__ __forceinline__ void multiply_half(sums<NT> &acc, const fragments<NT, N8_TILES> &f) {
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int j = 0; j < N8_TILES; j++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                mma(acc[j][i], f.a[step][i][0], f.a[step][i][1], f.a[step][i][2], f.a[step][i][3], f.b[j][step * 2],
                    f.b[j][step * 2 + 1]);
}

/* A warp's place in a pass. */
struct warp_tile {
    int row; /* first of its stages */
    int n8_tiles;
    int n8_tile; /* number of its first one in the pass */
    int factor;
    int k; /* its number among those that differ in K */
    int k_step;
    int n_sources; /* of an n8 tile's sums */
    int mine;      /* n8 tiles whose sums the block gets */
};

__device__ __forceinline__ warp_tile make_warp_tile(const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p,
                                                    int rank) {
    const int warp = threadIdx.x >> 5;
    const int in_rows = warp & ((1 << ph.row_shift) - 1);
    warp_tile w;
    w.n8_tile = in_rows * ph.stage_n8;
    w.row = p.row + w.n8_tile * N8;
    w.n8_tiles = n8_at(ph, p, w.row);
    w.factor = warp >> ph.row_shift & (ph.n_factors - 1);
    w.k = warp >> ph.side_shift;
    w.k_step = WARPS >> ph.side_shift;
    w.n_sources = w.k_step * CLUSTER * ph.n_factors;
    w.mine = (min((p.end - p.row) / N8, ph.stage_n8 << ph.row_shift) - rank + CLUSTER - 1) / CLUSTER;
    return w;
}

/* A warp's stages and what it makes of them: it begins with block `k` and goes on by `k_step`. */
struct k_loop {
    uint64_t *full;
    uint64_t *empty;
    uint32_t ring;
    int n_stages;
    int stage_bytes;
    uint32_t x; /* of the lane */
    int x_pitch;
    int n_blocks;
    int k;
    int k_step;
};

template <int NT>
__device__ __forceinline__ k_loop make_k_loop(const nmlp_cuda_mlp_cluster4_program &prog, const block_tile &p,
                                              const warp_tile &w, const block_memory &mem, uint32_t x, int x_pitch) {
    const stage_range stages = stages_of(prog.n_stages, threadIdx.x >> 5);
    return {mem.sh->full + stages.first,
            mem.sh->empty + stages.first,
            shared_address(mem.ring) + stages.first * prog.stage_bytes,
            stages.n,
            prog.stage_bytes,
            lane_of_x<NT>(x, x_pitch),
            x_pitch,
            p.n_blocks,
            w.k,
            w.k_step};
}

/* 32 of a block's columns in the stage at hand: rows of 128 bytes, and of row r the 16 bytes c stand at place c ^ r. */
__device__ __forceinline__ half_stage half_of(const k_loop &s, int stage, int block, int half) {
    const int lane = threadIdx.x & 31;
    const int row = lane & 7;
    return {s.x + block * (COLS * 2) + half * (COLS),
            s.ring + stage * s.stage_bytes + row * (COLS * 2) + (((half * 4 + (lane >> 3)) ^ row) << 4)};
}

/* While the mma works on one half of a stage, the fragments of the next are on their way. The number of n8 tiles is the
 * code's: where a condition decides about an instruction of the whole warp the compiler has it wait for its lanes each
 * time. */
template <int NT, int N8_TILES>
__device__ __forceinline__ void multiply_blocks(sums<NT> &acc, const k_loop &s, ring_cursor &at) {
    fragments<NT, N8_TILES> first;
    fragments<NT, N8_TILES> second;
    int block = s.k;
    if (block >= s.n_blocks) return;
    mbar_wait(&s.full[at.stage], at.parity);
    load_half<NT, N8_TILES>(first, half_of(s, at.stage, block, 0), s.x_pitch);
#pragma unroll 1
    while (true) {
        load_half<NT, N8_TILES>(second, half_of(s, at.stage, block, 1), s.x_pitch);
        warp_arrive(&s.empty[at.stage]); /* all of it is in registers, or will be before the stage is filled */
        at.advance(1, s.n_stages);
        multiply_half<NT, N8_TILES>(acc, first);
        block += s.k_step;
        if (block >= s.n_blocks) break;
        mbar_wait(&s.full[at.stage], at.parity);
        load_half<NT, N8_TILES>(first, half_of(s, at.stage, block, 0), s.x_pitch);
        multiply_half<NT, N8_TILES>(acc, second);
    }
    multiply_half<NT, N8_TILES>(acc, second);
}

/* A stage with nothing in it, where K has ended or the warp has no rows. */
__device__ __forceinline__ void skip_stage(const k_loop &s, ring_cursor &at) {
    mbar_wait(&s.full[at.stage], at.parity);
    warp_arrive(&s.empty[at.stage]);
    at.advance(1, s.n_stages);
}

template <int NT>
__device__ __forceinline__ void multiply_tile(sums<NT> &acc, const k_loop &s, int n8_tiles, ring_cursor &at) {
    static_assert(NMLP_CUDA_MLP_CLUSTER4_N8_MAX == 6, "the cases");
    switch (n8_tiles) {
    case 1: multiply_blocks<NT, 1>(acc, s, at); break;
    case 2: multiply_blocks<NT, 2>(acc, s, at); break;
    case 3: multiply_blocks<NT, 3>(acc, s, at); break;
    case 4: multiply_blocks<NT, 4>(acc, s, at); break;
    case 5: multiply_blocks<NT, 5>(acc, s, at); break;
    case 6: multiply_blocks<NT, 6>(acc, s, at); break;
    default:
        for (int block = s.k; block < s.n_blocks; block += s.k_step) skip_stage(s, at);
    }
    if (s.n_blocks % s.k_step != 0 && s.k >= s.n_blocks % s.k_step) skip_stage(s, at);
}

} // namespace

#endif
