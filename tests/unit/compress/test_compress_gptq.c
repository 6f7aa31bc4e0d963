/* Rounding to few bits against GPTQ as its paper writes it (inverse, its Cholesky factor, updates of all columns
 * behind) in f64, against nearest rounding, and against a search over all codes where there are few. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/quantize/gptq.h"
#include "compress/quantize/quant_scales.h"
#include "lib/testing.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

enum { ROWS = 40, COLS = 96, GROUP = 32, TOKENS = 300 };

struct problem {
    float w[ROWS * COLS];
    double moments[COLS * COLS];
    int8_t q8[ROWS * COLS];
    uint8_t fp8[ROWS * COLS];
    uint8_t q6[ROWS * COLS / 4 * 3];
    uint8_t q4[ROWS * COLS / 2];
    float scales8[ROWS];
    uint16_t scales4[ROWS * (COLS / GROUP)];
    int8_t zeros[ROWS * (COLS / GROUP)];
    int8_t multipliers[ROWS * (COLS / 16)];
};

/* Inputs that depend on each other, of unequal size. */
static struct problem *new_problem(uint64_t seed) {
    struct problem *p = calloc(1, sizeof *p);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    for (int i = 0; i < ROWS * COLS; i++) p->w[i] = (float)(0.1 * nmlp_rng_normal(&rng));
    for (int t = 0; t < TOKENS; t++) {
        double x[COLS], common = nmlp_rng_normal(&rng), last = 0;
        for (int j = 0; j < COLS; j++) {
            last = 0.8 * last + nmlp_rng_normal(&rng);
            x[j] = (last + common) * (1 + 3.0 * (j % 7 == 0));
        }
        for (int i = 0; i < COLS; i++)
            for (int j = 0; j < COLS; j++) p->moments[i * COLS + j] += x[i] * x[j] / TOKENS;
    }
    return p;
}

static nmlp_view view_of(struct problem *p, nmlp_dtype dtype) {
    if (dtype == NMLP_DTYPE_FP8) return nmlp_quant_view_fp8(p->fp8, p->scales8, ROWS, COLS);
    if (dtype == NMLP_DTYPE_Q6) return nmlp_quant_view_q6(p->q6, p->scales8, ROWS, COLS);
    if (dtype == NMLP_DTYPE_Q8) return nmlp_quant_view_q8(p->q8, p->scales8, ROWS, COLS);
    if (nmlp_quant_has_multipliers(dtype)) /* the widest of them has room for all */
        return nmlp_quant_view_multiplied(p->q6, dtype, p->scales8, p->multipliers, ROWS, COLS);
    return nmlp_quant_view_q4(p->q4, p->scales4, GROUP, ROWS, COLS);
}

static double loss_of(const double *moments, const float *w, const nmlp_view *q) {
    double sum = 0;
    for (int i = 0; i < ROWS; i++) {
        float row[COLS];
        nmlp_quant_row_to_f32(row, q, i);
        for (int j = 0; j < COLS; j++)
            for (int k = 0; k < COLS; k++)
                sum += ((double)w[i * COLS + j] - (double)row[j]) * moments[j * COLS + k] *
                       ((double)w[i * COLS + k] - (double)row[k]);
    }
    return sum;
}

/* Gauss-Jordan. */
static void invert(double *a, int n) {
    for (int p = 0; p < n; p++) {
        double pivot = a[p * n + p];
        a[p * n + p] = 1;
        for (int j = 0; j < n; j++) a[p * n + j] /= pivot;
        for (int i = 0; i < n; i++) {
            if (i == p) continue;
            double f = a[i * n + p];
            a[i * n + p] = 0;
            for (int j = 0; j < n; j++) a[i * n + j] -= f * a[p * n + j];
        }
    }
}

/* A = U^T U, U upper triangular. */
static void upper_root(double *a, int n) {
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++)
            for (int j = i; j < n; j++) a[i * n + j] -= a[k * n + i] * a[k * n + j];
        double d = sqrt(a[i * n + i]);
        for (int j = i; j < n; j++) a[i * n + j] /= d;
        for (int j = 0; j < i; j++) a[i * n + j] = 0;
    }
}

