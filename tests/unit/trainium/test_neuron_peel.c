/* A peeled program executes the same instructions in the same order, and has no size that depends on a loop. */
#include "lib/neuron_testing.h"
#include "trainium/neuron/check.h"
#include "trainium/neuron/program_peel.h"
#include "trainium/neuron/walk.h"
#include "trainium/plan/kernel_table.h"

static void assert_same_box(const nmlp_box *a, const nmlp_box *b) {
    assert_int_equal(a->buffer, b->buffer);
    if (a->buffer < 0) return;
    assert_int_equal(a->part, b->part);
    assert_int_equal(a->parts, b->parts);
    for (int d = 0; d < a->n_dims; d++) {
        assert_int_equal(a->start[d], b->start[d]);
        assert_int_equal(a->count[d], b->count[d]);
    }
}

static void assert_constant(const nmlp_program *p) {
    for (size_t i = 0; i < p->n_loops; i++) assert_false(p->loops[i].trips.clamped);
    for (size_t i = 0; i < p->n_instrs; i++) {
        const nmlp_instr *in = &p->instrs[i];
        const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
        if (in->op == NMLP_OP_ALLOC) continue;
        for (int r = 0; r < 3; r++) {
            if (refs[r]->buffer < 0) continue;
            assert_false(refs[r]->parts.clamped);
            for (int d = 0; d < p->buffers[refs[r]->buffer].n_dims; d++) assert_false(refs[r]->count[d].clamped);
        }
        assert_false(in->hbm.tensor >= 0 && (in->hbm.rows.clamped || in->hbm.cols.clamped || in->hbm.tiles.clamped));
    }
}

static int64_t assert_same_execution(const nmlp_program *a, const nmlp_program *b) {
    nmlp_walk wa, wb;
    nmlp_step x, y;
    nmlp_err err = {0};
    int64_t n = 0;
    nmlp_assert_ok(nmlp_walk_init(&wa, a, &err), &err);
    nmlp_assert_ok(nmlp_walk_init(&wb, b, &err), &err);
    while (nmlp_walk_next(&wa, &x)) {
        assert_true(nmlp_walk_next(&wb, &y));
        assert_int_equal(x.instr->op, y.instr->op);
        if (x.instr->op == NMLP_OP_ALLOC) {
            assert_int_equal(x.dst.buffer, y.dst.buffer);
            continue;
        }
        assert_same_box(&x.dst, &y.dst);
        assert_same_box(&x.a, &y.a);
        assert_same_box(&x.b, &y.b);
        if (x.instr->hbm.tensor >= 0) {
            assert_int_equal(x.instr->hbm.tensor, y.instr->hbm.tensor);
            assert_int_equal(x.row, y.row);
            assert_int_equal(x.col, y.col);
            assert_int_equal(x.rows, y.rows);
            assert_int_equal(x.cols, y.cols);
        }
        if (x.instr->op == NMLP_OP_MATMUL) assert_int_equal(x.accumulate, y.accumulate);
        n++;
    }
    assert_false(nmlp_walk_next(&wb, &y));
    nmlp_walk_fini(&wa);
    nmlp_walk_fini(&wb);
    return n;
}

static void check_peeled(nmlp_program *p, const nmlp_machine *m) {
    nmlp_program *peeled = NULL;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_program_peel(&peeled, p, &err), &err);
    assert_constant(peeled);
    nmlp_assert_ok(nmlp_program_check(peeled, m, NULL, &err), &err);
    assert_true(assert_same_execution(p, peeled) > 0);
    nmlp_program_destroy(peeled);
    nmlp_program_destroy(p);
}

static void every_kernel_peeled_executes_the_same(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{1, 128, 128, 512},      {100, 200, 130, 700},   {1000, 520, 300, 1300},
                                        {1024, 1024, 512, 1024}, {1100, 2100, 257, 600}, {129, 1, 1, 1}};
    nmlp_machine m = nmlp_test_machine("trn1");
    for (size_t i = 0; nmlp_kernel_at(i); i++)
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++)
            check_peeled(nmlp_test_kernel(nmlp_kernel_at(i)->name, &m, NMLP_NC_BF16, shapes[j], ""), &m);
}

static void plans_with_every_detail_peeled_execute_the_same(void **state) {
    (void)state;
    static const struct {
        int64_t shape[4];
        const char *tiling;
    } cases[] = {{{600, 640, 130, 1000}, "rows=512,x=3,xc=2,ac=3,wkb=1"},
                 {{270, 1100, 130, 200}, "x=4,xc=8,xl=8"},
                 {{3, 300, 400, 900}, "taper=2,oring=2,okb=1,cols=128"},
                 {{40, 1280, 128, 256}, "cols=128,on=5,wkb=1,tail=2"},
                 {{700, 500, 0, 900}, "ac=2,cols=192"}};
    nmlp_machine m = nmlp_test_machine("trn1");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_peeled(nmlp_test_kernel("mlp", &m, NMLP_NC_BF16, cases[i].shape, cases[i].tiling), &m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_peeled_executes_the_same),
        cmocka_unit_test(plans_with_every_detail_peeled_execute_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
