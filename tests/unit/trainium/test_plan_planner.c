/* The planner against the acceptance figures it can reach quickly, and its cache. All times are simulated. */
#include <math.h>

#include "base/file.h"
#include "base/mem.h"
#include "lib/testing.h"
#include "trainium/plan/planner.h"
#include "trainium/plan/predict.h"
#include "trainium/sim/time.h"

static int n_simulated;

static nmlp_status simulate_cost(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                                 nmlp_kernel_cost *out, nmlp_err *err) {
    nmlp_time_report t;
    (void)ctx;
    n_simulated++;
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&t, program, machine, NULL, err));
    *out = (nmlp_kernel_cost){.latency_us = t.latency_us,
                              .hbm_bytes = t.hbm_read_bytes + t.hbm_write_bytes,
                              .tensor_utilisation = t.tensor_utilisation,
                              .tensor_utilisation_sustained = t.tensor_sustained_utilisation};
    for (int e = 0; e < NMLP_N_ENGINES; e++) out->busy_us[e] = t.busy_us[e];
    return NMLP_OK;
}

static nmlp_machine machine(const char *name) {
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, name, &err), &err);
    return m;
}

static nmlp_kernel_plan find(const nmlp_machine *m, nmlp_plan_op op, nmlp_kernel_shape s, const char *cache) {
    nmlp_kernel_plan plan;
    nmlp_err err = {0};
    nmlp_planner planner = {.machine = m, .cost = simulate_cost, .cache_path = cache};
    nmlp_kernel_request rq = {.shape = s, .dtype = NMLP_NC_BF16, .machine = m};
    nmlp_assert_ok(nmlp_kernel_plan_find(&plan, &planner, op, &rq, &err), &err);
    return plan;
}

static double simulated_us(const nmlp_machine *m, const char *kernel, const char *tiling_text, nmlp_kernel_shape s,
                           double *bytes) {
    nmlp_program *p = NULL;
    nmlp_tiling tiling;
    nmlp_kernel_cost cost = {0};
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_tiling_parse(&tiling, tiling_text, &err), &err);
    nmlp_kernel_request rq = {.shape = s, .dtype = NMLP_NC_BF16, .tiling = &tiling, .machine = m};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find(kernel, &err), &rq, &err), &err);
    nmlp_assert_ok(simulate_cost(NULL, p, m, &cost, &err), &err);
    nmlp_program_destroy(p);
    if (bytes) *bytes = cost.hbm_bytes;
    return cost.latency_us;
}

/* The argument of the paper: fused beats dense at every length, by more at longer ones, and moves what its formula
 * says. */
static void papers_chain_beats_dense_and_moves_its_formula(void **state) {
    (void)state;
    nmlp_machine m = machine("trn1");
    double before = 0;
    for (int64_t s = 1024; s <= 16384; s *= 4) {
        const double h = 8192, r = 4096, o = 16384;
        double bytes, dense = simulated_us(&m, "xw-opt", "m=8", (nmlp_kernel_shape){s, 8192, 0, 16384}, NULL);
        double fused = simulated_us(&m, "xuv-fused", "", (nmlp_kernel_shape){s, 8192, 4096, 16384}, &bytes);
        double formula = 2 * (double)s * (h + o) + (double)s / 1024 * 2 * (h * r + r * o);
        assert_true(fused < dense);
        assert_true(dense / fused > before * 0.99);
        assert_true(fabs(bytes / formula - 1) < 0.02);
        before = dense / fused;
    }
}

static void our_chain_reaches_the_tensor_limit_with_no_more_traffic(void **state) {
    (void)state;
    nmlp_machine m = machine("trn1");
    for (int64_t s = 1024; s <= 4096; s *= 4) {
        nmlp_kernel_shape shape = {s, 8192, 4096, 16384};
        nmlp_kernel_plan plan = find(&m, NMLP_PLAN_XUV, shape, NULL);
        assert_string_equal(plan.winner.kernel, "xuv");
        assert_true(plan.winner.cost.tensor_utilisation_sustained >= (s >= 4096 ? 0.98 : 0.95));
        for (int table = 1; table <= 2; table++) {
            double bytes, us = simulated_us(&m, "xuv-fused", table == 1 ? "table=1" : "table=2", shape, &bytes);
            assert_true(plan.winner.cost.latency_us <= us);
            assert_true(plan.winner.cost.hbm_bytes <= bytes * (1 + 1e-9));
        }
    }
}

