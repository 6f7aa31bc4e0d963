/* What becomes of sums within a cluster of quad.cu: added over warps and blocks in fixed order, and handed on. */
#ifndef NMLP_CUDA_QUAD_FINISH_CUH
#define NMLP_CUDA_QUAD_FINISH_CUH

#include "cuda/quad_multiply.cuh"

namespace {

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* Results for eight rows of W, as the mma leaves them: a lane has two neighbouring rows of a token, and of the token eight further. */
template <int NT>
struct octet {
    float v[shape<NT>::tiles][4];
};

template <int NT>
__device__ __forceinline__ int token_of(int tile, int half) { return tile * 16 + half * 8 + ((threadIdx.x & 31) >> 2); }

/* Halves of a tile: tokens 8 to 15 of it may not exist. */
template <int NT>
struct halves {
    static const int n = NT == 1 ? 1 : 2;
};

/* A lane's two rows become all eight of the token, in each of the four lanes that have them. */
__device__ __forceinline__ uint4 gather_rows(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    const uint32_t w = *reinterpret_cast<const uint32_t *>(&pair);
    const int first = threadIdx.x & 28;
    return make_uint4(__shfl_sync(0xffffffffu, w, first), __shfl_sync(0xffffffffu, w, first + 1), __shfl_sync(0xffffffffu, w, first + 2),
                      __shfl_sync(0xffffffffu, w, first + 3));
}

/* Rows for the next product of all clusters, or the MLP's own: those of one tile of tokens. */
template <int NT>
__device__ __forceinline__ void put_tile(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, int64_t into_set, int row, int tile,
                                         const float (&v)[4]) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int h = 0; h < halves<NT>::n; h++) {
        const int token = token_of<NT>(tile, h);
        const float a = v[h * 2];
        const float b = v[h * 2 + 1];
        const int64_t at = (int64_t)token * ph.out_pitch + row;
        if (ph.last) {
            float *to = static_cast<float *>(ph.out) + at + t * 2;
            if (token < prog.s && row + t * 2 < ph.n) to[0] = a;
            if (token < prog.s && row + t * 2 + 1 < ph.n) to[1] = b;
        } else {
            const uint4 all = gather_rows(a, b);
            __nv_bfloat16 *to = reinterpret_cast<__nv_bfloat16 *>(static_cast<char *>(ph.out) + into_set) + at;
            if (t == 0 && token < prog.s)
                asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(all.x), "r"(all.y), "r"(all.z), "r"(all.w) : "memory");
        }
    }
}

/* Rows of the part's X, to every block of the cluster: each of the four lanes that have them writes to another. */
template <int NT>
__device__ __forceinline__ void share_octet(const nmlp_cuda_quad_program &prog, const block_memory &mem, int column, const octet<NT> &gate, const octet<NT> &up) {
    const int t = threadIdx.x & 3;
    static_assert(QUAD == 4, "lanes that have a token's rows");
    const uint32_t bar = in_block(shared_address(&mem.sh->act_full), t);
#pragma unroll
    for (int i = 0; i < shape<NT>::tiles; i++)
#pragma unroll
        for (int h = 0; h < halves<NT>::n; h++) {
            const uint4 all = gather_rows(silu(gate.v[i][h * 2]) * up.v[i][h * 2], silu(gate.v[i][h * 2 + 1]) * up.v[i][h * 2 + 1]);
            send(in_block(shared_address(mem.act) + token_of<NT>(i, h) * prog.act_pitch + column * 2, t), bar, all);
        }
}

/* Sums of an octet lie as a lane has them, for each source: warps that differ in factor or K, of every block. */
template <int NT>
__device__ __forceinline__ int lane_bytes() { return (threadIdx.x & 31) * (NT == 1 ? 8 : 16); }

