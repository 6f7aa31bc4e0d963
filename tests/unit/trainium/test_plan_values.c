/* What planned kernels compute, against float64, at 300 random shapes; packing there and back. */
#include "base/rng.h"
#include "lib/testing.h"
#include "tensor/dtype.h"
#include "trainium/neuron/check.h"
#include "trainium/neuron/pack.h"
#include "trainium/plan/planner.h"
#include "trainium/sim/check.h"
#include "trainium/sim/time.h"

static nmlp_status simulate_cost(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                                 nmlp_kernel_cost *out, nmlp_err *err) {
    nmlp_time_report t;
    (void)ctx;
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&t, program, machine, NULL, err));
    *out = (nmlp_kernel_cost){.latency_us = t.latency_us, .hbm_bytes = t.hbm_read_bytes + t.hbm_write_bytes};
    return NMLP_OK;
}

/* Of n random plans: sanitizers take ten times as long. */
static int some_of(int n) {
#ifdef NMLP_SANITIZED
    return n / 3;
#else
    return n;
#endif
}

static int64_t odd_size(nmlp_rng *rng, int64_t most) {
    static const int64_t edges[] = {1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 513};
    if (nmlp_rng_below(rng, 3) == 0) return edges[nmlp_rng_below(rng, 11)];
    return 1 + nmlp_rng_below(rng, most);
}

static void check_values(const nmlp_program *p, const char *what) {
    nmlp_values *v = NULL;
    nmlp_check_report r;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &err), &err);
    nmlp_assert_ok(nmlp_check_fill(v, p, 5, &err), &err);
    nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
    nmlp_assert_ok(nmlp_check_values(&r, v, p, NULL, &err), &err);
    if (!r.ok) print_message("%s: error %g, limit %g\n", what, r.max_rel_err, r.limit);
    assert_true(r.ok);
    nmlp_values_destroy(v);
}

static int64_t pick(nmlp_rng *rng, int64_t least, int64_t most) {
    return least + nmlp_rng_below(rng, most - least + 1);
}

/* Choices that the planner makes for real models, which the small shapes of this test would not lead it to. */
static void fix_details(nmlp_tiling *fix, nmlp_kernel_shape *s, bool cuts_x, nmlp_rng *rng) {
    nmlp_err err = {0};
    if (nmlp_rng_below(rng, 3) == 0) { /* single tiles at the end, which need short ones to be several */
        nmlp_assert_ok(nmlp_tiling_set(fix, "tail", pick(rng, 0, 3), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "cols", pick(rng, 1, 3) * 64, &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "on", pick(rng, 1, 3), &err), &err);
    }
    if (nmlp_rng_below(rng, 3) == 0) /* short runs: blocks that do not divide what is held */
        nmlp_assert_ok(nmlp_tiling_set(fix, "wkb", pick(rng, 1, 2), &err), &err);
    if (nmlp_rng_below(rng, 3) == 0) { /* a ring of their own for the last products */
        nmlp_assert_ok(nmlp_tiling_set(fix, "oring", pick(rng, 2, 3), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "okb", pick(rng, 1, 4), &err), &err);
    }
    if (nmlp_tiling_get(fix, "ac", 0) == 0 && nmlp_rng_below(rng, 3) == 0) { /* shrinking blocks of the last weights */
        s->s = pick(rng, 1, 512);
        nmlp_assert_ok(nmlp_tiling_set(fix, "rows", s->s, &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "taper", pick(rng, 1, 6), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "oring", pick(rng, 1, 3), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "okb", pick(rng, 2, 3) - pick(rng, 0, 1), &err), &err);
    }
    if (cuts_x && s->s <= 512 && nmlp_rng_below(rng, 4) == 0) { /* halves of x */
        s->h = pick(rng, 1025, 2048);
        s->o = pick(rng, 1, 200);
        nmlp_assert_ok(nmlp_tiling_set(fix, "x", NMLP_X_AHEAD, &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(fix, "xc", 8, &err), &err);
    }
}

static void check_plan(nmlp_plan_op op, nmlp_kernel_request rq, nmlp_rng *rng) {
    static const char *const targets[] = {"trn1", "trn2", "trn3"};
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_kernel_plan plan;
    nmlp_program *p = NULL;
    nmlp_str tiling;
    char what[400], shape[NMLP_KERNEL_SHAPE_TEXT_MAX];
    nmlp_assert_ok(nmlp_machine_open(&m, targets[nmlp_rng_below(rng, 3)], &err), &err);
    rq.machine = &m;
    rq.dtype = NMLP_NC_BF16;
    nmlp_planner planner = {.machine = &m, .cost = simulate_cost};
    nmlp_assert_ok(nmlp_kernel_plan_find(&plan, &planner, op, &rq, &err), &err);
    nmlp_assert_ok(nmlp_plan_candidate_build(&p, &plan.winner, &rq, &err), &err);
    nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    nmlp_str_init(&tiling);
    nmlp_tiling_print(&plan.winner.tiling, &tiling);
    nmlp_kernel_shape_print(shape, &rq);
    snprintf(what, sizeof what, "%s on %s %s %s", plan.winner.kernel, m.name, shape, nmlp_str_text(&tiling));
    check_values(p, what);
    nmlp_str_fini(&tiling);
    nmlp_program_destroy(p);
}

static void cut_activations(nmlp_tiling *fix, nmlp_rng *rng) {
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_tiling_set(fix, "ac", 1 + nmlp_rng_below(rng, 3), &err), &err);
    nmlp_assert_ok(nmlp_tiling_set(fix, "xc", 8, &err), &err);
}

