/* The knapsack against exhaustive search, and the promises of an allocation. */
#include "lib/testing.h"

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/ranks/allocate.h"
#include "compress/calibrate/calib_text.h"

enum { GROUPS = 4, OPTIONS = 5 };

static double exhaustive(const nmlp_rank_group *groups, double budget) {
    double best = INFINITY;
    int64_t combinations = (int64_t)pow(OPTIONS, GROUPS);
    for (int64_t c = 0; c < combinations; c++) {
        double cost = 0, loss = 0;
        int64_t rest = c;
        for (int g = 0; g < GROUPS; g++, rest /= OPTIONS) {
            cost += groups[g].options[rest % OPTIONS].cost;
            loss += groups[g].options[rest % OPTIONS].loss;
        }
        if (cost <= budget && loss < best) best = loss;
    }
    return best;
}

static void knapsack_equals_exhaustive_search(void **state) {
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    nmlp_rng_seed(&rng, 1);
    for (int trial = 0; trial < 200; trial++) {
        nmlp_rank_option options[GROUPS][OPTIONS];
        nmlp_rank_group groups[GROUPS];
        int64_t chosen[GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            groups[g] = (nmlp_rank_group){.options = options[g], .n_options = OPTIONS};
            for (int o = 0; o < OPTIONS; o++)
                options[g][o] = (nmlp_rank_option){.cost = 3.0 * (double)(1 + nmlp_rng_below(&rng, 12)),
                                                   .loss = nmlp_rng_uniform(&rng)};
        }
        double budget = 3.0 * (double)nmlp_rng_below(&rng, 40);
        double best = exhaustive(groups, budget);
        nmlp_status st = nmlp_knapsack_solve(groups, GROUPS, budget, 3, chosen, &err);
        if (!isfinite(best)) {
            assert_int_equal(st, NMLP_E_LIMIT);
            continue;
        }
        nmlp_assert_ok(st, &err);
        double cost = 0, loss = 0;
        for (int g = 0; g < GROUPS; g++) {
            cost += options[g][chosen[g]].cost;
            loss += options[g][chosen[g]].loss;
        }
        assert_true(cost <= budget);
        assert_true(fabs(loss - best) < 1e-12);
    }
}

static void uniform_ranks_are_those_of_the_reference_table(void **state) {
    (void)state;
    /* small: H 512, I 2048; tiny: H 256, I 1024 */
    const struct {
        int64_t h, i;
        double ratio;
        int64_t rank;
    } table[] = {{512, 2048, 0.05, 384}, {512, 2048, 0.1, 368},  {512, 2048, 0.2, 320}, {512, 2048, 0.4, 240},
                 {512, 2048, 0.6, 160},  {256, 1024, 0.05, 192}, {256, 1024, 0.1, 192}, {256, 1024, 0.2, 160},
                 {256, 1024, 0.4, 128},  {256, 1024, 0.6, 80}};
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++)
        assert_int_equal(nmlp_rank_uniform(table[k].i, table[k].h, table[k].ratio, 16), table[k].rank);
}

static void uniform_rank_never_passes_break_even(void **state) {
    (void)state;
    assert_int_equal(nmlp_rank_break_even(8192, 2048), 1638);
    assert_int_equal(nmlp_rank_uniform(8192, 2048, 0.02, 128), 1536); /* nearest would be 1664, larger than dense */
    assert_int_equal(nmlp_rank_uniform(64, 64, 0.2, 64), 0);          /* not one tile saves anything */
    assert_int_equal(nmlp_rank_uniform(8192, 2048, 0.999, 128), 128);
}

/* Two layers whose curves fall exponentially at different rates. */
enum { H = 64, I2 = 160, LAYERS = 2 };

static nmlp_block block_of_mlp(int64_t layer) {
    return (nmlp_block){.kind = NMLP_MODULE_MLP,
                        .layer = layer,
                        .n_first = 2,
                        .rows = {I2, I2, H, 2 * I2},
                        .cols = {H, H, I2, H},
                        .count = 1};
}

static void make_library(nmlp_factor_file *factor_file, double rate, double *loss) {
    *factor_file = (nmlp_factor_file){0};
    for (int i = 0; i <= NMLP_NESTED_JOINT; i++) {
        double scale = i == NMLP_NESTED_JOINT ? 2 : 1;
        double *curve = loss + i * (H + 1);
        for (int k = 0; k <= H; k++) curve[k] = k == H ? 0 : scale * exp(-rate * k);
        int64_t rows = i == NMLP_NESTED_DOWN ? H : i == NMLP_NESTED_JOINT ? 2 * I2 : I2;
        int64_t cols = i == NMLP_NESTED_DOWN ? I2 : H;
        factor_file->nested[i] = (nmlp_nested){
            .rows = rows, .cols = cols, .full = H, .rank = nmlp_rank_break_even(rows, cols), .loss = curve};
    }
}

