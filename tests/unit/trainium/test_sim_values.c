/* Values: every kernel against float64 at odd shapes, uninitialised reads and bad ranges refused, threads and time
 * without influence. */
#include <math.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lib/neuron_testing.h"
#include "trainium/plan/kernel_table.h"
#include "trainium/sim/check.h"
#include "trainium/sim/matmul.h"
#include "trainium/sim/time.h"
#include "trainium/sim/values.h"

static int tensor_id(const nmlp_program *p, const char *name) {
    for (size_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0) return (int)i;
    return -1;
}

static const int64_t shapes[][4] = {
    {1, 100, 60, 70}, {100, 200, 130, 700}, {1000, 520, 300, 1300}, {130, 1100, 140, 513}, {257, 128, 1, 1}};

static void kernels_match_float64_at_odd_shapes(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1");
    const nmlp_nc_dtype dtypes[] = {NMLP_NC_BF16, NMLP_NC_FP16, NMLP_NC_FP32};
    for (size_t k = 0; nmlp_kernel_at(k); k++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int d = 0; d < 3; d++) {
                nmlp_program *p = nmlp_test_kernel(nmlp_kernel_at(k)->name, &m, dtypes[d], shapes[i], "");
                nmlp_values *v = NULL;
                nmlp_check_report r;
                nmlp_err err = {0};
                nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &err), &err);
                nmlp_assert_ok(nmlp_check_fill(v, p, 3, &err), &err);
                nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
                nmlp_assert_ok(nmlp_check_values(&r, v, p, NULL, &err), &err);
                if (!r.ok)
                    print_message("%s: error %g limit %g, sums %g limit %g\n", nmlp_kernel_at(k)->name, r.max_rel_err,
                                  r.limit, r.sum_err, r.sum_limit);
                assert_true(r.ok);
                nmlp_values_destroy(v);
                nmlp_program_destroy(p);
            }
}

/* With positive operands the worst case is a sum of relative errors: every stored bf16 value adds at most 2^-9, every
 * fp32 addition 2^-24. A value passes one rounding per block of tiles of each contraction and one more. */
static void positive_operands_stay_within_the_worst_case(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1");
    const int64_t s = 100, h = 700, r = 200, o = 600, shape[4] = {s, h, r, o};
    nmlp_program *p = nmlp_test_kernel("xtuv-fused", &m, NMLP_NC_BF16, shape, "m=1,r=1,k=1,n=1");
    nmlp_values *v = NULL;
    nmlp_err err = {0};
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 5);
    nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &err), &err);
    const char *const names[] = {"xT", "u", "v"};
    for (int i = 0; i < 3; i++) {
        const nmlp_tensor *t = &p->tensors[tensor_id(p, names[i])];
        uint16_t *data = nmlp_values_tensor(v, tensor_id(p, names[i]));
        for (int64_t j = 0; j < t->rows * t->cols; j++)
            data[j] = nmlp_f32_to_bf16((float)(0.5 + nmlp_rng_uniform(&rng)));
    }
    nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
    const uint16_t *x = nmlp_values_tensor(v, tensor_id(p, "xT")), *u = nmlp_values_tensor(v, tensor_id(p, "u"));
    const uint16_t *w = nmlp_values_tensor(v, tensor_id(p, "v")), *y = nmlp_values_tensor(v, tensor_id(p, "y"));
    double roundings = ceil(h / 128.0) + ceil(r / 128.0) + 1,
           bound = roundings * 0x1p-9 * 1.02 + (double)(h + r) * 0x1p-24;
    double *xu = nmlp_mem_new((size_t)r, sizeof *xu, &err);
    for (int64_t i = 0; i < s; i += 9) {
        for (int64_t k = 0; k < r; k++) {
            xu[k] = 0;
            for (int64_t j = 0; j < h; j++)
                xu[k] += (double)nmlp_bf16_to_f32(x[j * s + i]) * (double)nmlp_bf16_to_f32(u[j * r + k]);
        }
        for (int64_t j = 0; j < o; j++) {
            double want = 0;
            for (int64_t k = 0; k < r; k++) want += xu[k] * (double)nmlp_bf16_to_f32(w[k * o + j]);
            assert_true(fabs((double)nmlp_bf16_to_f32(y[i * o + j]) / want - 1) <= bound);
        }
    }
    nmlp_mem_free(xu);
    nmlp_values_destroy(v);
    nmlp_program_destroy(p);
}

