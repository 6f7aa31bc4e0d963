/* Factors against an independent truth: LAPACK's gesdd of the whitened matrix, and errors computed from their
 * definition. */
#include "lib/testing.h"
#include "lib/truth.h"

#include <lapacke.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/factor/factorise.h"
#include "compress/calibrate/gram.h"
#include "compress/calibrate/gram.h"
#include "compress/factor/products.h"
#include "linalg/linalg.h"
#include "tensor/dtype.h"

#undef I /* complex.h, which lapacke.h brings */
enum { H = 24, I = 56, T = 400 };

/* A small MLP with correlated inputs, all in f64. */
struct fixture {
    double w[3][I * H]; /* gate [I,H], up [I,H], down [H,I] */
    double input[H * H];
    double output[H * H];
    double act2[I];
    double d[2][I];
};

static double mean_product(const float *a, const float *b, int stride_a, int stride_b, int tokens) {
    double sum = 0;
    for (int t = 0; t < tokens; t++) sum += (double)a[t * stride_a] * (double)b[t * stride_b];
    return sum / tokens;
}

static struct fixture *new_fixture(uint64_t seed, int tokens) {
    nmlp_rng rng;
    nmlp_err err;
    struct fixture *f = nmlp_mem_new(1, sizeof *f, &err);
    assert_non_null(f);
    nmlp_rng_seed(&rng, seed);
    for (int m = 0; m < 3; m++)
        for (int i = 0; i < I * H; i++) f->w[m][i] = nmlp_rng_normal(&rng) / sqrt(H);
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < I; i++) f->d[m][i] = exp(0.7 * nmlp_rng_normal(&rng));
    float *x = nmlp_mem_new((size_t)(tokens * H), sizeof *x, &err);
    float *y = nmlp_mem_new((size_t)(tokens * H), sizeof *y, &err);
    for (int t = 0; t < tokens; t++) {
        double common = nmlp_rng_normal(&rng);
        double act[I];
        for (int i = 0; i < H; i++) x[t * H + i] = (float)((common + nmlp_rng_normal(&rng)) / (1 + i));
        for (int j = 0; j < I; j++) {
            act[j] = common + nmlp_rng_normal(&rng);
            f->act2[j] += act[j] * act[j] / tokens;
        }
        for (int i = 0; i < H; i++) {
            double sum = 0;
            for (int j = 0; j < I; j++) sum += f->w[2][i * I + j] * act[j];
            y[t * H + i] = (float)sum;
        }
    }
    for (int i = 0; i < H; i++) {
        for (int j = 0; j < H; j++) {
            f->input[i * H + j] = mean_product(x + i, x + j, H, H, tokens);
            f->output[i * H + j] = mean_product(y + i, y + j, H, H, tokens);
        }
    }
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    return f;
}

/* What the factors shall be of: f32, so that everything is computed in f64. */
#define VIEWS(f)                                                                                                       \
    {nmlp_view_2d((f)->w[0], NMLP_DTYPE_F32, I, H), nmlp_view_2d((f)->w[1], NMLP_DTYPE_F32, I, H),                     \
     nmlp_view_2d((f)->w[2], NMLP_DTYPE_F32, H, I)}

static void factorise(nmlp_nested *nested, struct fixture *f, bool whiten, bool weights) {
    nmlp_err err;
    double *input = nmlp_mem_new(H * H, sizeof *input, &err);
    double *output = nmlp_mem_new(H * H, sizeof *output, &err);
    memcpy(input, f->input, sizeof f->input);
    memcpy(output, f->output, sizeof f->output);
    nmlp_module_moments m = {.hidden = H,
                             .n_first = 2,
                             .rows = {I, I},
                             .inner = I,
                             .w = {f->w[0], f->w[1], f->w[2]},
                             .views = VIEWS(f),
                             .input = whiten ? input : NULL,
                             .output = whiten ? output : NULL,
                             .d = {weights ? f->d[0] : NULL, weights ? f->d[1] : NULL},
                             .separate = true,
                             .joint = true};
    nmlp_assert_ok(nmlp_factorise_module(nested, &m, NULL, &err), &err);
    nmlp_mem_free(input);
    nmlp_mem_free(output);
}

static void release(nmlp_nested *nested) {
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&nested[i]);
}

