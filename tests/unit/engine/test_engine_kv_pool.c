/* The page pool against sequences that are plain arrays: whatever was shared, copied or dropped, the pages of a
 * sequence spell its text, or with a window the part of it that is seen. */
#include <string.h>

#include "base/ints.h"
#include "base/rng.h"
#include "engine/kv_pool.h"
#include "lib/testing.h"

enum { PAGE = 128, PAGES = 24, SEQUENCES = 6, CONTEXT = 5 * PAGE + 37, ROWS = 200, STEPS = 20000 };

struct text {
    bool open;
    int64_t n;
    int64_t n_most; /* since it was opened */
    int32_t ids[CONTEXT];
};

struct world {
    nmlp_kv_pool *pool;
    nmlp_rng rng;
    int32_t memory[PAGES][PAGE];
    struct text texts[SEQUENCES];
    int64_t window;
    int64_t n_shared, n_full, n_copies, n_dropped, n_behind;
};

static void copy(void *ctx, int32_t to, int32_t from, int64_t n) {
    struct world *w = ctx;
    assert_true(to != from);
    memset(w->memory[to], 0xff, sizeof w->memory[to]);
    memcpy(w->memory[to], w->memory[from], (size_t)n * sizeof w->memory[0][0]);
    w->n_copies++;
}

static struct world *new_world(int64_t n_pages, int64_t window) {
    static struct world w;
    nmlp_err err;
    w = (struct world){.window = window};
    nmlp_kv_pool_options o = {.page = PAGE,
                              .n_pages = n_pages,
                              .max_sequences = SEQUENCES,
                              .context = CONTEXT,
                              .window = window,
                              .span = PAGE,
                              .step = ROWS,
                              .copy = copy,
                              .ctx = &w};
    nmlp_assert_ok(nmlp_kv_pool_create(&w.pool, &o, &err), &err);
    nmlp_rng_seed(&w.rng, 17);
    return &w;
}

/* The first position that the token after n others sees. */
static int64_t first_seen(const struct world *w, int64_t n) {
    return w->window > 0 && n + 1 > w->window ? n + 1 - w->window : 0;
}

static void check(struct world *w) {
    for (int s = 0; s < SEQUENCES; s++) {
        const struct text *t = &w->texts[s];
        if (!t->open) continue;
        assert_int_equal(nmlp_kv_pool_length(w->pool, s), t->n);
        const int32_t *pages = nmlp_kv_pool_pages(w->pool, s);
        for (int64_t i = first_seen(w, t->n); i < t->n; i++)
            assert_int_equal(w->memory[pages[i / PAGE]][i % PAGE], t->ids[i]);
        w->n_dropped += t->n > 0 && pages[0] < 0;
    }
    nmlp_kv_pool_counts c = nmlp_kv_pool_count(w->pool);
    assert_int_equal(c.n_free + c.n_cached + c.n_used, c.n_pages);
}

/* False where the pool is used up. */
static bool append(struct world *w, int s, const int32_t *ids, int64_t n) {
    struct text *t = &w->texts[s];
    nmlp_err err;
    if (nmlp_kv_pool_reserve(w->pool, s, n, &err) != NMLP_OK) {
        assert_int_equal(err.code, NMLP_E_LIMIT);
        w->n_full++;
        return false;
    }
    const int32_t *pages = nmlp_kv_pool_pages(w->pool, s);
    for (int64_t i = 0; i < n; i++) {
        t->ids[t->n] = ids[i];
        w->memory[pages[t->n / PAGE]][t->n % PAGE] = ids[i];
        t->n++;
    }
    if (t->n > t->n_most) t->n_most = t->n;
    nmlp_kv_pool_append(w->pool, s, ids, n);
    return true;
}

/* Texts of few kinds, so that many begin alike. */
static int64_t make_text(struct world *w, int32_t *ids) {
    int64_t n = 1 + nmlp_rng_below(&w->rng, CONTEXT - 1);
    int64_t kind = nmlp_rng_below(&w->rng, 3);
    int64_t turn = nmlp_rng_below(&w->rng, CONTEXT);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i < turn ? 1000 * kind + i : nmlp_rng_below(&w->rng, 50));
    return n;
}

static void open_text(struct world *w, int s) {
    int32_t ids[CONTEXT];
    int64_t n_shared;
    int64_t n = make_text(w, ids);
    nmlp_kv_pool_open(w->pool, s, ids, n, &n_shared);
    assert_true(n_shared >= 0 && n_shared < n);
    w->texts[s] = (struct text){.open = true, .n = n_shared, .n_most = n_shared};
    memcpy(w->texts[s].ids, ids, (size_t)n_shared * sizeof *ids);
    w->n_shared += n_shared;
    for (int64_t done = n_shared, some; done < n; done += some) {
        some = w->window > 0 && n - done > ROWS ? ROWS : n - done;
        if (!append(w, s, ids + done, some)) return;
    }
}

static void truncate_text(struct world *w, int s, int64_t n) {
    struct text *t = &w->texts[s];
    t->n = nmlp_kv_pool_truncate(w->pool, s, n);
    assert_true(t->n == n || (t->n == 0 && w->window > 0));
    if (n >= t->n_most - NMLP_KV_POOL_REWIND) assert_int_equal(t->n, n);
}

