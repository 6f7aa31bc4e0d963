/* Bringing a phase's input rows into shared memory as bf16. A value is kept as the sum of two bf16 numbers, which the tensor
 * cores multiply one after the other: activations then carry 16 bits of mantissa, and only the weights are what the checkpoint rounded. */
#ifndef NMLP_CUDA_STREAM_INPUT_CUH
#define NMLP_CUDA_STREAM_INPUT_CUH

#include <cuda_bf16.h>

#include "cuda/stream_ring.cuh"

enum { CONSUMERS = NMLP_CUDA_CONSUMER_WARPS * 32 };

/* A run of units of a matmul phase. */
struct unit_range {
    int groups; /* units per piece of K */
    int begin;
    int end;
};

/* Shared memory that is not ring, input or sums. */
struct shared_head {
    uint64_t full[NMLP_CUDA_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_SLOTS_MAX];
    uint64_t sums_full[2];
    uint64_t sums_empty[2];
    uint64_t meeting; /* of checking builds */
    nmlp_cuda_phase phase[2]; /* this one and the next */
    unit_range units[2];
    uint32_t tag_base; /* what this launch adds to phase numbers */
    float row_scale[NMLP_CUDA_S_MAX];
    float warp_sum[NMLP_CUDA_CONSUMER_WARPS];
};

__device__ __forceinline__ void consumer_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); static_assert(CONSUMERS == 256, "consumer_sync counts threads"); }

__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

/* Keys of one attention unit when there are n_keys. */
__device__ __forceinline__ int keys_per_chunk(int n_keys) {
    int chunk = (n_keys + NMLP_CUDA_KEY_CHUNKS_MAX - 1) / NMLP_CUDA_KEY_CHUNKS_MAX;
    return chunk < NMLP_CUDA_CHUNK_KEYS_MIN ? NMLP_CUDA_CHUNK_KEYS_MIN : chunk;
}

__device__ __forceinline__ float4 load4(const float *p) { return __ldcg(reinterpret_cast<const float4 *>(p)); }

/* ---- tagged words ---- */

typedef unsigned long long word; /* value below, tag above */

__device__ __forceinline__ word make_word(uint32_t value, uint32_t tag) { return (word)tag << 32 | value; }

__device__ __forceinline__ void put_word(word *to, uint32_t value, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(make_word(value, tag)) : "memory");
}

__device__ __forceinline__ void put_words(word *to, word a, word b) {
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}

__device__ __forceinline__ void get_words(word &a, word &b, const word *from) {
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}

/* Two neighbours; `from` on 16 bytes. */
__device__ __forceinline__ float2 get_pair(const word *from, uint32_t tag) {
    word a, b;
    do {
        get_words(a, b, from);
    } while ((uint32_t)(a >> 32) != tag || (uint32_t)(b >> 32) != tag);
    return make_float2(__uint_as_float((uint32_t)a), __uint_as_float((uint32_t)b));
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

/* Four neighbouring words of each of N places, at(i) (NULL: zeros). All are asked for at once, and again until all are written. */
template <int N, class At>
__device__ __forceinline__ void get_quads(uint4 (&v)[N], const At at, uint32_t tag) {
    word w[N][4];
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const word *from = at(i);
            w[i][0] = w[i][1] = w[i][2] = w[i][3] = make_word(0, tag);
            if (!from) continue;
            get_words(w[i][0], w[i][1], from);
            get_words(w[i][2], w[i][3], from + 2);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) there = there && (uint32_t)(w[i][j] >> 32) == tag;
    } while (!there);
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = make_uint4((uint32_t)w[i][0], (uint32_t)w[i][1], (uint32_t)w[i][2], (uint32_t)w[i][3]);
}

