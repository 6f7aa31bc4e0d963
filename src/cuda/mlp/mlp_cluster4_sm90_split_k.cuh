/* Split-K between clusters of mlp_cluster4_sm90.cu: each stores its partial sums, and all are added in fixed order. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_SPLIT_K_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_SPLIT_K_CUH

#include "cuda/mlp/mlp_cluster4_sm90_epilogue.cuh"
#include "cuda/mlp/mlp_cluster4_sm90_packed.h"

namespace {

/* What a lane has of an n8 tile, as it goes through L2: f32, whose lowest bit is a tag that tells which launch wrote
 * it; of 32 tokens packed ones, half the bytes. */
template <int NT> struct packet {
    static const bool packs = NT == 4;
    static const int values = NT * 2;
    static const int words = packs ? 4 : values;
    static const int n8_bytes = 32 * words * 4;
    static const uint32_t tag_bit = packs ? NMLP_CUDA_MLP_CLUSTER4_TAG : 1u;
};

template <int NT> __device__ __forceinline__ char *packets_of(const nmlp_cuda_mlp_cluster4_program &prog, int n8_tile) {
    return static_cast<char *>(prog.parts) + (int64_t)n8_tile * prog.n_sources * packet<NT>::n8_bytes;
}

__device__ __forceinline__ uint32_t tagged(float v, uint32_t tag) { return (__float_as_uint(v) & ~1u) | tag; }

template <int NT>
__device__ __forceinline__ void put_packet(char *to, const float (&v)[shape<NT>::tiles][4], uint32_t tag, bool wanted) {
    const float *const first = v[0];
    const float *const second = v[shape<NT>::tiles - 1];
    const uint4 w = packet<NT>::packs ? make_uint4(nmlp_cuda_mlp_cluster4_pack(first[0], first[1], tag),
                                                   nmlp_cuda_mlp_cluster4_pack(first[2], first[3], tag),
                                                   nmlp_cuda_mlp_cluster4_pack(second[0], second[1], tag),
                                                   nmlp_cuda_mlp_cluster4_pack(second[2], second[3], tag))
                                      : make_uint4(tagged(first[0], tag), tagged(first[1], tag), tagged(first[2], tag),
                                                   tagged(first[3], tag));
    if (!wanted) return;
    if (packet<NT>::words == 2)
        asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w.x), "r"(w.y) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.x), "r"(w.y), "r"(w.z),
                     "r"(w.w)
                     : "memory");
}

template <int NT>
__device__ __forceinline__ void store_partials(const sums<NT> &acc, const nmlp_cuda_mlp_cluster4_program &prog,
                                               const warp_tile &w, const block_memory &mem, bool odd) {
    const int64_t n8_bytes = (int64_t)prog.n_sources * packet<NT>::n8_bytes;
    char *to = packets_of<NT>(prog, w.row / N8) + mem.cluster * packet<NT>::n8_bytes +
               (threadIdx.x & 31) * packet<NT>::words * 4;
#pragma unroll
    for (int j = 0; j < shape<NT>::n8_max; j++, to += n8_bytes)
        put_packet<NT>(to, acc[j], odd ? packet<NT>::tag_bit : 0, j < w.n8_tiles);
}

/* Sixteen lanes read half an n8 tile of one cluster, so that the block's warps ask for that of 16 clusters at a time.
 */
enum { HALF_LANES = 16, READERS = WARPS * 32 / HALF_LANES, HALVES_AT_ONCE = 4, SOURCES_AT_ONCE = 2 };

/* Loads that a lane has in flight. */
struct pending {
    uint4 v[HALVES_AT_ONCE][SOURCES_AT_ONCE];
    uint32_t missing; /* a bit for each */
};

template <int NT> __device__ __forceinline__ void get_packet(uint4 &v, const char *from) {
    if (packet<NT>::words == 2)
        asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
    else
        asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from)
                     : "memory");
}

