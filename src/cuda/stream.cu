/* The persistent kernel that runs a streaming program (program.h). */
#include <cuda_runtime.h>

#include "cuda/program.h"
#include "cuda/stream_attention.cuh"
#include "cuda/stream_input.cuh"
#include "cuda/stream_ring.cuh"

namespace {

/* Warps 0..7 multiply, one finishes what they summed and keeps the grid in step, one copies. */
enum { FINISHER = NMLP_CUDA_CONSUMER_WARPS, COPIER, THREADS = (COPIER + 1) * 32 };

/* SPLIT: up to NMLP_CUDA_S_SPLIT tokens, high halves in rows 0..7 of the mma's A and low halves in rows 8..15. Otherwise 16 tokens per tile. */
template <int TILES, bool SPLIT>
struct shape {
    static const int tokens = SPLIT ? 8 : TILES * 16;
    static const int warp_sums = tokens * NMLP_CUDA_UNIT_ROWS;                /* of one warp and matrix */
    static const int sums = NMLP_CUDA_CONSUMER_WARPS * 2 * warp_sums; /* of one unit; there is room for two */
};

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The block's part of a phase, the same for every role. */
__device__ __forceinline__ unit_range my_units(const nmlp_cuda_phase *ph) {
    unit_range r;
    r.groups = (ph->n + NMLP_CUDA_UNIT_ROWS - 1) / NMLP_CUDA_UNIT_ROWS;
    unsigned n_units = (unsigned)r.groups * (unsigned)ph->n_chunks;
    r.begin = (int)(n_units * blockIdx.x / gridDim.x);
    r.end = (int)(n_units * (blockIdx.x + 1) / gridDim.x);
    return r;
}

/* Where things lie in the block's shared memory. */
struct block_memory {
    shared_head *sh;
    float *sums;
    __nv_bfloat16 *x;
    __nv_bfloat16 *ring;
};

enum { SLOT_ELEMS = NMLP_CUDA_UNIT_ROWS * (NMLP_CUDA_SLOT_COLS + NMLP_CUDA_ROW_SKEW) };

/* ---- the copying warp ---- */

/* Where the copying warp stands. Copies under way are kept few: requests queue in L2, and what other warps ask for (inputs, the barrier) waits behind
 * them. */
struct copier {
    ring_cursor at;
    ring_cursor landing; /* the oldest slot under way */
    int under_way;
};

__device__ __forceinline__ __nv_bfloat16 *next_slot(const nmlp_cuda_program &prog, const block_memory &mem, copier &c) {
    shared_head *sh = mem.sh;
    if (c.under_way == prog.n_under_way) {
        mbar_wait(&sh->full[c.landing.slot], c.landing.parity);
        c.landing.advance(prog.n_slots);
    } else {
        c.under_way++;
    }
    mbar_wait(&sh->empty[c.at.slot], c.at.parity ^ 1);
    return mem.ring + c.at.slot * SLOT_ELEMS;
}

__device__ void copy_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const block_memory &mem, copier &c) {
    const int lane = threadIdx.x & 31;
    unit_range units = my_units(ph);
    const __nv_bfloat16 *w[2] = {static_cast<const __nv_bfloat16 *>(ph->op[0].weight),
                                 static_cast<const __nv_bfloat16 *>(ph->op[1].weight)};
    const int k[2] = {ph->op[0].k, ph->op[1].k};
    const int n = ph->n;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    const int k_slot = ph->k_slot;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    for (int u = units.begin; u < units.end; u++) {
        int rows = min(NMLP_CUDA_UNIT_ROWS, n - group * NMLP_CUDA_UNIT_ROWS);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (m >= n_matrices) break;
            int k_end = min(k[m], (piece + 1) * k_chunk);
            const __nv_bfloat16 *from = w[m] + (int64_t)group * NMLP_CUDA_UNIT_ROWS * k[m];
            for (int k0 = piece * k_chunk; k0 < k_end; k0 += k_slot) {
                __nv_bfloat16 *slot = next_slot(prog, mem, c);
                fill_slot(slot, &mem.sh->full[c.at.slot], from + k0, rows, min(k_slot, k_end - k0), k[m], lane);
                c.at.advance(prog.n_slots);
            }
        }
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
}

