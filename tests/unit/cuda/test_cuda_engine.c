/* The whole model on the GPU against the CPU engine in f32: logits of every position token by token and through
 * prefill, greedy text, refusals, sampling. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cuda/cuda.h"
#include "engine/backend.h"
#include "engine/generate.h"
#include "engine/rope_table.h"
#include "eval/perplexity.h"
#include "lib/gpu.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "model/preset.h"

enum { TOKENS_MAX = 200 };

/* A model on both sides. */
struct both {
    loaded_engine cpu;
    nmlp_cuda_engine *gpu; /* the device's own */
    nmlp_engine *on_gpu;   /* the same through the backend's table */
    int64_t vocab;
};

static void open_both(struct both *b, const char *dir) {
    nmlp_err err;
    loaded_engine_open(&b->cpu, dir, NULL, 0);
    nmlp_engine_options options = {.backend = nmlp_backend_cuda(), .pool = b->cpu.pool};
    nmlp_assert_ok(nmlp_cuda_engine_create(&b->gpu, &b->cpu.model, NULL, &err), &err);
    nmlp_assert_ok(nmlp_engine_create(&b->on_gpu, &b->cpu.model, &options, &err), &err);
    b->vocab = b->cpu.model.config.vocab;
}

static void close_both(struct both *b) {
    nmlp_engine_destroy(b->on_gpu);
    nmlp_cuda_engine_destroy(b->gpu);
    loaded_engine_close(&b->cpu);
}

static float *new_rope(const struct both *b, int64_t positions) {
    const nmlp_config *c = &b->cpu.model.config;
    float *rope = nmlp_mem_new((size_t)(positions * c->head_dim), sizeof *rope, NULL);
    nmlp_rope_table_fill(rope, &c->rope, positions, c->head_dim);
    return rope;
}

static nmlp_cuda_session *new_session(const struct both *b, int64_t context) {
    nmlp_cuda_session *session;
    nmlp_err err;
    float *rope = new_rope(b, context);
    nmlp_assert_ok(nmlp_cuda_session_create(&session, b->gpu, context, rope, &err), &err);
    nmlp_mem_free(rope);
    return session;
}

/* Largest difference over largest logit. The best token must be the same unless the CPU holds the two closer than twice
 * the tolerance. */
static void check_row(const float *got, const float *want, int64_t vocab, double tolerance, const char *what,
                      int64_t position) {
    double largest = 0;
    double worst = 0;
    for (int64_t i = 0; i < vocab; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        if (!isfinite(got[i]))
            fail_msg("%s position %lld: logit %lld is not finite", what, (long long)position, (long long)i);
    }
    if (!(worst <= tolerance * largest))
        fail_msg("%s position %lld: logits differ by %g of %g", what, (long long)position, worst, largest);
    int64_t a = nmlp_argmax(got, vocab);
    int64_t b = nmlp_argmax(want, vocab);
    if (a != b && want[b] - want[a] > 2 * tolerance * largest)
        fail_msg("%s position %lld: token %lld instead of %lld", what, (long long)position, (long long)a, (long long)b);
}

static void check_both_paths(const struct both *b, const int32_t *ids, int64_t n, double tolerance, const char *what) {
    static const int64_t prefixes[] = {2, 3, 7, 16, 33, 64, 65, 100};
    nmlp_err err;
    float *want = loaded_engine_logits(&b->cpu, ids, n, 0);
    float *got = nmlp_mem_new((size_t)b->vocab, sizeof *got, NULL);
    nmlp_cuda_session *session = new_session(b, n);
    for (int64_t i = 0; i < n; i++) {
        nmlp_assert_ok(nmlp_cuda_session_append(session, ids + i, 1, &err), &err);
        nmlp_assert_ok(nmlp_cuda_session_last_logits(session, got, &err), &err);
        check_row(got, want + i * b->vocab, b->vocab, tolerance, what, i);
    }
    for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0] && prefixes[p] < n; p++) {
        int64_t m = prefixes[p];
        nmlp_cuda_session_truncate(session, p % 2 ? m / 2 : 0); /* also continues what is cached */
        int64_t have = nmlp_cuda_session_length(session);
        if (p % 2) assert_int_equal(have, m / 2);
        nmlp_assert_ok(nmlp_cuda_session_append(session, ids + have, m - have, &err), &err);
        nmlp_assert_ok(nmlp_cuda_session_last_logits(session, got, &err), &err);
        check_row(got, want + (m - 1) * b->vocab, b->vocab, tolerance, what, m - 1);
        if (m + 1 > n) continue;
        nmlp_assert_ok(nmlp_cuda_session_append(session, ids + m, 1, &err), &err); /* a step on prefilled keys */
        nmlp_assert_ok(nmlp_cuda_session_last_logits(session, got, &err), &err);
        check_row(got, want + m * b->vocab, b->vocab, tolerance, what, m);
    }
    nmlp_cuda_session_destroy(session);
    nmlp_mem_free(got);
    nmlp_mem_free(want);
}

