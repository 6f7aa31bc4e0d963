/* The public functions of llm.h on models/tiny: each answer is compared with another way to the same figure. */
#define _DEFAULT_SOURCE /* symlink */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "lib/testing.h"
#include "neuronmlp/neuronmlp.h"

static const char tiny[] = NMLP_TEST_ROOT "/models/tiny";

static nmlp_llm *open_llm(const char *dir) {
    nmlp_err err;
    nmlp_llm *llm;
    nmlp_llm_options options;
    nmlp_llm_options_init(&options, sizeof options);
    options.device = "cpu";
    options.precision = "f32";
    options.n_threads = 2;
    nmlp_assert_ok(nmlp_llm_open(&llm, dir, &options, &err), &err);
    return llm;
}

static int n_forks;

static void count_fork(void) { n_forks++; }

static void opening_does_not_fork(void **state) {
    (void)state;
    assert_int_equal(pthread_atfork(count_fork, NULL, NULL), 0);
    nmlp_llm_close(open_llm(tiny));
    assert_int_equal(n_forks, 0);
}

static nmlp_llm_request greedy(int64_t max_new) {
    nmlp_llm_request r;
    nmlp_llm_request_init(&r, sizeof r);
    r.max_new = max_new;
    return r;
}

static nmlp_llm_result answer(nmlp_llm *llm, const nmlp_llm_request *r) {
    nmlp_err err;
    nmlp_llm_result result;
    nmlp_llm_result_init(&result, sizeof result);
    nmlp_assert_ok(nmlp_llm_run(llm, r, &result, &err), &err);
    return result;
}

struct heard {
    char text[4096];
    int32_t ids[256];
    double logprobs[256], best[256];
    int n;
    int tokens_left; /* on_cancel ends the answer when they are used up; -1: never */
};

static int hear_text(void *ctx, const char *text, size_t len) {
    struct heard *h = ctx;
    strncat(h->text, text, len);
    return 0;
}

static int hear_token(void *ctx, const nmlp_llm_token *token) {
    struct heard *h = ctx;
    h->ids[h->n] = token->id;
    h->best[h->n] = token->n_top ? token->top[0].logprob : (double)NAN;
    h->logprobs[h->n++] = token->logprob;
    for (int i = 1; i < token->n_top; i++) assert_true(token->top[i].logprob <= token->top[i - 1].logprob);
    return 0;
}

static int hear_cancel(void *ctx) {
    struct heard *h = ctx;
    return h->tokens_left >= 0 && h->tokens_left-- == 0;
}

static void text_ids_and_statistics_agree(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    struct heard h = {.tokens_left = -1};
    const int32_t *prompt;
    const char *text;
    size_t n, len;
    nmlp_llm_request r = greedy(20);
    r.prompt = "The old house";
    r.on_text = hear_text;
    r.on_token = hear_token;
    r.ctx = &h;
    r.fresh = 1;
    nmlp_llm_result result = answer(llm, &r);
    assert_int_equal(result.generated_tokens, 20);
    assert_int_equal(result.finish, NMLP_LLM_FINISH_LENGTH);
    assert_int_equal(h.n, 20);
    assert_true(isnan(h.logprobs[0]));
    assert_memory_equal(h.ids, result.ids, 20 * sizeof *h.ids);
    assert_string_equal(h.text, result.text);
    assert_true(result.ttft_ms > 0 && result.decode_ms > 0);
    assert_true(fabs(result.decode_tok_s - 19e3 / result.decode_ms) < 1e-6 * result.decode_tok_s);
    nmlp_assert_ok(nmlp_llm_detokenize(llm, h.ids, 20, &text, &len, &err), &err);
    assert_string_equal(text, h.text);
    assert_int_equal(len, strlen(text));
    nmlp_assert_ok(nmlp_llm_tokenize(llm, "The old house", 13, 0, &prompt, &n, &err), &err);
    assert_int_equal(n, result.prompt_tokens);
    /* The same prompt as ids. */
    int32_t copy[16];
    memcpy(copy, prompt, n * sizeof *copy);
    nmlp_llm_request by_ids = greedy(20);
    by_ids.ids = copy;
    by_ids.n_ids = n;
    by_ids.fresh = 1;
    assert_string_equal(answer(llm, &by_ids).text, h.text);
}