__device__ void copy_weights(const nmlp_cuda_program &prog, const block_memory &mem) {
    copier c = {{0, 0}, {0, 0}, 0};
    for (int i = 0; i < prog.n_phases; i++)
        if (prog.phases[i].kind == NMLP_CUDA_MATMUL) copy_phase(prog, prog.phases + i, mem, c);
}

/* ---- the multiplying warps ---- */

/* 32 columns of the staged rows, as the mma's A for two steps of k. */
template <bool SPLIT>
__device__ __forceinline__ void load_rows(uint4 (&x)[2], const __nv_bfloat16 *at, int x_pitch, int tile, int g, int s, bool live) {
    int row0 = tile * 16 + g;
    int row1 = SPLIT ? s + g : row0 + 8;
    x[0] = x[1] = make_uint4(0, 0, 0, 0);
    if (live && row0 < s) x[0] = *reinterpret_cast<const uint4 *>(at + row0 * x_pitch);
    if (live && (SPLIT ? g < s : row1 < s)) x[1] = *reinterpret_cast<const uint4 *>(at + row1 * x_pitch);
}

/* Adds one slot: 8 rows of W times the staged rows. Within 32 columns a lane takes 8 neighbours of both operands, so the columns reach the mma
 * in another order than in memory, the same for both. Two blocks of 32 columns at a time, each with sums of its own, keep the tensor cores from
 * waiting for themselves. */
template <int TILES, bool SPLIT>
__device__ __forceinline__ void multiply_slot(float (&acc)[TILES][4][4], const __nv_bfloat16 *x, int x_pitch,
                                              const __nv_bfloat16 *w, int cols, int s) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
    const int n_blocks = cols / 32;
    w += g * (cols + NMLP_CUDA_ROW_SKEW) + t * 8;
    x += t * 8;
    for (int b = threadIdx.x >> 5; b < n_blocks; b += 2 * NMLP_CUDA_CONSUMER_WARPS) {
        bool both = b + NMLP_CUDA_CONSUMER_WARPS < n_blocks;
        uint4 wv[2];
        wv[0] = *reinterpret_cast<const uint4 *>(w + b * 32);
        wv[1] = make_uint4(0, 0, 0, 0);
        if (both) wv[1] = *reinterpret_cast<const uint4 *>(w + (b + NMLP_CUDA_CONSUMER_WARPS) * 32);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            uint4 x0[2];
            uint4 x1[2];
            load_rows<SPLIT>(x0, x + b * 32, x_pitch, m, g, s, true);
            load_rows<SPLIT>(x1, x + (b + NMLP_CUDA_CONSUMER_WARPS) * 32, x_pitch, m, g, s, both);
            mma(acc[m][0], x0[0].x, x0[1].x, x0[0].y, x0[1].y, wv[0].x, wv[0].y);
            mma(acc[m][1], x0[0].z, x0[1].z, x0[0].w, x0[1].w, wv[0].z, wv[0].w);
            mma(acc[m][2], x1[0].x, x1[1].x, x1[0].y, x1[1].y, wv[1].x, wv[1].y);
            mma(acc[m][3], x1[0].z, x1[1].z, x1[0].w, x1[1].w, wv[1].z, wv[1].w);
        }
    }
}

/* A warp's part of a unit's sums, [token][8 rows]. */
template <int TILES, bool SPLIT>
__device__ __forceinline__ void put_sums(float *to, const float (&acc)[TILES][4][4]) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
    for (int m = 0; m < TILES; m++) {
        float c[4];
        for (int i = 0; i < 4; i++) c[i] = (acc[m][0][i] + acc[m][1][i]) + (acc[m][2][i] + acc[m][3][i]);
        if (SPLIT) {
            *reinterpret_cast<float2 *>(to + g * 8 + t * 2) = make_float2(c[0] + c[2], c[1] + c[3]);
        } else {
            *reinterpret_cast<float2 *>(to + (m * 16 + g) * 8 + t * 2) = make_float2(c[0], c[1]);
            *reinterpret_cast<float2 *>(to + (m * 16 + g + 8) * 8 + t * 2) = make_float2(c[2], c[3]);
        }
    }
}

