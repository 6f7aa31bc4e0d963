/* The element-wise helpers in plain C: included by one file per instruction set, whose flags decide the vector width.
 */
#ifndef NMLP_KERNELS_OPS_VEC_BODY_H
#define NMLP_KERNELS_OPS_VEC_BODY_H

#include <math.h>
#include <string.h>

#include "kernels/ops/vec.h"
#include "kernels/ops/vec_lanes.h"
#include "tensor/dtype.h"

/* exp to about 1.5 ulp for x from `lowest` to `highest`, and of these beyond: n = round(x / ln 2) and a polynomial of
 * degree 6 on |r| <= ln(2)/2. */
static inline lanes exp_between(lanes x, float lowest, float highest) {
    x = at_most(x, (lanes){0} + highest);
    x = at_least(x, (lanes){0} + lowest);
    lanes shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the rounded integer */
    lanes n = shifted - 12582912.0f;
    lanes r = x - n * 0.693145752f; /* ln 2 in two parts; the first has trailing zeros, so n times it is exact */
    r = r - n * 1.42860677e-6f;
    lanes p = r * (1.0f / 720.0f) + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    return times_power(p, n);
}

/* Nothing below e^-87, 2e-38: a subnormal result takes the processor as long as a hundred others. */
static inline lanes exp_lanes(lanes x) { return exp_between(x, -87.0f, 89.0f); }

/* Below -87 the true value is less than 1e-35 in size; the bound keeps the reciprocal finite. */
static inline lanes silu_mul_lanes(lanes gate, lanes up) {
    return gate * reciprocal(1.0f + exp_between(-gate, -104.0f, 87.0f)) * up;
}

static void silu_mul(float *act, const float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(act + i, silu_mul_lanes(load(gate + i), load(up + i)));
    if (i == n) return;
    float rest[LANES];
    store(rest, silu_mul_lanes(load_part(gate + i, n - i, 0.0f), load_part(up + i, n - i, 0.0f)));
    memcpy(act + i, rest, (size_t)(n - i) * sizeof *act);
}

/* 2 sqrt(2/pi) (x + 0.044715 x^3), whose sigmoid gates x. */
static inline lanes gelu_sigmoid(lanes x) {
    lanes z = x * (1.59576912f + 0.0713548163f * (x * x));
    return reciprocal(1.0f + exp_between(-z, -104.0f, 87.0f));
}

static inline lanes gelu_mul_lanes(lanes gate, lanes up) { return gate * gelu_sigmoid(gate) * up; }

static void gelu_mul(float *act, const float *gate, const float *up, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(act + i, gelu_mul_lanes(load(gate + i), load(up + i)));
    if (i == n) return;
    float rest[LANES];
    store(rest, gelu_mul_lanes(load_part(gate + i, n - i, 0.0f), load_part(up + i, n - i, 0.0f)));
    memcpy(act + i, rest, (size_t)(n - i) * sizeof *act);
}

/* Near 0 by its series, whose next term is below 4e-8 of it; elsewhere 1 - 2 / (1 + e^2x). */
static inline lanes tanh_lanes(lanes x) {
    lanes square = x * x;
    lanes p = square * 0.0218694885f - 0.0539682540f;
    p = p * square + 0.133333333f;
    p = p * square - 0.333333333f;
    lanes near = x + x * square * p;
    lanes far = 1.0f - 2.0f / (1.0f + exp_between(2.0f * x, -87.0f, 87.0f));
    return choose(square < 0.0625f, near, far);
}

static void softcap(float *x, float factor, float cap, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, cap * tanh_lanes(load(x + i) * factor));
    if (i == n) return;
    float rest[LANES];
    store(rest, cap * tanh_lanes(load_part(x + i, n - i, 0.0f) * factor));
    memcpy(x + i, rest, (size_t)(n - i) * sizeof *x);
}

typedef lanes gate_fn(lanes gate, lanes up);

/* 16 values of a row from i on, zeros behind the last. */
static inline lanes put_lanes(const nmlp_vec_put *put, int64_t row, int64_t i, gate_fn *gate) {
    const float *src = put->src + row * put->src_stride + i;
    const float *up = put->up ? put->up + row * put->src_stride + i : NULL;
    int64_t rest = put->n - i;
    if (rest <= 0) return (lanes){0};
    if (rest >= LANES) return up ? gate(load(src), load(up)) : load(src);
    lanes part = load_part(src, rest, 0.0f);
    return up ? gate(part, load_part(up, rest, 0.0f)) : part;
}