/* The paper's loop on one row, with given scales; codes in the order of storage. */
static void paper_row(int *codes, const float *w, const double *upper, const int32_t *order, const float *scales,
                      int group, int lowest, int highest) {
    double rest[COLS];
    for (int k = 0; k < COLS; k++) rest[k] = (double)w[order[k]];
    for (int k = 0; k < COLS; k++) {
        double scale = (double)scales[order[k] / group];
        double q = nearbyint(rest[k] / scale);
        q = q < lowest ? lowest : q > highest ? highest : q;
        double error = (rest[k] - q * scale) / upper[k * COLS + k];
        codes[order[k]] = (int)q;
        for (int j = k; j < COLS; j++) rest[j] -= error * upper[k * COLS + j];
    }
}

static int code_at(const nmlp_view *v, int row, int column) {
    const uint8_t *bytes = nmlp_view_row(v, row);
    if (v->dtype == NMLP_DTYPE_Q8) return ((const int8_t *)bytes)[column];
    int bits = v->dtype == NMLP_DTYPE_Q5M ? 5 : v->dtype == NMLP_DTYPE_Q4M ? 4 : 6;
    if (v->dtype != NMLP_DTYPE_Q4) {
        int code = 0, first = bits * column;
        for (int b = first; b < first + bits; b++) code |= (bytes[b / 8] >> b % 8 & 1) << (b - first);
        return code - (1 << (bits - 1));
    }
    return (bytes[column / 2] >> (column & 1 ? 4 : 0) & 15) - 8;
}

static void codes_are_those_of_the_paper(nmlp_dtype dtype) {
    struct problem *p = new_problem(7);
    nmlp_view out = view_of(p, dtype);
    nmlp_gptq g;
    nmlp_err err;
    double damped[COLS * COLS], upper[COLS * COLS];
    nmlp_assert_ok(nmlp_gptq_init(&g, NULL, p->moments, COLS, &err), &err);
    memcpy(damped, p->moments, sizeof damped); /* with what was added to the diagonal */
    g.sweeps = 0;
    nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, NULL, &err), &err);
    for (int k = 0; k + 1 < COLS; k++)
        assert_true(damped[g.order[k] * (COLS + 1)] >= damped[g.order[k + 1] * (COLS + 1)]);
    for (int i = 0; i < COLS; i++)
        for (int j = 0; j < COLS; j++) upper[i * COLS + j] = damped[g.order[i] * COLS + g.order[j]];
    invert(upper, COLS);
    upper_root(upper, COLS);
    int differ = 0;
    for (int i = 0; i < ROWS; i++) {
        int codes[COLS];
        float scales[COLS / 16];
        bool multiplied = nmlp_quant_has_multipliers(dtype);
        int group = multiplied ? 16 : dtype == NMLP_DTYPE_Q4 ? GROUP : COLS;
        for (int s = 0; s < COLS / group; s++) {
            scales[s] = dtype != NMLP_DTYPE_Q4 ? p->scales8[i] : nmlp_f16_to_f32(p->scales4[i * (COLS / GROUP) + s]);
            if (multiplied) scales[s] *= (float)p->multipliers[i * (COLS / 16) + s];
            if (dtype == NMLP_DTYPE_Q4M) scales[s] *= 2;
        }
        int half = dtype == NMLP_DTYPE_Q5M ? 16 : dtype == NMLP_DTYPE_Q6 || dtype == NMLP_DTYPE_Q6M ? 32 : 8;
        int lowest = dtype == NMLP_DTYPE_Q8 ? -127 : -half;
        int highest = dtype == NMLP_DTYPE_Q8 ? 127 : half - 1;
        paper_row(codes, p->w + i * COLS, upper, g.order, scales, group, lowest, highest);
        for (int j = 0; j < COLS; j++) differ += codes[j] != code_at(&out, i, j);
    }
    /* One tie that falls to the other side in f32 changes the rest of its row. */
    assert_true(differ <= COLS / 8);
    nmlp_gptq_fini(&g);
    free(p);
}

static void q4_codes_are_those_of_the_paper(void **state) {
    (void)state;
    codes_are_those_of_the_paper(NMLP_DTYPE_Q4);
}

static void q8_codes_are_those_of_the_paper(void **state) {
    (void)state;
    codes_are_those_of_the_paper(NMLP_DTYPE_Q8);
}

static void q6_codes_are_those_of_the_paper(void **state) {
    (void)state;
    codes_are_those_of_the_paper(NMLP_DTYPE_Q6);
}

