/* Sampling: the distribution it draws from, its filters, its reproducibility. */
#include <math.h>

#include "base/rng.h"
#include "engine/sampler.h"
#include "lib/testing.h"

enum { V = 6, DRAWS = 60000 };

static nmlp_token_candidate candidates[V], other[V];
static double weights[V];
static nmlp_sampler_scratch scratch = {candidates, other, weights};

static const float logits[V] = {0.0f, 2.0f, 1.0f, -1.0f, 1.5f, -3.0f};

static void count(const nmlp_sampling *options, int32_t seen, int counts[V]) {
    nmlp_sampler s;
    nmlp_err err;
    memset(counts, 0, V * sizeof *counts);
    nmlp_assert_ok(nmlp_sampler_init(&s, options, V, &err), &err);
    if (seen >= 0) nmlp_sampler_accept(&s, seen);
    for (int i = 0; i < DRAWS; i++) counts[nmlp_sampler_next(&s, &scratch, logits)]++;
    nmlp_sampler_fini(&s);
}

/* Every frequency within five standard errors of the softmax over the kept tokens. */
static void check(const nmlp_sampling *options, const bool kept[V]) {
    int counts[V];
    double sum = 0;
    count(options, -1, counts);
    for (int i = 0; i < V; i++) sum += kept[i] ? exp((double)logits[i] / options->temperature) : 0;
    for (int i = 0; i < V; i++) {
        double p = kept[i] ? exp((double)logits[i] / options->temperature) / sum : 0;
        assert_true(fabs((double)counts[i] / DRAWS - p) <= 5 * sqrt(p * (1 - p) / DRAWS));
    }
}

static void draws_follow_the_softmax(void **state) {
    nmlp_sampling o = {.temperature = 0.7, .top_p = 1, .repetition_penalty = 1, .seed = 3};
    (void)state;
    check(&o, (const bool[V]){1, 1, 1, 1, 1, 1});
}

static void filters_keep_the_likeliest(void **state) {
    nmlp_sampling o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 4};
    (void)state;
    o.top_k = 2;
    check(&o, (const bool[V]){0, 1, 0, 0, 1, 0});
    o.top_k = 0;
    o.top_p = 0.5; /* softmax: .44 .27 .16 …: the second is needed to reach one half */
    check(&o, (const bool[V]){0, 1, 0, 0, 1, 0});
    o.top_p = 0.4;
    check(&o, (const bool[V]){0, 1, 0, 0, 0, 0});
    o.top_p = 1;
    o.min_p = 0.3; /* of the likeliest: exp(-0.5), exp(-1) stay, exp(-2) = .135 goes */
    check(&o, (const bool[V]){0, 1, 1, 0, 1, 0});
}

static void greedy_takes_the_first_largest(void **state) {
    nmlp_sampler s;
    nmlp_err err;
    nmlp_sampling o = nmlp_sampling_greedy();
    float tied[3] = {1, 5, 5};
    float nan_first[3] = {NAN, -2, -1};
    (void)state;
    nmlp_assert_ok(nmlp_sampler_init(&s, &o, 3, &err), &err);
    assert_int_equal(nmlp_sampler_next(&s, &scratch, tied), 1);
    assert_int_equal(nmlp_sampler_next(&s, &scratch, nan_first), 2);
    nmlp_sampler_fini(&s);
}

/* Against one look after the other: values that repeat, NaN, -Inf, rows of any length. */
static void argmax_is_the_first_largest_of_any_row(void **state) {
    enum { MOST = 9000 };
    static float values[MOST];
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 5);
    for (int round = 0; round < 300; round++) {
        int64_t n = 1 + nmlp_rng_below(&rng, round % 2 ? MOST : 70), range = 1 + nmlp_rng_below(&rng, 3000);
        int64_t best = 0;
        float top = -INFINITY;
        for (int64_t i = 0; i < n; i++) {
            int64_t kind = nmlp_rng_below(&rng, 20);
            values[i] = kind == 0 ? NAN : kind == 1 ? -INFINITY : (float)nmlp_rng_below(&rng, range) - 1000;
            if (round % 50 == 0) values[i] = i % 2 ? -INFINITY : NAN;
            if (!(values[i] > top)) continue;
            top = values[i];
            best = i;
        }
        assert_int_equal(nmlp_argmax(values, n), best);
    }
}

/* Whom top-k keeps of a large vocabulary: those with fewer than k before them, larger or equal with a smaller id. */
static void the_likeliest_are_kept_in_order_of_logit_and_id(void **state) {
    enum { N = 3000, KEPT = 41 };
    static float many[N], probs[N];
    nmlp_sampling o = {.temperature = 1, .top_k = KEPT, .top_p = 1, .repetition_penalty = 1};
    nmlp_sampler_scratch large;
    nmlp_sampler s;
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 6);
    nmlp_assert_ok(nmlp_sampler_init(&s, &o, N, &err), &err);
    nmlp_assert_ok(nmlp_sampler_scratch_init(&large, N, &err), &err);
    for (int round = 0; round < 6; round++) {
        /* Small and large steps, both signs, both zeros, infinities. */
        for (int i = 0; i < N; i++) {
            many[i] = (float)(nmlp_rng_below(&rng, 700) - 660 + 100 * round) * (round % 2 ? 0.01f : 0.25f);
            if (nmlp_rng_below(&rng, 40) == 0) many[i] = i % 2 ? -0.0f : 0.0f;
            if (nmlp_rng_below(&rng, 40) == 0) many[i] = -INFINITY;
        }
        nmlp_sampler_distribution(&s, &large, many, probs);
        for (int i = 0; i < N; i++) {
            int before = 0;
            for (int j = 0; j < N; j++) before += many[j] > many[i] || (many[j] == many[i] && j < i);
            assert_int_equal(probs[i] > 0, before < KEPT);
        }
    }
    nmlp_sampler_scratch_fini(&large);
    nmlp_sampler_fini(&s);
}