/* Some word is not of this launch. */
template <int NT> __device__ __forceinline__ bool is_missing(uint4 v, uint32_t tag) {
    const uint32_t first = (v.x ^ tag) | (v.y ^ tag);
    return ((packet<NT>::words == 2 ? first : first | (v.z ^ tag) | (v.w ^ tag)) & packet<NT>::tag_bit) != 0;
}

/* Everything in flight together; what is not there is loaded again. */
template <int NT>
__device__ __forceinline__ void get_all(pending &a, const char *from, int64_t halves_apart, uint32_t tag) {
    do {
        uint32_t still = 0;
#pragma unroll
        for (int i = 0; i < HALVES_AT_ONCE; i++)
#pragma unroll
            for (int k = 0; k < SOURCES_AT_ONCE; k++)
                if (a.missing >> (i * SOURCES_AT_ONCE + k) & 1)
                    get_packet<NT>(a.v[i][k], from + i * halves_apart + k * READERS * packet<NT>::n8_bytes);
#pragma unroll
        for (int i = 0; i < HALVES_AT_ONCE; i++)
#pragma unroll
            for (int k = 0; k < SOURCES_AT_ONCE; k++)
                if (is_missing<NT>(a.v[i][k], tag)) still |= 1u << (i * SOURCES_AT_ONCE + k);
        a.missing &= still;
    } while (a.missing);
}

/* Waits for the first cluster that has written: asking for everything from the start would leave the memory little time
 * for weights. */
template <int NT> __device__ __forceinline__ void poll_first(const char *from, int n_sources, uint32_t tag) {
    const int lane = threadIdx.x & 31;
    uint32_t v = ~tag;
    do {
        if (lane < n_sources)
            asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];"
                         : "=r"(v)
                         : "l"(from + lane * packet<NT>::n8_bytes)
                         : "memory");
    } while (!__any_sync(0xffffffffu, ((v ^ tag) & packet<NT>::tag_bit) == 0));
}

__device__ __forceinline__ void add_packet(float (&sum)[2], uint4 v) {
    sum[0] += __uint_as_float(v.x & ~1u);
    sum[1] += __uint_as_float(v.y & ~1u);
}

__device__ __forceinline__ void add_packet(float (&sum)[4], uint4 v) {
    sum[0] += __uint_as_float(v.x & ~1u);
    sum[1] += __uint_as_float(v.y & ~1u);
    sum[2] += __uint_as_float(v.z & ~1u);
    sum[3] += __uint_as_float(v.w & ~1u);
}

__device__ __forceinline__ void add_packed(float &a, float &b, uint32_t w) {
    const nmlp_cuda_mlp_cluster4_pair v = nmlp_cuda_mlp_cluster4_unpack(w);
    a += v.a;
    b += v.b;
}

__device__ __forceinline__ void add_packet(float (&sum)[8], uint4 v) {
    add_packed(sum[0], sum[1], v.x);
    add_packed(sum[2], sum[3], v.y);
    add_packed(sum[4], sum[5], v.z);
    add_packed(sum[6], sum[7], v.w);
}

/* Two neighbouring rows of a token that a thread adds up and hands on: of half n8 tiles one after the other,
 * [lanes][tokens]. */
template <int NT> struct row_pair {
    static const int per_half = HALF_LANES * NT;
    int half; /* number of the half n8 tile */
    int in_half;
    int row;
    int token;
};

template <int NT> __device__ __forceinline__ row_pair<NT> row_pair_of(int first, int stride) {
    row_pair<NT> r;
    r.half = threadIdx.x / row_pair<NT>::per_half;
    r.in_half = threadIdx.x % row_pair<NT>::per_half;
    const int number = first + r.half * stride;
    const int lane = number % 2 * HALF_LANES + r.in_half / NT;
    r.row = number / 2 * N8 + lane % 4 * 2;
    r.token = r.in_half % NT * 8 + lane / 4;
    return r;
}