static void check_model(const char *dir, int64_t n, double tolerance) {
    struct both b;
    int32_t ids[TOKENS_MAX];
    nmlp_rng rng;
    open_both(&b, dir);
    nmlp_rng_seed(&rng, 5);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, b.vocab);
    check_both_paths(&b, ids, n, tolerance, dir);
    close_both(&b);
}

/* Weights of the fixtures are f32: rounding them to bf16 (2^-9 each, independent) and the activations likewise moves
 * logits by up to some 2^-7 of the largest; 2^-5 leaves room for depth. */
static void fixtures_match_the_cpu(void **state) {
    static const char *const names[] = {"fixtures/llama-gqa-tied", "fixtures/llama-mha-untied", "fixtures/qwen2-bias",
                                        "fixtures/qwen3-headdim", "models/stories260K/hf"};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    int n_there = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char dir[1024];
        if (!nmlp_test_shared_path(dir, sizeof dir, names[i])) continue;
        check_model(dir, 120, 0x1p-5);
        n_there++;
    }
    if (n_there == 0) skip();
}

static void tiny_matches_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    check_model(NMLP_TEST_ROOT "/models/tiny", TOKENS_MAX, 0x1p-5);
}

/* Odd sizes, factors of odd ranks, mixtures. */
static void write_factorised(tiny_checkpoint *c, char *dir, size_t dir_bytes) {
    tiny_init(c, 3);
    tiny_factorise(c, 0, "gate_proj", 7, NULL);
    tiny_factorise(c, 0, "up_proj", 11, NULL);
    tiny_factorise(c, 0, "down_proj", 5, NULL);
    tiny_factorise(c, 1, "up_proj", 9, NULL);
    tiny_mark_compressed(c);
    nmlp_test_mkdtemp(dir, dir_bytes);
    tiny_write(c, dir, NMLP_DTYPE_BF16);
}

static void factorised_checkpoints_match_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    tiny_checkpoint c;
    char dir[64];
    write_factorised(&c, dir, sizeof dir);
    check_model(dir, 100, 0x1p-5);
    nmlp_test_rmdir(dir);
    tiny_fini(&c);
}

/* Steps read tiles of codes (of FP8 the weights as bf16), prompts the same weights as bf16: both against the CPU. */
static void quantised_checkpoints_match_the_cpu(void **state) {
    static const struct {
        nmlp_dtype dtype;
        int group;
    } types[] = {{NMLP_DTYPE_Q8, 0}, {NMLP_DTYPE_Q4, 32}, {NMLP_DTYPE_Q4, 64}, {NMLP_DTYPE_FP8, 0}};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        tiny_checkpoint c;
        char dir[64];
        nmlp_test_mkdtemp(dir, sizeof dir);
        tiny_init(&c, 3);
        if (i) tiny_factorise(&c, 0, "gate_proj", 32, NULL);
        if (i) tiny_factorise(&c, 0, "up_proj", 64, NULL);
        if (i) tiny_mark_compressed(&c);
        tiny_write_quantised(&c, dir, types[i].dtype, types[i].group);
        check_model(dir, 60, 0x1p-5);
        nmlp_test_rmdir(dir);
        tiny_fini(&c);
    }
}

