/* Bringing a phase's input rows into shared memory as bf16. With SPLIT a value is kept as the sum of two bf16 numbers, which the tensor
 * cores multiply one after the other: activations then carry 16 bits of mantissa, and only the weights are what the checkpoint rounded. */
#ifndef NMLP_CUDA_STREAM_INPUT_CUH
#define NMLP_CUDA_STREAM_INPUT_CUH

#include <cuda_bf16.h>

#include "cuda/stream_ring.cuh"

enum { CONSUMERS = NMLP_CUDA_CONSUMER_WARPS * 32, HEADS_MAX = 128 };

/* A run of units of a matmul phase. */
struct unit_range {
    int groups; /* units per piece of K */
    int begin;
    int end;
};

/* Shared memory that is not ring, input or sums. */
struct shared_head {
    uint64_t full[NMLP_CUDA_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_SLOTS_MAX];
    uint64_t sums_full[2];
    uint64_t sums_empty[2];
    nmlp_cuda_phase phase[2]; /* this one and the next */
    unit_range units[2];
    float row_scale[NMLP_CUDA_S_MAX];
    float warp_sum[NMLP_CUDA_CONSUMER_WARPS];
    float head_weight[HEADS_MAX * NMLP_CUDA_KEY_CHUNKS_MAX];
};

__device__ __forceinline__ void consumer_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); static_assert(CONSUMERS == 256, "consumer_sync counts threads"); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* Keys of one attention unit when there are n_keys. */
__device__ __forceinline__ int keys_per_chunk(int n_keys) {
    int chunk = (n_keys + NMLP_CUDA_KEY_CHUNKS_MAX - 1) / NMLP_CUDA_KEY_CHUNKS_MAX;
    return chunk < NMLP_CUDA_CHUNK_KEYS_MIN ? NMLP_CUDA_CHUNK_KEYS_MIN : chunk;
}

/* Activations are written by other blocks during this launch: read them past L1. */
__device__ __forceinline__ float4 load4(const float *p) { return __ldcg(reinterpret_cast<const float4 *>(p)); }

template <bool SPLIT>
__device__ __forceinline__ void store4(__nv_bfloat16 *rows, int pitch, int s, int row, int col, float4 v) {
    union {
        __nv_bfloat162 pair[2];
        uint2 bits;
    } hi, lo;
    hi.pair[0] = __floats2bfloat162_rn(v.x, v.y);
    hi.pair[1] = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2 *>(rows + row * pitch + col) = hi.bits;
    if (SPLIT) {
        lo.pair[0] = __floats2bfloat162_rn(v.x - __low2float(hi.pair[0]), v.y - __high2float(hi.pair[0]));
        lo.pair[1] = __floats2bfloat162_rn(v.z - __low2float(hi.pair[1]), v.w - __high2float(hi.pair[1]));
        *reinterpret_cast<uint2 *>(rows + (s + row) * pitch + col) = lo.bits;
    }
}

__device__ __forceinline__ void add4(float4 &a, float4 b) {
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
}

/* Sums the parts in order, four loads in flight. */
__device__ __forceinline__ float4 load_parts(const nmlp_cuda_operand *op, int row, int col) {
    const float *p = op->x + (int64_t)row * op->x_pitch + col;
    int parts = op->x_parts;
    int64_t stride = op->x_part_stride;
    float4 sum = load4(p);
    for (int part = 1; part < parts; part += 4) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = part + i < parts ? load4(p + (part + i) * stride) : make_float4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) add4(sum, v[i]);
    }
    return sum;
}

/* Plain rows, few of them: a thread's loads are all under way before the first is used, because a block that has just passed a barrier has nothing
 * else to do than wait for them. PARTS (1, 2 or 4) parts of BATCH / PARTS places at a time. */
template <bool SPLIT, int PARTS>
__device__ void stage_plain(const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s, int k0, int len) {
    const int PLACES = 8 / PARTS;
    const int parts = op->x_parts;
    const int64_t stride = op->x_part_stride;
    const float *x = op->x + k0;
#pragma unroll 1
    for (int row = 0; row < s; row++, x += op->x_pitch) {
#pragma unroll 1
        for (int base = threadIdx.x * 4; base < len; base += CONSUMERS * 4 * PLACES) {
            float4 v[PLACES][PARTS];
#pragma unroll
            for (int i = 0; i < PLACES; i++)
#pragma unroll
                for (int p = 0; p < PARTS; p++)
                    v[i][p] = base + i * CONSUMERS * 4 < len && p < parts ? load4(x + base + i * CONSUMERS * 4 + p * stride)
                                                                          : make_float4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
#pragma unroll
                for (int p = 1; p < PARTS; p++) add4(v[i][0], v[i][p]);
                if (base + i * CONSUMERS * 4 < len) store4<SPLIT>(rows, pitch, s, row, base + i * CONSUMERS * 4, v[i][0]);
            }
        }
    }
}

