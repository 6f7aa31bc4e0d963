/* Packed segments give what truncate and append give one after the other. */
#include "base/mem.h"
#include "base/rng.h"
#include "engine/session.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

enum { ROWS_MAX = 512, IDS = 64 };

struct fixture {
    char dir[256];
    tiny_checkpoint c;
    loaded_engine l;
    int32_t ids[IDS];
};

static int setup(void **state) {
    struct fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 3);
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    tiny_init(&f->c, 11);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&f->l, f->dir, NULL, 2);
    for (int i = 0; i < IDS; i++) f->ids[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    loaded_engine_close(&f->l);
    tiny_fini(&f->c);
    nmlp_test_rmdir(f->dir);
    nmlp_mem_free(f);
    return 0;
}

struct sink {
    float rows[ROWS_MAX][TINY_HIDDEN];
    int64_t n;
    bool in_order;
};

static void collect(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct sink *sink = ctx;
    (void)session;
    sink->in_order &= first == sink->n;
    assert_true(sink->n + s <= ROWS_MAX);
    memcpy(sink->rows[sink->n], rows, (size_t)(s * TINY_HIDDEN) * sizeof *rows);
    sink->n += s;
}

static void collect_any(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct sink *sink = ctx;
    (void)first;
    collect(sink, session, rows, sink->n, s);
}

/* Two questions: a context with three continuations (one empty), then one with no context at all. */
static int64_t make_segments(const struct fixture *f, nmlp_segment *s) {
    const nmlp_segment segments[] = {
        {f->ids, 20, 0},    {f->ids + 20, 7, 20}, {f->ids + 30, 0, 20}, {f->ids + 27, 13, 20},
        {f->ids + 5, 1, 0}, {f->ids + 40, 9, 1},  {f->ids + 3, 30, 0},  {f->ids + 41, 4, 12},
    };
    memcpy(s, segments, sizeof segments);
    return sizeof segments / sizeof segments[0];
}

static void packed_rows_equal_truncate_and_append(void **state) {
    struct fixture *f = *state;
    nmlp_segment segments[16];
    int64_t n = make_segments(f, segments);
    const int64_t chunks[] = {1, 5, 32, 128};
    for (size_t k = 0; k < 4; k++) {
        static struct sink packed, plain;
        nmlp_session *session;
        nmlp_err err;
        packed = (struct sink){.in_order = true};
        plain = (struct sink){.in_order = true};
        nmlp_assert_ok(nmlp_session_create(&session, f->l.engine, 64, chunks[k], false, &err), &err);
        nmlp_assert_ok(nmlp_session_run_packed(session, segments, n, collect, &packed, &err), &err);
        assert_int_equal(nmlp_session_length(session), 16); /* the last segment: 12 + 4 */
        nmlp_session_truncate(session, 0);
        for (int64_t i = 0; i < n; i++) {
            nmlp_session_truncate(session, segments[i].first);
            nmlp_assert_ok(nmlp_session_append(session, segments[i].ids, segments[i].n, collect_any, &plain, &err),
                           &err);
        }
        nmlp_session_destroy(session);
        assert_true(packed.in_order);
        assert_int_equal(packed.n, plain.n);
        assert_memory_equal(packed.rows, plain.rows, (size_t)packed.n * sizeof packed.rows[0]);
    }
}

static void segments_that_cannot_run_are_refused(void **state) {
    struct fixture *f = *state;
    nmlp_session *session;
    nmlp_err err;
    int32_t bad = TINY_VOCAB;
    nmlp_assert_ok(nmlp_session_create(&session, f->l.engine, 32, 0, false, &err), &err);
    nmlp_segment gap[] = {{f->ids, 5, 0}, {f->ids, 5, 6}};
    nmlp_assert_fails(nmlp_session_run_packed(session, gap, 2, NULL, NULL, &err), &err, NMLP_E_ARG, "segment 1",
                      "position 6", NULL);
    nmlp_segment far[] = {{f->ids, 20, 0}, {f->ids, 13, 20}};
    nmlp_assert_fails(nmlp_session_run_packed(session, far, 2, NULL, NULL, &err), &err, NMLP_E_LIMIT, "segment 1", "33",
                      NULL);
    nmlp_segment id[] = {{&bad, 1, 0}};
    nmlp_assert_fails(nmlp_session_run_packed(session, id, 1, NULL, NULL, &err), &err, NMLP_E_ARG, "vocabulary", NULL);
    assert_int_equal(nmlp_session_length(session), 0);
    nmlp_session_destroy(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows_equal_truncate_and_append),
        cmocka_unit_test(segments_that_cannot_run_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
