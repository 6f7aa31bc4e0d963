/* The small kernels around prefill's matmuls. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/prefill/prefill.h"
#include "cuda/rope_rows.cuh"

namespace {

enum { THREADS = 256 };

__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

__device__ float block_sum(float v) {
    __shared__ float sums[THREADS / 32];
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = v;
    __syncthreads();
    float all = 0;
    for (int w = 0; w < THREADS / 32; w++) all += sums[w];
    return all;
}

__global__ void embed_kernel(float *hidden, const __nv_bfloat16 *embedding, const int32_t *ids, int pitch) {
    const __nv_bfloat16 *row = embedding + (int64_t)ids[blockIdx.x] * pitch;
    for (int i = threadIdx.x; i < pitch; i += THREADS)
        hidden[(int64_t)blockIdx.x * pitch + i] = __bfloat162float(row[i]);
}

__global__ void narrow_kernel(__nv_bfloat16 *out, const float *x, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i >= n) return;
    float4 v = *reinterpret_cast<const float4 *>(x + i);
    reinterpret_cast<__nv_bfloat162 *>(out + i)[0] = __floats2bfloat162_rn(v.x, v.y);
    reinterpret_cast<__nv_bfloat162 *>(out + i)[1] = __floats2bfloat162_rn(v.z, v.w);
}

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* 8 elements per thread. */
__global__ void silu_mul_kernel(__nv_bfloat16 *out, const __nv_bfloat16 *gate, const __nv_bfloat16 *up, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (i >= n) return;
    union {
        uint4 bits;
        __nv_bfloat162 pair[4];
    } g, u;
    g.bits = *reinterpret_cast<const uint4 *>(gate + i);
    u.bits = *reinterpret_cast<const uint4 *>(up + i);
    for (int j = 0; j < 4; j++) {
        float2 a = __bfloat1622float2(g.pair[j]);
        float2 b = __bfloat1622float2(u.pair[j]);
        g.pair[j] = __floats2bfloat162_rn(silu(a.x) * b.x, silu(a.y) * b.y);
    }
    *reinterpret_cast<uint4 *>(out + i) = g.bits;
}

__global__ void add_bias_kernel(float *hidden, const float *bias, int n, int pitch) {
    for (int i = threadIdx.x; i < n; i += THREADS) hidden[(int64_t)blockIdx.x * pitch + i] += bias[i];
}

__global__ void __launch_bounds__(ROPE_ROW_THREADS) rope_append_kernel(const nmlp_cuda_attention h) {
    const int row = blockIdx.x;
    const int position = h.text_begin ? row - h.text_begin[row] : h.first + row;
    const int64_t cached = (int64_t)(h.first + row) * h.head_dim;
    rope_heads(h, {h.qkv + (int64_t)row * h.pitch, h.rope + (int64_t)position * h.head_dim,
                   static_cast<__nv_bfloat16 *>(h.q) + (int64_t)row * h.n_heads * h.head_dim,
                   static_cast<__nv_bfloat16 *>(h.k_cache) + cached, static_cast<__nv_bfloat16 *>(h.v_cache) + cached,
                   (int64_t)h.context * h.head_dim});
}

__device__ __forceinline__ float block_max(float v) {
    __shared__ float tops[THREADS / 32];
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    if ((threadIdx.x & 31) == 0) tops[threadIdx.x >> 5] = v;
    __syncthreads();
    float top = tops[0];
    for (int w = 1; w < THREADS / 32; w++) top = fmaxf(top, tops[w]);
    return top;
}

/* One block per row. A thread's terms are at most V / 256, so that f32 sums lose no more than f32 logits have. */
__global__ void logprob_kernel(float *out, const float *logits, const int32_t *targets, int vocab, int pitch) {
    const float *row = logits + (int64_t)blockIdx.x * pitch;
    float top = -INFINITY;
    float sum = 0;
    for (int i = threadIdx.x; i < vocab; i += THREADS) top = fmaxf(top, row[i]);
    top = block_max(top);
    for (int i = threadIdx.x; i < vocab; i += THREADS) sum += __expf(row[i] - top);
    sum = block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = row[targets[blockIdx.x]] - top - logf(sum);
}

} // namespace

int nmlp_cuda_launch_embed(float *hidden, const void *embedding, const int32_t *ids, int32_t s, int32_t pitch,
                           void *stream) {
    embed_kernel<<<s, THREADS, 0, (cudaStream_t)stream>>>(hidden, (const __nv_bfloat16 *)embedding, ids, pitch);
    return cudaGetLastError();
}

int nmlp_cuda_launch_narrow(void *out, const float *x, int64_t n, void *stream) {
    unsigned blocks = (unsigned)((n / 4 + THREADS - 1) / THREADS);
    narrow_kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>((__nv_bfloat16 *)out, x, n);
    return cudaGetLastError();
}

int nmlp_cuda_launch_silu_mul(void *out, const void *gate, const void *up, int64_t n, void *stream) {
    unsigned blocks = (unsigned)((n / 8 + THREADS - 1) / THREADS);
    silu_mul_kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>((__nv_bfloat16 *)out, (const __nv_bfloat16 *)gate,
                                                                  (const __nv_bfloat16 *)up, n);
    return cudaGetLastError();
}

int nmlp_cuda_launch_add_bias(float *hidden, const float *bias, int32_t s, int32_t n, int32_t pitch, void *stream) {
    add_bias_kernel<<<s, THREADS, 0, (cudaStream_t)stream>>>(hidden, bias, n, pitch);
    return cudaGetLastError();
}

int nmlp_cuda_launch_rope_append(const nmlp_cuda_attention *h, void *stream) {
    const dim3 grid = rope_grid(h->s, h->n_heads + 2 * h->n_kv_heads, h->head_dim);
    rope_append_kernel<<<grid, ROPE_ROW_THREADS, 0, (cudaStream_t)stream>>>(*h);
    return cudaGetLastError();
}

int nmlp_cuda_launch_logprob(float *out, const float *logits, const int32_t *targets, int32_t s, int32_t vocab,
                             int32_t pitch, void *stream) {
    logprob_kernel<<<s, THREADS, 0, (cudaStream_t)stream>>>(out, logits, targets, vocab, pitch);
    return cudaGetLastError();
}
