/* Quantised experts, factors of attentions and fused projections: every matrix is near its source, the model computes
 * in float64 what its codes and scales say, expand makes the same of it, and an interrupted run ends with the same
 * bytes. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "compress/calibrate/expert_sample.h"
#include "compress/compress.h"
#include "compress/quantize/quantize.h"
#include "engine/session.h"
#include "lib/loaded_engine.h"
#include "lib/reference_forward.h"
#include "lib/small_vocab.h"
#include "lib/testing.h"
#include "model/expand.h"
#include "tensor/quant.h"

enum { N_IDS = 4096, N_RUN = 24 };

static const int32_t *ids(void) {
    static int32_t list[N_IDS];
    small_vocab_random_ids(list, N_IDS, 1);
    return list;
}

static void path_of(char path[4096], const char *family) {
    snprintf(path, 4096, "%s/tests/data/families/%s", NMLP_TEST_ROOT, family);
}

static void compress_attention(const char *from, const char *to, nmlp_joint_mode joint) {
    nmlp_compress_options options = nmlp_compress_defaults();
    nmlp_compress_report report;
    loaded_engine l;
    nmlp_err err;
    options.attention = true;
    options.adaptive = false;
    options.ratio = 0.2;
    options.tile = 4;
    options.calib_tokens = 1024;
    options.heldout_tokens = 512;
    options.context = 128;
    options.rounds = 0;
    options.joint = joint;
    options.calib_name = "random ids";
    loaded_engine_open(&l, from, NULL, 1);
    nmlp_assert_ok(nmlp_compress_run(l.engine, ids(), N_IDS, to, &options, &report, &err), &err);
    nmlp_compress_report_fini(&report);
    loaded_engine_close(&l);
}

static nmlp_status quantize(const char *from, const char *to, const nmlp_quantize_options *options,
                            nmlp_quantize_report *report, nmlp_err *err) {
    loaded_engine l;
    loaded_engine_open(&l, from, NULL, 1);
    nmlp_status st = nmlp_quantize_run(l.engine, ids(), N_IDS, to, options, report, err);
    loaded_engine_close(&l);
    return st;
}

static nmlp_quantize_options options_of(nmlp_dtype dtype) {
    nmlp_quantize_options options = nmlp_quantize_defaults();
    options.body = (nmlp_quant_format){.dtype = dtype, .group = dtype == NMLP_DTYPE_Q4 ? 32 : 0};
    options.calib_tokens = 2048;
    options.heldout_tokens = 1024;
    options.context = 128;
    return options;
}

/* ---- matrices ---- */

static double *matrix_of(const nmlp_factors *f) {
    int64_t rows = nmlp_factors_rows(f), cols = nmlp_factors_cols(f), rank = nmlp_factors_rank(f);
    double *out = calloc((size_t)(rows * cols), sizeof *out);
    float row[4096], inner[4096];
    for (int64_t i = 0; i < rows; i++) {
        if (rank == 0) {
            nmlp_quant_row_to_f32(row, &f->w, i);
            for (int64_t j = 0; j < cols; j++) out[i * cols + j] = (double)row[j];
            continue;
        }
        nmlp_quant_row_to_f32(inner, &f->u, i);
        for (int64_t r = 0; r < rank; r++) {
            nmlp_quant_row_to_f32(row, &f->v, r);
            for (int64_t j = 0; j < cols; j++) out[i * cols + j] += (double)inner[r] * (double)row[j];
        }
    }
    return out;
}

static double matrix_error(const nmlp_factors *from, const nmlp_factors *to) {
    int64_t n = nmlp_factors_rows(from) * nmlp_factors_cols(from);
    double *a = matrix_of(from), *b = matrix_of(to), lost = 0, all = 0;
    assert_int_equal(nmlp_factors_rows(to), nmlp_factors_rows(from));
    assert_int_equal(nmlp_factors_rank(to), nmlp_factors_rank(from));
    assert_true(nmlp_dtype_is_quantised(nmlp_factors_dtype(to)));
    for (int64_t i = 0; i < n; i++) {
        lost += (a[i] - b[i]) * (a[i] - b[i]);
        all += a[i] * a[i];
    }
    free(a);
    free(b);
    return sqrt(lost / all);
}

static void check_matrices(const nmlp_model *from, const nmlp_model *to, double most) {
    for (int64_t l = 0; l < from->config.n_layers; l++) {
        const nmlp_layer *a = &from->layers[l], *b = &to->layers[l];
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++)
            assert_true(matrix_error(&a->attention[i], &b->attention[i]) < most);
        for (int64_t e = 0; e < nmlp_config_mlp_count(&from->config, l); e++)
            for (int i = 0; i < NMLP_MLP_MATRICES; i++)
                assert_true(matrix_error(&nmlp_layer_mlp_at(a, e)[i], &nmlp_layer_mlp_at(b, e)[i]) < most);
        assert_int_equal(b->router.data != NULL, a->experts != NULL);
        if (a->experts) assert_false(nmlp_dtype_is_quantised(b->router.dtype));
    }
}

