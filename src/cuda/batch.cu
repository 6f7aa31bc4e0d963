/* The kernel of batch.h. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch.h"
#include "cuda/stream_ring.cuh"

namespace {

enum {
    WARPS = 8, /* that multiply */
    COPIER = WARPS,
    THREADS = (WARPS + 1) * 32,
    GROUP = NMLP_CUDA_BATCH_GROUP,
    BLOCK = NMLP_CUDA_BATCH_BLOCK,
    PIECE_BYTES = NMLP_CUDA_BATCH_PIECE_BYTES,
    TOKEN_PITCH = GROUP + 4, /* floats; the lanes that write a piece of sums then meet all banks */
    X_REGISTERS = 8          /* of 16 bytes, for one slot's rows */
};

const uint32_t unwritten = (uint32_t)NMLP_CUDA_UNWRITTEN;

/* NT times 8 tokens. */
template <int NT>
struct shape {
    static const int tokens = NT * 8;
    static const int groups_max = NT == 4 ? 4 : NT == 2 ? 5 : 8; /* what registers hold sums for */
    static const int blocks_k_max = X_REGISTERS / 2 / NT; /* a block of 64 columns takes two registers of 16 bytes per 8 tokens */
    static const int group_sums = tokens * TOKEN_PITCH;   /* floats of one warp and group */
};

struct shared_head {
    uint64_t full[NMLP_CUDA_BATCH_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_BATCH_SLOTS_MAX];
    uint64_t sums_free; /* all warps have read them */
    uint32_t set;
};

struct block_memory {
    shared_head *sh;
    float *sums; /* [WARPS][groups][tokens][TOKEN_PITCH] */
    unsigned char *ring;
};

/* A rectangle of a phase. */
struct part {
    int row;    /* first of W */
    int number; /* along N */
    int split;
    int first[2]; /* slot along K, per factor */
    int n[2];
};

/* Rectangle `i` of the phase. */
__device__ __forceinline__ part part_at(const nmlp_cuda_batch_phase &ph, int i) {
    part p;
    p.split = 0;
    for (; i >= ph.n_row_parts; i -= ph.n_row_parts) p.split++;
    p.number = i;
    p.row = i * ph.groups * GROUP;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        p.first[m] = ph.split_first[m][p.split];
        p.n[m] = ph.split_first[m][p.split + 1] - p.first[m];
    }
    return p;
}

/* Slots of a rectangle come in turns of TURN of the first factor and TURN of the second, so that no warp's next slot is more than eight away: a barrier tells
 * this round of the ring from the one before, no more. */
enum { TURN = WARPS / 2 };

/* Place in that order of slot `i` along K of factor `m`; with one factor that is i. */
__device__ __forceinline__ int place_of(const part &p, int m, int i) {
    const int turn = i / TURN * TURN;
    return i + (m ? min(turn + (int)TURN, p.n[0]) : min(turn, p.n[1]));
}

__device__ __forceinline__ int first_part(const nmlp_cuda_batch_phase &ph) {
    const int i = (int)blockIdx.x - ph.first_block;
    return i < 0 ? i + (int)gridDim.x : i;
}

__device__ __forceinline__ int n_parts(const nmlp_cuda_batch_phase &ph) { return ph.n_row_parts * ph.n_splits; }

/* ---- copying ---- */

/* A slot: [blocks of columns][rows][64 columns], swizzled as in stream_ring.cuh. Rows past the end are zero. */
__device__ __forceinline__ void bring_slot(unsigned char *slot, uint64_t *full, const nmlp_cuda_batch_phase &ph, const nmlp_cuda_batch_factor &f, int row,
                                           int block, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(ph.groups * ph.blocks_k * PIECE_BYTES) : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                     shared_address(slot)),
                 "l"(f.map), "r"(0), "r"(row), "r"(block), "r"(shared_address(full)) : "memory");
