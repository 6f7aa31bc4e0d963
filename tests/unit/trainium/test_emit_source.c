/* Emitted source: the same bytes every time, the idiom of its dialect, safe names, and refusals that say why. */
#include "trainium/emit/emit.h"
#include "lib/testing.h"
#include "trainium/neuron/program_text.h"
#include "trainium/neuron/walk.h"
#include "trainium/plan/kernel_table.h"

static nmlp_program *parsed(const char *text) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_program_parse(&p, "test", text, strlen(text), &err), &err);
    return p;
}

static nmlp_status emit_on(nmlp_str *out, const nmlp_program *p, const char *target, nmlp_dialect dialect,
                           nmlp_emit_result *result, nmlp_err *err) {
    nmlp_machine m;
    nmlp_assert_ok(nmlp_machine_open(&m, target, err), err);
    nmlp_emit_options options = {.dialect = dialect, .machine = &m, .command = "neuronmlp emit", .latency_us = 12.34};
    nmlp_str_init(out);
    return nmlp_emit_kernel(out, p, &options, result, err);
}

static nmlp_program *built(const nmlp_kernel *k, const nmlp_machine *m) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_kernel_request rq = {.shape = {300, 400, k->has_rank ? 130 : 0, 700}, .dtype = NMLP_NC_BF16, .machine = m};
    nmlp_assert_ok(nmlp_kernel_build(&p, k, &rq, &err), &err);
    return p;
}

static int64_t walked(const nmlp_program *p) {
    nmlp_walk walk;
    nmlp_step step;
    nmlp_err err = {0};
    int64_t n = 0;
    nmlp_assert_ok(nmlp_walk_init(&walk, p, &err), &err);
    while (nmlp_walk_next(&walk, &step)) n += step.instr->op != NMLP_OP_ALLOC;
    nmlp_walk_fini(&walk);
    return n;
}

/* Words that only exist in the other dialect. */
static void check_idiom(const char *text, bool legacy) {
    static const char *const not_current[] = {"mask=",    "affine_range", "nl.arange", "par_dim", "nl.load",
                                              "nl.store", " += ",         "neuronxcc", NULL};
    static const char *const not_legacy[] = {"dst=",       "accumulate=", "dma_copy", "import nki\n",
                                             " in range(", "min(T",       NULL};
    char kernel[65536];
    const char *begin = strstr(text, "@nki.jit"), *end = strstr(text, "\n    return ");
    assert_non_null(begin);
    assert_non_null(end);
    assert_true((size_t)(end - begin) < sizeof kernel);
    memcpy(kernel, begin, (size_t)(end - begin));
    kernel[end - begin] = '\0';
    for (const char *const *word = legacy ? not_legacy : not_current; *word; word++)
        if (strstr(kernel, *word)) fail_msg("%s dialect contains \"%s\"", legacy ? "legacy" : "current", *word);
    assert_non_null(strstr(text, legacy ? "from neuronxcc import nki" : "import nki\n"));
    assert_non_null(strstr(text, "buffer=nl.shared_hbm"));
    assert_non_null(strstr(text, "Simulated latency: 12.3 us"));
    assert_non_null(strstr(text, "if __name__ == \"__main__\":"));
    if (!legacy) assert_null(strstr(kernel, "memset(dst=acc")); /* accumulators start with an overwriting matmul */
}

static void every_kernel_is_emitted_alike_twice_in_the_idiom_of_its_dialect(void **state) {
    (void)state;
    static const char *const targets[] = {"trn1", "trn2", "trn3"};
    for (int t = 0; t < 3; t++) {
        nmlp_machine m;
        nmlp_err err = {0};
        nmlp_assert_ok(nmlp_machine_open(&m, targets[t], &err), &err);
        const nmlp_kernel *k;
        for (size_t i = 0; (k = nmlp_kernel_at(i)) != NULL; i++) {
            nmlp_program *p = built(k, &m);
            for (int dialect = 0; dialect < (t == 0 ? 2 : 1); dialect++) {
                nmlp_str one, two;
                nmlp_emit_result result = {0};
                nmlp_assert_ok(emit_on(&one, p, targets[t], (nmlp_dialect)dialect, &result, &err), &err);
                nmlp_assert_ok(emit_on(&two, p, targets[t], (nmlp_dialect)dialect, NULL, &err), &err);
                assert_int_equal(one.len, two.len);
                assert_memory_equal(one.data, two.data, one.len);
                assert_int_equal(result.instructions, walked(p));
                check_idiom(nmlp_str_text(&one), dialect == NMLP_DIALECT_NKI_LEGACY);
                nmlp_str_fini(&one);
                nmlp_str_fini(&two);
            }
            nmlp_program_destroy(p);
        }
    }
}