/* ---- models ---- */

/* Rows of logits [N_RUN,V] that are further from the truth than `most`, relative. */
static int rows_beyond(const double *truth, const float *got, double most) {
    int n = 0;
    for (int t = 0; t < N_RUN; t++) {
        double lost = 0, all = 0;
        for (int i = t * SMALL_VOCAB; i < (t + 1) * SMALL_VOCAB; i++) {
            lost += (truth[i] - (double)got[i]) * (truth[i] - (double)got[i]);
            all += truth[i] * truth[i];
        }
        n += !(sqrt(lost / all) < most);
    }
    return n;
}

/* A kernel set that does not round activations to bf16; NULL: the best one does not. */
static const char *exact_isa(void) {
    const nmlp_kernels *kernels;
    nmlp_err err;
    nmlp_assert_ok(nmlp_kernels_select(&kernels, nmlp_cpu_get(), NULL, &err), &err);
    return nmlp_kernels_rounds_to_bf16(kernels) ? "avx512" : NULL;
}

/* logits [N_RUN,V] of the model in `dir` by the engine; quantised matrices are widened to f32 first where asked. */
static float *logits_of(const char *dir, bool widened) {
    loaded_engine l = {0};
    nmlp_engine_options options = {.isa = exact_isa()};
    nmlp_err err;
    nmlp_assert_ok(nmlp_model_open(&l.model, dir, &err), &err);
    if (widened) nmlp_assert_ok(nmlp_model_widen(&l.model, NULL, &err), &err);
    nmlp_assert_ok(nmlp_engine_create(&l.engine, &l.model, &options, &err), &err);
    float *logits = loaded_engine_logits(&l, ids(), N_RUN, N_RUN);
    nmlp_engine_destroy(l.engine);
    nmlp_model_close(&l.model);
    return logits;
}

/* Every dense matrix of the expanded model is the product that codes and scales make, rounded to bf16 once. */
static void check_expanded(const nmlp_factors *from, const nmlp_factors *to) {
    int64_t n = nmlp_factors_rows(from) * nmlp_factors_cols(from);
    double *want = matrix_of(from), *got = matrix_of(to), largest = 0;
    assert_true(nmlp_factors_is_dense(to) && nmlp_factors_dtype(to) == NMLP_DTYPE_BF16);
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) assert_true(fabs(want[i] - got[i]) <= fabs(want[i]) / 256 + 1e-6 * largest);
    free(want);
    free(got);
}

static void check_expansion(const nmlp_model *model, const char *wide) {
    nmlp_model dense;
    nmlp_err err;
    int64_t bytes;
    nmlp_assert_ok(nmlp_model_expand(model, wide, NULL, NULL, &bytes, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&dense, wide, &err), &err);
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const nmlp_layer *a = &model->layers[l], *b = &dense.layers[l];
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) check_expanded(&a->attention[i], &b->attention[i]);
        for (int64_t e = 0; e < nmlp_config_mlp_count(&model->config, l); e++)
            for (int i = 0; i < NMLP_MLP_MATRICES; i++)
                check_expanded(&nmlp_layer_mlp_at(a, e)[i], &nmlp_layer_mlp_at(b, e)[i]);
    }
    nmlp_model_close(&dense);
}

/* The truth is float64, of codes and scales; or, where the reference does not know the family, the engine's own with
 * f32 weights. Rounded activations may send a token whose scores are nearly equal to another expert. */
static void check_logits(const char *quantised, const char *wide, bool has_reference) {
    static double truth[N_RUN * SMALL_VOCAB];
    nmlp_model model;
    nmlp_err err;
    nmlp_assert_ok(nmlp_model_open(&model, quantised, &err), &err);
    if (has_reference) reference_forward(&model, ids(), N_RUN, truth);
    check_expansion(&model, wide);
    bool experts = model.config.n_experts > 0;
    nmlp_model_close(&model);
    float *own = logits_of(quantised, false), *f32 = logits_of(quantised, true), *expanded = logits_of(wide, false);
    for (int i = 0; i < N_RUN * SMALL_VOCAB && !has_reference; i++) truth[i] = (double)f32[i];
    assert_int_equal(rows_beyond(truth, f32, 2e-5), 0);
    assert_true(rows_beyond(truth, own, 2e-3) <= (experts ? 1 : 0)); /* activations in 16 bits */
    if (!experts) assert_int_equal(rows_beyond(truth, expanded, 0.05), 0);
    nmlp_mem_free(own);
    nmlp_mem_free(f32);
    nmlp_mem_free(expanded);
}

