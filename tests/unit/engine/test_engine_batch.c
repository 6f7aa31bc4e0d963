/* Random schedules of a batch against each sequence alone: admissions, forks, truncations, closings and steps of any
 * rows change no bit of a sequence's logits, with any number of threads, with and without windows whose pages are
 * dropped. Pages that run out stop one sequence only.
 *
 * Arguments: the number of steps of a schedule, and a seed for another schedule. */
#include <stdlib.h>

#include "base/ints.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/batch.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

enum { CONTEXT = 700, SEQUENCES = 7, ROWS = 150, POSITIONS = 2000, STEPS = 250 };

static int n_steps = STEPS;
static uint64_t seed = 23;

struct text {
    bool open;
    int64_t n;
    int64_t n_planned; /* what it was opened for */
    int32_t ids[CONTEXT];
};

struct world {
    char dir[256];
    tiny_checkpoint c;
    loaded_engine alone; /* one thread */
    nmlp_session *session;
    loaded_engine l;
    nmlp_batch *batch;
    nmlp_rng rng;
    struct text texts[SEQUENCES];
    float logits[ROWS * TINY_VOCAB];
    int64_t n_rows, n_cached, n_full, n_checked, n_forgotten;
};

/* Keys of a family's configuration, and the family. */
static const char *const PLAIN[] = {"LlamaForCausalLM", ""};
static const char *const WINDOWS[] = {"MistralForCausalLM", ",\"sliding_window\":40"};
static const char *const SOME_WINDOWS[] = {
    "MinistralForCausalLM", ",\"sliding_window\":40,\"layer_types\":[\"sliding_attention\",\"full_attention\"]"};

static void open_world(struct world *w, int n_threads, nmlp_dtype dtype, const char *const family[2]) {
    nmlp_err err;
    nmlp_batch_options options = {
        .context = CONTEXT, .positions = POSITIONS, .max_sequences = SEQUENCES, .max_rows = ROWS};
    *w = (struct world){0};
    nmlp_rng_seed(&w->rng, seed);
    nmlp_test_mkdtemp(w->dir, sizeof w->dir);
    tiny_init(&w->c, 5);
    snprintf(w->c.config, sizeof w->c.config,
             "{\"architectures\":[\"%s\"],\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"vocab_size\":64,\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-5,"
             "\"tie_word_embeddings\":true%s}",
             family[0], family[1]);
    tiny_write(&w->c, w->dir, dtype);
    loaded_engine_open(&w->alone, w->dir, NULL, 1);
    nmlp_assert_ok(nmlp_session_create(&w->session, w->alone.engine, CONTEXT, 0, false, &err), &err);
    loaded_engine_open(&w->l, w->dir, NULL, n_threads);
    nmlp_assert_ok(nmlp_batch_create(&w->batch, w->l.engine, &options, &err), &err);
}

static void close_world(struct world *w) {
    nmlp_batch_destroy(w->batch);
    loaded_engine_close(&w->l);
    nmlp_session_destroy(w->session);
    loaded_engine_close(&w->alone);
    tiny_fini(&w->c);
    nmlp_test_rmdir(w->dir);
}

/* The last rows of a text that runs alone, as one piece. */
struct reference {
    int64_t first; /* position */
    float *logits;
};

static void keep_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t n) {
    const struct reference *r = ctx;
    int64_t skip = r->first > first ? r->first - first : 0;
    if (skip < n) nmlp_session_logits(session, rows + skip * TINY_HIDDEN, n - skip, r->logits);
}

static void check_alone(struct world *w, const struct text *t, int64_t n_logits, const float *got) {
    static float want[ROWS * TINY_VOCAB];
    nmlp_err err;
    struct reference reference = {.first = t->n - n_logits, .logits = want};
    nmlp_session_truncate(w->session, 0);
    nmlp_assert_ok(nmlp_session_append(w->session, t->ids, t->n, keep_rows, &reference, &err), &err);
    assert_memory_equal(got, want, (size_t)(n_logits * TINY_VOCAB) * sizeof *got);
    w->n_checked += n_logits;
}

/* Texts of few kinds, so that many begin alike. */
static void open_text(struct world *w) {
    struct text t = {.open = true};
    nmlp_err err;
    int32_t s;
    int64_t n = t.n_planned = 1 + nmlp_rng_below(&w->rng, CONTEXT / 2);
    int64_t kind = nmlp_rng_below(&w->rng, 3);
    int64_t common = nmlp_rng_below(&w->rng, CONTEXT / 2);
    for (int64_t i = 0; i < n; i++)
        t.ids[i] = (int32_t)(i < common ? (i * 7 + kind * 13) % TINY_VOCAB : nmlp_rng_below(&w->rng, TINY_VOCAB));
    nmlp_assert_ok(nmlp_batch_open(w->batch, t.ids, n, &s, &err), &err);
    t.n = nmlp_batch_length(w->batch, s);
    assert_true(t.n < n);
    w->n_cached += t.n;
    assert_false(w->texts[s].open);
    w->texts[s] = t;
}