/* A sample of the models; `bench neuron-mlp` runs them all. The first ones are the shortest kernels of all, in which
 * start and end weigh most; on trn3 they miss 6 % (docs/kernels.md). */
static void planned_mlps_are_near_their_bound_and_beat_the_papers(void **state) {
    (void)state;
    enum { N_SHORTEST = 3 };
    static const nmlp_kernel_shape shapes[] = {
        {16, 2048, 768, 6144},   {128, 2048, 768, 6144},  {512, 2048, 768, 6144},
        {1, 2048, 1536, 8192},   {512, 3072, 1664, 8192}, {2048, 4096, 2944, 14336},
        {2048, 2560, 896, 9728}, {16, 2048, 1152, 6144},  {128, 2560, 896, 9728},
    };
    const char *const targets[] = {"trn1", "trn2", "trn3"};
    for (int t = 0; t < 3; t++) {
        nmlp_machine m = machine(targets[t]);
        for (size_t i = t == 2 ? N_SHORTEST : 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            nmlp_kernel_plan plan = find(&m, NMLP_PLAN_MLP, shapes[i], NULL);
            double over = (plan.winner.cost.latency_us - m.launch_us) / (plan.limit_us - m.launch_us);
            if (over > 1.06)
                print_message("%s S=%lld R=%lld: %.3f of the bound\n", targets[t], (long long)shapes[i].s,
                              (long long)shapes[i].r, over);
            assert_true(over <= 1.06);
            assert_true(plan.floor_us >= plan.limit_us);
            /* Else the bound is none; the simulator books DMA time in buckets of 0.25 us. */
            assert_true(plan.winner.cost.latency_us >= plan.floor_us - 0.25);
            assert_true(plan.winner.cost.latency_us < plan.paper.cost.latency_us);
        }
    }
}

/* Forms that compress writes, in the shape of llama-3.2-1b: shared, dense and factorised projections side by side. On
 * trn3 decode with a dense down projection is over 1.06 of its bound (docs/kernels.md). */
static void mixed_mlps_are_near_their_bound_and_beat_the_papers(void **state) {
    (void)state;
    static const nmlp_mlp_ranks forms[] = {{1024, 1024, 0, true},
                                           {0, 1280, 0, false},
                                           {1024, 1280, 1536, false},
                                           {0, 0, 1280, false},
                                           {240, 560, 0, false}};
    static const int64_t rows[] = {1, 128, 2048};
    const char *const targets[] = {"trn1", "trn2", "trn3"};
    for (int t = 0; t < 3; t++) {
        nmlp_machine m = machine(targets[t]);
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
            for (int r = 0; r < 3; r++) {
                nmlp_kernel_plan plan;
                nmlp_err err = {0};
                nmlp_planner planner = {.machine = &m, .cost = simulate_cost};
                nmlp_kernel_request rq = {.shape = {rows[r], 2048, 0, 8192}, .dtype = NMLP_NC_BF16, .machine = &m};
                nmlp_kernel_set_ranks(&rq, forms[i]);
                nmlp_assert_ok(nmlp_kernel_plan_find(&plan, &planner, NMLP_PLAN_MLP, &rq, &err), &err);
                double over = (plan.winner.cost.latency_us - m.launch_us) / (plan.limit_us - m.launch_us);
                bool small = forms[i].gate == 240; /* few products hide what precedes them */
                double allowed = small ? 1.13 : t == 2 ? 1.08 : 1.06;
                assert_true(over <= allowed);
                assert_true(plan.winner.cost.latency_us >= plan.floor_us - 0.25);
                assert_true(plan.winner.cost.latency_us < plan.paper.cost.latency_us);
            }
    }
}

