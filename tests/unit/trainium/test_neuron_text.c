/* The text form: printing and parsing are inverse; bad text is refused with its line. */
#include "lib/testing.h"
#include "trainium/neuron/check.h"
#include "trainium/neuron/program_text.h"
#include "trainium/neuron/walk.h"

static const char *const sample =
    "program sample\n"
    "param S = 300\n"
    "tensor xT input bf16 [200, 300]\n"
    "tensor w weight bf16 [200, 1000]\n"
    "tensor y output bf16 [300, 1000]\n"
    "buffer x sbuf bf16 [128; 2, 128] copies 2\n"
    "buffer wb sbuf bf16 [128; 2, 512] copies 2 managed\n"
    "buffer acc psum fp32 [128; 512] copies 2\n"
    "buffer out sbuf bf16 [128; 512] copies 2\n"
    "begin\n"
    "  # every tile of rows\n"
    "  for m in 3 {\n"
    "    alloc x\n"
    "    for n in 2 {\n"
    "      alloc acc\n"
    "      alloc wb\n"
    "      for sequential k in 2 {\n"
    "        if first n {\n"
    "          dma_load x[0 :+ min(128, 200 - 128*k); k, 0 :+ min(128, 300 - 128*m)] = xT[128*k :+ min(128, 200 - "
    "128*k), 128*m :+ "
    "min(128, 300 - 128*m)] queue 0\n"
    "        }\n"
    "        dma_load wb[0 :+ min(128, 200 - 128*k); k, 0 :+ min(512, 1000 - 512*n)] = w[128*k :+ min(128, 200 - "
    "128*k), 512*n :+ "
    "min(512, 1000 - 512*n)] queue 1\n"
    "        nc_matmul acc[0 :+ min(128, 300 - 128*m); 0 :+ min(512, 1000 - 512*n)] stationary x[0 :+ min(128, 200 - "
    "128*k); k, 0 :+ "
    "min(128, 300 - 128*m)] moving wb[0 :+ min(128, 200 - 128*k); k, 0 :+ min(512, 1000 - 512*n)] accumulate k\n"
    "      }\n"
    "      alloc out\n"
    "      tensor_copy out[0 :+ min(128, 300 - 128*m); 0 :+ min(512, 1000 - 512*n)] = acc[0 :+ min(128, 300 - 128*m); "
    "0 :+ min(512, "
    "1000 - 512*n)] on vector\n"
    "      dma_store y[128*m :+ min(128, 300 - 128*m), 512*n :+ min(512, 1000 - 512*n)] = out[0 :+ min(128, 300 - "
    "128*m); 0 :+ min(512, "
    "1000 - 512*n)] queue 0\n"
    "    }\n"
    "  }\n"
    "end\n";

static nmlp_program *parsed(const char *text) {
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_program_parse(&p, "sample", text, strlen(text), &err), &err);
    return p;
}

static void printing_gives_back_the_text(void **state) {
    (void)state;
    nmlp_program *p = parsed(sample);
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_program_print(p, &text);
    assert_string_equal(nmlp_str_text(&text), sample);
    nmlp_str_fini(&text);
    nmlp_program_destroy(p);
}

static void every_instruction_survives_a_round_trip(void **state) {
    (void)state;
    const char *text =
        "program all\n"
        "tensor t scratch fp32 [512, 512]\n"
        "tensor codes weight fp8 [128, 64]\n"
        "buffer a sbuf fp32 [128; 4, 2, 64] copies 1\n"
        "buffer b sbuf fp32 [128; 4, 2, 64] copies 3 managed\n"
        "buffer q psum fp32 [128; 128] copies 1\n"
        "buffer w sbuf fp8 [128; 64] copies 1\n"
        "begin\n"
        "  for i in min(4, cdiv(500, 128)) {\n"
        "    if later i {\n"
        "      memset a[0 :+ 128; i, 0 :+ 2, 0 :+ 64] = -1.5 on gpsimd\n"
        "    }\n"
        "    activation b[0 :+ 128; i, 0 :+ 2, 0 :+ 64] = silu(a[0 :+ 128; i, 0 :+ 2, 0 :+ 64]) scale 0.5 on scalar\n"
        "    tensor_tensor b[0 :+ 128; i, 0, 0 :+ 64] = b[0 :+ 128; i, 0, 0 :+ 64] mul a[0 :+ 128; i, 1, 0 :+ 64] on "
        "vector\n"
        "    activation b[0 :+ 128; i, 0, 0 :+ 64] = silu(a[0 :+ 128; i, 0, 0 :+ 64]) scale b[0 :+ 128; i, 1, 3] on "
        "scalar\n"
        "    tensor_scalar b[0 :+ 128; i, 0, 0 :+ 64] = b[0 :+ 128; i, 0, 0 :+ 64] mul a[0 :+ 128; i, 1, i] on vector\n"
        "    dma_load w[0 :+ 128; 0 :+ 64] = codes[0 :+ 128, 0 :+ 64] queue 0\n"
        "    nc_transpose q[0 :+ 64; 0 :+ 128] = a[0 :+ 128; i, 0, 0 :+ 64] on tensor\n"
        "    nc_matmul q[0 :+ 64; 0 :+ 64] stationary a[0 :+ 128; i, 0, 0 :+ 64] moving b[0 :+ 128; i, 0, 0 :+ 64] "
        "accumulate always\n"
        "    dma_transpose a[0 :+ 64; 0, 0, 0 :+ 64] = t[-64 + 64*i :+ 64, 3] queue 2\n"
        "    dma_load a[0 :+ 128; 0 :+ 4, 0, 0 :+ 64] = t[0 :+ 128, 64 - i :+ 64] stack 4 by 128 queue 1\n"
        "  }\n"
        "end\n";
    nmlp_program *p = parsed(text);
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_program_print(p, &out);
    assert_string_equal(nmlp_str_text(&out), text);
    nmlp_str_fini(&out);
    nmlp_program_destroy(p);
}

