/* Ranks and formats under one budget: against every possible choice of a model with one layer. */
#include "lib/testing.h"

#include <math.h>
#include <string.h>

#include "compress/budget/mix.h"

enum { HIDDEN = 64, INTERMEDIATE = 128, VOCAB = 256, TILE = 16, N_RANKS = 2, N_BITS = NMLP_QUANT_MATRICES + 1 };

/* Bits 2 and 3 of the options: 8 bits, and as it is. */
static const unsigned two_options = 1u << NMLP_QUANT_OPTION_Q8 | 1u << NMLP_QUANT_OPTION_PLAIN;
static const int both[] = {NMLP_QUANT_OPTION_Q8, NMLP_QUANT_OPTION_PLAIN};

struct bed {
    nmlp_layer layer;
    nmlp_model model;
    double bits[N_BITS * NMLP_QUANT_OPTIONS], cut[NMLP_NESTED_COUNT * N_RANKS];
    nmlp_loss_survey survey;
    nmlp_mix_cost cost;
    nmlp_mix_problem problem;
};

static double bytes(const void *ctx, int64_t rows, int64_t cols, int64_t rank, int option) {
    double weights = rank > 0 ? (double)(rank * (rows + cols)) : (double)(rows * cols);
    (void)ctx;
    return weights * (option == NMLP_QUANT_OPTION_PLAIN ? 2 : 1);
}

static double head_bytes(const void *ctx, int option) { return bytes(ctx, VOCAB, HIDDEN, 0, option); }

/* A small generator: the same numbers everywhere. */
static double next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0;
}

static void open_bed(struct bed *b, uint64_t seed) {
    const int64_t shapes[][2] = {{64, 64}, {32, 64}, {32, 64}, {64, 64}};
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 4; i++)
        b->layer.attention[i].w = nmlp_view_2d(NULL, NMLP_DTYPE_BF16, shapes[i][0], shapes[i][1]);
    b->model.config.hidden = HIDDEN;
    b->model.config.intermediate = INTERMEDIATE;
    b->model.config.n_layers = 1;
    b->model.config.vocab = VOCAB;
    b->model.layers = &b->layer;
    for (int i = 0; i < N_BITS; i++) b->bits[i * NMLP_QUANT_OPTIONS + NMLP_QUANT_OPTION_Q8] = next(&seed);
    for (int kind = 0; kind < NMLP_NESTED_COUNT; kind++) {
        b->cut[kind * N_RANKS] = 1 + 3 * next(&seed);
        b->cut[kind * N_RANKS + 1] = next(&seed);
    }
    b->survey = (nmlp_loss_survey){.n_layers = 1, .tile = TILE, .n_ranks = N_RANKS, .bits = b->bits, .cut = b->cut};
    b->cost = (nmlp_mix_cost){.matrix = bytes, .head = head_bytes};
    b->problem = (nmlp_mix_problem){.model = &b->model,
                                    .survey = &b->survey,
                                    .cost = &b->cost,
                                    .scale = nmlp_mix_scale_none(),
                                    .ranks = true,
                                    .options = two_options};
}

/* Choice number n of a layer into `mix`; false where there is no such choice. Digits of n in mixed base. */
static bool choice(nmlp_mix *mix, int64_t n) {
    nmlp_layer_ranks *r = &mix->ranks[0];
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++, n /= 2) mix->formats[i] = nmlp_quant_option(both[n % 2]);
    mix->head = nmlp_quant_option(both[n % 2]);
    n /= 2;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++, n /= 3) r->rank[i] = TILE * (n % 3);
    r->joint = n % 2;
    bool apart = mix->formats[NMLP_QUANT_GATE].dtype != mix->formats[NMLP_QUANT_UP].dtype;
    if (r->joint && (r->rank[0] == 0 || r->rank[0] != r->rank[1])) return false;
    return !(apart && (r->rank[0] || r->rank[1]));
}
enum { N_CHOICES = 256 * 27 * 2 };

