#include "lib/truth.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "lib/testing.h"
#include "tensor/quant.h"

static const double U32 = 0x1p-24;
static const double U_BF16 = 0x1p-8;
static const double TINY = 0x1p-120; /* tiles flush subnormals */

static nmlp_truth make(int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows * cols);
    return (nmlp_truth){.rows = rows,
                        .cols = cols,
                        .value = nmlp_mem_new(n, sizeof(double), NULL),
                        .bound = nmlp_mem_new(n, sizeof(double), NULL)};
}

void nmlp_truth_free(nmlp_truth *truth) {
    nmlp_mem_free(truth->value);
    nmlp_mem_free(truth->bound);
    *truth = (nmlp_truth){0};
}

nmlp_truth nmlp_truth_of(const float *x, int64_t rows, int64_t cols) {
    nmlp_truth truth = make(rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) truth.value[i] = x[i];
    return truth;
}

static double sum_factor(int64_t n) {
    double nu = (double)(n + 2) * U32;
    return nu / (1.0 - nu);
}

/* What rounding to int16 in groups of 32 inputs may add to each: half a step of its group, whose largest is 32767. With
 * a plain weight nothing, nor with FP8, whose inputs stay as they are. */
static double *quantised_errors(const nmlp_truth *x, const nmlp_view *w) {
    int64_t k = x->cols;
    double *errors = nmlp_mem_new((size_t)(x->rows * k), sizeof *errors, NULL);
    bool rounds = nmlp_dtype_is_quantised(w->dtype) && w->dtype != NMLP_DTYPE_FP8;
    for (int64_t i = 0; rounds && i < x->rows * k; i++) {
        double size = fabs(x->value[i]) + x->bound[i];
        int64_t first = i - i % k % 32;
        if (size / 32767.0 * 0.501 > errors[first]) errors[first] = size / 32767.0 * 0.501;
    }
    for (int64_t i = 0; i < x->rows * k; i++) errors[i] = errors[i - i % k % 32];
    return errors;
}

nmlp_truth nmlp_truth_matmul(const nmlp_truth *x, const nmlp_view *w, const float *bias, bool bf16) {
    int64_t n = w->shape[0];
    int64_t k = w->shape[1];
    nmlp_truth y = make(x->rows, n);
    float *row = nmlp_mem_new((size_t)k, sizeof *row, NULL);
    double *errors = quantised_errors(x, w);
    double round_x = bf16 ? U_BF16 : 0.0;
    bool exact = w->dtype == NMLP_DTYPE_BF16 || w->dtype == NMLP_DTYPE_FP8; /* in bf16 */
    double round_w = bf16 && !exact ? U_BF16 : w->dtype == NMLP_DTYPE_FP8 ? U32 : 0.0;
    for (int64_t j = 0; j < n; j++) {
        nmlp_quant_row_to_f32(row, w, j);
        for (int64_t s = 0; s < x->rows; s++) {
            const double *value = x->value + s * k;
            const double *bound = x->bound + s * k;
            const double *error = errors + s * k;
            double sum = bias ? bias[j] : 0.0;
            double size = fabs(sum);
            double carried = 0.0;
            for (int64_t i = 0; i < k; i++) {
                double weight = fabs((double)row[i]);
                double x_error = bound[i] + round_x * (fabs(value[i]) + bound[i]);
                x_error += error[i];
                double w_error = round_w * weight;
                sum += value[i] * (double)row[i];
                size += (fabs(value[i]) + x_error) * (weight + w_error);
                carried += x_error * weight + (fabs(value[i]) + x_error) * w_error;
            }
            y.value[s * n + j] = sum;
            y.bound[s * n + j] = carried + sum_factor(k) * size + TINY;
        }
    }
    nmlp_mem_free(row);
    nmlp_mem_free(errors);
    return y;
}

nmlp_truth nmlp_truth_project(const nmlp_truth *x, const nmlp_factors *f, bool bf16) {
    if (f->w.data) return nmlp_truth_matmul(x, &f->w, NULL, bf16);
    nmlp_truth inner = nmlp_truth_matmul(x, &f->v, NULL, bf16);
    nmlp_truth y = nmlp_truth_matmul(&inner, &f->u, NULL, bf16);
    nmlp_truth_free(&inner);
    return y;
}

