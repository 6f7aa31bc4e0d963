/* Whole runs of recovery: it helps, it is the same run however it is cut up or spread over threads, and it stops where
 * it must. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "lib/truncated_model.h"
#include "text/tokenizer.h"
#include "train/recover.h"

enum { N_IDS = 1500, PATH_BYTES = 512 };

/* A factorised student and its dense teacher, random, and random text. */
typedef struct setup {
    char dir[PATH_BYTES];
    nmlp_model student, teacher;
    int32_t ids[N_IDS];
    nmlp_recover_options options;
} setup;

static void path_in(const setup *s, char *out, const char *name) {
    snprintf(out, PATH_BYTES + 32, "%s/%s", s->dir, name);
}

static void setup_open(setup *s, nmlp_dtype dtype) {
    tiny_checkpoint c;
    char path[PATH_BYTES + 32];
    char command[2 * PATH_BYTES + 64];
    nmlp_err err;
    nmlp_rng rng;
    nmlp_test_mkdtemp(s->dir, sizeof s->dir);
    snprintf(command, sizeof command, "mkdir %s/student %s/teacher", s->dir, s->dir);
    assert_int_equal(system(command), 0);
    tiny_init(&c, 31);
    path_in(s, path, "teacher");
    tiny_write(&c, path, dtype);
    nmlp_assert_ok(nmlp_model_open(&s->teacher, path, &err), &err);
    for (int l = 0; l < TINY_LAYERS; l++) {
        tiny_factorise(&c, l, "gate_proj", 8, NULL);
        tiny_factorise(&c, l, "up_proj", 8, NULL);
        tiny_factorise(&c, l, "down_proj", 8, NULL);
    }
    tiny_mark_compressed(&c);
    path_in(s, path, "student");
    tiny_write(&c, path, dtype);
    tiny_fini(&c);
    nmlp_assert_ok(nmlp_model_open(&s->student, path, &err), &err);
    nmlp_rng_seed(&rng, 8);
    for (int i = 0; i < N_IDS; i++) s->ids[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    s->options = nmlp_recover_defaults();
    s->options.teacher = &s->teacher;
    s->options.steps = 12;
    s->options.batch = 3;
    s->options.context = 20;
    s->options.rate = 3e-3;
    s->options.warmup = 3;
    s->options.eval_every = 4;
    s->options.heldout = 4;
    s->options.lora_rank = 2;
    s->options.explore = 0; /* one test has the teacher write */
}

static void setup_close(setup *s) {
    nmlp_model_close(&s->student);
    nmlp_model_close(&s->teacher);
    nmlp_test_rmdir(s->dir);
}

static nmlp_status train(setup *s, const char *name, nmlp_recover_report *report, nmlp_err *err) {
    char path[PATH_BYTES + 32];
    path_in(s, path, name);
    return nmlp_recover(&s->student, s->ids, N_IDS, path, &s->options, report, err);
}

static void train_ok(setup *s, const char *name) {
    nmlp_recover_report report;
    nmlp_err err;
    nmlp_assert_ok(train(s, name, &report, &err), &err);
    nmlp_recover_report_fini(&report);
}

static void assert_same_file(const setup *s, const char *a, const char *b, const char *file) {
    char path[PATH_BYTES + 64];
    nmlp_file_map x, y;
    nmlp_err err;
    snprintf(path, sizeof path, "%s/%s/%s", s->dir, a, file);
    nmlp_assert_ok(nmlp_file_map_open(&x, path, &err), &err);
    snprintf(path, sizeof path, "%s/%s/%s", s->dir, b, file);
    nmlp_assert_ok(nmlp_file_map_open(&y, path, &err), &err);
    assert_int_equal(x.bytes, y.bytes);
    assert_memory_equal(x.data, y.data, x.bytes);
    nmlp_file_map_close(&x);
    nmlp_file_map_close(&y);
}

static void assert_same_output(const setup *s, const char *a, const char *b) {
    assert_same_file(s, a, b, "model.safetensors");
    assert_same_file(s, a, b, "recovery.csv");
    assert_same_file(s, a, b, "config.json");
}

static void loss_falls_in(nmlp_recover_mode mode, const char *isa) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.mode = mode;
    s.options.isa = isa;
    if (mode == NMLP_RECOVER_LORA) s.options.rate = 1e-2;
    s.options.steps = 40;
    s.options.patience = 0; /* the text is random: imitating the teacher does not help with it */
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    assert_int_equal(report.steps, 40);
    assert_int_equal(report.n_log, 41);
    assert_int_equal(report.tokens, 40 * 3 * 20);
    double first = 0, last = 0;
    for (int i = 1; i <= 5; i++) {
        first += report.log[i].loss;
        last += report.log[41 - i].loss;
    }
    if (!(last < 0.8 * first)) fail_msg("loss %g at first, %g at last", first / 5, last / 5);
    nmlp_recover_report_fini(&report);
    setup_close(&s);
}