/* A model that drafts for itself proposes what it would say: everything is accepted, nothing changes. */
static void a_draft_does_not_change_the_answer(void **state) {
    nmlp_llm *alone = *state, *drafted = NULL;
    nmlp_err err;
    nmlp_llm_options options;
    char text[1024];
    nmlp_llm_request r = greedy(24);
    r.prompt = "The old house";
    r.fresh = 1;
    nmlp_llm_result plain = answer(alone, &r);
    assert_int_equal(plain.proposed_tokens, 0);
    snprintf(text, sizeof text, "%s", plain.text);
    nmlp_llm_options_init(&options, sizeof options);
    options.isa = "ref";
    options.precision = "f32";
    options.draft_dir = tiny;
    nmlp_assert_ok(nmlp_llm_open(&drafted, options.draft_dir, &options, &err), &err);
    nmlp_llm_result result = answer(drafted, &r);
    assert_string_equal(result.text, text);
    assert_true(result.proposed_tokens > 0);
    assert_int_equal(result.accepted_tokens, result.proposed_tokens);
    nmlp_llm_close(drafted);
    options.draft_dir = "/absent-model";
    assert_int_not_equal(nmlp_llm_open(&drafted, tiny, &options, &err), NMLP_OK);
    assert_null(drafted);
    assert_non_null(strstr(err.message, "/absent-model"));
}

/* A sampled token's log-probability is what scoring the whole text gives it, and greedy tokens are the likeliest. */
static void logprobs_of_tokens_are_those_of_scoring(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    struct heard h = {.tokens_left = -1};
    int32_t ids[64];
    double scores[64];
    const int32_t *prompt;
    size_t n;
    nmlp_llm_request r = greedy(12);
    r.prompt = "Astronomy is";
    r.temperature = 0.9;
    r.seed = 5;
    r.logprobs = 1;
    r.top_logprobs = 3;
    r.on_token = hear_token;
    r.ctx = &h;
    answer(llm, &r);
    nmlp_assert_ok(nmlp_llm_tokenize(llm, r.prompt, strlen(r.prompt), 0, &prompt, &n, &err), &err);
    memcpy(ids, prompt, n * sizeof *ids);
    memcpy(ids + n, h.ids, (size_t)h.n * sizeof *ids);
    nmlp_assert_ok(nmlp_llm_score(llm, ids, n + (size_t)h.n, scores, &err), &err);
    assert_true(isnan(scores[0]));
    for (int i = 0; i < h.n; i++) {
        /* f32 logits of about 20 through other row counts: a few ulps of 20 */
        assert_true(fabs(h.logprobs[i] - scores[n + (size_t)i]) < 1e-4);
        assert_true(h.logprobs[i] <= h.best[i] && h.best[i] < 0);
    }
    struct heard g = {.tokens_left = -1};
    r.temperature = 0;
    r.ctx = &g;
    answer(llm, &r);
    for (int i = 0; i < g.n; i++) assert_true(g.logprobs[i] == g.best[i]);
}

/* The softmax of the logits, by hand, gives the scores; the largest logit the greedy token. */
static void scores_are_the_log_softmax_of_logits(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    nmlp_llm_info info;
    const int32_t ids[] = {558, 717, 894, 262, 100};
    double scores[5];
    nmlp_llm_info_init(&info, sizeof info);
    nmlp_assert_ok(nmlp_llm_describe(llm, &info, &err), &err);
    assert_int_equal(info.vocab, 8192);
    assert_int_equal(info.n_layers, 4);
    assert_int_equal(info.context, 512);
    float *logits = malloc(5 * 8192 * sizeof *logits);
    nmlp_assert_ok(nmlp_llm_logits(llm, ids, 5, 0, logits, &err), &err);
    nmlp_assert_ok(nmlp_llm_score(llm, ids, 5, scores, &err), &err);
    for (int i = 0; i + 1 < 5; i++) {
        double sum = 0;
        for (int v = 0; v < 8192; v++) sum += exp((double)logits[i * 8192 + v]);
        assert_true(fabs((double)logits[i * 8192 + ids[i + 1]] - log(sum) - scores[i + 1]) < 1e-5);
    }
    float *last = malloc(8192 * sizeof *last);
    nmlp_assert_ok(nmlp_llm_logits(llm, ids, 5, 4, last, &err), &err);
    int best = 0;
    for (int v = 0; v < 8192; v++) {
        assert_true(fabsf(last[v] - logits[4 * 8192 + v]) < 1e-3f);
        if (last[v] > last[best]) best = v;
    }
    nmlp_llm_request r = greedy(1);
    r.ids = ids;
    r.n_ids = 5;
    assert_int_equal(answer(llm, &r).ids[0], best);
    free(logits);
    free(last);
}