__device__ __forceinline__ float4 as_floats(uint4 v) {
    return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

__device__ __forceinline__ void store4(__nv_bfloat16 *rows, int pitch, int s, int row, int col, float4 v) {
    union {
        __nv_bfloat162 pair[2];
        uint2 bits;
    } hi, lo;
    hi.pair[0] = __floats2bfloat162_rn(v.x, v.y);
    hi.pair[1] = __floats2bfloat162_rn(v.z, v.w);
    *reinterpret_cast<uint2 *>(rows + row * pitch + col) = hi.bits;
    lo.pair[0] = __floats2bfloat162_rn(v.x - __low2float(hi.pair[0]), v.y - __high2float(hi.pair[0]));
    lo.pair[1] = __floats2bfloat162_rn(v.z - __low2float(hi.pair[1]), v.w - __high2float(hi.pair[1]));
    *reinterpret_cast<uint2 *>(rows + (s + row) * pitch + col) = lo.bits;
}

__device__ __forceinline__ void add4(float4 &a, float4 b) {
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
}

/* N places of four values, `place` columns apart from `col` on, that another phase or an earlier launch wrote. */
template <int N>
__device__ __forceinline__ void get_values(float4 (&v)[N], const nmlp_cuda_operand *op, int64_t row_at, int col, int place, uint32_t tag) {
    if (op->x_written_by) {
        const word *x = static_cast<const word *>(op->x) + row_at;
        const int cols = op->x_cols;
        uint4 bits[N];
        get_quads<N>(bits, [=](int i) { return col + i * place < cols ? x + col + i * place : nullptr; }, tag);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = as_floats(bits[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = col + i * place < op->x_cols ? load4(static_cast<const float *>(op->x) + row_at + col + i * place)
                                                : make_float4(0, 0, 0, 0);
    }
}

/* Plain rows of one part, few of them: a thread's loads are all under way before the first is used, because it has nothing else to do than wait for them. */
__device__ void stage_plain(const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s, int k0, int len, uint32_t tag) {
    const int PLACES = 4;
#pragma unroll 1
    for (int row = 0; row < s; row++) {
#pragma unroll 1
        for (int base = threadIdx.x * 4; base < len; base += CONSUMERS * 4 * PLACES) {
            float4 v[PLACES];
            get_values<PLACES>(v, op, (int64_t)row * op->x_pitch, k0 + base, CONSUMERS * 4, tag);
#pragma unroll
            for (int i = 0; i < PLACES; i++)
                if (base + i * CONSUMERS * 4 < len) store4(rows, pitch, s, row, base + i * CONSUMERS * 4, v[i]);
        }
    }
}

/* The same for rows of up to four parts. */
__device__ void stage_parts(const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s, int k0, int len, uint32_t tag) {
    const int PARTS = 4;
    const word *x = static_cast<const word *>(op->x) + k0;
    const int64_t stride = op->x_part_stride;
    const int parts = op->x_parts;
    const int cols = op->x_cols;
#pragma unroll 1
    for (int row = 0; row < s; row++, x += op->x_pitch) {
#pragma unroll 1
        for (int base = threadIdx.x * 4; base < len; base += CONSUMERS * 4 * 2) {
            uint4 bits[2 * PARTS];
            get_quads<2 * PARTS>(bits,
                                 [=](int i) {
                                     int col = base + i / PARTS * CONSUMERS * 4;
                                     bool wanted = i % PARTS < parts && k0 + col < cols && col < len;
                                     return wanted ? x + i % PARTS * stride + col : nullptr;
                                 },
                                 tag);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 v = as_floats(bits[i * PARTS]);
#pragma unroll
                for (int p = 1; p < PARTS; p++) add4(v, as_floats(bits[i * PARTS + p]));
                if (base + i * CONSUMERS * 4 < len) store4(rows, pitch, s, row, base + i * CONSUMERS * 4, v);
            }
        }
    }
}

/* x * weight goes to shared memory at once; 1/rms is kept per row and multiplies the result. The sum runs over the whole row. */
__device__ void stage_norm(const nmlp_cuda_phase *ph, const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int s,
                           int k0, int len, shared_head *sh, uint32_t tag) {
    const int BATCH = 4;
    for (int row = 0; row < s; row++) {
        float sum = 0;
        const float *weight = ph->norm_weight;
        int k = op->k;
        for (int base = threadIdx.x * 4; base < k; base += CONSUMERS * 4 * BATCH) {
            float4 v[BATCH];
            float4 w[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int col = base + i * CONSUMERS * 4;
                w[i] = col < k ? __ldg(reinterpret_cast<const float4 *>(weight + col)) : make_float4(0, 0, 0, 0);
            }
            get_values<BATCH>(v, op, (int64_t)row * op->x_pitch, base, CONSUMERS * 4, tag);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int col = base + i * CONSUMERS * 4;
                sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
                v[i] = make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w);
                if (col >= k0 && col < k0 + len) store4(rows, pitch, s, row, col - k0, v[i]);
            }
        }
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) sh->warp_sum[threadIdx.x >> 5] = sum;
        consumer_sync();
        if (threadIdx.x == 0) {
            float all = 0;
            for (int w = 0; w < NMLP_CUDA_CONSUMER_WARPS; w++) all += sh->warp_sum[w];
            sh->row_scale[row] = rsqrtf(all / (float)ph->norm_dim + ph->eps);
        }
        if (row + 1 < s) consumer_sync();
    }
}

/* One chunk's share of four columns, and the largest score and the sum it goes with. */
struct head_piece {
    word value[4];
    word softmax[2];
};

__device__ __forceinline__ bool is_there(const head_piece &p, uint32_t tag) {
    bool there = (uint32_t)(p.softmax[0] >> 32) == tag && (uint32_t)(p.softmax[1] >> 32) == tag;
#pragma unroll
    for (int i = 0; i < 4; i++) there = there && (uint32_t)(p.value[i] >> 32) == tag;
    return there;
}

/* Four columns of one head, from attention's pieces. */
struct head_sum {
    float top;
    float sum;
    float4 value;
};