#else
    const int rows = ph.groups * GROUP;
    const int n = rows * ph.blocks_k * (BLOCK / 8);
    const __nv_bfloat16 *w = static_cast<const __nv_bfloat16 *>(f.weight);
    for (int i = lane; i < n; i += 32) {
        const int chunk = i % (BLOCK / 8);
        const int r = i / (BLOCK / 8) % rows;
        const int b = i / (BLOCK / 8) / rows;
        const int col = (block + b) * BLOCK + chunk * 8;
        const bool live = row + r < ph.n && col < f.k;
        const int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(slot + (b * rows + r) * BLOCK * 2 + ((chunk ^ r) & 7) * 16)),
                     "l"(live ? w + (int64_t)(row + r) * f.k + col : w), "r"(bytes) : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

struct copier {
    ring_cursor at;
    ring_cursor landing; /* the oldest slot under way */
    int under_way;
};

__device__ __forceinline__ void await_room(const nmlp_cuda_batch_program &prog, const block_memory &mem, copier &c) {
    if (c.under_way == prog.n_under_way) {
        mbar_wait(&mem.sh->full[c.landing.slot], c.landing.parity);
        c.landing.advance(1, prog.n_slots);
    } else {
        c.under_way++;
    }
    mbar_wait(&mem.sh->empty[c.at.slot], c.at.parity ^ 1);
}

__device__ __forceinline__ void copy_part(const nmlp_cuda_batch_program &prog, const nmlp_cuda_batch_phase &ph, const part &p, const block_memory &mem, copier &c) {
    for (int turn = 0; turn < max(p.n[0], p.n[1]); turn += TURN) {
        for (int j = 0; j < 2 * TURN; j++) {
            const int m = j / TURN;
            const int i = turn + j % TURN;
            if (i >= (m ? p.n[1] : p.n[0])) continue;
            await_room(prog, mem, c);
            bring_slot(mem.ring + c.at.slot * prog.slot_bytes, &mem.sh->full[c.at.slot], ph, ph.f[m], p.row, ((m ? p.first[1] : p.first[0]) + i) * ph.blocks_k,
                       threadIdx.x & 31);
            c.at.advance(1, prog.n_slots);
        }
    }
}

__device__ void copy_weights(const nmlp_cuda_batch_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    copier c = {{0, 0}, {0, 0}, 0};
    if (lane < 2 * prog.n_phases) prefetch_map(prog.phase[lane / 2].f[lane % 2].map);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_batch_phase &ph = prog.phase[i];
        for (int r = first_part(ph); r < n_parts(ph); r += gridDim.x) copy_part(prog, ph, part_at(ph, r), mem, c);
    }
}

/* ---- multiplying ---- */

__device__ __forceinline__ void multipliers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); static_assert(WARPS == 8, "the barrier counts threads"); }

/* What a lane holds of X for some blocks of 64 columns: the mma's B, 8 neighbouring columns of one token per register. */
template <int NT>
struct x_blocks {
    uint4 v[shape<NT>::blocks_k_max][NT][2];
};

/* A warp's slots of a rectangle and the rows of X they are multiplied with. Blocks of columns are counted through its slots. */
template <int NT>
struct walk {
    const __nv_bfloat16 *rows; /* the lane's token of the first eight, its columns of block 0 */
    int pitch;
    int factor;
    int first; /* slot along K, within the rectangle */
    int step;
    int n;          /* slots of the rectangle */
    int start;      /* the rectangle's first slot along K */
    int slot_shift; /* log2 of blocks per slot */
    int n_blocks;   /* of the whole K */
    bool is_before; /* rows that are there already */
    static const bool single = shape<NT>::blocks_k_max == 1; /* a slot is one block: nothing to look up */
    __device__ __forceinline__ int shift() const { return single ? 0 : slot_shift; }
    __device__ __forceinline__ int slot(int block) const { return first + (block >> shift()) * step; }
    __device__ __forceinline__ int in_slot(int block) const { return block & ((1 << shift()) - 1); }
    __device__ __forceinline__ int column_block(int block) const { return ((start + slot(block)) << shift()) + in_slot(block); }
    __device__ __forceinline__ bool has(int block) const { return slot(block) < n && (single || column_block(block) < n_blocks); }
};

