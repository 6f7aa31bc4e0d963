/* The persistent kernel that runs a streaming program (program.h). */
#include <cuda_runtime.h>

#include "cuda/program.h"
#include "cuda/stream_attention.cuh"
#include "cuda/stream_input.cuh"
#include "cuda/stream_ring.cuh"

namespace {

/* Warps 0..7 multiply, one finishes what they summed and keeps the grid in step, the others copy. */
enum {
    COPIERS = NMLP_CUDA_COPIER_WARPS,
    FINISHER = NMLP_CUDA_CONSUMER_WARPS,
    FIRST_COPIER,
    THREADS = (FIRST_COPIER + COPIERS) * 32
};

/* SPLIT: up to NMLP_CUDA_S_SPLIT tokens; the high half of token i is column 2i of the mma's B, the low half column 2i + 1. Otherwise NT times 8
 * tokens. */
template <int NT, bool SPLIT>
struct shape {
    static const int tokens = SPLIT ? NMLP_CUDA_S_SPLIT : NT * 8;
    static const int warp_sums = tokens * NMLP_CUDA_UNIT_ROWS;        /* of one warp and matrix */
    static const int sums = NMLP_CUDA_CONSUMER_WARPS * 2 * warp_sums; /* of one unit; there is room for two */
};

#ifdef NMLP_CUDA_CLOCKS
__device__ void note_clock(const nmlp_cuda_program &prog, int phase, int event, long long begin) {
    if ((threadIdx.x & 31) == 0 && prog.clocks)
        prog.clocks[((int64_t)blockIdx.x * prog.n_phases + phase) * NMLP_CUDA_CLOCK_EVENTS + event] = clock64() - begin;
}
#define NOTE_CLOCK(phase, event) note_clock(prog, phase, event, mem.begin_clock)
#else
#define NOTE_CLOCK(phase, event) (void)0
#endif

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Where a multiplying warp stands; it takes every CONSUMER_WARPS-th tile. */
struct consumer {
    ring_cursor ring;
    unsigned n_done; /* units */
    int skip;        /* tiles until the next of its own */
};

/* The block's part of a phase, the same for every role. */
__device__ __forceinline__ unit_range my_units(const nmlp_cuda_phase *ph) {
    unit_range r;
    r.groups = (ph->n + NMLP_CUDA_UNIT_ROWS - 1) / NMLP_CUDA_UNIT_ROWS;
    unsigned n_units = (unsigned)r.groups * (unsigned)ph->n_chunks;
    r.begin = (int)(n_units * blockIdx.x / gridDim.x);
    r.end = (int)(n_units * (blockIdx.x + 1) / gridDim.x);
    return r;
}

__device__ __forceinline__ const nmlp_cuda_phase *phase_at(const nmlp_cuda_program &prog, int i) {
    return i < NMLP_CUDA_FIRST_PHASES ? prog.first + i : prog.phases + i;
}

/* Where things lie in the block's shared memory. */
struct block_memory {
    shared_head *sh;
    float *sums;
    __nv_bfloat16 *x;
    __nv_bfloat16 *ring;
#ifdef NMLP_CUDA_CLOCKS
    long long begin_clock;
#endif
};

enum { TILE_ELEMS = NMLP_CUDA_UNIT_ROWS * NMLP_CUDA_TILE_COLS };

/* Of a piece of K; the narrower matrix of two may have none left of it. */
__device__ __forceinline__ int n_tiles(int cols) { return (max(cols, 0) + NMLP_CUDA_TILE_COLS - 1) / NMLP_CUDA_TILE_COLS; }

/* ---- the copying warps ---- */

/* Where a copying warp stands; it takes every COPIERS-th tile. Copies under way are kept few: requests queue in L2, and what other warps ask for (inputs,
 * the barrier) waits behind them. */
struct copier {
    ring_cursor at;
    ring_cursor landing; /* the oldest tile under way */
    int under_way;
    int skip; /* tiles until the next of its own */
};

__device__ __forceinline__ __nv_bfloat16 *next_slot(const nmlp_cuda_program &prog, const block_memory &mem, copier &c) {
    shared_head *sh = mem.sh;
    if (c.under_way == prog.n_under_way) {
        mbar_wait(&sh->full[c.landing.slot], c.landing.parity);
        c.landing.advance(COPIERS, prog.n_slots);
    } else {
        c.under_way++;
    }
    mbar_wait(&sh->empty[c.at.slot], c.at.parity ^ 1);
    return mem.ring + c.at.slot * TILE_ELEMS;
}

__device__ void copy_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const block_memory &mem, copier &c) {
    const int lane = threadIdx.x & 31;
    const unit_range units = my_units(ph);
    const __nv_bfloat16 *const w0 = static_cast<const __nv_bfloat16 *>(ph->op[0].weight);
    const __nv_bfloat16 *const w1 = static_cast<const __nv_bfloat16 *>(ph->op[1].weight);
    const void *const map0 = ph->op[0].map;
    const void *const map1 = ph->op[1].map;
    const int k_of0 = ph->op[0].k;
    const int k_of1 = ph->op[1].k;
    const int n = ph->n;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    for (int u = units.begin; u < units.end; u++) {
        const int start = piece * k_chunk;
        const int len0 = min(k_of0 - start, k_chunk);
        const int tiles0 = n_tiles(len0);
        const int tiles = tiles0 + (n_matrices == 2 ? n_tiles(min(k_of1 - start, k_chunk)) : 0);
        const int rows = min(NMLP_CUDA_UNIT_ROWS, n - group * NMLP_CUDA_UNIT_ROWS);
        int i = c.skip;
        for (; i < tiles; i += COPIERS) {
            const bool second = i >= tiles0;
            const int k = second ? k_of1 : k_of0;
            const int k0 = start + (second ? i - tiles0 : i) * NMLP_CUDA_TILE_COLS;
            const int cols = min(NMLP_CUDA_TILE_COLS, min(k, start + k_chunk) - k0);
            __nv_bfloat16 *slot = next_slot(prog, mem, c);
            const tile_source from = {second ? map1 : map0, second ? w1 : w0, k, group * NMLP_CUDA_UNIT_ROWS, rows, k0, cols};
            fill_slot(slot, &mem.sh->full[c.at.slot], from, lane);
            c.at.advance(COPIERS, prog.n_slots);
        }
        c.skip = i - tiles;
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
}

__device__ void copy_weights(const nmlp_cuda_program &prog, const block_memory &mem) {
    const int MAPS_AHEAD = 3;
    int number = (int)(threadIdx.x >> 5) - FIRST_COPIER;
    int lane = threadIdx.x & 31;
    if (lane < 2 * MAPS_AHEAD && lane / 2 < prog.n_phases) prefetch_map(phase_at(prog, lane / 2)->op[lane % 2].map);
    copier c = {{number, 0}, {number, 0}, 0, number};
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_phase *ph = phase_at(prog, i);
        if (lane < 2 && i + MAPS_AHEAD < prog.n_phases) prefetch_map(phase_at(prog, i + MAPS_AHEAD)->op[lane].map);
        if (ph->kind == NMLP_CUDA_MATMUL) copy_phase(prog, ph, mem, c);
        if (number == 0) NOTE_CLOCK(i, 7);
    }
}