static double activation_of(double x, nmlp_activation activation) {
    double gelu = 2.0 * sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
    return x / (1.0 + exp(activation == NMLP_ACTIVATION_SILU ? -x : -gelu));
}

/* Both slopes are at most 1.13; the value is taken as right to 8 units: exp to 2, and a sum, a quotient and a product.
 * GELU's exponent has three roundings of its own, and it may be large where the value is small. */
nmlp_truth nmlp_truth_gate(const nmlp_truth *gate, const nmlp_truth *up, nmlp_activation activation) {
    nmlp_truth act = make(gate->rows, gate->cols);
    for (int64_t i = 0; i < gate->rows * gate->cols; i++) {
        double units = activation == NMLP_ACTIVATION_SILU ? 8.0 : 32.0;
        double f = activation_of(gate->value[i], activation);
        double f_error = 1.13 * gate->bound[i] + units * U32 * (fabs(f) + 1.13 * gate->bound[i]);
        act.value[i] = f * up->value[i];
        act.bound[i] =
            f_error * (fabs(up->value[i]) + up->bound[i]) + fabs(f) * up->bound[i] + U32 * fabs(act.value[i]) + TINY;
    }
    return act;
}

nmlp_truth nmlp_truth_mlp(const nmlp_truth *x, const nmlp_mlp_desc *desc, bool bf16) {
    nmlp_truth gate = nmlp_truth_project(x, &desc->gate, bf16);
    nmlp_truth up = nmlp_truth_project(x, &desc->up, bf16);
    nmlp_truth act = nmlp_truth_gate(&gate, &up, desc->activation);
    nmlp_truth y = nmlp_truth_project(&act, &desc->down, bf16);
    nmlp_truth_free(&gate);
    nmlp_truth_free(&up);
    nmlp_truth_free(&act);
    return y;
}

struct attending {
    const nmlp_attention *args;
    const float *k;
    const float *v;
    double round_kv; /* relative errors of keys and values, and of queries and probabilities */
    double round_qp;
    double exp_error; /* beyond that of f32 */
    double *score;
};

static struct attending attending_of(const nmlp_attention *args, const float *k, const float *v) {
    struct attending a = {.args = args, .k = k, .v = v};
    bool few = args->s * (args->n_heads / args->kv.n_heads) <= NMLP_ATTENTION_FEW_ROWS;
    if (!nmlp_kernels_rounds_to_bf16(args->kv.kernels)) return a;
    a.round_kv = U_BF16;
    if (few) return a;
    a.round_qp = U_BF16;
    a.exp_error = ldexp(1.0, -8);
    return a;
}

static double product_error(double a, double b) { return a + b + a * b; }

/* One query of one head. A score's error e changes its probability by a factor within exp(+-2e); the sums add their
 * own. */
static void attend(nmlp_truth *out, const struct attending *at, int64_t query, int64_t head) {
    const nmlp_attention *a = at->args;
    int64_t dim = a->kv.head_dim;
    int64_t n_keys = a->first_pos + query + 1;
    int64_t stride = a->kv.n_heads * dim;
    int64_t kv_head = head / (a->n_heads / a->kv.n_heads);
    const float *q = a->q + (query * a->n_heads + head) * dim;
    const float *k = at->k + kv_head * dim;
    const float *v = at->v + kv_head * dim;
    double *score = at->score;
    double max = -INFINITY;
    double sum = 0.0;
    double score_error = 0.0;
    int64_t first = a->window > 0 && n_keys > a->window ? n_keys - a->window : 0;
    for (int64_t t = first; t < n_keys; t++) {
        double dot = 0.0;
        double size = 0.0;
        for (int64_t d = 0; d < dim; d++) {
            dot += (double)q[d] * k[t * stride + d];
            size += fabs((double)q[d] * k[t * stride + d]);
        }
        score[t] = dot * a->scale;
        double relative = sum_factor(dim) + 2.0 * U32 + product_error(at->round_qp, at->round_kv);
        score_error = fmax(score_error, relative * size * a->scale);
        if (a->softcap > 0) { /* its slope is at most 1; a few units of its own */
            score[t] = a->softcap * tanh(score[t] / a->softcap);
            score_error = fmax(score_error, relative * size * a->scale + 16.0 * U32 * a->softcap);
        }
        max = fmax(max, score[t]);
    }
    for (int64_t t = first; t < n_keys; t++) sum += score[t] = exp(score[t] - max);
    for (int64_t d = 0; d < dim; d++) {
        double value = 0.0;
        double size = 0.0;
        for (int64_t t = first; t < n_keys; t++) {
            value += score[t] / sum * v[t * stride + d];
            size += score[t] / sum * fabs((double)v[t * stride + d]);
        }
        int64_t i = query * out->cols + head * dim + d;
        out->value[i] = value;
        /* exp to 2 units, twice the sum's error (numerator, denominator), and a rescaling per block of keys */
        double relative = expm1(2.0 * score_error) + 2.0 * sum_factor(n_keys) + (16.0 + (double)n_keys / 16.0) * U32;
        relative += product_error(at->round_qp, at->round_kv) + 2.0 * at->exp_error; /* of probability and value */
        out->bound[i] = relative * size + TINY;
    }
}

