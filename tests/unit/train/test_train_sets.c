/* The f32 instruction sets of training against float64 sums written down plainly, at sizes that leave rests everywhere.
 */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/cpu.h"
#include "lib/testing.h"
#include "tensor/dtype.h"
#include "train/exec.h"

enum { T_MAX = 200, D = 24 };

/* Set i, or false where the CPU lacks it. */
static bool open_set(nmlp_train_exec *e, int i, nmlp_pool *pool) {
    static const char *const names[] = {"ref", "avx2", "avx512"};
    nmlp_err err;
    nmlp_assert_ok(nmlp_train_exec_init(e, names[i], pool, T_MAX, D, &err), &err);
    if (strcmp(e->ops->name, names[i]) == 0) return true;
    nmlp_train_exec_fini(e);
    return false;
}

static float *floats(int64_t n, uint64_t seed) {
    nmlp_rng rng;
    float *data = nmlp_mem_new((size_t)n, sizeof *data, NULL);
    assert_non_null(data);
    nmlp_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n; i++) data[i] = (float)nmlp_rng_normal(&rng);
    return data;
}

/* A sum of k products in any order is off by at most (k+2) u sum|ab|, u = 2^-24. */
static void check_product(const nmlp_train_matmul *g, const float *before) {
    double u = ldexp(1, -24);
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            double sum = g->accumulate ? (double)before[i * g->n + j] : 0;
            double size = fabs(sum);
            for (int64_t p = 0; p < g->k; p++) {
                double a = (double)(g->a_transposed ? g->a[p * g->m + i] : g->a[i * g->k + p]);
                double b = (double)(g->b_transposed ? g->b[j * g->k + p] : g->b[p * g->n + j]);
                sum += a * b;
                size += fabs(a * b);
            }
            if (!(fabs((double)g->c[i * g->n + j] - sum) <= (double)(g->k + 3) * u * size))
                fail_msg("[%lld,%lld] of %lld x %lld x %lld: %.9g, expected %.9g", (long long)i, (long long)j,
                         (long long)g->m, (long long)g->n, (long long)g->k, (double)g->c[i * g->n + j], sum);
        }
    }
}

static void check_shape(nmlp_train_exec *e, int64_t m, int64_t n, int64_t k) {
    float *a = floats(m * k, 1);
    float *b = floats(k * n, 2);
    float *before = floats(m * n, 3);
    float *c = floats(m * n, 3);
    for (int flags = 0; flags < 8; flags++) {
        nmlp_train_matmul g = {.c = c,
                               .a = a,
                               .b = b,
                               .a_transposed = flags & 1,
                               .b_transposed = flags & 2,
                               .accumulate = flags & 4,
                               .m = m,
                               .n = n,
                               .k = k};
        memcpy(c, before, (size_t)(m * n) * sizeof *c);
        nmlp_train_exec_matmul(e, &g);
        check_product(&g, before);
    }
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_mem_free(before);
    nmlp_mem_free(c);
}

static void products_match_plain_sums(void **state) {
    static const int64_t shapes[][3] = {{1, 1, 1},     {13, 33, 7},  {97, 65, 257},
                                        {12, 32, 256}, {5, 4200, 9}, {7, 40, 4100}};
    (void)state;
    for (int set = 0; set < 3; set++) {
        nmlp_train_exec e;
        if (!open_set(&e, set, NULL)) continue;
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            check_shape(&e, shapes[i][0], shapes[i][1], shapes[i][2]);
        nmlp_train_exec_fini(&e);
    }
}

/* Operands rounded to bf16 (relative 2^-8 each), sums in f32. */
static void check_rounded(nmlp_train_exec *e, int64_t m, int64_t n, int64_t k) {
    float *a = floats(m * k, 1);
    float *b = floats(k * n, 2);
    float *before = floats(m * n, 3);
    float *c = floats(m * n, 3);
    float *exact = floats(1, 4);
    for (int64_t i = 0; i < m * k; i++) a[i] = nmlp_bf16_to_f32(nmlp_f32_to_bf16(a[i]));
    for (int64_t i = 0; i < k * n; i++) b[i] = nmlp_bf16_to_f32(nmlp_f32_to_bf16(b[i]));
    for (int flags = 0; flags < 8; flags++) { /* operands that are bf16 already: the f32 bound holds */
        nmlp_train_matmul g = {.c = c,
                               .a = a,
                               .b = b,
                               .a_transposed = flags & 1,
                               .b_transposed = flags & 2,
                               .accumulate = flags & 4,
                               .m = m,
                               .n = n,
                               .k = k};
        memcpy(c, before, (size_t)(m * n) * sizeof *c);
        nmlp_train_exec_matmul(e, &g);
        check_product(&g, before);
    }
    a[0] = 1.0f + 1.0f / 1024; /* lost in bf16 */
    b[0] = 1;
    nmlp_train_exec_matmul(e, &(nmlp_train_matmul){.c = exact, .a = a, .b = b, .m = 1, .n = 1, .k = 1});
    assert_true(exact[0] == 1.0f);
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_mem_free(before);
    nmlp_mem_free(c);
    nmlp_mem_free(exact);
}

