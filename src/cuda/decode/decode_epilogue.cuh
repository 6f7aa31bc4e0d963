/* The epilogue warp: adds the consumers' partial sums in one order, applies what the phase ends with, chooses the next
 * token. */
#ifndef NMLP_CUDA_DECODE_DECODE_EPILOGUE_CUH
#define NMLP_CUDA_DECODE_DECODE_EPILOGUE_CUH

#include "cuda/decode/decode_block.cuh"

namespace {

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/* Noise that turns an argmax into a draw from softmax: -log(-log(u)), u from a hash of seed, position and token. */
__device__ __forceinline__ float gumbel(uint32_t seed, uint32_t position, uint32_t token) {
    uint64_t z = ((uint64_t)seed << 32 | position) * 0x9e3779b97f4a7c15ull + token;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    float u = ((float)(uint32_t)(z >> 40) + 0.5f) * (1.0f / 16777216.0f);
    return -logf(-logf(u));
}

struct pick {
    float inverse_temperature;
    uint32_t seed;
    int32_t position;
    float score; /* best so far of this thread */
    int32_t token;
};

__device__ __forceinline__ pick begin_pick(const nmlp_cuda_decode_state &state) {
    return {state.inverse_temperature, state.seed, state.length, -INFINITY, INT32_MAX};
}

__device__ __forceinline__ void consider(pick &p, float logit, int token) {
    float score = logit;
    if (p.inverse_temperature > 0) score = logit * p.inverse_temperature + gumbel(p.seed, p.position, token);
    if (score > p.score) {
        p.score = score;
        p.token = token;
    }
}

/* Where a phase's results go, in registers. */
struct sink {
    void *out;
    const float *bias;
    int64_t part_stride;
    int pitch;
    int n;
    int output;
    bool tagged;
    uint32_t tag;
    bool scaled[2]; /* times 1/rms */
};

__device__ __forceinline__ sink make_sink(const nmlp_cuda_decode_phase *ph, uint32_t tag) {
    return {ph->out,
            ph->bias,
            ph->out_part_stride,
            ph->out_pitch,
            ph->n,
            ph->output,
            ph->tagged_out != 0,
            tag,
            {ph->op[0].input == NMLP_CUDA_DECODE_NORM, ph->op[1].input == NMLP_CUDA_DECODE_NORM}};
}

/* What ADD adds to. */
__device__ __forceinline__ float get_before(const sink &to, int row, uint32_t tag) {
    return to.output == NMLP_CUDA_DECODE_ADD && row < to.n ? get_float(static_cast<const word *>(to.out) + row, tag)
                                                           : 0.0f;
}

/* A finished element (of matrix 0 and, in pairs, matrix 1); rows past the end are zero. `before`: what ADD adds to. */
__device__ __forceinline__ float result(const sink &to, int row, float y0, float y1, float before, pick &best) {
    if (row >= to.n) return 0;
    if (to.bias) y0 += to.bias[row];
    if (to.output == NMLP_CUDA_DECODE_SILU_MUL) y0 = silu(y0) * y1;
    if (to.output == NMLP_CUDA_DECODE_ADD) y0 += before;
    if (to.output == NMLP_CUDA_DECODE_LOGITS) consider(best, y0, row);
    return y0;
}

/* A row of one token goes where the phase says. Tagged rows are written up to a multiple of two, so that readers take
 * two at a time. */
__device__ __forceinline__ void put_result(const sink &to, int piece, int token, int row, float y) {
    const int64_t at = piece * to.part_stride + (int64_t)token * to.pitch + row;
    if (!to.tagged) {
        if (row < to.n) static_cast<float *>(to.out)[at] = y;
    } else if (row < (to.n + 1) / 2 * 2) {
        put_word(static_cast<word *>(to.out) + at, __float_as_uint(y), to.tag);
    }
}

/* What the eight warps summed of one element and matrix, added in the same order always. */
__device__ __forceinline__ float add_warps(const float *sums) {
    float v[NMLP_CUDA_DECODE_CONSUMER_WARPS];
#pragma unroll
    for (int w = 0; w < NMLP_CUDA_DECODE_CONSUMER_WARPS; w++) v[w] = sums[2 * w * WARP_SUMS];
#pragma unroll
    for (int d = 1; d < NMLP_CUDA_DECODE_CONSUMER_WARPS; d *= 2)
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_DECODE_CONSUMER_WARPS; w += 2 * d) v[w] += v[w + d];
    return v[0];
}

/* 1/rms of the lane's elements i and i + 32 of [token][16 rows], by token. */
struct row_scales {
    float of[2];
};

/* Where the epilogue warp stands. */
struct epilogue_state {
    unsigned n_done; /* units */
    uint32_t squared_parity;
};

