/* Decode attention as a kernel of its own: a block per (row, kv head, chunk of keys). */
#include "cuda/batch/decode_attention_paged.cuh"
#include "cuda/cooperative_launch.cuh"

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

template <int LANES>
__global__ void __launch_bounds__(ATTENTION_WARPS * 32, BLOCKS_PER_SM)
    decode_attention_kernel(const nmlp_cuda_paged_attention a) {
    __shared__ attention_shared mem;
    wait_previous();
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