/* What the readers have, in order. */
template <int NT> __device__ __forceinline__ float2 add_readers(const float2 *from) {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int k = 0; k < READERS; k++) {
        const float2 v = from[k * row_pair<NT>::per_half];
        sum.x += v.x;
        sum.y += v.y;
    }
    return sum;
}

/* Half n8 tiles of the part go round the blocks. */
template <int NT>
__device__ __forceinline__ void join_parts(const nmlp_cuda_mlp_cluster4_program &prog,
                                           const nmlp_cuda_mlp_cluster4_product &ph, const block_memory &mem,
                                           int64_t into_set, bool odd) {
    typedef packet<NT> P;
    const uint32_t tag = odd ? P::tag_bit : 0;
    const int n = ph.rows / N8 * 2;
    const int stride = gridDim.x;
    const int n_sources = prog.n_sources;
    const int reader = threadIdx.x / HALF_LANES;
    float2 *const all = reinterpret_cast<float2 *>(mem.x); /* [half n8 tiles][readers][lanes][tokens] */
    static_assert(HALVES_AT_ONCE * READERS * row_pair<NT>::per_half * sizeof *all <=
                      shape<NT>::tokens * NMLP_CUDA_MLP_CLUSTER4_REDUCE_BYTES,
                  "there is room for it");
    after_readers();
#pragma unroll 1
    for (int first = blockIdx.x; first < n; first += HALVES_AT_ONCE * stride) {
        const row_pair<NT> mine = row_pair_of<NT>(first, stride);
        const bool wanted = mine.half < HALVES_AT_ONCE && first + mine.half * stride < n;
        result_place place = place_of(prog, ph, into_set, mine.row, mine.token);
        residual_pair before = {};
        if (!wanted) place.n = 0;
        if (place.last && prog.residual.hidden) before = load_residual(prog.residual, mine.token, mine.row, place.n);
        float sum[HALVES_AT_ONCE][P::values] = {};
        const char *from = packets_of<NT>(prog, first / 2) + first % 2 * (P::n8_bytes / 2);
        poll_first<NT>(from, n_sources, tag);
        from += threadIdx.x % HALF_LANES * (P::words * 4);
#pragma unroll 1
        for (int source = reader; source - reader < n_sources; source += SOURCES_AT_ONCE * READERS) {
            pending a = {};
#pragma unroll
            for (int i = 0; i < HALVES_AT_ONCE; i++)
#pragma unroll
                for (int k = 0; k < SOURCES_AT_ONCE; k++)
                    if (first + i * stride < n && source + k * READERS < n_sources)
                        a.missing |= 1u << (i * SOURCES_AT_ONCE + k);
            get_all<NT>(a, from + source * P::n8_bytes, (int64_t)stride / 2 * n_sources * P::n8_bytes, tag);
#pragma unroll
            for (int i = 0; i < HALVES_AT_ONCE; i++) {
                if (first + i * stride >= n) break;
#pragma unroll
                for (int k = 0; k < SOURCES_AT_ONCE; k++)
                    if (source + k * READERS < n_sources) add_packet(sum[i], a.v[i][k]);
            }
        }
#pragma unroll
        for (int i = 0; i < HALVES_AT_ONCE; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
                all[((i * READERS + reader) * HALF_LANES + threadIdx.x % HALF_LANES) * NT + j] =
                    make_float2(sum[i][j * 2], sum[i][j * 2 + 1]);
        consumer_sync();
        float2 v = make_float2(0, 0);
        if (wanted) v = add_readers<NT>(all + mine.half * READERS * row_pair<NT>::per_half + mine.in_half);
        if (place.last)
            put_last(prog.residual, before, place, mine.token, mine.row, NT, v);
        else
            put_rows(place, v.x, v.y);
        consumer_sync(); /* X's next columns go there */
    }
}

} // namespace

#endif