static void check_notices_a_single_wrong_tile(void **state) {
    (void)state;
    nmlp_machine m = nmlp_test_machine("trn1");
    const int64_t shape[4] = {1000, 520, 300, 1300};
    nmlp_program *p = nmlp_test_kernel("xtuv-fused", &m, NMLP_NC_BF16, shape, "");
    nmlp_values *v = NULL;
    nmlp_check_report r;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &err), &err);
    nmlp_assert_ok(nmlp_check_fill(v, p, 3, &err), &err);
    nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
    uint16_t *y = nmlp_values_tensor(v, tensor_id(p, "y"));
    for (int64_t i = 640; i < 656; i++) /* 16 rows x 16 columns, none of the sampled rows needed */
        for (int64_t j = 600; j < 616; j++) y[i * 1300 + j] = 0;
    nmlp_assert_ok(nmlp_check_values(&r, v, p, NULL, &err), &err);
    assert_false(r.ok);
    assert_true(r.sum_err > r.sum_limit);
    nmlp_values_destroy(v);
    nmlp_program_destroy(p);
}

#define SMALL_HEAD                                                                                                     \
    "program small\ntensor a input bf16 [128, 64]\ntensor y output bf16 [64, 32]\n"                                    \
    "buffer s sbuf bf16 [128; 64] copies 1\nbuffer q psum fp32 [64; 32] copies 1\nbuffer o sbuf bf16 [64; 32] copies " \
    "1\nbegin\n"

static nmlp_status run_text(const char *body, nmlp_err *err) {
    char text[4096];
    nmlp_values *v = NULL;
    snprintf(text, sizeof text, "%s%s", SMALL_HEAD, body);
    nmlp_program *p = nmlp_test_program(text);
    nmlp_err fresh = {0};
    nmlp_assert_ok(nmlp_values_create(&v, p, NULL, &fresh), &fresh);
    nmlp_status st = nmlp_values_run(v, NULL, err);
    nmlp_values_destroy(v);
    nmlp_program_destroy(p);
    return st;
}

#define LOAD "dma_load s[0 :+ 128; 0 :+ 64] = a[0 :+ 128, 0 :+ 64] queue 0\n"
#define MATMUL                                                                                                         \
    "nc_matmul q[0 :+ 64; 0 :+ 32] stationary s[0 :+ 128; 0 :+ 64] moving s[0 :+ 128; 0 :+ 32] accumulate never\n"
#define EVICT "tensor_copy o[0 :+ 64; 0 :+ 32] = q[0 :+ 64; 0 :+ 32] on vector\n"
#define STORE "dma_store y[0 :+ 64, 0 :+ 32] = o[0 :+ 64; 0 :+ 32] queue 0\n"

static void complete_program_runs(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_assert_ok(run_text(LOAD MATMUL EVICT STORE "end\n", &err), &err);
}

static void uninitialised_reads_are_refused(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_assert_fails(run_text(MATMUL EVICT STORE "end\n", &err), &err, NMLP_E_ILLEGAL, "nc_matmul", "never written",
                      NULL);
    nmlp_assert_fails(run_text(LOAD EVICT STORE "end\n", &err), &err, NMLP_E_ILLEGAL, "tensor_copy", "never written",
                      NULL);
    nmlp_assert_fails(run_text(LOAD MATMUL STORE "end\n", &err), &err, NMLP_E_ILLEGAL, "dma_store", "never written",
                      NULL);
    nmlp_assert_fails(run_text(LOAD MATMUL EVICT "alloc o\n" STORE "end\n", &err), &err, NMLP_E_ILLEGAL, "dma_store",
                      "never written", NULL);
    nmlp_assert_fails(run_text(LOAD MATMUL EVICT "end\n", &err), &err, NMLP_E_ILLEGAL, "never writes y[0, 0]", NULL);
    nmlp_assert_fails(run_text("dma_load o[0 :+ 64; 0 :+ 32] = y[0 :+ 64, 0 :+ 32] queue 0\n" STORE "end\n", &err),
                      &err, NMLP_E_ILLEGAL, "dma_load", "never written", NULL);
    nmlp_assert_fails(run_text(LOAD "nc_matmul q[0 :+ 64; 0 :+ 32] stationary s[0 :+ 128; 0 :+ 64] moving s[0 :+ 128; "
                                    "0 :+ 32] accumulate always\n" EVICT STORE "end\n",
                               &err),
                      &err, NMLP_E_ILLEGAL, "nc_matmul", "never written", NULL);
}

static void accesses_out_of_range_are_refused(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_assert_fails(run_text("dma_load s[0 :+ 128; 1 :+ 64] = a[0 :+ 128, 0 :+ 64] queue 0\nend\n", &err), &err,
                      NMLP_E_ILLEGAL, "outside its buffer", NULL);
    nmlp_assert_fails(run_text("dma_load s[0 :+ 128; 0 :+ 64] = a[1 :+ 128, 0 :+ 64] queue 0\nend\n", &err), &err,
                      NMLP_E_ILLEGAL, "outside its tensor", NULL);
    nmlp_assert_fails(run_text("dma_load s[0 :+ 128; 0 :+ 64] = a[0 :+ 128, 0 :+ 32] queue 0\nend\n", &err), &err,
                      NMLP_E_ILLEGAL, "different number", NULL);
    nmlp_assert_fails(run_text("for i in 3 {\nmemset s[0 :+ 128; 32*i :+ 32] = 0 on vector\n}\nend\n", &err), &err,
                      NMLP_E_ILLEGAL, "memset", "outside its buffer", NULL);
}

