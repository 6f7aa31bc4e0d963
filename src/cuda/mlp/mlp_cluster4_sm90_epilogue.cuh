/* The epilogue within a cluster of mlp_cluster4_sm90.cu: partial sums of warps and blocks are added in fixed order, and
 * the result goes to the next GEMM or to memory. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_EPILOGUE_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_EPILOGUE_CUH

#include "cuda/mlp/mlp_cluster4_sm90_consumer.cuh"

namespace {

/* The quotient is off by two units at most, without a branch for each. */
__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

/* The mma leaves sums of an n8 tile as pairs of neighbouring rows of a token, [tiles][lanes][halves of a tile]: pairs
 * that stand beside each other in memory. */
template <int NT> struct pairs {
    static const int halves = NT == 1 ? 1 : 2; /* tokens 8 to 15 of a tile may not exist */
    static const int per_octet = 32 * NT;
    static const int bytes = 8;
};

template <int NT> __device__ __forceinline__ int token_of(int pair) {
    return pair / (32 * pairs<NT>::halves) * 16 + pair % pairs<NT>::halves * 8 + pair / (4 * pairs<NT>::halves) % 8;
}

/* Of the n8 tile. */
template <int NT> __device__ __forceinline__ int row_of(int pair) { return pair / pairs<NT>::halves % 4 * 2; }

/* Where two neighbouring rows of a token go: to all clusters for the next product, or to the MLP's result. */
struct result_place {
    char *to;
    int n; /* of the two, that are wanted */
    bool last;
};

__device__ __forceinline__ result_place place_of(const nmlp_cuda_mlp_cluster4_program &prog,
                                                 const nmlp_cuda_mlp_cluster4_product &ph, int64_t into_set, int row,
                                                 int token) {
    const int64_t at = (int64_t)token * ph.out_pitch + row;
    result_place r;
    r.last = ph.last != 0;
    r.to = static_cast<char *>(ph.out) + (r.last ? at * 4 : into_set + at * 2);
    r.n = token < prog.s ? min(2, max(0, (r.last ? ph.n : ph.rows) - row)) : 0;
    return r;
}

__device__ __forceinline__ void put_rows(const result_place &place, float a, float b) {
    if (place.last) {
        float *to = reinterpret_cast<float *>(place.to);
        if (place.n > 0) to[0] = a;
        if (place.n > 1) to[1] = b;
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
        if (place.n > 0)
            asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(place.to),
                         "r"(*reinterpret_cast<const uint32_t *>(&pair))
                         : "memory");
    }
}

/* Sums of an n8 tile lie as a lane has them, for each source: warps that differ in factor or K, of every block. */
template <int NT> __device__ __forceinline__ int lane_bytes() { return (threadIdx.x & 31) * (NT == 1 ? 8 : 16); }

template <int NT>
__device__ __forceinline__ void send_sums(const sums<NT> &acc, const warp_tile &w, const block_memory &mem) {
    const int source = (w.factor * w.k_step + w.k) * CLUSTER + mem.rank;
    const uint32_t from = shared_address(mem.sums) + source * shape<NT>::n8_bytes + lane_bytes<NT>();
    const uint32_t bar = shared_address(&mem.sh->sums_full);
#pragma unroll
    for (int j = 0; j < shape<NT>::n8_max; j++) {
        if (j >= w.n8_tiles) break;
        const int o = w.n8_tile + j;
        const uint32_t to = sm90::mapa(from + o / CLUSTER * w.n_sources * shape<NT>::n8_bytes, o % CLUSTER);
        const uint32_t bar_there = sm90::mapa(bar, o % CLUSTER);
        if (NT == 1) {
            send(to, bar_there, acc[j][0][0], acc[j][0][1]);
        } else {
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                send(to + i * shape<NT>::m16_bytes, bar_there,
                     make_uint4(__float_as_uint(acc[j][i][0]), __float_as_uint(acc[j][i][1]),
                                __float_as_uint(acc[j][i][2]), __float_as_uint(acc[j][i][3])));
        }
    }
}

/* In the order of the sources. */
template <int NT> __device__ __forceinline__ float2 add_sources(const unsigned char *at, int n) {
    float2 r = make_float2(0, 0);
#pragma unroll 8
    for (int k = 0; k < n; k++, at += shape<NT>::n8_bytes) {
        const float2 v = *reinterpret_cast<const float2 *>(at);
        r.x += v.x;
        r.y += v.y;
    }
    return r;
}

/* Eight rows of the part's X, to every block of the cluster: each of the four lanes that have two of them writes to
 * another. */
template <int NT>
__device__ __forceinline__ void share_rows(const block_memory &mem, uint32_t to, bool wanted, float2 gate, float2 up) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(silu(gate.x) * up.x, silu(gate.y) * up.y);
    const uint32_t w = *reinterpret_cast<const uint32_t *>(&two);
    const int apart = pairs<NT>::halves;
    const int t = threadIdx.x / apart % 4;
    const int first = (threadIdx.x & 31) - t * apart;
    static_assert(CLUSTER == 4, "lanes that have a token's rows");
    const uint4 all =
        make_uint4(__shfl_sync(0xffffffffu, w, first), __shfl_sync(0xffffffffu, w, first + apart),
                   __shfl_sync(0xffffffffu, w, first + 2 * apart), __shfl_sync(0xffffffffu, w, first + 3 * apart));
    if (wanted) send(sm90::mapa(to, t), sm90::mapa(shared_address(&mem.sh->act_full), t), all);
}