/* ---- the multiplying warps ---- */

/* 32 columns of the staged rows, as the mma's B for two steps of k. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void load_rows(uint4 (&x)[NT], const __nv_bfloat16 *at, int x_pitch, int g, int s) {
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int token = SPLIT ? g >> 1 : i * 8 + g;
        int row = SPLIT ? (g & 1) * s + token : token;
        x[i] = make_uint4(0, 0, 0, 0);
        if (token < s) x[i] = *reinterpret_cast<const uint4 *>(at + row * x_pitch);
    }
}

/* Adds one tile: 16 rows of W times the staged rows. Within 32 columns a lane takes 8 neighbours of both operands, so the columns reach the mma
 * in another order than in memory, the same for both. Two sets of sums keep the tensor cores from waiting for themselves. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void multiply_tile(float (&acc)[NT][2][4], const __nv_bfloat16 *x, int x_pitch, const __nv_bfloat16 *w,
                                              int cols, int s) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
    const int w_pitch = NMLP_CUDA_TILE_COLS;
    const int n_blocks = cols / 32;
    w += g * w_pitch + t * 8;
    x += t * 8;
#pragma unroll 4
    for (int b = 0; b < n_blocks; b++) {
        uint4 xv[NT];
        uint4 lo = *reinterpret_cast<const uint4 *>(w + b * 32);
        uint4 hi = *reinterpret_cast<const uint4 *>(w + b * 32 + 8 * w_pitch);
        load_rows<NT, SPLIT>(xv, x + b * 32, x_pitch, g, s);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            mma(acc[i][0], lo.x, hi.x, lo.y, hi.y, xv[i].x, xv[i].y);
            mma(acc[i][1], lo.z, hi.z, lo.w, hi.w, xv[i].z, xv[i].w);
        }
    }
}

/* A warp's part of a unit's sums, [token][16 rows]. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void put_sums(float *to, const float (&acc)[NT][2][4], int s) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float c[4];
#pragma unroll
        for (int j = 0; j < 4; j++) c[j] = acc[i][0][j] + acc[i][1][j];
        if (SPLIT) {
            if (t >= s) return;
            to[t * 16 + g] = c[0] + c[1];
            to[t * 16 + g + 8] = c[2] + c[3];
        } else {
            float *at = to + (i * 8 + t * 2) * 16 + g;
            at[0] = c[0];
            at[16] = c[1];
            at[8] = c[2];
            at[24] = c[3];
        }
    }
}

template <int NT, bool SPLIT>
__device__ void multiply_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                               const block_memory &mem, consumer &at, int n_keys, int phase) {
    const int warp = threadIdx.x >> 5;
    const int s = prog.s;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    const int k_of0 = ph->op[0].k;
    const int k_of1 = ph->op[1].k;
    const int second = ph->same_x ? 0 : k_chunk; /* where matrix 1 finds its rows */
    const int x_pitch = (n_matrices == 2 && second ? 2 : 1) * k_chunk + NMLP_CUDA_ROW_SKEW;
    shared_head *sh = mem.sh;
    int staged = -1;
    int piece = units.begin / units.groups;
    int left = (piece + 1) * units.groups - units.begin; /* units of this piece */
    for (int u = units.begin; u < units.end; u++, at.n_done++) {
        if (piece != staged) {
            consumer_sync();
            stage_input<SPLIT>(ph, mem.x, s, piece, n_keys, sh);
            staged = piece;
            if (warp == 0) NOTE_CLOCK(phase, 1);
        }
        const int start = piece * k_chunk;
        const int len[2] = {min(k_of0 - start, k_chunk), min(k_of1 - start, k_chunk)};
        float *here = mem.sums + (at.n_done & 1) * shape<NT, SPLIT>::sums + warp * 2 * shape<NT, SPLIT>::warp_sums;
        int i = at.skip;
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < n_matrices; m++) {
            float acc[NT][2][4] = {};
            const int n = n_tiles(m ? len[1] : len[0]);
            for (; i < n; i += NMLP_CUDA_CONSUMER_WARPS) {
                const int k0 = i * NMLP_CUDA_TILE_COLS;
                mbar_wait(&sh->full[at.ring.slot], at.ring.parity);
                if (warp == 0 && u == units.begin) NOTE_CLOCK(phase, 2);
                multiply_tile<NT, SPLIT>(acc, mem.x + (m ? second : 0) + k0, x_pitch, mem.ring + at.ring.slot * TILE_ELEMS,
                                         min(NMLP_CUDA_TILE_COLS, (m ? len[1] : len[0]) - k0), s);
                warp_arrive(&sh->empty[at.ring.slot]);
                at.ring.advance(NMLP_CUDA_CONSUMER_WARPS, prog.n_slots);
            }
            i -= n;
            if (m == 0) mbar_wait(&sh->sums_empty[at.n_done & 1], (at.n_done >> 1 & 1) ^ 1);
            put_sums<NT, SPLIT>(here + m * shape<NT, SPLIT>::warp_sums, acc, s);
        }
        at.skip = i;
        warp_arrive(&sh->sums_full[at.n_done & 1]);
        if (--left == 0) {
            left = units.groups;
            piece++;
        }
    }
    if (warp == 0) NOTE_CLOCK(phase, 3);
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
    void *out;
    const float *bias;
    int64_t part_stride;
    int pitch;
    int n;
    int output;
    bool narrow;    /* bf16 */
    bool tagged;
    uint32_t tag;
    bool scaled[2]; /* times 1/rms */
};