/* Blocks from `block` on, all at once. */
template <int NT>
__device__ __forceinline__ void ask(x_blocks<NT> &x, const walk<NT> &w, int block, int s) {
    const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int b = 0; b < shape<NT>::blocks_k_max; b++) {
        const __nv_bfloat16 *at = w.rows + w.column_block(block + b) * BLOCK;
        const bool has = w.has(block + b);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 &v = x.v[b][i][h];
                v = make_uint4(0, 0, 0, 0);
                if (has && i * 8 + g < s)
                    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at + i * 8 * w.pitch + h * 32) : "memory");
            }
    }
}

template <int NT>
__device__ __forceinline__ bool is_there(const x_blocks<NT> &x) {
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

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

/* Row of a group a lane takes as the mma's row `g`. Lanes that read at the same time have neighbouring g: their rows differ by four, so that the swizzle puts
 * their columns into different banks. */
__device__ __forceinline__ int row_of(int g) { return (g & 1) * 4 + (g >> 1); }

/* Adds one block of columns; `at` is where its rows begin in the slot. */
template <int NT>
__device__ __forceinline__ void multiply_block(float (&acc)[shape<NT>::groups_max][NT][4], const uint4 (&x)[NT][2], uint32_t at, int groups) {
    const int row = row_of((threadIdx.x & 31) >> 2);
    const int t = threadIdx.x & 3;
    at += row * BLOCK * 2;
#pragma unroll
    for (int j = 0; j < shape<NT>::groups_max; j++) {
        if (j >= groups) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t here = at + j * PIECE_BYTES + (((h * 4 + t) ^ row) << 4);
            const uint4 lo = load_shared(here);
            const uint4 hi = load_shared(here + 8 * BLOCK * 2);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                mma(acc[j][i], lo.x, hi.x, lo.y, hi.y, x[i][h].x, x[i][h].y);
                mma(acc[j][i], lo.z, hi.z, lo.w, hi.w, x[i][h].z, x[i][h].w);
            }
        }
    }
}

/* A multiplying warp. */
struct consumer {
    ring_cursor ring; /* the block's next slot */
    int n_parts;      /* rectangles done */
    uint32_t set;
    bool knows_set;
};

/* With two factors half of the warps work on each. */
template <int NT>
__device__ __forceinline__ walk<NT> begin_walk(const nmlp_cuda_batch_program &prog, const nmlp_cuda_batch_phase &ph, const part &p, uint32_t set) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    const bool two = ph.n_factors == 2;
    walk<NT> w;
    w.factor = two ? warp / TURN : 0;
    w.first = two ? warp % TURN : warp;
    w.step = two ? (int)TURN : (int)WARPS;
    w.n = w.factor ? p.n[1] : p.n[0];
    w.start = w.factor ? p.first[1] : p.first[0];
    w.slot_shift = 31 - __clz(ph.blocks_k);
    const nmlp_cuda_batch_factor &f = ph.f[w.factor];
    w.n_blocks = f.k / BLOCK;
    w.is_before = f.from_before != 0;
    w.pitch = f.x_pitch;
    const char *x = static_cast<const char *>(f.x) + (w.is_before ? 0 : set * prog.set_bytes);
    w.rows = reinterpret_cast<const __nv_bfloat16 *>(x) + (lane >> 2) * w.pitch + (lane & 3) * 8;
    return w;
}

