/* Multiple choice: packed and shared runs against plain ones, the arithmetic of accuracy, and log-likelihoods of
 * another program. */
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "eval/choice.h"
#include "eval/choice_encode.h"
#include "engine/logprob.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

#define TINY NMLP_TEST_ROOT "/models/tiny"

static void load_rows(nmlp_questions *q, const char *task, const char *text) {
    nmlp_task_rows rows;
    nmlp_err err;
    nmlp_assert_ok(nmlp_task_rows_init(&rows, text, strlen(text), "rows", &err), &err);
    nmlp_assert_ok(nmlp_questions_read(q, nmlp_task_find(task), &rows, &(nmlp_questions_options){0}, &err), &err);
    nmlp_task_rows_fini(&rows);
}

/* Choices that share tokens, one that is the beginning of another, single-token ones, differing numbers of them. */
static const char rows_text[] = "{\"question\":\"The old house stood at the end of\",\"choices\":[\"the lane\",\"the "
                                "lane, and nobody came\",\"a hill\"],\"gold\":0}\n"
                                "{\"question\":\"It was\",\"choices\":[\"he\",\"she\"],\"gold\":1}\n"
                                "{\"question\":\"Which is a number?\",\"choices\":[\"12\",\"house\",\"1234 and "
                                "more\",\"tea\",\"12\"],\"gold\":2}\n";

/* The definition, one sequence at a time: log-softmax in long double of the engine's logits. */
static double plain_loglik(const loaded_engine *l, const nmlp_tokenizer *t, const nmlp_question_choice *c) {
    nmlp_ids context, whole;
    nmlp_str text;
    nmlp_err err;
    double sum = 0;
    int64_t vocab = l->model.config.vocab;
    nmlp_ids_init(&context);
    nmlp_ids_init(&whole);
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s%s", c->context, c->continuation);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, c->context, strlen(c->context), NMLP_BOS_NONE, false, &context, &err),
                   &err);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text.data, text.len, NMLP_BOS_NONE, false, &whole, &err), &err);
    float *logits = loaded_engine_logits(l, whole.data, (int64_t)whole.len, 0);
    for (size_t i = context.len; i < whole.len; i++) {
        const float *row = logits + (int64_t)(i - 1) * vocab;
        long double total = 0;
        for (int64_t v = 0; v < vocab; v++) total += expl((long double)row[v]);
        sum += (double)((long double)row[whole.data[i]] - logl(total));
    }
    nmlp_mem_free(logits);
    nmlp_str_fini(&text);
    nmlp_ids_fini(&context);
    nmlp_ids_fini(&whole);
    return sum;
}

static void check_against_plain(const char *task, const char *rows) {
    loaded_engine l;
    nmlp_tokenizer *t;
    nmlp_questions q;
    nmlp_choice_result r;
    nmlp_err err;
    nmlp_assert_ok(nmlp_tokenizer_load(&t, TINY, &err), &err);
    loaded_engine_open(&l, TINY, NULL, 2);
    load_rows(&q, task, rows);
    nmlp_assert_ok(nmlp_choice_eval(&r, l.engine, t, &q, &(nmlp_choice_options){0}, &err), &err);
    assert_int_equal(r.n, q.n);
    assert_true(r.n_run < r.n_whole);
    for (size_t i = 0; i < q.n; i++) {
        for (int64_t c = 0; c < q.items[i].n_choices; c++) {
            double want = plain_loglik(&l, t, &q.items[i].choices[c]);
            double got = r.loglik[r.first[i] + c];
            if (!(fabs(got - want) <= 1e-4 * fabs(want))) /* f32 roundings of differently grouped rows */
                fail_msg("question %zu choice %d: %.9g, expected %.9g", i, (int)c, got, want);
        }
    }
    nmlp_choice_result_free(&r);
    nmlp_questions_free(&q);
    loaded_engine_close(&l);
    nmlp_tokenizer_destroy(t);
}

static void shared_and_packed_runs_give_the_plain_log_likelihoods(void **state) {
    (void)state;
    check_against_plain("openbookqa", rows_text);
    check_against_plain("arc_easy", rows_text);
}