static void training_factors_lowers_the_loss(void **state) {
    (void)state;
    loss_falls_in(NMLP_RECOVER_FACTORS, NULL);
}

static void training_adapters_lowers_the_loss(void **state) {
    (void)state;
    loss_falls_in(NMLP_RECOVER_LORA, NULL);
}

/* bf16 operands, f32 sums and master weights: what a CPU with tiles does. */
static void training_with_rounded_products_lowers_the_loss(void **state) {
    (void)state;
    loss_falls_in(NMLP_RECOVER_FACTORS, "amx-emu");
}

/* Hidden states of the teacher, kept layer by layer, must be those its whole pass has: imitating itself costs nothing.
 */
static void matching_a_model_with_itself_costs_nothing(void **state) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.teacher = &s.student;
    s.options.match = 1;
    s.options.steps = 1;
    s.options.isa = "ref"; /* teacher and student in the same arithmetic */
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    assert_true(fabs(report.loss_first) < 4e-6); /* 64 roundings in the sums of a row */
    nmlp_recover_report_fini(&report);
    s.options.teacher = &s.teacher;
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    double matched = report.loss_first;
    nmlp_recover_report_fini(&report);
    s.options.match = 0;
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    assert_true(matched > report.loss_first + 0.01);
    nmlp_recover_report_fini(&report);
    setup_close(&s);
}

/* Loss of the last of three steps; `shift` makes another text of it. */
static double loss_on(setup *s, double explore, int32_t shift) {
    nmlp_recover_report report;
    nmlp_err err;
    for (int i = 0; i < N_IDS; i++) s->ids[i] = (s->ids[i] + shift) % TINY_VOCAB;
    s->options.explore = explore;
    s->options.steps = 3;
    nmlp_assert_ok(train(s, "out", &report, &err), &err);
    double loss = report.loss_last;
    nmlp_recover_report_fini(&report);
    return loss;
}

/* With all of it by the teacher, training does not depend on the text; with none, or a part, it does. */
static void text_by_the_teacher_takes_its_share(void **state) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    assert_true(loss_on(&s, 1, 0) == loss_on(&s, 1, 5));
    double part = loss_on(&s, 0.5, 0);
    assert_true(part != loss_on(&s, 0.5, 5));
    assert_true(part != loss_on(&s, 0, 0));
    s.options.explore = 1.5;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_ARG, "explore", NULL);
    s.options.explore = 0.5;
    s.options.teacher = NULL;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_ARG, "explore", NULL);
    setup_close(&s);
}

/* Everything outside the MLP keeps its bytes, shapes stay, factors change. */
static void only_factors_change(void **state) {
    static setup s;
    char path[PATH_BYTES + 32];
    nmlp_model out;
    nmlp_err err;
    int changed = 0;
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        setup_open(&s, NMLP_DTYPE_BF16);
        s.options.mode = (nmlp_recover_mode)mode;
        s.options.teacher = NULL;
        s.options.rate = 1e-2;
        memset(s.ids, 0, sizeof s.ids); /* a text that is easily learnt, so that the best step is not the first */
        for (int i = 0; i < N_IDS; i++) s.ids[i] = i % 7;
        train_ok(&s, "out");
        path_in(&s, path, "out");
        nmlp_assert_ok(nmlp_model_open(&out, path, &err), &err);
        assert_int_equal(out.checkpoint.n_tensors, s.student.checkpoint.n_tensors);
        for (size_t i = 0; i < out.checkpoint.n_tensors; i++) {
            const nmlp_named_tensor *a = &s.student.checkpoint.tensors[i];
            const nmlp_named_tensor *b = nmlp_checkpoint_find(&out.checkpoint, a->name);
            assert_non_null(b);
            assert_int_equal(b->view.dtype, NMLP_DTYPE_BF16);
            assert_int_equal(nmlp_view_bytes(&a->view), nmlp_view_bytes(&b->view));
            bool same = memcmp(a->view.data, b->view.data, nmlp_view_bytes(&a->view)) == 0;
            if (!strstr(a->name, ".mlp."))
                assert_true(same);
            else
                changed += !same;
        }
        nmlp_model_close(&out);
        setup_close(&s);
    }
    assert_int_equal(changed, 2 * TINY_LAYERS * 6);
}

static void result_does_not_depend_on_threads(void **state) {
    static setup s;
    nmlp_err err;
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    train_ok(&s, "alone");
    nmlp_assert_ok(nmlp_pool_create(&s.options.pool, 3, &err), &err);
    train_ok(&s, "three");
    assert_same_output(&s, "alone", "three");
    nmlp_pool_destroy(s.options.pool);
    s.options.pool = NULL;
    setup_close(&s);
}