/* tr[(W-uv) C (W-uv)^T] with rows weighted by d, from the definition. */
static double direct_loss(const nmlp_nested *n, const double *w, const double *d, const double *c, int64_t rank) {
    double total = 0;
    const float *ut = n->ut;
    const float *v = n->v;
    for (int64_t i = 0; i < n->rows; i++) {
        double e[I];
        for (int64_t j = 0; j < n->cols; j++) {
            e[j] = w[i * n->cols + j];
            for (int64_t k = 0; k < rank; k++) e[j] -= (double)ut[k * n->rows + i] * (double)v[k * n->cols + j];
        }
        double sum = 0;
        for (int64_t j = 0; j < n->cols; j++)
            for (int64_t k = 0; k < n->cols; k++) sum += e[j] * (c ? c[j * n->cols + k] : j == k) * e[k];
        total += sum * (d ? d[i] * d[i] : 1);
    }
    return total;
}

/* Squared singular values of D W S by LAPACK's gesdd, S a Cholesky factor made here. */
static void whitened_spectrum(double *sigma2, const double *w, const double *d, const double *c) {
    double s[H * H] = {0}, m[I * H], sv[H], u[1], vt[1];
    for (int i = 0; i < H; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = c[i * H + j];
            for (int k = 0; k < j; k++) sum -= s[i * H + k] * s[j * H + k];
            s[i * H + j] = i == j ? sqrt(sum) : sum / s[j * H + j];
        }
    }
    for (int i = 0; i < I; i++) {
        for (int j = 0; j < H; j++) {
            m[i * H + j] = 0;
            for (int k = 0; k < H; k++) m[i * H + j] += (d ? d[i] : 1) * w[i * H + k] * s[k * H + j];
        }
    }
    assert_int_equal(LAPACKE_dgesdd(LAPACK_ROW_MAJOR, 'N', I, H, m, H, sv, u, 1, vt, H), 0);
    for (int i = 0; i < H; i++) sigma2[i] = sv[i] * sv[i];
}

static void curve_is_the_optimum_of_gesdd_and_the_factors_reach_it(void **state) {
    (void)state;
    struct fixture *f = new_fixture(11, T);
    for (int weights = 0; weights < 2; weights++) {
        nmlp_nested nested[NMLP_NESTED_COUNT];
        double sigma2[H];
        const double *d = weights ? f->d[0] : NULL;
        factorise(nested, f, true, weights);
        const nmlp_nested *gate = &nested[NMLP_NESTED_GATE];
        whitened_spectrum(sigma2, f->w[0], d, f->input);
        for (int64_t k = 0; k <= gate->rank; k++) {
            double best = 0; /* Eckart-Young: no rank-k matrix does better than the tail of the spectrum */
            for (int64_t i = k; i < H; i++) best += sigma2[i];
            /* 1e-5: the jitter of 1e-6 on the diagonal and factors rounded to f32 */
            assert_true(fabs(gate->loss[k] - best) < 1e-5 * gate->loss[0]);
            assert_true(fabs(direct_loss(gate, f->w[0], d, f->input, k) - best) < 1e-5 * gate->loss[0]);
        }
        release(nested);
    }
    nmlp_mem_free(f);
}