/* This warp's slots of a rectangle. What the next blocks need of X is asked for before these are multiplied. */
template <int NT>
__device__ __forceinline__ void multiply_part(float (&acc)[shape<NT>::groups_max][NT][4], const nmlp_cuda_batch_program &prog, const nmlp_cuda_batch_phase &ph,
                                              const part &p, const block_memory &mem, const consumer &c) {
    const int AT_ONCE = shape<NT>::blocks_k_max; /* a multiple of the blocks of a slot */
    const walk<NT> w = begin_walk<NT>(prog, ph, p, c.set);
    x_blocks<NT> x;
    ask(x, w, 0, prog.s);
    for (int block = 0; w.slot(block) < w.n; block += AT_ONCE) {
        x_blocks<NT> next;
        ask(next, w, block + AT_ONCE, prog.s);
        if (!w.is_before)
            while (!is_there(x)) ask(x, w, block, prog.s);
        __syncwarp();
#pragma unroll
        for (int b = 0; b < AT_ONCE; b++) {
            const int in_slot = w.in_slot(block + b);
            if (w.slot(block + b) >= w.n) break;
            ring_cursor at = c.ring;
            at.advance_far(place_of(p, w.factor, w.slot(block + b)), prog.n_slots);
            if (in_slot == 0) mbar_wait(&mem.sh->full[at.slot], at.parity);
            if (w.has(block + b))
                multiply_block<NT>(acc, x.v[b], shared_address(mem.ring + at.slot * prog.slot_bytes) + in_slot * ph.groups * PIECE_BYTES, ph.groups);
            if (in_slot == (1 << w.shift()) - 1) warp_arrive(&mem.sh->empty[at.slot]);
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

/* ---- results ---- */

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* Two neighbouring rows of W for one token, per factor. */
struct result {
    float2 y[2];
};

/* Adds what N warps have, from `first` on. */
template <int N>
__device__ __forceinline__ float2 add_warps(const float *at, int warp_floats, int first) {
    float2 v[N];
#pragma unroll
    for (int w = 0; w < N; w++) v[w] = *reinterpret_cast<const float2 *>(at + (first + w) * warp_floats);
#pragma unroll
    for (int w = 1; w < N; w++) {
        v[0].x += v[w].x;
        v[0].y += v[w].y;
    }
    return v[0];
}

template <int NT>
__device__ __forceinline__ result sum_of_warps(const float *sums, const nmlp_cuda_batch_phase &ph, int token, int row) {
    const int warp_floats = ph.groups * shape<NT>::group_sums;
    const float *at = sums + row / GROUP * shape<NT>::group_sums + token * TOKEN_PITCH + row % GROUP;
    result r;
    if (ph.n_factors == 2) {
        r.y[0] = add_warps<WARPS / 2>(at, warp_floats, 0);
        r.y[1] = add_warps<WARPS / 2>(at, warp_floats, WARPS / 2);
    } else {
        r.y[0] = add_warps<WARPS>(at, warp_floats, 0);
        r.y[1] = make_float2(0, 0);
    }
    return r;
}

__device__ __forceinline__ void put_result(const nmlp_cuda_batch_phase &ph, char *out, int token, int row, const result &r) {
    float2 y = r.y[0];
    if (ph.n_factors == 2) y = make_float2(silu(y.x) * r.y[1].x, silu(y.y) * r.y[1].y);
    const int64_t at = (int64_t)token * ph.out_pitch + row;
    if (ph.last) {
        float *to = reinterpret_cast<float *>(out) + at;
        if (row < ph.n) to[0] = y.x;
        if (row + 1 < ph.n) to[1] = y.y;
    } else if (row < ph.out_pitch) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(y.x, y.y);
        asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(reinterpret_cast<__nv_bfloat16 *>(out) + at), "r"(*reinterpret_cast<const uint32_t *>(&pair))
                     : "memory");
    }
}

__device__ __forceinline__ void put_floats(float *to, float2 v) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)) : "memory");
}

__device__ __forceinline__ float2 get_floats(const float *from) {
    uint32_t a, b;
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(from) : "memory");
    return make_float2(__uint_as_float(a), __uint_as_float(b));
}

/* The same two values of every split, awaited and added in order. */
__device__ __forceinline__ float2 join(const float *at, int64_t stride, int n_splits) {
    float2 v[NMLP_CUDA_BATCH_SPLITS_MAX];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < NMLP_CUDA_BATCH_SPLITS_MAX; i++) v[i] = i < n_splits ? get_floats(at + i * stride) : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < NMLP_CUDA_BATCH_SPLITS_MAX; i++) there = there && __float_as_uint(v[i].x) != unwritten && __float_as_uint(v[i].y) != unwritten;
    } while (!there);
    float2 sum = v[0];