static void partial_scoring_gives_the_plain_log_likelihoods(void **state) {
    (void)state;
    check_against_plain(
        "winogrande",
        "{\"question\":\"Sarah was a better surgeon than Maria so _ got the cases.\",\"choices\":[\"Sarah\","
        "\"Maria\"],\"gold\":0}\n{\"question\":\"John saw _ there.\",\"choices\":[\"the tall "
        "man\",\"him\"],\"gold\":1}\n");
}

/* As the harness's pairs: "It was  " and " he" are "It was" and "   he". The whole is encoded as before. */
static void white_space_at_the_end_of_a_context_is_scored(void **state) {
    nmlp_tokenizer *t;
    nmlp_questions with, without;
    nmlp_encoded a, b;
    nmlp_ids context;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_tokenizer_load(&t, TINY, &err), &err);
    load_rows(&with, "openbookqa", "{\"question\":\"It was \\t\\u3000\",\"choices\":[\"he\",\"she\"],\"gold\":1}");
    load_rows(&without, "openbookqa", "{\"question\":\"It was\",\"choices\":[\"he\",\"she\"],\"gold\":1}");
    nmlp_assert_ok(nmlp_encoded_create(&a, &with, t, NMLP_BOS_TEMPLATE, 512, NULL, &err), &err);
    nmlp_assert_ok(nmlp_encoded_create(&b, &without, t, NMLP_BOS_TEMPLATE, 512, NULL, &err), &err);
    assert_int_equal(a.sequences[0].score, b.sequences[0].score);
    assert_true(a.sequences[0].n > b.sequences[0].n);
    nmlp_ids_init(&context);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, "It was", 6, NMLP_BOS_NONE, false, &context, &err), &err);
    assert_int_equal(a.sequences[0].score, context.len);
    nmlp_ids_fini(&context);
    nmlp_encoded_destroy(&a);
    nmlp_encoded_destroy(&b);
    nmlp_questions_free(&with);
    nmlp_questions_free(&without);
    nmlp_tokenizer_destroy(t);
}

/* Llama 3's tokenizer adds its BOS (128000) by itself; a tokenizer without a template adds nothing. */
static void questions_begin_with_what_the_template_adds(void **state) {
    static const char dir[] = NMLP_TEST_SHARED "/data/tokenizers/llama3";
    nmlp_tokenizer *t;
    nmlp_questions q;
    nmlp_encoded e;
    nmlp_err err;
    (void)state;
    if (!nmlp_file_is_dir(dir)) skip();
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    load_rows(&q, "openbookqa", "{\"question\":\"It was\",\"choices\":[\"he\",\"she\"],\"gold\":1}");
    for (int bos = NMLP_BOS_NONE; bos <= NMLP_BOS_TEMPLATE; bos++) {
        nmlp_assert_ok(nmlp_encoded_create(&e, &q, t, (nmlp_bos)bos, 512, NULL, &err), &err);
        assert_int_equal(e.sequences[1].ids[0] == 128000, bos == NMLP_BOS_TEMPLATE);
        assert_int_equal(e.sequences[1].score, bos == NMLP_BOS_TEMPLATE ? 3 : 2);
        nmlp_encoded_destroy(&e);
    }
    nmlp_questions_free(&q);
    nmlp_tokenizer_destroy(t);
}