template <int NT>
__device__ __forceinline__ void send_sums(const sums<NT> &acc, const seat &w, const block_memory &mem, int n_sources) {
    const int source = (w.factor * w.k_step + w.k) * QUAD + mem.rank;
    const uint32_t from = shared_address(mem.sums) + source * shape<NT>::octet_bytes + lane_bytes<NT>();
    const uint32_t bar = shared_address(&mem.sh->sums_full);
#pragma unroll
    for (int j = 0; j < shape<NT>::octets_max; j++) {
        if (j >= w.octets) break;
        const int o = w.octet + j;
        const uint32_t to = in_block(from + o / QUAD * n_sources * shape<NT>::octet_bytes, o % QUAD);
        const uint32_t bar_there = in_block(bar, o % QUAD);
        if (NT == 1) {
            send(to, bar_there, acc[j][0][0], acc[j][0][1]);
        } else {
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                send(to + i * shape<NT>::piece_bytes, bar_there,
                     make_uint4(__float_as_uint(acc[j][i][0]), __float_as_uint(acc[j][i][1]), __float_as_uint(acc[j][i][2]), __float_as_uint(acc[j][i][3])));
        }
    }
}

template <int NT>
__device__ __forceinline__ octet<NT> add_sources(const unsigned char *at, int n) {
    octet<NT> r = {};
#pragma unroll 4
    for (int k = 0; k < n; k++, at += shape<NT>::octet_bytes) {
        if (NT == 1) {
            const float2 v = *reinterpret_cast<const float2 *>(at);
            r.v[0][0] += v.x;
            r.v[0][1] += v.y;
        } else {
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++) {
                const float4 v = *reinterpret_cast<const float4 *>(at + i * shape<NT>::piece_bytes);
                r.v[i][0] += v.x;
                r.v[i][1] += v.y;
                r.v[i][2] += v.z;
                r.v[i][3] += v.w;
            }
        }
    }
    return r;
}

/* A pass's sums meet: octet o of it in block o modulo 4. */
template <int NT>
__device__ __forceinline__ void exchange(const sums<NT> &acc, const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, const part &p, const seat &w,
                                         const block_memory &mem, int64_t into_set, int n_done) {
    const int per_factor = w.k_step * QUAD;
    const int n_sources = per_factor * ph.n_factors;
    const int octets = min((p.end - p.row) / OCTET, ph.slot_octets << ph.row_shift);
    const int mine = (octets - mem.rank + QUAD - 1) / QUAD;
    mbar_wait(&mem.sh->sums_free, (n_done & 1) ^ 1);
    if (threadIdx.x == 0) expect_bytes(&mem.sh->sums_full, mine * n_sources * shape<NT>::octet_bytes);
    send_sums<NT>(acc, w, mem, n_sources);
    mbar_wait(&mem.sh->sums_full, n_done & 1);
    for (int i = threadIdx.x >> 5; i < mine; i += WARPS) {
        const unsigned char *at = mem.sums + i * n_sources * shape<NT>::octet_bytes + lane_bytes<NT>();
        const int row = p.row + (i * QUAD + mem.rank) * OCTET;
        const octet<NT> first = add_sources<NT>(at, per_factor);
        if (ph.kind == NMLP_CUDA_QUAD_PAIR)
            share_octet<NT>(prog, mem, row - mem.cluster * prog.window, first, add_sources<NT>(at + per_factor * shape<NT>::octet_bytes, per_factor));
        else
#pragma unroll
            for (int tile = 0; tile < shape<NT>::tiles; tile++) put_tile<NT>(prog, ph, into_set, row, tile, first.v[tile]);
    }
}

/* The warp has read its sums of this pass: it tells every block, so that sums of the next may come. */
__device__ __forceinline__ void free_sums(const block_memory &mem) {
    __syncwarp();
    if ((threadIdx.x & 31) < QUAD)
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_block(shared_address(&mem.sh->sums_free), threadIdx.x & 31)) : "memory");
}

} // namespace

#endif