nmlp_truth nmlp_truth_attention(const nmlp_attention *args, const float *k, const float *v) {
    nmlp_truth out = make(args->s, args->n_heads * args->kv.head_dim);
    struct attending at = attending_of(args, k, v);
    at.score = nmlp_mem_new((size_t)(args->first_pos + args->s), sizeof *at.score, NULL);
    for (int64_t query = 0; query < args->s; query++)
        for (int64_t head = 0; head < args->n_heads; head++) attend(&out, &at, query, head);
    nmlp_mem_free(at.score);
    return out;
}

void nmlp_assert_within(const float *got, const nmlp_truth *truth, const char *what) {
    for (int64_t i = 0; i < truth->rows * truth->cols; i++) {
        double off = fabs((double)got[i] - truth->value[i]);
        if (off <= truth->bound[i]) continue;
        fail_msg("%s: row %lld column %lld is %.9g, expected %.9g, off by %.3g where %.3g is allowed", what,
                 (long long)(i / truth->cols), (long long)(i % truth->cols), (double)got[i], truth->value[i], off,
                 truth->bound[i]);
    }
}

float *nmlp_test_floats(int64_t n, uint64_t seed) {
    nmlp_rng rng;
    float *x = nmlp_mem_new((size_t)n, sizeof *x, NULL);
    nmlp_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n; i++) x[i] = (float)nmlp_rng_normal(&rng);
    return x;
}

static float *wide_weight(int64_t n, int64_t k, uint64_t seed) {
    float *wide = nmlp_test_floats(n * k, seed);
    for (int64_t i = 0; i < n * k; i++) wide[i] /= sqrtf((float)k);
    return wide;
}

static nmlp_view quantise_q8(const float *wide, int64_t n, int64_t k) {
    int8_t *data = nmlp_mem_new((size_t)(n * k), 1, NULL);
    float *scales = nmlp_mem_new((size_t)n, sizeof *scales, NULL);
    for (int64_t i = 0; i < n; i++) nmlp_quant_row_q8(data + i * k, scales + i, wide + i * k, k);
    return nmlp_quant_view_q8(data, scales, n, k);
}

static nmlp_view quantise_q4(const float *wide, int64_t n, int64_t k, int group) {
    int64_t row_bytes = (k + 1) / 2, n_groups = (k + group - 1) / group;
    uint8_t *data = nmlp_mem_new((size_t)(n * row_bytes), 1, NULL);
    uint16_t *scales = nmlp_mem_new((size_t)(n * n_groups), sizeof *scales, NULL);
    for (int64_t i = 0; i < n; i++)
        nmlp_quant_row_q4(data + i * row_bytes, scales + i * n_groups, NULL, group, wide + i * k, k);
    return nmlp_quant_view_q4(data, scales, group, n, k);
}

static nmlp_view quantise_fp8(const float *wide, int64_t n, int64_t k) {
    uint8_t *data = nmlp_mem_new((size_t)(n * k), 1, NULL);
    float *scales = nmlp_mem_new((size_t)n, sizeof *scales, NULL);
    for (int64_t i = 0; i < n; i++) nmlp_quant_row_fp8(data + i * k, scales + i, wide + i * k, k);
    return nmlp_quant_view_fp8(data, scales, n, k);
}