__device__ __forceinline__ sink make_sink(const nmlp_cuda_phase *ph, uint32_t tag) {
    return {ph->out, ph->bias, ph->out_part_stride, ph->out_pitch, ph->n, ph->output, ph->narrow_out != 0, ph->tagged_out != 0, tag,
            {ph->op[0].input == NMLP_CUDA_NORM, ph->op[1].input == NMLP_CUDA_NORM}};
}

/* A finished element (of matrix 0 and, in pairs, matrix 1); rows past the end are zero. `before`: what ADD adds to. */
__device__ __forceinline__ float result(const sink &to, int row, float y0, float y1, float before, pick &best) {
    if (row >= to.n) return 0;
    if (to.bias) y0 += to.bias[row];
    if (to.output == NMLP_CUDA_SILU_MUL) y0 = silu(y0) * y1;
    if (to.output == NMLP_CUDA_ADD) y0 += before;
    if (to.output == NMLP_CUDA_LOGITS) consider(best, y0, row);
    return y0;
}

/* WIDE neighbouring rows of one token go where the phase says. Tagged rows are written up to a multiple of four, so that readers take four at a time. */
template <int WIDE>
__device__ __forceinline__ void put_results(const sink &to, int piece, int token, int row, const float (&y)[WIDE]) {
    int64_t at = piece * to.part_stride + (int64_t)token * to.pitch + row;
    if (!to.tagged) {
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            if (row + j < to.n) static_cast<float *>(to.out)[at + j] = y[j];
    } else if (row < (to.n + (to.narrow ? 7 : 3)) / (to.narrow ? 8 : 4) * (to.narrow ? 8 : 4)) {
        word *out = static_cast<word *>(to.out);
        if (WIDE == 4 && to.narrow) {
            uint32_t pairs[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                __nv_bfloat162 pair = __floats2bfloat162_rn(y[2 * j % WIDE], y[(2 * j + 1) % WIDE]);
                pairs[j] = *reinterpret_cast<uint32_t *>(&pair);
            }
            put_words(out + at / 2, make_word(pairs[0], to.tag), make_word(pairs[1], to.tag));
        } else {
#pragma unroll
            for (int j = 0; j < WIDE; j++) put_word(out + at + j, __float_as_uint(y[j]), to.tag);
        }
    }
}

