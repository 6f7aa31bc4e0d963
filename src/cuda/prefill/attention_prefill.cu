/* Causal attention of many queries over the cache, or of texts lying one after the other among themselves: 64 queries
 * of one head per block, keys in tiles of 64, softmax kept running, so that no score leaves the chip. Head sizes that
 * are not 16, 32, 64 or 128 take a plain kernel. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/layout.h"
#include "cuda/prefill/prefill.h"

namespace {

enum { QUERIES = 64, KEYS = 64, WARPS = 4, SKEW = 8, PLAIN_WARPS = 8, PLAIN_DIMS_MAX = 8 };

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack(float a, float b) {
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* Rows first.. of one head of a cache into shared memory; rows past `end` are zero. */
template <int D>
__device__ void load_tile(__nv_bfloat16 (*tile)[D + SKEW], const __nv_bfloat16 *head, int first, int end) {
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += WARPS * 32) {
        int row = i / (D / 8);
        int col = i % (D / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (first + row < end) v = *reinterpret_cast<const uint4 *>(head + (int64_t)(first + row) * D + col);
        *reinterpret_cast<uint4 *>(&tile[row][col]) = v;
    }
}

/* scores [16 queries of the warp, 64 keys] = Q K^T, masked. */
template <int D>
__device__ void score_tile(float (&score)[KEYS / 8][4], const uint32_t (&q)[D / 16][4],
                           const __nv_bfloat16 (*k)[D + SKEW], int first_key, int query_pos, const int (&begin)[2]) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        score[n][0] = score[n][1] = score[n][2] = score[n][3] = 0;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            const uint32_t *row = reinterpret_cast<const uint32_t *>(&k[n * 8 + g][kk * 16]);
            mma(score[n], q[kk], row[t], row[t + 4]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = first_key + n * 8 + t * 2 + (i & 1);
            if (key > query_pos + (i >> 1) * 8 || key < begin[i >> 1]) score[n][i] = -INFINITY;
        }
    }
}

/* Turns scores into weights and rescales what was summed so far. Row i of a lane: i = 0 for query g, 1 for query g + 8.
 */
template <int D>
__device__ void soften(float (&score)[KEYS / 8][4], float (&out)[D / 8][4], float (&top)[2], float (&sum)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = top[i];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        float keep = top[i] == -INFINITY ? 0.0f : __expf(top[i] - m);
        float base = m == -INFINITY ? 0.0f : m; /* no key of the row's text yet: all weights are 0 */
        float added = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            score[n][2 * i] = __expf(score[n][2 * i] - base);
            score[n][2 * i + 1] = __expf(score[n][2 * i + 1] - base);
            added += score[n][2 * i] + score[n][2 * i + 1];
        }
        added += __shfl_xor_sync(0xffffffffu, added, 1);
        added += __shfl_xor_sync(0xffffffffu, added, 2);
        sum[i] = sum[i] * keep + added;
        top[i] = m;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][2 * i] *= keep;
            out[n][2 * i + 1] *= keep;
        }
    }
}