/* Q6 and types with multipliers. */
static nmlp_view quantise_words(const float *wide, int64_t n, int64_t k, nmlp_dtype dtype) {
    nmlp_view view = nmlp_view_2d(NULL, dtype, n, k);
    view.data = nmlp_mem_new(nmlp_view_bytes(&view), 1, NULL);
    view.scales = nmlp_mem_new(nmlp_quant_scale_bytes(&view), 1, NULL);
    if (nmlp_quant_has_multipliers(dtype)) {
        view.group = NMLP_QUANT_MULTIPLIER_GROUP;
        view.per_group = nmlp_mem_new((size_t)(n * nmlp_quant_groups(&view)), 1, NULL);
    }
    for (int64_t i = 0; i < n; i++) nmlp_quant_row_from_f32(&view, i, wide + i * k);
    return view;
}

nmlp_view nmlp_test_quantised(int64_t n, int64_t k, int group, uint64_t seed) {
    float *wide = wide_weight(n, k, seed);
    nmlp_view view = group ? quantise_q4(wide, n, k, group) : quantise_q8(wide, n, k);
    nmlp_mem_free(wide);
    return view;
}

nmlp_view nmlp_test_with_zeros(int64_t n, int64_t k, int group, uint64_t seed) {
    int64_t row_bytes = (k + 1) / 2, n_groups = (k + group - 1) / group;
    float *wide = wide_weight(n, k, seed);
    nmlp_view view = nmlp_quant_view_q4(nmlp_mem_new((size_t)(n * row_bytes), 1, NULL),
                                        nmlp_mem_new((size_t)(n * n_groups), sizeof(uint16_t), NULL), group, n, k);
    view.per_group = nmlp_mem_new((size_t)(n * n_groups), 1, NULL);
    for (int64_t i = 0; i < n * k; i++) wide[i] += (float)(i / group % 5 - 2) * 0.7f / sqrtf((float)k);
    for (int64_t i = 0; i < n; i++) nmlp_quant_row_from_f32(&view, i, wide + i * k);
    nmlp_mem_free(wide);
    return view;
}

nmlp_view nmlp_test_weight(int64_t n, int64_t k, nmlp_dtype dtype, uint64_t seed) {
    if (dtype == NMLP_DTYPE_Q8 || dtype == NMLP_DTYPE_Q4)
        return nmlp_test_quantised(n, k, dtype == NMLP_DTYPE_Q4 ? 32 : 0, seed);
    float *wide = wide_weight(n, k, seed);
    if (nmlp_dtype_is_quantised(dtype)) {
        nmlp_view view = dtype == NMLP_DTYPE_FP8 ? quantise_fp8(wide, n, k) : quantise_words(wide, n, k, dtype);
        nmlp_mem_free(wide);
        return view;
    }
    void *data = nmlp_mem_new((size_t)(n * k), nmlp_dtype_bytes(dtype), NULL);
    nmlp_from_f32(data, dtype, wide, (size_t)(n * k));
    nmlp_mem_free(wide);
    return nmlp_view_2d(data, dtype, n, k);
}

void nmlp_test_weight_free(nmlp_view *view) {
    nmlp_mem_free((void *)(uintptr_t)view->data);
    nmlp_mem_free((void *)(uintptr_t)view->scales);
    nmlp_mem_free((void *)(uintptr_t)view->per_group);
    *view = (nmlp_view){0};
}

const nmlp_kernels *nmlp_test_set(int i) {
    static const char *const names[NMLP_TEST_SETS] = {"ref", "avx2", "avx512", "avx512bf16", "amx", "amx-emu"};
    const nmlp_kernels *set;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_err err;
    nmlp_status st = nmlp_kernels_select(&set, cpu, names[i], &err);
    if (st == NMLP_OK) return set;
    if (st != NMLP_E_UNSUPPORTED) nmlp_assert_ok(st, &err);
    fprintf(stderr, "SKIPPED: %s\n", err.message);
    return NULL;
}

nmlp_pool *nmlp_test_pool(int n_threads) {
    nmlp_pool *pool;
    nmlp_err err;
    nmlp_assert_ok(nmlp_pool_create(&pool, n_threads, &err), &err);
    return pool;
}
