/* Sums between clusters of quad.cu: each writes what it has of the part, and what all have is added in fixed order. */
#ifndef NMLP_CUDA_QUAD_JOIN_CUH
#define NMLP_CUDA_QUAD_JOIN_CUH

#include "cuda/quad_finish.cuh"

namespace {

/* f32 whose lowest bit tells whether this launch wrote it. */
__device__ __forceinline__ uint32_t tagged(float v, uint32_t tag) { return (__float_as_uint(v) & ~1u) | tag; }

template <int NT>
__device__ __forceinline__ char *part_at(const nmlp_cuda_quad_program &prog, int piece, int source) {
    return static_cast<char *>(prog.parts) + ((int64_t)piece * prog.n_sources + source) * shape<NT>::piece_bytes + lane_bytes<NT>();
}

template <int NT>
__device__ __forceinline__ void put_parts(const sums<NT> &acc, const nmlp_cuda_quad_program &prog, const seat &w, const block_memory &mem, uint32_t tag) {
    char *to = part_at<NT>(prog, w.row / OCTET * shape<NT>::tiles, mem.cluster);
    const int64_t piece_bytes = (int64_t)prog.n_sources * shape<NT>::piece_bytes;
#pragma unroll
    for (int j = 0; j < shape<NT>::octets_max; j++) {
        if (j >= w.octets) break;
#pragma unroll
        for (int i = 0; i < shape<NT>::tiles; i++, to += piece_bytes) {
            const float *v = acc[j][i];
            if (NT == 1)
                asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(tagged(v[0], tag)), "r"(tagged(v[1], tag)) : "memory");
            else
                asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(tagged(v[0], tag)), "r"(tagged(v[1], tag)),
                             "r"(tagged(v[2], tag)), "r"(tagged(v[3], tag)) : "memory");
        }
    }
}

enum { TEAM = WARPS / 2, JOIN_AT_ONCE = 8 };

__device__ __forceinline__ void team_sync(int team) { asm volatile("bar.sync %0, 128;" ::"r"(2 + team) : "memory"); static_assert(TEAM == 4, "the barrier counts threads"); }

/* Waits for one word of each of the pieces that a warp is about to read. */
template <int NT>
__device__ __forceinline__ void await_sources(const char *from, int left, uint32_t tag) {
    const int k = threadIdx.x & 31;
    const char *word = from - lane_bytes<NT>() + k * TEAM * shape<NT>::piece_bytes + shape<NT>::piece_bytes - 4;
    uint32_t v = tag;
    do {
        if (k < JOIN_AT_ONCE && k * TEAM < left) asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
    } while ((v & 1) != tag);
    __syncwarp();
}

/* What a warp has to add of one piece: every TEAM-th cluster's, awaited, in order. */
template <int NT>
__device__ __forceinline__ float4 join_some(const nmlp_cuda_quad_program &prog, int piece, int member, uint32_t tag) {
    const int n_sources = prog.n_sources;
    const char *from = part_at<NT>(prog, piece, member);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int first = member; first < n_sources; first += TEAM * JOIN_AT_ONCE, from += TEAM * JOIN_AT_ONCE * shape<NT>::piece_bytes) {
        uint4 v[JOIN_AT_ONCE];
        uint32_t all;
        uint32_t some;
        if (NT > 1) await_sources<NT>(from, n_sources - first, tag);
        do {
            all = some = tag;
#pragma unroll
            for (int k = 0; k < JOIN_AT_ONCE; k++) {
                v[k] = make_uint4(tag, tag, tag, tag);
                if (first + k * TEAM >= n_sources) continue;
                if (NT == 1)
                    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(v[k].x), "=r"(v[k].y) : "l"(from + k * TEAM * shape<NT>::piece_bytes) : "memory");
                else
                    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v[k].x), "=r"(v[k].y), "=r"(v[k].z), "=r"(v[k].w) : "l"(from + k * TEAM * shape<NT>::piece_bytes) : "memory");
            }
#pragma unroll
            for (int k = 0; k < JOIN_AT_ONCE; k++) {
                all &= v[k].x & v[k].y & v[k].z & v[k].w;
                some |= v[k].x | v[k].y | v[k].z | v[k].w;
            }
        } while (((all ^ some) & 1) != 0);
#pragma unroll
        for (int k = 0; k < JOIN_AT_ONCE; k++) {
            if (first + k * TEAM >= n_sources) continue;
            sum.x += __uint_as_float(v[k].x & ~1u);
            sum.y += __uint_as_float(v[k].y & ~1u);
            sum.z += __uint_as_float(v[k].z & ~1u);
            sum.w += __uint_as_float(v[k].w & ~1u);
        }
    }
    return sum;
}

/* Tiles of the part's octets go round the teams of all blocks; a team's first warp adds what the others have. */
template <int NT>
__device__ __forceinline__ void join_parts(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, const block_memory &mem, int64_t into_set, uint32_t tag) {
    const int n = ph.rows / OCTET * shape<NT>::tiles;
    const int team = (threadIdx.x >> 5) / TEAM;
    const int member = (threadIdx.x >> 5) % TEAM;
    after_readers();
    float4 *all = reinterpret_cast<float4 *>(mem.x) + team * TEAM * 32 + (threadIdx.x & 31);
#pragma unroll 1
    for (int i = blockIdx.x + team * gridDim.x; i < n; i += WARPS / TEAM * gridDim.x) {
        all[member * 32] = join_some<NT>(prog, i, member, tag);
        team_sync(team);
        if (member == 0) {
            float sum[4] = {};
#pragma unroll
            for (int k = 0; k < TEAM; k++) {
                const float4 v = all[k * 32];
                sum[0] += v.x;
                sum[1] += v.y;
                sum[2] += v.z;
                sum[3] += v.w;
            }
            put_tile<NT>(prog, ph, into_set, i / shape<NT>::tiles * OCTET, i % shape<NT>::tiles, sum);
        }
        team_sync(team); /* what was added has been read */
    }
    multipliers_sync(); /* X's next columns go there */
}

} // namespace

#endif
