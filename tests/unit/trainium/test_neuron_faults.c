/* Every allocation of planning, building, simulating and emitting fails once: an error, or the same result. */
#include <stdlib.h>

#include "lib/alloc_count.h"
#include "lib/testing.h"
#include "service/kernel.h"
#include "trainium/emit/emit.h"

enum { ALL_UP_TO = 200, STRIDE = 4001 /* beyond, every so many: a search repeats itself */ };

typedef struct fault_case {
    nmlp_kernel_problem problem;
    bool module;
} fault_case;

static nmlp_status emit(nmlp_str *out, const fault_case *c, nmlp_err *err) {
    nmlp_built_kernel k;
    nmlp_status st = nmlp_kernel_build_problem(&k, &c->problem, err);
    if (st == NMLP_OK) {
        nmlp_emit_options options = {.dialect = nmlp_dialect_for(&k.machine),
                                     .machine = &k.machine,
                                     .command = "neuronmlp emit",
                                     .latency_us = -1};
        st = c->module ? nmlp_emit_module(out, k.program, &options, "kernel", err)
                       : nmlp_emit_kernel(out, k.program, &options, NULL, err);
    }
    nmlp_built_kernel_fini(&k);
    return st;
}

static void each_fails_once(const fault_case *c) {
    nmlp_str want, got;
    nmlp_err err = {0};
    nmlp_str_init(&want);
    int before = nmlp_test_allocations();
    nmlp_assert_ok(emit(&want, c, &err), &err);
    int n = nmlp_test_allocations() - before, n_failed = 0;
    for (int i = 1; i <= n; i += i < ALL_UP_TO || n - i < ALL_UP_TO ? 1 : STRIDE) {
        nmlp_str_init(&got);
        err = (nmlp_err){0};
        nmlp_test_fail_allocation(i);
        nmlp_status st = emit(&got, c, &err);
        nmlp_test_fail_allocation(0);
        if (st == NMLP_OK) {
            if (got.len != want.len || memcmp(got.data, want.data, want.len) != 0)
                fail_msg("%s: allocation %d of %d fails and the source is another one", c->problem.kernel, i, n);
        } else {
            assert_int_equal(st, NMLP_E_NOMEM);
            assert_true(err.message[0] != '\0');
            n_failed++;
        }
        nmlp_str_fini(&got);
    }
    if (n_failed < n / 10 && n_failed < 30) fail_msg("only %d of %d failures were noticed", n_failed, n);
    nmlp_str_fini(&want);
}

static void a_failed_allocation_never_gives_broken_source(void **state) {
    (void)state;
    const fault_case cases[] = {
        {{.target = "trn1", .kernel = "xw-opt", .shape = {300, 300, 0, 700}}, false},
        {{.target = "trn1", .kernel = "mlp-paper", .shape = {37, 300, 130, 700}}, false},
        {{.target = "trn2", .kernel = "xuv", .shape = {37, 300, 130, 700}, .tiling = "rows=37,x=3"}, false},
        {{.target = "trn2", .kernel = "mlp", .shape = {37, 1100, 130, 300}, .tiling = "rows=37,x=4,xc=8"}, true},
        {{.target = "trn1", .kernel = "mlp", .shape = {5, 300, 0, 400}, .ranks = {.gate = 100}}, false}, /* planned */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) each_fails_once(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_allocation_never_gives_broken_source)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