static void perplexity_is_that_of_the_scores(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    nmlp_llm_perplexity_options o;
    nmlp_llm_perplexity_result p;
    static const char text[] = "The old house stood at the end of the road, and nobody had lived in it for years.";
    const int32_t *ids;
    double scores[128], sum = 0;
    size_t n;
    nmlp_llm_perplexity_options_init(&o, sizeof o);
    nmlp_llm_perplexity_result_init(&p, sizeof p);
    nmlp_assert_ok(nmlp_llm_tokenize(llm, text, strlen(text), 1, &ids, &n, &err), &err);
    int32_t copy[128];
    memcpy(copy, ids, n * sizeof *copy);
    o.context = (int64_t)n; /* one full window */
    nmlp_assert_ok(nmlp_llm_perplexity(llm, text, strlen(text), &o, &p, &err), &err);
    nmlp_assert_ok(nmlp_llm_score(llm, copy, n, scores, &err), &err);
    for (size_t i = 1; i < n; i++) sum -= scores[i];
    assert_int_equal(p.scored_tokens, n - 1);
    assert_true(fabs(p.nll - sum / (double)(n - 1)) < 1e-4);
    assert_true(fabs(p.ppl - exp(p.nll)) < 1e-6 * p.ppl);
}

/* Summed log-probability of the continuation's tokens, by nmlp_llm_score. */
static double continuation_score(nmlp_llm *llm, const char *context, const char *choice) {
    nmlp_err err;
    char text[256];
    int32_t ids[64];
    const int32_t *found;
    double scores[64], sum = 0;
    size_t n_context, n;
    nmlp_assert_ok(nmlp_llm_tokenize(llm, context, strlen(context), 0, &found, &n_context, &err), &err);
    snprintf(text, sizeof text, "%s %s", context, choice);
    nmlp_assert_ok(nmlp_llm_tokenize(llm, text, strlen(text), 0, &found, &n, &err), &err);
    assert_true(n > n_context && n <= 64);
    memcpy(ids, found, n * sizeof *ids);
    nmlp_assert_ok(nmlp_llm_score(llm, ids, n, scores, &err), &err);
    for (size_t i = n_context; i < n; i++) sum += scores[i];
    return sum;
}

static void accuracy_is_that_of_the_scores(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    static const char *const choices[] = {"the mat", "of of", "xq"};
    nmlp_llm_multiple_choice_options o;
    nmlp_llm_multiple_choice_result r;
    char dir[256], data[300], rows[512];
    int best = 0, best_norm = 0;
    double score[3];
    for (int i = 0; i < 3; i++) {
        score[i] = continuation_score(llm, "The cat sat on", choices[i]);
        if (score[i] > score[best]) best = i;
        if (score[i] / (double)strlen(choices[i]) > score[best_norm] / (double)strlen(choices[best_norm]))
            best_norm = i;
    }
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(data, sizeof data, "%s/questions.jsonl", dir);
    nmlp_llm_multiple_choice_options_init(&o, sizeof o);
    nmlp_llm_multiple_choice_result_init(&r, sizeof r);
    o.task = "openbookqa";
    o.data = data;
    for (int gold = 0; gold < 3; gold++) {
        snprintf(rows, sizeof rows,
                 "{\"question\": \"The cat sat on\", \"choices\": [\"the mat\", \"of of\", \"xq\"], \"gold\": %d}\n"
                 "{\"question\": \"The cat sat on\", \"choices\": [\"the mat\", \"of of\", \"xq\"], \"gold\": 0}\n",
                 gold);
        nmlp_assert_ok(nmlp_file_write_text(data, rows, strlen(rows), &err), &err);
        nmlp_assert_ok(nmlp_llm_multiple_choice(llm, &o, &r, &err), &err);
        assert_int_equal(r.n, 2);
        assert_true(fabs(r.acc - ((gold == best) + (best == 0)) / 2.0) < 1e-9);
        assert_true(fabs(r.acc_norm - ((gold == best_norm) + (best_norm == 0)) / 2.0) < 1e-9);
    }
    o.limit = 1;
    nmlp_assert_ok(nmlp_llm_multiple_choice(llm, &o, &r, &err), &err);
    assert_int_equal(r.n, 1);
    nmlp_test_rmdir(dir);
}

