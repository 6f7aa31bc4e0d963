/* The persistent kernel that runs a streaming program (program.h). */
#include <cuda_runtime.h>

#include "cuda/program.h"
#include "cuda/stream_attention.cuh"
#include "cuda/stream_input.cuh"
#include "cuda/stream_ring.cuh"

namespace {

enum { THREADS = CONSUMERS + 32 };

/* SPLIT: up to NMLP_CUDA_S_SPLIT tokens, high halves in rows 0..7 of the mma's A and low halves in rows 8..15. Otherwise 16 tokens per tile. */
template <int TILES, bool SPLIT>
struct shape {
    static const int tokens = SPLIT ? 8 : TILES * 16;
    static const int sums = NMLP_CUDA_CONSUMER_WARPS * 2 * tokens * NMLP_CUDA_UNIT_ROWS; /* floats of one reduction buffer */
};

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A run of units of a matmul phase, the same for both sides of the ring. */
struct unit_range {
    int groups; /* units per piece of K */
    int begin;
    int end;
};

__device__ __forceinline__ unit_range my_units(const nmlp_cuda_phase *ph) {
    unit_range r;
    r.groups = (ph->n + NMLP_CUDA_UNIT_ROWS - 1) / NMLP_CUDA_UNIT_ROWS;
    long long n_units = (long long)r.groups * ph->n_chunks;
    r.begin = (int)(n_units * blockIdx.x / gridDim.x);
    r.end = (int)(n_units * (blockIdx.x + 1) / gridDim.x);
    return r;
}

/* ---- the copying warp ---- */

__device__ void produce_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, shared_head *sh, __nv_bfloat16 *ring,
                              int slot_elems, ring_cursor &at, int lane) {
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
                mbar_wait(&sh->empty[at.slot], at.parity ^ 1);
                fill_slot(ring + at.slot * slot_elems, &sh->full[at.slot], from + k0, rows, min(k_slot, k_end - k0), k[m], lane);
                at.advance(prog.n_slots);
            }
        }
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
}

__device__ void produce(const nmlp_cuda_program &prog, shared_head *sh, __nv_bfloat16 *ring, int slot_elems) {
    ring_cursor at = {0, 0};
    for (int i = 0; i < prog.n_phases; i++)
        if (prog.phases[i].kind == NMLP_CUDA_MATMUL) produce_phase(prog, prog.phases + i, sh, ring, slot_elems, at, threadIdx.x & 31);
}

/* ---- the multiplying warps ---- */

/* Adds one slot: 8 rows of W times the staged rows. Within 32 columns a lane takes 8 neighbours of both operands, so the columns reach the mma
 * in another order than in memory, the same for both. */
template <int TILES, bool SPLIT>
__device__ __forceinline__ void multiply_slot(float (&acc)[TILES][2][4], const __nv_bfloat16 *x, int x_pitch,
                                              const __nv_bfloat16 *w, int cols, int s) {
    int warp = threadIdx.x >> 5;
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
    const __nv_bfloat16 *w_row = w + g * (cols + NMLP_CUDA_ROW_SKEW) + t * 8;
#pragma unroll 2
    for (int b = warp; b < cols / 32; b += NMLP_CUDA_CONSUMER_WARPS) {
        uint4 wv = *reinterpret_cast<const uint4 *>(w_row + b * 32);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            int row0 = m * 16 + g;
            int row1 = SPLIT ? s + g : row0 + 8;
            uint4 x0 = make_uint4(0, 0, 0, 0);
            uint4 x1 = make_uint4(0, 0, 0, 0);
            if (row0 < s) x0 = *reinterpret_cast<const uint4 *>(x + row0 * x_pitch + b * 32 + t * 8);
            if (SPLIT ? g < s : row1 < s) x1 = *reinterpret_cast<const uint4 *>(x + row1 * x_pitch + b * 32 + t * 8);
            mma(acc[m][0], x0.x, x1.x, x0.y, x1.y, wv.x, wv.y);
            mma(acc[m][1], x0.z, x1.z, x0.w, x1.w, wv.z, wv.w);
        }
    }
}