static void tile_products_round_operands_and_sum_in_f32(void **state) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {33, 35, 70}, {97, 65, 600}, {5, 4200, 9}, {7, 40, 4100}};
    static const char *const names[] = {"amx-emu", "amx-emu-avx512", "amx"};
    (void)state;
    for (int set = 0; set < 3; set++) {
        nmlp_train_exec e;
        nmlp_err err;
        nmlp_assert_ok(nmlp_train_exec_init(&e, names[set], NULL, T_MAX, D, &err), &err);
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && strcmp(e.products->name, names[set]) == 0; i++)
            check_rounded(&e, shapes[i][0], shapes[i][1], shapes[i][2]);
        nmlp_train_exec_fini(&e);
    }
}

/* More columns and rows than a panel has, both orders of B, used twice: the second time nothing is packed. */
static void fixed_operands_give_the_same_products(void **state) {
    enum { M = 5, N = 4200, K = 2100 };
    float *a = floats(M * K, 1);
    float *b = floats(K * N, 2);
    float *want = floats(M * N, 3);
    float *got = floats(M * N, 4);
    (void)state;
    for (int transposed = 0; transposed < 2; transposed++) {
        nmlp_train_exec e;
        nmlp_err err;
        nmlp_assert_ok(nmlp_train_exec_init(&e, "amx-emu", NULL, T_MAX, D, &err), &err);
        nmlp_train_matmul g = {.c = want, .a = a, .b = b, .b_transposed = transposed, .m = M, .n = N, .k = K};
        nmlp_train_exec_matmul(&e, &g);
        nmlp_assert_ok(nmlp_train_exec_fix(&e, b, !transposed, K, N, &err),
                       &err); /* another order: must not be taken for this one */
        nmlp_assert_ok(nmlp_train_exec_fix(&e, b, transposed, K, N, &err), &err);
        g.c = got;
        for (int turn = 0; turn < 2; turn++) {
            memset(got, 0, (size_t)(M * N) * sizeof *got);
            nmlp_train_exec_matmul(&e, &g);
            assert_memory_equal(got, want, (size_t)(M * N) * sizeof *got);
        }
        assert_true(e.fixed->ready);
        nmlp_train_exec_fini(&e);
    }
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_mem_free(want);
    nmlp_mem_free(got);
}

static void products_do_not_depend_on_threads(void **state) {
    enum { M = 300, N = 700, K = 300 };
    nmlp_err err;
    nmlp_pool *pool;
    nmlp_train_exec one, four;
    float *a = floats(M * K, 4);
    float *b = floats(N * K, 5);
    float *c = floats(M * N, 6);
    float *d = floats(M * N, 7);
    (void)state;
    nmlp_assert_ok(nmlp_pool_create(&pool, 4, &err), &err);
    nmlp_assert_ok(nmlp_train_exec_init(&one, NULL, NULL, T_MAX, D, &err), &err);
    nmlp_assert_ok(nmlp_train_exec_init(&four, NULL, pool, T_MAX, D, &err), &err);
    nmlp_train_linear_forward(&one, c, a, b, M, N, K);
    nmlp_train_linear_forward(&four, d, a, b, M, N, K);
    assert_memory_equal(c, d, (size_t)M * N * sizeof *c);
    nmlp_train_exec_fini(&one);
    nmlp_train_exec_fini(&four);
    nmlp_pool_destroy(pool);
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_mem_free(c);
    nmlp_mem_free(d);
}

/* One query head, T above a block of queries, against the definition. Probabilities are at most 1 and values near 1, so
 * an absolute limit of 1e-5 is some 80 roundings. */