static void act(struct world *w) {
    int s = (int)nmlp_rng_below(&w->rng, SEQUENCES);
    struct text *t = &w->texts[s];
    if (!t->open) {
        open_text(w, s);
        return;
    }
    switch (nmlp_rng_below(&w->rng, 8)) {
    case 0:
        nmlp_kv_pool_close(w->pool, s);
        t->open = false;
        return;
    case 1: truncate_text(w, s, t->n - nmlp_rng_below(&w->rng, nmlp_min(NMLP_KV_POOL_REWIND, t->n) + 1)); return;
    case 3: truncate_text(w, s, nmlp_rng_below(&w->rng, t->n + 1)); return;
    case 2: {
        int child = (int)nmlp_rng_below(&w->rng, SEQUENCES);
        if (w->texts[child].open) return;
        int64_t n = nmlp_rng_below(&w->rng, t->n + 1);
        if (!nmlp_kv_pool_fork(w->pool, s, n, child)) {
            w->n_behind++;
            return;
        }
        w->texts[child] = *t;
        w->texts[child].n = n;
        return;
    }
    default: {
        int32_t ids[ROWS];
        int64_t n = 1 + nmlp_rng_below(&w->rng, ROWS);
        if (n > CONTEXT - t->n) return;
        for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)nmlp_rng_below(&w->rng, 50);
        append(w, s, ids, n);
    }
    }
}

static void check_schedule(int64_t n_pages, int64_t window) {
    struct world *w = new_world(n_pages, window);
    for (int i = 0; i < STEPS; i++) {
        act(w);
        check(w);
    }
    assert_true(w->n_shared > 0 && w->n_copies > 0); /* the schedule reached them */
    assert_true(window > 0 ? w->n_dropped > 0 && w->n_behind > 0 : w->n_full > 0 && w->n_dropped == 0);
    for (int s = 0; s < SEQUENCES; s++)
        if (w->texts[s].open) nmlp_kv_pool_close(w->pool, s);
    assert_int_equal(nmlp_kv_pool_count(w->pool).n_used, 0);
    nmlp_kv_pool_destroy(w->pool);
}

static void pages_spell_the_texts_of_random_schedules(void **state) {
    (void)state;
    for (int64_t n_pages = 9; n_pages <= PAGES; n_pages += 15) {
        check_schedule(n_pages, 0);
        check_schedule(n_pages, 1);
        check_schedule(n_pages, 150);
    }
}

/* One sequence never holds more than its window, however long it gets, and the rest is there for others. */
static void pages_behind_the_window_are_given_back(void **state) {
    (void)state;
    struct world *w = new_world(5, 20);
    int32_t ids[CONTEXT];
    int64_t n_shared;
    for (int i = 0; i < CONTEXT; i++) ids[i] = i;
    nmlp_kv_pool_open(w->pool, 0, ids, CONTEXT, &n_shared);
    w->texts[0] = (struct text){.open = true};
    for (int64_t n = 0; n + 10 <= CONTEXT; n += 10) {
        assert_true(append(w, 0, ids + n, 10));
        check(w);
        int64_t first = n + 10 - NMLP_KV_POOL_REWIND + 1 - 20; /* seen, were the last tokens taken back */
        int64_t n_held = (n + 10 + PAGE - 1) / PAGE - (first > 0 ? first / PAGE : 0);
        assert_int_equal(nmlp_kv_pool_count(w->pool).n_used, n_held);
        assert_true(n_held <= 2);
    }
    nmlp_kv_pool_open(w->pool, 1, NULL, 0, &n_shared); /* the three pages that it does not hold */
    w->texts[1] = (struct text){.open = true};
    for (int64_t n = 0; n < 3 * PAGE; n += PAGE) {
        for (int i = 0; i < PAGE; i++) ids[i] = 5000 + (int32_t)n + i;
        assert_true(append(w, 1, ids, PAGE));
        check(w);
    }
    nmlp_kv_pool_destroy(w->pool);
}

static void least_recently_used_pages_go_first(void **state) {
    (void)state;
    struct world *w = new_world(3, 0);
    int32_t ids[PAGE + 1];
    int64_t n_shared;
    for (int kind = 0; kind < 3; kind++) { /* three texts of a page each fill the pool */
        for (int i = 0; i <= PAGE; i++) ids[i] = 1000 * kind + i;
        nmlp_kv_pool_open(w->pool, 0, ids, PAGE + 1, &n_shared);
        w->texts[0] = (struct text){.open = true};
        assert_true(append(w, 0, ids, PAGE));
        nmlp_kv_pool_close(w->pool, 0);
    }
    assert_int_equal(nmlp_kv_pool_count(w->pool).n_cached, 3);
    for (int i = 0; i <= PAGE; i++) ids[i] = i; /* the oldest is used again */
    nmlp_kv_pool_open(w->pool, 0, ids, PAGE + 1, &n_shared);
    assert_int_equal(n_shared, PAGE);
    nmlp_kv_pool_open(w->pool, 1, NULL, 0, &n_shared); /* and another takes a page */
    w->texts[1] = (struct text){.open = true};
    assert_true(append(w, 1, ids, 5));
    nmlp_kv_pool_close(w->pool, 0);
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i <= PAGE; i++) ids[i] = 1000 * kind + i;
        nmlp_kv_pool_open(w->pool, 0, ids, PAGE + 1, &n_shared);
        assert_int_equal(n_shared, kind == 1 ? 0 : PAGE);
        nmlp_kv_pool_close(w->pool, 0);
    }
    nmlp_kv_pool_destroy(w->pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_spell_the_texts_of_random_schedules),
        cmocka_unit_test(pages_behind_the_window_are_given_back),
        cmocka_unit_test(least_recently_used_pages_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