/* Rows for some of the open sequences; those that can have no memory stay out. */
static void step(struct world *w) {
    nmlp_step_item items[SEQUENCES];
    nmlp_err err;
    int64_t n = 0, rows = 0, n_logits = 0;
    for (int32_t s = 0; s < SEQUENCES; s++) {
        struct text *t = &w->texts[s];
        int64_t most = ROWS - rows < CONTEXT - t->n ? ROWS - rows : CONTEXT - t->n;
        if (!t->open || most < 1 || nmlp_rng_below(&w->rng, 4) == 0) continue;
        int64_t some = nmlp_rng_below(&w->rng, 2) ? 1 : 1 + nmlp_rng_below(&w->rng, most);
        nmlp_status st = nmlp_batch_reserve(w->batch, s, some, &err);
        if (st != NMLP_OK) {
            assert_int_equal(st, NMLP_E_LIMIT);
            assert_non_null(strstr(err.message, "KV memory"));
            w->n_full++;
            continue;
        }
        for (int64_t i = nmlp_max(t->n, t->n_planned); i < t->n + some; i++)
            t->ids[i] = (int32_t)nmlp_rng_below(&w->rng, TINY_VOCAB);
        int64_t wanted = nmlp_rng_below(&w->rng, 3) == 0 ? nmlp_rng_below(&w->rng, some + 1) : 1;
        items[n++] = (nmlp_step_item){.sequence = s,
                                      .ids = t->ids + t->n,
                                      .n = some,
                                      .n_logits = wanted,
                                      .logits = w->logits + n_logits * TINY_VOCAB};
        t->n += some;
        rows += some;
        n_logits += wanted;
    }
    nmlp_assert_ok(nmlp_batch_step(w->batch, items, n, &err), &err);
    w->n_rows += rows;
    for (int64_t i = 0; i < n; i++) {
        const struct text *t = &w->texts[items[i].sequence];
        assert_int_equal(nmlp_batch_length(w->batch, items[i].sequence), t->n);
        if (items[i].n_logits > 0) check_alone(w, t, items[i].n_logits, items[i].logits);
    }
}

static void act(struct world *w) {
    int32_t s = (int32_t)nmlp_rng_below(&w->rng, SEQUENCES);
    struct text *t = &w->texts[s];
    nmlp_err err;
    switch (nmlp_rng_below(&w->rng, 10)) {
    case 0:
    case 1:
        for (int i = 0; i < SEQUENCES; i++) {
            if (w->texts[i].open) continue;
            open_text(w);
            return;
        }
        return;
    case 2:
        if (nmlp_rng_below(&w->rng, 2)) return;
        nmlp_batch_close(w->batch, s);
        t->open = false;
        return;
    case 3:
        if (!t->open) return;
        t->n = nmlp_rng_below(&w->rng, t->n + 1);
        nmlp_batch_truncate(w->batch, s, t->n);
        if (nmlp_batch_length(w->batch, s) == t->n) return;
        assert_int_equal(nmlp_batch_length(w->batch, s), 0); /* behind the window */
        t->n = 0;
        w->n_forgotten++;
        return;
    case 4: {
        int32_t child;
        int64_t n = t->open ? nmlp_rng_below(&w->rng, t->n + 1) : 0;
        if (nmlp_batch_fork(w->batch, s, n, &child, &err) != NMLP_OK) return;
        w->texts[child] = *t;
        w->texts[child].n = n;
        return;
    }
    default: step(w);
    }
}

static void check_schedule(int n_threads, nmlp_dtype dtype, const char *const family[2]) {
    static struct world w;
    open_world(&w, n_threads, dtype, family);
    for (int i = 0; i < n_steps; i++) act(&w);
    assert_true(w.n_rows > n_steps && w.n_cached > 0 && w.n_checked > n_steps); /* the schedule reached all of it */
    if (family == PLAIN) assert_true(w.n_full > 0 && w.n_forgotten == 0);
    close_world(&w);
}

static void random_schedules_change_no_bit(void **state) {
    (void)state;
    check_schedule(1, NMLP_DTYPE_BF16, PLAIN);
    check_schedule(3, NMLP_DTYPE_F32, PLAIN);
    check_schedule(2, NMLP_DTYPE_F32, WINDOWS);
    check_schedule(2, NMLP_DTYPE_F32, SOME_WINDOWS);
}