__device__ __forceinline__ row_scales take_scales(const nmlp_cuda_decode_phase *ph, shared_head *sh, int s,
                                                  uint32_t &parity) {
    const int lane = threadIdx.x & 31;
    row_scales scales = {{1.0f, 1.0f}};
    mbar_wait(&sh->squared, parity);
    parity ^= 1;
#pragma unroll 1
    for (int token = 0; token < s; token++) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < NMLP_CUDA_DECODE_CONSUMER_WARPS; w++) sum += sh->squares[token][w * 32 + lane];
        const float scale = rsqrtf(warp_sum(sum) / (float)ph->norm_dim + ph->eps);
        if (lane / NMLP_CUDA_DECODE_TILE_ROWS == token) scales.of[0] = scale;
        if (lane / NMLP_CUDA_DECODE_TILE_ROWS + 2 == token) scales.of[1] = scale;
    }
    return scales;
}

/* Unit `group` of piece `piece`: a lane's elements one after the other. `parts`: the unit's place among other pieces,
 * tagged f32 [matrices][S, 16], or NULL. `before` is of this lane's first row. `empty` is told when the sums have been
 * read. */
__device__ __forceinline__ void epilogue_unit(const sink &to, const float *sums, uint64_t *empty, word *parts,
                                              const row_scales &scales, int s, int n_matrices, int piece, int group,
                                              float before, pick &best) {
    const int of_matrix = s * NMLP_CUDA_DECODE_TILE_ROWS;
#pragma unroll 1
    for (int base = 0; base < of_matrix; base += 32) {
        const int i = base + (threadIdx.x & 31);
        const float scale = base ? scales.of[1] : scales.of[0];
        float y0 = add_warps(sums + i);
        float y1 = n_matrices == 2 ? add_warps(sums + WARP_SUMS + i) : 0.0f;
        if (base + 32 >= of_matrix) warp_arrive(empty);
        if (i >= of_matrix) continue;
        if (to.scaled[0]) y0 *= scale;
        if (to.scaled[1]) y1 *= scale;
        if (parts) {
            put_word(parts + i, __float_as_uint(y0), to.tag);
            if (n_matrices == 2) put_word(parts + of_matrix + i, __float_as_uint(y1), to.tag);
            continue;
        }
        const int row = group * NMLP_CUDA_DECODE_TILE_ROWS + i % NMLP_CUDA_DECODE_TILE_ROWS;
        put_result(to, piece, i / NMLP_CUDA_DECODE_TILE_ROWS, row, result(to, row, y0, y1, before, best));
    }
}

/* All pieces of one group of rows, polled and summed in order; two rows per lane. */
__device__ void reduce_split_k(const sink &to, const word *parts, int n_parts, int n_matrices, int s, int group,
                               uint32_t before_tag, pick &best) {
    const int AT_ONCE = 4;
    const int i = (threadIdx.x & 31) * 2;
    const int of_matrix = s * NMLP_CUDA_DECODE_TILE_ROWS;
    const int stride = n_matrices * of_matrix;
    float2 sum[2] = {make_float2(0, 0), make_float2(0, 0)};
    parts += (int64_t)group * n_parts * stride;
    if (i >= of_matrix) return;
    for (int p0 = 0; p0 < n_parts; p0 += AT_ONCE) {
        float2 v[2 * AT_ONCE];
        get_pairs<2 * AT_ONCE>(
            v,
            [=](int j) {
                return parts + min(p0 + j / 2, n_parts - 1) * stride + min(j % 2, n_matrices - 1) * of_matrix + i;
            },
            to.tag);
#pragma unroll
        for (int j = 0; j < 2 * AT_ONCE; j++)
            if (p0 + j / 2 < n_parts) add2(sum[j % 2], v[j]);
    }
#pragma unroll 1
    for (int e = 0; e < 2; e++) {
        const int row = group * NMLP_CUDA_DECODE_TILE_ROWS + i % NMLP_CUDA_DECODE_TILE_ROWS + e;
        const float y =
            result(to, row, e ? sum[0].y : sum[0].x, e ? sum[1].y : sum[1].x, get_before(to, row, before_tag), best);
        put_result(to, 0, i / NMLP_CUDA_DECODE_TILE_ROWS, row, y);
    }
}