static void sequences_longer_than_the_model_are_cut_in_front_and_counted(void **state) {
    loaded_engine l;
    nmlp_tokenizer *t;
    nmlp_questions q;
    nmlp_encoded e;
    nmlp_choice_result r;
    nmlp_err err;
    nmlp_str text;
    (void)state;
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "{\"question\":\"");
    for (int i = 0; i < 800; i++) nmlp_str_puts(&text, "the house ");
    nmlp_str_puts(&text, "stood\",\"choices\":[\"there\",\"still\"],\"gold\":0}");
    nmlp_assert_ok(nmlp_tokenizer_load(&t, TINY, &err), &err);
    loaded_engine_open(&l, TINY, NULL, 2);
    load_rows(&q, "openbookqa", text.data);
    int64_t most = l.model.config.max_positions;
    nmlp_assert_ok(nmlp_encoded_create(&e, &q, t, NMLP_BOS_NONE, most, l.pool, &err), &err);
    assert_int_equal(e.n_truncated, 2);
    assert_int_equal(e.longest, most);
    assert_int_equal(e.sequences[0].n, most + 1);
    assert_int_equal(e.sequences[0].score, most); /* one token to score */
    nmlp_encoded_destroy(&e);
    nmlp_assert_ok(nmlp_choice_eval(&r, l.engine, t, &q, &(nmlp_choice_options){0}, &err), &err);
    assert_int_equal(r.n_truncated, 2);
    nmlp_choice_result_free(&r);
    nmlp_questions_free(&q);
    loaded_engine_close(&l);
    nmlp_tokenizer_destroy(t);
    nmlp_str_fini(&text);
}

static bool stop(void *ctx, const char *stage, double done, double total, const char *unit) {
    (void)stage;
    (void)unit;
    *(double *)ctx = done / total;
    return false;
}

static void a_caller_that_asks_to_stop_is_obeyed(void **state) {
    loaded_engine l;
    nmlp_tokenizer *t;
    nmlp_questions q;
    nmlp_choice_result r;
    nmlp_err err;
    double done = 0;
    nmlp_progress progress = {.update = stop, .ctx = &done};
    (void)state;
    nmlp_assert_ok(nmlp_tokenizer_load(&t, TINY, &err), &err);
    loaded_engine_open(&l, TINY, NULL, 1);
    load_rows(&q, "openbookqa", rows_text);
    nmlp_assert_fails(nmlp_choice_eval(&r, l.engine, t, &q, &(nmlp_choice_options){.progress = &progress}, &err), &err,
                      NMLP_E_INTERRUPTED, "stopped", NULL);
    assert_true(done > 0 && done <= 1);
    nmlp_questions_free(&q);
    loaded_engine_close(&l);
    nmlp_tokenizer_destroy(t);
}

/* By hand: bytes 1, 4, 2 and loglik -3, -4, -5 give -3, -1, -2.5 a byte. */
static void acc_and_acc_norm_are_counted_by_hand(void **state) {
    nmlp_question_choice choices[] = {{"", "", 1}, {"", "", 4}, {"", "", 2}, {"", "", 3}, {"", "", 3}};
    nmlp_question items[] = {{.choices = choices, .n_choices = 3, .gold = 1},
                             {.choices = choices + 3, .n_choices = 2, .gold = 0}};
    nmlp_questions q = {.items = items, .n = 2};
    int64_t pred[2], norm[2], first[] = {0, 3, 5};
    double loglik[] = {-3, -4, -5, -6, -6};
    nmlp_choice_result r = {.n = 2, .pred = pred, .pred_norm = norm, .first = first, .loglik = loglik};
    (void)state;
    nmlp_choice_count(&r, &q);
    assert_int_equal(pred[0], 0);
    assert_int_equal(norm[0], 1);
    assert_int_equal(pred[1], 0); /* a tie goes to the first */
    assert_true(r.acc == 0.5 && r.acc_norm == 1);
    assert_true(fabs(r.acc_stderr - 0.5) < 1e-15); /* sqrt(0.25 / 1) */
    assert_true(r.acc_norm_stderr == 0);
}

/* ---- log-likelihoods by another program (../shared/models/small/choice_expected.json) ---- */

#ifndef __has_feature
#define __has_feature(x) 0
#endif
/* Questions of each set: the rest is for runs by hand, for time; sanitizers make each some twenty times slower. */
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
enum { FIRST = 2 };
#else
enum { FIRST = 20 };
#endif