static void repetition_is_made_unlikely_whatever_the_sign(void **state) {
    nmlp_sampling o = {.temperature = 0, .top_p = 1, .repetition_penalty = 4};
    nmlp_sampler s;
    nmlp_err err;
    float positive[2] = {2, 1};
    float negative[2] = {-1, -2};
    (void)state;
    nmlp_assert_ok(nmlp_sampler_init(&s, &o, 2, &err), &err);
    nmlp_sampler_accept(&s, 0);
    assert_int_equal(nmlp_sampler_next(&s, &scratch, positive), 1);
    assert_int_equal(nmlp_sampler_next(&s, &scratch, negative), 1);
    nmlp_sampler_fini(&s);
}

static void the_seed_decides(void **state) {
    nmlp_sampling o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 11};
    nmlp_sampler a;
    nmlp_sampler b;
    nmlp_sampler c;
    int differ = 0;
    (void)state;
    nmlp_assert_ok(nmlp_sampler_init(&a, &o, V, NULL), NULL);
    nmlp_assert_ok(nmlp_sampler_init(&b, &o, V, NULL), NULL);
    o.seed = 12;
    nmlp_assert_ok(nmlp_sampler_init(&c, &o, V, NULL), NULL);
    for (int i = 0; i < 100; i++) {
        int32_t id = nmlp_sampler_next(&a, &scratch, logits);
        assert_int_equal(id, nmlp_sampler_next(&b, &scratch, logits));
        differ += id != nmlp_sampler_next(&c, &scratch, logits);
    }
    assert_true(differ > 10);
    nmlp_sampler_fini(&a);
    nmlp_sampler_fini(&b);
    nmlp_sampler_fini(&c);
}

static void values_out_of_range_name_their_flag(void **state) {
    nmlp_sampler s;
    nmlp_err err;
    nmlp_sampling o = nmlp_sampling_greedy();
    (void)state;
    o.top_p = 0;
    nmlp_assert_fails(nmlp_sampler_init(&s, &o, V, &err), &err, NMLP_E_ARG, "top_p", NULL);
    o = nmlp_sampling_greedy();
    o.temperature = -1;
    nmlp_assert_fails(nmlp_sampler_init(&s, &o, V, &err), &err, NMLP_E_ARG, "temperature", NULL);
    o = nmlp_sampling_greedy();
    o.min_p = 1;
    nmlp_assert_fails(nmlp_sampler_init(&s, &o, V, &err), &err, NMLP_E_ARG, "min_p", NULL);
}

/* p of the answer's tokens by the definition: logit + bias - presence*[in answer] - frequency*count. */
static void biases_and_penalties_change_the_logits_as_said(void **state) {
    static const nmlp_token_bias biases[] = {{.id = 3, .bias = 2.5f}, {.id = 1, .bias = -1.0f}};
    nmlp_sampling o = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5};
    const int answer[V] = {0, 1, 0, 0, 3, 0};
    float probs[V];
    double want[V], sum = 0;
    nmlp_sampler s;
    nmlp_err err;
    (void)state;
    o.biases = biases;
    o.n_biases = 2;
    o.presence_penalty = 0.5;
    o.frequency_penalty = 0.25;
    nmlp_assert_ok(nmlp_sampler_init(&s, &o, V, &err), &err);
    nmlp_sampler_accept_prompt(&s, 2); /* the prompt does not count */
    for (int id = 0; id < V; id++)
        for (int i = 0; i < answer[id]; i++) nmlp_sampler_accept(&s, id);
    nmlp_sampler_distribution(&s, &scratch, logits, probs);
    for (int id = 0; id < V; id++) {
        double logit = (double)logits[id] - (answer[id] ? 0.5 : 0) - 0.25 * answer[id];
        logit += id == 3 ? 2.5 : id == 1 ? -1.0 : 0;
        sum += want[id] = exp(logit);
    }
    for (int id = 0; id < V; id++) assert_true(fabs((double)probs[id] - want[id] / sum) < 1e-6);
    nmlp_sampler_fini(&s);
    o.n_biases = 1;
    nmlp_assert_fails(nmlp_sampler_init(&s, &o, 3, &err), &err, NMLP_E_ARG, "logit_bias", "vocabulary has 3", NULL);
}

static void only_allowed_tokens_are_chosen(void **state) {
    nmlp_sampling o = nmlp_sampling_greedy();
    uint32_t allowed[1] = {1u << 3 | 1u << 5};
    nmlp_sampler s;
    nmlp_err err;
    (void)state;
    for (int warm = 0; warm < 2; warm++) {
        o.temperature = warm;
        nmlp_assert_ok(nmlp_sampler_init(&s, &o, V, &err), &err);
        s.allowed = allowed;
        for (int i = 0; i < 200; i++) {
            int32_t id = nmlp_sampler_next(&s, &scratch, logits);
            assert_true(id == 3 || (warm && id == 5));
        }
        s.allowed = (const uint32_t[1]){0};
        assert_int_equal(nmlp_sampler_next(&s, &scratch, logits), -1);
        nmlp_sampler_fini(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(filters_keep_the_likeliest),
        cmocka_unit_test(greedy_takes_the_first_largest),
        cmocka_unit_test(argmax_is_the_first_largest_of_any_row),
        cmocka_unit_test(the_likeliest_are_kept_in_order_of_logit_and_id),
        cmocka_unit_test(repetition_is_made_unlikely_whatever_the_sign),
        cmocka_unit_test(biases_and_penalties_change_the_logits_as_said),
        cmocka_unit_test(only_allowed_tokens_are_chosen),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(values_out_of_range_name_their_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
