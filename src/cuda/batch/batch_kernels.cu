/* The kernels of batch_kernels.h but attention: embedding, residual and norm, rotation and KV append, token choice. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/batch/paged.cuh"
#include "cuda/cooperative_launch.cuh"
#include "cuda/rope_rows.cuh"

namespace {

enum { THREADS = 256, CHOOSE_SPLITS = 32 };

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

__global__ void embed_kernel(float *hidden, const __nv_bfloat16 *embedding, nmlp_cuda_step_rows rows, int pitch) {
    begin_dependents();
    const int row = blockIdx.x;
    const bool live = rows.sequence[row] >= 0;
    const __nv_bfloat16 *from = embedding + (int64_t)(live ? rows.ids[row] : 0) * pitch;
    for (int i = threadIdx.x; i < pitch; i += THREADS)
        hidden[(int64_t)row * pitch + i] = live ? __bfloat162float(from[i]) : 0.0f;
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Four columns of the sum of a row. */
__device__ __forceinline__ float4 sum_at(const nmlp_cuda_add_norm &a, int64_t row, int col) {
    float4 v = *reinterpret_cast<const float4 *>(a.hidden + row * a.pitch + col);
    if (a.delta) v = add4(v, *reinterpret_cast<const float4 *>(a.delta + row * a.pitch + col));
    if (a.bias) v = add4(v, *reinterpret_cast<const float4 *>(a.bias + col));
    return v;
}

__device__ __forceinline__ void store_normed(const nmlp_cuda_add_norm &a, int col, float4 v, float4 w, float scale) {
    __nv_bfloat162 *to =
        reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(a.out) + (int64_t)blockIdx.x * a.pitch + col);
    to[0] = __floats2bfloat162_rn(v.x * scale * w.x, v.y * scale * w.y);
    to[1] = __floats2bfloat162_rn(v.z * scale * w.z, v.w * scale * w.w);
}

/* One block per row of out. Up to KEPT times 1024 columns stay in registers, and their weights are loaded while the
 * kernel before still runs; the sums of more columns are formed a second time. */
template <int KEPT> __global__ void __launch_bounds__(THREADS, 4) add_norm_kernel(const nmlp_cuda_add_norm a) {
    float4 kept[KEPT];
    float4 weight[KEPT];
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int col = (j * THREADS + (int)threadIdx.x) * 4;
        weight[j] = col < a.pitch ? *reinterpret_cast<const float4 *>(a.weight + col) : float4{};
    }
    wait_previous();
    const int64_t row = a.gather ? a.gather[blockIdx.x] : (int)blockIdx.x;
    const bool stores = !a.gather && (a.delta || a.bias);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int col = (j * THREADS + (int)threadIdx.x) * 4;
        kept[j] = col < a.pitch ? sum_at(a, row, col) : float4{};
    }
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const float4 v = kept[j];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    for (int col = (KEPT * THREADS + (int)threadIdx.x) * 4; col < a.pitch; col += THREADS * 4) {
        const float4 v = sum_at(a, row, col);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float scale = rsqrtf(block_sum(sum) / (float)a.dim + a.eps);
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int col = (j * THREADS + (int)threadIdx.x) * 4;
        if (col >= a.pitch) continue;
        if (stores) *reinterpret_cast<float4 *>(a.hidden + row * a.pitch + col) = kept[j];
        store_normed(a, col, kept[j], weight[j], scale);
    }
    for (int col = (KEPT * THREADS + (int)threadIdx.x) * 4; col < a.pitch; col += THREADS * 4) {
        const float4 v = sum_at(a, row, col);
        if (stores) *reinterpret_cast<float4 *>(a.hidden + row * a.pitch + col) = v;
        store_normed(a, col, v, *reinterpret_cast<const float4 *>(a.weight + col), scale);
    }
}

__global__ void __launch_bounds__(ROPE_ROW_THREADS) rope_append_kernel(const nmlp_cuda_paged_attention a) {
    wait_previous();
    const int row = (a.appends ? a.n_decode_rows : 0) + (int)blockIdx.x;
    const int sequence = a.rows.sequence[row];
    if (sequence < 0) return;
    const int position = a.rows.position[row];
    const int64_t cached =
        page_row(a.tables + (int64_t)sequence * a.table_pages, position, 0, a.n_kv_heads) * a.head_dim;
    rope_heads(a, {a.qkv + (int64_t)row * a.qkv_pitch, a.rope + (int64_t)position * a.head_dim,
                   static_cast<__nv_bfloat16 *>(a.q) + (int64_t)row * a.n_heads * a.head_dim,
                   static_cast<__nv_bfloat16 *>(a.k_pages) + cached, static_cast<__nv_bfloat16 *>(a.v_pages) + cached,
                   (int64_t)NMLP_CUDA_PAGE_POSITIONS * a.head_dim});
}