static void attention_matches_its_definition(void **state) {
    float *q = floats(T_MAX * D, 8);
    float *k = floats(T_MAX * D, 9);
    float *v = floats(T_MAX * D, 10);
    float *out = floats(T_MAX * D, 11);
    float *lse = floats(T_MAX, 12);
    (void)state;
    for (int set = 0; set < 3; set++) {
        nmlp_train_exec e;
        if (!open_set(&e, set, NULL)) continue;
        nmlp_train_attention_forward(&e, &(nmlp_train_heads){.out = out,
                                                             .q = q,
                                                             .k = k,
                                                             .v = v,
                                                             .lse = lse,
                                                             .s = T_MAX,
                                                             .t = T_MAX,
                                                             .n_heads = 1,
                                                             .n_kv_heads = 1,
                                                             .d = D});
        for (int t = 0; t < T_MAX; t++) {
            double want[D] = {0};
            double sum = 0;
            for (int s = 0; s <= t; s++) {
                double score = 0;
                for (int i = 0; i < D; i++) score += (double)q[t * D + i] * (double)k[s * D + i];
                double p = exp(score / sqrt(D));
                sum += p;
                for (int i = 0; i < D; i++) want[i] += p * (double)v[s * D + i];
            }
            for (int i = 0; i < D; i++) assert_true(fabs((double)out[t * D + i] - want[i] / sum) < 1e-5);
            assert_true(fabs((double)lse[t] - log(sum)) < 1e-5);
        }
        nmlp_train_exec_fini(&e);
    }
    nmlp_mem_free(q);
    nmlp_mem_free(k);
    nmlp_mem_free(v);
    nmlp_mem_free(out);
    nmlp_mem_free(lse);
}

typedef struct attended {
    float *q, *k, *v, *d_out;
    float *out, *lse, *dq, *dk, *dv;
} attended;

/* Two query heads on one kv head; T leaves a rest behind blocks of queries and of tiles. */
static void attend(attended *a, const char *isa) {
    enum { HEADS = 2 };
    nmlp_err err;
    nmlp_train_exec e;
    nmlp_assert_ok(nmlp_train_exec_init(&e, isa, NULL, T_MAX, D, &err), &err);
    *a = (attended){.q = floats(HEADS * T_MAX * D, 8),
                    .k = floats(T_MAX * D, 9),
                    .v = floats(T_MAX * D, 10),
                    .d_out = floats(HEADS * T_MAX * D, 11),
                    .out = floats(HEADS * T_MAX * D, 12),
                    .lse = floats(HEADS * T_MAX, 13),
                    .dq = floats(HEADS * T_MAX * D, 14),
                    .dk = floats(T_MAX * D, 15),
                    .dv = floats(T_MAX * D, 16)};
    nmlp_train_heads h = {.out = a->out,
                          .q = a->q,
                          .k = a->k,
                          .v = a->v,
                          .lse = a->lse,
                          .d_out = a->d_out,
                          .dq = a->dq,
                          .dk = a->dk,
                          .dv = a->dv,
                          .s = T_MAX,
                          .t = T_MAX,
                          .n_heads = HEADS,
                          .n_kv_heads = 1,
                          .d = D};
    nmlp_train_attention_forward(&e, &h);
    nmlp_train_attention_backward(&e, &h);
    nmlp_train_exec_fini(&e);
}

static void attended_free(attended *a) {
    float *all[] = {a->q, a->k, a->v, a->d_out, a->out, a->lse, a->dq, a->dk, a->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) nmlp_mem_free(all[i]);
}

static double distance(const float *x, const float *y, int64_t n) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += pow((double)x[i] - (double)y[i], 2);
        size += pow((double)y[i], 2);
    }
    return sqrt(off / size);
}

/* bf16 rounds each operand by at most 2^-9 of itself. A gradient goes through four rounded operands (scores,
 * probabilities, their gradients, rows): with errors in one direction 2^-7, and doubled for scores of size 2 in the
 * exponent. */
static void attention_on_tiles_is_within_rounding_of_f32(void **state) {
    static const char *const names[] = {"amx-emu", "amx-emu-avx512", "amx"};
    attended want;
    (void)state;
    attend(&want, "ref");
    for (int set = 0; set < 3; set++) {
        attended got;
        attend(&got, names[set]); /* where the CPU lacks it, another set */
        double limit = ldexp(1, -6);
        assert_true(distance(got.out, want.out, 2 * T_MAX * D) < limit);
        assert_true(distance(got.dq, want.dq, 2 * T_MAX * D) < limit);
        assert_true(distance(got.dk, want.dk, T_MAX * D) < limit);
        assert_true(distance(got.dv, want.dv, T_MAX * D) < limit);
        attended_free(&got);
    }
    attended_free(&want);
}