/* Adds what the eight warps summed, always in the same order; WIDE neighbours per lane. `before` is of this lane's first row. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void finish_unit(const sink &to, const float *sums, int s, int piece, int group, float before,
                                            const shared_head *sh, pick &best) {
    const int WIDE = SPLIT ? 1 : 4;
    const int warp_sums = shape<NT, SPLIT>::warp_sums;
    for (int i = (threadIdx.x & 31) * WIDE; i < s * NMLP_CUDA_UNIT_ROWS; i += 32 * WIDE) {
        int token = i / NMLP_CUDA_UNIT_ROWS;
        int row = group * NMLP_CUDA_UNIT_ROWS + i % NMLP_CUDA_UNIT_ROWS;
        float y[2][WIDE] = {};
#pragma unroll
        for (int w = 0; w < 2 * NMLP_CUDA_CONSUMER_WARPS; w++)
#pragma unroll
            for (int j = 0; j < WIDE; j++) y[w & 1][j] += sums[w * warp_sums + i + j];
#pragma unroll
        for (int j = 0; j < WIDE; j++) {
            if (to.scaled[0]) y[0][j] *= sh->row_scale[token];
            if (to.scaled[1]) y[1][j] *= sh->row_scale[token];
            y[0][j] = result(to, row + j, y[0][j], y[1][j], before, best);
        }
        put_results<WIDE>(to, piece, token, row, y[0]);
    }
}

/* A unit's sums as one piece among others: tagged f32 [matrices][S, 16]. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void put_piece(word *parts, const sink &to, const float *sums, int s, int n_matrices, const shared_head *sh) {
    const int warp_sums = shape<NT, SPLIT>::warp_sums;
    for (int m = 0; m < n_matrices; m++) {
        for (int i = (threadIdx.x & 31) * 4; i < s * NMLP_CUDA_UNIT_ROWS; i += 32 * 4) {
            float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++)
                add4(y, *reinterpret_cast<const float4 *>(sums + (2 * w + m) * warp_sums + i));
            float scale = to.scaled[m] ? sh->row_scale[i / NMLP_CUDA_UNIT_ROWS] : 1.0f;
            word *at = parts + m * s * NMLP_CUDA_UNIT_ROWS + i;
            put_words(at, make_word(__float_as_uint(y.x * scale), to.tag), make_word(__float_as_uint(y.y * scale), to.tag));
            put_words(at + 2, make_word(__float_as_uint(y.z * scale), to.tag), make_word(__float_as_uint(y.w * scale), to.tag));
        }
    }
}

/* All pieces of one group of rows, awaited and summed in order. */
template <bool SPLIT>
__device__ void join_pieces(const sink &to, const word *parts, int n_parts, int n_matrices, int s, int group, pick &best) {
    const int AT_ONCE = 2;
    const int of_matrix = s * NMLP_CUDA_UNIT_ROWS;
    const int stride = n_matrices * of_matrix;
    parts += (int64_t)group * n_parts * stride;
    for (int i = (threadIdx.x & 31) * 4; i < of_matrix; i += 32 * 4) {
        float4 sum[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
        for (int p0 = 0; p0 < n_parts; p0 += AT_ONCE) {
            uint4 bits[2 * AT_ONCE];
            get_quads<2 * AT_ONCE>(bits,
                                   [=](int j) {
                                       int p = p0 + j / 2;
                                       return p < n_parts && j % 2 < n_matrices ? parts + p * stride + j % 2 * of_matrix + i : nullptr;
                                   },
                                   to.tag);
#pragma unroll
            for (int j = 0; j < 2 * AT_ONCE; j++) add4(sum[j % 2], as_floats(bits[j]));
        }
        const float y0[4] = {sum[0].x, sum[0].y, sum[0].z, sum[0].w};
        const float y1[4] = {sum[1].x, sum[1].y, sum[1].z, sum[1].w};
        float y[4];
        int row = group * NMLP_CUDA_UNIT_ROWS + i % NMLP_CUDA_UNIT_ROWS;
#pragma unroll
        for (int j = 0; j < 4; j++) y[j] = result(to, row + j, y0[j], y1[j], 0, best);
        put_results<4>(to, 0, i / NMLP_CUDA_UNIT_ROWS, row, y);
    }
}

template <int NT, bool SPLIT>
__device__ void finish_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                             const block_memory &mem, unsigned &n_done, uint32_t tag, pick &best) {
    const sink to = make_sink(ph, tag);
    const int lane = threadIdx.x & 31;
    shared_head *sh = mem.sh;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    for (int u = units.begin; u < units.end; u++, n_done++) {
        const float *sums = mem.sums + (n_done & 1) * shape<NT, SPLIT>::sums;
        float before = 0;
        if (to.output == NMLP_CUDA_ADD && lane < NMLP_CUDA_UNIT_ROWS && group * NMLP_CUDA_UNIT_ROWS + lane < to.n)
            before = get_float(static_cast<const word *>(to.out) + group * NMLP_CUDA_UNIT_ROWS + lane,
                               sh->tag_base + (uint32_t)ph->out_before);
        mbar_wait(&sh->sums_full[n_done & 1], n_done >> 1 & 1);
        if (ph->parts) {
            int64_t unit = (int64_t)group * ph->n_chunks + piece;
            put_piece<NT, SPLIT>(static_cast<word *>(ph->parts) + unit * ph->n_matrices * prog.s * NMLP_CUDA_UNIT_ROWS, to, sums, prog.s,
                                 ph->n_matrices, sh);
        } else {
            finish_unit<NT, SPLIT>(to, sums, prog.s, piece, group, before, sh, best);
        }
        warp_arrive(&sh->sums_empty[n_done & 1]);
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
    if (!ph->parts) return;
    for (int u = units.begin; u < min(units.end, units.groups); u++) /* the groups whose first piece is this block's */
        join_pieces<SPLIT>(to, static_cast<const word *>(ph->parts), ph->n_chunks, ph->n_matrices, prog.s, u, best);
}

__device__ void embed(const nmlp_cuda_phase *ph, int token, uint32_t tag) {
    const __nv_bfloat16 *row = static_cast<const __nv_bfloat16 *>(ph->embedding) + (int64_t)token * ph->op[0].k;
    for (int i = blockIdx.x * CONSUMERS + threadIdx.x; i < ph->op[0].k; i += gridDim.x * CONSUMERS)
        put_word(static_cast<word *>(ph->out) + i, __float_as_uint(__bfloat162float(row[i])), tag);
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

/* The launch before this one in the stream has ended and what it wrote is seen. Weights may be copied earlier. */
__device__ __forceinline__ void await_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Multiplying and finishing warps together; `id` tells the two meetings of a phase apart. */
__device__ __forceinline__ void meet(int id) {
    static_assert(CONSUMERS + 32 == 288, "meet counts threads");
    asm volatile("bar.sync %0, 288;" ::"r"(id) : "memory");
}

/* The next phase's description starts for shared memory while this one runs. */
__device__ void fetch_phase(const nmlp_cuda_program &prog, int i, shared_head *sh) {
    static_assert(sizeof(nmlp_cuda_phase) % 16 == 0, "phases are copied 16 bytes at a time");
    if (i >= prog.n_phases) return;
    const char *from = reinterpret_cast<const char *>(phase_at(prog, i));
    char *to = reinterpret_cast<char *>(&sh->phase[i & 1]);
    if (i < NMLP_CUDA_FIRST_PHASES) {
        for (int at = (threadIdx.x & 31) * 8; at < (int)sizeof(nmlp_cuda_phase); at += 32 * 8)
            *reinterpret_cast<uint64_t *>(to + at) = *reinterpret_cast<const uint64_t *>(from + at);
        return;
    }
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

/* The finishing warp of every block arrives at one of the counters, then waits for all. Counters only grow, by their number of blocks per meeting. Arriving
 * is a release at gpu scope after the block's warps have met, so their writes are seen by whoever sees the count. */
struct grid_step {
    unsigned long long *counter; /* lane i watches counter i */
    unsigned long long target;
    unsigned blocks; /* that arrive there */
};

__device__ grid_step begin_steps(unsigned long long *counters) {
    grid_step step;
    unsigned way = (threadIdx.x & 31) % NMLP_CUDA_BARRIER_WAYS;
    step.counter = counters + way * NMLP_CUDA_BARRIER_STRIDE;
    step.blocks = gridDim.x / NMLP_CUDA_BARRIER_WAYS + (way < gridDim.x % NMLP_CUDA_BARRIER_WAYS);
    unsigned long long seen;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(step.counter) : "memory");
    /* Others may have arrived already. Where this block arrives the round cannot be over before it has: that counter tells how many there were. */
    unsigned long long rounds = step.blocks ? seen / step.blocks : 0;
    step.target = step.blocks * __shfl_sync(0xffffffffu, rounds, blockIdx.x % NMLP_CUDA_BARRIER_WAYS);
    return step;
}

__device__ void arrive_at_grid(const grid_step &step) {
    __syncwarp();
    if ((threadIdx.x & 31) == blockIdx.x % NMLP_CUDA_BARRIER_WAYS)
        asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(step.counter), "l"(1ull) : "memory");
}

__device__ void wait_for_grid(grid_step &step) {
    step.target += step.blocks;
    unsigned long long seen;
    do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(step.counter) : "memory");
    } while (__any_sync(0xffffffffu, seen < step.target));
}