/* One row of qwen3-1.7b at rank 768 on trn3, added up by hand from its machine file. */
static void floor_is_the_dma_bound_between_first_load_and_last_store(void **state) {
    (void)state;
    nmlp_machine m = machine("trn3");
    nmlp_kernel_request rq = {.shape = {1, 2048, 768, 6144}, .dtype = NMLP_NC_BF16, .machine = &m};
    double weights = 2.0 * 768 * (2 * 2048 + 2 * 6144 + 6144 + 2048), x = 2.0 * 2048, issue_and_start = 600 + 1000,
           done = 300, matmul = 64 / 2.4 / 0.993, read_out = 170 + 9 + 64 / 1.2 + 20 + 155;
    double by_hand =
        issue_and_start + (weights + x) / (16 * 35) + done + matmul + read_out + issue_and_start + 9 + done;
    nmlp_bounds b = nmlp_bounds_of(NMLP_PLAN_MLP, &rq);
    assert_true(fabs(b.floor_ns - by_hand) < 1e-6 * by_hand);
    assert_true(b.floor_ns > 1.06 * b.largest_ns); /* docs/kernels.md: out of reach there */
}

/* Published by AWS for its own library: 882 us. */
static void thin_dense_mlp_on_trn2_meets_the_published_time(void **state) {
    (void)state;
    nmlp_machine m = machine("trn2");
    assert_true(find(&m, NMLP_PLAN_MLP, (nmlp_kernel_shape){1024, 16384, 0, 416}, NULL).winner.cost.latency_us <= 882);
}

static void same_question_same_answer_and_the_cache_remembers_it(void **state) {
    (void)state;
    char dir[256], path[300];
    nmlp_machine m = machine("trn1");
    nmlp_kernel_shape shape = {64, 1024, 256, 2048};
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/plans", dir);
    nmlp_kernel_plan a = find(&m, NMLP_PLAN_MLP, shape, NULL), b = find(&m, NMLP_PLAN_MLP, shape, path);
    int before = n_simulated;
    nmlp_kernel_plan c = find(&m, NMLP_PLAN_MLP, shape, path);
    assert_int_equal(n_simulated - before, 2); /* winner and runner-up only */
    assert_true(c.cached && !b.cached);
    assert_memory_equal(&a.winner.tiling, &b.winner.tiling, sizeof a.winner.tiling);
    assert_int_equal(c.winner.tiling.n, b.winner.tiling.n);
    assert_true(a.winner.cost.latency_us == c.winner.cost.latency_us);
    m.dma_row_ns += 1; /* another machine: not in the cache */
    assert_false(find(&m, NMLP_PLAN_MLP, shape, path).cached);
    nmlp_test_rmdir(dir);
}

/* A damaged cache costs time, nothing else; a file of somebody else is not added to. */
static void a_damaged_cache_is_searched_again_and_a_foreign_file_refused(void **state) {
    static const char foreign[] = "Some notes,\n\n0 0 0\n";
    (void)state;
    char dir[256], path[300];
    nmlp_machine m = machine("trn1");
    nmlp_kernel_shape shape = {128, 256, 0, 256};
    nmlp_kernel_plan plan;
    nmlp_planner planner = {.machine = &m, .cost = simulate_cost, .cache_path = path};
    nmlp_kernel_request rq = {.shape = shape, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_str text, line;
    nmlp_err err = {0};
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/plans", dir);
    nmlp_str_init(&text);
    nmlp_str_init(&line);
    nmlp_kernel_plan want = find(&m, NMLP_PLAN_XW, shape, path);
    nmlp_assert_ok(nmlp_file_read(&text, path, 4096, &err), &err);
    /* The key stays, the choice is one that cannot be built. */
    const char *choice = strstr(nmlp_str_text(&text), " - xw ");
    assert_non_null(choice);
    nmlp_str_append(&line, text.data, (size_t)(choice - text.data));
    nmlp_str_puts(&line, " - xw rows=77777 - -\n");
    nmlp_test_write_file(path, nmlp_str_text(&line), line.len);
    nmlp_kernel_plan got = find(&m, NMLP_PLAN_XW, shape, path);
    assert_false(got.cached);
    assert_true(got.winner.cost.latency_us == want.winner.cost.latency_us);
    nmlp_test_write_file(path, foreign, sizeof foreign - 1);
    nmlp_assert_fails(nmlp_kernel_plan_find(&plan, &planner, NMLP_PLAN_XW, &rq, &err), &err, NMLP_E_FORMAT, "plans",
                      "not a plan cache", NULL);
    nmlp_str_clear(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 4096, &err), &err);
    assert_string_equal(nmlp_str_text(&text), foreign);
    nmlp_str_fini(&line);
    nmlp_str_fini(&text);
    nmlp_test_rmdir(dir);
}

