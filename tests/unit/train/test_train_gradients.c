/* Every operator's backward against central differences of its forward, in float64.
 *
 * A central difference of step h is off by h^2/6 f''' and by the rounding u/h of f: with h = 1e-5 and values near 1
 * both are below 1e-9, so a limit of 1e-6 of the largest gradient leaves room for f''' of a few hundred and no room for
 * a wrong formula. */
#define NMLP_TRAIN_F64
#include <math.h>

#include "base/rng.h"
#include "lib/testing.h"
#include "train/exec.h"

enum { N_ARRAYS = 12 };
static const double limit = 1e-6;

/* A case owns arrays; `run` computes the scalar sum(weights * output) from them. */
typedef struct op_case {
    nmlp_train_exec exec;
    double *array[N_ARRAYS];
    double *out;     /* [n_out] */
    double *weights; /* [n_out], d(loss)/d(out) */
    int64_t n_out;
    int32_t ids[16];
    void (*run)(struct op_case *c);
} op_case;

static double *new_array(int64_t n, nmlp_rng *rng, double deviation) {
    double *data = nmlp_mem_new((size_t)n, sizeof *data, NULL);
    assert_non_null(data);
    for (int64_t i = 0; i < n; i++) data[i] = deviation * nmlp_rng_normal(rng);
    return data;
}

static void case_init(op_case *c, nmlp_rng *rng, int64_t n_out, nmlp_pool *pool) {
    nmlp_err err;
    *c = (op_case){.n_out = n_out};
    nmlp_assert_ok(nmlp_train_exec_init(&c->exec, NULL, pool, 16, 8, &err), &err);
    c->out = new_array(n_out, rng, 0);
    c->weights = new_array(n_out, rng, 1);
}

static void case_fini(op_case *c) {
    for (int i = 0; i < N_ARRAYS; i++) nmlp_mem_free(c->array[i]);
    nmlp_mem_free(c->out);
    nmlp_mem_free(c->weights);
    nmlp_train_exec_fini(&c->exec);
}

static double value(op_case *c) {
    double sum = 0;
    c->run(c);
    for (int64_t i = 0; i < c->n_out; i++) sum += c->weights[i] * c->out[i];
    return sum;
}

/* Largest difference of `grad` from the central difference over array x, relative to the largest gradient. */
static void check(op_case *c, double *x, const double *grad, int64_t n, const char *what) {
    const double h = 1e-5;
    double worst = 0;
    double largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i];
        x[i] = keep + h;
        double above = value(c);
        x[i] = keep - h;
        double below = value(c);
        x[i] = keep;
        double want = (above - below) / (2 * h);
        worst = fmax(worst, fabs(want - grad[i]));
        largest = fmax(largest, fabs(want));
    }
    assert_true(largest > 0);
    if (!(worst <= limit * largest))
        fail_msg("%s: gradient off by %g of the largest, %g", what, worst / largest, largest);
}

/* ---- linear ---- */

enum { S = 7, N = 37, K = 21 };

static void run_linear(op_case *c) {
    nmlp_train_linear_forward(&c->exec, c->out, c->array[0], c->array[1], S, N, K);
    nmlp_train_bias_forward(&c->exec, c->out, c->array[2], S, N);
}

static void linear_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 1);
    case_init(&c, &rng, S * N, NULL);
    c.run = run_linear;
    c.array[0] = new_array(S * K, &rng, 1);
    c.array[1] = new_array(N * K, &rng, 1);
    c.array[2] = new_array(N, &rng, 1);
    double *dx = c.array[3] = new_array(S * K, &rng, 1);
    double *dw = c.array[4] = new_array(N * K, &rng, 0);
    double *db = c.array[5] = new_array(N, &rng, 0);
    nmlp_train_linear_backward_input(&c.exec, dx, c.weights, c.array[1], S, N, K, false);
    nmlp_train_linear_backward_weight(&c.exec, dw, c.weights, c.array[0], S, N, K);
    nmlp_train_bias_backward(&c.exec, db, c.weights, S, N);
    check(&c, c.array[0], dx, S * K, "x");
    check(&c, c.array[1], dw, N * K, "w");
    check(&c, c.array[2], db, N, "bias");
    case_fini(&c);
}

/* ---- norm ---- */

static void run_norm(op_case *c) { nmlp_train_norm_forward(&c->exec, c->out, c->array[0], c->array[1], 1e-5, S, K); }