/* Noise that turns an argmax into a draw from softmax; the same as the decode kernel's. */
__device__ __forceinline__ float gumbel(uint32_t seed, uint32_t position, uint32_t token) {
    uint64_t z = ((uint64_t)seed << 32 | position) * 0x9e3779b97f4a7c15ull + token;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    const float u = ((float)(uint32_t)(z >> 40) + 0.5f) * (1.0f / 16777216.0f);
    return -logf(-logf(u));
}

/* Larger for larger scores and, of equal ones, for smaller tokens; 0 for NaN. */
__device__ __forceinline__ unsigned long long rank_of(float score, int token) {
    if (isnan(score)) return 0;
    const uint32_t bits = __float_as_uint(score);
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (unsigned long long)ordered << 32 | (0xffffffffu - (uint32_t)token);
}

/* A block per (logits row, part of the vocabulary). */
__global__ void argmax_kernel(const nmlp_cuda_choose c) {
    wait_previous();
    const int row = c.rows.head_rows[c.first + blockIdx.x];
    if (c.rows.sequence[row] < 0 || c.rows.inverse_temperature[row] < 0) return;
    const float *logits = c.logits + (int64_t)blockIdx.x * c.pitch;
    const float inverse = c.rows.inverse_temperature[row];
    const uint32_t seed = c.rows.seed[row];
    const uint32_t position = (uint32_t)c.rows.position[row];
    const int per_block = (c.vocab + CHOOSE_SPLITS * 4 - 1) / (CHOOSE_SPLITS * 4) * 4;
    const int end = min(c.vocab, ((int)blockIdx.y + 1) * per_block);
    unsigned long long best = 0;
    for (int i = blockIdx.y * per_block + threadIdx.x * 4; i < end; i += THREADS * 4) {
        const float4 four = *reinterpret_cast<const float4 *>(logits + i); /* rows are padded */
        const float v[4] = {four.x, four.y, four.z, four.w};
        for (int j = 0; j < 4 && i + j < end; j++) {
            const float score = inverse > 0 ? v[j] * inverse + gumbel(seed, position, (uint32_t)(i + j)) : v[j];
            best = max(best, rank_of(score, i + j));
        }
    }
    for (int d = 16; d; d >>= 1) best = max(best, __shfl_xor_sync(0xffffffffu, best, d));
    if ((threadIdx.x & 31) == 0) atomicMax(c.best + blockIdx.x, best);
}

/* A thread per logits row: the token becomes the row's next one. */
__global__ void choose_kernel(const nmlp_cuda_choose c) {
    wait_previous();
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= c.n) return;
    const int row = c.rows.head_rows[c.first + i];
    const int sequence = c.rows.sequence[row];
    if (sequence < 0 || c.rows.inverse_temperature[row] < 0) return;
    const unsigned long long best = c.best[i];
    const uint32_t token = best ? 0xffffffffu - (uint32_t)best : 0; /* nothing but NaN: what the CPU's argmax says */
    const uint32_t number = c.rows.n_choices[row] + 1;
    c.best[i] = 0;
    c.rows.ids[row] = (int32_t)token;
    c.rows.position[row]++;
    c.rows.n_choices[row] = number;
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(c.choices + (int64_t)sequence * NMLP_CUDA_CHOICE_RING +
                                                             number % NMLP_CUDA_CHOICE_RING),
                 "l"((unsigned long long)number << 32 | token)
                 : "memory");
}

} // namespace

int nmlp_cuda_batch_embed(float *hidden, const void *embedding, const nmlp_cuda_step_rows *rows, int32_t n,
                          int32_t pitch, void *stream) {
    embed_kernel<<<(unsigned)n, THREADS, 0, (cudaStream_t)stream>>>(hidden, (const __nv_bfloat16 *)embedding, *rows,
                                                                    pitch);
    return cudaGetLastError();
}

int nmlp_cuda_batch_add_norm(const nmlp_cuda_add_norm *a, void *stream) {
    const dim3 grid((unsigned)a->n);
    if (a->pitch <= 2 * THREADS * 4) return launch_dependent(add_norm_kernel<2>, grid, THREADS, 0, stream, *a);
    return launch_dependent(add_norm_kernel<4>, grid, THREADS, 0, stream, *a);
}

int nmlp_cuda_batch_rope_append(const nmlp_cuda_paged_attention *a, void *stream) {
    const int n_rows = a->n_rows - (a->appends ? a->n_decode_rows : 0);
    if (n_rows == 0) return cudaSuccess;
    const dim3 grid = rope_grid(n_rows, a->n_heads + 2 * a->n_kv_heads, a->head_dim);
    return launch_dependent(rope_append_kernel, grid, ROPE_ROW_THREADS, 0, stream, *a);
}

int nmlp_cuda_batch_choose_launch(const nmlp_cuda_choose *c, void *stream) {
    const cudaError_t e = launch_dependent(argmax_kernel, dim3((unsigned)c->n, CHOOSE_SPLITS), THREADS, 0, stream, *c);
    if (e != cudaSuccess) return e;
    return launch_dependent(choose_kernel, dim3((unsigned)((c->n + THREADS - 1) / THREADS)), THREADS, 0, stream, *c);
}