static inline void put_rows_f32(const nmlp_vec_put *put, gate_fn *gate) {
    for (int64_t row = 0; row < put->n_rows; row++) {
        char *line = (char *)put->dst + row * 64;
        for (int64_t i = 0; i < put->n_padded; i += LANES, line += put->step)
            store((float *)line, put_lanes(put, row, i, gate));
    }
}

static void put_f32(const nmlp_vec_put *put) {
    if (put->activation == NMLP_ACTIVATION_GELU_TANH)
        put_rows_f32(put, gelu_mul_lanes);
    else
        put_rows_f32(put, silu_mul_lanes);
}

/* 2^x to 14 bits, for results rounded to 8: a polynomial of degree 4 on |r| <= 1/2. */
static inline lanes power_for_bf16(lanes x) {
    lanes n = nearest_integer(x);
    lanes r = x - n;
    lanes p = r * 0.0096181291f + 0.0555041087f;
    p = p * r + 0.2402265070f;
    p = p * r + 0.6931471806f;
    p = p * r + 1.0f;
    return times_power(p, n);
}

/* Not by the compiler's flags alone: whoever builds for the machine at hand has them for all files. */
#if defined(__AVX512BF16__) && !defined(NMLP_KERNELS_VEC_PLAIN_H)

#include "kernels/isa/avx512/lanes_avx512bf16.h"

#else

/* To nearest, ties to even; NaN stays NaN. */
static inline uint_lanes bf16_bits(lanes x) {
    uint_lanes bits = (uint_lanes)x;
    uint_lanes rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint_lanes quiet = (bits >> 16) | 0x40u;
    uint_lanes is_nan = (uint_lanes)((bits & 0x7fffffffu) > 0x7f800000u);
    return (is_nan & quiet) | (~is_nan & rounded);
}

static inline void store_bf16(void *dst, lanes x) {
    short_lanes halves = __builtin_convertvector(bf16_bits(x), short_lanes);
    memcpy(dst, &halves, sizeof halves);
}

static inline void store_bf16_line(void *dst, lanes low, lanes high) {
    store_bf16(dst, low);
    store_bf16((char *)dst + 32, high);
}

static inline lanes gate_for_bf16(lanes gate, lanes up) { return silu_mul_lanes(gate, up); }

#endif

/* 16 values fill half a line. */
static inline void put_row_bf16(char *line, const nmlp_vec_put *put, int64_t row, gate_fn *gate) {
    int64_t i = 0;
    if ((uintptr_t)line % 64 && put->n_padded > 0) {
        store_bf16(line, put_lanes(put, row, 0, gate));
        i = LANES;
        line += put->step - 32;
    }
    for (; i + 2 * LANES <= put->n_padded; i += 2 * LANES, line += put->step)
        store_bf16_line(line, put_lanes(put, row, i, gate), put_lanes(put, row, i + LANES, gate));
    if (i < put->n_padded) store_bf16(line, put_lanes(put, row, i, gate));
}

/* Rows of whole lines of 32 values. */
static void put_lines_bf16(const nmlp_vec_put *put) {
    for (int64_t row = 0; row < put->n_rows; row++) {
        const float *src = put->src + row * put->src_stride;
        const float *up = put->up ? put->up + row * put->src_stride : NULL;
        char *line = (char *)put->dst + row * 64;
        for (int64_t i = 0; i < put->n; i += 2 * LANES, line += put->step) {
            lanes low = load(src + i);
            lanes high = load(src + i + LANES);
            if (up) {
                low = gate_for_bf16(low, load(up + i));
                high = gate_for_bf16(high, load(up + i + LANES));
            }
            store_bf16_line(line, low, high);
        }
    }
}

static void put_bf16(const nmlp_vec_put *put) {
    bool whole = put->n == put->n_padded && put->n % (2 * LANES) == 0 && (uintptr_t)put->dst % 64 == 0;
    bool gelu = put->up && put->activation == NMLP_ACTIVATION_GELU_TANH;
    if (whole && !gelu) {
        put_lines_bf16(put);
        return;
    }
    for (int64_t row = 0; row < put->n_rows; row++) {
        char *line = (char *)put->dst + row * 64;
        if (gelu)
            put_row_bf16(line, put, row, gelu_mul_lanes);
        else
            put_row_bf16(line, put, row, gate_for_bf16);
    }
}

