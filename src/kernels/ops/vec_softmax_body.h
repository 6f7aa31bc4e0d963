/* Probabilities from scores, row by row, a block of keys at a time. Part of vec_body.h. */
#ifndef NMLP_KERNELS_OPS_VEC_SOFTMAX_BODY_H
#define NMLP_KERNELS_OPS_VEC_SOFTMAX_BODY_H

/* Of the scaled scores so far and these. The scale is positive. There is memory up to n_padded. */
static float max_score(const nmlp_vec_softmax *row) {
    lanes top[2] = {(lanes){0} - INFINITY, (lanes){0} - INFINITY};
    const float *piece = row->scores;
    int64_t at = 0;
    for (; at < row->n; piece += row->block_stride)
        for (int i = 0; i < row->strips && at < row->n; i++, at += LANES)
            top[i & 1] = larger(top[i & 1], first_of(load(piece + i * LANES), row->n - at, -INFINITY));
    float scaled = max_lanes(larger(top[0], top[1])) * row->scale;
    return row->max > scaled ? row->max : scaled;
}

/* What probabilities are relative to; with nothing but -infinity so far they count for nothing. */
static inline float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

static void advance(nmlp_vec_softmax *row, float top, lanes sum) {
    lanes shrink = exp_lanes((lanes){0} + (row->max - base_of(top)));
    row->shrink = row->max == -INFINITY ? 1.0f : shrink[0]; /* there are no sums yet */
    row->sum = top == -INFINITY ? 0.0f : row->sum * row->shrink + sum_lanes(sum);
    row->max = top;
}

static void softmax(nmlp_vec_softmax *row) {
    lanes sum = {0};
    float top = max_score(row);
    float base = base_of(top);
    const float *piece = row->scores;
    char *line = row->line;
    int64_t at = 0;
    for (; at < row->n; piece += row->block_stride)
        for (int i = 0; i < row->strips && at < row->n; i++, at += LANES, line += row->step) {
            lanes p = first_of(exp_lanes(load(piece + i * LANES) * row->scale - base), row->n - at, 0.0f);
            sum += p;
            store((float *)line, p);
        }
    for (; at < row->n_padded; at += LANES, line += row->step) memset(line, 0, LANES * sizeof(float));
    advance(row, top, sum);
}

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__) && !defined(NMLP_KERNELS_VEC_PLAIN_H)
#include "kernels/isa/avx512/vec_powers_avx512bf16.h"
#else

static inline lanes probability_for_bf16(lanes scores, float scale, float base) {
    lanes least = (lanes){0} - 126.0f; /* whose power is not yet subnormal */
    return power_for_bf16(at_least(scores * scale - base, least));
}

/* Writes a row's probabilities relative to `base` for the n keys it sees and returns their sum. */
static inline lanes put_probabilities(const nmlp_vec_softmax_rows *s, int64_t row, int64_t n, float base) {
    const float log2_e = 1.44269504f;
    lanes sum[2] = {{0}, {0}};
    float scale = s->scale * log2_e;
    const float *piece = s->scores + row * 2 * LANES;
    char *line = s->lines + row * 64;
    int64_t at = 0;
    base *= log2_e;
    for (; at < n; at += 2 * LANES, line += s->step, piece += s->block_stride) {
        lanes low = first_of(probability_for_bf16(load(piece), scale, base), n - at, 0.0f);
        lanes high = first_of(probability_for_bf16(load(piece + LANES), scale, base), n - at - LANES, 0.0f);
        sum[0] += low;
        sum[1] += high;
        store_bf16_line(line, low, high);
    }
    for (; at < s->n_padded; at += 2 * LANES, line += s->step) memset(line, 0, 2 * LANES * sizeof(uint16_t));
    return sum[0] + sum[1];
}

#endif

/* Probabilities again, relative to the largest score; returns what earlier sums must shrink by. */
static float rebase_row(const nmlp_vec_softmax_rows *s, int64_t row, int64_t n) {
    nmlp_vec_softmax one = {.scores = s->scores + row * 2 * LANES,
                            .block_stride = s->block_stride,
                            .strips = 2,
                            .n = n,
                            .scale = s->scale,
                            .max = s->max[row]};
    float top = max_score(&one);
    lanes sum = put_probabilities(s, row, n, base_of(top));
    float shrink = s->max[row] == -INFINITY ? 1.0f : exp_lanes((lanes){0} + (s->max[row] - base_of(top)))[0];
    store(s->sums + row * LANES, load(s->sums + row * LANES) * shrink + sum);
    s->max[row] = top;
    return shrink;
}

/* bf16 is as precise for large numbers as for small ones, so probabilities may be relative to anything near enough for
 * none of them to grow out of all proportion or vanish: most rows need no maximum at all. */
static bool softmax_bf16(const nmlp_vec_softmax_rows *s) {
    const float large = 0x1p64f;
    const float small = 0x1p-32f;
    bool steady = true;
    for (int64_t row = 0; row < s->n_rows; row++) {
        int64_t n = s->n ? s->n[row] : s->n_padded;
        bool begun = s->max[row] > -INFINITY;
        lanes sum = put_probabilities(s, row, n, base_of(s->max[row]));
        s->shrink[row] = 1.0f;
        if (all_at_most(sum, large) && (begun || sum_lanes(sum) >= small)) {
            s->max[row] = base_of(s->max[row]);
            store(s->sums + row * LANES, load(s->sums + row * LANES) + sum);
            continue;
        }
        s->shrink[row] = rebase_row(s, row, n);
        steady = steady && s->shrink[row] == 1.0f;
    }
    return steady;
}

#endif