static void too_large_for_sbuf_is_refused(void **state) {
    (void)state;
    nmlp_machine m = machine("trn1");
    nmlp_kernel_plan plan;
    nmlp_err err = {0};
    nmlp_planner planner = {.machine = &m, .cost = simulate_cost};
    nmlp_kernel_request rq = {.shape = {512, 1 << 20, 0, 1 << 20}, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_assert_fails(nmlp_kernel_plan_find(&plan, &planner, NMLP_PLAN_MLP, &rq, &err), &err, NMLP_E_LIMIT, "SBUF",
                      "trn1", NULL);
}

/* Sums, monotonicity, and the all-reduce only where there is more than one core. */
static void predictions_add_up(void **state) {
    (void)state;
    nmlp_machine m = machine("trn2");
    nmlp_err err = {0};
    nmlp_planner planner = {.machine = &m, .cost = simulate_cost};
    nmlp_predict_request rq = {.decoder = {1024, 3072, 4, 16, 8, 64, 32000, NULL, 0, 0},
                               .prompt = 256,
                               .generate = 32,
                               .tp = 1,
                               .dtype = NMLP_NC_BF16};
    nmlp_prediction one, two, thin, parts;
    nmlp_assert_ok(nmlp_predict(&one, &planner, &rq, &err), &err);
    rq.tp = 2;
    nmlp_assert_ok(nmlp_predict(&two, &planner, &rq, &err), &err);
    nmlp_mlp_form all = {{256, 256, 256, false}, 4}, mixed[] = {{{256, 256, 0, true}, 3}, {{0, 256, 128, false}, 1}};
    rq.tp = 1, rq.decoder.forms = &all, rq.decoder.n_forms = 1;
    nmlp_assert_ok(nmlp_predict(&thin, &planner, &rq, &err), &err);
    rq.decoder.forms = mixed, rq.decoder.n_forms = 2;
    nmlp_assert_ok(nmlp_predict(&parts, &planner, &rq, &err), &err);
    assert_true(parts.e2e_ms < one.e2e_ms && parts.e2e_ms > thin.e2e_ms);
    double h = 1024, i = 3072,
           gone = 3 * (3 * h * i - 256 * (h + 2 * i) - h * i) +
                  (2 * h * i - 256 * (h + i) - 128 * (h + i)); /* of 4 layers */
    assert_true(fabs(one.weight_bytes - parts.weight_bytes - 2 * gone) < 1);
    assert_true(fabs(one.e2e_ms - one.ttft_ms - 31 * one.tpot_ms) < 1e-9 * one.e2e_ms);
    assert_true(one.decode.all_reduce == 0 && two.decode.all_reduce > 0);
    assert_true(two.prefill.mlp < one.prefill.mlp);
    assert_true(thin.e2e_ms < one.e2e_ms && thin.decode.attention == one.decode.attention);
    /* a token cannot be faster than its weights come from HBM */
    assert_true(one.tpot_ms * 1e6 > one.weight_bytes / m.hbm_bytes_per_ns);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(papers_chain_beats_dense_and_moves_its_formula),
        cmocka_unit_test(our_chain_reaches_the_tensor_limit_with_no_more_traffic),
        cmocka_unit_test(planned_mlps_are_near_their_bound_and_beat_the_papers),
        cmocka_unit_test(mixed_mlps_are_near_their_bound_and_beat_the_papers),
        cmocka_unit_test(floor_is_the_dma_bound_between_first_load_and_last_store),
        cmocka_unit_test(thin_dense_mlp_on_trn2_meets_the_published_time),
        cmocka_unit_test(same_question_same_answer_and_the_cache_remembers_it),
        cmocka_unit_test(a_damaged_cache_is_searched_again_and_a_foreign_file_refused),
        cmocka_unit_test(too_large_for_sbuf_is_refused),
        cmocka_unit_test(predictions_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
