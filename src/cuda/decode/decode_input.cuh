/* Bringing a phase's input rows into shared memory as bf16. A value is kept as the sum of two bf16 numbers, which the
 * tensor cores multiply one after the other: activations then carry 16 bits of mantissa, and only the weights are what
 * the checkpoint rounded. */
#ifndef NMLP_CUDA_DECODE_DECODE_INPUT_CUH
#define NMLP_CUDA_DECODE_DECODE_INPUT_CUH

#include <cuda_bf16.h>

#include "cuda/decode/decode_ring.cuh"

enum {
    CONSUMERS = NMLP_CUDA_DECODE_CONSUMER_WARPS * 32,
    PLACE = 2 * CONSUMERS /* columns the consumer warps read at a time, two per lane */
};

/* A run of units of a matmul phase. */
struct unit_range {
    int groups; /* units per split-K chunk */
    int begin;
    int end;
};

/* Shared memory that is not ring, input or sums. */
struct shared_head {
    uint64_t full[NMLP_CUDA_DECODE_SMALL_STAGES_MAX];
    uint64_t empty[NMLP_CUDA_DECODE_SMALL_STAGES_MAX];
    uint64_t sums_full[2];
    uint64_t sums_empty[2];
    uint64_t meeting;                /* of checking builds */
    nmlp_cuda_decode_phase phase[2]; /* this one and the next */
    unit_range units[2];
    int phase_index[2];
    bool is_last[2];              /* of the launch */
    uint32_t tag_base;            /* what this launch adds to phase numbers */
    nmlp_cuda_decode_state state; /* as it was before the step */
#ifdef NMLP_CUDA_CLOCKS
    long long begin_clock; /* one for all warps */
#endif
    uint64_t squared;                                    /* squares below are there */
    float squares[NMLP_CUDA_DECODE_ROWS_MAX][CONSUMERS]; /* of the row that is normalised, by thread */
};

__device__ __forceinline__ void consumer_sync() {
    asm volatile("bar.sync 1, 256;" ::: "memory");
    static_assert(CONSUMERS == 256, "consumer_sync counts threads");
}

__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* Keys of one attention unit when there are n_keys. */
__device__ __forceinline__ int keys_per_chunk(int n_keys) {
    const int even = (n_keys + NMLP_CUDA_DECODE_KEY_CHUNKS_MAX - 1) / NMLP_CUDA_DECODE_KEY_CHUNKS_MAX;
    const int chunk = (even + NMLP_CUDA_DECODE_KEYS - 1) / NMLP_CUDA_DECODE_KEYS * NMLP_CUDA_DECODE_KEYS;
    return max(chunk, (int)NMLP_CUDA_DECODE_CHUNK_KEYS_MIN);
}

/* ---- tagged words ---- */

typedef unsigned long long word; /* value below, tag above */

__device__ __forceinline__ word make_word(uint32_t value, uint32_t tag) { return (word)tag << 32 | value; }

__device__ __forceinline__ void put_word(word *to, uint32_t value, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(make_word(value, tag)) : "memory");
}

__device__ __forceinline__ void put_words(word *to, word a, word b) {
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}

/* Two neighbours; `from` on 16 bytes. */
__device__ __forceinline__ void get_words(word (&w)[2], const word *from) {
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(from) : "memory");
}

__device__ __forceinline__ word get_word(const word *from) {
    word w;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(w) : "l"(from) : "memory");
    return w;
}

__device__ __forceinline__ float get_float(const word *from, uint32_t tag) {
    word w;
    do {
        w = get_word(from);
    } while ((uint32_t)(w >> 32) != tag);
    return __uint_as_float((uint32_t)w);
}

__device__ __forceinline__ float2 floats_of(const word (&w)[2]) {
    return make_float2(__uint_as_float((uint32_t)w[0]), __uint_as_float((uint32_t)w[1]));
}

/* Two neighbouring words of each of N places, at(i), neighbours to neighbouring lanes, so that a warp loads whole
 * sectors. All are loaded at once, and again until all are written: few instructions, because they stand between a
 * value's arrival and its use. */
template <int N, class At> __device__ __forceinline__ void get_pairs(float2 (&v)[N], const At at, uint32_t tag) {
    word w[N][2];
    uint32_t wrong;
    do {
        wrong = 0;
#pragma unroll
        for (int i = 0; i < N; i++) get_words(w[i], at(i));
#pragma unroll
        for (int i = 0; i < N; i++) wrong |= ((uint32_t)(w[i][0] >> 32) ^ tag) | ((uint32_t)(w[i][1] >> 32) ^ tag);
    } while (wrong);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = floats_of(w[i]);
}

