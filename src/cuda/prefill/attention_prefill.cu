/* Causal attention of many queries over the cache, or of texts lying one after the other among themselves: 128 queries
 * of one head per block, keys in tiles of 64, softmax kept running, so that no score leaves the chip. The next tile of
 * keys and values is copied while the last one is multiplied. Head sizes that are not 16, 32, 64 or 128 take a plain
 * kernel. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/batch/batch_kernels.h"
#include "cuda/layout.h"
#include "cuda/prefill/prefill.h"

namespace {

enum { QUERIES = 128, KEYS = 64, SKEW = 8, BUFFERS = 2, PLAIN_WARPS = 8, PLAIN_DIMS_MAX = 8 };

/* A warp takes M times 16 queries: more of them use every key that is read from shared memory more often, as far as
 * registers go. */
template <int D> struct shape {
    static const int M = D <= 64 ? 2 : 1;
    static const int WARPS = QUERIES / (16 * M);
    static const int THREADS = WARPS * 32;
    static const int PITCH = D + SKEW;
    static const int TILE = KEYS * PITCH;
    static const int BYTES = 2 * BUFFERS * TILE * (int)sizeof(__nv_bfloat16); /* keys and values */
};

/* The queries of a block, all of one head. */
struct query_block {
    const __nv_bfloat16 *q; /* of the first; rows q_pitch apart */
    __nv_bfloat16 *out;
    int64_t q_pitch;
    int64_t out_pitch;
    int n;            /* at most QUERIES */
    int position;     /* of the first */
    int first_key;    /* that any of them sees */
    const int *begin; /* [n] first key of each; NULL: all see key 0 */
};

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

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Begins to copy 64 rows of D elements into shared memory; those past the first n become zero. */
template <int D> __device__ __forceinline__ void copy_tile(__nv_bfloat16 *tile, const __nv_bfloat16 *from, int n) {
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += shape<D>::THREADS) {
        const int row = i / (D / 8);
        const int col = i % (D / 8) * 8;
        const bool is_there = row < n;
        const uint32_t to = (uint32_t)__cvta_generic_to_shared(tile + row * shape<D>::PITCH + col);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                     "l"(from + (is_there ? row * D + col : 0)), "r"(is_there ? 16 : 0)
                     : "memory");
    }
}

__device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* score [16 M queries of the warp, 64 keys] = Q K^T. */
template <int D, int M>
__device__ __forceinline__ void score_tile(float (&score)[M][KEYS / 8][4], const uint32_t (&q)[M][D / 16][4],
                                           const __nv_bfloat16 *k) {
    const int lane = threadIdx.x & 31;
    const __nv_bfloat16 *at = k + ((lane >> 4) * 8 + (lane & 7)) * shape<D>::PITCH + (lane >> 3 & 1) * 8;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) score[m][n][i] = score[m][n + 1][i] = 0;
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t b[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"((uint32_t)__cvta_generic_to_shared(at + n * 8 * shape<D>::PITCH + kk * 16)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(score[m][n], q[m][kk], b[0], b[1]);
                mma(score[m][n + 1], q[m][kk], b[2], b[3]);
            }
        }
    }
}

/* Hides what lies after a query or before its text. `position` is that of query g of the 16. */
__device__ __forceinline__ void mask_tile(float (&score)[KEYS / 8][4], int first_key, int position,
                                          const int (&begin)[2]) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = first_key + n * 8 + t * 2 + (i & 1);
            if (key > position + (i >> 1) * 8 || key < begin[i >> 1]) score[n][i] = -INFINITY;
        }
    }
}

/* Turns scores into weights and rescales what was summed so far. Row i of a lane: i = 0 for query g, 1 for query g + 8.
 * `sum` is of the lane's own keys. */
template <int D>
__device__ __forceinline__ void soften(float (&score)[KEYS / 8][4], float (&out)[D / 8][4], float (&top)[2],
                                       float (&sum)[2]) {
    const float log2e = 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = top[i];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) m = fmaxf(m, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float base = m == -INFINITY ? 0.0f : m * log2e; /* no key of the row's text yet: all weights are 0 */
        const float keep = power_of_2(fmaf(top[i], log2e, -base));
        sum[i] *= keep;
        top[i] = m;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            score[n][2 * i] = power_of_2(fmaf(score[n][2 * i], log2e, -base));
            score[n][2 * i + 1] = power_of_2(fmaf(score[n][2 * i + 1], log2e, -base));
            sum[i] += score[n][2 * i] + score[n][2 * i + 1];
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][2 * i] *= keep;
            out[n][2 * i + 1] *= keep;
        }
    }
}