template <int TILES, bool SPLIT>
__device__ void multiply_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                               const block_memory &mem, ring_cursor &at, unsigned &n_done, int n_keys) {
    const int warp = threadIdx.x >> 5;
    const int s = prog.s;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    const int k_slot = ph->k_slot;
    const int k_first = ph->op[0].k;
    const int k_second = ph->op[1].k;
    const int second = ph->same_x ? 0 : k_chunk; /* where matrix 1 finds its rows */
    const int x_pitch = (n_matrices == 2 && second ? 2 : 1) * k_chunk + NMLP_CUDA_ROW_SKEW;
    shared_head *sh = mem.sh;
    int staged = -1;
    int piece = units.begin / units.groups;
    int left = (piece + 1) * units.groups - units.begin; /* units of this piece */
    for (int u = units.begin; u < units.end; u++, n_done++) {
        if (piece != staged) {
            consumer_sync();
            stage_input<SPLIT>(ph, mem.x, s, piece, n_keys, sh);
            staged = piece;
        }
        const int start = piece * k_chunk;
        float *here = mem.sums + (n_done & 1) * shape<TILES, SPLIT>::sums + warp * 2 * shape<TILES, SPLIT>::warp_sums;
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < n_matrices; m++) {
            float acc[TILES][4][4] = {};
            int k_end = min(m ? k_second : k_first, start + k_chunk);
            for (int k0 = start; k0 < k_end; k0 += k_slot) {
                mbar_wait(&sh->full[at.slot], at.parity);
                multiply_slot<TILES, SPLIT>(acc, mem.x + (m ? second : 0) + (k0 - start), x_pitch, mem.ring + at.slot * SLOT_ELEMS,
                                            min(k_slot, k_end - k0), s);
                warp_arrive(&sh->empty[at.slot]);
                at.advance(prog.n_slots);
            }
            if (m == 0) mbar_wait(&sh->sums_empty[n_done & 1], (n_done >> 1 & 1) ^ 1);
            put_sums<TILES, SPLIT>(here + m * shape<TILES, SPLIT>::warp_sums, acc);
        }
        warp_arrive(&sh->sums_full[n_done & 1]);
        if (--left == 0) {
            left = units.groups;
            piece++;
        }
    }
}

/* ---- the finishing warp ---- */

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* Noise that turns an argmax into a draw from softmax: -log(-log(u)), u from a hash of seed, position and token. */
__device__ __forceinline__ float gumbel(uint32_t seed, uint32_t position, uint32_t token) {
    uint64_t z = ((uint64_t)seed << 32 | position) * 0x9e3779b97f4a7c15ull + token;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    float u = ((float)(uint32_t)(z >> 40) + 0.5f) * (1.0f / 16777216.0f);
    return -logf(-logf(u));
}

struct pick {
    float inverse_temperature;
    uint32_t seed;
    int32_t position;
    float score; /* best so far of this thread */
    int32_t token;
};

__device__ __forceinline__ void consider(pick &p, float logit, int token) {
    float score = logit;
    if (p.inverse_temperature > 0) score = logit * p.inverse_temperature + gumbel(p.seed, p.position, token);
    if (score > p.score) {
        p.score = score;
        p.token = token;
    }
}

/* Where a phase's results go, in registers. */
struct sink {
    float *out;
    float *out2;
    const float *bias;
    int64_t part_stride;
    int pitch;
    int n;
    int output;
    bool narrow;    /* out is bf16 */
    bool scaled[2]; /* times 1/rms */
};

__device__ __forceinline__ sink make_sink(const nmlp_cuda_phase *ph) {
    return {ph->out, ph->out2, ph->bias, ph->out_part_stride, ph->out_pitch, ph->n, ph->output, ph->narrow_out != 0,
            {ph->op[0].input == NMLP_CUDA_NORM, ph->op[1].input == NMLP_CUDA_NORM}};
}

/* One finished element y (of matrix 0 and, in pairs, matrix 1) goes where the phase says. */
__device__ __forceinline__ void put_result(const sink &to, int piece, int token, int row, float y0, float y1, pick &best) {
    int64_t at = piece * to.part_stride + (int64_t)token * to.pitch + row;
    if (to.bias) y0 += to.bias[row];
    if (to.output == NMLP_CUDA_SILU_MUL) y0 = silu(y0) * y1;
    if (to.output == NMLP_CUDA_ADD) y0 += __ldcg(to.out + at);
    if (to.output == NMLP_CUDA_PAIR) to.out2[at] = y1;
    if (to.output == NMLP_CUDA_LOGITS) consider(best, y0, row);
    if (to.narrow) {
        reinterpret_cast<__nv_bfloat16 *>(to.out)[at] = __float2bfloat16(y0);
    } else {
        to.out[at] = y0;
    }
}

