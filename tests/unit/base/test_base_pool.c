/* Threads: every one takes part once, nobody passes a barrier early, sleepers wake, and small work stays small. */
#define _GNU_SOURCE /* usleep */
#include "base/pool.h"

#include <unistd.h>

#include "base/cpus.h"
#include "lib/testing.h"

enum { MOST = 20, ROUNDS = 300 };

struct visits {
    atomic_int of[MOST];
    atomic_int wrong;
    nmlp_pool *pool;
    int n_barriers;
};

static void visit(void *ctx, int thread, int n_threads) {
    struct visits *v = ctx;
    (void)n_threads;
    atomic_fetch_add(&v->of[thread], 1);
}

static void every_thread_runs_a_job_once(void **state) {
    (void)state;
    for (int n = 1; n <= MOST; n += 3) {
        nmlp_pool *pool;
        nmlp_err err = {0};
        nmlp_assert_ok(nmlp_pool_create(&pool, n, &err), &err);
        struct visits v = {.pool = pool};
        int expected[MOST] = {0};
        for (int round = 0; round < ROUNDS; round++) {
            int width = 1 + round * 7 % n;
            nmlp_pool_run_on(pool, width, visit, &v);
            for (int t = 0; t < width; t++) expected[t]++;
            if (round % 100 == 50) usleep(1000); /* all of them sleep */
            for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&v.of[t]), expected[t]);
        }
        nmlp_pool_run(pool, visit, &v);
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&v.of[t]), expected[t] + 1);
        nmlp_pool_run_on(pool, 1000, visit, &v);
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&v.of[t]), expected[t] + 2);
        nmlp_pool_destroy(pool);
    }
}

/* Parts of any size, one of which is not there: jobs of any width follow each other as before. */
static void threads_that_fetch_ahead_miss_no_job(void **state) {
    static char memory[1 << 16];
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    int n = nmlp_cpus_usable() > 1 ? nmlp_cpus_usable() : 2;
    n = n < MOST ? n : MOST;
    nmlp_assert_ok(nmlp_pool_create(&pool, n, &err), &err);
    struct visits v = {.pool = pool};
    nmlp_pool_ahead ahead = {.parts = {{.memory = memory, .unit_bytes = 1000, .n_units = 65},
                                       {.memory = memory, .unit_bytes = 64, .n_units = 3},
                                       {.memory = NULL, .unit_bytes = 1 << 20, .n_units = 1000}},
                             .thread_bytes = 64 << 20};
    int expected[MOST] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        int width = 1 + round * 7 % n;
        ahead.n_parts = round % (NMLP_POOL_AHEAD_PARTS + 1);
        nmlp_pool_set_ahead(pool, round % 20 ? &ahead : NULL);
        nmlp_pool_run_on(pool, width, visit, &v);
        for (int t = 0; t < width; t++) expected[t]++;
        if (round % 100 == 50) usleep(1000);
        for (int t = 0; t < n; t++) assert_int_equal(atomic_load(&v.of[t]), expected[t]);
    }
    nmlp_pool_destroy(pool);
}

/* After the k-th barrier everybody has counted k times at least, and nobody twice more. */
static void count_and_wait(void *ctx, int thread, int n_threads) {
    struct visits *v = ctx;
    for (int k = 1; k <= v->n_barriers; k++) {
        atomic_fetch_add(&v->of[thread], 1);
        if (k % 50 == thread % 50) usleep(300); /* longer than anybody looks */
        nmlp_pool_barrier(v->pool, thread, n_threads);
        for (int t = 0; t < n_threads; t++) {
            int seen = atomic_load(&v->of[t]);
            if (seen < k || seen > k + 1) atomic_fetch_add(&v->wrong, 1);
        }
    }
}

static void nobody_passes_a_barrier_early(void **state) {
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    nmlp_assert_ok(nmlp_pool_create(&pool, MOST, &err), &err);
    const int widths[] = {2, 3, 4, 5, 8, 16, 17, MOST};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        struct visits v = {.pool = pool, .n_barriers = 60};
        nmlp_pool_run_on(pool, widths[i], count_and_wait, &v);
        assert_int_equal(atomic_load(&v.wrong), 0);
        for (int t = 0; t < widths[i]; t++) assert_int_equal(atomic_load(&v.of[t]), 60);
    }
    nmlp_pool_destroy(pool);
}

struct marks {
    atomic_int of[1000];
    atomic_int threads; /* bits */
};