static void multiplied_codes_are_those_of_the_paper(void **state) {
    (void)state;
    codes_are_those_of_the_paper(NMLP_DTYPE_Q6M);
    codes_are_those_of_the_paper(NMLP_DTYPE_Q5M);
    codes_are_those_of_the_paper(NMLP_DTYPE_Q4M);
}

static void it_loses_less_than_nearest_rounding(void **state) {
    const nmlp_dtype types[] = {NMLP_DTYPE_Q4,  NMLP_DTYPE_Q8,  NMLP_DTYPE_FP8, NMLP_DTYPE_Q6,
                                NMLP_DTYPE_Q6M, NMLP_DTYPE_Q5M, NMLP_DTYPE_Q4M};
    (void)state;
    for (int t = 0; t < 7; t++) {
        struct problem *p = new_problem(11);
        nmlp_view out = view_of(p, types[t]);
        nmlp_gptq g;
        nmlp_err err;
        double said, plain, swept;
        nmlp_assert_ok(nmlp_gptq_init(&g, NULL, p->moments, COLS, &err), &err);
        for (int i = 0; i < ROWS; i++) nmlp_quant_row_from_f32(&out, i, p->w + i * COLS);
        double nearest = loss_of(p->moments, p->w, &out);
        nmlp_assert_ok(nmlp_gptq_loss(&g, p->w, &out, &said, &err), &err);
        assert_true(fabs(said - nearest) < 1e-3 * nearest);
        int sweeps = g.sweeps;
        g.sweeps = 0;
        nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &plain, &err), &err);
        assert_true(fabs(plain - loss_of(p->moments, p->w, &out)) < 1e-3 * plain);
        g.sweeps = sweeps;
        nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &swept, &err), &err);
        assert_true(fabs(swept - loss_of(p->moments, p->w, &out)) < 1e-3 * swept);
        assert_true(plain < 0.6 * nearest && swept < plain);
        for (int i = 0; i < ROWS * COLS && types[t] == NMLP_DTYPE_FP8; i++) /* what both kinds of e4m3 have */
            assert_true((p->fp8[i] & 0x7f) <= 0x77);
        nmlp_gptq_fini(&g);
        free(p);
    }
}

/* At 4 bits multipliers of 16 lose less than f16 scales of 32, which take more bytes; at 6 bits less than one scale of
 * a row. No code times a multiplier leaves 8 bits. */
static void multipliers_pay_and_stay_in_their_range(void **state) {
    static const struct {
        nmlp_dtype with, without;
        int lowest, highest, step;
    } pairs[] = {{NMLP_DTYPE_Q4M, NMLP_DTYPE_Q4, -7, 8, 2}, {NMLP_DTYPE_Q6M, NMLP_DTYPE_Q6, -3, 4, 1}};
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct problem *p = new_problem(29);
        nmlp_gptq g;
        nmlp_err err;
        double with, without;
        nmlp_assert_ok(nmlp_gptq_init(&g, NULL, p->moments, COLS, &err), &err);
        nmlp_view out = view_of(p, pairs[t].without);
        nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &without, &err), &err);
        out = view_of(p, pairs[t].with);
        nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &with, &err), &err);
        assert_true(with < 0.95 * without);
        bool negative = false;
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) {
                int m = p->multipliers[i * (COLS / 16) + j / 16], code = code_at(&out, i, j) * m * pairs[t].step;
                assert_true(m != 0 && m >= pairs[t].lowest && m <= pairs[t].highest);
                assert_true(code >= -128 && code <= 127);
                negative |= m < 0;
            }
        assert_true(negative);
        nmlp_gptq_fini(&g);
        free(p);
    }
}