static inline void copy_row(float *dst, const float *src, const float *bias, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(dst + i, bias ? load(src + i) + load(bias + i) : load(src + i));
    for (; i < n; i++) dst[i] = bias ? src[i] + bias[i] : src[i];
}

static void copy_rows(float *dst, int64_t dst_stride, const nmlp_vec_put *from, const float *bias) {
    for (int64_t row = 0; row < from->n_rows; row++)
        copy_row(dst + row * dst_stride, from->src + row * from->src_stride, bias, from->n);
}

static inline void add_row(float *dst, const float *src, const float *bias, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(dst + i, load(dst + i) + (bias ? load(src + i) + load(bias + i) : load(src + i)));
    for (; i < n; i++) dst[i] += bias ? src[i] + bias[i] : src[i];
}

/* Rows lie pages apart, where no hardware fetches ahead: those of the next turns are asked for here. */
static inline void fetch_row(const float *row, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) __builtin_prefetch(row + i, 1);
}

static void add_rows(float *dst, int64_t dst_stride, const nmlp_vec_put *from, const float *bias) {
    enum { ROWS_AHEAD = 8 };
    for (int64_t row = 0; row < from->n_rows; row++) fetch_row(dst + (row + ROWS_AHEAD) * dst_stride, from->n);
    for (int64_t row = 0; row < from->n_rows; row++)
        add_row(dst + row * dst_stride, from->src + row * from->src_stride, bias, from->n);
}