/* Tells this launch from those before: tickets only grow, by one per block and launch. */
__device__ uint32_t take_ticket(const nmlp_cuda_program &prog) {
    uint32_t launch = 0;
    if ((threadIdx.x & 31) == 0) launch = atomicAdd(prog.tickets, 1u) / gridDim.x;
    return __shfl_sync(0xffffffffu, launch, 0) * (uint32_t)(prog.n_phases + 1);
}

template <int NT, bool SPLIT>
__device__ void finish(const nmlp_cuda_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    unsigned n_done = 0;
    pick best = {0, 0, 0, -INFINITY, INT32_MAX};
    fetch_phase(prog, 0, sh);
    await_phase(prog, 0, sh);
    const bool early = sh->phase[0].kind == NMLP_CUDA_MATMUL; /* whose input has no tags yet */
    if (early) meet(3);
    await_launch_before();
    const uint32_t tag_base = take_ticket(prog);
    grid_step step = begin_steps(prog.barrier);
    if (prog.state) {
        best.inverse_temperature = __ldcg(&prog.state->inverse_temperature);
        best.seed = __ldcg(&prog.state->seed);
        best.position = __ldcg(&prog.state->length);
    }
    if ((threadIdx.x & 31) == 0) sh->tag_base = tag_base;
    __syncwarp();
    if (!early) meet(3);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_phase *ph = &sh->phase[i & 1];
        fetch_phase(prog, i + 1, sh);
        if (ph->kind == NMLP_CUDA_MATMUL) finish_phase<NT, SPLIT>(prog, ph, sh->units[i & 1], mem, n_done, tag_base + (uint32_t)i + 1, best);
        if (ph->kind == NMLP_CUDA_MATMUL && ph->output == NMLP_CUDA_LOGITS) publish_best(prog, best);
        NOTE_CLOCK(i, 4);
        if (i + 1 == prog.n_phases) break;
        await_phase(prog, i + 1, sh);
        if (ph->meet_after) {
            meet(2);
            arrive_at_grid(step);
            NOTE_CLOCK(i, 5);
            wait_for_grid(step);
        }
        NOTE_CLOCK(i, 6);
        meet(3);
    }
}