static void mark(void *ctx, int64_t begin, int64_t end, int thread) {
    struct marks *m = ctx;
    atomic_fetch_or(&m->threads, 1 << thread);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&m->of[i], 1);
}

static void a_loop_covers_its_range_on_no_more_threads_than_pieces(void **state) {
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    nmlp_assert_ok(nmlp_pool_create(&pool, 7, &err), &err);
    for (int64_t n = 1; n < 1000; n = n * 3 + 1) {
        for (int64_t grain = 1; grain < 2 * n; grain = grain * 4 + 1) {
            struct marks m = {.threads = 0};
            nmlp_pool_for(pool, n, grain, mark, &m);
            for (int64_t i = 0; i < 1000; i++) assert_int_equal(atomic_load(&m.of[i]), i < n);
            int64_t pieces = (n + grain - 1) / grain;
            if (pieces < 7) assert_int_equal(atomic_load(&m.threads) >> pieces, 0);
        }
    }
    nmlp_pool_destroy(pool);
}

static void work_gets_as_many_threads_as_it_is_worth(void **state) {
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    assert_int_equal(nmlp_pool_width(NULL, 1e9), 1);
    nmlp_assert_ok(nmlp_pool_create(&pool, 16, &err), &err);
    int before = 1;
    assert_int_equal(nmlp_pool_width(pool, 0), 1);
    assert_int_equal(nmlp_pool_width(pool, 1000), 1);
    for (double ns = 1000; ns < 1e9; ns *= 2) {
        int n = nmlp_pool_width(pool, ns);
        assert_true(n >= before && n <= 16);
        before = n;
    }
    assert_int_equal(before, 16);
    nmlp_pool_destroy(pool);
}

static void quotas_are_read(void **state) {
    (void)state;
    assert_int_equal(nmlp_cpus_of_quota("max 100000\n"), 0);
    assert_int_equal(nmlp_cpus_of_quota("200000 100000\n"), 2);
    assert_int_equal(nmlp_cpus_of_quota("250000 100000\n"), 3);
    assert_int_equal(nmlp_cpus_of_quota("1000 100000"), 1);
    assert_int_equal(nmlp_cpus_of_quota(""), 0);
    assert_int_equal(nmlp_cpus_of_quota("0 100000"), 0);
    assert_int_equal(nmlp_cpus_of_quota("9000000000000 1"), 0);
    assert_true(nmlp_cpus_usable() >= 1);
}

static void nodes_of_memory_are_found(void **state) {
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    assert_true(nmlp_cpus_list_has("0-3,8", 0) && nmlp_cpus_list_has("0-3,8\n", 3) && nmlp_cpus_list_has("0-3,8\n", 8));
    assert_false(nmlp_cpus_list_has("0-3,8", 4) || nmlp_cpus_list_has("0-3,8", 7) || nmlp_cpus_list_has("", 0));
    assert_false(nmlp_cpus_list_has("none", 0) || nmlp_cpus_list_has("5-", 7) || nmlp_cpus_list_has(",1", 1));
    int n = nmlp_cpus_nodes();
    assert_true(n >= 1);
    assert_false(nmlp_cpus_stay_on_node(n + 64) || nmlp_cpus_stay_on_node(-1));
    assert_int_equal(nmlp_pool_node(NULL, 0), 0);
    nmlp_assert_ok(nmlp_pool_create(&pool, nmlp_cpus_usable(), &err), &err);
    int before = 0;
    for (int t = 0; t < nmlp_pool_threads(pool); t++) {
        int node = nmlp_pool_node(pool, t);
        assert_true(node >= before && node <= before + 1 && node < n);
        before = node;
    }
    nmlp_pool_destroy(pool);
}

static void too_many_threads_are_refused(void **state) {
    nmlp_pool *pool;
    nmlp_err err = {0};
    (void)state;
    nmlp_assert_fails(nmlp_pool_create(&pool, 1025, &err), &err, NMLP_E_ARG, "1025", "1024", NULL);
    assert_null(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_a_job_once),
        cmocka_unit_test(threads_that_fetch_ahead_miss_no_job),
        cmocka_unit_test(nobody_passes_a_barrier_early),
        cmocka_unit_test(a_loop_covers_its_range_on_no_more_threads_than_pieces),
        cmocka_unit_test(work_gets_as_many_threads_as_it_is_worth),
        cmocka_unit_test(quotas_are_read),
        cmocka_unit_test(nodes_of_memory_are_found),
        cmocka_unit_test(too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