/* out += P V. The scores of 16 keys are already laid out as the mma's A. */
template <int D, int M>
__device__ __forceinline__ void add_values(float (&out)[M][D / 8][4], const float (&p)[M][KEYS / 8][4],
                                           const __nv_bfloat16 *v) {
    const int lane = threadIdx.x & 31;
    const __nv_bfloat16 *at = v + (lane & 15) * shape<D>::PITCH + (lane >> 4) * 8;
#pragma unroll
    for (int kk = 0; kk < KEYS / 16; kk++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            a[m][0] = pack(p[m][2 * kk][0], p[m][2 * kk][1]);
            a[m][1] = pack(p[m][2 * kk][2], p[m][2 * kk][3]);
            a[m][2] = pack(p[m][2 * kk + 1][0], p[m][2 * kk + 1][1]);
            a[m][3] = pack(p[m][2 * kk + 1][2], p[m][2 * kk + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                         : "r"((uint32_t)__cvta_generic_to_shared(at + kk * 16 * shape<D>::PITCH + n * 16)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma(out[m][2 * n], a[m], b[0], b[1]);
                mma(out[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Queries of the warp, 16 M of them from row `first` of the block on, as the mma's A. */
template <int D, int M>
__device__ __forceinline__ void load_queries(uint32_t (&q)[M][D / 16][4], const query_block &b, int first) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = min(first + m * 16 + g + (i & 1) * 8, b.n - 1);
                q[m][kk][i] =
                    *reinterpret_cast<const uint32_t *>(b.q + row * b.q_pitch + kk * 16 + t * 2 + (i >> 1) * 8);
            }
}

template <int D, int M>
__device__ __forceinline__ void store_rows(const query_block &b, const float (&out)[M][D / 8][4],
                                           const float (&sum)[M][2], int first) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first + m * 16 + g + i * 8;
            float all = sum[m][i];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            if (row >= b.n) continue;
            __nv_bfloat16 *to = b.out + row * b.out_pitch + t * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *reinterpret_cast<__nv_bfloat162 *>(to + n * 8) =
                    __floats2bfloat162_rn(out[m][n][2 * i] / all, out[m][n][2 * i + 1] / all);
        }
    }
}

/* Where rows of one head lie: contiguous, or a page per tile of keys. */
struct contiguous_rows {
    const __nv_bfloat16 *k;
    const __nv_bfloat16 *v;
    int dim;
    __device__ __forceinline__ int64_t at(int key) const { return (int64_t)key * dim; }
};

struct paged_rows {
    const __nv_bfloat16 *k;
    const __nv_bfloat16 *v;
    const int32_t *table;
    int64_t page_elements;
    __device__ __forceinline__ int64_t at(int key) const { return table[key / KEYS] * page_elements; }
};

template <int D, typename Rows> __device__ __forceinline__ void attend(const query_block &b, const Rows &rows) {
    extern __shared__ __align__(16) __nv_bfloat16 tiles[]; /* keys of both buffers, values of both buffers */
    const int M = shape<D>::M;
    const int first = (int)(threadIdx.x >> 5) * 16 * M; /* row of the block */
    const int g = (threadIdx.x & 31) >> 2;
    const int end = b.position + b.n;
    const int warp_end = first < b.n ? b.position + min(first + 16 * M, b.n) : 0; /* keys its queries see */
    uint32_t q[M][D / 16][4];
    float out[M][D / 8][4] = {};
    float top[M][2];
    float sum[M][2] = {};
    int begin[M][2] = {};
    int buffer = 0;
    load_queries<D>(q, b, first);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[m][i] = -INFINITY;
            if (b.begin) begin[m][i] = b.begin[min(first + m * 16 + g + i * 8, b.n - 1)];
        }
    copy_tile<D>(tiles, rows.k + rows.at(b.first_key), end - b.first_key);
    copy_tile<D>(tiles + BUFFERS * shape<D>::TILE, rows.v + rows.at(b.first_key), end - b.first_key);
    for (int key = b.first_key; key < end; key += KEYS, buffer ^= 1) {
        const __nv_bfloat16 *k = tiles + buffer * shape<D>::TILE;
        const int next = key + KEYS;
        await_copies();
        __syncthreads(); /* this tile is there, and nobody reads the other buffer any more */
        if (next < end) {
            __nv_bfloat16 *to = tiles + (buffer ^ 1) * shape<D>::TILE;
            const int64_t from = rows.at(next);
            copy_tile<D>(to, rows.k + from, end - next);
            copy_tile<D>(to + BUFFERS * shape<D>::TILE, rows.v + from, end - next);
        }
        if (key >= warp_end) continue;
        float score[M][KEYS / 8][4];
        score_tile<D>(score, q, k);
        if (b.begin || next > b.position + first + 1)
#pragma unroll
            for (int m = 0; m < M; m++) mask_tile(score[m], key, b.position + first + m * 16 + g, begin[m]);
#pragma unroll
        for (int m = 0; m < M; m++) soften<D>(score[m], out[m], top[m], sum[m]);
        add_values<D>(out, score, k + BUFFERS * shape<D>::TILE);
    }
    store_rows<D>(b, out, sum, first);
}

template <int D> __global__ void __launch_bounds__(shape<D>::THREADS) attention_kernel(const nmlp_cuda_attention h) {
    const int head = blockIdx.x;
    const int row = (gridDim.y - 1 - blockIdx.y) * QUERIES; /* the longest blocks of all heads first */
    const int64_t cache = (int64_t)(head / (h.n_heads / h.n_kv_heads)) * h.context * D;
    const contiguous_rows rows = {static_cast<const __nv_bfloat16 *>(h.k_cache) + cache,
                                  static_cast<const __nv_bfloat16 *>(h.v_cache) + cache, D};
    const query_block b = {static_cast<const __nv_bfloat16 *>(h.q) + ((int64_t)row * h.n_heads + head) * D,
                           static_cast<__nv_bfloat16 *>(h.out) + (int64_t)row * h.out_pitch + head * D,
                           (int64_t)h.n_heads * D,
                           h.out_pitch,
                           min((int)QUERIES, h.s - row),
                           h.first + row,
                           h.text_begin ? h.text_begin[row] : 0,
                           h.text_begin ? h.text_begin + row : nullptr};
    attend<D>(b, rows);
}

/* The same over paged caches: a tile's rows are neighbours of one sequence, and a page is one tile of keys. */
template <int D> __global__ void __launch_bounds__(shape<D>::THREADS) paged_kernel(const nmlp_cuda_paged_attention a) {
    static_assert(KEYS == NMLP_CUDA_PAGE_POSITIONS && QUERIES == NMLP_CUDA_ATTENTION_TILE_ROWS, "a page is a tile");
    const int head = blockIdx.x;
    const int64_t kv_head = (int64_t)(head / (a.n_heads / a.n_kv_heads)) * KEYS * D; /* in a page */
    const nmlp_cuda_query_tile tile = a.tiles[gridDim.y - 1 - blockIdx.y];           /* later tiles have more keys */
    const paged_rows rows = {static_cast<const __nv_bfloat16 *>(a.k_pages) + kv_head,
                             static_cast<const __nv_bfloat16 *>(a.v_pages) + kv_head,
                             a.tables + (int64_t)tile.sequence * a.table_pages, (int64_t)a.n_kv_heads * KEYS * D};
    const query_block b = {static_cast<const __nv_bfloat16 *>(a.q) + ((int64_t)tile.row * a.n_heads + head) * D,
                           static_cast<__nv_bfloat16 *>(a.out) + (int64_t)tile.row * a.out_pitch + head * D,
                           (int64_t)a.n_heads * D,
                           a.out_pitch,
                           tile.n,
                           tile.position,
                           0,
                           nullptr};
    attend<D>(b, rows);
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

/* Allows the shared memory that both kernels need, which is more than a kernel gets unasked. */
template <int D, typename Args>
cudaError_t launch(void (*kernel)(const Args), dim3 grid, const Args &args, void *stream) {
    const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape<D>::BYTES);
    if (e != cudaSuccess) return e;
    kernel<<<grid, shape<D>::THREADS, shape<D>::BYTES, (cudaStream_t)stream>>>(args);
    return cudaGetLastError();
}

} // namespace

