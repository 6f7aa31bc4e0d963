/* What becomes of sums within a cluster of quad.cu: added over warps and blocks in fixed order, and handed on. */
#ifndef NMLP_CUDA_QUAD_FINISH_CUH
#define NMLP_CUDA_QUAD_FINISH_CUH

#include "cuda/quad_multiply.cuh"

namespace {

/* The quotient is off by two units at most, without a branch for each. */
__device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }

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

/* Where two neighbouring rows of a token go: to all clusters for the next product, or to the MLP's result. */
struct result_place {
    char *to;
    int n; /* of the two, that are wanted */
    bool last;
};

__device__ __forceinline__ result_place place_of(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, int64_t into_set, int row, int token) {
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
            asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(place.to), "r"(*reinterpret_cast<const uint32_t *>(&pair)) : "memory");
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

/* Sums of one tile of an octet. */
template <int NT>
__device__ __forceinline__ void add_sources(float (&r)[4], const unsigned char *at, int n) {
    r[0] = r[1] = r[2] = r[3] = 0;
#pragma unroll 4
    for (int k = 0; k < n; k++, at += shape<NT>::octet_bytes) {
        if (NT == 1) {
            const float2 v = *reinterpret_cast<const float2 *>(at);
            r[0] += v.x;
            r[1] += v.y;
        } else {
            const float4 v = *reinterpret_cast<const float4 *>(at);
            r[0] += v.x;
            r[1] += v.y;
            r[2] += v.z;
            r[3] += v.w;
        }
    }
}

/* Gate's and up's sums of an octet become the part's X. */
template <int NT>
__device__ __forceinline__ void finish_pair(const nmlp_cuda_quad_program &prog, const block_memory &mem, const unsigned char *sums, int row, int per_factor) {
    octet<NT> gate;
    octet<NT> up;
#pragma unroll
    for (int tile = 0; tile < shape<NT>::tiles; tile++) {
        add_sources<NT>(gate.v[tile], sums + tile * shape<NT>::piece_bytes, per_factor);
        add_sources<NT>(up.v[tile], sums + tile * shape<NT>::piece_bytes + per_factor * shape<NT>::octet_bytes, per_factor);
    }
    share_octet<NT>(prog, mem, row - mem.cluster * prog.window, gate, up);
}

/* A tile's sums go to all clusters, or are the MLP's. */
template <int NT>
__device__ __forceinline__ void finish_tile(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, int64_t into_set, const unsigned char *sums, int row,
                                            int tile, int n_sources) {
    result_place place[halves<NT>::n];
    float v[4];
#pragma unroll
    for (int h = 0; h < halves<NT>::n; h++) place[h] = place_of(prog, ph, into_set, row + (threadIdx.x & 3) * 2, token_of<NT>(tile, h));
    add_sources<NT>(v, sums + tile * shape<NT>::piece_bytes, n_sources);
#pragma unroll
    for (int h = 0; h < halves<NT>::n; h++) put_rows(place[h], v[h * 2], v[h * 2 + 1]);
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
    const int parts = ph.kind == NMLP_CUDA_QUAD_PAIR ? 1 : shape<NT>::tiles; /* of an octet, for a warp each */
    for (int i = threadIdx.x >> 5; i < mine * parts; i += WARPS) {
        const unsigned char *at = mem.sums + i / parts * n_sources * shape<NT>::octet_bytes + lane_bytes<NT>();
        const int row = p.row + (i / parts * QUAD + mem.rank) * OCTET;
        if (ph.kind == NMLP_CUDA_QUAD_PAIR)
            finish_pair<NT>(prog, mem, at, row, per_factor);
        else
            finish_tile<NT>(prog, ph, into_set, at, row, i % parts, n_sources);
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