/* Random op, machine, shape and input layout; the planner decides the rest. */
static void check_random_plan(nmlp_rng *rng) {
    nmlp_err err = {0};
    nmlp_tiling fix = {0};
    nmlp_plan_op op = (nmlp_plan_op)nmlp_rng_below(rng, 3);
    nmlp_kernel_shape s = {odd_size(rng, 700), odd_size(rng, 400), odd_size(rng, 300), odd_size(rng, 600)};
    if (op == NMLP_PLAN_XW || (op == NMLP_PLAN_MLP && nmlp_rng_below(rng, 3) == 0)) s.r = 0;
    if (nmlp_rng_below(rng, 4) == 0) nmlp_assert_ok(nmlp_tiling_set(&fix, "x", 1 + nmlp_rng_below(rng, 3), &err), &err);
    if (op == NMLP_PLAN_MLP && s.r > 0 && nmlp_rng_below(rng, 3) == 0)
        nmlp_assert_ok(nmlp_tiling_set(&fix, "shared", 1, &err), &err);
    if (nmlp_rng_below(rng, 3) == 0) cut_activations(&fix, rng); /* even where they would fit */
    fix_details(&fix, &s, s.r > 0 && op != NMLP_PLAN_XW, rng);
    check_plan(op, (nmlp_kernel_request){.shape = s, .tiling = &fix}, rng);
}

/* The same for MLPs whose projections differ: dense, or with a rank of their own. */
static void check_random_mixed_plan(nmlp_rng *rng) {
    nmlp_err err = {0};
    nmlp_tiling fix = {0};
    int64_t rank[3];
    for (int i = 0; i < 3; i++) rank[i] = nmlp_rng_below(rng, 3) == 0 ? 0 : odd_size(rng, 300);
    nmlp_mlp_ranks ranks = {rank[0], rank[1], rank[2], false};
    ranks.shared = ranks.gate > 0 && nmlp_rng_below(rng, 3) == 0;
    if (ranks.shared || nmlp_rng_below(rng, 4) == 0) ranks.up = ranks.gate;
    nmlp_kernel_request rq = {.shape = {odd_size(rng, 700), odd_size(rng, 400), 0, odd_size(rng, 600)}, .tiling = &fix};
    if (nmlp_rng_below(rng, 4) == 0) nmlp_assert_ok(nmlp_tiling_set(&fix, "x", 1 + nmlp_rng_below(rng, 3), &err), &err);
    if (nmlp_rng_below(rng, 3) == 0) cut_activations(&fix, rng);
    fix_details(&fix, &rq.shape, ranks.gate > 0 && ranks.up > 0, rng);
    nmlp_kernel_set_ranks(&rq, ranks);
    check_plan(NMLP_PLAN_MLP, rq, rng);
}

