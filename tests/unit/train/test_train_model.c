/* The whole backward pass of small models in float64 against central differences of the loss, and the loss against the
 * reference decoder. */
#define NMLP_TRAIN_F64
#include <math.h>

#include "base/rng.h"
#include "lib/reference_forward.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "train/net.h"

enum { T = 13, SEQUENCES = 2, S = SEQUENCES * T, PROBES = 6 };

typedef struct setup {
    char dir[512];
    nmlp_model model;
    nmlp_train_net *net;
    int32_t ids[S];
    int32_t targets[S];
    double teacher[S * TINY_VOCAB];
    double hidden[S * TINY_HIDDEN];
    double *layers[TINY_LAYERS + 1];
    nmlp_train_batch batch;
} setup;

static void teacher_rows(void *ctx, int64_t first, int64_t n, double *logits) {
    memcpy(logits, (double *)ctx + first * TINY_VOCAB, (size_t)(n * TINY_VOCAB) * sizeof *logits);
}

static void setup_open(setup *s, tiny_checkpoint *c, bool distil) {
    nmlp_err err;
    nmlp_rng rng;
    nmlp_test_mkdtemp(s->dir, sizeof s->dir);
    tiny_write(c, s->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&s->model, s->dir, &err), &err);
    nmlp_train_net_options options = {.set = NMLP_TRAIN_ALL, .t = T, .s = S};
    nmlp_assert_ok(nmlp_train_net_create(&s->net, &s->model, &options, &err), &err);
    nmlp_rng_seed(&rng, 77);
    for (int i = 0; i < S; i++) s->ids[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    for (int i = 0; i < S; i++) s->targets[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    for (int i = 0; i < S * TINY_VOCAB; i++) s->teacher[i] = nmlp_rng_normal(&rng);
    s->batch = (nmlp_train_batch){.ids = s->ids, .targets = s->targets, .s = S, .t = T};
    if (distil) {
        s->batch.teacher = teacher_rows;
        s->batch.ctx = s->teacher;
    }
}

static void setup_close(setup *s) {
    nmlp_train_net_destroy(s->net);
    nmlp_model_close(&s->model);
    nmlp_test_rmdir(s->dir);
}

/* The hidden states' part of the loss is known only where gradients are computed: their sums grow meanwhile, unread. */
static double mean_loss(setup *s) {
    s->batch.scale = s->batch.hidden ? 1 : 0;
    return nmlp_train_net_loss(s->net, &s->batch).loss / S;
}

static double *copy_of(const nmlp_train_param *p) {
    size_t bytes = (size_t)(p->rows * p->cols) * sizeof *p->grad;
    double *copy = nmlp_mem_new(bytes, 1, NULL);
    assert_non_null(copy);
    memcpy(copy, p->grad, bytes);
    return copy;
}

/* A few entries of every tensor; the error is relative to the tensor's largest gradient. */
static void check_gradients(setup *s) {
    const double h = 1e-5;
    size_t n;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 5);
    nmlp_train_param *params = nmlp_train_net_params(s->net, &n);
    for (size_t i = 0; i < n; i++) {
        nmlp_train_param *p = &params[i];
        double largest = 0;
        nmlp_train_net_clear_grads(s->net);
        s->batch.scale = 1.0 / S;
        nmlp_train_net_loss(s->net, &s->batch);
        double *grad = copy_of(p);
        for (int64_t j = 0; j < p->rows * p->cols; j++) largest = fmax(largest, fabs(grad[j]));
        assert_true(largest > 1e-8);
        for (int probe = 0; probe < PROBES; probe++) {
            int64_t at = nmlp_rng_below(&rng, p->rows * p->cols);
            double keep = p->data[at];
            p->data[at] = keep + h;
            double above = mean_loss(s);
            p->data[at] = keep - h;
            double below = mean_loss(s);
            p->data[at] = keep;
            double want = (above - below) / (2 * h);
            if (!(fabs(want - grad[at]) <= 1e-5 * largest))
                fail_msg("%s[%lld]: gradient %.12g, difference quotient %.12g", p->name, (long long)at, grad[at], want);
        }
        nmlp_mem_free(grad);
    }
}

static void check_model(tiny_checkpoint *c, bool distil) {
    static setup s;
    setup_open(&s, c, distil);
    check_gradients(&s);
    setup_close(&s);
    tiny_fini(c);
}

static void dense_model_matches_differences(void **state) {
    tiny_checkpoint c;
    (void)state;
    tiny_init(&c, 21);
    check_model(&c, false);
}

static void matching_hidden_states_matches_differences(void **state) {
    static setup s;
    tiny_checkpoint c;
    nmlp_rng rng;
    (void)state;
    tiny_init(&c, 27);
    setup_open(&s, &c, true);
    nmlp_rng_seed(&rng, 12);
    for (int i = 0; i < S * TINY_HIDDEN; i++) s.hidden[i] = nmlp_rng_normal(&rng);
    for (int l = 0; l <= TINY_LAYERS; l++) s.layers[l] = s.hidden;
    s.batch.hidden = s.layers;
    s.batch.match = 0.7;
    check_gradients(&s);
    setup_close(&s);
    tiny_fini(&c);
}

static void factorise_all(tiny_checkpoint *c) {
    for (int l = 0; l < TINY_LAYERS; l++) {
        tiny_factorise(c, l, "gate_proj", 8, NULL);
        tiny_factorise(c, l, "up_proj", 12, NULL);
        tiny_factorise(c, l, "down_proj", 8, NULL);
    }
    tiny_mark_compressed(c);
}