/* Several tiles in both directions, cut in chunks: a model of random weights. */
static void wider_quantised_models_match_the_cpu(void **state) {
    static const struct {
        nmlp_dtype dtype;
        int group;
    } types[] = {{NMLP_DTYPE_Q8, 0}, {NMLP_DTYPE_Q4, 32}, {NMLP_DTYPE_Q4, 64}};
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        nmlp_config config;
        nmlp_err err;
        char dir[300], root[256];
        int64_t params, bytes;
        nmlp_test_mkdtemp(root, sizeof root);
        snprintf(dir, sizeof dir, "%s/m", root);
        nmlp_assert_ok(nmlp_preset_find(&config, "llama-3.2-1b", &err), &err);
        config.hidden = 576;
        config.intermediate = 1600;
        config.n_heads = 9;
        config.n_kv_heads = 3;
        config.vocab = 3008;
        nmlp_synth_options options = {
            .tile = 32, .ratio = i == 1 ? 0.3 : 0, .n_layers = 3, .dtype = types[i].dtype, .group = types[i].group};
        nmlp_assert_ok(nmlp_synth_write(dir, &config, &options, &params, &bytes, &err), &err);
        check_model(dir, 100, 0x1p-5);
        nmlp_test_rmdir(root);
    }
}

/* Three choices of which two are of steps in one launch: the CPU's. */
static void check_few_choices(const char *dir) {
    struct both b;
    nmlp_err err;
    int32_t ids[5] = {5, 9};
    open_both(&b, dir);
    nmlp_cuda_session *session = new_session(&b, 5);
    nmlp_assert_ok(nmlp_cuda_session_append(session, ids, 1, &err), &err);
    nmlp_assert_ok(nmlp_cuda_session_append(session, ids + 1, 1, &err), &err);
    for (int i = 2; i < 5; i++) {
        nmlp_assert_ok(nmlp_cuda_session_next(session, 4 - i, &ids[i], &err), &err);
        nmlp_assert_ok(nmlp_cuda_session_append(session, &ids[i], 1, &err), &err);
    }
    float *want = loaded_engine_logits(&b.cpu, ids, 4, 0);
    for (int i = 2; i < 5; i++) assert_int_equal(ids[i], nmlp_argmax(want + (i - 1) * b.vocab, b.vocab));
    nmlp_mem_free(want);
    nmlp_cuda_session_destroy(session);
    close_both(&b);
}

/* Few enough for tools that follow every access to shared memory. */
static void few_steps_match_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    tiny_checkpoint c;
    char dir[64];
    write_factorised(&c, dir, sizeof dir);
    check_model(dir, 3, 0x1p-5);
    check_few_choices(dir);
    nmlp_test_rmdir(dir);
    tiny_fini(&c);
}

/* Texts of several lengths side by side, scored in one call, against the CPU's f32 perplexity of each alone: 1 % of the
 * nll per token. */
static void check_scores(const char *dir, int64_t longest) {
    int64_t lengths[] = {2, 3, 65, longest, 128, 17, longest - 1, 64};
    enum { N = sizeof lengths / sizeof lengths[0] };
    struct both b;
    nmlp_cuda_scorer *scorer;
    nmlp_cuda_text texts[N];
    float logprob[N][TOKENS_MAX];
    int32_t ids[N][TOKENS_MAX];
    nmlp_err err;
    nmlp_rng rng;
    double all_got = 0;
    double all_want = 0;
    open_both(&b, dir);
    float *rope = new_rope(&b, longest - 1);
    nmlp_assert_ok(nmlp_cuda_scorer_create(&scorer, b.gpu, longest - 1, rope, &err), &err);
    nmlp_mem_free(rope);
    nmlp_rng_seed(&rng, 9);
    for (int i = 0; i < N; i++) {
        for (int64_t j = 0; j < lengths[i]; j++) ids[i][j] = (int32_t)nmlp_rng_below(&rng, b.vocab);
        texts[i] = (nmlp_cuda_text){.ids = ids[i], .n = lengths[i], .logprob = logprob[i]};
        memset(logprob[i], 0xff, sizeof logprob[i]);
    }
    nmlp_assert_ok(nmlp_cuda_scorer_run(scorer, texts, N, &err), &err);
    for (int i = 0; i < N; i++) {
        nmlp_ppl_result want;
        nmlp_ppl_options whole = {.ctx = lengths[i]};
        double got = 0;
        nmlp_assert_ok(nmlp_perplexity_ids(&want, b.cpu.engine, ids[i], lengths[i], &whole, &err), &err);
        for (int64_t j = 0; j + 1 < lengths[i]; j++) got -= (double)logprob[i][j];
        if (!(fabs(got - want.nll_sum) <= 0.01 * want.nll_sum + 0.05))
            fail_msg("%s: text %d of %lld tokens: nll %g, the CPU says %g", dir, i, (long long)lengths[i], got,
                     want.nll_sum);
        all_got += got;
        all_want += want.nll_sum;
    }
    if (!(fabs(all_got - all_want) <= 0.005 * all_want))
        fail_msg("%s: nll %g in all, the CPU says %g", dir, all_got, all_want);
    ids[0][0] = -1;
    nmlp_assert_fails(nmlp_cuda_scorer_run(scorer, texts, N, &err), &err, NMLP_E_ARG, "vocabulary", NULL);
    texts[1].n = longest + 1;
    nmlp_assert_fails(nmlp_cuda_scorer_run(scorer, texts + 1, 1, &err), &err, NMLP_E_LIMIT, "can be scored", NULL);
    nmlp_cuda_scorer_destroy(scorer);
    close_both(&b);
}

