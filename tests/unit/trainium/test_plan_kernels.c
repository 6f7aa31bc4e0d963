/* Every named kernel builds, is legal, survives the text form and does the right amount of work at odd shapes. */
#include "lib/testing.h"
#include "trainium/neuron/check.h"
#include "trainium/neuron/program_text.h"
#include "trainium/neuron/walk.h"
#include "trainium/plan/kernel_table.h"

static nmlp_program *build(const nmlp_kernel *kernel, const nmlp_machine *m, nmlp_kernel_shape s,
                           const char *tiling_text) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_tiling tiling;
    nmlp_assert_ok(nmlp_tiling_parse(&tiling, tiling_text, &err), &err);
    if (!kernel->has_rank) s.r = 0;
    nmlp_kernel_request rq = {.shape = s, .dtype = NMLP_NC_BF16, .tiling = &tiling, .machine = m};
    nmlp_assert_ok(nmlp_kernel_build(&p, kernel, &rq, &err), &err);
    return p;
}

static const nmlp_kernel_shape shapes[] = {
    {1, 128, 128, 512},      {100, 200, 130, 700},   {1000, 520, 300, 1300}, {128, 128, 128, 512},
    {1024, 1024, 512, 1024}, {1100, 2100, 257, 600}, {129, 1, 1, 1},         {300, 4000, 1100, 3000},
};

/* The naive fusion computes x u for every block of 1024 columns; gate and up are two chains, the MLP three. */
static int64_t multiplications(const nmlp_kernel *kernel, nmlp_kernel_shape s) {
    int64_t again = strcmp(kernel->name, "xuv-naive") == 0 ? (s.o + 1023) / 1024 : 1;
    int64_t chains = kernel->gated ? 3 : strcmp(kernel->name, "mlp-up-paper") == 0 ? 2 : 1;
    return kernel->has_rank ? chains * s.s * s.r * (s.h * again + s.o) : s.s * s.h * s.o;
}

static void kernels_are_legal_and_complete_at_odd_shapes(void **state) {
    (void)state;
    for (size_t i = 0; nmlp_kernel_at(i); i++) {
        for (size_t t = 0; nmlp_machine_builtin_name(t); t++) {
            for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
                nmlp_machine m;
                nmlp_err err = {0};
                nmlp_walk walk;
                nmlp_step step;
                nmlp_kernel_shape s = shapes[j];
                int64_t macs = 0, stored = 0;
                const nmlp_kernel *kernel = nmlp_kernel_at(i);
                nmlp_assert_ok(nmlp_machine_open(&m, nmlp_machine_builtin_name(t), &err), &err);
                nmlp_program *p = build(kernel, &m, s, "");
                nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
                nmlp_assert_ok(nmlp_walk_init(&walk, p, &err), &err);
                while (nmlp_walk_next(&walk, &step)) {
                    if (step.instr->op == NMLP_OP_MATMUL)
                        macs += step.a.parts * nmlp_box_free(&step.a) * nmlp_box_free(&step.b);
                    if (step.instr->op == NMLP_OP_DMA_STORE &&
                        p->tensors[step.instr->hbm.tensor].role == NMLP_ROLE_OUTPUT)
                        stored += step.rows * step.cols;
                }
                assert_int_equal(macs, multiplications(kernel, s));
                assert_int_equal(stored, s.s * (kernel->gated ? s.h : s.o));
                nmlp_walk_fini(&walk);
                nmlp_program_destroy(p);
            }
        }
    }
}

static void kernels_survive_the_text_form(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, "trn1", &err), &err);
    for (size_t i = 0; nmlp_kernel_at(i); i++) {
        nmlp_program *p = build(nmlp_kernel_at(i), &m, (nmlp_kernel_shape){1000, 520, 300, 1300}, ""), *again = NULL;
        nmlp_str text, text2;
        nmlp_str_init(&text);
        nmlp_str_init(&text2);
        nmlp_program_print(p, &text);
        nmlp_assert_ok(nmlp_program_parse(&again, "text", text.data, text.len, &err), &err);
        nmlp_program_print(again, &text2);
        assert_string_equal(text.data, text2.data);
        nmlp_str_fini(&text);
        nmlp_str_fini(&text2);
        nmlp_program_destroy(p);
        nmlp_program_destroy(again);
    }
}

static void later_table_depends_on_the_rows(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, "trn1", &err), &err);
    const nmlp_kernel *kernel = nmlp_kernel_find("xtuv-fused", &err);
    nmlp_program *p = build(kernel, &m, (nmlp_kernel_shape){2048, 8192, 4096, 16384}, "table=2");
    for (size_t i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, "v_blk") == 0) {
            assert_int_equal(p->buffers[i].dims[0], 2);    /* rank tiles per block */
            assert_int_equal(p->buffers[i].dims[1], 2048); /* 4 column tiles */
        }
    nmlp_program_destroy(p);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_program *p = NULL;
    nmlp_tiling tiling;
    nmlp_assert_ok(nmlp_machine_open(&m, "trn1", &err), &err);
    assert_null(nmlp_kernel_find("xyz", &err));
    assert_non_null(strstr(err.hint, "xtuv-fused"));
    const nmlp_kernel *opt = nmlp_kernel_find("xw-opt", &err);
    nmlp_kernel_request rq = {.shape = {0, 1, 0, 1}, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_assert_fails(nmlp_kernel_build(&p, opt, &rq, &err), &err, NMLP_E_ARG, "S=0", NULL);
    rq.shape.s = 1;
    nmlp_assert_ok(nmlp_tiling_parse(&tiling, "q=3", &err), &err);
    rq.tiling = &tiling;
    nmlp_assert_fails(nmlp_kernel_build(&p, opt, &rq, &err), &err, NMLP_E_ARG, "\"q\"", "m,n,k", NULL);
    nmlp_assert_fails(nmlp_tiling_parse(&tiling, "m", &err), &err, NMLP_E_ARG, "key=number", NULL);
    nmlp_assert_fails(nmlp_tiling_parse(&tiling, "m=x", &err), &err, NMLP_E_ARG, "whole number", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_are_legal_and_complete_at_odd_shapes),
        cmocka_unit_test(kernels_survive_the_text_form),
        cmocka_unit_test(later_table_depends_on_the_rows),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