static void norm_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 2);
    case_init(&c, &rng, S * K, NULL);
    c.run = run_norm;
    c.array[0] = new_array(S * K, &rng, 1);
    c.array[1] = new_array(K, &rng, 1);
    double *dx = c.array[2] = new_array(S * K, &rng, 0);
    double *dw = c.array[3] = new_array(K, &rng, 0);
    nmlp_train_norm_backward(&c.exec, dx, c.weights, c.array[0], c.array[1], 1e-5, S, K, true);
    nmlp_train_norm_backward_weight(&c.exec, dw, c.weights, c.array[0], 1e-5, S, K);
    check(&c, c.array[0], dx, S * K, "x");
    check(&c, c.array[1], dw, K, "w");
    memcpy(dx, c.weights, S * K * sizeof *dx); /* in place, as the q/k norm uses it */
    nmlp_train_norm_backward(&c.exec, dx, dx, c.array[0], c.array[1], 1e-5, S, K, false);
    check(&c, c.array[0], dx, S * K, "x in place");
    case_fini(&c);
}

/* ---- rotation ---- */

enum { ROPE_T = 4, ROPE_S = 8, HEADS = 3, D = 8 };

static void run_rope(op_case *c) {
    memcpy(c->out, c->array[0], (size_t)c->n_out * sizeof *c->out);
    nmlp_train_rope_rotate(&c->exec, c->out, c->array[1], ROPE_S, ROPE_T, HEADS, D, 1);
}

static void rope_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 3);
    case_init(&c, &rng, ROPE_S * HEADS * D, NULL);
    c.run = run_rope;
    c.array[0] = new_array(c.n_out, &rng, 1);
    c.array[1] = new_array(ROPE_T * D, &rng, 0);
    for (int p = 0; p < ROPE_T; p++) {
        for (int i = 0; i < D / 2; i++) {
            c.array[1][p * D + i] = cos(p * pow(10, -i));
            c.array[1][p * D + D / 2 + i] = sin(p * pow(10, -i));
        }
    }
    double *dx = c.array[2] = new_array(c.n_out, &rng, 0);
    memcpy(dx, c.weights, (size_t)c.n_out * sizeof *dx);
    nmlp_train_rope_rotate(&c.exec, dx, c.array[1], ROPE_S, ROPE_T, HEADS, D, -1);
    check(&c, c.array[0], dx, c.n_out, "x");
    case_fini(&c);
}

/* ---- gated activation ---- */

static void run_swiglu(op_case *c) { nmlp_train_swiglu_forward(&c->exec, c->out, c->array[0], c->array[1], c->n_out); }

static void swiglu_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 4);
    case_init(&c, &rng, 200, NULL);
    c.run = run_swiglu;
    c.array[0] = new_array(c.n_out, &rng, 3);
    c.array[1] = new_array(c.n_out, &rng, 3);
    double *dg = c.array[2] = new_array(c.n_out, &rng, 0);
    double *du = c.array[3] = new_array(c.n_out, &rng, 0);
    memcpy(dg, c.array[0], (size_t)c.n_out * sizeof *dg);
    memcpy(du, c.array[1], (size_t)c.n_out * sizeof *du);
    nmlp_train_swiglu_backward(&c.exec, dg, du, c.weights, c.n_out);
    check(&c, c.array[0], dg, c.n_out, "gate");
    check(&c, c.array[1], du, c.n_out, "up");
    case_fini(&c);
}

/* ---- factorised projections, each with its own basis and with a shared one ---- */

enum { RANK = 5 };

static void run_factors(op_case *c) {
    double *inner = c->array[10];
    nmlp_train_linear_forward(&c->exec, inner, c->array[0], c->array[2], S, RANK, K);
    nmlp_train_linear_forward(&c->exec, c->out, inner, c->array[1], S, N, RANK);
}

static void factorised_linear_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 5);
    case_init(&c, &rng, S * N, NULL);
    c.run = run_factors;
    c.array[0] = new_array(S * K, &rng, 1);
    c.array[1] = new_array(N * RANK, &rng, 1);
    c.array[2] = new_array(RANK * K, &rng, 1);
    double *dx = c.array[3] = new_array(S * K, &rng, 0);
    double *du = c.array[4] = new_array(N * RANK, &rng, 0);
    double *dv = c.array[5] = new_array(RANK * K, &rng, 0);
    double *d_inner = c.array[6] = new_array(S * RANK, &rng, 0);
    double *inner = c.array[10] = new_array(S * RANK, &rng, 0);
    run_factors(&c);
    nmlp_train_linear_backward_weight(&c.exec, du, c.weights, inner, S, N, RANK);
    nmlp_train_linear_backward_input(&c.exec, d_inner, c.weights, c.array[1], S, N, RANK, false);
    nmlp_train_linear_backward_weight(&c.exec, dv, d_inner, c.array[0], S, RANK, K);
    nmlp_train_linear_backward_input(&c.exec, dx, d_inner, c.array[2], S, RANK, K, false);
    check(&c, c.array[0], dx, S * K, "x");
    check(&c, c.array[1], du, N * RANK, "u");
    check(&c, c.array[2], dv, RANK * K, "v");
    case_fini(&c);
}