static void factorised_model_matches_differences(void **state) {
    tiny_checkpoint c;
    (void)state;
    tiny_init(&c, 22);
    factorise_all(&c);
    check_model(&c, true);
}

/* Gate and up of layer 1 on one basis. */
static void share_basis(tiny_checkpoint *c) {
    tiny_factorise(c, 1, "gate_proj", 8, NULL);
    tiny_factorise(c, 1, "up_proj", 8, NULL);
    tiny_remove(c, "model.layers.1.mlp.up_proj.v");
    snprintf(tiny_find(c, "model.layers.1.mlp.gate_proj.v")->name, 96, "model.layers.1.mlp.gate_up_proj.v");
    tiny_mark_compressed(c);
}

static void shared_basis_model_matches_differences(void **state) {
    tiny_checkpoint c;
    (void)state;
    tiny_init(&c, 23);
    share_basis(&c);
    check_model(&c, true);
}

/* Qwen3's q/k norm. */
static void add_head_norms(tiny_checkpoint *c) {
    static const char *const names[] = {"q_norm", "k_norm"};
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 9);
    for (int l = 0; l < TINY_LAYERS; l++) {
        for (int i = 0; i < 2; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s.weight", l, names[i]);
            tiny_tensor *t = tiny_add(c, name, 8, 0);
            for (int j = 0; j < 8; j++) t->data[j] = 1 + 0.2f * (float)nmlp_rng_normal(&rng);
        }
    }
    memcpy(strstr(c->config, "Llama"), "Qwen3", 5);
}

static void head_norm_model_matches_differences(void **state) {
    tiny_checkpoint c;
    (void)state;
    tiny_init(&c, 24);
    add_head_norms(&c);
    check_model(&c, false);
}

static void biased_model_matches_differences(void **state) {
    static const char *const names[] = {"q", "k", "v"};
    tiny_checkpoint c;
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 10);
    tiny_init(&c, 25);
    for (int l = 0; l < TINY_LAYERS; l++) {
        for (int i = 0; i < 3; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s_proj.bias", l, names[i]);
            tiny_tensor *t = tiny_add(&c, name, i ? 16 : 32, 0);
            for (int j = 0; j < (i ? 16 : 32); j++) t->data[j] = 0.3f * (float)nmlp_rng_normal(&rng);
        }
    }
    memcpy(strstr(c.config, "Llama"), "Qwen2", 5);
    /* A key's bias of one position shifts no softmax by itself, but rotated it does: the gradient is not zero. */
    check_model(&c, false);
}

static void loss_is_the_reference_decoders(void **state) {
    static setup s;
    static double logits[T * TINY_VOCAB];
    tiny_checkpoint c;
    double want = 0;
    (void)state;
    tiny_init(&c, 26);
    factorise_all(&c);
    setup_open(&s, &c, false);
    for (int q = 0; q < SEQUENCES; q++) {
        reference_forward(&s.model, s.ids + q * T, T, logits);
        for (int t = 0; t < T; t++) {
            double sum = 0;
            for (int v = 0; v < TINY_VOCAB; v++) sum += exp(logits[t * TINY_VOCAB + v]);
            want += log(sum) - logits[t * TINY_VOCAB + s.targets[q * T + t]];
        }
    }
    /* The net's angles are rounded to f32 as the engine's are, the reference's are not: relative 2^-24 of an angle up
     * to 13. */
    assert_true(fabs(mean_loss(&s) - want / S) < 1e-5);
    setup_close(&s);
    tiny_fini(&c);
}

/* Token by token, all sequences at once, against the reference decoder on whole sequences. Twice: the second time from
 * the start again. */
static void growing_sequences_have_the_reference_decoders_logits(void **state) {
    static setup s;
    static double want[SEQUENCES][T * TINY_VOCAB];
    double got[SEQUENCES * TINY_VOCAB];
    tiny_checkpoint c;
    nmlp_train_growth growth;
    nmlp_err err;
    (void)state;
    tiny_init(&c, 27);
    factorise_all(&c);
    setup_open(&s, &c, false);
    for (int q = 0; q < SEQUENCES; q++) reference_forward(&s.model, s.ids + q * T, T, want[q]);
    nmlp_assert_ok(nmlp_train_growth_init(&growth, s.net, SEQUENCES, T, &err), &err);
    for (int turn = 0; turn < 2; turn++) {
        growth.length = 0;
        for (int t = 0; t < T; t++) {
            int32_t newest[SEQUENCES];
            for (int q = 0; q < SEQUENCES; q++) newest[q] = s.ids[q * T + t];
            nmlp_train_net_next(s.net, &growth, newest, got);
            for (int q = 0; q < SEQUENCES; q++)
                for (int v = 0; v < TINY_VOCAB; v++) /* angles rounded to f32, as above */
                    assert_true(fabs(got[q * TINY_VOCAB + v] - want[q][t * TINY_VOCAB + v]) < 1e-5);
        }
    }
    nmlp_train_growth_fini(&growth);
    setup_close(&s);
    tiny_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_model_matches_differences),
        cmocka_unit_test(matching_hidden_states_matches_differences),
        cmocka_unit_test(factorised_model_matches_differences),
        cmocka_unit_test(shared_basis_model_matches_differences),
        cmocka_unit_test(head_norm_model_matches_differences),
        cmocka_unit_test(biased_model_matches_differences),
        cmocka_unit_test(loss_is_the_reference_decoders),
        cmocka_unit_test(growing_sequences_have_the_reference_decoders_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