static void no_whitening_gives_the_plain_svd(void **state) {
    (void)state;
    struct fixture *f = new_fixture(12, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    double m[I * H], sv[H], u[1], vt[1];
    factorise(nested, f, false, false);
    memcpy(m, f->w[2], sizeof m);
    assert_int_equal(LAPACKE_dgesdd(LAPACK_ROW_MAJOR, 'N', H, I, m, I, sv, u, 1, vt, I), 0);
    const nmlp_nested *down = &nested[NMLP_NESTED_DOWN];
    for (int64_t k = 0; k <= down->rank; k++) {
        double best = 0;
        for (int64_t i = k; i < H; i++) best += sv[i] * sv[i];
        assert_true(fabs(direct_loss(down, f->w[2], NULL, NULL, k) - best) < 1e-5 * down->loss[0]);
    }
    release(nested);
    nmlp_mem_free(f);
}

static void down_reaches_the_optimum_for_its_output_gram(void **state) {
    (void)state;
    struct fixture *f = new_fixture(13, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    factorise(nested, f, true, false);
    const nmlp_nested *down = &nested[NMLP_NESTED_DOWN];
    const float *ut = down->ut;
    for (int64_t k = 0; k <= down->rank; k++) {
        /* u has orthogonal columns, so the loss is what the projection leaves of the output Gram */
        double left = 0;
        for (int i = 0; i < H; i++) left += f->output[i * H + i];
        for (int64_t r = 0; r < k; r++) {
            double norm2 = 0, energy = 0;
            for (int i = 0; i < H; i++) {
                norm2 += (double)ut[r * H + i] * (double)ut[r * H + i];
                for (int j = 0; j < H; j++)
                    energy += (double)ut[r * H + i] * f->output[i * H + j] * (double)ut[r * H + j];
            }
            left -= energy / norm2;
        }
        assert_true(fabs(left - down->loss[k]) < 1e-5 * down->loss[0]);
    }
    release(nested);
    nmlp_mem_free(f);
}

static void joint_curve_is_the_loss_of_both_matrices_together(void **state) {
    (void)state;
    struct fixture *f = new_fixture(14, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    factorise(nested, f, true, true);
    nmlp_nested half = nested[NMLP_NESTED_JOINT];
    float *both[2];
    nmlp_err err;
    half.rows = I;
    for (int m = 0; m < 2; m++) {
        const float *ut = nested[NMLP_NESTED_JOINT].ut;
        both[m] = nmlp_mem_new((size_t)(half.rank * I), sizeof(float), &err);
        for (int64_t k = 0; k < half.rank; k++) memcpy(both[m] + k * I, ut + k * 2 * I + m * I, I * sizeof(float));
    }
    for (int64_t k = 1; k <= half.rank; k += 3) {
        double direct = 0;
        for (int m = 0; m < 2; m++) {
            half.ut = both[m];
            direct += direct_loss(&half, f->w[m], f->d[m], f->input, k);
        }
        assert_true(fabs(direct - half.loss[k]) < 1e-5 * half.loss[0]);
        assert_true(half.loss[k] >=
                    nested[NMLP_NESTED_GATE].loss[k] + nested[NMLP_NESTED_UP].loss[k] - 1e-9 * half.loss[0]);
    }
    nmlp_mem_free(both[0]);
    nmlp_mem_free(both[1]);
    release(nested);
    nmlp_mem_free(f);
}

static void assert_finite(const nmlp_nested *nested) {
    for (int i = 0; i <= NMLP_NESTED_JOINT; i++) {
        const float *ut = nested[i].ut;
        const float *v = nested[i].v;
        for (int64_t k = 0; k < nested[i].rank * nested[i].rows; k++)
            assert_true(isfinite(ut[k]) && fabsf(ut[k]) < 1e3f);
        for (int64_t k = 0; k < nested[i].rank * nested[i].cols; k++) assert_true(isfinite(v[k]) && fabsf(v[k]) < 1e3f);
        for (int64_t k = 0; k <= nested[i].full; k++)
            assert_true(isfinite(nested[i].loss[k]) && nested[i].loss[k] >= 0);
    }
}

static void fewer_tokens_than_channels_give_finite_factors(void **state) {
    (void)state;
    struct fixture *f = new_fixture(15, 5); /* Gram of rank 5 in 24 channels */
    nmlp_nested nested[NMLP_NESTED_COUNT];
    factorise(nested, f, true, true);
    assert_finite(nested);
    assert_true(nested[NMLP_NESTED_GATE].loss[5] <
                1e-4 * nested[NMLP_NESTED_GATE].loss[0]); /* 5 directions are all there is */
    release(nested);
    nmlp_mem_free(f);
}

static void dead_channel_costs_nothing_and_breaks_nothing(void **state) {
    (void)state;
    struct fixture *f = new_fixture(16, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    for (int i = 0; i < H; i++) f->input[3 * H + i] = f->input[i * H + 3] = 0;
    factorise(nested, f, true, true);
    assert_finite(nested);
    release(nested);
    nmlp_mem_free(f);
}

static void zero_matrix_gives_zero_factors(void **state) {
    (void)state;
    struct fixture *f = new_fixture(17, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    memset(f->w, 0, sizeof f->w);
    memset(f->output, 0, sizeof f->output);
    factorise(nested, f, true, true);
    assert_finite(nested);
    assert_true(direct_loss(&nested[NMLP_NESTED_GATE], f->w[0], NULL, f->input, 4) == 0);
    release(nested);
    nmlp_mem_free(f);
}

static void rank_one_matrix_is_exact_at_rank_one(void **state) {
    (void)state;
    struct fixture *f = new_fixture(18, T);
    nmlp_nested nested[NMLP_NESTED_COUNT];
    for (int i = 0; i < I; i++)
        for (int j = 0; j < H; j++) f->w[0][i * H + j] = (1 + i % 5) * 0.1 * (j - 10);
    factorise(nested, f, true, false);
    assert_finite(nested);
    const nmlp_nested *gate = &nested[NMLP_NESTED_GATE];
    assert_true(gate->loss[1] < 1e-12 * gate->loss[0]);
    for (int64_t k = 1; k <= gate->rank; k += 5) /* more rank adds no noise */
        assert_true(direct_loss(gate, f->w[0], NULL, f->input, k) < 1e-10 * gate->loss[0]);
    release(nested);
    nmlp_mem_free(f);
}

static void a_shared_basis_alone_is_the_one_made_with_the_others(void **state) {
    nmlp_nested all[NMLP_NESTED_COUNT], alone[NMLP_NESTED_COUNT];
    nmlp_err err;
    struct fixture *f = new_fixture(31, T);
    (void)state;
    factorise(all, f, false, true);
    nmlp_module_moments m = {.hidden = H,
                             .n_first = 2,
                             .rows = {I, I},
                             .inner = I,
                             .w = {f->w[0], f->w[1], f->w[2]},
                             .views = VIEWS(f),
                             .d = {f->d[0], f->d[1]},
                             .joint = true};
    nmlp_assert_ok(nmlp_factorise_module(alone, &m, NULL, &err), &err);
    assert_int_equal(alone[NMLP_NESTED_GATE].rank, 0);
    assert_int_equal(alone[NMLP_NESTED_UP].rank, 0);
    const nmlp_nested *want = &all[NMLP_NESTED_JOINT], *got = &alone[NMLP_NESTED_JOINT];
    assert_int_equal(got->rank, want->rank);
    for (int64_t k = 0; k <= want->full; k++) assert_true(fabs(got->loss[k] - want->loss[k]) <= 1e-12 * want->loss[0]);
    release(all);
    release(alone);
    nmlp_mem_free(f);
}

/* Three matrices of different rows, as q, k and v: losses of each and of all together by their definition. */
static void three_matrices_of_one_input_share_a_basis(void **state) {
    enum { Q = I, K = I / 2, ALL = Q + 2 * K };
    nmlp_nested nested[NMLP_NESTED_COUNT];
    nmlp_err err;
    struct fixture *f = new_fixture(33, T);
    double all[ALL * H], d[ALL], input[H * H], output[H * H];
    (void)state;
    for (int64_t i = 0; i < Q * H; i++) all[i] = f->w[0][i];
    for (int64_t i = 0; i < 2 * K * H; i++) all[Q * H + i] = f->w[1][i];
    for (int i = 0; i < ALL; i++) d[i] = 1 + 0.1 * (i % 7);
    memcpy(input, f->input, sizeof input);
    memcpy(output, f->output, sizeof output);
    nmlp_module_moments m = {
        .hidden = H,
        .n_first = 3,
        .rows = {Q, K, K},
        .inner = I,
        .w = {all, all + Q * H, all + (Q + K) * H, f->w[2]},
        .views = {nmlp_view_2d(all, NMLP_DTYPE_F32, Q, H), nmlp_view_2d(all + Q * H, NMLP_DTYPE_F32, K, H),
                  nmlp_view_2d(all + (Q + K) * H, NMLP_DTYPE_F32, K, H), nmlp_view_2d(f->w[2], NMLP_DTYPE_F32, H, I)},
        .input = input,
        .output = output,
        .d = {d, d + Q, d + Q + K},
        .separate = true,
        .joint = true};
    nmlp_assert_ok(nmlp_factorise_module(nested, &m, NULL, &err), &err);
    assert_int_equal(nested[4].rows, ALL);
    assert_int_equal(nested[3].cols, I);
    for (int64_t k = 1; k <= nested[4].rank; k += 3) {
        double direct = direct_loss(&nested[4], all, d, f->input, k);
        assert_true(fabs(direct - nested[4].loss[k]) <= 1e-4 * nested[4].loss[0]); /* factors are f32 */
    }
    for (int64_t k = 1; k <= nested[1].rank; k += 2) {
        double direct = direct_loss(&nested[1], all + Q * H, d + Q, f->input, k);
        assert_true(fabs(direct - nested[1].loss[k]) <= 1e-4 * nested[1].loss[0]);
    }
    release(nested);
    nmlp_mem_free(f);
}

static void outlier_token_is_scaled_to_its_share(void **state) {
    enum { S = 1000 };
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 19);
    float *rows = nmlp_mem_new(S * H, sizeof *rows, &err);
    for (int i = 0; i < S * H; i++) rows[i] = (float)nmlp_rng_normal(&rng);
    for (int i = 0; i < H; i++) rows[7 * H + i] *= 1e4f;
    int64_t n_capped;
    nmlp_assert_ok(nmlp_gram_cap_tokens(NULL, NULL, rows, S, H, 0.01, &n_capped, &err), &err);
    assert_int_equal(n_capped, 1);
    double total = 0, outlier = 0;
    for (int i = 0; i < S * H; i++) {
        total += (double)rows[i] * (double)rows[i];
        if (i / H == 7) outlier += (double)rows[i] * (double)rows[i];
    }
    assert_true(outlier / total > 0.009 && outlier / total < 0.011);
    nmlp_assert_ok(nmlp_gram_cap_tokens(NULL, NULL, rows, S, H, 0, &n_capped, &err), &err);
    assert_int_equal(n_capped, 0);
    nmlp_mem_free(rows);
}

/* Through kernels that round to bf16: exact sums of rounded values, but for the f32 sums of a chunk; several chunks,
 * the last one short. */
static void moments_by_matrix_kernels_are_those_of_rounded_rows(void **state) {
    enum { S = 2100, M = 37, N = 530 }; /* two chunks of tokens and two of columns */
    const nmlp_kernels *kernels;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 20);
    nmlp_assert_ok(nmlp_kernels_select(&kernels, cpu, "amx-emu", &err), &err);
    float *x = nmlp_mem_new(S * N, sizeof *x, &err), *y = nmlp_mem_new(S * M, sizeof *y, &err);
    double *gram = nmlp_mem_new(N * N, sizeof *gram, &err), *cross = nmlp_mem_new(M * N, sizeof *cross, &err);
    for (int i = 0; i < S * N; i++) x[i] = (float)nmlp_rng_normal(&rng);
    for (int i = 0; i < S * M; i++) y[i] = (float)nmlp_rng_normal(&rng);
    gram[3] = gram[3 * N] = 100; /* is added to */
    double *again = nmlp_mem_new(N * N, sizeof *again, &err);
    memcpy(again, gram, N * N * sizeof *gram);
    nmlp_pool *pool = nmlp_test_pool(3);
    nmlp_assert_ok(nmlp_gram_add(kernels, NULL, gram, x, S, N, &err), &err);
    nmlp_assert_ok(nmlp_gram_add(kernels, pool, again, x, S, N, &err), &err);
    assert_memory_equal(gram, again, N * N * sizeof *gram); /* whatever the number of threads */
    nmlp_pool_destroy(pool);
    nmlp_mem_free(again);
    nmlp_assert_ok(nmlp_gram_add_cross(kernels, NULL, cross, y, x, S, M, N, &err), &err);
    for (int i = 0; i < S * N; i++) x[i] = nmlp_bf16_to_f32(nmlp_f32_to_bf16(x[i]));
    for (int i = 0; i < S * M; i++) y[i] = nmlp_bf16_to_f32(nmlp_f32_to_bf16(y[i]));
    for (int j = 0; j < N; j++) {
        for (int i = j % 13; i < N; i += 13) {
            double want = mean_product(x + i, x + j, N, N, S) * S + (i + j == 3 && i * j == 0 ? 100 : 0);
            assert_true(fabs(gram[i * N + j] - want) < 5e-6 * S);
        }
        for (int i = j % 5; i < M; i += 5)
            assert_true(fabs(cross[i * N + j] - mean_product(y + i, x + j, M, N, S) * S) < 5e-6 * S);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    nmlp_mem_free(gram);
    nmlp_mem_free(cross);
}

/* Blocks by three processes, tokens in two calls: together what one call has, to the bit. */
static void blocks_of_several_processes_are_those_of_one(void **state) {
    enum { S = 2100, M = 300, N = 1100, PARTS = 3 };
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 21);
    float *x = nmlp_mem_new(S * N, sizeof *x, &err), *y = nmlp_mem_new(S * M, sizeof *y, &err);
    for (int i = 0; i < S * N; i++) x[i] = (float)nmlp_rng_normal(&rng);
    for (int i = 0; i < S * M; i++) y[i] = (float)nmlp_rng_normal(&rng);
    for (int k = 0; k < 2; k++) {
        const nmlp_kernels *kernels;
        nmlp_assert_ok(nmlp_kernels_select(&kernels, cpu, k ? "amx-emu" : "ref", &err), &err);
        double *gram = nmlp_mem_new(N * N, sizeof *gram, &err), *cross = nmlp_mem_new(M * N, sizeof *cross, &err);
        double *all_gram = nmlp_mem_new(N * N, sizeof *gram, &err),
               *all_cross = nmlp_mem_new(M * N, sizeof *cross, &err);
        nmlp_assert_ok(nmlp_gram_add_blocks(kernels, NULL, NULL, gram, x, x, S, N, N, true, &err), &err);
        nmlp_assert_ok(nmlp_gram_add_cross(kernels, NULL, cross, y, x, S, M, N, &err), &err);
        for (int part = 0; part < PARTS; part++) {
            nmlp_process_group group = {.rank = part, .size = PARTS};
            double *g = nmlp_mem_new(N * N, sizeof *g, &err), *c = nmlp_mem_new(M * N, sizeof *c, &err);
            for (int t = 0; t < S; t += NMLP_GRAM_TOKENS) {
                int n = S - t < NMLP_GRAM_TOKENS ? S - t : NMLP_GRAM_TOKENS;
                nmlp_assert_ok(nmlp_gram_add_blocks(kernels, NULL, &group, g, x + (size_t)t * N, x + (size_t)t * N, n,
                                                    N, N, true, &err),
                               &err);
                nmlp_assert_ok(nmlp_gram_add_blocks(kernels, NULL, &group, c, y + (size_t)t * M, x + (size_t)t * N, n,
                                                    M, N, false, &err),
                               &err);
            }
            bool some = false;
            for (int i = 0; i < N * N; i++) {
                assert_true(g[i] == 0 || all_gram[i] == 0); /* no block twice */
                all_gram[i] += g[i];
                some |= g[i] != 0;
            }
            for (int i = 0; i < M * N; i++) all_cross[i] += c[i];
            assert_true(some);
            nmlp_mem_free(g);
            nmlp_mem_free(c);
        }
        assert_memory_equal(gram, all_gram, N * N * sizeof *gram);
        assert_memory_equal(cross, all_cross, M * N * sizeof *cross);
        nmlp_mem_free(gram);
        nmlp_mem_free(cross);
        nmlp_mem_free(all_gram);
        nmlp_mem_free(all_cross);
    }
    nmlp_mem_free(x);
    nmlp_mem_free(y);
}

/* A bf16 weight times f64 rows through kernels of bf16 numbers: as exact as an f32 product, far beyond one bf16 number
 * (2^-9). */
static void products_with_weights_are_good_to_f32(void **state) {
    enum { M = 600, N = 50, K = 66, STRIDE = 80 };
    const nmlp_kernels *kernels;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 21);
    nmlp_assert_ok(nmlp_kernels_select(&kernels, cpu, "amx-emu", &err), &err);
    uint16_t *w = nmlp_mem_new(N * K, sizeof *w, &err);
    double *wide = nmlp_mem_new(N * K, sizeof *wide, &err), *a = nmlp_mem_new(M * K, sizeof *a, &err);
    double *c = nmlp_mem_new(M * STRIDE, sizeof *c, &err), *again = nmlp_mem_new(M * STRIDE, sizeof *again, &err);
    nmlp_pool *pool = nmlp_test_pool(3);
    for (int i = 0; i < N * K; i++) {
        w[i] = nmlp_f32_to_bf16((float)nmlp_rng_normal(&rng));
        wide[i] = nmlp_bf16_to_f32(w[i]);
    }
    for (int i = 0; i < M * K; i++) a[i] = nmlp_rng_normal(&rng);
    nmlp_view view = nmlp_view_2d(w, NMLP_DTYPE_BF16, N, K);
    for (int run = 0; run < 4; run++) {
        bool transposed = run & 1;
        int n = transposed ? K : N, k = transposed ? N : K;
        nmlp_weight_product product = {
            .view = &view, .wide = wide, .transposed = transposed, .kernels = run & 2 ? kernels : NULL};
        nmlp_assert_ok(nmlp_weight_multiply(&product, pool, M, a, again, STRIDE, &err), &err);
        nmlp_assert_ok(nmlp_weight_multiply(&product, NULL, M, a, c, STRIDE, &err), &err);
        assert_memory_equal(c, again, M * STRIDE * sizeof *c); /* whatever the number of threads */
        for (int i = 0; i < M; i += 13) {
            for (int j = 0; j < n; j++) {
                double sum = 0, size = 0;
                for (int x = 0; x < k; x++) {
                    double term = a[i * k + x] * wide[transposed ? x * K + j : j * K + x];
                    sum += term;
                    size += fabs(term);
                }
                assert_true(fabs(c[i * STRIDE + j] - sum) < 2e-5 * size);
            }
        }
    }
    nmlp_mem_free(w);
    nmlp_mem_free(wide);
    nmlp_mem_free(a);
    nmlp_mem_free(c);
    nmlp_mem_free(again);
    nmlp_pool_destroy(pool);
}

static void shrinkage_keeps_the_diagonal(void **state) {
    double c[4] = {2, 1, 1, 3};
    double w[4] = {1, 2, 3, 4}; /* [2,2] */
    double k[4] = {5, 1, 1, 7};
    double squares[2] = {2, 3};
    nmlp_err err;
    (void)state;
    nmlp_gram_shrink(c, 2, 6); /* a = 6/8 */
    assert_true(c[0] == 2 && c[3] == 3 && c[1] == 0.75 && c[2] == 0.75);
    for (int narrow = 0; narrow < 2; narrow++) {
        double shrunk[4];
        memcpy(shrunk, k, sizeof k);
        nmlp_assert_ok(nmlp_gram_shrink_output(NULL, shrunk, w, squares, 2, 2, 6, narrow, &err), &err);
        /* W diag(2,3) W^T = [[14,30],[30,66]] */
        double bound = narrow ? 1e-5 : 1e-12;
        assert_true(fabs(shrunk[0] - (0.75 * 5 + 0.25 * 14)) < bound && fabs(shrunk[1] - (0.75 + 0.25 * 30)) < bound);
    }
}

static void swiglu_weights_equal_their_definition_and_have_a_floor(void **state) {
    double down[6] = {3, 0, 1, 4, 0, 1}; /* [2,3] */
    double silu2[3] = {4, 1, 9}, slope2[3] = {1, 1, 16};
    double d_gate[3], d_up[3];
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_swiglu_weights(d_gate, d_up, down, silu2, slope2, 2, 3, &err), &err);
    assert_true(fabs(d_up[0] - 10) < 1e-12 && fabs(d_gate[0] - 5) < 1e-12);
    assert_true(fabs(d_up[2] - sqrt(2) * 3) < 1e-12);
    assert_true(d_up[1] > 0 && d_up[1] < 0.01); /* a neuron nobody reads */
}

int main(void) {
    (void)nmlp_linalg_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curve_is_the_optimum_of_gesdd_and_the_factors_reach_it),
        cmocka_unit_test(no_whitening_gives_the_plain_svd),
        cmocka_unit_test(down_reaches_the_optimum_for_its_output_gram),
        cmocka_unit_test(joint_curve_is_the_loss_of_both_matrices_together),
        cmocka_unit_test(fewer_tokens_than_channels_give_finite_factors),
        cmocka_unit_test(dead_channel_costs_nothing_and_breaks_nothing),
        cmocka_unit_test(zero_matrix_gives_zero_factors),
        cmocka_unit_test(rank_one_matrix_is_exact_at_rank_one),
        cmocka_unit_test(a_shared_basis_alone_is_the_one_made_with_the_others),
        cmocka_unit_test(three_matrices_of_one_input_share_a_basis),
        cmocka_unit_test(outlier_token_is_scaled_to_its_share),
        cmocka_unit_test(moments_by_matrix_kernels_are_those_of_rounded_rows),
        cmocka_unit_test(blocks_of_several_processes_are_those_of_one),
        cmocka_unit_test(products_with_weights_are_good_to_f32),
        cmocka_unit_test(shrinkage_keeps_the_diagonal),
        cmocka_unit_test(swiglu_weights_equal_their_definition_and_have_a_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