static void sample_is_legal_on_every_machine(void **state) {
    (void)state;
    nmlp_program *p = parsed(sample);
    for (size_t i = 0; nmlp_machine_builtin_name(i); i++) {
        nmlp_machine m;
        nmlp_err err = {0};
        nmlp_assert_ok(nmlp_machine_open(&m, nmlp_machine_builtin_name(i), &err), &err);
        nmlp_assert_ok(nmlp_program_check(p, &m, NULL, &err), &err);
    }
    nmlp_program_destroy(p);
}

static void walk_visits_each_iteration_once(void **state) {
    (void)state;
    nmlp_program *p = parsed(sample);
    nmlp_walk walk;
    nmlp_step step;
    nmlp_err err = {0};
    int64_t n_matmul = 0, flops = 0, x_loads = 0, stored = 0;
    nmlp_assert_ok(nmlp_walk_init(&walk, p, &err), &err);
    while (nmlp_walk_next(&walk, &step)) {
        if (step.instr->op == NMLP_OP_MATMUL) {
            n_matmul++;
            flops += step.a.parts * nmlp_box_free(&step.a) * nmlp_box_free(&step.b);
        }
        if (step.instr->op == NMLP_OP_DMA_LOAD && step.instr->hbm.tensor == 0) x_loads++;
        if (step.instr->op == NMLP_OP_DMA_STORE) stored += step.rows * step.cols;
    }
    assert_int_equal(n_matmul, 12);
    assert_int_equal(flops, 300 * 200 * 1000); /* every product once */
    assert_int_equal(x_loads, 6);              /* only in the first n */
    assert_int_equal(stored, 300 * 1000);
    nmlp_walk_fini(&walk);
    nmlp_program_destroy(p);
}

static void refuse(const char *find, const char *put, const char *line, const char *part) {
    char text[4096];
    const char *at = strstr(sample, find);
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - sample), sample, put, at + strlen(find));
    nmlp_assert_fails(nmlp_program_parse(&p, "bad", text, strlen(text), &err), &err, NMLP_E_FORMAT, line, part, NULL);
    assert_null(p);
}

static void bad_text_is_refused_with_its_line(void **state) {
    (void)state;
    refuse("program sample", "sample", "bad:1:", "program");
    refuse("tensor y output", "tensor y result", "bad:5:", "input, weight, output");
    refuse("tensor y output bf16 [300", "tensor y output bf16 [0", "bad:5:", "0x1000");
    refuse("buffer out sbuf", "buffer acc sbuf", "bad:9:", "declared twice");
    refuse("copies 2 managed", "copies 0 managed", "bad:7:", "copies");
    refuse("[128; 2, 512]", "[128; 2, 2, 2, 512]", "bad:7:", "3 free dimensions");
    refuse("for m in 3", "for m in 99999999999", "bad:12:", "2^30");
    refuse("accumulate k", "accumulate z", "bad:22:", "not a loop");
    refuse("alloc out", "alloc nothing", "bad:24:", "no buffer");
    refuse("on vector", "on warp", "bad:25:", "an engine");
    refuse("    }\n  }\nend", "    }\nend", "not closed", "sample");
    refuse("for n in 2", "for m in 2", "bad:14:", "same name");
    refuse("tensor_copy", "tensor_move", "bad:25:", "an instruction");
    refuse("end\n", "end\nend\n", "bad:30:", "nothing after end");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printing_gives_back_the_text),      cmocka_unit_test(every_instruction_survives_a_round_trip),
        cmocka_unit_test(sample_is_legal_on_every_machine),  cmocka_unit_test(walk_visits_each_iteration_once),
        cmocka_unit_test(bad_text_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
