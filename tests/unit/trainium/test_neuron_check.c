/* The checker: one legal program, and for every rule a program that breaks it and nothing before it. */
#include "lib/neuron_testing.h"
#include "trainium/neuron/check.h"
#include "trainium/plan/kernel_table.h"

static const char *const legal =
    "program legal\n"
    "tensor xT input bf16 [256, 300]\n"
    "tensor w weight bf16 [256, 1024]\n"
    "tensor y output bf16 [300, 1024]\n"
    "buffer x sbuf bf16 [128; 2, 128] copies 2\n"
    "buffer wb sbuf bf16 [128; 2, 512] copies 2\n"
    "buffer wide sbuf bf16 [128; 1024] copies 1\n"
    "buffer sq sbuf bf16 [128; 128] copies 1\n"
    "buffer f32 sbuf fp32 [128; 512] copies 1\n"
    "buffer acc psum fp32 [128; 512] copies 2\n"
    "buffer acc2 psum fp32 [128; 512] copies 1\n"
    "buffer tp psum fp32 [128; 128] copies 1\n"
    "buffer out sbuf bf16 [128; 512] copies 2\n"
    "begin\n"
    "  for m in 3 {\n"
    "    alloc x\n"
    "    dma_load x[0 :+ 128; 0 :+ 2, 0 :+ min(128, 300 - 128*m)] = xT[0 :+ 128, 128*m :+ min(128, 300 - 128*m)] stack "
    "2 by 128 queue 0\n"
    "    for n in 2 {\n"
    "      alloc acc\n"
    "      alloc wb\n"
    "      for k in 2 {\n"
    "        dma_load wb[0 :+ 128; k, 0 :+ 512] = w[128*k :+ 128, 512*n :+ 512] queue 1\n"
    "        nc_matmul acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] stationary x[0 :+ 128; k, 0 :+ min(128, 300 - 128*m)] "
    "moving wb[0 :+ 128; k, 0 :+ 512] "
    "accumulate k\n"
    "      }\n"
    "      alloc out\n"
    "      tensor_copy out[0 :+ min(128, 300 - 128*m); 0 :+ 512] = acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] on "
    "vector\n"
    "      tensor_tensor out[0 :+ 64; 0 :+ 512] = acc[0 :+ 64; 0 :+ 512] add out[0 :+ 64; 0 :+ 512] on vector\n"
    "      activation f32[64 :+ 64; 0 :+ 512] = silu(acc[64 :+ 64; 0 :+ 512]) scale 1 on scalar\n"
    "      memset sq[0 :+ 128; 0 :+ 128] = 0 on gpsimd\n"
    "      nc_transpose tp[0 :+ 128; 0 :+ 128] = sq[0 :+ 128; 0 :+ 128] on tensor\n"
    "      dma_store y[128*m :+ min(128, 300 - 128*m), 512*n :+ 512] = out[0 :+ min(128, 300 - 128*m); 0 :+ 512] queue "
    "0\n"
    "    }\n"
    "  }\n"
    "end\n";

typedef struct broken {
    nmlp_rule rule;
    const char *machine, *find, *put;
    int64_t found, allowed; /* -1: not compared */
} broken;