/* Says stop after so many calls. */
static bool stop_after(void *ctx, const char *stage, double done, double total, const char *unit) {
    int *left = ctx;
    (void)stage;
    (void)done;
    (void)total;
    (void)unit;
    return (*left)-- > 0;
}

static void resumed_run_ends_in(nmlp_recover_mode mode) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    setup_open(&s, NMLP_DTYPE_BF16);
    s.options.mode = mode;
    train_ok(&s, "whole");
    for (int steps = 2; steps <= 7; steps += 5) {
        int left = steps;
        nmlp_progress progress = {.update = stop_after, .ctx = &left};
        s.options.progress = &progress;
        s.options.resume = steps > 2;
        nmlp_assert_fails(train(&s, "parts", &report, &err), &err, NMLP_E_INTERRUPTED, "stopped after step", NULL);
    }
    s.options.progress = NULL;
    s.options.resume = true;
    nmlp_assert_ok(train(&s, "parts", &report, &err), &err);
    assert_int_equal(report.steps, 12);
    nmlp_recover_report_fini(&report);
    assert_same_output(&s, "whole", "parts");
    setup_close(&s);
}

static void interrupted_run_resumes_to_the_same_bytes(void **state) {
    (void)state;
    resumed_run_ends_in(NMLP_RECOVER_FACTORS);
    resumed_run_ends_in(NMLP_RECOVER_LORA);
}

static void state_of_another_run_is_refused_and_kept(void **state) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    int left = 2;
    nmlp_progress progress = {.update = stop_after, .ctx = &left};
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.progress = &progress;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_INTERRUPTED, "step 3", NULL);
    s.options.progress = NULL;
    s.options.resume = true;
    s.options.rate = 1e-3;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_UNSUPPORTED, "another model, teacher, text", NULL);
    s.options.rate = 3e-3;
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    nmlp_recover_report_fini(&report);
    setup_close(&s);
}

static void state_that_is_cut_short_is_refused(void **state) {
    static setup s;
    char path[PATH_BYTES + 64];
    nmlp_recover_report report;
    nmlp_err err;
    nmlp_str bytes;
    int left = 2;
    nmlp_progress progress = {.update = stop_after, .ctx = &left};
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.progress = &progress;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_INTERRUPTED, "step 3", NULL);
    s.options.progress = NULL;
    s.options.resume = true;
    snprintf(path, sizeof path, "%s/out.recover.partial/state", s.dir);
    nmlp_str_init(&bytes);
    nmlp_assert_ok(nmlp_file_read(&bytes, path, 1 << 28, &err), &err);
    nmlp_test_write_file(path, bytes.data, bytes.len - 1);
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_FORMAT, "damaged", NULL);
    nmlp_test_write_file(path, bytes.data, 10);
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_FORMAT, "damaged", NULL);
    nmlp_test_write_file(path, bytes.data, bytes.len);
    nmlp_assert_ok(train(&s, "out", &report, &err), &err);
    nmlp_recover_report_fini(&report);
    nmlp_str_fini(&bytes);
    setup_close(&s);
}

static void loss_that_is_not_finite_stops_with_the_best_weights(void **state) {
    static setup s;
    char path[PATH_BYTES + 32];
    nmlp_recover_report report;
    nmlp_model out;
    nmlp_err err;
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.rate = 1e30;
    s.options.teacher = NULL;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_NUMERIC, "step", NULL);
    assert_non_null(strstr(err.hint, "lower `rate`"));
    path_in(&s, path, "out");
    nmlp_assert_ok(nmlp_model_open(&out, path, &err), &err);
    nmlp_assert_ok(nmlp_model_check_finite(&out, NULL, NULL, &err), &err);
    nmlp_model_close(&out);
    setup_close(&s);
}

/* What the log says must be what was kept: the step of the least held-out perplexity, and no more than `patience`
 * evaluations after it. */
static void assert_best_of_log_was_kept(const nmlp_recover_report *report, const nmlp_recover_options *o) {
    int64_t best = 0;
    for (int64_t i = 1; i < report->n_log; i++)
        if (report->log[i].heldout_ppl < report->log[best].heldout_ppl) best = i; /* false where it was not evaluated */
    assert_int_equal(report->best_step, best);
    assert_true(fabs(report->heldout_ppl_after - report->log[best].heldout_ppl) <= 1e-9 * report->heldout_ppl_after);
    assert_true(report->heldout_ppl_after <= report->heldout_ppl_before);
    assert_true(report->stopped_early == (report->steps < o->steps));
    if (report->stopped_early) assert_int_equal(report->steps, best + o->patience * o->eval_every);
}

/* With a high rate random text gets worse at some step, and which one is a matter of rounding. With a rate that changes
 * no weight nothing gets better, so that patience ends after two evaluations. */