__device__ void epilogue_phase(const nmlp_cuda_decode_program &prog, const nmlp_cuda_decode_phase *ph,
                               const unit_range units, const block_memory &mem, epilogue_state &at, uint32_t tag,
                               pick &best) {
    const sink to = make_sink(ph, tag);
    const int lane = threadIdx.x & 31;
    const int s = prog.s;
    const int n_matrices = ph->n_matrices;
    shared_head *sh = mem.sh;
    const uint32_t before_tag = sh->tag_base + (uint32_t)ph->out_before;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    row_scales scales = {{1.0f, 1.0f}};
    if ((to.scaled[0] || to.scaled[1]) && units.begin < units.end) scales = take_scales(ph, sh, s, at.squared_parity);
    for (int i = units.begin; i < units.end; i++, at.n_done++) {
        const float before = lane < NMLP_CUDA_DECODE_TILE_ROWS && !ph->parts
                                 ? get_before(to, group * NMLP_CUDA_DECODE_TILE_ROWS + lane, before_tag)
                                 : 0.0f;
        word *const parts = ph->parts ? static_cast<word *>(ph->parts) + ((int64_t)group * ph->n_chunks + piece) *
                                                                             n_matrices * s * NMLP_CUDA_DECODE_TILE_ROWS
                                      : nullptr;
        mbar_wait(&sh->sums_full[at.n_done & 1], at.n_done >> 1 & 1);
        epilogue_unit(to, mem.sums + (at.n_done & 1) * UNIT_SUMS, &sh->sums_empty[at.n_done & 1], parts, scales, s,
                      n_matrices, piece, group, before, best);
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
    if (!ph->parts) return;
    for (int u = units.begin; u < min(units.end, units.groups); u++) /* the groups whose first piece is this block's */
        reduce_split_k(to, static_cast<const word *>(ph->parts), ph->n_chunks, n_matrices, s, u, before_tag, best);
}

__device__ void embed(const nmlp_cuda_decode_phase *ph, int token, uint32_t tag) {
    const __nv_bfloat16 *row = static_cast<const __nv_bfloat16 *>(ph->embedding) + (int64_t)token * ph->op[0].k;
    for (int i = blockIdx.x * CONSUMERS + threadIdx.x; i < ph->op[0].k; i += gridDim.x * CONSUMERS)
        put_word(static_cast<word *>(ph->out) + i, __float_as_uint(__bfloat162float(row[i])), tag);
}

__device__ __forceinline__ void better(float &score, int32_t &token, float other_score, int32_t other_token) {
    if (other_score > score || (other_score == score && other_token < token)) {
        score = other_score;
        token = other_token;
    }
}

__device__ __forceinline__ void warp_argmax(float &score, int32_t &token) {
    for (int d = 16; d; d >>= 1)
        better(score, token, __shfl_xor_sync(0xffffffffu, score, d), __shfl_xor_sync(0xffffffffu, token, d));
}

/* The block's best of its rows of the vocabulary; of equal ones the smallest token. */
__device__ void publish_best(const nmlp_cuda_decode_program &prog, const pick &best, uint32_t tag) {
    float score = best.score;
    int32_t token = best.token;
    warp_argmax(score, token);
    if ((threadIdx.x & 31) == 0)
        put_words(static_cast<word *>(prog.best) + 2 * blockIdx.x, make_word(__float_as_uint(score), tag),
                  make_word((uint32_t)token, tag));
}

/* Every block finds the best of all by itself and goes on with it; returns the state after it. The first tells the host
 * and the next launch. That every block has published means that every block has read the state. */
__device__ nmlp_cuda_decode_state pick_token(const nmlp_cuda_decode_program &prog, const nmlp_cuda_decode_state &before,
                                             uint32_t tag) {
    const int AT_ONCE = 5; /* 160 blocks */
    const int lane = threadIdx.x & 31;
    const word *best = static_cast<const word *>(prog.best);
    const int n = (int)gridDim.x;
    float score = -INFINITY;
    int32_t token = INT32_MAX;
    for (int base = lane; base < n; base += 32 * AT_ONCE) {
        float2 v[AT_ONCE];
        get_pairs<AT_ONCE>(v, [=](int i) { return best + 2 * min(base + 32 * i, n - 1); }, tag);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (base + 32 * i < n) better(score, token, v[i].x, __float_as_int(v[i].y));
    }
    __syncwarp();
    warp_argmax(score, token);
    if (token == INT32_MAX) token = 0; /* nothing but NaN: what the CPU's argmax says */
    nmlp_cuda_decode_state after = before;
    after.token = token;
    after.length++;
    after.n_choices++;
    if (blockIdx.x == 0 && lane == 0) {
        *prog.state = after;
        asm volatile(
            "st.relaxed.sys.global.b64 [%0], %1;" ::"l"(prog.choices + after.n_choices % NMLP_CUDA_DECODE_CHOICES),
            "l"(make_word((uint32_t)token, after.n_choices))
            : "memory");
    }
    return after;
}

} // namespace

#endif