/* Rows in shared memory, times a power of two that products are divided by again (decode_quant.cuh). */
struct staged_rows {
    __nv_bfloat16 *at;
    int pitch;
    float scale;
};

/* Two columns of a token as two bf16 numbers each: row 2i has the high halves of token i, row 2i + 1 the low halves. Of
 * every 32 columns, pair t of eight neighbours c stands at place 4t + c, so that the four pairs a lane multiplies lie
 * together. */
__device__ __forceinline__ void store2(const staged_rows &rows, int token, int col, float2 v) {
    const int at = 2 * token * rows.pitch + (col & ~31) + (col & 6) * 4 + (col >> 3 & 3) * 2;
    v.x *= rows.scale;
    v.y *= rows.scale;
    const __nv_bfloat162 high = __floats2bfloat162_rn(v.x, v.y);
    *reinterpret_cast<__nv_bfloat162 *>(rows.at + at) = high;
    *reinterpret_cast<__nv_bfloat162 *>(rows.at + at + rows.pitch) =
        __floats2bfloat162_rn(v.x - __low2float(high), v.y - __high2float(high));
}

__device__ __forceinline__ void add2(float2 &a, float2 b) {
    a.x += b.x;
    a.y += b.y;
}

/* N places of two values, PLACE columns apart from `col` on, that another phase or an earlier launch wrote; zeros past
 * the last. */
template <int N>
__device__ __forceinline__ void get_values(float2 (&v)[N], const nmlp_cuda_decode_operand *op, int64_t row_at, int col,
                                           uint32_t tag) {
    const int cols = op->x_cols;
    const int last = (cols - 1) & ~1; /* requested in place of those past it */
    if (op->x_written_by) {
        const word *x = static_cast<const word *>(op->x) + row_at;
        get_pairs<N>(v, [=](int i) { return x + min(col + i * PLACE, last); }, tag);
    } else {
        const float *x = static_cast<const float *>(op->x) + row_at;
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = __ldcg(reinterpret_cast<const float2 *>(x + min(col + i * PLACE, last)));
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (col + i * PLACE > last) v[i] = make_float2(0, 0);
}

/* The same of a row of the embedding. */
template <int N>
__device__ __forceinline__ void get_embedded(float2 (&v)[N], const __nv_bfloat16 *row, int col, int cols) {
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = col + i * PLACE < cols
                   ? __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(row + col + i * PLACE))
                   : make_float2(0, 0);
}

/* Rows of one part, few of them: a thread's loads are all in flight before the first is used, because it has nothing
 * else to do than wait for them. */
template <int PLACES>
__device__ __forceinline__ void stage_plain(const nmlp_cuda_decode_operand *op, const staged_rows &rows, int s, int k0,
                                            int len, uint32_t tag) {
#pragma unroll 1
    for (int row = 0; row < s; row++) {
#pragma unroll 1
        for (int base = threadIdx.x * 2; base < len; base += PLACE * PLACES) {
            float2 v[PLACES];
            get_values<PLACES>(v, op, (int64_t)row * op->x_pitch, k0 + base, tag);
#pragma unroll
            for (int i = 0; i < PLACES; i++)
                if (base + i * PLACE < len) store2(rows, row, base + i * PLACE, v[i]);
        }
    }
}

/* The same for rows of up to PARTS parts. */
template <int PARTS, int PLACES>
__device__ __forceinline__ void stage_parts(const nmlp_cuda_decode_operand *op, const staged_rows &rows, int s, int k0,
                                            int len, uint32_t tag) {
    const word *x = static_cast<const word *>(op->x) + k0;
    const int64_t stride = op->x_part_stride;
    const int parts = op->x_parts;
    const int last = (op->x_cols - k0 - 1) & ~1;
#pragma unroll 1
    for (int row = 0; row < s; row++, x += op->x_pitch) {
#pragma unroll 1
        for (int base = threadIdx.x * 2; base < len; base += PLACE * PLACES) {
            float2 v[PLACES * PARTS];
            get_pairs<PLACES * PARTS>(
                v, [=](int i) { return x + min(i % PARTS, parts - 1) * stride + min(base + i / PARTS * PLACE, last); },
                tag);
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
                const int col = base + i * PLACE;
#pragma unroll
                for (int p = 1; p < PARTS; p++)
                    if (p < parts) add2(v[i * PARTS], v[i * PARTS + p]);
                if (col < len) store2(rows, row, col, col > last ? make_float2(0, 0) : v[i * PARTS]);
            }
        }
    }
}

/* x * weight goes to shared memory; 1/rms multiplies the result. The squares run over the whole row, so the first
 * piece's are those of the phase; the epilogue warp adds them while the others multiply. */