static void mixed_mlps_match_float64_at_random_shapes_and_ranks(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 21);
    for (int i = 0; i < some_of(200); i++) check_random_mixed_plan(&rng);
}

/* Weights in fp8, ranks of all kinds: scales that differ from output to output are applied where they belong. */
static void fp8_mlps_match_float64_at_random_shapes_and_ranks(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 22);
    for (int i = 0; i < some_of(80); i++) {
        nmlp_tiling fix = {0};
        int64_t rank[3];
        for (int k = 0; k < 3; k++) rank[k] = nmlp_rng_below(&rng, 3) == 0 ? 0 : odd_size(&rng, 300);
        nmlp_mlp_ranks ranks = {rank[0], rank[1], rank[2], rank[0] > 0 && nmlp_rng_below(&rng, 3) == 0};
        if (ranks.shared || nmlp_rng_below(&rng, 4) == 0) ranks.up = ranks.gate;
        nmlp_kernel_request rq = {
            .shape = {odd_size(&rng, 700), odd_size(&rng, 400), 0, odd_size(&rng, 600)}, .tiling = &fix, .fp8 = true};
        rq.fuse =
            (nmlp_mlp_fusion){.norm_e12 = nmlp_rng_below(&rng, 2) * 10000000, .residual = nmlp_rng_below(&rng, 2) == 0};
        fix_details(&fix, &rq.shape, false, &rng); /* sums over chunks of x have no scales */
        nmlp_kernel_set_ranks(&rq, ranks);
        check_plan(NMLP_PLAN_MLP, rq, &rng);
    }
}

/* Few rows, stationary weights of the last product, whose results are turned: single tiles at the end or shrinking
 * blocks, groups that do not divide the tiles, ragged tiles. */
static void turned_results_match_float64_at_random_shapes(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 23);
    for (int i = 0; i < some_of(120); i++) {
        nmlp_err err = {0};
        nmlp_tiling fix = {0};
        int64_t rank[3];
        for (int k = 0; k < 3; k++) rank[k] = nmlp_rng_below(&rng, 3) == 0 ? 0 : odd_size(&rng, 300);
        nmlp_kernel_request rq = {
            .shape = {pick(&rng, 1, 128), odd_size(&rng, 700), 0, odd_size(&rng, 600)},
            .tiling = &fix,
            .fuse = {.norm_e12 = nmlp_rng_below(&rng, 2) * 10000000, .residual = nmlp_rng_below(&rng, 2) == 0},
            .fp8 = nmlp_rng_below(&rng, 2) == 0};
        if (nmlp_rng_below(&rng, 3) == 0) rq.shape.s = 1;
        nmlp_kernel_set_ranks(&rq, (nmlp_mlp_ranks){rank[0], rank[1], rank[2], false});
        if (nmlp_rng_below(&rng, 2) == 0)
            nmlp_assert_ok(nmlp_tiling_set(&fix, "taper", pick(&rng, 1, 6), &err), &err);
        else
            nmlp_assert_ok(nmlp_tiling_set(&fix, "tail", pick(&rng, 1, 2), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(&fix, "turn", rq.shape.h > 128 ? pick(&rng, 1, 2) : 1, &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(&fix, "cols", pick(&rng, 1, 2) * 64, &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(&fix, "on", pick(&rng, 1, 4), &err), &err);
        nmlp_assert_ok(nmlp_tiling_set(&fix, "ac", (rq.shape.o + 127) / 128, &err), &err);
        if (nmlp_rng_below(&rng, 2) == 0) nmlp_assert_ok(nmlp_tiling_set(&fix, "wkb", 1, &err), &err);
        check_plan(NMLP_PLAN_MLP, rq, &rng);
    }
}

/* Residual streams near the largest number of fp16: x times a weight of the norm, up to 1.5, would be none. */
static void norm_of_large_fp16_does_not_overflow(void **state) {
    const float largest = 6e4f;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_values *v = NULL;
    nmlp_program *p = NULL;
    nmlp_check_report r;
    nmlp_tiling none = {0};
    (void)state;
    nmlp_assert_ok(nmlp_machine_open(&m, "trn2", &err), &err);
    nmlp_kernel_request rq = {.machine = &m,
                              .shape = {3, 300, 0, 260},
                              .dtype = NMLP_NC_FP16,
                              .tiling = &none,
                              .fuse = {.norm_e12 = 10000000},
                              .fp8 = true};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find("mlp", &err), &rq, &err), &err);
    nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &err), &err);
    nmlp_assert_ok(nmlp_check_fill(v, p, 5, &err), &err);
    for (size_t t = 0; t < p->n_tensors; t++) {
        if (strcmp(p->tensors[t].name, "x") != 0) continue;
        uint16_t *x = nmlp_values_tensor(v, (int)t);
        for (int64_t i = 0; i < p->tensors[t].rows * p->tensors[t].cols; i++)
            x[i] = nmlp_f32_to_f16(nmlp_f16_to_f32(x[i]) < 0 ? -largest : largest);
    }
    nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
    nmlp_assert_ok(nmlp_check_values(&r, v, p, NULL, &err), &err);
    if (!r.ok) fail_msg("error %g, limit %g", r.max_rel_err, r.limit);
    nmlp_values_destroy(v);
    nmlp_program_destroy(p);
}