/* Adds what the eight warps summed, always in the same order; WIDE neighbours per lane. */
template <int TILES, bool SPLIT>
__device__ __forceinline__ void finish_unit(const sink &to, const float *sums, int s, int piece, int group, const shared_head *sh,
                                            pick &best) {
    const int WIDE = SPLIT ? 1 : 4;
    const int warp_sums = shape<TILES, SPLIT>::warp_sums;
    for (int i = (threadIdx.x & 31) * WIDE; i < s * NMLP_CUDA_UNIT_ROWS; i += 32 * WIDE) {
        int token = i >> 3;
        int row = group * NMLP_CUDA_UNIT_ROWS + (i & 7);
        float y[2][WIDE] = {};
#pragma unroll
        for (int w = 0; w < 2 * NMLP_CUDA_CONSUMER_WARPS; w++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) y[w & 1][j] += sums[w * warp_sums + i + j];
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            if (to.scaled[0]) y[0][j] *= sh->row_scale[token];
            if (to.scaled[1]) y[1][j] *= sh->row_scale[token];
            if (row + j < to.n) put_result(to, piece, token, row + j, y[0][j], y[1][j], best);
        }
    }
}

template <int TILES, bool SPLIT>
__device__ void finish_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                             const block_memory &mem, unsigned &n_done, pick &best) {
    const sink to = make_sink(ph);
    shared_head *sh = mem.sh;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    for (int u = units.begin; u < units.end; u++, n_done++) {
        mbar_wait(&sh->sums_full[n_done & 1], n_done >> 1 & 1);
        finish_unit<TILES, SPLIT>(to, mem.sums + (n_done & 1) * shape<TILES, SPLIT>::sums, prog.s, piece, group, sh, best);
        warp_arrive(&sh->sums_empty[n_done & 1]);
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
}

/* Sums pieces of K in order; the output kind is the one the matmul was meant to have. */
__device__ void reduce_pieces(const nmlp_cuda_phase *ph, int s) {
    int quads = ph->op[0].x_pitch / 4;
    for (int i = blockIdx.x * CONSUMERS + threadIdx.x; i < s * quads; i += gridDim.x * CONSUMERS) {
        int row = i / quads;
        int col = (i - row * quads) * 4;
        float4 a = load_parts(&ph->op[0], row, col);
        float4 *out = reinterpret_cast<float4 *>(ph->out + (int64_t)row * ph->out_pitch + col);
        if (ph->output == NMLP_CUDA_SILU_MUL) {
            float4 b = load_parts(&ph->op[1], row, col);
            a = make_float4(silu(a.x) * b.x, silu(a.y) * b.y, silu(a.z) * b.z, silu(a.w) * b.w);
        } else if (ph->output == NMLP_CUDA_ADD) {
            float4 b = __ldcg(out);
            a = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        }
        if (ph->narrow_out) {
            store4<false>(reinterpret_cast<__nv_bfloat16 *>(ph->out) + (int64_t)row * ph->out_pitch, 0, 0, 0, col, a);
        } else {
            *out = a;
        }
    }
}

__device__ void embed(const nmlp_cuda_phase *ph, int token) {
    const __nv_bfloat16 *row = static_cast<const __nv_bfloat16 *>(ph->embedding) + (int64_t)token * ph->op[0].k;
    for (int i = blockIdx.x * CONSUMERS + threadIdx.x; i < ph->op[0].k; i += gridDim.x * CONSUMERS)
        ph->out[i] = __bfloat162float(row[i]);
}

__device__ __forceinline__ void better(float &score, int32_t &token, float other_score, int32_t other_token) {
    if (other_score > score || (other_score == score && other_token < token)) {
        score = other_score;
        token = other_token;
    }
}

__device__ __forceinline__ void best_of_warp(float &score, int32_t &token) {
    for (int d = 16; d; d >>= 1)
        better(score, token, __shfl_xor_sync(0xffffffffu, score, d), __shfl_xor_sync(0xffffffffu, token, d));
}

/* The block's best of its rows of the vocabulary; of equal ones the smallest token. */
__device__ void publish_best(const nmlp_cuda_program &prog, const pick &best) {
    float score = best.score;
    int32_t token = best.token;
    best_of_warp(score, token);
    if ((threadIdx.x & 31) != 0) return;
    prog.best_score[blockIdx.x] = score;
    prog.best_token[blockIdx.x] = token;
}

__device__ void pick_token(const nmlp_cuda_program &prog, int position) {
    if (blockIdx.x != 0 || threadIdx.x >= 32) return;
    float score = -INFINITY;
    int32_t token = INT32_MAX;
    for (int i = threadIdx.x; i < gridDim.x; i += 32)
        better(score, token, __ldcg(prog.best_score + i), __ldcg(prog.best_token + i));
    best_of_warp(score, token);
    if (threadIdx.x != 0) return;
    if (token == INT32_MAX) token = 0; /* nothing but NaN: what the CPU's argmax says */
    prog.state->token = token;
    prog.state->length = position + 1;
    if (prog.tokens) prog.tokens[position] = token;
}

/* ---- keeping step ---- */

/* Multiplying and finishing warps together; `id` tells the two meetings of a phase apart. */
__device__ __forceinline__ void meet(int id) {
    static_assert(CONSUMERS + 32 == 288, "meet counts threads");
    asm volatile("bar.sync %0, 288;" ::"r"(id) : "memory");
}

/* The next phase's description starts for shared memory while this one runs. */
__device__ void fetch_phase(const nmlp_cuda_program &prog, int i, shared_head *sh) {
    static_assert(sizeof(nmlp_cuda_phase) % 16 == 0, "phases are copied 16 bytes at a time");
    if (i >= prog.n_phases) return;
    const char *from = reinterpret_cast<const char *>(prog.phases + i);
    char *to = reinterpret_cast<char *>(&sh->phase[i & 1]);
    for (int at = (threadIdx.x & 31) * 16; at < (int)sizeof(nmlp_cuda_phase); at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)), "l"(from + at) : "memory");
}