/* Against every multiplier of every group at every step of a fine grid, with nearest codes. */
static void searched_multipliers_are_near_the_best(void **state) {
    enum { N = 48, CODES = 16 };
    const nmlp_quant_multiplied format = {
        .lowest = -8, .highest = 7, .lowest_multiplier = -7, .highest_multiplier = 8, .group = 16};
    nmlp_rng rng;
    double ours = 0, best = 0;
    (void)state;
    nmlp_rng_seed(&rng, 8);
    for (int trial = 0; trial < 30; trial++) {
        float w[N], h[N], multipliers[N / 16], peak = 0;
        for (int i = 0; i < N; i++) {
            w[i] = (float)nmlp_rng_normal(&rng);
            h[i] = (float)(0.1 + nmlp_rng_uniform(&rng));
            peak = fmaxf(peak, fabsf(w[i]));
        }
        float step = nmlp_quant_search_multiplied(&format, w, h, N, multipliers);
        double least = INFINITY, found = 0;
        for (int i = 0; i < N; i++) {
            double scale = (double)step * (double)multipliers[i / 16];
            double q = fmin(fmax(nearbyint((double)w[i] / scale), -8), 7), e = (double)w[i] - q * scale;
            found += (double)h[i] * e * e;
        }
        for (int at = -300; at <= 300; at++) {
            double sum = 0, s = (double)peak / 64 * at / 200;
            for (int g = 0; g < N / 16 && at != 0; g++) {
                double of_group = INFINITY;
                for (int m = -7; m <= 8; m++) {
                    double error = 0;
                    for (int i = 16 * g; i < 16 * g + 16 && m != 0; i++) {
                        double q = fmin(fmax(nearbyint((double)w[i] / (s * m)), -8), 7), e = (double)w[i] - q * s * m;
                        error += (double)h[i] * e * e;
                    }
                    if (m != 0) of_group = fmin(of_group, error);
                }
                sum += of_group;
            }
            if (at != 0) least = fmin(least, sum);
        }
        ours += found;
        best += least;
    }
    assert_true(ours < 1.08 * best);
}

/* Weights that are mostly of one sign: zero points lose much less, with sweeps less again; codes and zero points are in
 * their range, and the loss said is that of what was stored. */
static void zero_points_pay_where_groups_are_lopsided(void **state) {
    struct problem *p = new_problem(23);
    nmlp_gptq g;
    nmlp_err err;
    double without, plain, swept;
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) p->w[i] += (float)(i / GROUP % 3 - 1) * 0.15f;
    nmlp_assert_ok(nmlp_gptq_init(&g, NULL, p->moments, COLS, &err), &err);
    nmlp_view out = view_of(p, NMLP_DTYPE_Q4);
    nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &without, &err), &err);
    out.per_group = p->zeros;
    int sweeps = g.sweeps;
    g.sweeps = 0;
    nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &plain, &err), &err);
    assert_true(fabs(plain - loss_of(p->moments, p->w, &out)) < 1e-3 * plain);
    g.sweeps = sweeps;
    nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &swept, &err), &err);
    assert_true(fabs(swept - loss_of(p->moments, p->w, &out)) < 1e-3 * swept);
    assert_true(swept < plain && swept < 0.75 * without);
    int used = 0;
    for (int i = 0; i < ROWS * (COLS / GROUP); i++) {
        assert_true(p->zeros[i] >= -8 && p->zeros[i] <= 7);
        used += p->zeros[i] != 0;
    }
    assert_true(used > ROWS);
    nmlp_gptq_fini(&g);
    free(p);
}

/* Against every zero point and every scale on a fine grid, with nearest codes. */
static void searched_zero_points_are_near_the_best(void **state) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 6);
    double ours = 0, best = 0;
    (void)state;
    for (int trial = 0; trial < 60; trial++) {
        float w[GROUP], h[GROUP], shift = (float)nmlp_rng_normal(&rng);
        int zero;
        for (int i = 0; i < GROUP; i++) {
            w[i] = (float)nmlp_rng_normal(&rng) + shift;
            h[i] = (float)(0.1 + nmlp_rng_uniform(&rng));
        }
        double least = INFINITY;
        float found = nmlp_quant_search_q4_zero(w, h, GROUP, &zero);
        for (int z = -8; z <= 7; z++)
            for (int step = 0; step <= 800; step++) {
                float scale = step ? (float)step * 0.001f : found;
                double error = 0;
                for (int i = 0; i < GROUP; i++) {
                    double e = (double)w[i] - (double)scale * (double)nmlp_quant_code(w[i], 1 / scale, (float)(-8 - z),
                                                                                      (float)(7 - z));
                    error += (double)h[i] * e * e;
                }
                if (error < least) least = error;
                if (step == 0 && z == zero) ours += error;
            }
        best += least;
    }
    assert_true(ours < 1.06 * best);
}