/* The least loss within a cost, or the least cost within a loss, of all choices. */
static double best_of_all(const struct bed *b, double most_cost, double most_loss, bool cost) {
    nmlp_quant_format plain = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN);
    nmlp_mix mix;
    nmlp_err err;
    double best = INFINITY;
    assert_int_equal(nmlp_mix_uniform(&mix, 1, &plain, &plain, &err), NMLP_OK);
    for (int64_t n = 0; n < N_CHOICES; n++) {
        if (!choice(&mix, n)) continue;
        nmlp_mix_price(&b->problem, &mix);
        if (mix.cost <= most_cost && mix.loss <= most_loss) best = fmin(best, cost ? mix.cost : mix.loss);
    }
    nmlp_mix_fini(&mix);
    return best;
}

/* Costs are rounded up to 8192ths of the budget, one group each. */
static const double rounding = 1 - 8.0 / 8192;

static void no_choice_within_a_cost_loses_less(void **state) {
    struct bed b;
    nmlp_err err;
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        open_bed(&b, seed);
        for (double budget = 60e3; budget < 130e3; budget += 17e3) {
            nmlp_mix mix;
            assert_int_equal(nmlp_mix_within_cost(&b.problem, budget, &mix, &err), NMLP_OK);
            double cost = mix.cost, loss = mix.loss;
            nmlp_mix_price(&b.problem, &mix);
            assert_true(fabs(mix.cost - cost) < 1e-6 && fabs(mix.loss - loss) < 1e-9);
            assert_true(cost <= budget);
            assert_true(loss >= best_of_all(&b, budget, INFINITY, false) - 1e-9);
            assert_true(loss <= best_of_all(&b, budget * rounding, INFINITY, false) + 1e-9);
            nmlp_mix_fini(&mix);
        }
    }
}

static void no_choice_within_a_loss_costs_less(void **state) {
    struct bed b;
    nmlp_err err;
    nmlp_mix mix;
    (void)state;
    open_bed(&b, 7);
    const double bounds[] = {0.5, 1.5, 3, 6};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        assert_int_equal(nmlp_mix_within_loss(&b.problem, bounds[i], &mix, &err), NMLP_OK);
        assert_true(mix.loss <= bounds[i]);
        double best = best_of_all(&b, INFINITY, bounds[i], true);
        assert_true(mix.cost >= best - 1e-6 && mix.cost * rounding <= best * (1 + 2e-4));
        nmlp_mix_fini(&mix);
    }
    assert_int_equal(nmlp_mix_within_loss(&b.problem, 0, &mix, &err), NMLP_OK);
    assert_false(nmlp_mix_has_bits(&mix) || nmlp_mix_has_ranks(&mix)); /* nothing is free here: as it is */
    nmlp_mix_fini(&mix);
}

static void forbidden_forms_are_not_chosen(void **state) {
    struct bed b;
    nmlp_err err;
    nmlp_mix mix;
    (void)state;
    open_bed(&b, 5);
    b.problem.ranks = false;
    assert_int_equal(nmlp_mix_within_loss(&b.problem, INFINITY, &mix, &err), NMLP_OK);
    assert_true(nmlp_mix_has_bits(&mix) && !nmlp_mix_has_ranks(&mix));
    nmlp_mix_fini(&mix);
    b.problem.ranks = true;
    b.problem.options = 1u << NMLP_QUANT_OPTION_PLAIN;
    assert_int_equal(nmlp_mix_within_loss(&b.problem, INFINITY, &mix, &err), NMLP_OK);
    assert_true(!nmlp_mix_has_bits(&mix) && nmlp_mix_has_ranks(&mix));
    nmlp_mix_fini(&mix);
    assert_int_equal(nmlp_mix_within_cost(&b.problem, 1000, &mix, &err), NMLP_E_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_choice_within_a_cost_loses_less),
        cmocka_unit_test(no_choice_within_a_loss_costs_less),
        cmocka_unit_test(forbidden_forms_are_not_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