/* The description is there; its small vectors start for L2. */
__device__ void await_phase(const nmlp_cuda_program &prog, int i, shared_head *sh) {
    int lane = threadIdx.x & 31;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    if (i >= prog.n_phases) return;
    const nmlp_cuda_phase *ph = &sh->phase[i & 1];
    if (lane == 0 && ph->kind == NMLP_CUDA_MATMUL) sh->units[i & 1] = my_units(ph);
    if (ph->norm_weight)
        for (int k = lane * 32; k < ph->op[0].k; k += 32 * 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(ph->norm_weight + k));
}

/* The finishing warp of every block arrives, then waits for all. The counter only grows: a launch starts at a multiple of the grid size and adds
 * whole rounds. Arriving is a release at gpu scope after the block's warps have met, so their writes are seen by whoever sees the count. */
__device__ void arrive_at_grid(unsigned long long *counter) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(counter), "l"(1ull) : "memory");
}

__device__ void wait_for_grid(const unsigned long long *counter, unsigned long long target) {
    if ((threadIdx.x & 31) == 0) {
        unsigned long long seen;
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
        } while (seen < target);
    }
    __syncwarp();
}

template <int TILES, bool SPLIT>
__device__ void finish(const nmlp_cuda_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    unsigned n_done = 0;
    unsigned long long target;
    pick best = {0, 0, 0, -INFINITY, INT32_MAX};
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(target) : "l"(prog.barrier) : "memory");
    target = target / gridDim.x * gridDim.x;
    if (prog.state) {
        best.inverse_temperature = __ldcg(&prog.state->inverse_temperature);
        best.seed = __ldcg(&prog.state->seed);
        best.position = __ldcg(&prog.state->length);
    }
    fetch_phase(prog, 0, sh);
    await_phase(prog, 0, sh);
    meet(3);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_phase *ph = &sh->phase[i & 1];
        fetch_phase(prog, i + 1, sh);
        if (ph->kind == NMLP_CUDA_MATMUL) finish_phase<TILES, SPLIT>(prog, ph, sh->units[i & 1], mem, n_done, best);
        if (ph->kind == NMLP_CUDA_MATMUL && ph->output == NMLP_CUDA_LOGITS) publish_best(prog, best);
        if (i + 1 == prog.n_phases) break;
        meet(2);
        arrive_at_grid(prog.barrier);
        await_phase(prog, i + 1, sh);
        target += gridDim.x;
        wait_for_grid(prog.barrier, target);
        meet(3);
    }
}