/* out += P V. The scores of 16 keys are already laid out as the mma's A. */
template <int D>
__device__ void add_values(float (&out)[D / 8][4], const float (&p)[KEYS / 8][4], const __nv_bfloat16 (*v)[D + SKEW]) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t a[4] = {pack(p[2 * kk][0], p[2 * kk][1]), pack(p[2 * kk][2], p[2 * kk][3]),
                         pack(p[2 * kk + 1][0], p[2 * kk + 1][1]), pack(p[2 * kk + 1][2], p[2 * kk + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            uint32_t at = (uint32_t)__cvta_generic_to_shared(&v[kk * 16 + (lane & 15)][n * 16 + (lane >> 4) * 8]);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"(at));
            mma(out[2 * n], a, b[0], b[1]);
            mma(out[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int D> __global__ void __launch_bounds__(WARPS * 32) attention_kernel(const nmlp_cuda_attention h) {
    __shared__ __align__(16) __nv_bfloat16 k[KEYS][D + SKEW];
    __shared__ __align__(16) __nv_bfloat16 v[KEYS][D + SKEW];
    int warp = threadIdx.x >> 5;
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
    int head = blockIdx.y;
    int row0 = (gridDim.x - 1 - blockIdx.x) * QUERIES + warp * 16 + g; /* the longest blocks first */
    int64_t cache = (int64_t)(head / (h.n_heads / h.n_kv_heads)) * h.context * D;
    uint32_t q[D / 16][4];
    for (int kk = 0; kk < D / 16; kk++) {
        for (int i = 0; i < 4; i++) {
            int row = min(row0 + (i & 1) * 8, h.s - 1);
            const __nv_bfloat16 *from = static_cast<const __nv_bfloat16 *>(h.q) + ((int64_t)row * h.n_heads + head) * D;
            q[kk][i] = *reinterpret_cast<const uint32_t *>(from + kk * 16 + t * 2 + (i >> 1) * 8);
        }
    }
    float out[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
    int last_row = min((int)(gridDim.x - blockIdx.x) * QUERIES, h.s) - 1;
    int end = h.first + last_row + 1;
    int begin[2] = {0, 0};
    int first_key = 0;
    if (h.text_begin) {
        for (int i = 0; i < 2; i++) begin[i] = h.text_begin[min(row0 + i * 8, h.s - 1)];
        first_key = h.text_begin[(gridDim.x - 1 - blockIdx.x) * QUERIES];
    }
    for (int key = first_key; key < end; key += KEYS) {
        float score[KEYS / 8][4];
        __syncthreads();
        load_tile<D>(k, static_cast<const __nv_bfloat16 *>(h.k_cache) + cache, key, end);
        load_tile<D>(v, static_cast<const __nv_bfloat16 *>(h.v_cache) + cache, key, end);
        __syncthreads();
        score_tile<D>(score, q, k, key, h.first + row0, begin);
        soften<D>(score, out, top, sum);
        add_values<D>(out, score, v);
    }
    for (int i = 0; i < 2; i++) {
        int row = row0 + i * 8;
        if (row >= h.s) continue;
        __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(h.out) + (int64_t)row * h.out_pitch + head * D;
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<__nv_bfloat162 *>(to + n * 8 + t * 2) =
                __floats2bfloat162_rn(out[n][2 * i] / sum[i], out[n][2 * i + 1] / sum[i]);
    }
}

/* The same over paged caches: a tile's rows are neighbours of one sequence, and a page is one tile of keys. */
template <int D> __global__ void __launch_bounds__(WARPS * 32) paged_kernel(const nmlp_cuda_paged_attention a) {
    __shared__ __align__(16) __nv_bfloat16 k[KEYS][D + SKEW];
    __shared__ __align__(16) __nv_bfloat16 v[KEYS][D + SKEW];
    static_assert(KEYS == NMLP_CUDA_PAGE_POSITIONS && QUERIES == NMLP_CUDA_ATTENTION_TILE_ROWS, "a page is a tile");
    const int t = threadIdx.x & 3;
    const int row0 = (int)(threadIdx.x >> 5) * 16 + ((int)(threadIdx.x & 31) >> 2); /* in the tile */
    const int head = blockIdx.y;
    const int kv_head = head / (a.n_heads / a.n_kv_heads);
    const nmlp_cuda_query_tile tile = a.tiles[gridDim.x - 1 - blockIdx.x]; /* later tiles have more keys */
    const int32_t *table = a.tables + (int64_t)tile.sequence * a.table_pages;
    uint32_t q[D / 16][4];
    for (int kk = 0; kk < D / 16; kk++) {
        for (int i = 0; i < 4; i++) {
            const int row = tile.row + min(row0 + (i & 1) * 8, tile.n - 1);
            const __nv_bfloat16 *from = static_cast<const __nv_bfloat16 *>(a.q) + ((int64_t)row * a.n_heads + head) * D;
            q[kk][i] = *reinterpret_cast<const uint32_t *>(from + kk * 16 + t * 2 + (i >> 1) * 8);
        }
    }
    float out[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
    const int begin[2] = {0, 0};
    const int end = tile.position + tile.n;
    for (int key = 0; key < end; key += KEYS) {
        float score[KEYS / 8][4];
        const int64_t page = ((int64_t)table[key / KEYS] * a.n_kv_heads + kv_head) * KEYS * D;
        __syncthreads();
        load_tile<D>(k, static_cast<const __nv_bfloat16 *>(a.k_pages) + page, 0, end - key);
        load_tile<D>(v, static_cast<const __nv_bfloat16 *>(a.v_pages) + page, 0, end - key);
        __syncthreads();
        score_tile<D>(score, q, k, key, tile.position + row0, begin);
        soften<D>(score, out, top, sum);
        add_values<D>(out, score, v);
    }
    for (int i = 0; i < 2; i++) {
        const int row = row0 + i * 8;
        if (row >= tile.n) continue;
        __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(a.out) + (int64_t)(tile.row + row) * a.out_pitch + head * D;
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<__nv_bfloat162 *>(to + n * 8 + t * 2) =
                __floats2bfloat162_rn(out[n][2 * i] / sum[i], out[n][2 * i + 1] / sum[i]);
    }
}

/* One warp per query and head; lanes share the D columns. */
__global__ void plain_kernel(const nmlp_cuda_attention h) {
    int lane = threadIdx.x & 31;
    int64_t item = (int64_t)blockIdx.x * PLAIN_WARPS + (threadIdx.x >> 5);
    if (item >= (int64_t)h.s * h.n_heads) return;
    int row = (int)(item / h.n_heads);
    int head = (int)(item % h.n_heads);
    int dim = h.head_dim;
    int64_t cache = (int64_t)(head / (h.n_heads / h.n_kv_heads)) * h.context * dim;
    const __nv_bfloat16 *keys = static_cast<const __nv_bfloat16 *>(h.k_cache) + cache;
    const __nv_bfloat16 *values = static_cast<const __nv_bfloat16 *>(h.v_cache) + cache;
    float q[PLAIN_DIMS_MAX];
    float out[PLAIN_DIMS_MAX] = {};
    float top = -INFINITY;
    float sum = 0;
    for (int i = 0; i < PLAIN_DIMS_MAX; i++) {
        int d = lane + i * 32;
        q[i] =
            d < dim
                ? __bfloat162float(static_cast<const __nv_bfloat16 *>(h.q)[((int64_t)row * h.n_heads + head) * dim + d])
                : 0.0f;
    }
    int first_key = h.text_begin ? h.text_begin[row] : 0;
    for (int key = first_key; key <= h.first + row; key++) {
        float dot = 0;
        for (int i = 0; i < PLAIN_DIMS_MAX; i++)
            if (lane + i * 32 < dim) dot += q[i] * __bfloat162float(keys[(int64_t)key * dim + lane + i * 32]);
        for (int d = 16; d; d >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, d);
        float m = fmaxf(top, dot);
        float keep = key == first_key ? 0.0f : __expf(top - m);
        float p = __expf(dot - m);
        sum = sum * keep + p;
        top = m;
        for (int i = 0; i < PLAIN_DIMS_MAX; i++)
            if (lane + i * 32 < dim)
                out[i] = out[i] * keep + p * __bfloat162float(values[(int64_t)key * dim + lane + i * 32]);
    }
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(h.out) + (int64_t)row * h.out_pitch + head * dim;
    for (int i = 0; i < PLAIN_DIMS_MAX; i++)
        if (lane + i * 32 < dim) to[lane + i * 32] = __float2bfloat16(out[i] / sum);
}

} // namespace

int nmlp_cuda_launch_attention(const nmlp_cuda_attention *h, void *stream) {
    dim3 grid((unsigned)((h->s + QUERIES - 1) / QUERIES), (unsigned)h->n_heads);
    cudaStream_t st = (cudaStream_t)stream;
    switch (h->head_dim) {
    case 16: attention_kernel<16><<<grid, WARPS * 32, 0, st>>>(*h); break;
    case 32: attention_kernel<32><<<grid, WARPS * 32, 0, st>>>(*h); break;
    case 64: attention_kernel<64><<<grid, WARPS * 32, 0, st>>>(*h); break;
    case 128: attention_kernel<128><<<grid, WARPS * 32, 0, st>>>(*h); break;
    default:
        plain_kernel<<<(unsigned)(((int64_t)h->s * h->n_heads + PLAIN_WARPS - 1) / PLAIN_WARPS), PLAIN_WARPS * 32, 0,
                       st>>>(*h);
    }
    return cudaGetLastError();
}

int nmlp_cuda_batch_has_prompt_kernel(int32_t head_dim) {
    return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128;
}

int nmlp_cuda_batch_prompt_attention(const nmlp_cuda_paged_attention *a, void *stream) {
    const dim3 grid((unsigned)a->n_tiles, (unsigned)a->n_heads);
    cudaStream_t st = (cudaStream_t)stream;
    if (a->n_tiles == 0) return cudaSuccess;
    switch (a->head_dim) {
    case 16: paged_kernel<16><<<grid, WARPS * 32, 0, st>>>(*a); break;
    case 32: paged_kernel<32><<<grid, WARPS * 32, 0, st>>>(*a); break;
    case 64: paged_kernel<64><<<grid, WARPS * 32, 0, st>>>(*a); break;
    case 128: paged_kernel<128><<<grid, WARPS * 32, 0, st>>>(*a); break;
    default: return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