#pragma unroll
    for (int i = 1; i < NMLP_CUDA_BATCH_SPLITS_MAX; i++) {
        sum.x += v[i].x;
        sum.y += v[i].y;
    }
    return sum;
}

/* A rectangle's results: of all its columns where K is whole; else this split's share of them, after every split has written what it has. */
template <int NT>
__device__ void finish_part(const nmlp_cuda_batch_program &prog, const nmlp_cuda_batch_phase &ph, const part &p, const float *sums, uint32_t set) {
    const int pairs = ph.groups * GROUP / 2;
    const int n = prog.s * pairs;
    const int64_t into_set = set * prog.set_bytes;
    char *out = static_cast<char *>(ph.out) + (ph.last ? 0 : into_set);
    const int64_t factor_floats = 2 * (int64_t)n;
    const int64_t split_floats = factor_floats * ph.n_factors;
    float *parts = ph.n_splits > 1 ? reinterpret_cast<float *>(static_cast<char *>(ph.parts) + into_set) + p.number * ph.n_splits * split_floats : nullptr;
    for (int i = threadIdx.x; i < n; i += WARPS * 32) {
        const int token = i * ph.pairs_inverse >> 16;
        const int row = (i - token * pairs) * 2;
        const result r = sum_of_warps<NT>(sums, ph, token, row);
        if (ph.n_splits == 1) {
            put_result(ph, out, token, p.row + row, r);
        } else {
            float *to = parts + p.split * split_floats + 2 * (int64_t)i;
            put_floats(to, r.y[0]);
            if (ph.n_factors == 2) put_floats(to + factor_floats, r.y[1]);
        }
    }
    if (ph.n_splits == 1) return;
    const int begin = p.split * ph.split_pairs;
    const int end = min(n, begin + ph.split_pairs);
    for (int i = begin + threadIdx.x; i < end; i += WARPS * 32) {
        const int token = i * ph.pairs_inverse >> 16;
        result r;
        r.y[0] = join(parts + 2 * (int64_t)i, split_floats, ph.n_splits);
        r.y[1] = ph.n_factors == 2 ? join(parts + factor_floats + 2 * (int64_t)i, split_floats, ph.n_splits) : make_float2(0, 0);
        put_result(ph, out, token, p.row + (i - token * pairs) * 2, r);
    }
}

/* ---- a launch ---- */

/* Which of the two sets this launch uses: tickets only grow, by one per block and launch. One thread. */
__device__ void take_ticket(const nmlp_cuda_batch_program &prog, shared_head *sh) { sh->set = atomicAdd(prog.tickets, 1u) / gridDim.x & 1; }

__device__ __forceinline__ bool reads_set(const nmlp_cuda_batch_phase &ph) {
    return !ph.f[0].from_before || (ph.n_factors == 2 && !ph.f[1].from_before);
}

/* The other set is made ready for the next launch; the launch before this one, which used it, has ended. */
__device__ void clear_other_set(const nmlp_cuda_batch_program &prog, uint32_t set) {
    uint4 *to = reinterpret_cast<uint4 *>(prog.exchange + (set ^ 1) * prog.set_bytes);
    const int64_t n = prog.set_bytes / 16;
    for (int64_t i = (int64_t)blockIdx.x * (WARPS * 32) + threadIdx.x; i < n; i += (int64_t)gridDim.x * (WARPS * 32))
        to[i] = make_uint4(unwritten, unwritten, unwritten, unwritten);
}