static void planned_kernels_match_float64_at_random_shapes(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 20);
    for (int i = 0; i < some_of(300); i++) check_random_plan(&rng);
}

/* Every element has its own place inside the tensor, and comes back. */
static void packing_is_one_to_one(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_err err = {0};
    nmlp_rng_seed(&rng, 3);
    for (int i = 0; i < 50; i++) {
        nmlp_pack pack = {.k = 1 + nmlp_rng_below(&rng, 400),
                          .n = 1 + nmlp_rng_below(&rng, 300),
                          .partitions = 128,
                          .chunk_tiles = 1 + nmlp_rng_below(&rng, 4),
                          .columns = 1 + nmlp_rng_below(&rng, 200),
                          .planes = 1 + nmlp_rng_below(&rng, 2)};
        if (pack.planes == 2 && nmlp_rng_below(&rng, 2)) { /* planes with another K each: not cut into chunks */
            pack.k_second = 1 + nmlp_rng_below(&rng, 400);
            pack.partitions = 100 + nmlp_rng_below(&rng, 29);
            pack.partitions_second = 100 + nmlp_rng_below(&rng, 29);
            pack.chunk_tiles = nmlp_pack_k_tiles(&pack);
        }
        size_t first = (size_t)(pack.k * pack.n), second = (size_t)(nmlp_pack_plane_k(&pack, 1) * pack.n),
               n = first > second ? first : second, total = (size_t)(nmlp_pack_rows(&pack) * nmlp_pack_cols(&pack));
        uint32_t *packed = nmlp_mem_new(total, sizeof *packed, &err), *matrix = nmlp_mem_new(n, sizeof *matrix, &err),
                 *back = nmlp_mem_new(n, sizeof *back, &err);
        for (int64_t plane = 0; plane < pack.planes; plane++) {
            for (size_t j = 0; j < (plane ? second : first); j++) matrix[j] = (uint32_t)(j + 1 + (size_t)plane * n);
            nmlp_pack_write(&pack, plane, packed, matrix, sizeof *matrix);
        }
        size_t used = 0;
        for (size_t j = 0; j < total; j++) used += packed[j] != 0;
        assert_int_equal(used, first + (pack.planes == 2 ? second : 0)); /* nothing overwrote anything */
        nmlp_pack_read(&pack, pack.planes - 1, back, packed, sizeof *back);
        assert_memory_equal(back, matrix, (pack.planes == 2 ? second : first) * sizeof *back);
        nmlp_mem_free(packed);
        nmlp_mem_free(matrix);
        nmlp_mem_free(back);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_is_one_to_one),
        cmocka_unit_test(planned_kernels_match_float64_at_random_shapes),
        cmocka_unit_test(mixed_mlps_match_float64_at_random_shapes_and_ranks),
        cmocka_unit_test(fp8_mlps_match_float64_at_random_shapes_and_ranks),
        cmocka_unit_test(turned_results_match_float64_at_random_shapes),
        cmocka_unit_test(norm_of_large_fp16_does_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