/* bf16 rows go to shared memory as they are, all copies under way at once. */
__device__ void stage_narrow(const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s, int k0, int len) {
    const __nv_bfloat16 *x = reinterpret_cast<const __nv_bfloat16 *>(op->x) + k0;
    const int x_pitch = op->x_pitch;
    const int per_row = len / 8;
    const int n = s * per_row;
    const int shift = n / (int)gridDim.x * (int)blockIdx.x & ~7;
    for (int i = threadIdx.x; i < n; i += CONSUMERS) {
        int j = i + shift < n ? i + shift : i + shift - n;
        int row = j / per_row;
        int col = (j - row * per_row) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(rows + row * pitch + col)),
                     "l"(x + row * x_pitch + col) : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* x * weight goes to shared memory at once; 1/rms is kept per row and multiplies the result. The sum runs over the whole row. */
template <bool SPLIT>
__device__ void stage_norm(const nmlp_cuda_phase *ph, const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s,
                           int k0, int len, shared_head *sh) {
    const int BATCH = 4;
    for (int row = 0; row < s; row++) {
        float sum = 0;
        const float *x = op->x + (int64_t)row * op->x_pitch;
        const float *weight = ph->norm_weight;
        int k = op->k;
        for (int base = threadIdx.x * 4; base < k; base += CONSUMERS * 4 * BATCH) {
            float4 v[BATCH];
            float4 w[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int col = base + i * CONSUMERS * 4;
                v[i] = col < k ? load4(x + col) : make_float4(0, 0, 0, 0);
                w[i] = col < k ? __ldg(reinterpret_cast<const float4 *>(weight + col)) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int col = base + i * CONSUMERS * 4;
                sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
                v[i] = make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w);
                if (col >= k0 && col < k0 + len) store4<SPLIT>(rows, pitch, s, row, col - k0, v[i]);
            }
        }
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) sh->warp_sum[threadIdx.x >> 5] = sum;
        consumer_sync();
        if (threadIdx.x == 0) {
            float all = 0;
            for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++) all += sh->warp_sum[w];
            sh->row_scale[row] = rsqrtf(all / (float)ph->norm_dim + ph->eps);
        }
        consumer_sync();
    }
}

/* The pieces of attention become one row: each is weighted by its share of the softmax. One token only. */
template <bool SPLIT>
__device__ void stage_heads(const nmlp_cuda_phase *ph, const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int k0,
                            int len, int n_keys, shared_head *sh) {
    int per_chunk = keys_per_chunk(n_keys);
    int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    for (int h = threadIdx.x; h < ph->n_heads; h += CONSUMERS) {
        float top = -INFINITY;
        float sum = 0;
        float2 ms[NMLP_CUDA_KEY_CHUNKS_MAX];
#pragma unroll
        for (int c = 0; c < NMLP_CUDA_KEY_CHUNKS_MAX; c++) {
            ms[c] = make_float2(-INFINITY, 0);
            if (c < n_chunks) ms[c] = __ldcg(reinterpret_cast<const float2 *>(ph->softmax) + c * ph->n_heads + h);
            top = fmaxf(top, ms[c].x);
        }
#pragma unroll
        for (int c = 0; c < NMLP_CUDA_KEY_CHUNKS_MAX; c++) sum += ms[c].y * __expf(ms[c].x - top);
#pragma unroll
        for (int c = 0; c < NMLP_CUDA_KEY_CHUNKS_MAX; c++)
            if (c < n_chunks) sh->head_weight[h * NMLP_CUDA_KEY_CHUNKS_MAX + c] = __expf(ms[c].x - top) / sum;
    }
    consumer_sync();
    for (int col = threadIdx.x * 4; col < len; col += CONSUMERS * 4) {
        float4 v = make_float4(0, 0, 0, 0);
        int h = (k0 + col) / ph->head_dim;
#pragma unroll 4
        for (int c = 0; c < (h < ph->n_heads ? n_chunks : 0); c++) {
            float w = sh->head_weight[h * NMLP_CUDA_KEY_CHUNKS_MAX + c];
            float4 o = load4(op->x + c * op->x_part_stride + k0 + col);
            v.x += w * o.x;
            v.y += w * o.y;
            v.z += w * o.z;
            v.w += w * o.w;
        }
        store4<SPLIT>(rows, pitch, 1, 0, col, v);
    }
}

/* Piece `piece` of K of every input, side by side; ends with the rows visible to all consumers. */
template <bool SPLIT>
__device__ void stage_input(const nmlp_cuda_phase *ph, __nv_bfloat16 *rows, int s, int piece, int n_keys, shared_head *sh) {
    int n_segments = ph->n_matrices == 2 && !ph->same_x ? 2 : 1;
    int pitch = n_segments * ph->k_chunk + NMLP_CUDA_ROW_SKEW;
    int k0 = piece * ph->k_chunk;
    for (int i = 0; i < n_segments; i++) {
        const nmlp_cuda_operand *op = &ph->op[i];
        __nv_bfloat16 *to = rows + i * ph->k_chunk;
        int len = min(ph->k_chunk, op->k - k0);
        if (!SPLIT) { /* many rows are bf16 everywhere (plan.c) */
            stage_narrow(op, to, pitch, s, k0, len);
        } else if (op->input == NMLP_CUDA_NORM) {
            stage_norm<SPLIT>(ph, op, to, pitch, s, k0, len, sh);
        } else if (op->input == NMLP_CUDA_HEADS) {
            stage_heads<SPLIT>(ph, op, to, pitch, k0, len, n_keys, sh);
        } else if (op->x_parts == 1) {
            stage_plain<SPLIT, 1>(op, to, pitch, s, k0, len);
        } else if (op->x_parts == 2) {
            stage_plain<SPLIT, 2>(op, to, pitch, s, k0, len);
        } else {
            stage_plain<SPLIT, 4>(op, to, pitch, s, k0, len);
        }
    }
    consumer_sync();
}

#endif