/* Gate's and up's sums of the block's n8 tiles become the part's X. All of a thread's pairs together: each takes long.
 * What reads the MLP's own input is multiplied by 1/rms of its rows; a basis has been already. */
template <int NT>
__device__ __forceinline__ void epilogue_swiglu(const nmlp_cuda_mlp_cluster4_program &prog,
                                                const nmlp_cuda_mlp_cluster4_product &ph, const block_memory &mem,
                                                int row, int mine) {
    const int AT_ONCE = (NMLP_CUDA_MLP_CLUSTER4_N8_MAX * pairs<NT>::per_octet + WARPS * 32 - 1) / (WARPS * 32);
    const int n = mine * pairs<NT>::per_octet;
    uint32_t to[AT_ONCE];
    float2 gate[AT_ONCE];
    float2 up[AT_ONCE];
    float scale[AT_ONCE];
    const bool scales_gate = ph.in[0].from_before != 0;
    const bool scales_up = ph.in[1].from_before != 0;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int pair = min((int)threadIdx.x + i * WARPS * 32, n - 1);
        const int n8_tile = pair / pairs<NT>::per_octet;
        const unsigned char *at =
            mem.sums + n8_tile * 2 * CLUSTER * shape<NT>::n8_bytes + pair % pairs<NT>::per_octet * pairs<NT>::bytes;
        const int column = row + (n8_tile * CLUSTER + mem.rank) * N8 - mem.cluster * prog.window;
        const int token = token_of<NT>(pair % pairs<NT>::per_octet);
        to[i] = shared_address(mem.act) + token * prog.act_pitch + column * 2;
        scale[i] = mem.sh->scales[token];
        gate[i] = add_sources<NT>(at, CLUSTER);
        up[i] = add_sources<NT>(at + CLUSTER * shape<NT>::n8_bytes, CLUSTER);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const float of_gate = scales_gate ? scale[i] : 1.0f;
        const float of_up = scales_up ? scale[i] : 1.0f;
        share_rows<NT>(mem, to[i], (int)threadIdx.x + i * WARPS * 32 < n,
                       make_float2(gate[i].x * of_gate, gate[i].y * of_gate),
                       make_float2(up[i].x * of_up, up[i].y * of_up));
    }
}

/* Two neighbouring rows of the MLP's result, of eight that `apart` tells from each other: stored, or added to the
 * residual stream. All lanes. */
__device__ __forceinline__ void put_last(const nmlp_cuda_residual &residual, const residual_pair &before,
                                         const result_place &place, int token, int row, int apart, float2 v) {
    if (!residual.hidden) {
        put_rows(place, v.x, v.y);
        return;
    }
    const float squares = add_residual(residual, before, token, row, place.n, v);
    put_squares(residual, token, row, place.n > 0 && row % N8 == 0, apart, squares);
}

/* Sums of the block's n8 tiles go to all clusters, or are the MLP's. */
template <int NT>
__device__ __forceinline__ void epilogue_rows(const nmlp_cuda_mlp_cluster4_program &prog,
                                              const nmlp_cuda_mlp_cluster4_product &ph, const block_memory &mem,
                                              int64_t into_set, int row, int mine, int n_sources) {
    const bool is_basis = ph.kind == NMLP_CUDA_MLP_CLUSTER4_BASIS;
    for (int i = threadIdx.x; i < mine * pairs<NT>::per_octet; i += WARPS * 32) {
        const int n8_tile = i / pairs<NT>::per_octet;
        const int pair = i % pairs<NT>::per_octet;
        const int token = token_of<NT>(pair);
        const int in_w = row + (n8_tile * CLUSTER + mem.rank) * N8 + row_of<NT>(pair);
        const result_place place = place_of(prog, ph, into_set, in_w, token);
        residual_pair before = {};
        if (place.last && prog.residual.hidden) before = load_residual(prog.residual, token, in_w, place.n);
        const float2 v =
            add_sources<NT>(mem.sums + n8_tile * n_sources * shape<NT>::n8_bytes + pair * pairs<NT>::bytes, n_sources);
        const float scale = is_basis ? mem.sh->scales[token] : 1.0f;
        if (place.last)
            put_last(prog.residual, before, place, token, in_w, pairs<NT>::halves, v);
        else
            put_rows(place, v.x * scale, v.y * scale);
    }
}

/* A pass's sums meet: n8 tile o of it in block o modulo 4. */
template <int NT>
__device__ __forceinline__ void exchange(const sums<NT> &acc, const nmlp_cuda_mlp_cluster4_program &prog,
                                         const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p,
                                         const warp_tile &w, const block_memory &mem, int64_t into_set, int n_done) {
    mbar_wait(&mem.sh->sums_free, (n_done & 1) ^ 1);
    if (threadIdx.x == 0) expect_bytes(&mem.sh->sums_full, w.mine * w.n_sources * shape<NT>::n8_bytes);
    send_sums<NT>(acc, w, mem);
    mbar_wait(&mem.sh->sums_full, n_done & 1);
    if (ph.kind == NMLP_CUDA_MLP_CLUSTER4_GATE_UP)
        epilogue_swiglu<NT>(prog, ph, mem, p.row, w.mine);
    else
        epilogue_rows<NT>(prog, ph, mem, into_set, p.row, w.mine, w.n_sources);
}

/* The warp has read its sums of this pass: it tells every block, so that sums of the next may come. */
__device__ __forceinline__ void free_sums(const block_memory &mem) {
    __syncwarp();
    if ((threadIdx.x & 31) < CLUSTER)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                         sm90::mapa(shared_address(&mem.sh->sums_free), threadIdx.x & 31))
                     : "memory");
}

} // namespace

#endif