/* The second prompt is the first with its answer and more text: only the rest is computed, and the answer is that of a
 * session which has seen nothing. */
static void a_conversation_is_continued_without_computing_its_beginning(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    int32_t ids[64];
    char first[512], fresh[512];
    nmlp_llm_request r = greedy(10);
    r.ids = (const int32_t[]){558, 717, 894};
    r.n_ids = 3;
    r.fresh = 1;
    nmlp_llm_result a = answer(llm, &r);
    assert_int_equal(a.cached_tokens, 0);
    memcpy(ids, r.ids, 3 * sizeof *ids);
    memcpy(ids + 3, a.ids, 10 * sizeof *ids);
    ids[13] = 262;
    ids[14] = 100;
    nmlp_llm_request more = greedy(10);
    more.ids = ids;
    more.n_ids = 15;
    nmlp_llm_result b = answer(llm, &more);
    assert_int_equal(b.prompt_tokens, 15);
    assert_int_equal(b.cached_tokens, 12); /* the answer's last token was chosen, but never run */
    snprintf(first, sizeof first, "%s", b.text);
    more.fresh = 1;
    nmlp_llm_result c = answer(llm, &more);
    assert_int_equal(c.cached_tokens, 0);
    snprintf(fresh, sizeof fresh, "%s", c.text);
    assert_string_equal(first, fresh);
    /* The whole prompt again: its last token is run, for its logits. */
    more.fresh = 0;
    assert_int_equal(answer(llm, &more).cached_tokens, 14);
    /* Scoring uses the same sequence; what it leaves is known too. */
    double scores[15];
    nmlp_assert_ok(nmlp_llm_score(llm, ids, 15, scores, &err), &err);
    nmlp_llm_result d = answer(llm, &more);
    assert_int_equal(d.cached_tokens, 14);
    assert_string_equal(d.text, fresh);
}

static void stop_strings_end_the_answer_and_are_left_out(void **state) {
    nmlp_llm *llm = *state;
    struct heard h = {.tokens_left = -1};
    static const char *const stop[] = {"nowhere", "old ho"}; /* across tokens */
    nmlp_llm_request r = greedy(20);
    r.prompt = "The old house";
    r.stop = stop;
    r.n_stop = 2;
    r.on_text = hear_text;
    r.ctx = &h;
    nmlp_llm_request whole = greedy(20);
    whole.prompt = r.prompt;
    char all[512];
    snprintf(all, sizeof all, "%s", answer(llm, &whole).text);
    char *at = strstr(all, stop[1]);
    assert_non_null(at);
    *at = '\0';
    nmlp_llm_result result = answer(llm, &r);
    assert_int_equal(result.finish, NMLP_LLM_FINISH_STOP);
    assert_string_equal(result.text, all);
    assert_string_equal(h.text, all);
    assert_true(result.generated_tokens < 20);
}

static void a_callback_ends_the_answer(void **state) {
    nmlp_llm *llm = *state;
    struct heard h = {.tokens_left = 4};
    nmlp_llm_request r = greedy(50);
    r.prompt = "The old house";
    r.on_token = hear_token;
    r.on_cancel = hear_cancel;
    r.ctx = &h;
    nmlp_llm_result result = answer(llm, &r);
    assert_int_equal(result.finish, NMLP_LLM_FINISH_CALLER);
    assert_int_equal(result.generated_tokens, 4); /* asked once before the first */
    h = (struct heard){.tokens_left = 0};
    result = answer(llm, &r);
    assert_int_equal(result.finish, NMLP_LLM_FINISH_CALLER);
    assert_int_equal(result.generated_tokens, 0);
    assert_string_equal(result.text, "");
}