static void allocation_keeps_budget_tiles_and_prefers_the_steep_layer(void **state) {
    nmlp_factor_file factor_files[LAYERS];
    static double loss[LAYERS][NMLP_NESTED_COUNT * (H + 1)];
    nmlp_layer_ranks ranks[LAYERS];
    nmlp_block blocks[LAYERS] = {block_of_mlp(0), block_of_mlp(1)};
    double s[LAYERS] = {1, 1};
    nmlp_cost cost = nmlp_cost_params();
    nmlp_err err;
    (void)state;
    make_library(&factor_files[0], 0.2, loss[0]);
    make_library(&factor_files[1], 0.02, loss[1]);
    double dense = LAYERS * 3.0 * H * I2;
    double last = INFINITY;
    for (double ratio = 0.6; ratio > 0.05; ratio -= 0.05) {
        nmlp_allocation a = {.factor_files = factor_files,
                             .blocks = blocks,
                             .n_blocks = LAYERS,
                             .tile = 8,
                             .cost = &cost,
                             .budget = (1 - ratio) * dense,
                             .separate = true,
                             .joint = true,
                             .dense = true,
                             .cap = INFINITY,
                             .s_first = s,
                             .s_last = s,
                             .power = 1};
        nmlp_assert_ok(nmlp_allocate(&a, ranks, &err), &err);
        double params = 0, total = 0;
        for (int l = 0; l < LAYERS; l++) {
            params += (double)nmlp_block_params(&blocks[l], &ranks[l]);
            for (int m = 0; m < NMLP_MLP_MATRICES; m++) {
                assert_int_equal(ranks[l].rank[m] % 8, 0);
                assert_true(ranks[l].rank[m] <=
                            factor_files[l].nested[ranks[l].joint && m < 2 ? NMLP_NESTED_JOINT : m].rank);
                bool shared = ranks[l].joint && m < 2;
                if (ranks[l].rank[m])
                    total += loss[l][(shared ? NMLP_NESTED_JOINT : m) * (H + 1) + ranks[l].rank[m]] / (shared ? 2 : 1);
            }
        }
        assert_true(params <= (1 - ratio) * dense + 0.5);
        assert_true((1 - ratio) * dense - params < 8.0 * (H + 2 * I2)); /* within one tile of the request */
        assert_true(total <= last + 1e-12);                             /* more budget, less loss */
        last = total;
    }
}

static void latency_budget_spends_time_not_parameters(void **state) {
    nmlp_factor_file factor_files[LAYERS];
    static double loss[LAYERS][NMLP_NESTED_COUNT * (H + 1)];
    nmlp_layer_ranks ranks[LAYERS];
    nmlp_block blocks[LAYERS] = {block_of_mlp(0), block_of_mlp(1)};
    double s[LAYERS] = {1, 1};
    nmlp_cost_line line = {.start_dense_us = 5, .start_lowrank_us = 10, .us_per_param = 1e-3};
    nmlp_cost cost = nmlp_cost_time(&line);
    nmlp_err err;
    (void)state;
    make_library(&factor_files[0], 0.2, loss[0]);
    make_library(&factor_files[1], 0.02, loss[1]);
    nmlp_allocation a = {.factor_files = factor_files,
                         .blocks = blocks,
                         .n_blocks = LAYERS,
                         .tile = 8,
                         .cost = &cost,
                         .budget = 70,
                         .separate = true,
                         .joint = true,
                         .dense = true,
                         .cap = INFINITY,
                         .s_first = s,
                         .s_last = s,
                         .power = 1};
    nmlp_assert_ok(nmlp_allocate(&a, ranks, &err), &err);
    double us = 0;
    for (int l = 0; l < LAYERS; l++) {
        us += cost.matrix(cost.ctx, H, I2, ranks[l].rank[NMLP_MLP_DOWN]);
        if (ranks[l].joint) {
            us += cost.matrix(cost.ctx, 2 * I2, H, ranks[l].rank[0]);
        } else {
            us += cost.matrix(cost.ctx, I2, H, ranks[l].rank[0]) + cost.matrix(cost.ctx, I2, H, ranks[l].rank[1]);
        }
    }
    assert_true(us <= 70);
    a.budget = 5;
    nmlp_assert_fails(nmlp_allocate(&a, ranks, &err), &err, NMLP_E_LIMIT, "budget", NULL);
}

static void heldout_windows_are_spread_and_short_texts_shrink_both(void **state) {
    int32_t ids[1000];
    nmlp_calib_windows w;
    nmlp_err err;
    (void)state;
    for (int i = 0; i < 1000; i++) ids[i] = i;
    nmlp_assert_ok(nmlp_calib_windows_cut(&w, ids, 1000, 10, 600, 200, &err), &err);
    assert_int_equal(w.n_calib, 60);
    assert_int_equal(w.n_heldout, 20);
    for (int i = 0; i < 20; i++) assert_int_equal(w.ids[(60 + i) * 10], 30 + 40 * i); /* every fourth window */
    nmlp_calib_windows_fini(&w);
    nmlp_assert_ok(nmlp_calib_windows_cut(&w, ids, 100, 10, 600, 200, &err), &err);
    assert_int_equal(w.n_calib + w.n_heldout, 10);
    assert_int_equal(w.n_heldout, 2);
    nmlp_calib_windows_fini(&w);
    nmlp_assert_ok(nmlp_calib_windows_cut(&w, ids, 1000, 512, 64, 64, &err), &err); /* 64 tokens: one short window */
    assert_int_equal(w.context, 64);
    assert_int_equal(w.n_calib, 1);
    nmlp_calib_windows_fini(&w);
    nmlp_assert_fails(nmlp_calib_windows_cut(&w, ids, 1, 512, 64, 64, &err), &err, NMLP_E_LIMIT, "1 tokens", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knapsack_equals_exhaustive_search),
        cmocka_unit_test(uniform_ranks_are_those_of_the_reference_table),
        cmocka_unit_test(uniform_rank_never_passes_break_even),
        cmocka_unit_test(allocation_keeps_budget_tiles_and_prefers_the_steep_layer),
        cmocka_unit_test(latency_budget_spends_time_not_parameters),
        cmocka_unit_test(heldout_windows_are_spread_and_short_texts_shrink_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
