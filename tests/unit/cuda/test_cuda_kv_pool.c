/* The KV pool's pages against a plain model of them: who holds which page, when pages are copied and given back. No GPU
 * is needed. */
#include <string.h>

#include "base/rng.h"
#include "cuda/batch/kv_pool.h"
#include "lib/testing.h"

enum { SEQUENCES = 6, CONTEXT = 5 * NMLP_CUDA_PAGE_POSITIONS + 7, PAGES = 12, STEPS = 20000 };

static int32_t *table_of(const nmlp_cuda_kv_pool *p, int s) { return p->tables + s * p->table_pages; }

static int64_t pages_of(int64_t length) { return (length + NMLP_CUDA_PAGE_POSITIONS - 1) / NMLP_CUDA_PAGE_POSITIONS; }

/* Contents of a pool: what every position of every page holds. */
struct memory {
    int32_t page[PAGES + SEQUENCES][NMLP_CUDA_PAGE_POSITIONS];
    int32_t text[SEQUENCES][CONTEXT]; /* what the sequence must find there */
    int64_t length[SEQUENCES];
};

static void check_counts(const nmlp_cuda_kv_pool *p) {
    int32_t users[PAGES + SEQUENCES] = {0};
    int64_t n_used = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t i = 0; i < p->n_held[s]; i++) users[table_of(p, s)[i]]++;
    for (int64_t i = 0; i < p->n_pages; i++) {
        assert_int_equal(users[i], p->n_users[i]);
        n_used += users[i] > 0;
    }
    assert_int_equal(n_used + p->n_free, p->n_pages);
}

static void check_texts(const nmlp_cuda_kv_pool *p, const struct memory *m) {
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t i = 0; i < m->length[s]; i++)
            assert_int_equal(m->page[table_of(p, s)[i / NMLP_CUDA_PAGE_POSITIONS]][i % NMLP_CUDA_PAGE_POSITIONS],
                             m->text[s][i]);
}

/* Appends n tokens as a step does; false: there was no room, and nothing has changed. */
static bool append(nmlp_cuda_kv_pool *p, struct memory *m, int s, int64_t n, int32_t value) {
    nmlp_cuda_page_copy copy;
    int64_t n_free = p->n_free;
    if (!nmlp_cuda_kv_pool_reserve(p, s, m->length[s], m->length[s] + n, &copy)) {
        assert_int_equal(p->n_free, n_free);
        return false;
    }
    if (copy.from >= 0) memcpy(m->page[copy.to], m->page[copy.from], sizeof m->page[copy.to]);
    for (int64_t i = 0; i < n; i++, m->length[s]++) {
        int64_t at = m->length[s];
        m->text[s][at] = value + (int32_t)i;
        m->page[table_of(p, s)[at / NMLP_CUDA_PAGE_POSITIONS]][at % NMLP_CUDA_PAGE_POSITIONS] = value + (int32_t)i;
    }
    return true;
}

static void random_schedules_keep_every_text(void **state) {
    static struct memory m;
    nmlp_cuda_kv_pool p;
    nmlp_err err;
    nmlp_rng rng;
    int n_refused = 0;
    int n_forked = 0;
    (void)state;
    memset(&m, 0, sizeof m);
    nmlp_rng_seed(&rng, 11);
    nmlp_assert_ok(nmlp_cuda_kv_pool_init(&p, PAGES * NMLP_CUDA_PAGE_POSITIONS, SEQUENCES, CONTEXT, &err), &err);
    for (int step = 0; step < STEPS; step++) {
        int s = (int)nmlp_rng_below(&rng, SEQUENCES);
        int other = (int)nmlp_rng_below(&rng, SEQUENCES);
        int64_t kind = (int64_t)nmlp_rng_below(&rng, 10);
        if (kind < 7) {
            int64_t n = 1 + (int64_t)nmlp_rng_below(&rng, kind < 4 ? 3 : 150);
            if (n > CONTEXT - m.length[s]) n = CONTEXT - m.length[s];
            if (n > 0) n_refused += !append(&p, &m, s, n, step * 256);
        } else if (kind == 7) {
            m.length[s] = (int64_t)nmlp_rng_below(&rng, (uint64_t)m.length[s] + 1);
            nmlp_cuda_kv_pool_truncate(&p, s, m.length[s]);
        } else if (kind == 8 && s != other) {
            nmlp_cuda_kv_pool_truncate(&p, other, 0);
            m.length[other] = (int64_t)nmlp_rng_below(&rng, (uint64_t)m.length[s] + 1);
            memcpy(m.text[other], m.text[s], sizeof m.text[s]);
            nmlp_cuda_kv_pool_share(&p, s, m.length[other], other);
            n_forked++;
        } else if (kind == 9) {
            nmlp_cuda_kv_pool_truncate(&p, s, 0);
            m.length[s] = 0;
        }
        assert_true(p.n_held[s] >= pages_of(m.length[s]));
        check_counts(&p);
        check_texts(&p, &m);
    }
    assert_true(n_refused > 0 && n_forked > 0);
    for (int s = 0; s < SEQUENCES; s++) nmlp_cuda_kv_pool_truncate(&p, s, 0);
    assert_int_equal(p.n_free, p.n_pages);
    nmlp_cuda_kv_pool_fini(&p);
}

static void changed_tables_are_the_ones_to_upload(void **state) {
    nmlp_cuda_kv_pool p;
    nmlp_cuda_page_copy copy;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_cuda_kv_pool_init(&p, PAGES * NMLP_CUDA_PAGE_POSITIONS, SEQUENCES, CONTEXT, &err), &err);
    assert_true(p.changed_begin >= p.changed_end);
    assert_true(nmlp_cuda_kv_pool_reserve(&p, 4, 0, 1, &copy));
    assert_true(nmlp_cuda_kv_pool_reserve(&p, 2, 0, 1, &copy));
    assert_int_equal(p.changed_begin, 2);
    assert_int_equal(p.changed_end, 5);
    p.changed_begin = p.changed_end = 0;
    assert_true(nmlp_cuda_kv_pool_reserve(&p, 2, 1, 2, &copy)); /* its page has room */
    assert_true(p.changed_begin >= p.changed_end);
    nmlp_cuda_kv_pool_fini(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_keep_every_text),
        cmocka_unit_test(changed_tables_are_the_ones_to_upload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