static void scores_match_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    static const char *const names[] = {"models/stories260K/hf", "fixtures/qwen2-bias", "fixtures/qwen3-headdim"};
    tiny_checkpoint c;
    char dir[1024];
    write_factorised(&c, dir, sizeof dir);
    check_scores(dir, 128);
    nmlp_test_rmdir(dir);
    tiny_fini(&c);
    check_scores(NMLP_TEST_ROOT "/models/tiny", TOKENS_MAX);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (nmlp_test_shared_path(dir, sizeof dir, names[i])) check_scores(dir, TOKENS_MAX);
}

/* Perplexity in windows, the last of them short, and overlapping ones, as evaluation runs them. */
static void perplexity_matches_the_cpu(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    static const nmlp_ppl_options options[] = {{.ctx = 64, .keep_partial = true}, {.ctx = 100, .stride = 30}};
    enum { N = 1000 };
    struct both b;
    nmlp_session *none;
    int32_t ids[N];
    nmlp_err err;
    nmlp_rng rng;
    open_both(&b, NMLP_TEST_ROOT "/models/tiny");
    nmlp_rng_seed(&rng, 11);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, b.vocab / 8);
    for (int i = 0; i < 2; i++) {
        nmlp_ppl_result got;
        nmlp_ppl_result want;
        nmlp_assert_ok(nmlp_perplexity_ids(&got, b.on_gpu, ids, N, &options[i], &err), &err);
        nmlp_assert_ok(nmlp_perplexity_ids(&want, b.cpu.engine, ids, N, &options[i], &err), &err);
        assert_int_equal(got.n_scored, want.n_scored);
        assert_int_equal(got.n_covered, want.n_covered);
        assert_int_equal(got.n_run, want.n_run);
        if (!(fabs(got.nll - want.nll) <= 0.01 * want.nll)) fail_msg("nll %g, the CPU says %g", got.nll, want.nll);
    }
    nmlp_assert_fails(nmlp_session_create(&none, b.on_gpu, 10, 0, false, &err), &err, NMLP_E_UNSUPPORTED, "cuda", NULL);
    close_both(&b);
}

struct text {
    int32_t ids[TOKENS_MAX];
    int64_t n;
};

static bool append_id(void *ctx, int32_t id) {
    struct text *text = ctx;
    text->ids[text->n++] = id;
    return true;
}