template <int NT, bool SPLIT>
__device__ void multiply(const nmlp_cuda_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    int warp = threadIdx.x >> 5;
    consumer at = {{warp, 0}, 0, warp};
    int token = 0;
    int position = 0;
    await_launch_before();
    if (prog.state) { /* the last phase alone changes it, after every block has passed a barrier */
        token = __ldcg(&prog.state->token);
        position = __ldcg(&prog.state->length);
    }
    for (int i = 0; i < prog.n_phases; i++) {
        meet(3); /* inputs and description are there */
        if (warp == 0) NOTE_CLOCK(i, 0);
        const nmlp_cuda_phase *ph = &sh->phase[i & 1];
        switch (ph->kind) {
        case NMLP_CUDA_MATMUL:
            multiply_phase<NT, SPLIT>(prog, ph, sh->units[i & 1], mem, at, position + 1, i);
            break;
        case NMLP_CUDA_ATTENTION:
            run_attention(ph, sh->tag_base + (uint32_t)ph->op[0].x_written_by, sh->tag_base + (uint32_t)i + 1, reinterpret_cast<float *>(mem.x), position);
            break;
        case NMLP_CUDA_EMBED: embed(ph, token, sh->tag_base + (uint32_t)i + 1); break;
        default: pick_token(prog, position); break;
        }
        if (ph->meet_after) meet(2); /* all is written */
    }
}