static const broken programs[] = {
    {NMLP_RULE_partition_count, "trn1", "buffer sq sbuf bf16 [128;", "buffer sq sbuf bf16 [200;", 200, 128},
    {NMLP_RULE_partition_start, "trn1", "f32[64 :+ 64; 0 :+ 512] = silu(acc[64 :+ 64;",
     "f32[32 :+ 64; 0 :+ 512] = silu(acc[64 :+ 64;", 32, -1},
    {NMLP_RULE_partition_start, "trn1", "memset sq[0 :+ 128;", "memset sq[16 :+ 32;", 16, -1},
    {NMLP_RULE_buffer_range, "trn1", "memset sq[0 :+ 128; 0 :+ 128]", "memset sq[0 :+ 128; 64*n :+ 128]", 192, 128},
    {NMLP_RULE_buffer_range, "trn1", "memset sq[0 :+ 128; 0 :+ 128]", "memset sq[0 :+ 128; n - 1 :+ 64]", -1, -1},
    {NMLP_RULE_buffer_range, "trn1", "memset sq[0 :+ 128;",
     "memset sq[64 :+ 64; 0]  = 0 on vector\n memset x[0 :+ 128; m,", 3, 2},
    {NMLP_RULE_hbm_range, "trn1", "w[128*k :+ 128, 512*n :+ 512]", "w[128*k :+ 128, 600*n :+ 512]", 1112, 1024},
    {NMLP_RULE_hbm_range, "trn1", "w[128*k :+ 128, 512*n :+ 512]", "w[200*k :+ 128, 512*n :+ 512]", 328, 256},
    {NMLP_RULE_hbm_range, "trn1", "128*m :+ min(128, 300 - 128*m)] stack 2 by 128",
     "128*m :+ min(128, 300 - 128*m)] stack 2 by 200", 328, 256},
    {NMLP_RULE_free_size, "trn1", "memset sq[0 :+ 128; 0 :+ 128] = 0", "memset big[0 :+ 128; 0 :+ 70000] = 0", 70000,
     65536},
    {NMLP_RULE_sbuf_capacity, "trn1", "buffer f32 sbuf fp32 [128; 512] copies 1",
     "buffer f32 sbuf fp32 [128; 512] copies 90", -1, 180224},
    {NMLP_RULE_psum_capacity, "trn1", "buffer acc psum fp32 [128; 512] copies 2",
     "buffer acc psum fp32 [128; 512] copies 7", 9, 8},
    {NMLP_RULE_psum_bank, "trn1", "buffer acc psum fp32 [128; 512] copies 2",
     "buffer acc psum fp32 [128; 513] copies 1", 2052, 2048},
    {NMLP_RULE_matmul_contraction, "trn1", "moving wb[0 :+ 128; k, 0 :+ 512]", "moving wb[0 :+ 64; k, 0 :+ 512]", 64,
     128},
    {NMLP_RULE_matmul_stationary, "trn1", "stationary x[0 :+ 128; k, 0 :+ min(128, 300 - 128*m)]",
     "stationary x[0 :+ 128; 0 :+ 2, 0 :+ 128]", 256, 128},
    {NMLP_RULE_matmul_moving, "trn1", "moving wb[0 :+ 128; k, 0 :+ 512]", "moving wide[0 :+ 128; 0 :+ 1024]", 1024,
     512},
    {NMLP_RULE_matmul_result, "trn1", "nc_matmul acc[0 :+ min(128, 300 - 128*m); 0 :+ 512]",
     "nc_matmul acc[0 :+ min(128, 300 - 128*m); 0 :+ 256]", 256, 512},
    {NMLP_RULE_matmul_result, "trn1", "nc_matmul acc[0 :+ min(128, 300 - 128*m); 0 :+ 512]",
     "nc_matmul acc[0 :+ 64; 0 :+ 512]", 64, 128},
    {NMLP_RULE_matmul_dtype, "trn1", "moving wb[0 :+ 128; k, 0 :+ 512]", "moving f32[0 :+ 128; 0 :+ 512]", 0, 1},
    {NMLP_RULE_psum_dtype, "trn1", "buffer acc psum fp32", "buffer acc psum bf16", 1, 0},
    {NMLP_RULE_psum_dtype, "trn1", "buffer tp psum fp32", "buffer tp psum bf16", 1, 0},
    {NMLP_RULE_accumulate_first, "trn1", "accumulate k", "accumulate n", -1, -1},
    {NMLP_RULE_accumulate_first, "trn1", "accumulate k", "accumulate always", -1, -1},
    {NMLP_RULE_accumulate_foreign, "trn1", "      for k in 2 {",
     "      memset acc[0 :+ 128; 0 :+ 512] = 0 on vector\n for k in 2 {", -1, -1},
    {NMLP_RULE_operand_memory, "trn1", "memset sq[0 :+ 128; 0 :+ 128] = 0 on gpsimd",
     "memset acc2[0 :+ 128; 0 :+ 128] = 0 on gpsimd", 1, 0},
    {NMLP_RULE_operand_memory, "trn1", "moving wb[0 :+ 128; k, 0 :+ 512]", "moving acc2[0 :+ 128; 0 :+ 512]", 1, 0},
    {NMLP_RULE_operand_memory, "trn1", "nc_transpose tp[0 :+ 128; 0 :+ 128]", "nc_transpose sq[0 :+ 128; 0 :+ 128]", 0,
     1},
    {NMLP_RULE_operand_memory, "trn1", "dma_store y[128*m :+ min(128, 300 - 128*m), 512*n :+ 512] = out",
     "dma_store y[128*m :+ min(128, 300 - 128*m), 512*n :+ 512] = acc2", 1, 0},
    {NMLP_RULE_tensor_tensor_psum, "trn1", "acc[0 :+ 64; 0 :+ 512] add out[", "acc[0 :+ 64; 0 :+ 512] add acc2[", 2, 1},
    {NMLP_RULE_engine, "trn1", "memset sq[0 :+ 128; 0 :+ 128] = 0 on gpsimd",
     "memset sq[0 :+ 128; 0 :+ 128] = 0 on tensor", 0, 1},
    {NMLP_RULE_engine, "trn1", "acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] on vector",
     "acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] on scalar", 2, 1},
    {NMLP_RULE_element_count, "trn1", "tensor_tensor out[0 :+ 64; 0 :+ 512]", "tensor_tensor out[0 :+ 64; 0 :+ 256]",
     512, 256},
    {NMLP_RULE_element_count, "trn1", "dma_load wb[0 :+ 128; k, 0 :+ 512]", "dma_load wb[0 :+ 128; k, 0 :+ 256]", 256,
     512},
    {NMLP_RULE_element_count, "trn1", "dma_load wb[0 :+ 128; k, 0 :+ 512]", "dma_load wb[0 :+ 64; k, 0 :+ 512]", 64,
     128},
    {NMLP_RULE_scalar_operand, "trn1", "silu(acc[64 :+ 64; 0 :+ 512]) scale 1",
     "silu(acc[64 :+ 64; 0 :+ 512]) scale f32[64 :+ 64; 0 :+ 2]", 2, 1},
    {NMLP_RULE_scalar_operand, "trn1",
     "tensor_tensor out[0 :+ 64; 0 :+ 512] = acc[0 :+ 64; 0 :+ 512] add out[0 :+ 64; 0 :+ 512]",
     "tensor_scalar out[0 :+ 64; 0 :+ 512] = acc[0 :+ 64; 0 :+ 512] add out[0 :+ 64; 0]", 1, 0},
    {NMLP_RULE_engine, "trn1",
     "tensor_tensor out[0 :+ 64; 0 :+ 512] = acc[0 :+ 64; 0 :+ 512] add out[0 :+ 64; 0 :+ 512] on vector",
     "tensor_scalar out[0 :+ 64; 0 :+ 512] = acc[0 :+ 64; 0 :+ 512] add f32[0 :+ 64; 0] on gpsimd", 3, 1},
    {NMLP_RULE_transpose_size, "trn1", "nc_transpose tp[0 :+ 128; 0 :+ 128] = sq[0 :+ 128; 0 :+ 128] on tensor",
     "nc_transpose sq[0 :+ 64; 0 :+ 64] = wide[0 :+ 64; 0 :+ 64] on vector", 64, 32},
    {NMLP_RULE_dma_dtype, "trn1", "tensor w weight bf16", "tensor w weight fp32", 1, 0},
    {NMLP_RULE_dma_transpose_bank, "trn2",
     "copies 1\nbuffer out sbuf bf16 [128; 512] copies 2\nbegin\n  for m in 3 {\n",
     "copies 5\nbuffer out sbuf bf16 [128; 512] copies 2\nbegin\n  for m in 3 {\n"
     "    dma_transpose sq[0 :+ 128; 0 :+ 128] = w[0 :+ 128, 0 :+ 128] queue 0\n",
     8, 7},
    {NMLP_RULE_dma_transpose_align, "trn2", "    alloc x\n",
     "    dma_transpose sq[0 :+ 128; m :+ 64] = w[0 :+ 64, 0 :+ 128] queue 0\n    alloc x\n", 2, 0},
    {NMLP_RULE_dma_overlap, "trn1", "128*m :+ min(128, 300 - 128*m)] stack 2 by 128",
     "128*m :+ min(128, 300 - 128*m)] stack 2 by 64", 64, 128},
    {NMLP_RULE_read_only, "trn1", "tensor y output", "tensor y weight", 1, 2},
};