static void check_model(const char *name, const char *source, bool has_reference) {
    const struct {
        nmlp_dtype dtype;
        double matrix_error, kl;
    } formats[] = {{NMLP_DTYPE_Q8, 0.02, 0.05}, {NMLP_DTYPE_Q4, 0.25, 1}};
    char dir[1024], out[2048], wide[2048];
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/q", dir);
    snprintf(wide, sizeof wide, "%s/wide", dir);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        nmlp_quantize_options options = options_of(formats[i].dtype);
        nmlp_quantize_report report;
        nmlp_model from, to;
        nmlp_err err;
        nmlp_assert_ok(quantize(source, out, &options, &report, &err), &err);
        print_message("%s %s: KL %.2g\n", name, nmlp_dtype_name(formats[i].dtype), report.after.kl);
        assert_true(report.measured && report.after.kl < formats[i].kl);
        nmlp_assert_ok(nmlp_model_open(&from, source, &err), &err);
        nmlp_assert_ok(nmlp_model_open(&to, out, &err), &err);
        assert_int_equal(report.bytes_after, nmlp_model_measure(&to).bytes);
        check_matrices(&from, &to, formats[i].matrix_error);
        nmlp_model_close(&to);
        nmlp_model_close(&from);
        nmlp_quantize_report_fini(&report);
        check_logits(out, wide, has_reference);
    }
    nmlp_test_rmdir(dir);
}

static void check_family(const char *family, bool has_reference) {
    char source[4096];
    path_of(source, family);
    check_model(family, source, has_reference);
}

static void experts_of_every_spelling(void **state) {
    (void)state;
    check_family("qwen3-moe", true);
    check_family("mixtral", true);
    check_family("olmoe", false);
}

static void fused_projections(void **state) {
    (void)state;
    check_family("phi3", false);
}

static void check_attention(const char *family, nmlp_joint_mode joint) {
    char source[4096], dir[1024], small[2048];
    path_of(source, family);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(small, sizeof small, "%s/small", dir);
    compress_attention(source, small, joint);
    check_model(family, small, true);
    nmlp_test_rmdir(dir);
}

static void factors_of_attention(void **state) {
    (void)state;
    check_attention("qwen3", NMLP_JOINT_NEVER);
}

static void factors_of_attention_that_share_a_basis(void **state) {
    (void)state;
    check_attention("qwen3", NMLP_JOINT_ALWAYS);
}

static void factors_of_attention_beside_those_of_experts(void **state) {
    (void)state;
    check_attention("qwen3-moe", NMLP_JOINT_ALWAYS);
}

/* ---- the rest ---- */

/* Formats of single matrices, all experts of a layer alike, within a number of bytes. */
static void a_budget_chooses_formats_of_experts(void **state) {
    char source[4096], dir[1024], out[2048];
    nmlp_quantize_options options = options_of(NMLP_DTYPE_Q8);
    nmlp_quantize_report report;
    nmlp_model model;
    nmlp_err err;
    (void)state;
    path_of(source, "qwen3-moe");
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/q", dir);
    nmlp_assert_ok(nmlp_model_open(&model, source, &err), &err);
    options.budget_bytes = nmlp_model_measure(&model).bytes * 6 / 10;
    nmlp_model_close(&model);
    nmlp_assert_ok(quantize(source, out, &options, &report, &err), &err);
    assert_true(report.bytes_after <= options.budget_bytes && report.bytes_after > options.budget_bytes / 2);
    nmlp_assert_ok(nmlp_model_open(&model, out, &err), &err);
    assert_int_equal(nmlp_model_measure(&model).bytes, report.bytes_after);
    const nmlp_expert *experts = model.layers[0].experts;
    for (int64_t e = 1; e < model.config.n_experts; e++)
        assert_int_equal(experts[e].mlp[NMLP_MLP_GATE].w.dtype, experts[0].mlp[NMLP_MLP_GATE].w.dtype);
    nmlp_model_close(&model);
    nmlp_quantize_report_fini(&report);
    path_of(source, "phi3");
    nmlp_assert_fails(quantize(source, out, &options, &report, &err), &err, NMLP_E_UNSUPPORTED, "budget_bytes",
                      "tensors of their own", NULL);
    nmlp_test_rmdir(dir);
}

struct stop {
    int64_t after;
};

static bool stop_after(void *ctx, const char *stage, double done, double total, const char *unit) {
    struct stop *stop = ctx;
    (void)stage;
    (void)done;
    (void)total;
    (void)unit;
    return stop->after-- > 0;
}

