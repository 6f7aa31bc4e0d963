/* Decode attention as a kernel of its own: a block per (row, kv head, chunk of keys). */
#include "cuda/batch/decode_attention_paged.cuh"
#include "cuda/cooperative_launch.cuh"
#include "cuda/l2_prefetch.cuh"

namespace {

enum { BLOCKS_PER_SM = 2 };

struct block_link {
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ void load(head_pairs &p, const float *from, int half) const {
        load_pairs(p, from, half);
    }
    __device__ __forceinline__ void put(__nv_bfloat16 *to, float a, float b) const {
        *reinterpret_cast<__nv_bfloat162 *>(to) = __floats2bfloat162_rn(a, b);
    }
};

/* Every thread asks for the part of a page of keys, or of values, that the unit reads. Which keys those are was known
 * before the kernel before; where it was not, and the answer is an old one, nothing is lost but the reading. */
__device__ __forceinline__ void ask_for_keys(const nmlp_cuda_paged_attention &a, const attention_unit &unit) {
    const int sequence = __ldcg(a.rows.sequence + unit.row);
    if (!a.asks_early || sequence < 0) return;
    const key_range range = range_of(__ldcg(a.rows.position + unit.row), unit.chunk); /* its own key is not there */
    const int kv_head = unit.group / head_groups(a.n_heads, a.n_kv_heads);
    const int first = (range.begin / NMLP_CUDA_PAGE_POSITIONS + (int)threadIdx.x / 2) * NMLP_CUDA_PAGE_POSITIONS;
    if (first >= range.end) return;
    const int page =
        __ldcg(a.tables + (int64_t)sequence * a.table_pages + min(first / NMLP_CUDA_PAGE_POSITIONS, a.table_pages - 1));
    const int64_t at = ((int64_t)page * a.n_kv_heads + kv_head) * NMLP_CUDA_PAGE_POSITIONS * a.head_dim;
    const void *pages = threadIdx.x % 2 ? a.v_pages : a.k_pages;
    prefetch_bytes(static_cast<const __nv_bfloat16 *>(pages) + at,
                   (uint32_t)(min(NMLP_CUDA_PAGE_POSITIONS, range.end - first) * a.head_dim * 2));
}

template <int LANES>
__global__ void __launch_bounds__(ATTENTION_WARPS * 32, BLOCKS_PER_SM)
    decode_attention_kernel(const nmlp_cuda_paged_attention a) {
    __shared__ attention_shared mem;
    begin_dependents();
    ask_for_keys(a, {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z});
    if (threadIdx.x == 0)
        prefetch_share(a.next, a.next_bytes, (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)),
                       (int)(gridDim.x * gridDim.y * gridDim.z));
    await_previous();
    if (a.rows.sequence[blockIdx.x] < 0) return;
    attend<LANES>(a, mem, {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z}, block_link{});
}

} // namespace

int64_t nmlp_cuda_batch_arrivals(int32_t rows, int32_t n_heads, int32_t n_kv_heads) {
    return (int64_t)rows * n_kv_heads * head_groups(n_heads, n_kv_heads);
}

int nmlp_cuda_batch_decode_attention(const nmlp_cuda_paged_attention *a, void *stream) {
    const dim3 grid((unsigned)a->n_decode_rows, (unsigned)(a->n_kv_heads * head_groups(a->n_heads, a->n_kv_heads)),
                    (unsigned)a->n_chunks);
    if (a->n_decode_rows == 0) return cudaSuccess;
    if (a->head_dim <= 16)
        return launch_dependent(decode_attention_kernel<2>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    if (a->head_dim <= 32)
        return launch_dependent(decode_attention_kernel<4>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    if (a->head_dim <= 64)
        return launch_dependent(decode_attention_kernel<8>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
    return launch_dependent(decode_attention_kernel<16>, grid, ATTENTION_WARPS * 32, 0, stream, *a);
}