/* What two sequences ask for together does not fit: one is told so, the other goes on, and then there is room. */
static void a_full_pool_stops_one_sequence(void **state) {
    static struct world w;
    nmlp_err err;
    int32_t ids[CONTEXT] = {0}, a, b;
    float logits[TINY_VOCAB];
    (void)state;
    open_world(&w, 2, NMLP_DTYPE_F32, PLAIN);
    nmlp_batch_destroy(w.batch);
    nmlp_batch_options options = {.context = 600, .positions = 640, .max_sequences = 2};
    nmlp_assert_ok(nmlp_batch_create(&w.batch, w.l.engine, &options, &err), &err);
    for (int i = 0; i < CONTEXT; i++) ids[i] = (i * 5 + i / 64) % TINY_VOCAB;
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &a, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &b, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(w.batch, a, ids, 300, NULL, NULL, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(w.batch, b, ids + 1, 250, NULL, NULL, &err), &err);
    nmlp_assert_fails(nmlp_batch_append(w.batch, b, ids + 251, 10, NULL, NULL, &err), &err, NMLP_E_LIMIT, "640", "250",
                      NULL);
    assert_int_equal(nmlp_batch_length(w.batch, b), 250);
    nmlp_assert_ok(nmlp_batch_append(w.batch, a, ids + 300, 80, NULL, NULL, &err), &err);
    nmlp_batch_close(w.batch, a);
    nmlp_assert_ok(nmlp_batch_append(w.batch, b, ids + 251, 10, logits, NULL, &err), &err);
    struct text t = {.n = 260};
    memcpy(t.ids, ids + 1, 260 * sizeof *ids);
    memcpy(t.ids + 250, ids + 251, 10 * sizeof *ids);
    check_alone(&w, &t, 1, logits);
    nmlp_assert_fails(nmlp_batch_append(w.batch, b, ids, 341, NULL, NULL, &err), &err, NMLP_E_LIMIT, "341", "600",
                      NULL);
    close_world(&w);
}

/* Texts longer than all memory of layers with a window: behind it pages are given back. */
static void windows_need_no_more_than_themselves(void **state) {
    static struct world w;
    enum { N = 1020 };
    static int32_t ids[N];
    static float want[TINY_VOCAB];
    nmlp_err err;
    float logits[TINY_VOCAB];
    int32_t s;
    (void)state;
    open_world(&w, 2, NMLP_DTYPE_F32, WINDOWS);
    nmlp_batch_destroy(w.batch);
    nmlp_session_destroy(w.session);
    nmlp_batch_options options = {.context = N, .positions = 768, .max_sequences = 1, .max_rows = 50};
    nmlp_assert_ok(nmlp_batch_create(&w.batch, w.l.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_session_create(&w.session, w.alone.engine, N, 0, false, &err), &err);
    for (int i = 0; i < N; i++) ids[i] = (i * 5 + i / 64) % TINY_VOCAB;
    struct reference reference = {.first = N - 1, .logits = want};
    nmlp_assert_ok(nmlp_session_append(w.session, ids, N, keep_rows, &reference, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &s, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(w.batch, s, ids, N - 1, NULL, NULL, &err), &err);
    nmlp_assert_ok(nmlp_batch_append(w.batch, s, ids + N - 1, 1, logits, NULL, &err), &err);
    assert_memory_equal(logits, want, sizeof logits);
    nmlp_batch_truncate(w.batch, s, N - 20); /* a draft that was wrong */
    assert_int_equal(nmlp_batch_length(w.batch, s), N - 20);
    nmlp_assert_ok(nmlp_batch_append(w.batch, s, ids + N - 20, 20, logits, NULL, &err), &err);
    assert_memory_equal(logits, want, sizeof logits);
    int32_t child;
    nmlp_assert_fails(nmlp_batch_fork(w.batch, s, 100, &child, &err), &err, NMLP_E_LIMIT, NULL);
    nmlp_batch_truncate(w.batch, s, 100);
    assert_int_equal(nmlp_batch_length(w.batch, s), 0);
    close_world(&w);
}

static void wrong_calls_are_refused(void **state) {
    static struct world w;
    nmlp_err err;
    int32_t s, ids[4] = {1, 2, TINY_VOCAB, 3};
    (void)state;
    open_world(&w, 1, NMLP_DTYPE_F32, PLAIN);
    nmlp_batch_options far = {.context = 1025};
    nmlp_batch *none;
    nmlp_assert_fails(nmlp_batch_create(&none, w.l.engine, &far, &err), &err, NMLP_E_LIMIT, "context", "1024", NULL);
    assert_string_equal(err.field, "context");
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &s, &err), &err);
    nmlp_step_item items[] = {{.sequence = s, .ids = ids, .n = 1}, {.sequence = s, .ids = ids, .n = 1}};
    nmlp_assert_fails(nmlp_batch_step(w.batch, items, 2, &err), &err, NMLP_E_ARG, "twice", NULL);
    items[0].n = 3;
    nmlp_assert_fails(nmlp_batch_step(w.batch, items, 1, &err), &err, NMLP_E_ARG, "vocabulary", NULL);
    items[0] = (nmlp_step_item){.sequence = s, .ids = ids, .n = 1, .n_logits = 2};
    nmlp_assert_fails(nmlp_batch_step(w.batch, items, 1, &err), &err, NMLP_E_ARG, "logits", NULL);
    items[0] = (nmlp_step_item){.sequence = s + 1, .ids = ids, .n = 1};
    nmlp_assert_fails(nmlp_batch_step(w.batch, items, 1, &err), &err, NMLP_E_ARG, "not open", NULL);
    assert_int_equal(nmlp_batch_length(w.batch, s), 0);
    close_world(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_change_no_bit),
        cmocka_unit_test(a_full_pool_stops_one_sequence),
        cmocka_unit_test(windows_need_no_more_than_themselves),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    if (argc > 1) n_steps = atoi(argv[1]);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