static void run_shared(op_case *c) {
    double *inner = c->array[10];
    nmlp_train_linear_forward(&c->exec, inner, c->array[0], c->array[3], S, RANK, K);
    nmlp_train_linear_forward(&c->exec, c->out, inner, c->array[1], S, N, RANK);
    nmlp_train_linear_forward(&c->exec, c->out + S * N, inner, c->array[2], S, N, RANK);
}

static void shared_basis_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 6);
    case_init(&c, &rng, 2 * S * N, NULL);
    c.run = run_shared;
    c.array[0] = new_array(S * K, &rng, 1);
    c.array[1] = new_array(N * RANK, &rng, 1);
    c.array[2] = new_array(N * RANK, &rng, 1);
    c.array[3] = new_array(RANK * K, &rng, 1);
    double *dv = c.array[4] = new_array(RANK * K, &rng, 0);
    double *dx = c.array[5] = new_array(S * K, &rng, 0);
    double *d_inner = c.array[6] = new_array(S * RANK, &rng, 0);
    c.array[10] = new_array(S * RANK, &rng, 0);
    nmlp_train_linear_backward_input(&c.exec, d_inner, c.weights, c.array[1], S, N, RANK, false);
    nmlp_train_linear_backward_input(&c.exec, d_inner, c.weights + S * N, c.array[2], S, N, RANK, true);
    nmlp_train_linear_backward_weight(&c.exec, dv, d_inner, c.array[0], S, RANK, K);
    nmlp_train_linear_backward_input(&c.exec, dx, d_inner, c.array[3], S, RANK, K, false);
    check(&c, c.array[0], dx, S * K, "x");
    check(&c, c.array[3], dv, RANK * K, "v");
    case_fini(&c);
}

/* ---- attention ---- */

enum { T = 11, SEQUENCES = 2, Q_HEADS = 4, KV_HEADS = 2 };

static nmlp_train_heads heads_of(op_case *c) {
    return (nmlp_train_heads){.out = c->out,
                              .q = c->array[0],
                              .k = c->array[1],
                              .v = c->array[2],
                              .lse = c->array[3],
                              .s = SEQUENCES * T,
                              .t = T,
                              .n_heads = Q_HEADS,
                              .n_kv_heads = KV_HEADS,
                              .d = D};
}

static void run_attention(op_case *c) {
    nmlp_train_heads h = heads_of(c);
    nmlp_train_attention_forward(&c->exec, &h);
}

static void attention_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    int64_t n_q = SEQUENCES * T * Q_HEADS * D;
    int64_t n_kv = SEQUENCES * T * KV_HEADS * D;
    (void)state;
    nmlp_rng_seed(&rng, 7);
    case_init(&c, &rng, n_q, NULL);
    c.run = run_attention;
    c.array[0] = new_array(n_q, &rng, 1.5);
    c.array[1] = new_array(n_kv, &rng, 1.5);
    c.array[2] = new_array(n_kv, &rng, 1);
    c.array[3] = new_array(SEQUENCES * Q_HEADS * T, &rng, 0);
    double *dq = c.array[4] = new_array(n_q, &rng, 1);
    double *dk = c.array[5] = new_array(n_kv, &rng, 1);
    double *dv = c.array[6] = new_array(n_kv, &rng, 1);
    run_attention(&c);
    nmlp_train_heads h = heads_of(&c);
    h.d_out = c.weights;
    h.dq = dq;
    h.dk = dk;
    h.dv = dv;
    nmlp_train_attention_backward(&c.exec, &h);
    check(&c, c.array[0], dq, n_q, "q");
    check(&c, c.array[1], dk, n_kv, "k");
    check(&c, c.array[2], dv, n_kv, "v");
    case_fini(&c);
}

/* ---- embedding ---- */

enum { EMBED_S = 9, EMBED_V = 6 };

static void run_embed(op_case *c) { nmlp_train_embed_forward(&c->exec, c->out, c->array[0], c->ids, EMBED_S, K); }

static void embedding_matches_differences(void **state) {
    nmlp_rng rng;
    op_case c;
    (void)state;
    nmlp_rng_seed(&rng, 8);
    case_init(&c, &rng, EMBED_S * K, NULL);
    c.run = run_embed;
    for (int i = 0; i < EMBED_S; i++) c.ids[i] = i * i % EMBED_V; /* some tokens twice, some never */
    c.array[0] = new_array(EMBED_V * K, &rng, 1);
    double *grad = c.array[1] = new_array(EMBED_V * K, &rng, 0);
    nmlp_train_embed_backward(&c.exec, grad, c.weights, c.ids, EMBED_S, K);
    check(&c, c.array[0], grad, EMBED_V * K, "table");
    case_fini(&c);
}