static void best_weights_win_and_patience_ends_the_run(void **state) {
    static const double rates[] = {0.3, 1e-30};
    (void)state;
    for (int i = 0; i < 2; i++) {
        static setup s;
        nmlp_recover_report report;
        nmlp_err err;
        setup_open(&s, NMLP_DTYPE_F32);
        s.options.rate = rates[i];
        s.options.teacher = NULL;
        s.options.steps = 60;
        s.options.eval_every = 5;
        s.options.patience = 2;
        nmlp_assert_ok(train(&s, "out", &report, &err), &err);
        assert_best_of_log_was_kept(&report, &s.options);
        if (i == 1) assert_int_equal(report.steps, 10);
        nmlp_recover_report_fini(&report);
        setup_close(&s);
    }
}

static void model_without_factors_is_refused(void **state) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    char out[PATH_BYTES + 32];
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    path_in(&s, out, "out");
    nmlp_assert_fails(nmlp_recover(&s.teacher, s.ids, N_IDS, out, &s.options, &report, &err), &err, NMLP_E_UNSUPPORTED,
                      "no MLP matrix", NULL);
    setup_close(&s);
}

static void context_beyond_the_model_is_refused(void **state) {
    static setup s;
    nmlp_recover_report report;
    nmlp_err err;
    (void)state;
    setup_open(&s, NMLP_DTYPE_F32);
    s.options.context = TINY_CONTEXT + 1;
    nmlp_assert_fails(train(&s, "out", &report, &err), &err, NMLP_E_LIMIT, "context is 129", "128", NULL);
    setup_close(&s);
}

/* The built-in model, badly factorised, taught by itself. */
static void built_in_model_recovers(void **state) {
    static const char source[] = NMLP_TEST_ROOT "/models/tiny";
    char student_dir[PATH_BYTES], out[PATH_BYTES + 8];
    nmlp_model student, teacher;
    nmlp_tokenizer *tokenizer;
    nmlp_recover_report report;
    nmlp_recover_options o = nmlp_recover_defaults();
    nmlp_ids ids;
    nmlp_str text;
    nmlp_err err;
    (void)state;
    nmlp_test_mkdtemp(student_dir, sizeof student_dir);
    truncated_model_write(source, student_dir, 64);
    nmlp_assert_ok(nmlp_model_open(&student, student_dir, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&teacher, source, &err), &err);
    nmlp_ids_init(&ids);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, NMLP_TEST_ROOT "/models/tiny/calib.txt", 1 << 24, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_load(&tokenizer, source, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_encode(tokenizer, text.data, text.len < 60000 ? text.len : 60000, NMLP_BOS_NONE,
                                         false, &ids, &err),
                   &err);
    o.teacher = &teacher;
    o.steps = 16;
    o.batch = 2;
    o.context = 64;
    o.rate = 1e-3;
    o.warmup = 2;
    o.eval_every = 8;
    o.heldout = 4;
    snprintf(out, sizeof out, "%s/out", student_dir);
    nmlp_assert_ok(nmlp_pool_create(&o.pool, 2, &err), &err);
    nmlp_assert_ok(nmlp_recover(&student, ids.data, (int64_t)ids.len, out, &o, &report, &err), &err);
    if (!(report.loss_last < 0.8 * report.loss_first) || !(report.heldout_ppl_after < 0.7 * report.heldout_ppl_before))
        fail_msg("loss %g to %g, held-out perplexity %g to %g", report.loss_first, report.loss_last,
                 report.heldout_ppl_before, report.heldout_ppl_after);
    nmlp_recover_report_fini(&report);
    nmlp_pool_destroy(o.pool);
    nmlp_tokenizer_destroy(tokenizer);
    nmlp_str_fini(&text);
    nmlp_ids_fini(&ids);
    nmlp_model_close(&student);
    nmlp_model_close(&teacher);
    nmlp_test_rmdir(student_dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_factors_lowers_the_loss),
        cmocka_unit_test(training_adapters_lowers_the_loss),
        cmocka_unit_test(training_with_rounded_products_lowers_the_loss),
        cmocka_unit_test(matching_a_model_with_itself_costs_nothing),
        cmocka_unit_test(text_by_the_teacher_takes_its_share),
        cmocka_unit_test(only_factors_change),
        cmocka_unit_test(result_does_not_depend_on_threads),
        cmocka_unit_test(interrupted_run_resumes_to_the_same_bytes),
        cmocka_unit_test(state_of_another_run_is_refused_and_kept),
        cmocka_unit_test(state_that_is_cut_short_is_refused),
        cmocka_unit_test(loss_that_is_not_finite_stops_with_the_best_weights),
        cmocka_unit_test(best_weights_win_and_patience_ends_the_run),
        cmocka_unit_test(model_without_factors_is_refused),
        cmocka_unit_test(context_beyond_the_model_is_refused),
        cmocka_unit_test(built_in_model_recovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