static void an_interrupted_run_ends_with_the_same_bytes(void **state) {
    char source[4096], dir[1024], whole[2048], resumed[2048], a[2200], b[2200];
    nmlp_quantize_options options = options_of(NMLP_DTYPE_Q4);
    nmlp_quantize_report report;
    nmlp_err err;
    nmlp_str first, second;
    struct stop stop = {.after = 90};
    nmlp_progress progress = {.update = stop_after, .ctx = &stop};
    (void)state;
    path_of(source, "qwen3-moe");
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(whole, sizeof whole, "%s/whole", dir);
    snprintf(resumed, sizeof resumed, "%s/resumed", dir);
    nmlp_assert_ok(quantize(source, whole, &options, &report, &err), &err);
    nmlp_quantize_report_fini(&report);
    options.progress = &progress;
    nmlp_assert_fails(quantize(source, resumed, &options, &report, &err), &err, NMLP_E_INTERRUPTED, "stopped", NULL);
    nmlp_quantize_report_fini(&report);
    options.progress = NULL;
    options.resume = true;
    nmlp_assert_ok(quantize(source, resumed, &options, &report, &err), &err);
    nmlp_quantize_report_fini(&report);
    snprintf(a, sizeof a, "%s/model.safetensors", whole);
    snprintf(b, sizeof b, "%s/model.safetensors", resumed);
    nmlp_str_init(&first);
    nmlp_str_init(&second);
    nmlp_assert_ok(nmlp_file_read(&first, a, 1 << 28, &err), &err);
    nmlp_assert_ok(nmlp_file_read(&second, b, 1 << 28, &err), &err);
    assert_int_equal(first.len, second.len);
    assert_memory_equal(first.data, second.data, first.len);
    nmlp_str_fini(&first);
    nmlp_str_fini(&second);
    nmlp_test_rmdir(dir);
}

/* What down sees of the rows of a sample, each with its weight, in float64. */
static void moments_of_an_expert_are_those_of_its_rows(void **state) {
    enum { T = 200, H = 32, I = 24 };
    static float x[T * H];
    static double act_gram[I * I], want[I * I];
    char source[4096];
    loaded_engine l;
    nmlp_expert_sampler sampler;
    const nmlp_kernels *kernels;
    nmlp_err err;
    (void)state;
    path_of(source, "qwen3-moe");
    loaded_engine_open(&l, source, NULL, 1);
    assert_int_equal(l.model.config.hidden, H);
    assert_int_equal(l.model.config.expert_intermediate, I);
    for (int i = 0; i < T * H; i++) x[i] = (float)sin(0.7 * i * i + i);
    nmlp_assert_ok(nmlp_kernels_select(&kernels, nmlp_cpu_get(), nmlp_engine_isa(l.engine), &err), &err);
    nmlp_assert_ok(nmlp_expert_sampler_init(&sampler, l.engine, kernels, T, &err), &err);
    sampler.act_gram = act_gram;
    nmlp_assert_ok(nmlp_expert_sampler_route(&sampler, 0, x, &err), &err);
    nmlp_assert_ok(nmlp_expert_sampler_take(&sampler, 2, &err), &err);
    const nmlp_factors *mlp = l.model.layers[0].experts[2].mlp;
    double *gate = matrix_of(&mlp[NMLP_MLP_GATE]), *up = matrix_of(&mlp[NMLP_MLP_UP]), all = 0;
    for (int64_t t = 0; t < sampler.sample.n; t++) {
        double act[I], factor = sampler.factors[t];
        for (int i = 0; i < I; i++) {
            double g = 0, u = 0;
            for (int j = 0; j < H; j++) {
                double value = (double)sampler.sample.x[t * H + j] / factor;
                g += gate[i * H + j] * value;
                u += up[i * H + j] * value;
            }
            act[i] = factor * (g / (1 + exp(-g)) * u);
        }
        for (int i = 0; i < I; i++)
            for (int j = 0; j < I; j++) want[i * I + j] += act[i] * act[j] / (double)sampler.sample.n;
    }
    for (int i = 0; i < I; i++) all = fmax(all, want[i * I + i]);
    for (int i = 0; i < I * I; i++) assert_true(fabs(want[i] - act_gram[i]) < 2e-2 * all); /* products in bf16 */
    free(gate);
    free(up);
    nmlp_expert_sampler_fini(&sampler);
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_every_spelling),
        cmocka_unit_test(fused_projections),
        cmocka_unit_test(factors_of_attention),
        cmocka_unit_test(factors_of_attention_that_share_a_basis),
        cmocka_unit_test(factors_of_attention_beside_those_of_experts),
        cmocka_unit_test(a_budget_chooses_formats_of_experts),
        cmocka_unit_test(an_interrupted_run_ends_with_the_same_bytes),
        cmocka_unit_test(moments_of_an_expert_are_those_of_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