/* The vector with its halves of 8, 4, 2 or 1 lanes exchanged: four steps reduce it. */
static inline lanes swap8(lanes v) {
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
}
static inline lanes swap4(lanes v) {
    return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
}
static inline lanes swap2(lanes v) {
    return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
}
static inline lanes swap1(lanes v) {
    return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

static inline float sum_lanes(lanes v) {
    v += swap8(v);
    v += swap4(v);
    v += swap2(v);
    v += swap1(v);
    return v[0];
}

/* A NaN in b is passed over. */
static inline lanes larger(lanes a, lanes b) { return at_least(a, b); }

static inline float max_lanes(lanes v) {
    v = larger(v, swap8(v));
    v = larger(v, swap4(v));
    v = larger(v, swap2(v));
    v = larger(v, swap1(v));
    return v[0];
}

/* Of 16 values those before the n-th, `fill` for the rest. */
static inline lanes first_of(lanes values, int64_t n, float fill) {
    static const int_lanes index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    if (n >= LANES) return values;
    return choose(index < (int32_t)n, values, (lanes){0} + fill);
}

#include "kernels/ops/vec_softmax_body.h"

static inline lanes pairing_lanes(const float *row, int64_t n, int64_t at) {
    if (!row || at >= n) return (lanes){0};
    return at + LANES <= n ? load(row + at) : load_part(row + at, n - at, 0.0f);
}

static void pair_rows(const nmlp_vec_pairing *pairing) {
    char *line = pairing->dst;
    for (int64_t at = 0; at < pairing->n_padded; at += LANES, line += pairing->step) {
        uint_lanes even = bf16_bits(pairing_lanes(pairing->even, pairing->n, at));
        uint_lanes odd = bf16_bits(pairing_lanes(pairing->odd, pairing->n, at));
        uint_lanes pairs = even | (odd << 16);
        memcpy(line, &pairs, sizeof pairs);
    }
}

/* The largest magnitude, by bits: NaN is larger than infinity, and that than all else. */
static inline float peak_of(lanes a, lanes b) {
    uint_lanes x = (uint_lanes)a & 0x7fffffffu;
    uint_lanes y = (uint_lanes)b & 0x7fffffffu;
    uint_lanes top = (uint_lanes)choose((int_lanes)(x > y), (lanes)x, (lanes)y);
    uint32_t peak = 0;
    float value;
    for (int i = 0; i < LANES; i++) peak = top[i] > peak ? top[i] : peak;
    memcpy(&value, &peak, sizeof value);
    return value;
}

static inline void store_int16(int16_t *dst, lanes x) {
    typedef int16_t narrow __attribute__((vector_size(32)));
    narrow n = __builtin_convertvector(__builtin_convertvector(nearest_integer(x), int_lanes), narrow);
    memcpy(dst, &n, sizeof n);
}

static void quantise(const nmlp_vec_quantisation *q) {
    const float most = 32767.0f, least = 1e-30f; /* smaller groups count as zeros */
    for (int64_t g = 0; g < q->n_groups; g++)
        for (int row = 0; row < q->rows; row++) {
            const char *from = q->src + (size_t)(2 * g) * q->step + (size_t)row * 64;
            lanes low = load((const float *)(const void *)from);
            lanes high = load((const float *)(const void *)(from + q->step));
            float peak = peak_of(low, high);
            bool usable = peak >= least && peak <= 3e38f;
            float factor = usable ? most / peak : 0.0f;
            int16_t *to = q->dst + (g * q->rows + row) * 2 * LANES;
            if (usable) {
                store_int16(to, low * factor);
                store_int16(to + LANES, high * factor);
            } else {
                memset(to, 0, 2 * LANES * sizeof *to);
            }
            q->scales[g * q->rows + row] = peak < least ? 0.0f : peak <= 3e38f ? peak / most : NAN;
        }
}

/* The largest of |x|, as bits: those of numbers that are not finite are larger than all others. */
static uint32_t peak_bits(const float *x, int64_t n) {
    uint32_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    return top;
}

static void round_int8(int8_t *q, const float *x, float factor, int n) {
    for (int i = 0; i < n; i++) q[i] = (int8_t)(int32_t)rintf(x[i] * factor);
}

static float put_int8(const nmlp_vec_int8_row *row) {
    enum { LINE_INPUTS = 64 };
    const float most = 127.0f, least = 1e-30f; /* smaller rows count as zeros */
    uint32_t bits = peak_bits(row->src, row->n);
    float peak;
    memcpy(&peak, &bits, sizeof peak);
    bool usable = peak >= least && peak <= 3e38f;
    float factor = usable ? most / peak : 0.0f;
    const int8_t flip = row->is_unsigned ? INT8_MIN : 0; /* adds 128, modulo 256 */
    int8_t *to = row->dst;
    for (int64_t k = 0; k < row->n_padded; k += LINE_INPUTS, to += row->step) {
        int8_t q[LINE_INPUTS] = {0};
        int64_t n = row->n - k < LINE_INPUTS ? row->n - k : LINE_INPUTS;
        if (usable && n == LINE_INPUTS)
            round_int8(q, row->src + k, factor, LINE_INPUTS);
        else if (usable && n > 0)
            round_int8(q, row->src + k, factor, (int)n);
        for (int i = 0; i < LINE_INPUTS; i += 4) {
            to[i] = (int8_t)(q[i] ^ flip);
            to[i + 1] = (int8_t)(q[i + 2] ^ flip);
            to[i + 2] = (int8_t)(q[i + 1] ^ flip);
            to[i + 3] = (int8_t)(q[i + 3] ^ flip);
        }
    }
    return peak < least ? 0.0f : usable ? peak / most : NAN;
}

static void scale_by(float *y, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

static float dot(const float *a, const float *b, int64_t n) {
    lanes sum = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) sum += load(a + i) * load(b + i);
    if (i < n) sum += load_part(a + i, n - i, 0.0f) * load_part(b + i, n - i, 0.0f);
    return sum_lanes(sum);
}

static void mul_scaled(float *y, const float *x, const float *weight, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

static void add(float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static float largest(const float *x, int64_t n) {
    lanes top = (lanes){0} - INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) top = larger(top, load(x + i));
    if (i < n) top = larger(top, load_part(x + i, n - i, -INFINITY));
    return max_lanes(top);
}

/* Runs short enough for f32 sums, which are summed in f64. */
static void exp_sums(double sums[2], const float *x, const float *y, float top, int64_t n) {
    enum { RUN = 32 * LANES };
    sums[0] = sums[1] = 0;
    for (int64_t begin = 0; begin < n; begin += RUN) {
        int64_t end = begin + RUN < n ? begin + RUN : n;
        lanes sum = {0}, weighted = {0};
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            lanes a = load(x + i);
            lanes e = exp_lanes(a - top);
            sum += e;
            if (y) weighted += e * (a - load(y + i));
        }
        if (i < end) {
            lanes a = load_part(x + i, end - i, top);
            lanes e = exp_lanes(load_part(x + i, end - i, -INFINITY) - top);
            sum += e;
            if (y) weighted += e * (a - load_part(y + i, end - i, top));
        }
        sums[0] += (double)sum_lanes(sum);
        sums[1] += (double)sum_lanes(weighted);
    }
}

/* f(gate) and its slope. */
static inline lanes silu_lanes(lanes gate, lanes *slope) {
    lanes sigmoid = reciprocal(1.0f + exp_between(-gate, -104.0f, 87.0f));
    *slope = sigmoid * (1.0f + gate * (1.0f - sigmoid));
    return gate * sigmoid;
}

static inline lanes gelu_lanes(lanes gate, lanes *slope) {
    lanes sigmoid = gelu_sigmoid(gate);
    lanes inner = 1.59576912f + 3.0f * 0.0713548163f * (gate * gate);
    *slope = sigmoid * (1.0f + gate * inner * (1.0f - sigmoid));
    return gate * sigmoid;
}

typedef lanes activation_fn(lanes gate, lanes *slope);

static inline void glu_squares_by(const nmlp_vec_glu *b, activation_fn *f) {
    for (int64_t j = 0; j < b->n; j += LANES) {
        int64_t width = b->n - j < LANES ? b->n - j : LANES;
        lanes gate2 = {0}, slope2 = {0}, act2 = {0};
        for (int64_t t = 0; t < b->n_tokens; t++) {
            const float *gates = b->gate + t * b->stride + j;
            const float *ups = b->up + t * b->stride + j;
            lanes up = width == LANES ? load(ups) : load_part(ups, width, 0);
            lanes slope, value = f(width == LANES ? load(gates) : load_part(gates, width, 0), &slope);
            slope = up * slope;
            gate2 += value * value;
            slope2 += slope * slope;
            act2 += value * up * (value * up);
        }
        memcpy(b->gate2 + j, &gate2, (size_t)width * sizeof(float));
        memcpy(b->slope2 + j, &slope2, (size_t)width * sizeof(float));
        memcpy(b->act2 + j, &act2, (size_t)width * sizeof(float));
    }
}

static void glu_squares(const nmlp_vec_glu *b) {
    if (b->activation == NMLP_ACTIVATION_GELU_TANH)
        glu_squares_by(b, gelu_lanes);
    else
        glu_squares_by(b, silu_lanes);
}

static void rotate(float *y, const float *x, const float *angles, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes a = load(x + i), b = load(x + n + i);
        lanes cosine = load(angles + i), sine = load(angles + n + i);
        store(y + i, a * cosine - b * sine);
        store(y + n + i, b * cosine + a * sine);
    }
    for (; i < n; i++) {
        float a = x[i], b = x[n + i];
        y[i] = a * angles[i] - b * angles[n + i];
        y[n + i] = b * angles[i] + a * angles[n + i];
    }
}