/* A sum must not hide that an operand was broken. */
static void tile_products_keep_nan_and_infinity(void **state) {
    static const char *const names[] = {"amx-emu", "amx-emu-avx512", "amx"};
    enum { M = 3, N = 40, K = 33 };
    (void)state;
    for (int set = 0; set < 3; set++) {
        for (int flags = 0; flags < 4; flags++) {
            nmlp_train_exec e;
            nmlp_err err;
            uint32_t all_ones = 0x7fffffff; /* the NaN that rounding up would turn into -0 */
            float *a = floats(M * K, 1);
            float *b = floats(K * N, 2);
            float *c = floats(M * N, 3);
            nmlp_assert_ok(nmlp_train_exec_init(&e, names[set], NULL, T_MAX, D, &err), &err);
            memcpy(&a[flags & 1 ? 20 * M + 1 : K + 20], &all_ones, sizeof all_ones);
            b[flags & 2 ? 7 * K + 32 : 32 * N + 7] = INFINITY;
            nmlp_train_exec_matmul(&e, &(nmlp_train_matmul){.c = c,
                                                            .a = a,
                                                            .b = b,
                                                            .a_transposed = flags & 1,
                                                            .b_transposed = flags & 2,
                                                            .m = M,
                                                            .n = N,
                                                            .k = K});
            for (int i = 0; i < M; i++)
                for (int j = 0; j < N; j++) {
                    if (i == 1)
                        assert_true(isnan(c[i * N + j]));
                    else
                        assert_true(j == 7 ? isinf(c[i * N + j]) : isfinite(c[i * N + j]));
                }
            nmlp_train_exec_fini(&e);
            nmlp_mem_free(a);
            nmlp_mem_free(b);
            nmlp_mem_free(c);
        }
    }
}

/* Gradients sum to zero and the losses are the definition's, also where logits are far apart. */
static void losses_match_their_definition(void **state) {
    enum { V = 1003 };
    (void)state;
    for (int set = 0; set < 3; set++) {
        nmlp_train_exec e;
        double loss, nll, sum_s = 0, sum_t = 0, want = 0, total = 0;
        int32_t target = 500;
        if (!open_set(&e, set, NULL)) continue;
        float *s = floats(V, 13);
        float *t = floats(V, 14);
        for (int i = 0; i < V; i++) {
            s[i] *= 6;
            t[i] *= 6;
            sum_s += exp((double)s[i]);
            sum_t += exp((double)t[i]);
        }
        for (int i = 0; i < V; i++)
            want += exp((double)t[i]) / sum_t * (((double)t[i] - log(sum_t)) - ((double)s[i] - log(sum_s)));
        double want_nll = log(sum_s) - (double)s[target];
        nmlp_train_loss_rows(
            &e,
            &(nmlp_train_losses){
                .logits = s, .teacher = t, .targets = &target, .s = 1, .v = V, .scale = 1, .loss = &loss, .nll = &nll});
        for (int i = 0; i < V; i++) total += (double)s[i];
        assert_true(fabs(loss - want) < 1e-4 * want);
        assert_true(fabs(nll - want_nll) < 1e-5 * fabs(want_nll));
        assert_true(fabs(total) < 1e-5);
        nmlp_mem_free(s);
        nmlp_mem_free(t);
        nmlp_train_exec_fini(&e);
    }
}

static void swiglu_survives_large_inputs(void **state) {
    static const float gates[] = {-200, -90, -30, 0, 30, 90, 200};
    (void)state;
    for (int set = 0; set < 3; set++) {
        nmlp_train_exec e;
        float act[7], up[7], gate[7], d_act[7];
        if (!open_set(&e, set, NULL)) continue;
        for (int i = 0; i < 7; i++) {
            gate[i] = gates[i];
            up[i] = 2;
            d_act[i] = 1;
        }
        nmlp_train_swiglu_forward(&e, act, gate, up, 7);
        nmlp_train_swiglu_backward(&e, gate, up, d_act, 7);
        for (int i = 0; i < 7; i++) {
            double sigmoid = 1 / (1 + exp(-(double)gates[i]));
            double silu = (double)gates[i] * sigmoid;
            assert_true(fabs((double)act[i] - 2 * silu) <= 1e-6 * fabs(silu) + 1e-30);
            assert_true(fabs((double)up[i] - silu) <= 1e-6 * fabs(silu) + 1e-30);
            assert_true(fabs((double)gate[i] - 2 * (sigmoid + silu * (1 - sigmoid))) < 1e-5);
        }
        nmlp_train_exec_fini(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_plain_sums),
        cmocka_unit_test(tile_products_round_operands_and_sum_in_f32),
        cmocka_unit_test(fixed_operands_give_the_same_products),
        cmocka_unit_test(products_do_not_depend_on_threads),
        cmocka_unit_test(attention_matches_its_definition),
        cmocka_unit_test(attention_on_tiles_is_within_rounding_of_f32),
        cmocka_unit_test(tile_products_keep_nan_and_infinity),
        cmocka_unit_test(losses_match_their_definition),
        cmocka_unit_test(swiglu_survives_large_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