static void dialect_follows_the_machine(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_dialect dialect;
    nmlp_assert_ok(nmlp_machine_open(&m, "trn1", &err), &err);
    assert_int_equal(nmlp_dialect_for(&m), NMLP_DIALECT_NKI_LEGACY);
    nmlp_assert_ok(nmlp_machine_open(&m, "trn3", &err), &err);
    assert_int_equal(nmlp_dialect_for(&m), NMLP_DIALECT_NKI);
    assert_true(nmlp_dialect_parse("nki-legacy", &dialect) && dialect == NMLP_DIALECT_NKI_LEGACY);
    assert_false(nmlp_dialect_parse("triton", &dialect));
}

#define COPY_PROGRAM(in, loop, buffer)                                                                                 \
    "program copy\n"                                                                                                   \
    "tensor " in " input bf16 [256, 64]\n"                                                                             \
    "tensor y output bf16 [256, 64]\n"                                                                                 \
    "buffer " buffer " sbuf bf16 [128; 64] copies 2\n"                                                                 \
    "begin\n"                                                                                                          \
    "  for " loop " in 2 {\n"                                                                                          \
    "    alloc " buffer "\n"                                                                                           \
    "    dma_load " buffer "[0 :+ 128; 0 :+ 64] = " in "[128*" loop " :+ 128, 0 :+ 64] queue 0\n"                      \
    "    dma_store y[128*" loop " :+ 128, 0 :+ 64] = " buffer "[0 :+ 128; 0 :+ 64] queue 0\n"                          \
    "  }\n"                                                                                                            \
    "end\n"

static void names_python_keeps_for_itself_are_changed(void **state) {
    (void)state;
    nmlp_program *p = parsed(COPY_PROGRAM("lambda", "nl", "range"));
    nmlp_str text;
    nmlp_err err = {0};
    nmlp_assert_ok(emit_on(&text, p, "trn2", NMLP_DIALECT_NKI, NULL, &err), &err);
    const char *source = nmlp_str_text(&text);
    assert_non_null(strstr(source, "def copy(lambda_hbm):"));
    assert_non_null(strstr(source, "for nl_i in range(2):"));
    assert_non_null(strstr(source, "range_sbuf = nl.ndarray((P, 64), dtype=nl.bfloat16, buffer=nl.sbuf)"));
    assert_null(strstr(source, "def reference")); /* what it computes is not known */
    nmlp_str_fini(&text);
    nmlp_program_destroy(p);
}

static void refuse(const char *program, nmlp_dialect dialect, nmlp_status code, const char *part1, const char *part2) {
    nmlp_program *p = parsed(program);
    nmlp_str text;
    nmlp_err err = {0};
    nmlp_status st = emit_on(&text, p, "trn1", dialect, NULL, &err);
    nmlp_assert_fails(st, &err, code, part1, part2, NULL);
    assert_int_equal(text.len, 0); /* nothing half done */
    nmlp_str_fini(&text);
    nmlp_program_destroy(p);
}

static void what_a_dialect_cannot_say_is_refused(void **state) {
    (void)state;
    refuse("program late\ntensor y output bf16 [128, 64]\nbuffer t sbuf bf16 [128; 64] copies 2\nbegin\n  for i in 2 "
           "{\n    alloc t\n"
           "    memset t[0 :+ 128; 0 :+ 64] = 1 on vector\n  }\n  dma_store y[0 :+ 128, 0 :+ 64] = t[0 :+ 128; 0 :+ "
           "64] queue 0\nend\n",
           NMLP_DIALECT_NKI, NMLP_E_UNSUPPORTED, "buffer t", "outside the loop");
    refuse("program group\ntensor y output bf16 [128, 64]\nbuffer t sbuf bf16 [128; 64] copies 1\nbuffer acc psum fp32 "
           "[64; 64] copies 1\n"
           "begin\n  memset t[0 :+ 128; 0 :+ 64] = 1 on vector\n  alloc acc\n  for i in 2 {\n    for k in 2 {\n"
           "      nc_matmul acc[0 :+ 64; 0 :+ 64] stationary t[0 :+ 128; 0 :+ 64] moving t[0 :+ 128; 0 :+ 64] "
           "accumulate k\n    }\n"
           "    tensor_copy t[0 :+ 64; 0 :+ 64] = acc[0 :+ 64; 0 :+ 64] on vector\n  }\n"
           "  dma_store y[0 :+ 128, 0 :+ 64] = t[0 :+ 128; 0 :+ 64] queue 0\nend\n",
           NMLP_DIALECT_NKI_LEGACY, NMLP_E_UNSUPPORTED, "buffer acc", "inside loop i");
    refuse("program wide\ntensor y output bf16 [256, 64]\nbuffer t sbuf bf16 [128; 2, 64] copies 1\nbegin\n"
           "  memset t[0 :+ 128; 0 :+ 2, 0 :+ 64] = 1 on vector\n  dma_store y[0 :+ 128, 0 :+ 128] = t[0 :+ 128; 0 :+ "
           "2, 0 :+ 64] queue 0\nend\n",
           NMLP_DIALECT_NKI, NMLP_E_ILLEGAL, "hbm_range", "end of the columns");
}