__device__ __forceinline__ void add_piece(head_sum &s, const head_piece &p) {
    const float piece_top = __uint_as_float((uint32_t)p.softmax[0]);
    const float top = fmaxf(s.top, piece_top);
    const float before = __expf(s.top - top);
    const float here = __expf(piece_top - top);
    s.top = top;
    s.sum = s.sum * before + __uint_as_float((uint32_t)p.softmax[1]) * here;
    s.value.x = s.value.x * before + __uint_as_float((uint32_t)p.value[0]) * here;
    s.value.y = s.value.y * before + __uint_as_float((uint32_t)p.value[1]) * here;
    s.value.z = s.value.z * before + __uint_as_float((uint32_t)p.value[2]) * here;
    s.value.w = s.value.w * before + __uint_as_float((uint32_t)p.value[3]) * here;
}

/* The pieces of attention become one row: each is weighted by its share of the softmax. One token only. Values and softmax of several pieces come in one
 * round trip. */
__device__ void stage_heads(const nmlp_cuda_phase *ph, const nmlp_cuda_operand *op, __nv_bfloat16 *rows, int pitch, int k0,
                            int len, int n_keys, uint32_t tag) {
    const int PLACES = 2;
    const int PIECES = 2;
    const int per_chunk = keys_per_chunk(n_keys);
    const int n_chunks = (n_keys + per_chunk - 1) / per_chunk;
    const int64_t stride = op->x_part_stride;
    const int last = op->x_cols - 4; /* places past it read there and are made zero */
    for (int base = threadIdx.x * 4; base < len; base += CONSUMERS * 4 * PLACES) {
        head_sum sums[PLACES];
        const word *value[PLACES];
        const word *softmax[PLACES];
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            const int col = min(k0 + base + i * CONSUMERS * 4, last);
            sums[i] = {-INFINITY, 0.0f, make_float4(0, 0, 0, 0)};
            value[i] = static_cast<const word *>(op->x) + col;
            softmax[i] = static_cast<const word *>(ph->softmax) + 2 * (col / ph->head_dim);
        }
        for (int c0 = 0; c0 < n_chunks; c0 += PIECES) {
            head_piece pieces[PIECES][PLACES];
            bool there;
            do {
                there = true;
#pragma unroll
                for (int j = 0; j < PIECES; j++) {
                    const int c = min(c0 + j, n_chunks - 1);
#pragma unroll
                    for (int i = 0; i < PLACES; i++) {
                        get_words(pieces[j][i].value[0], pieces[j][i].value[1], value[i] + c * stride);
                        get_words(pieces[j][i].value[2], pieces[j][i].value[3], value[i] + c * stride + 2);
                        get_words(pieces[j][i].softmax[0], pieces[j][i].softmax[1], softmax[i] + 2 * c * ph->n_heads);
                    }
                }
#pragma unroll
                for (int j = 0; j < PIECES; j++)
#pragma unroll
                    for (int i = 0; i < PLACES; i++) there = there && is_there(pieces[j][i], tag);
            } while (!there);
#pragma unroll
            for (int j = 0; j < PIECES; j++)
#pragma unroll
                for (int i = 0; i < PLACES; i++)
                    if (c0 + j < n_chunks) add_piece(sums[i], pieces[j][i]);
        }
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            const int place = base + i * CONSUMERS * 4;
            if (place >= len) continue;
            const float scale = k0 + place <= last ? 1.0f / sums[i].sum : 0.0f;
            const float4 v = sums[i].value;
            store4(rows, pitch, 1, 0, place, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
        }
    }
}

/* Piece `piece` of K of every input, side by side; ends with the rows visible to all consumers. */
__device__ void stage_input(const nmlp_cuda_phase *ph, __nv_bfloat16 *rows, int s, int piece, int n_keys, shared_head *sh) {
    int n_segments = ph->n_matrices == 2 && !ph->same_x ? 2 : 1;
    int pitch = n_segments * ph->k_chunk + NMLP_CUDA_ROW_SKEW;
    int k0 = piece * ph->k_chunk;
    for (int i = 0; i < n_segments; i++) {
        const nmlp_cuda_operand *op = &ph->op[i];
        __nv_bfloat16 *to = rows + i * ph->k_chunk;
        int len = min(ph->k_chunk, op->k - k0);
        const uint32_t tag = op->x_written_by ? sh->tag_base + (uint32_t)op->x_written_by : 0;
        if (op->input == NMLP_CUDA_NORM) {
            stage_norm(ph, op, to, pitch, s, k0, len, sh, tag);
        } else if (op->input == NMLP_CUDA_HEADS) {
            stage_heads(ph, op, to, pitch, k0, len, n_keys, tag);
        } else if (op->x_parts > 1) {
            stage_parts(op, to, pitch, s, k0, len, tag);
        } else {
            stage_plain(op, to, pitch, s, k0, len, tag);
        }
    }
    consumer_sync();
}

#endif