static void run_kernel(const char *kernel, nmlp_pool *pool, bool timed, uint16_t *out, size_t n) {
    nmlp_machine m = nmlp_test_machine("trn1");
    const int64_t shape[4] = {200, 300, 150, 640};
    nmlp_program *p = nmlp_test_kernel(kernel, &m, NMLP_NC_BF16, shape, "");
    nmlp_values *v = NULL;
    nmlp_time_report t;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_values_create(&v, p, pool, &err), &err);
    nmlp_assert_ok(nmlp_check_fill(v, p, 9, &err), &err);
    if (timed) {            /* another machine, so small that everything spills: another schedule, the same values */
        bool spills = true; /* our own kernels place their buffers themselves */
        for (size_t i = 0; i < p->n_buffers; i++)
            spills = spills && (p->buffers[i].managed || p->buffers[i].space == NMLP_SPACE_PSUM);
        if (spills) m.sbuf_usable_bytes = 40000;
        m.dma_start_ns = 9000;
        nmlp_assert_ok(nmlp_time_run(&t, p, &m, NULL, &err), &err);
    }
    nmlp_assert_ok(nmlp_values_run(v, NULL, &err), &err);
    int y = 0;
    while (p->tensors[y].role != NMLP_ROLE_OUTPUT) y++;
    size_t count = (size_t)(p->tensors[y].rows * p->tensors[y].cols);
    memcpy(out, nmlp_values_tensor(v, y), (count < n ? count : n) * sizeof *out);
    nmlp_values_destroy(v);
    nmlp_program_destroy(p);
}

static void time_and_threads_do_not_change_values(void **state) {
    (void)state;
    enum { N = 200 * 640 };
    nmlp_pool *pool = NULL;
    nmlp_err err = {0};
    uint16_t *a = nmlp_mem_new(N, sizeof *a, &err), *b = nmlp_mem_new(N, sizeof *b, &err);
    nmlp_assert_ok(nmlp_pool_create(&pool, 3, &err), &err);
    for (size_t k = 0; nmlp_kernel_at(k); k++) {
        run_kernel(nmlp_kernel_at(k)->name, NULL, false, a, N);
        run_kernel(nmlp_kernel_at(k)->name, pool, true, b, N);
        assert_memory_equal(a, b, N * sizeof *a);
    }
    nmlp_pool_destroy(pool);
    nmlp_mem_free(a);
    nmlp_mem_free(b);
}

static void matmuls_agree_on_every_instruction_set(void **state) {
    (void)state;
    enum { K = 100, M = 77, N = 150 };
    nmlp_err err = {0};
    float *a = nmlp_mem_new(K * M, 4, &err), *b = nmlp_mem_new(K * N, 4, &err), *x = nmlp_mem_new(M * N, 4, &err),
          *y = nmlp_mem_new(M * N, 4, &err);
    float *scratch = nmlp_mem_new(NMLP_SIM_MATMUL_SCRATCH, 4, &err);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 1);
    for (int i = 0; i < K * M; i++) a[i] = (float)nmlp_rng_normal(&rng);
    for (int i = 0; i < K * N; i++) b[i] = (float)nmlp_rng_normal(&rng);
    nmlp_sim_matmul mm = {.out = x, .a = a, .b = b, .out_stride = N, .a_stride = M, .b_stride = N, .m = M, .k = K};
    nmlp_sim_matmul_generic(&mm, 0, N, scratch);
    mm.out = y;
    nmlp_sim_matmul_choose()(&mm, 0, N, scratch);
    assert_memory_equal(x, y, M * N * sizeof *x);
#if defined(__x86_64__)
    if (nmlp_cpu_get()->avx2_fma) {
        nmlp_sim_matmul_avx2(&mm, 0, N, scratch);
        assert_memory_equal(x, y, M * N * sizeof *x);
    }
#endif
    nmlp_mem_free(a), nmlp_mem_free(b), nmlp_mem_free(x), nmlp_mem_free(y), nmlp_mem_free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_match_float64_at_odd_shapes),
        cmocka_unit_test(positive_operands_stay_within_the_worst_case),
        cmocka_unit_test(check_notices_a_single_wrong_tile),
        cmocka_unit_test(complete_program_runs),
        cmocka_unit_test(uninitialised_reads_are_refused),
        cmocka_unit_test(accesses_out_of_range_are_refused),
        cmocka_unit_test(time_and_threads_do_not_change_values),
        cmocka_unit_test(matmuls_agree_on_every_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