/* A warp's part of a unit's sums, [token][8 rows]. */
template <int TILES, bool SPLIT>
__device__ __forceinline__ void put_sums(float *to, const float (&acc)[TILES][2][4]) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
    for (int m = 0; m < TILES; m++) {
        float c[4];
        for (int i = 0; i < 4; i++) c[i] = acc[m][0][i] + acc[m][1][i];
        if (SPLIT) {
            *reinterpret_cast<float2 *>(to + g * 8 + t * 2) = make_float2(c[0] + c[2], c[1] + c[3]);
        } else {
            *reinterpret_cast<float2 *>(to + (m * 16 + g) * 8 + t * 2) = make_float2(c[0], c[1]);
            *reinterpret_cast<float2 *>(to + (m * 16 + g + 8) * 8 + t * 2) = make_float2(c[2], c[3]);
        }
    }
}

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

/* One finished element y (of matrix 0 and, in pairs, matrix 1) goes where the phase says. */
__device__ __forceinline__ void put_result(const nmlp_cuda_phase *ph, int piece, int token, int row, float y0, float y1,
                                           pick &best) {
    int64_t at = piece * ph->out_part_stride + (int64_t)token * ph->out_pitch + row;
    if (ph->bias) y0 += ph->bias[row];
    if (ph->output == NMLP_CUDA_SILU_MUL) {
        ph->out[at] = silu(y0) * y1;
    } else if (ph->output == NMLP_CUDA_ADD) {
        ph->out[at] = __ldcg(ph->out + at) + y0;
    } else {
        ph->out[at] = y0;
        if (ph->output == NMLP_CUDA_PAIR) ph->out2[at] = y1;
        if (ph->output == NMLP_CUDA_LOGITS) consider(best, y0, row);
    }
}

template <int TILES, bool SPLIT>
__device__ void finish_unit(const nmlp_cuda_phase *ph, const float *sums, int s, int piece, int group, const shared_head *sh,
                            pick &best) {
    const int tokens = shape<TILES, SPLIT>::tokens;
    for (int i = threadIdx.x; i < s * NMLP_CUDA_UNIT_ROWS; i += CONSUMERS) {
        int token = i >> 3;
        int row = group * NMLP_CUDA_UNIT_ROWS + (i & 7);
        if (row >= ph->n) continue;
        float y[2] = {0, 0};
        for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++)
            for (int m = 0; m < 2; m++)
                if (m < ph->n_matrices) y[m] += sums[(w * 2 + m) * tokens * NMLP_CUDA_UNIT_ROWS + i];
        for (int m = 0; m < 2; m++)
            if (ph->op[m].input == NMLP_CUDA_NORM) y[m] *= sh->row_scale[token];
        put_result(ph, piece, token, row, y[0], y[1], best);
    }
}

template <int TILES, bool SPLIT>
__device__ void consume_matmul(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, shared_head *sh, float *sums,
                               __nv_bfloat16 *x, const __nv_bfloat16 *ring, int slot_elems, ring_cursor &at, int n_keys,
                               pick &best) {
    const int tokens = shape<TILES, SPLIT>::tokens;
    const int warp = threadIdx.x >> 5;
    const int s = prog.s;
    const int n_slots = prog.n_slots;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    const int k_slot = ph->k_slot;
    const int k_of[2] = {ph->op[0].k, ph->op[1].k};
    const int second = ph->same_x ? 0 : k_chunk; /* where matrix 1 finds its rows */
    const int x_pitch = (n_matrices == 2 && second ? 2 : 1) * k_chunk + NMLP_CUDA_ROW_SKEW;
    unit_range units = my_units(ph);
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    int staged = -1;
    for (int u = units.begin; u < units.end; u++) {
        if (piece != staged) {
            consumer_sync();
            stage_input<SPLIT>(ph, x, s, piece, n_keys, sh);
            staged = piece;
        }
        float *here = sums + (u & 1) * shape<TILES, SPLIT>::sums;
        const int start = piece * k_chunk;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (m >= n_matrices) break;
            float acc[TILES][2][4] = {};
            int k_end = min(k_of[m], start + k_chunk);
            for (int k0 = start; k0 < k_end; k0 += k_slot) {
                mbar_wait(&sh->full[at.slot], at.parity);
                multiply_slot<TILES, SPLIT>(acc, x + (m ? second : 0) + (k0 - start), x_pitch, ring + at.slot * slot_elems,
                                            min(k_slot, k_end - k0), s);
                __syncwarp();
                if ((threadIdx.x & 31) == 0) mbar_arrive(&sh->empty[at.slot]);
                at.advance(n_slots);
            }
            put_sums<TILES, SPLIT>(here + (warp * 2 + m) * tokens * NMLP_CUDA_UNIT_ROWS, acc);
        }
        consumer_sync();
        finish_unit<TILES, SPLIT>(ph, here, s, piece, group, sh, best);
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
        *out = a;
    }
}

