/* Probabilities from scores, row by row, a block of keys at a time. Part of vec_body.h. */
#ifndef NMLP_KERNELS_VEC_SOFTMAX_H
#define NMLP_KERNELS_VEC_SOFTMAX_H

/* Of the scaled scores so far and these. The scale is positive. There is memory up to n_padded. */
static float max_score(const nmlp_softmax *row) {
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

static void advance(nmlp_softmax *row, float top, lanes sum) {
    lanes shrink = exp_lanes((lanes){0} + (row->max - base_of(top)));
    row->shrink = row->max == -INFINITY ? 1.0f : shrink[0]; /* there are no sums yet */
    row->sum = top == -INFINITY ? 0.0f : row->sum * row->shrink + sum_lanes(sum);
    row->max = top;
}

static void softmax(nmlp_softmax *row) {
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

#if defined(__AVX512VBMI__) && defined(__AVX512BF16__)
#include "kernels/vec_powers_amx.h"
#else

static inline lanes probability_for_bf16(lanes scores, float scale, float base) {
    lanes least = (lanes){0} - 126.0f; /* whose power is not yet subnormal */
    return power_for_bf16(at_least(scores * scale - base, least));
}

/* Writes the probabilities relative to `top` and returns their sum. */
static lanes put_probabilities(const nmlp_softmax *row, float top) {
    const float log2_e = 1.44269504f;
    lanes sum[2] = {{0}, {0}};
    float scale = row->scale * log2_e;
    float base = base_of(top) * log2_e;
    const float *piece = row->scores; /* of two strips: a line of probabilities */
    char *line = row->line;
    int64_t at = 0;
    for (; at + 2 * LANES <= row->n; at += 2 * LANES, line += row->step, piece += row->block_stride) {
        lanes low = probability_for_bf16(load(piece), scale, base);
        lanes high = probability_for_bf16(load(piece + LANES), scale, base);
        sum[0] += low;
        sum[1] += high;
        store_bf16_line(line, low, high);
    }
    if (at < row->n) {
        lanes low = first_of(probability_for_bf16(load(piece), scale, base), row->n - at, 0.0f);
        lanes high = first_of(probability_for_bf16(load(piece + LANES), scale, base), row->n - at - LANES, 0.0f);
        sum[0] += low;
        sum[1] += high;
        store_bf16_line(line, low, high);
        at += 2 * LANES;
        line += row->step;
    }
    for (; at < row->n_padded; at += 2 * LANES, line += row->step) memset(line, 0, 2 * LANES * sizeof(uint16_t));
    return sum[0] + sum[1];
}

#endif

/* bf16 is as precise for large numbers as for small ones, so probabilities may be relative to anything near enough for
 * none of them to grow out of all proportion or vanish: most rows need no maximum at all. */
static void softmax_bf16(nmlp_softmax *row) {
    const float large = 0x1p64f;
    const float small = 0x1p-32f;
    bool begun = row->max > -INFINITY;
    float sum = sum_lanes(put_probabilities(row, row->max));
    row->shrink = 1.0f;
    if (sum <= large && (begun || sum >= small)) {
        row->max = base_of(row->max);
        row->sum += sum;
        return;
    }
    float top = max_score(row);
    advance(row, top, put_probabilities(row, top));
}

#endif