template <int TILES, bool SPLIT>
__device__ void multiply(const nmlp_cuda_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    ring_cursor at = {0, 0};
    unsigned n_done = 0;
    int token = 0;
    int position = 0;
    if (prog.state) { /* the last phase alone changes it, after every block has passed a barrier */
        token = __ldcg(&prog.state->token);
        position = __ldcg(&prog.state->length);
    }
    for (int i = 0; i < prog.n_phases; i++) {
        meet(3); /* inputs and description are there */
        const nmlp_cuda_phase *ph = &sh->phase[i & 1];
        switch (ph->kind) {
        case NMLP_CUDA_MATMUL:
            multiply_phase<TILES, SPLIT>(prog, ph, sh->units[i & 1], mem, at, n_done, position + 1);
            break;
        case NMLP_CUDA_REDUCE: reduce_pieces(ph, prog.s); break;
        case NMLP_CUDA_ATTENTION: run_attention(ph, reinterpret_cast<float *>(mem.x), position); break;
        case NMLP_CUDA_EMBED: embed(ph, token); break;
        default: pick_token(prog, position); break;
        }
        if (i + 1 < prog.n_phases) meet(2); /* all is written */
    }
}

template <int TILES, bool SPLIT>
__global__ void __launch_bounds__(THREADS, 1) stream_kernel(const nmlp_cuda_program prog) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;
    block_memory mem;
    mem.sh = reinterpret_cast<shared_head *>(memory);
    mem.sums = reinterpret_cast<float *>(memory + head_bytes);
    mem.x = reinterpret_cast<__nv_bfloat16 *>(mem.sums + 2 * shape<TILES, SPLIT>::sums);
    mem.ring = mem.x + prog.input_elems;
    if (threadIdx.x == 0) {
        for (int i = 0; i < prog.n_slots; i++) {
            mbar_init(&mem.sh->full[i], FULL_ARRIVALS);
            mbar_init(&mem.sh->empty[i], NMLP_CUDA_CONSUMER_WARPS * WARP_ARRIVALS);
        }
        for (int i = 0; i < 2; i++) {
            mbar_init(&mem.sh->sums_full[i], NMLP_CUDA_CONSUMER_WARPS * WARP_ARRIVALS);
            mbar_init(&mem.sh->sums_empty[i], WARP_ARRIVALS);
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    int warp = threadIdx.x >> 5;
    if (warp == COPIER) {
        copy_weights(prog, mem);
    } else if (warp == FINISHER) {
        finish<TILES, SPLIT>(prog, mem);
    } else {
        multiply<TILES, SPLIT>(prog, mem);
    }
}

template <int TILES, bool SPLIT>
size_t shared_bytes(int32_t input_elems, int32_t n_slots) {
    return (sizeof(shared_head) + 127) / 128 * 128 + 2 * shape<TILES, SPLIT>::sums * sizeof(float) + (size_t)input_elems * 2 +
           (size_t)n_slots * SLOT_ELEMS * 2;
}

typedef void kernel_fn(const nmlp_cuda_program);

kernel_fn *kernel_for(int32_t s) {
    if (s <= NMLP_CUDA_S_SPLIT) return stream_kernel<1, true>;
    return s <= 16 ? stream_kernel<1, false> : stream_kernel<2, false>;
}

} // namespace

size_t nmlp_cuda_stream_shared_bytes(int32_t s, int32_t input_elems, int32_t n_slots) {
    if (s <= NMLP_CUDA_S_SPLIT) return shared_bytes<1, true>(input_elems, n_slots);
    return s <= 16 ? shared_bytes<1, false>(input_elems, n_slots) : shared_bytes<2, false>(input_elems, n_slots);
}

int nmlp_cuda_attention_scratch_elems(int32_t head_dim) { return 2 * attention_scratch(head_dim); }

int nmlp_cuda_stream_prepare(size_t bytes) {
    const int32_t sizes[] = {1, 16, 32};
    for (int i = 0; i < 3; i++) {
        cudaError_t e = cudaFuncSetAttribute((const void *)kernel_for(sizes[i]), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

int nmlp_cuda_stream_launch(const nmlp_cuda_program *program, int grid, void *stream) {
    size_t bytes = nmlp_cuda_stream_shared_bytes(program->s, program->input_elems, program->n_slots);
    void *args[] = {const_cast<nmlp_cuda_program *>(program)};
    return cudaLaunchCooperativeKernel((const void *)kernel_for(program->s), dim3((unsigned)grid), dim3(THREADS), args, bytes,
                                       (cudaStream_t)stream);
}