template <int NT, bool SPLIT>
__global__ void __launch_bounds__(THREADS, 1) stream_kernel(const __grid_constant__ nmlp_cuda_program prog) {
    extern __shared__ __align__(128) unsigned char memory[];
    const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;
    block_memory mem;
    mem.sh = reinterpret_cast<shared_head *>(memory);
    mem.sums = reinterpret_cast<float *>(memory + head_bytes);
    mem.x = reinterpret_cast<__nv_bfloat16 *>(mem.sums + 2 * shape<NT, SPLIT>::sums);
    mem.ring = mem.x + prog.input_elems;
#ifdef NMLP_CUDA_CLOCKS
    mem.begin_clock = clock64();
#endif
    if (threadIdx.x == 0) {
        for (int i = 0; i < prog.n_slots; i++) {
            mbar_init(&mem.sh->full[i], FULL_ARRIVALS);
            mbar_init(&mem.sh->empty[i], WARP_ARRIVALS);
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
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    int warp = threadIdx.x >> 5;
    if (warp >= FIRST_COPIER) {
        copy_weights(prog, mem);
    } else if (warp == FINISHER) {
        finish<NT, SPLIT>(prog, mem);
    } else {
        multiply<NT, SPLIT>(prog, mem);
    }
}

template <int NT, bool SPLIT>
size_t shared_bytes(int32_t input_elems, int32_t n_slots) {
    return (sizeof(shared_head) + 127) / 128 * 128 + 2 * shape<NT, SPLIT>::sums * sizeof(float) + (size_t)input_elems * 2 +
           (size_t)n_slots * TILE_ELEMS * 2;
}

typedef void kernel_fn(const nmlp_cuda_program);

/* The kernel for s tokens and what depends on its shape. */
struct choice {
    kernel_fn *kernel;
    size_t (*bytes)(int32_t input_elems, int32_t n_slots);
};

choice choose(int32_t s) {
    if (s <= NMLP_CUDA_S_SPLIT) return {stream_kernel<1, true>, shared_bytes<1, true>};
    if (s <= 8) return {stream_kernel<1, false>, shared_bytes<1, false>};
    if (s <= 16) return {stream_kernel<2, false>, shared_bytes<2, false>};
    return {stream_kernel<4, false>, shared_bytes<4, false>};
}

} // namespace

size_t nmlp_cuda_stream_shared_bytes(int32_t s, int32_t input_elems, int32_t n_slots) { return choose(s).bytes(input_elems, n_slots); }

int nmlp_cuda_attention_scratch_elems(int32_t head_dim) { return 2 * attention_scratch(head_dim); }

int nmlp_cuda_stream_prepare(size_t bytes) {
    const int32_t sizes[] = {1, 8, 16, 32};
    for (int i = 0; i < 4; i++) {
        cudaError_t e = cudaFuncSetAttribute((const void *)choose(sizes[i]).kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

/* Cooperative: blocks wait for each other, so all must be resident. The next launch in the stream may begin to copy weights where a block of this one has
 * ended. */
int nmlp_cuda_stream_launch(const nmlp_cuda_program *program, int grid, void *stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = nmlp_cuda_stream_shared_bytes(program->s, program->input_elems, program->n_slots);
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, choose(program->s).kernel, *program);
}