int nmlp_cuda_launch_attention(const nmlp_cuda_attention *h, void *stream) {
    const dim3 grid((unsigned)h->n_heads, (unsigned)((h->s + QUERIES - 1) / QUERIES));
    switch (h->head_dim) {
    case 16: return launch<16>(attention_kernel<16>, grid, *h, stream);
    case 32: return launch<32>(attention_kernel<32>, grid, *h, stream);
    case 64: return launch<64>(attention_kernel<64>, grid, *h, stream);
    case 128: return launch<128>(attention_kernel<128>, grid, *h, stream);
    default:
        plain_kernel<<<(unsigned)(((int64_t)h->s * h->n_heads + PLAIN_WARPS - 1) / PLAIN_WARPS), PLAIN_WARPS * 32, 0,
                       (cudaStream_t)stream>>>(*h);
    }
    return cudaGetLastError();
}

int nmlp_cuda_batch_has_prompt_kernel(int32_t head_dim) {
    return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128;
}

int nmlp_cuda_batch_prompt_attention(const nmlp_cuda_paged_attention *a, void *stream) {
    const dim3 grid((unsigned)a->n_heads, (unsigned)a->n_tiles);
    if (a->n_tiles == 0) return cudaSuccess;
    switch (a->head_dim) {
    case 16: return launch<16>(paged_kernel<16>, grid, *a, stream);
    case 32: return launch<32>(paged_kernel<32>, grid, *a, stream);
    case 64: return launch<64>(paged_kernel<64>, grid, *a, stream);
    case 128: return launch<128>(paged_kernel<128>, grid, *a, stream);
    default: return cudaErrorInvalidValue;
    }
}
