/* The end of gemm_resident_sm90.cu: sums of warps and of both blocks are added in fixed order and stored, or added to
 * the residual stream. */
#ifndef NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_FINISH_CUH
#define NMLP_CUDA_BATCH_GEMM_RESIDENT_SM90_FINISH_CUH

#include "cuda/batch/gemm_resident_sm90_block.cuh"

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* What all warps have there, in order. */
template <int N8_TILES> __device__ __forceinline__ float4 add_warps(const block_memory &mem, int at) {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < WARPS; k++)
        if (k < mem.n) v = add4(v, *reinterpret_cast<const float4 *>(mem.w + k * N8_TILES * N8_BYTES + at));
    return v;
}

__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float4 v) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
        "r"(bar)
        : "memory");
}

/* Four results of a thread: two neighbouring rows of W for a token, and for that 8 later. */
struct result_place {
    int row;
    int token;
    int n; /* rows of the two that exist */
};

/* N8 tile j of the cluster is its block j modulo CLUSTER's. Place i of those. */
template <int NT>
__device__ __forceinline__ result_place place_of(const nmlp_cuda_gemm_resident &g, const block_memory &mem, int i) {
    const int per_n8 = shape<NT>::tiles * 32;
    result_place p;
    p.row = mem.row + (i / per_n8 * CLUSTER + mem.rank) * N8 + i % 4 * 2;
    p.token = i % per_n8 / 32 * 16 + i % 32 / 4;
    p.n = max(0, min(2, g.n - p.row));
    return p;
}

__device__ __forceinline__ void store_pair(const nmlp_cuda_gemm_resident &g, int token, const result_place &p, float a,
                                           float b) {
    float *to = g.y + (int64_t)token * g.y_pitch + p.row;
    if (token >= g.s) return;
    if (p.n > 1)
        *reinterpret_cast<float2 *>(to) = make_float2(a, b);
    else if (p.n > 0)
        *to = a;
}

/* What the thread's results are added to: asked for before there are any. */
template <int ITEMS> struct residual_input {
    residual_pair v[ITEMS][2];
};

template <int NT, int N8_TILES> struct items {
    static const int all = N8_TILES / CLUSTER * shape<NT>::tiles * 32;
    static const int of_thread = (all + THREADS - 1) / THREADS;
};

template <int NT, int N8_TILES>
__device__ __forceinline__ void load_before(residual_input<items<NT, N8_TILES>::of_thread> &in,
                                            const nmlp_cuda_gemm_resident &g, const block_memory &mem) {
    typedef items<NT, N8_TILES> I;
#pragma unroll
    for (int k = 0; k < I::of_thread; k++) {
        const int i = (int)threadIdx.x + k * THREADS;
        const result_place p = place_of<NT>(g, mem, i);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = p.token + half * 8;
            in.v[k][half] = load_residual(g.residual, token, p.row, i < I::all && token < g.s ? p.n : 0);
        }
    }
}

/* The sums that the other block wants. */
template <int NT, int N8_TILES> __device__ __forceinline__ void send_sums(const block_memory &mem) {
    const int per_n8 = shape<NT>::tiles * 32;
    const int other = mem.rank ^ 1;
    const uint32_t bar = sm90::mapa(shared_address(&mem.sh->sums_full), other);
    const uint32_t to = sm90::mapa(shared_address(mem.received), other);
    for (int i = threadIdx.x; i < items<NT, N8_TILES>::all; i += THREADS)
        send(to + i * 16, bar,
             add_warps<N8_TILES>(mem, (i / per_n8 * CLUSTER + other) * shape<NT>::n8_sum_bytes + i % per_n8 * 16));
}

/* All lanes: four of them have the eight columns of a sum of squares. */
__device__ __forceinline__ void finish_pair(const nmlp_cuda_gemm_resident &g, const residual_pair &before, int token,
                                            const result_place &p, float2 y) {
    if (!g.residual.hidden) {
        store_pair(g, token, p, y.x, y.y);
        return;
    }
    const int n = token < g.s ? p.n : 0;
    const float squares = add_residual(g.residual, before, token, p.row, n, y);
    put_squares(g.residual, token, p.row, n > 0 && p.row % N8 == 0, 1, squares);
}

template <int NT, int N8_TILES>
__device__ __forceinline__ void finish(const nmlp_cuda_gemm_resident &g, const block_memory &mem,
                                       const residual_input<items<NT, N8_TILES>::of_thread> &in) {
    typedef items<NT, N8_TILES> I;
    const int per_n8 = shape<NT>::tiles * 32;
    send_sums<NT, N8_TILES>(mem);
#pragma unroll
    for (int k = 0; k < I::of_thread; k++) {
        const int i = (int)threadIdx.x + k * THREADS;
        if (i >= I::all) break; /* whole warps */
        const result_place p = place_of<NT>(g, mem, i);
        float4 v =
            add_warps<N8_TILES>(mem, (i / per_n8 * CLUSTER + mem.rank) * shape<NT>::n8_sum_bytes + i % per_n8 * 16);
        sm90::mbar_wait(shared_address(&mem.sh->sums_full), 0);
        v = add4(v, *reinterpret_cast<const float4 *>(mem.received + i * 16));
        const float scale = mem.sh->scales[p.token];
        finish_pair(g, in.v[k][0], p.token, p, make_float2(v.x * scale, v.y * scale));
        if (NT == 1) continue; /* there are no more tokens */
        const float later = mem.sh->scales[p.token + 8];
        finish_pair(g, in.v[k][1], p.token + 8, p, make_float2(v.z * later, v.w * later));
    }
}

#endif

} // namespace

#endif