static nmlp_generation_stats generate(const struct both *b, struct text *out, int64_t context, int64_t max_new,
                                      nmlp_sampling sampling) {
    static const int32_t prompt[] = {558, 717, 894, 300, 12};
    nmlp_generation_stats stats;
    nmlp_err err;
    nmlp_generation request = {
        .prompt = prompt, .n_prompt = 5, .max_new = max_new, .sampling = sampling, .on_token = append_id, .ctx = out};
    nmlp_batch_options options = {.context = context};
    nmlp_batch *batch;
    int32_t sequence;
    out->n = 0;
    nmlp_assert_ok(nmlp_batch_create(&batch, b->on_gpu, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_generate(batch, sequence, &request, &stats, &err), &err);
    nmlp_batch_destroy(batch);
    assert_int_equal(stats.n_generated, out->n);
    return stats;
}

/* Greedy text chosen on the device is greedy text chosen on the host from the device's logits, and repeats. */
static void greedy_text_is_the_best_token_each_time(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    struct both b;
    struct text a;
    struct text again;
    struct text host;
    open_both(&b, NMLP_TEST_ROOT "/models/tiny");
    generate(&b, &a, 200, 120, nmlp_sampling_greedy());
    generate(&b, &again, 200, 120, nmlp_sampling_greedy());
    nmlp_sampling through_host = nmlp_sampling_greedy();
    through_host.temperature = 1;
    through_host.top_k = 1;
    generate(&b, &host, 200, 120, through_host);
    assert_int_equal(a.n, 120);
    assert_memory_equal(a.ids, again.ids, 120 * sizeof a.ids[0]);
    assert_memory_equal(a.ids, host.ids, 120 * sizeof a.ids[0]);
    nmlp_generation_stats stats = generate(&b, &a, 20, 120, nmlp_sampling_greedy());
    assert_int_equal(stats.finish, NMLP_FINISH_CONTEXT);
    assert_int_equal(a.n, 16); /* 20 positions hold 5 + 15; the 16th is chosen but not run */
    close_both(&b);
}

static void check_same_logits(const struct both *b, nmlp_cuda_session *x, nmlp_cuda_session *y) {
    nmlp_err err;
    float *logits[2];
    nmlp_cuda_session *const sessions[] = {x, y};
    assert_int_equal(nmlp_cuda_session_length(x), nmlp_cuda_session_length(y));
    for (int i = 0; i < 2; i++) {
        logits[i] = nmlp_mem_new((size_t)b->vocab, sizeof *logits[i], NULL);
        nmlp_assert_ok(nmlp_cuda_session_last_logits(sessions[i], logits[i], &err), &err);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)b->vocab * sizeof *logits[0]);
    for (int i = 0; i < 2; i++) nmlp_mem_free(logits[i]);
}

/* One session lets the device run ahead, the other is told every token: they agree on choices, lengths and logits, also
 * where the text takes another turn. */
static void steps_ahead_change_nothing(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    static const int32_t prompt[] = {558, 717, 894};
    enum { TEXT = 30, CONTEXT = 3 + TEXT };
    struct both b;
    nmlp_err err;
    int32_t id;
    int32_t again;
    open_both(&b, NMLP_TEST_ROOT "/models/tiny");
    nmlp_cuda_session *ahead = new_session(&b, CONTEXT);
    nmlp_cuda_session *told = new_session(&b, CONTEXT);
    nmlp_assert_ok(nmlp_cuda_session_append(ahead, prompt, 3, &err), &err);
    nmlp_assert_ok(nmlp_cuda_session_append(told, prompt, 3, &err), &err);
    for (int i = 0; i < TEXT; i++) {
        nmlp_assert_ok(nmlp_cuda_session_next(ahead, 100, &id, &err), &err);
        nmlp_assert_ok(nmlp_cuda_session_next(ahead, 100, &again, &err), &err);
        assert_int_equal(id, again);
        nmlp_assert_ok(nmlp_cuda_session_next(told, 0, &again, &err), &err);
        assert_int_equal(id, again);
        if (i % 11 == 10) id = (id + 1) % (int32_t)b.vocab;
        nmlp_assert_ok(nmlp_cuda_session_append(ahead, &id, 1, &err), &err);
        nmlp_assert_ok(nmlp_cuda_session_append(told, &id, 1, &err), &err);
        assert_int_equal(nmlp_cuda_session_length(ahead), 3 + i + 1);
        if (i % 7 == 3) check_same_logits(&b, ahead, told);
        if (i == 20) { /* two tokens at once, in place of one and of what was run ahead */
            nmlp_assert_ok(nmlp_cuda_session_next(ahead, 100, &id, &err), &err);
            nmlp_cuda_session_truncate(ahead, 10);
            nmlp_cuda_session_truncate(told, 10);
            nmlp_assert_fails(nmlp_cuda_session_next(ahead, 1, &id, &err), &err, NMLP_E_ARG, "appended", NULL);
            nmlp_assert_ok(nmlp_cuda_session_append(ahead, prompt, 2, &err), &err);
            nmlp_assert_ok(nmlp_cuda_session_append(told, prompt, 2, &err), &err);
            check_same_logits(&b, ahead, told);
            break;
        }
    }
    nmlp_cuda_session_destroy(ahead);
    nmlp_cuda_session_destroy(told);
    close_both(&b);
}