/* models/tiny with its two special tokens under ChatML's names. */
static void messages_are_written_in_the_chat_format(void **state) {
    (void)state;
    nmlp_err err;
    char dir[256], from[512], to[512];
    nmlp_str json;
    nmlp_str_init(&json);
    nmlp_test_mkdtemp(dir, sizeof dir);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/%s", tiny, files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(from, sizeof from, "%s/tokenizer.json", tiny);
    nmlp_assert_ok(nmlp_file_read(&json, from, 64 << 20, &err), &err);
    nmlp_str out;
    nmlp_str_init(&out);
    for (const char *at = nmlp_str_text(&json); *at;) {
        if (strncmp(at, "<|begin_of_text|>", 17) == 0) {
            nmlp_str_puts(&out, "<|im_start|>");
            at += 17;
        } else if (strncmp(at, "<|end_of_text|>", 15) == 0) {
            nmlp_str_puts(&out, "<|im_end|>");
            at += 15;
        } else {
            nmlp_str_putc(&out, *at++);
        }
    }
    snprintf(to, sizeof to, "%s/tokenizer.json", dir);
    nmlp_test_write_file(to, out.data, out.len);
    nmlp_str_fini(&out);
    nmlp_str_fini(&json);
    nmlp_llm *llm = open_llm(dir);
    static const nmlp_llm_message messages[] = {{"system", "Be short."}, {"user", "Hello <|im_end|>"}};
    const int32_t *ids;
    const char *text;
    size_t n, len;
    nmlp_assert_ok(nmlp_llm_tokenize_chat(llm, messages, 2, &ids, &n, &err), &err);
    int n_starts = 0, n_ends = 0;
    for (size_t i = 0; i < n; i++) {
        n_starts += ids[i] == 0;
        n_ends += ids[i] == 1;
    }
    assert_int_equal(n_starts, 3);
    assert_int_equal(n_ends, 2); /* the user's is text */
    int32_t copy[256];
    assert_true(n < 256);
    memcpy(copy, ids, n * sizeof *copy);
    nmlp_assert_ok(nmlp_llm_detokenize(llm, copy, n, &text, &len, &err), &err);
    assert_string_equal(text, "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nHello <|im_end|><|im_end|>\n"
                              "<|im_start|>assistant\n");
    nmlp_llm_request r = greedy(5);
    r.messages = messages;
    r.n_messages = 2;
    nmlp_llm_result result = answer(llm, &r);
    assert_int_equal(result.prompt_tokens, n);
    nmlp_llm_close(llm);
    nmlp_test_rmdir(dir);
}

/* ---- messages name fields ---- */

static void assert_names_a_field(nmlp_status st, const nmlp_err *err, const char *field) {
    assert_int_not_equal(st, NMLP_OK);
    if (strcmp(err->field, field) != 0) fail_msg("field \"%s\", not \"%s\": %s", err->field, field, err->message);
    assert_int_equal(strncmp(err->message, field, strlen(field)), 0);
    if (strstr(err->message, "--") || strstr(err->hint, "--")) fail_msg("%s / %s", err->message, err->hint);
}

static void wrong_values_of_options_are_named(void **state) {
    (void)state;
    nmlp_err err;
    nmlp_llm *llm;
    nmlp_llm_options o;
#define REFUSED(change, name)                                                                                          \
    nmlp_llm_options_init(&o, sizeof o);                                                                               \
    o.device = "cpu";                                                                                                  \
    change;                                                                                                            \
    assert_names_a_field(nmlp_llm_open(&llm, tiny, &o, &err), &err, name);                                             \
    assert_null(llm)
    REFUSED(o.device = "tpu", "device");
    REFUSED(o.precision = "int4", "precision");
    REFUSED(o.context = 9999, "context");
    REFUSED(o.context = -1, "context");
    REFUSED(o.n_threads = -1, "n_threads");
    REFUSED(o.n_threads = 100000, "n_threads");
#undef REFUSED
}

