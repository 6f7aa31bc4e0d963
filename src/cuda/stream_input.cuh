/* Bringing a phase's input rows into shared memory as bf16. With SPLIT a value is kept as the sum of two bf16 numbers, which the tensor
 * cores multiply one after the other: activations then carry 16 bits of mantissa, and only the weights are what the checkpoint rounded. */
#ifndef NMLP_CUDA_STREAM_INPUT_CUH
#define NMLP_CUDA_STREAM_INPUT_CUH

#include <cuda_bf16.h>

#include "cuda/stream_ring.cuh"

enum { CONSUMERS = NMLP_CUDA_CONSUMER_WARPS * 32, HEADS_MAX = 128 };

/* Shared memory that is not ring, input or reduction. */
struct shared_head {
    uint64_t full[NMLP_CUDA_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_SLOTS_MAX];
    nmlp_cuda_phase phase[2]; /* this one and the next */
    float row_scale[NMLP_CUDA_S_MAX];
    float warp_sum[NMLP_CUDA_CONSUMER_WARPS];
    float head_weight[HEADS_MAX * NMLP_CUDA_KEY_CHUNKS_MAX];
    float best_score[NMLP_CUDA_UNIT_ROWS];
    int32_t best_token[NMLP_CUDA_UNIT_ROWS];
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

__device__ __forceinline__ float4 load_parts(const nmlp_cuda_operand *op, int row, int col) {
    const float *p = op->x + (int64_t)row * op->x_pitch + col;
    float4 v = load4(p);
    for (int part = 1; part < op->x_parts; part++) {
        float4 w = load4(p + part * op->x_part_stride);
        v.x += w.x;
        v.y += w.y;
        v.z += w.z;
        v.w += w.w;
    }
    return v;
}

/* x * weight goes to shared memory at once; 1/rms is kept per row and multiplies the result. The sum runs over the whole row. */
template <bool SPLIT>
__device__ void stage_norm(const nmlp_cuda_phase *ph, const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s,
                           int k0, int len, shared_head *sh) {
    for (int row = 0; row < s; row++) {
        float sum = 0;
        for (int col = threadIdx.x * 4; col < op->k; col += CONSUMERS * 4) {
            float4 v = load_parts(op, row, col);
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            if (col < k0 || col >= k0 + len) continue;
            float4 w = __ldg(reinterpret_cast<const float4 *>(ph->norm_weight + col));
            v.x *= w.x;
            v.y *= w.y;
            v.z *= w.z;
            v.w *= w.w;
            store4<SPLIT>(rows, pitch, s, row, col - k0, v);
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
        for (int c = 0; c < n_chunks && h < ph->n_heads; c++) {
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
        if (op->input == NMLP_CUDA_NORM) {
            stage_norm<SPLIT>(ph, op, to, pitch, s, k0, len, sh);
        } else if (op->input == NMLP_CUDA_HEADS) {
            stage_heads<SPLIT>(ph, op, to, pitch, k0, len, n_keys, sh);
        } else if (len > 0) {
            int quads = len / 4;
            for (int j = threadIdx.x; j < s * quads; j += CONSUMERS) {
                int row = s == 1 ? 0 : j / quads;
                int col = (j - row * quads) * 4;
                store4<SPLIT>(to, pitch, s, row, col, load_parts(op, row, k0 + col));
            }
        }
    }
    consumer_sync();
}

#endif