template <int PLACES>
__device__ __forceinline__ void stage_norm(const nmlp_cuda_decode_phase *ph, const nmlp_cuda_decode_operand *op,
                                           const staged_rows &rows, int s, int k0, int len, bool first, shared_head *sh,
                                           uint32_t tag) {
    const float *weight = ph->norm_weight;
    const int k = op->k;
    for (int row = 0; row < s; row++) {
        float sum = 0;
        for (int base = threadIdx.x * 2; base < k; base += PLACE * PLACES) {
            float2 v[PLACES];
            float2 w[PLACES];
#pragma unroll
            for (int i = 0; i < PLACES; i++)
                w[i] = base + i * PLACE < k ? __ldg(reinterpret_cast<const float2 *>(weight + base + i * PLACE))
                                            : make_float2(0, 0);
            if (ph->embedding)
                get_embedded<PLACES>(v,
                                     static_cast<const __nv_bfloat16 *>(ph->embedding) + (int64_t)sh->state.token * k,
                                     base, op->x_cols);
            else
                get_values<PLACES>(v, op, (int64_t)row * op->x_pitch, base, tag);
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
                const int col = base + i * PLACE;
                sum += v[i].x * v[i].x + v[i].y * v[i].y;
                if (col >= k0 && col < k0 + len)
                    store2(rows, row, col - k0, make_float2(v[i].x * w[i].x, v[i].y * w[i].y));
            }
        }
        if (first) sh->squares[row][threadIdx.x] = sum;
    }
    if (first) warp_arrive(&sh->squared);
}

/* A warp's four places of 64 columns of attention's result. A lane follows the softmax of one head of one place, and
 * all take its weights from there. */
enum { HEAD_PLACES = 4, HEAD_COLS = 64, HEADS_FOLLOWED = 32 / HEAD_PLACES };

struct head_rows {
    float top; /* of the head this lane follows */
    float sum;
    float2 value[HEAD_PLACES];
    int follower[HEAD_PLACES]; /* the lane that follows the head of this lane's columns */
};

/* Values and softmax of PIECES pieces, in one round trip. */
template <int PIECES>
__device__ __forceinline__ void add_pieces(head_rows &r, const word *values, int64_t stride,
                                           const int (&cols)[HEAD_PLACES], const word *softmax, int softmax_stride,
                                           uint32_t tag) {
    const uint32_t ALL = 0xffffffffu;
    float2 v[PIECES * (HEAD_PLACES + 1)];
    get_pairs<PIECES *(HEAD_PLACES + 1)>(
        v,
        [&](int j) {
            const int piece = j / (HEAD_PLACES + 1);
            const int i = j % (HEAD_PLACES + 1);
            return i == HEAD_PLACES ? softmax + piece * softmax_stride : values + piece * stride + cols[i];
        },
        tag);
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const float2 *here = v + piece * (HEAD_PLACES + 1);
        const float top = fmaxf(r.top, here[HEAD_PLACES].x);
        const float old_weight = __expf(r.top - top);
        const float weight = __expf(here[HEAD_PLACES].x - top);
        r.top = top;
        r.sum = r.sum * old_weight + here[HEAD_PLACES].y * weight;
#pragma unroll
        for (int i = 0; i < HEAD_PLACES; i++) {
            const float o = __shfl_sync(ALL, old_weight, r.follower[i]);
            const float w = __shfl_sync(ALL, weight, r.follower[i]);
            r.value[i] = make_float2(r.value[i].x * o + here[i].x * w, r.value[i].y * o + here[i].y * w);
        }
    }
}