static void a_shape_that_unrolls_too_far_carries_a_note(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_program *p = NULL;
    nmlp_str text;
    nmlp_err err = {0};
    nmlp_emit_result result;
    nmlp_assert_ok(nmlp_machine_open(&m, "trn2", &err), &err);
    nmlp_kernel_request rq = {.shape = {8192, 8192, 0, 8192}, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find("xw-tiled", &err), &rq, &err), &err);
    nmlp_assert_ok(emit_on(&text, p, "trn2", NMLP_DIALECT_NKI, &result, &err), &err);
    assert_true(result.instructions > NMLP_EMIT_UNROLL_ADVICE);
    assert_non_null(strstr(nmlp_str_text(&text), "the compiler unrolls every loop"));
    assert_true(text.len < 20000); /* loops stay loops */
    nmlp_str_fini(&text);
    nmlp_program_destroy(p);
}

static void module_loads_the_tensors_of_the_checkpoint_format(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_program *p = NULL;
    nmlp_str text;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, "trn2", &err), &err);
    nmlp_kernel_request rq = {.shape = {64, 256, 128, 512}, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find("mlp", &err), &rq, &err), &err);
    nmlp_emit_options options = {.dialect = NMLP_DIALECT_NKI, .machine = &m, .latency_us = -1};
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_emit_module(&text, p, &options, "my_kernel", &err), &err);
    const char *source = nmlp_str_text(&text);
    assert_non_null(strstr(source, "from my_kernel import mlp"));
    assert_non_null(strstr(source, "\"u_gate\": (\"gate_proj.v\", (128, 256))"));
    assert_non_null(strstr(source, "\"v_down\": (\"down_proj.u\", (256, 128))"));
    nmlp_str_clear(&text);
    options.dialect = NMLP_DIALECT_NKI_LEGACY;
    nmlp_assert_fails(nmlp_emit_module(&text, p, &options, "my_kernel", &err), &err, NMLP_E_UNSUPPORTED,
                      "current dialect only", NULL);
    nmlp_str_fini(&text);
    nmlp_program_destroy(p);
}

/* A machine file may have any name; what it says must stay inside the docstrings. */
static void names_of_machines_and_files_cannot_leave_the_docstring(void **state) {
    (void)state;
    nmlp_machine m;
    nmlp_program *p = NULL;
    nmlp_str text;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, "trn2", &err), &err);
    nmlp_kernel_request rq = {.shape = {64, 256, 128, 512}, .dtype = NMLP_NC_BF16, .machine = &m};
    nmlp_assert_ok(nmlp_kernel_build(&p, nmlp_kernel_find("mlp", &err), &rq, &err), &err);
    snprintf(m.name, sizeof m.name, "%s", "a\"\"\";evil()#\\");
    nmlp_emit_options options = {.dialect = NMLP_DIALECT_NKI,
                                 .machine = &m,
                                 .command = "emit --target 'x\"\"\"\nevil()\n\"\"\"\xff'",
                                 .latency_us = 1};
    for (int module = 0; module < 2; module++) {
        nmlp_str_init(&text);
        nmlp_assert_ok(module ? nmlp_emit_module(&text, p, &options, "k", &err)
                              : nmlp_emit_kernel(&text, p, &options, NULL, &err),
                       &err);
        const char *source = nmlp_str_text(&text);
        assert_null(strstr(source, "\"\"\";"));
        assert_null(strstr(source, "\nevil()"));
        assert_null(strchr(source, '\xff'));
        if (!module) assert_non_null(strstr(source, "a\\\"\\\"\\\";evil()#\\\\"));
        nmlp_str_fini(&text);
    }
    nmlp_program_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_is_emitted_alike_twice_in_the_idiom_of_its_dialect),
        cmocka_unit_test(dialect_follows_the_machine),
        cmocka_unit_test(names_python_keeps_for_itself_are_changed),
        cmocka_unit_test(what_a_dialect_cannot_say_is_refused),
        cmocka_unit_test(a_shape_that_unrolls_too_far_carries_a_note),
        cmocka_unit_test(module_loads_the_tensors_of_the_checkpoint_format),
        cmocka_unit_test(names_of_machines_and_files_cannot_leave_the_docstring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