/* ---- losses; array 0 logits, 1 teacher or NULL, 2 and 3 their copies, 4 nll ---- */

enum { LOSS_S = 5, LOSS_V = 43 };

static void run_loss(op_case *c) {
    size_t bytes = (size_t)LOSS_S * LOSS_V * sizeof(double);
    memcpy(c->array[2], c->array[0], bytes);
    if (c->array[1]) memcpy(c->array[3], c->array[1], bytes);
    nmlp_train_loss_rows(&c->exec, &(nmlp_train_losses){.logits = c->array[2],
                                                        .teacher = c->array[1] ? c->array[3] : NULL,
                                                        .targets = c->ids,
                                                        .s = LOSS_S,
                                                        .v = LOSS_V,
                                                        .scale = 1,
                                                        .loss = c->out,
                                                        .nll = c->array[4]});
}

static void check_loss(bool distil, uint64_t seed) {
    nmlp_rng rng;
    op_case c;
    nmlp_rng_seed(&rng, seed);
    case_init(&c, &rng, LOSS_S, NULL);
    c.run = run_loss;
    for (int i = 0; i < LOSS_S; i++) {
        c.weights[i] = 1;
        c.ids[i] = (i * 17) % LOSS_V;
    }
    c.array[0] = new_array(LOSS_S * LOSS_V, &rng, 2);
    if (distil) c.array[1] = new_array(LOSS_S * LOSS_V, &rng, 2);
    c.array[2] = new_array(LOSS_S * LOSS_V, &rng, 0);
    c.array[3] = new_array(LOSS_S * LOSS_V, &rng, 0);
    c.array[4] = new_array(LOSS_S, &rng, 0);
    double *grad = c.array[5] = new_array(LOSS_S * LOSS_V, &rng, 0);
    run_loss(&c);
    memcpy(grad, c.array[2], LOSS_S * LOSS_V * sizeof *grad);
    check(&c, c.array[0], grad, LOSS_S * LOSS_V, distil ? "logits under KL" : "logits under cross-entropy");
    run_loss(&c);
    for (int i = 0; i < LOSS_S; i++) { /* the likelihood reported beside either loss, from its definition */
        double sum = 0;
        for (int j = 0; j < LOSS_V; j++) sum += exp(c.array[0][i * LOSS_V + j]);
        assert_true(fabs(c.array[4][i] - (log(sum) - c.array[0][i * LOSS_V + c.ids[i]])) < 1e-12);
    }
    case_fini(&c);
}

static void cross_entropy_matches_differences(void **state) {
    (void)state;
    check_loss(false, 9);
}

static void distillation_matches_differences(void **state) {
    (void)state;
    check_loss(true, 10);
}

static void distillation_from_itself_is_zero(void **state) {
    nmlp_rng rng;
    nmlp_train_exec exec;
    nmlp_err err;
    double loss, nll;
    int32_t target = 3;
    (void)state;
    nmlp_rng_seed(&rng, 11);
    nmlp_assert_ok(nmlp_train_exec_init(&exec, NULL, NULL, 16, 8, &err), &err);
    double *a = new_array(LOSS_V, &rng, 3);
    double *b = new_array(LOSS_V, &rng, 0);
    for (int i = 0; i < LOSS_V; i++) b[i] = a[i] + 5; /* the same distribution */
    nmlp_train_loss_rows(&exec, &(nmlp_train_losses){.logits = a,
                                                     .teacher = b,
                                                     .targets = &target,
                                                     .s = 1,
                                                     .v = LOSS_V,
                                                     .scale = 1,
                                                     .loss = &loss,
                                                     .nll = &nll});
    assert_true(fabs(loss) < 1e-13);
    for (int i = 0; i < LOSS_V; i++) assert_true(fabs(a[i]) < 1e-14);
    nmlp_mem_free(a);
    nmlp_mem_free(b);
    nmlp_train_exec_fini(&exec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_matches_differences),
        cmocka_unit_test(norm_matches_differences),
        cmocka_unit_test(rope_matches_differences),
        cmocka_unit_test(swiglu_matches_differences),
        cmocka_unit_test(factorised_linear_matches_differences),
        cmocka_unit_test(shared_basis_matches_differences),
        cmocka_unit_test(attention_matches_differences),
        cmocka_unit_test(embedding_matches_differences),
        cmocka_unit_test(cross_entropy_matches_differences),
        cmocka_unit_test(distillation_matches_differences),
        cmocka_unit_test(distillation_from_itself_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