/* Low temperature is greedy; seeds repeat and differ. */
static void temperature_draws_by_seed(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    struct both b;
    struct text greedy;
    struct text t[4];
    nmlp_sampling s = nmlp_sampling_greedy();
    open_both(&b, NMLP_TEST_ROOT "/models/tiny");
    generate(&b, &greedy, 200, 60, s);
    s.temperature = 1e-4;
    generate(&b, &t[0], 200, 60, s);
    assert_memory_equal(greedy.ids, t[0].ids, 60 * sizeof greedy.ids[0]);
    s.temperature = 1;
    for (int i = 0; i < 3; i++) {
        s.seed = (uint64_t)(i / 2);
        generate(&b, &t[1 + i], 200, 60, s);
    }
    assert_memory_equal(t[1].ids, t[2].ids, 60 * sizeof greedy.ids[0]);
    assert_memory_not_equal(t[1].ids, t[3].ids, 60 * sizeof greedy.ids[0]);
    close_both(&b);
}

static void bad_tokens_and_full_contexts_are_refused(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    struct both b;
    nmlp_err err;
    int32_t ids[12] = {1, 2, 3};
    open_both(&b, NMLP_TEST_ROOT "/models/tiny");
    nmlp_cuda_session *session = new_session(&b, 10);
    nmlp_assert_ok(nmlp_cuda_session_append(session, ids, 3, &err), &err);
    ids[1] = (int32_t)b.vocab;
    nmlp_assert_fails(nmlp_cuda_session_append(session, ids, 3, &err), &err, NMLP_E_ARG, "vocabulary", NULL);
    ids[1] = 2;
    nmlp_assert_fails(nmlp_cuda_session_append(session, ids, 8, &err), &err, NMLP_E_LIMIT, "10", "3", NULL);
    assert_int_equal(nmlp_cuda_session_length(session), 3);
    nmlp_cuda_session_destroy(session);
    nmlp_batch_options far = {.context = 1 << 30};
    nmlp_batch *batch;
    nmlp_assert_fails(nmlp_batch_create(&batch, b.on_gpu, &far, &err), &err, NMLP_E_LIMIT, "context", NULL);
    close_both(&b);
}

/* Refused before a device is looked for, so this runs without one too. */
static void wide_heads_are_refused(void **state) {
    (void)state;
    static const struct {
        int64_t n_heads;
        int64_t head_dim;
        const char *said;
    } cases[] = {{8, 256, "8 of 256"}, {200, 64, "200 of 64"}, {8, 20, "8 of 20"}};
    nmlp_cuda_info info;
    nmlp_err none;
    if (nmlp_cuda_probe(&info, &none) != NMLP_OK && strstr(none.message, "built without CUDA")) skip();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_model model = {0};
        nmlp_cuda_engine *engine;
        nmlp_err err;
        nmlp_assert_ok(nmlp_preset_find(&model.config, "llama-3.2-1b", &err), &err);
        model.config.n_heads = cases[i].n_heads;
        model.config.head_dim = cases[i].head_dim;
        model.config.score_scale = 1 / sqrt((double)cases[i].head_dim);
        model.config.rope_dim = cases[i].head_dim;
        nmlp_assert_fails(nmlp_cuda_engine_create(&engine, &model, NULL, &err), &err, NMLP_E_UNSUPPORTED,
                          "up to 128 columns", cases[i].said, NULL);
        assert_null(engine);
    }
}

/* The argument names the tests to run, with * and ?; none: all. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures_match_the_cpu),
        cmocka_unit_test(tiny_matches_the_cpu),
        cmocka_unit_test(factorised_checkpoints_match_the_cpu),
        cmocka_unit_test(quantised_checkpoints_match_the_cpu),
        cmocka_unit_test(wider_quantised_models_match_the_cpu),
        cmocka_unit_test(few_steps_match_the_cpu),
        cmocka_unit_test(scores_match_the_cpu),
        cmocka_unit_test(perplexity_matches_the_cpu),
        cmocka_unit_test(greedy_text_is_the_best_token_each_time),
        cmocka_unit_test(steps_ahead_change_nothing),
        cmocka_unit_test(temperature_draws_by_seed),
        cmocka_unit_test(bad_tokens_and_full_contexts_are_refused),
        cmocka_unit_test(wide_heads_are_refused),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