/* Adding to the lowest bit of an exponent of all ones carries into the sign, which is masked out before. */
static bool is_finite(const void *lines, int64_t n_lines, nmlp_dtype dtype) {
    typedef uint16_t half_lanes __attribute__((vector_size(64)));
    uint_lanes exponent = (uint_lanes){0} + (dtype == NMLP_DTYPE_F32 ? 0x7f800000u : 0x7f807f80u);
    uint_lanes lowest = exponent & 0x00800080u;
    uint_lanes carried = {0};
    for (const char *line = lines; n_lines > 0; n_lines--, line += sizeof carried) {
        uint_lanes bits;
        memcpy(&bits, line, sizeof bits);
        carried |= (uint_lanes)((half_lanes)(bits & exponent) + (half_lanes)lowest);
    }
    uint32_t any = 0;
    for (int i = 0; i < LANES; i++) any |= carried[i];
    return (any & 0x80008000u) == 0;
}

/* A few columns at a time, so that source and destination both stay in L1. */
static inline void transpose_plain(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n) {
    enum { COLUMNS = 64, BYTES = 4 };
    for (int64_t at = 0; at < n; at += COLUMNS) {
        int64_t end = at + COLUMNS < n ? at + COLUMNS : n;
        for (int64_t j = 0; j < LANES; j++)
            for (int64_t i = at; i < end; i++) {
                char *to = (char *)dst + (i * LANES + j) * BYTES;
                if (j < n_rows)
                    memcpy(to, (const char *)src + (j * row_stride + i) * BYTES, BYTES);
                else
                    memset(to, 0, BYTES);
            }
    }
}

static inline bool transpose_plain_checked(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n,
                                           nmlp_dtype dtype) {
    uint32_t low = dtype == NMLP_DTYPE_F32 ? 0 : 0x00007f80u;
    bool finite = true;
    transpose_plain(dst, src, row_stride, n_rows, n);
    for (int64_t j = 0; j < n_rows; j++)
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, (const char *)src + (j * row_stride + i) * 4, sizeof bits);
            finite = finite && (bits & 0x7f800000u) != 0x7f800000u && (!low || (bits & low) != low);
        }
    return finite;
}

#endif