static void wrong_values_of_requests_are_named(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    static const char *const empty_stop[] = {"x", ""};
    static const nmlp_llm_message no_content[] = {{"user", NULL}};
#define REFUSED(change, name)                                                                                          \
    do {                                                                                                               \
        nmlp_llm_request r = greedy(4);                                                                                \
        r.prompt = "x";                                                                                                \
        change;                                                                                                        \
        assert_names_a_field(nmlp_llm_run(llm, &r, NULL, &err), &err, name);                                           \
    } while (0)
    REFUSED(r.temperature = -1, "temperature");
    REFUSED(r.temperature = (double)NAN, "temperature");
    REFUSED(r.top_k = -1, "top_k");
    REFUSED(r.top_p = 0, "top_p");
    REFUSED(r.top_p = 2, "top_p");
    REFUSED(r.min_p = 1, "min_p");
    REFUSED(r.repetition_penalty = 0, "repetition_penalty");
    REFUSED(r.max_new = 0, "max_new");
    REFUSED(r.top_logprobs = 21, "top_logprobs");
    REFUSED((r.stop = empty_stop, r.n_stop = 2), "stop");
    REFUSED((r.stop = empty_stop, r.n_stop = 17), "stop");
    REFUSED(r.prompt = NULL, "prompt");
    REFUSED(r.ids = (const int32_t[]){1}, "prompt");
    REFUSED((r.prompt = NULL, r.messages = no_content, r.n_messages = 1), "messages");
#undef REFUSED
    nmlp_llm_perplexity_options o;
    nmlp_llm_perplexity_result p;
    nmlp_llm_perplexity_result_init(&p, sizeof p);
    nmlp_llm_perplexity_options_init(&o, sizeof o);
    o.context = 9999;
    assert_names_a_field(nmlp_llm_perplexity(llm, "some text", 9, &o, &p, &err), &err, "context");
    nmlp_llm_perplexity_options_init(&o, sizeof o);
    o.stride = -3;
    assert_names_a_field(nmlp_llm_perplexity(llm, "some text", 9, &o, &p, &err), &err, "stride");
    nmlp_llm_multiple_choice_options c;
    nmlp_llm_multiple_choice_result a;
    nmlp_llm_multiple_choice_result_init(&a, sizeof a);
#define REFUSED(change, name)                                                                                          \
    do {                                                                                                               \
        nmlp_llm_multiple_choice_options_init(&c, sizeof c);                                                           \
        c.data = "/no/such";                                                                                           \
        change;                                                                                                        \
        assert_names_a_field(nmlp_llm_multiple_choice(llm, &c, &a, &err), &err, name);                                 \
    } while (0)
    REFUSED(c.task = NULL, "task");
    REFUSED((c.task = "piqa", c.task_file = "x"), "task");
    REFUSED(c.task = "pika", "task");
    REFUSED((c.task = "piqa", c.data = NULL), "data");
    REFUSED((c.task = "piqa", c.limit = -1), "limit");
    REFUSED((c.task = "piqa", c.bos = 2), "bos");
#undef REFUSED
}

/* Failures without a field: no flags either, and the session goes on. */
static void prompts_that_do_not_fit_are_refused_and_the_next_one_runs(void **state) {
    nmlp_llm *llm = *state;
    nmlp_err err;
    int32_t *many = calloc(600, sizeof *many);
    nmlp_llm_request r = greedy(4);
    r.ids = many;
    r.n_ids = 600;
    nmlp_assert_fails(nmlp_llm_run(llm, &r, NULL, &err), &err, NMLP_E_LIMIT, "600", "512", NULL);
    assert_null(strstr(err.hint, "--"));
    r.n_ids = 3;
    many[1] = 8192;
    nmlp_assert_fails(nmlp_llm_run(llm, &r, NULL, &err), &err, NMLP_E_ARG, "8192", NULL);
    double scores[3];
    nmlp_assert_fails(nmlp_llm_score(llm, many, 3, scores, &err), &err, NMLP_E_ARG, "8192", NULL);
    nmlp_assert_fails(nmlp_llm_score(llm, many, 0, scores, &err), &err, NMLP_E_ARG, "ids", NULL);
    many[1] = 717;
    assert_int_equal(answer(llm, &r).generated_tokens, 4);
    free(many);
}

static int open_once(void **state) {
    *state = open_llm(tiny);
    return 0;
}

static int close_once(void **state) {
    nmlp_llm_close(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_does_not_fork),
        cmocka_unit_test(text_ids_and_statistics_agree),
        cmocka_unit_test(a_draft_does_not_change_the_answer),
        cmocka_unit_test(logprobs_of_tokens_are_those_of_scoring),
        cmocka_unit_test(scores_are_the_log_softmax_of_logits),
        cmocka_unit_test(perplexity_is_that_of_the_scores),
        cmocka_unit_test(accuracy_is_that_of_the_scores),
        cmocka_unit_test(a_conversation_is_continued_without_computing_its_beginning),
        cmocka_unit_test(stop_strings_end_the_answer_and_are_left_out),
        cmocka_unit_test(a_callback_ends_the_answer),
        cmocka_unit_test(messages_are_written_in_the_chat_format),
        cmocka_unit_test(wrong_values_of_options_are_named),
        cmocka_unit_test(wrong_values_of_requests_are_named),
        cmocka_unit_test(prompts_that_do_not_fit_are_refused_and_the_next_one_runs),
    };
    return cmocka_run_group_tests(tests, open_once, close_once);
}