/* The pieces of attention become one row: each is weighted by its share of the softmax. One token only. */
__device__ __forceinline__ void stage_heads(const nmlp_cuda_decode_phase *ph, const nmlp_cuda_decode_operand *op,
                                            const staged_rows &rows, int k0, int len, int n_keys, uint32_t tag) {
    static_assert(HEADS_FOLLOWED * 8 >= HEAD_COLS, "heads have 8 columns at least");
    int lane = threadIdx.x & 31;
    asm volatile("" : "+r"(lane)); /* what depends on it is computed here, not kept in registers through all phases */
    const int per_chunk = keys_per_chunk(n_keys);
    const int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    const int64_t stride = op->x_part_stride;
    const int dim = ph->head_dim;
    const int n_heads = ph->n_heads;
    const int end = min(len, op->x_cols - k0);
    for (int base = (threadIdx.x >> 5) * HEAD_COLS; base < len; base += PLACE * HEAD_PLACES) {
        const int place = k0 + base + lane / HEADS_FOLLOWED * PLACE;
        const int head = min(min(place / dim + lane % HEADS_FOLLOWED, (place + HEAD_COLS - 1) / dim), n_heads - 1);
        int cols[HEAD_PLACES];
        head_rows r;
        r.top = -INFINITY;
        r.sum = 0;
#pragma unroll
        for (int i = 0; i < HEAD_PLACES; i++) {
            const int first = k0 + base + i * PLACE;
            r.value[i] = make_float2(0, 0);
            r.follower[i] = i * HEADS_FOLLOWED + (first + lane * 2) / dim - first / dim;
            cols[i] = min(base + i * PLACE + lane * 2, end - 2); /* those past the last ask for it */
        }
        const word *values = static_cast<const word *>(op->x) + k0;
        const word *softmax = static_cast<const word *>(ph->softmax) + NMLP_CUDA_DECODE_SOFTMAX_STRIDE * head;
        const int softmax_stride = NMLP_CUDA_DECODE_SOFTMAX_STRIDE * n_heads;
        int c = 0;
        for (; c + 2 <= n_chunks; c += 2)
            add_pieces<2>(r, values + c * stride, stride, cols, softmax + c * softmax_stride, softmax_stride, tag);
        if (c < n_chunks)
            add_pieces<1>(r, values + c * stride, stride, cols, softmax + c * softmax_stride, softmax_stride, tag);
#pragma unroll
        for (int i = 0; i < HEAD_PLACES; i++) {
            const int col = base + i * PLACE + lane * 2;
            const float total = __shfl_sync(0xffffffffu, r.sum, r.follower[i]);
            const float scale = col < end ? 1.0f / total : 0.0f;
            if (col < len) store2(rows, 0, col, make_float2(r.value[i].x * scale, r.value[i].y * scale));
        }
    }
}

/* Inputs that are not attention's; WIDE: long rows are normalised. */
template <bool WIDE>
__device__ __forceinline__ void stage_segments(const nmlp_cuda_decode_phase *ph, const staged_rows &rows, int s, int k0,
                                               int n_segments, bool first, shared_head *sh) {
#pragma unroll 1
    for (int i = 0; i < n_segments; i++) {
        const nmlp_cuda_decode_operand *op = &ph->op[i];
        const staged_rows to = {rows.at + i * ph->k_chunk, rows.pitch, rows.scale};
        const int len = min(ph->k_chunk, op->k - k0);
        const uint32_t tag = op->x_written_by ? sh->tag_base + (uint32_t)op->x_written_by : 0;
        if (op->input == NMLP_CUDA_DECODE_NORM)
            stage_norm<WIDE ? 8 : 4>(ph, op, to, s, k0, len, first, sh, tag);
        else if (op->x_parts == 2)
            stage_parts<2, 3>(op, to, s, k0, len, tag);
        else if (op->x_parts == 3)
            stage_parts<3, 3>(op, to, s, k0, len, tag);
        else if (op->x_parts > 3)
            stage_parts<4, 2>(op, to, s, k0, len, tag);
        else if (len <= 4 * PLACE)
            stage_plain<4>(op, to, s, k0, len, tag);
        else
            stage_plain<8>(op, to, s, k0, len, tag);
    }
}

/* Piece `piece` of K of every input, side by side, `first` in this phase; ends with the rows visible to all consumers.
 * `meanwhile` is done before the first of them is waited for, where registers allow. */
template <class Meanwhile>
__device__ __forceinline__ void stage_input(const nmlp_cuda_decode_phase *ph, __nv_bfloat16 *to, float scale, int s,
                                            int piece, bool first, shared_head *sh, const Meanwhile meanwhile) {
    const int n_segments = ph->n_matrices == 2 && !ph->same_x ? 2 : 1;
    const staged_rows rows = {to, n_segments * ph->k_chunk + NMLP_CUDA_DECODE_ROW_SKEW, scale};
    const int k0 = piece * ph->k_chunk;
    if (ph->op[0].input == NMLP_CUDA_DECODE_HEADS) {
        const int len = min(ph->k_chunk, ph->op[0].k - k0);
        stage_heads(ph, &ph->op[0], rows, k0, len, sh->state.length + 1,
                    sh->tag_base + (uint32_t)ph->op[0].x_written_by);
    } else if (ph->op[0].input == NMLP_CUDA_DECODE_NORM && ph->op[0].k > 4 * PLACE) {
        stage_segments<true>(ph, rows, s, k0, n_segments, first, sh);
    } else {
        meanwhile();
        stage_segments<false>(ph, rows, s, k0, n_segments, first, sh);
    }
    consumer_sync();
}

#endif