__device__ void embed(const nmlp_cuda_phase *ph, int token) {
    const __nv_bfloat16 *row = static_cast<const __nv_bfloat16 *>(ph->embedding) + (int64_t)token * ph->op[0].k;
    for (int i = blockIdx.x * CONSUMERS + threadIdx.x; i < ph->op[0].k; i += gridDim.x * CONSUMERS)
        ph->out[i] = __bfloat162float(row[i]);
}

/* The block's best of its rows of the vocabulary; of equal ones the smallest token. Threads 0..7 hold the candidates. */
__device__ void publish_best(const nmlp_cuda_program &prog, const pick &best, shared_head *sh) {
    if (threadIdx.x < NMLP_CUDA_UNIT_ROWS) {
        sh->best_score[threadIdx.x] = best.score;
        sh->best_token[threadIdx.x] = best.token;
    }
    consumer_sync();
    if (threadIdx.x != 0) return;
    float score = -INFINITY;
    int32_t token = INT32_MAX;
    for (int i = 0; i < NMLP_CUDA_UNIT_ROWS; i++) {
        if (sh->best_score[i] > score || (sh->best_score[i] == score && sh->best_token[i] < token)) {
            score = sh->best_score[i];
            token = sh->best_token[i];
        }
    }
    prog.best_score[blockIdx.x] = score;
    prog.best_token[blockIdx.x] = token;
}

__device__ void pick_token(const nmlp_cuda_program &prog, int position) {
    if (blockIdx.x != 0 || threadIdx.x >= 32) return;
    float score = -INFINITY;
    int32_t token = INT32_MAX;
    for (int i = threadIdx.x; i < gridDim.x; i += 32) {
        float v = __ldcg(prog.best_score + i);
        int32_t id = __ldcg(prog.best_token + i);
        if (v > score || (v == score && id < token)) {
            score = v;
            token = id;
        }
    }
    for (int d = 16; d; d >>= 1) {
        float v = __shfl_xor_sync(0xffffffffu, score, d);
        int32_t id = __shfl_xor_sync(0xffffffffu, token, d);
        if (v > score || (v == score && id < token)) {
            score = v;
            token = id;
        }
    }
    if (threadIdx.x != 0) return;
    if (token == INT32_MAX) token = 0; /* nothing but NaN: what the CPU's argmax says */
    prog.state->token = token;
    prog.state->length = position + 1;
    if (prog.tokens) prog.tokens[position] = token;
}

/* All blocks arrive before any goes on; the block's consumers are together already. The counter only grows: a launch starts at a multiple of the grid size and adds whole rounds. */
__device__ void grid_barrier(unsigned long long *counter, unsigned long long target) {
    if (threadIdx.x == 0) {
        unsigned long long seen;
        __threadfence();
        atomicAdd(counter, 1ull);
        do {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(counter) : "memory");
        } while (seen < target);
    }
    consumer_sync();
}

/* The next phase's description starts for shared memory while this one runs, and its small vectors for L2. */
__device__ void fetch_phase(const nmlp_cuda_program &prog, int i, shared_head *sh) {
    static_assert(sizeof(nmlp_cuda_phase) % 16 == 0, "phases are copied 16 bytes at a time");
    if (i >= prog.n_phases) return;
    const char *from = reinterpret_cast<const char *>(prog.phases + i);
    char *to = reinterpret_cast<char *>(&sh->phase[i & 1]);
    for (int at = threadIdx.x * 16; at < (int)sizeof(nmlp_cuda_phase); at += CONSUMERS * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)), "l"(from + at) : "memory");
}

