/* Speculation against the target alone: greedy text is the same, sampled text has the same distribution. */
#include <math.h>

#include "base/mem.h"
#include "engine/generate.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

enum { NEW_MAX = 100, V = TINY_VOCAB };

struct world {
    char target_dir[256], draft_dir[256];
    loaded_engine target, draft;
    nmlp_batch *batch, *proposer;
};

/* The draft is the target with one matrix changed: right often, but not always. */
static void open_world(struct world *w, int64_t context) {
    nmlp_err err;
    tiny_checkpoint c;
    nmlp_batch_options options = {.context = context, .max_sequences = 2};
    nmlp_test_mkdtemp(w->target_dir, sizeof w->target_dir);
    nmlp_test_mkdtemp(w->draft_dir, sizeof w->draft_dir);
    tiny_init(&c, 5);
    tiny_write(&c, w->target_dir, NMLP_DTYPE_F32);
    tiny_tensor *t = tiny_find(&c, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) t->data[i] *= -6.0f;
    tiny_write(&c, w->draft_dir, NMLP_DTYPE_F32);
    tiny_fini(&c);
    loaded_engine_open(&w->target, w->target_dir, NULL, 1);
    loaded_engine_open(&w->draft, w->draft_dir, NULL, 1);
    nmlp_assert_ok(nmlp_batch_create(&w->batch, w->target.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_create(&w->proposer, w->draft.engine, &options, &err), &err);
}

static void close_world(struct world *w) {
    nmlp_batch_destroy(w->batch);
    nmlp_batch_destroy(w->proposer);
    loaded_engine_close(&w->target);
    loaded_engine_close(&w->draft);
    nmlp_test_rmdir(w->target_dir);
    nmlp_test_rmdir(w->draft_dir);
}

struct text {
    int32_t ids[2 * NEW_MAX];
    int64_t n;
    int64_t end; /* the caller stops there; 0: not */
};

static bool on_token(void *ctx, int32_t id) {
    struct text *t = ctx;
    t->ids[t->n++] = id;
    return t->n != t->end;
}

/* Two generations in one sequence, the second of which continues the first. */
static nmlp_generation_stats generate(struct world *w, nmlp_batch *draft, nmlp_generation g, struct text *out) {
    nmlp_generation_stats stats, more;
    nmlp_err err;
    int32_t sequence, next = 9;
    g.draft = draft;
    g.on_token = on_token;
    g.ctx = out;
    nmlp_assert_ok(nmlp_batch_open(w->batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_generate(w->batch, sequence, &g, &stats, &err), &err);
    assert_int_equal(out->n, stats.n_generated);
    int64_t length = nmlp_batch_length(w->batch, sequence);
    assert_true(length >= g.n_prompt && length <= g.n_prompt + out->n);
    if (stats.finish == NMLP_FINISH_LENGTH) {
        g.prompt = &next;
        g.n_prompt = 1;
        g.max_new = 5;
        nmlp_assert_ok(nmlp_generate(w->batch, sequence, &g, &more, &err), &err);
    }
    nmlp_batch_close(w->batch, sequence);
    return stats;
}

static void greedy_text_is_the_targets(void **state) {
    static const int64_t stop_ids[] = {17, 40};
    struct world w;
    int64_t n_proposed = 0, n_accepted = 0;
    int finishes[4] = {0};
    (void)state;
    open_world(&w, 90);
    for (int i = 0; i < 60; i++) {
        struct text plain = {.end = i % 4 == 3 ? 1 + i % 7 : 0}, spoken = plain;
        int32_t prompt[] = {i % V, (i * 5 + 3) % V, (i * 11 + 1) % V};
        nmlp_generation g = {.prompt = prompt,
                             .n_prompt = 3,
                             .max_new = 1 + i % 5 * 30,
                             .sampling = nmlp_sampling_greedy(),
                             .stop_ids = stop_ids,
                             .n_stop_ids = i % 3};
        nmlp_generation_stats want = generate(&w, NULL, g, &plain);
        nmlp_generation_stats got = generate(&w, w.proposer, g, &spoken);
        assert_int_equal(got.finish, want.finish);
        assert_int_equal(spoken.n, plain.n);
        assert_memory_equal(spoken.ids, plain.ids, (size_t)plain.n * sizeof plain.ids[0]);
        assert_int_equal(want.n_proposed, 0);
        assert_true(got.n_accepted <= got.n_proposed);
        n_proposed += got.n_proposed;
        n_accepted += got.n_accepted;
        finishes[got.finish]++;
    }
    assert_true(n_accepted > 0 && n_accepted < n_proposed); /* both ways were taken */
    for (int i = 0; i < 4; i++) assert_true(finishes[i] > 0);
    close_world(&w);
}

/* probs [V] of the token after ids. */
static void next_probs(struct world *w, const int32_t *ids, int64_t n, double temperature, double probs[V]) {
    float logits[V];
    nmlp_err err;
    int32_t sequence;
    double sum = 0;
    nmlp_assert_ok(nmlp_batch_open(w->batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(w->batch, sequence, ids, n, logits, NULL, &err), &err);
    nmlp_batch_close(w->batch, sequence);
    for (int i = 0; i < V; i++) sum += probs[i] = exp((double)logits[i] / temperature);
    for (int i = 0; i < V; i++) probs[i] /= sum;
}

/* The second token, the first that a draft proposes, over all that may stand before it. Chi-square of V - 1 degrees of
 * freedom has mean V - 1 and variance 2 (V - 1): six standard deviations. */
static void sampled_text_has_the_targets_distribution(void **state) {
    enum { DRAWS = 3000, TOKENS = 4 };
    static const double temperature = 0.7;
    static double first[V], second[V], expected[V];
    static int counts[V];
    struct world w;
    int32_t ids[3] = {11, 3};
    int64_t n_proposed = 0, n_accepted = 0;
    double chi2 = 0;
    (void)state;
    open_world(&w, 90);
    next_probs(&w, ids, 2, temperature, first);
    for (int a = 0; a < V; a++) {
        ids[2] = a;
        next_probs(&w, ids, 3, temperature, second);
        for (int b = 0; b < V; b++) expected[b] += DRAWS * first[a] * second[b];
    }
    for (int i = 0; i < DRAWS; i++) {
        struct text t = {0};
        nmlp_generation g = {.prompt = ids, .n_prompt = 2, .max_new = TOKENS, .sampling = nmlp_sampling_greedy()};
        g.sampling.temperature = temperature;
        g.sampling.seed = (uint64_t)i;
        g.on_token = on_token;
        g.ctx = &t;
        g.draft = w.proposer;
        nmlp_generation_stats stats;
        nmlp_err err;
        int32_t sequence;
        nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &sequence, &err), &err);
        nmlp_assert_ok(nmlp_generate(w.batch, sequence, &g, &stats, &err), &err);
        nmlp_batch_close(w.batch, sequence);
        assert_int_equal(t.n, TOKENS);
        counts[t.ids[1]]++;
        n_proposed += stats.n_proposed;
        n_accepted += stats.n_accepted;
    }
    assert_true(n_accepted > 0 && n_accepted < n_proposed);
    for (int i = 0; i < V; i++) chi2 += (counts[i] - expected[i]) * (counts[i] - expected[i]) / expected[i];
    if (!(chi2 < V - 1 + 6 * sqrt(2.0 * (V - 1)))) fail_msg("chi-square %g", chi2);
    close_world(&w);
}

static void a_repetition_penalty_is_refused(void **state) {
    struct world w;
    nmlp_err err;
    int32_t prompt = 1, sequence;
    nmlp_generation_stats stats;
    (void)state;
    open_world(&w, 90);
    nmlp_generation g = {
        .prompt = &prompt, .n_prompt = 1, .max_new = 3, .sampling = nmlp_sampling_greedy(), .draft = w.proposer};
    g.sampling.repetition_penalty = 1.2;
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_fails(nmlp_generate(w.batch, sequence, &g, &stats, &err), &err, NMLP_E_ARG, "repetition_penalty", NULL);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_the_targets),
        cmocka_unit_test(sampled_text_has_the_targets_distribution),
        cmocka_unit_test(a_repetition_penalty_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