static nmlp_program *with_change(const char *find, const char *put) {
    char text[8192];
    const char *at = strstr(legal, find);
    assert_non_null(at);
    const char *big = strstr(put, "big[") ? "buffer big sbuf bf16 [128; 70000] copies 1\n" : "";
    const char *begin = strstr(legal, "begin\n");
    snprintf(text, sizeof text, "%.*s%s%s%s", (int)(at - legal), legal, put, at + strlen(find), "");
    if (*big)
        snprintf(text, sizeof text, "%.*s%s%.*s%s%s", (int)(begin - legal), legal, big, (int)(at - begin), begin, put,
                 at + strlen(find));
    return nmlp_test_program(text);
}

static void legal_program_is_accepted_everywhere(void **state) {
    (void)state;
    nmlp_program *p = nmlp_test_program(legal);
    nmlp_err err = {0};
    nmlp_machine m = nmlp_test_machine("trn1");
    nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    nmlp_program_destroy(p);
    p = with_change("buffer tp psum fp32", "buffer tp psum bf16"); /* from v3 on a transpose keeps its dtype */
    m = nmlp_test_machine("trn2");
    nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    m = nmlp_test_machine("trn3");
    nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    nmlp_program_destroy(p);
}

static void broken_programs_are_refused_by_their_rule(void **state) {
    (void)state;
    bool seen[NMLP_N_RULES] = {false};
    for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
        const broken *b = &programs[i];
        nmlp_machine m = nmlp_test_machine(b->machine);
        if (b->rule == NMLP_RULE_free_size) m.sbuf_usable_bytes = 180224 * 4; /* let the buffer exist */
        nmlp_program *p = with_change(b->find, b->put);
        nmlp_violation v = {0};
        nmlp_err err = {0};
        nmlp_status st = nmlp_program_check(p, &m, &v, &err);
        if (st != NMLP_E_ILLEGAL || v.rule != b->rule)
            print_message("%zu: wanted %s: %s\n", i, nmlp_rule_name(b->rule), err.message);
        nmlp_assert_fails(st, &err, NMLP_E_ILLEGAL, nmlp_rule_name(b->rule), "found", "allowed", NULL);
        assert_int_equal(v.rule, b->rule);
        if (b->found >= 0) assert_int_equal(v.found, b->found);
        if (b->allowed >= 0) assert_int_equal(v.allowed, b->allowed);
        if (v.instr >= 0) assert_non_null(strstr(err.message, "instruction"));
        seen[b->rule] = true;
        nmlp_program_destroy(p);
    }
    for (int r = 0; r < NMLP_N_RULES; r++) {
        if (!seen[r]) print_message("no broken program for rule %s\n", nmlp_rule_name((nmlp_rule)r));
        assert_true(seen[r]);
    }
}