template <int NT>
__device__ void multiply(const nmlp_cuda_batch_program &prog, const block_memory &mem) {
    consumer c = {{0, 0}, 0, 0, false};
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what the launch before wrote is seen */
#endif
    if (threadIdx.x == 0) take_ticket(prog, mem.sh);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_batch_phase &ph = prog.phase[i];
        for (int r = first_part(ph); r < n_parts(ph); r += gridDim.x) {
            const part p = part_at(ph, r);
            float acc[shape<NT>::groups_max][NT][4] = {};
            if (reads_set(ph) && !c.knows_set) {
                multipliers_sync();
                c.set = mem.sh->set;
            }
            multiply_part<NT>(acc, prog, ph, p, mem, c);
            c.ring.advance_far(p.n[0] + p.n[1], prog.n_slots);
            mbar_wait(&mem.sh->sums_free, (c.n_parts & 1) ^ 1);
            put_sums<NT>(mem.sums, acc, ph.groups);
            multipliers_sync();
            c.set = mem.sh->set;
            finish_part<NT>(prog, ph, p, mem.sums, c.set);
            warp_arrive(&mem.sh->sums_free);
            if (!c.knows_set) clear_other_set(prog, c.set);
            c.knows_set = true;
            c.n_parts++;
        }
    }
    if (c.knows_set) return;
    multipliers_sync();
    clear_other_set(prog, mem.sh->set);
}

const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;

__host__ __device__ inline int ring_offset(int sums_bytes) { return (head_bytes + sums_bytes + SLOT_ALIGN_BYTES - 1) / SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES; }

template <int NT>
__global__ void __launch_bounds__(THREADS, 1) batch_kernel(const __grid_constant__ nmlp_cuda_batch_program prog) {
    extern __shared__ __align__(SLOT_ALIGN_BYTES) unsigned char memory[];
    const block_memory mem = {reinterpret_cast<shared_head *>(memory), reinterpret_cast<float *>(memory + head_bytes), memory + ring_offset(prog.sums_bytes)};
    if (threadIdx.x == 0) {
        for (int i = 0; i < prog.n_slots; i++) {
            mbar_init(&mem.sh->full[i], FULL_ARRIVALS);
            mbar_init(&mem.sh->empty[i], WARP_ARRIVALS);
        }
        mbar_init(&mem.sh->sums_free, WARPS * WARP_ARRIVALS);
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (threadIdx.x >> 5 == COPIER)
        copy_weights(prog, mem);
    else
        multiply<NT>(prog, mem);
}

typedef void kernel_fn(const nmlp_cuda_batch_program);

kernel_fn *kernel_for(int32_t s) {
    if (s <= 8) return batch_kernel<1>;
    return s <= 16 ? batch_kernel<2> : batch_kernel<4>;
}

} // namespace

int32_t nmlp_cuda_batch_groups_max(int32_t s) {
    if (s <= 8) return shape<1>::groups_max;
    return s <= 16 ? shape<2>::groups_max : shape<4>::groups_max;
}

int32_t nmlp_cuda_batch_blocks_k_max(int32_t s) {
    if (s <= 8) return shape<1>::blocks_k_max;
    return s <= 16 ? shape<2>::blocks_k_max : shape<4>::blocks_k_max;
}

size_t nmlp_cuda_batch_sums_bytes(int32_t s, int32_t groups) {
    int tokens = s <= 8 ? 8 : s <= 16 ? 16 : 32;
    return sizeof(float) * WARPS * (size_t)groups * (size_t)tokens * TOKEN_PITCH;
}

size_t nmlp_cuda_batch_shared_bytes(const nmlp_cuda_batch_program *p) { return (size_t)ring_offset(p->sums_bytes) + (size_t)p->n_slots * (size_t)p->slot_bytes; }

int nmlp_cuda_batch_prepare(size_t shared_bytes) {
    const int32_t sizes[] = {8, 16, 32};
    for (int i = 0; i < 3; i++) {
        cudaError_t e = cudaFuncSetAttribute((const void *)kernel_for(sizes[i]), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

/* Cooperative: blocks wait for each other, so all must be resident. The next launch in the stream may begin to copy weights where a block of this one has
 * ended. */
int nmlp_cuda_batch_launch(const nmlp_cuda_batch_program *p, int grid, void *stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = nmlp_cuda_batch_shared_bytes(p);
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel_for(p->s), *p);
}