/* Before the barrier: the description is there; its vectors should be soon. */
__device__ void await_phase(const nmlp_cuda_program &prog, int i, shared_head *sh) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    consumer_sync();
    if (i >= prog.n_phases) return;
    const nmlp_cuda_phase *ph = &sh->phase[i & 1];
    if (ph->norm_weight && threadIdx.x * 32 < ph->op[0].k)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(ph->norm_weight + threadIdx.x * 32));
}

template <int TILES, bool SPLIT>
__device__ void consume(const nmlp_cuda_program &prog, shared_head *sh, float *sums, __nv_bfloat16 *x,
                        const __nv_bfloat16 *ring, int slot_elems) {
    ring_cursor at = {0, 0};
    unsigned long long target = 0;
    pick best = {0, 0, 0, -INFINITY, INT32_MAX};
    int token = 0;
    int position = 0;
    if (threadIdx.x == 0) {
        unsigned long long seen;
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(prog.barrier) : "memory");
        target = seen / gridDim.x * gridDim.x;
    }
    if (prog.state) { /* the last phase alone changes it, after every block has passed a barrier */
        token = __ldcg(&prog.state->token);
        position = __ldcg(&prog.state->length);
        best.inverse_temperature = __ldcg(&prog.state->inverse_temperature);
        best.seed = __ldcg(&prog.state->seed);
        best.position = position;
    }
    fetch_phase(prog, 0, sh);
    await_phase(prog, 0, sh);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_phase *ph = &sh->phase[i & 1];
        fetch_phase(prog, i + 1, sh);
        switch (ph->kind) {
        case NMLP_CUDA_MATMUL:
            consume_matmul<TILES, SPLIT>(prog, ph, sh, sums, x, ring, slot_elems, at, position + 1, best);
            if (ph->output == NMLP_CUDA_LOGITS) publish_best(prog, best, sh);
            break;
        case NMLP_CUDA_REDUCE: reduce_pieces(ph, prog.s); break;
        case NMLP_CUDA_ATTENTION: run_attention(ph, reinterpret_cast<float *>(x), position); break;
        case NMLP_CUDA_EMBED: embed(ph, token); break;
        default: pick_token(prog, position); break;
        }
        if (i + 1 == prog.n_phases) break;
        await_phase(prog, i + 1, sh);
        target += gridDim.x;
        grid_barrier(prog.barrier, target);
    }
}

template <int TILES, bool SPLIT>
__global__ void __launch_bounds__(THREADS, 1) stream_kernel(const nmlp_cuda_program prog) {
    extern __shared__ __align__(128) unsigned char memory[];
    shared_head *sh = reinterpret_cast<shared_head *>(memory);
    const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;
    float *sums = reinterpret_cast<float *>(memory + head_bytes);
    __nv_bfloat16 *x = reinterpret_cast<__nv_bfloat16 *>(sums + 2 * shape<TILES, SPLIT>::sums);
    __nv_bfloat16 *ring = x + prog.input_elems;
    const int slot_elems = NMLP_CUDA_UNIT_ROWS * (NMLP_CUDA_SLOT_COLS + NMLP_CUDA_ROW_SKEW);
    if (threadIdx.x == 0) {
        for (int i = 0; i < prog.n_slots; i++) {
            mbar_init(&sh->full[i], FULL_ARRIVALS);
            mbar_init(&sh->empty[i], NMLP_CUDA_CONSUMER_WARPS);
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        produce(prog, sh, ring, slot_elems);
    } else {
        consume<TILES, SPLIT>(prog, sh, sums, x, ring, slot_elems);
    }
}

template <int TILES, bool SPLIT>
size_t shared_bytes(int32_t input_elems, int32_t n_slots) {
    return (sizeof(shared_head) + 127) / 128 * 128 + 2 * shape<TILES, SPLIT>::sums * sizeof(float) + (size_t)input_elems * 2 +
           (size_t)n_slots * NMLP_CUDA_UNIT_ROWS * (NMLP_CUDA_SLOT_COLS + NMLP_CUDA_ROW_SKEW) * 2;
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