static void newer_cores_allow_what_older_ones_refuse(void **state) {
    (void)state;
    const struct {
        const char *find, *put, *refused, *allowed;
    } cases[] = {
        {"acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] on vector", "acc[0 :+ min(128, 300 - 128*m); 0 :+ 512] on scalar",
         "trn1", "trn2"},
        {"buffer acc psum fp32", "buffer acc psum bf16", "trn2", "trn3"},
        {"buffer f32 sbuf fp32 [128; 512] copies 1", "buffer f32 sbuf fp32 [128; 512] copies 90", "trn1", "trn2"},
    };
    for (size_t i = 0; i < 3; i++) {
        nmlp_program *p = with_change(cases[i].find, cases[i].put);
        for (size_t t = 0; t < p->n_buffers; t++)
            if (strcmp(p->buffers[t].name, "tp") == 0)
                p->buffers[t].dtype = strcmp(cases[i].refused, "trn1") == 0 ? NMLP_NC_FP32 : NMLP_NC_BF16;
        nmlp_err err = {0};
        nmlp_machine m = nmlp_test_machine(cases[i].refused);
        assert_int_equal(nmlp_program_check(p, &m, NULL, &err), NMLP_E_ILLEGAL);
        for (size_t t = 0; t < p->n_buffers; t++)
            if (strcmp(p->buffers[t].name, "tp") == 0) p->buffers[t].dtype = NMLP_NC_BF16;
        m = nmlp_test_machine(cases[i].allowed);
        nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
        nmlp_program_destroy(p);
    }
}

static void managed_buffers_may_exceed_sbuf(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1");
    nmlp_err err = {0};
    nmlp_program *p =
        with_change("buffer f32 sbuf fp32 [128; 512] copies 1", "buffer f32 sbuf fp32 [128; 512] copies 90 managed");
    nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    nmlp_program_destroy(p);
}

/* Sixteen rows too few in the edge clamp: the static bound sees it at shapes that do not divide. */
static void bounds_are_exact_at_edges(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1");
    nmlp_err err = {0};
    for (int64_t s = 1; s < 1500; s += 37) {
        const int64_t shape[4] = {s, 200, 0, 700};
        nmlp_program *p = nmlp_test_kernel("xw-opt", &m, NMLP_NC_BF16, shape, "m=4");
        nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
        for (size_t i = 0; i < p->n_tensors; i++)
            if (p->tensors[i].role == NMLP_ROLE_OUTPUT) p->tensors[i].rows -= 1; /* the same program on one row less */
        nmlp_violation v = {0};
        if (p->tensors[2].rows > 0) {
            assert_int_equal(nmlp_program_check(p, &m, &v, &err), NMLP_E_ILLEGAL);
            assert_int_equal(v.rule, NMLP_RULE_hbm_range);
            assert_int_equal(v.found, s);
        }
        nmlp_program_destroy(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(legal_program_is_accepted_everywhere),
        cmocka_unit_test(broken_programs_are_refused_by_their_rule),
        cmocka_unit_test(newer_cores_allow_what_older_ones_refuse),
        cmocka_unit_test(managed_buffers_may_exceed_sbuf),
        cmocka_unit_test(bounds_are_exact_at_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