static void compare_question(const nmlp_choice_result *r, int64_t i, const nmlp_json *want, int64_t pred,
                             const char *set) {
    double best = -INFINITY, second = -INFINITY;
    int64_t c = r->first[i];
    for (const nmlp_json *v = nmlp_json_first(want); v; v = nmlp_json_next(v), c++) {
        double x = nmlp_json_number(v);
        if (!(fabs(r->loglik[c] - x) <= 1e-2 * fabs(x)))
            fail_msg("%s question %d choice %d: %g, expected %g", set, (int)i, (int)(c - r->first[i]), r->loglik[c], x);
        second = x > best ? best : fmax(second, x);
        best = fmax(best, x);
    }
    assert_int_equal(c, r->first[i + 1]);
    bool near_tie = best - second < 1e-2 * fabs(best);
    if (r->pred[i] != pred && !near_tie)
        fail_msg("%s question %d: chose %d, expected %d", set, (int)i, (int)r->pred[i], (int)pred);
}

static void compare_set(const loaded_engine *l, const nmlp_tokenizer *t, const nmlp_json *sets, const char *set,
                        const char *file) {
    char path[1024];
    nmlp_questions q;
    nmlp_choice_result r;
    nmlp_err err;
    assert_non_null(nmlp_test_shared_path(path, sizeof path, file));
    nmlp_assert_ok(nmlp_questions_load(&q, nmlp_task_find(set), path, &(nmlp_questions_options){.limit = FIRST}, &err),
                   &err);
    nmlp_assert_ok(nmlp_choice_eval(&r, l->engine, t, &q, &(nmlp_choice_options){0}, &err), &err);
    const nmlp_json *want = nmlp_json_get(sets, set);
    const nmlp_json *loglik = nmlp_json_first(nmlp_json_get(want, "loglik"));
    const nmlp_json *pred = nmlp_json_first(nmlp_json_get(want, "pred"));
    const nmlp_json *norm = nmlp_json_first(nmlp_json_get(want, "pred_norm"));
    int same_norm = 0;
    for (int64_t i = 0; i < FIRST; i++) {
        compare_question(&r, i, loglik, (int64_t)nmlp_json_number(pred), set);
        same_norm += r.pred_norm[i] == (int64_t)nmlp_json_number(norm);
        loglik = nmlp_json_next(loglik);
        pred = nmlp_json_next(pred);
        norm = nmlp_json_next(norm);
    }
    assert_int_equal(same_norm, FIRST); /* none of these is a near tie */
    nmlp_choice_result_free(&r);
    nmlp_questions_free(&q);
}

static void seven_sets_match_another_program(void **state) {
    static const char *const sets[][2] = {
        {"arc_easy", "data/choice/arc_easy_test.jsonl"},     {"arc_challenge", "data/choice/arc_challenge_test.jsonl"},
        {"hellaswag", "data/choice/hellaswag_val.jsonl"},    {"piqa", "data/choice/piqa_valid.jsonl"},
        {"openbookqa", "data/choice/openbookqa_test.jsonl"}, {"winogrande", "data/choice/winogrande_dev.jsonl"},
        {"mathqa", "data/choice/mathqa_test.jsonl"},
    };
    char dir[1024], path[1100];
    loaded_engine l;
    nmlp_tokenizer *t;
    nmlp_json_doc doc;
    nmlp_err err;
    (void)state;
    if (!nmlp_test_shared_path(dir, sizeof dir, "models/small")) skip();
    snprintf(path, sizeof path, "%s/choice_expected.json", dir);
    nmlp_assert_ok(nmlp_json_load(&doc, path, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    loaded_engine_open(&l, dir, NULL, 2);
    for (size_t i = 0; i < 7; i++) compare_set(&l, t, nmlp_json_get(doc.root, "results"), sets[i][0], sets[i][1]);
    loaded_engine_close(&l);
    nmlp_tokenizer_destroy(t);
    nmlp_json_free(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_and_packed_runs_give_the_plain_log_likelihoods),
        cmocka_unit_test(partial_scoring_gives_the_plain_log_likelihoods),
        cmocka_unit_test(white_space_at_the_end_of_a_context_is_scored),
        cmocka_unit_test(questions_begin_with_what_the_template_adds),
        cmocka_unit_test(sequences_longer_than_the_model_are_cut_in_front_and_counted),
        cmocka_unit_test(a_caller_that_asks_to_stop_is_obeyed),
        cmocka_unit_test(acc_and_acc_norm_are_counted_by_hand),
        cmocka_unit_test(seven_sets_match_another_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