/* What is exact in the format comes back exactly. */
static void codes_in_the_format_stay(void **state) {
    struct problem *p = new_problem(3);
    nmlp_view out = view_of(p, NMLP_DTYPE_Q4);
    nmlp_gptq g;
    nmlp_err err;
    double loss;
    (void)state;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++) p->w[i * COLS + j] = 0.0625f * (float)((i * 7 + j * 5 + j * j) % 16 - 8);
    for (int j = 0; j < COLS; j++) p->w[j] = 0; /* a row of nothing */
    for (int i = 0; i < ROWS; i++)
        for (int s = 0; i > 0 && s < COLS / GROUP; s++) p->w[i * COLS + s * GROUP] = -0.5f; /* every group has its -8 */
    nmlp_assert_ok(nmlp_gptq_init(&g, NULL, p->moments, COLS, &err), &err);
    nmlp_assert_ok(nmlp_gptq_round(&g, p->w, &out, &loss, &err), &err);
    for (int i = 0; i < ROWS; i++) {
        float row[COLS];
        nmlp_quant_row_to_f32(row, &out, i);
        for (int j = 0; j < COLS; j++) assert_true(row[j] == p->w[i * COLS + j]);
    }
    nmlp_gptq_fini(&g);
    free(p);
}

/* Weights so small that the reciprocal of their scale is infinite: zeros among them would have NaN for a code. */
static void tiny_weights_have_scales_that_can_be_divided_by(void **state) {
    static float (*const searches[])(const float *, const float *, int64_t) = {
        nmlp_quant_search_q8, nmlp_quant_search_q6, nmlp_quant_search_q4, nmlp_quant_search_fp8};
    float w[GROUP], h[GROUP];
    (void)state;
    for (int i = 0; i < GROUP; i++) {
        w[i] = 1e-40f * (float)(i % 5 - 2);
        h[i] = 1;
    }
    for (int s = 0; s < 4; s++) {
        float scale = searches[s](w, h, GROUP);
        assert_true(scale == 0 || isfinite(1 / scale));
    }
}

/* Against every scale on a fine grid, with nearest codes. */
static void searched_scales_are_near_the_best(void **state) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 5);
    double ours = 0, best = 0, peak = 0;
    (void)state;
    for (int trial = 0; trial < 200; trial++) {
        float w[GROUP], h[GROUP], top = 0;
        for (int i = 0; i < GROUP; i++) {
            w[i] = (float)nmlp_rng_normal(&rng);
            h[i] = (float)(0.1 + nmlp_rng_uniform(&rng));
            if (fabsf(w[i]) > fabsf(top)) top = w[i];
        }
        double least = INFINITY, errors[2];
        const float scales[] = {nmlp_quant_search_q4(w, h, GROUP), top / -8};
        for (int k = 0; k < 2; k++) {
            errors[k] = 0;
            for (int i = 0; i < GROUP; i++) {
                double e = (double)w[i] - (double)scales[k] * (double)nmlp_quant_code(w[i], 1 / scales[k], -8, 7);
                errors[k] += (double)h[i] * e * e;
            }
        }
        for (int step = -4000; step <= 4000; step++) {
            float scale = (float)step * 0.0002f;
            double error = 0;
            if (step == 0) continue;
            for (int i = 0; i < GROUP; i++) {
                double e = (double)w[i] - (double)scale * (double)nmlp_quant_code(w[i], 1 / scale, -8, 7);
                error += (double)h[i] * e * e;
            }
            if (error < least) least = error;
        }
        ours += errors[0];
        peak += errors[1];
        best += least;
    }
    assert_true(ours < 1.06 * best);
    assert_true(ours < 0.9 * peak);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_codes_are_those_of_the_paper),
        cmocka_unit_test(q8_codes_are_those_of_the_paper),
        cmocka_unit_test(q6_codes_are_those_of_the_paper),
        cmocka_unit_test(multiplied_codes_are_those_of_the_paper),
        cmocka_unit_test(multipliers_pay_and_stay_in_their_range),
        cmocka_unit_test(searched_multipliers_are_near_the_best),
        cmocka_unit_test(it_loses_less_than_nearest_rounding),
        cmocka_unit_test(codes_in_the_format_stay),
        cmocka_unit_test(tiny_weights_have_scales_that_can_be_divided_by),
        cmocka_unit_test(searched_scales_are_near_the_best),
        cmocka_unit_test(zero_points_pay_where_groups_are_lopsided),
        cmocka_unit_test(searched_zero_points_are_near_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
