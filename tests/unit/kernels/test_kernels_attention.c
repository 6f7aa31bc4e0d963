/* Attention against a naive float64 softmax: grouped heads, caches, long and short, all sets. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "lib/truth.h"

struct shape {
    int64_t s;
    int64_t first_pos;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
};

static const struct shape shapes[] = {
    {1, 0, 1, 1, 4},     {1, 0, 4, 2, 64},     {1, 9, 6, 3, 80},    {1, 700, 4, 1, 64},    {1, 5000, 8, 2, 32},
    {2, 1499, 9, 3, 16}, {3, 0, 2, 2, 100},    {5, 127, 4, 2, 128}, {17, 0, 8, 2, 64},     {33, 31, 3, 1, 96},
    {100, 0, 2, 1, 40},  {130, 257, 4, 4, 64}, {200, 0, 6, 2, 128}, {40, 3, 80, 1, 8},     {300, 700, 8, 2, 64},
    {140, 0, 8, 2, 72},  {65, 255, 4, 1, 33},  {600, 0, 1, 1, 32},  {18, 5000, 4, 2, 128}, /* keys and values beyond L2
                                                                                            */
};
#ifdef NMLP_SANITIZED /* which take ten times as long: without the largest */
enum { N_SHAPES = 14 };
#else
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
#endif

/* Inputs that end at guard pages; a set's cache has room for what may be seen and no more. */
struct fixture {
    nmlp_attention args;
    float *k; /* [positions, n_kv_heads*D] */
    float *v;
    nmlp_guarded guarded[3];
};

static float *guarded_floats(nmlp_guarded *guarded, int64_t n, uint64_t seed) {
    float *random = nmlp_test_floats(n, seed);
    float *x = nmlp_guard_end(guarded, (size_t)n * sizeof *x);
    memcpy(x, random, (size_t)n * sizeof *x);
    nmlp_mem_free(random);
    return x;
}

static struct fixture make_fixture(struct shape s) {
    struct fixture f;
    int64_t len = s.first_pos + s.s;
    int64_t q_elems = s.s * s.n_heads * s.head_dim;
    f.args = (nmlp_attention){
        .q = guarded_floats(&f.guarded[0], q_elems, 1),
        .out = nmlp_guard_end(&f.guarded[1], (size_t)q_elems * sizeof(float)),
        .kv = {.len = len, .n_heads = s.n_kv_heads, .head_dim = s.head_dim},
        .s = s.s,
        .first_pos = s.first_pos,
        .n_heads = s.n_heads,
        .scale = 1.0f / sqrtf((float)s.head_dim),
    };
    f.k = nmlp_test_floats(len * s.n_kv_heads * s.head_dim, 2);
    f.v = nmlp_test_floats(len * s.n_kv_heads * s.head_dim, 3);
    return f;
}

static void free_fixture(struct fixture *f) {
    for (int i = 0; i < 2; i++) nmlp_guard_free(&f->guarded[i]);
    nmlp_mem_free(f->k);
    nmlp_mem_free(f->v);
}

/* A set's cache with all keys and values of the fixture in it, stored in pieces of 1, 2, ... rows; gone with the next
 * nmlp_guard_free of guarded[2]. */
static void fill_cache(struct fixture *f, const nmlp_kernels *set) {
    nmlp_kv *kv = &f->args.kv;
    kv->kernels = set;
    kv->memory = nmlp_guard_end(&f->guarded[2], nmlp_kv_bytes(kv));
    for (int64_t first = 0, n = 1; first < kv->len; first += n, n++) {
        int64_t at = first * kv->n_heads * kv->head_dim;
        if (n > kv->len - first) n = kv->len - first;
        nmlp_kv_store(kv, f->k + at, f->v + at, first, n);
    }
}

static void run_stored(const nmlp_attention *args, nmlp_pool *pool) {
    nmlp_guarded guarded;
    size_t bytes = nmlp_attention_workspace_bytes(args, nmlp_pool_threads(pool));
    void *workspace = nmlp_guard_end(&guarded, bytes);
    nmlp_attention_run(args, workspace, pool);
    nmlp_guard_free(&guarded);
}

static void run(struct fixture *f, const nmlp_kernels *set, nmlp_pool *pool) {
    fill_cache(f, set);
    run_stored(&f->args, pool);
    nmlp_guard_free(&f->guarded[2]);
}

static bool rounds(const nmlp_kernels *set, const nmlp_attention *a) {
    return nmlp_kernels_rounds_to_bf16(set) && a->s * (a->n_heads / a->kv.n_heads) > NMLP_ATTENTION_FEW_ROWS;
}

static void all_shapes_match_float64(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            char what[96];
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            snprintf(what, sizeof what, "%s S=%lld pos=%lld D=%lld", nmlp_kernels_name(set), (long long)shapes[j].s,
                     (long long)shapes[j].first_pos, (long long)shapes[j].head_dim);
            run(&f, set, pool);
            nmlp_truth truth = nmlp_truth_attention(&f.args, f.k, f.v);
            nmlp_assert_within(f.args.out, &truth, what);
            nmlp_truth_free(&truth);
        }
        free_fixture(&f);
    }
    nmlp_pool_destroy(pool);
}

/* Windows shorter and longer than blocks of keys, with scores capped and not. Keys and values behind all windows are
 * NaN: nobody looks there. */
static void windows_and_caps_match_float64(void **state) {
    (void)state;
    static const int64_t windows[] = {1, 20, 130, 600};
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        f.args.window = windows[j % 4];
        f.args.softcap = j % 3 == 0 ? 1.5f : 0.0f;
        int64_t behind = f.args.first_pos + 1 - f.args.window, row = f.args.kv.n_heads * f.args.kv.head_dim;
        for (int64_t i = 0; i < behind * row; i++) f.k[i] = f.v[i] = NAN;
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            char what[96];
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            snprintf(what, sizeof what, "%s S=%lld pos=%lld window=%lld", nmlp_kernels_name(set), (long long)f.args.s,
                     (long long)f.args.first_pos, (long long)f.args.window);
            run(&f, set, pool);
            nmlp_truth truth = nmlp_truth_attention(&f.args, f.k, f.v);
            nmlp_assert_within(f.args.out, &truth, what);
            nmlp_truth_free(&truth);
        }
        free_fixture(&f);
    }
    nmlp_pool_destroy(pool);
}

/* Rows of one piece and of many lie in the cache alike. */
static void pieces_do_not_matter(void **state) {
    (void)state;
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            fill_cache(&f, set);
            nmlp_kv at_once = f.args.kv;
            at_once.memory = nmlp_mem_new(1, nmlp_kv_bytes(&at_once), NULL);
            nmlp_kv_store(&at_once, f.k, f.v, 0, at_once.len);
            assert_memory_equal(at_once.memory, f.args.kv.memory, nmlp_kv_bytes(&at_once));
            nmlp_mem_free(at_once.memory);
            nmlp_guard_free(&f.guarded[2]);
        }
        free_fixture(&f);
    }
}

/* Queries rotated on the way in see what queries rotated before see. */
static void queries_are_rotated(void **state) {
    (void)state;
    static const struct shape some[] = {{1, 40, 4, 2, 64}, {37, 5, 6, 2, 24}, {150, 0, 4, 1, 80}};
    for (size_t j = 0; j < sizeof some / sizeof some[0]; j++) {
        struct fixture f = make_fixture(some[j]);
        int64_t n = some[j].s * some[j].n_heads * some[j].head_dim;
        float *table = nmlp_test_floats((some[j].first_pos + some[j].s) * some[j].head_dim, 9);
        float *before = nmlp_mem_new((size_t)n, sizeof *before, NULL);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            const float *plain = f.args.q;
            float *turned = nmlp_mem_new((size_t)n, sizeof *turned, NULL);
            memcpy(turned, plain, (size_t)n * sizeof *turned);
            nmlp_rope(turned, &(nmlp_rotation){table, some[j].head_dim}, some[j].s, some[j].first_pos, some[j].n_heads,
                      some[j].head_dim, NULL);
            f.args.q = turned;
            run(&f, set, NULL);
            memcpy(before, f.args.out, (size_t)n * sizeof *before);
            f.args.q = plain;
            f.args.rope = (nmlp_rotation){table, some[j].head_dim};
            run(&f, set, NULL);
            f.args.rope = (nmlp_rotation){0};
            /* sets contract products differently: the last bit of a query, and of its rounded form */
            float off = rounds(set, &f.args) ? 2e-2f : 2e-5f;
            for (int64_t at = 0; at < n; at++)
                assert_true(fabsf(before[at] - f.args.out[at]) <= off * (0.1f + fabsf(before[at])));
            nmlp_mem_free(turned);
        }
        nmlp_mem_free(table);
        nmlp_mem_free(before);
        free_fixture(&f);
    }
}

static void bits_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int threads[] = {2, 3, 5};
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        size_t bytes = (size_t)(shapes[j].s * shapes[j].n_heads * shapes[j].head_dim) * sizeof(float);
        void *one = nmlp_mem_new(1, bytes, NULL);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            run(&f, set, NULL);
            memcpy(one, f.args.out, bytes);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                nmlp_pool *pool = nmlp_test_pool(threads[t]);
                run(&f, set, pool);
                assert_memory_equal(one, f.args.out, bytes);
                nmlp_pool_destroy(pool);
            }
        }
        nmlp_mem_free(one);
        free_fixture(&f);
    }
}

/* A query alone, in chunks or with all others: the same bits in f32, whichever way its segments of keys were made. */
static void check_bits_of_queries(int64_t window) {
    static const struct shape batches[] = {{40, 0, 4, 2, 64},     {70, 500, 6, 2, 40}, {30, 1020, 8, 1, 128},
                                           {200, 1000, 4, 4, 32}, {3, 2047, 3, 1, 16}, {2, 9000, 12, 1, 16}};
    static const int64_t chunks[] = {1, 3, 17};
    for (size_t j = 0; j < sizeof batches / sizeof batches[0]; j++) {
        struct fixture f = make_fixture(batches[j]);
        f.args.window = window;
        int64_t s = batches[j].s, width = batches[j].n_heads * batches[j].head_dim;
        float *all = nmlp_mem_new((size_t)(s * width), sizeof *all, NULL);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set || nmlp_kernels_rounds_to_bf16(set)) continue;
            f.args.s = s;
            run(&f, set, NULL);
            memcpy(all, f.args.out, (size_t)(s * width) * sizeof *all);
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++)
                for (int64_t at = 0; at < s; at += chunks[c]) {
                    struct fixture part = f;
                    part.args.s = s - at < chunks[c] ? s - at : chunks[c];
                    part.args.first_pos += at;
                    part.args.q += at * width;
                    run(&part, set, NULL);
                    assert_memory_equal(part.args.out, all + at * width, (size_t)(part.args.s * width) * sizeof *all);
                }
        }
        f.args.s = s;
        nmlp_mem_free(all);
        free_fixture(&f);
    }
}

static void bits_do_not_depend_on_other_queries(void **state) {
    (void)state;
    check_bits_of_queries(0);
    check_bits_of_queries(700);
}

/* Scores far apart: exp must neither overflow nor lose the winner. */
static void large_scores_pick_one_value(void **state) {
    (void)state;
    enum { T = 300, D = 16, WINNER = 123 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        struct fixture f =
            make_fixture((struct shape){.s = 1, .first_pos = T - 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = D});
        if (set) {
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) f.k[t * D + d] = f.args.q[d] * (t == WINNER ? 1000.0f : -1000.0f);
            run(&f, set, NULL);
            for (int d = 0; d < D; d++) {
                float v = f.v[WINNER * D + d];
                if (nmlp_kernels_rounds_to_bf16(set)) v = nmlp_bf16_to_f32(nmlp_f32_to_bf16(v));
                assert_true(f.args.out[d] == v);
            }
        }
        free_fixture(&f);
    }
}

/* The same for rows enough for tiles: every query sees the winner among the cached keys, and only it. */
static void large_scores_pick_one_value_for_many(void **state) {
    (void)state;
    enum { S = 40, T = 300, D = 16, WINNER = 258 }; /* among the first keys of a second block */
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        struct fixture f =
            make_fixture((struct shape){.s = S, .first_pos = T - S, .n_heads = 1, .n_kv_heads = 1, .head_dim = D});
        float *q = (float *)(uintptr_t)f.args.q;
        if (set) {
            for (int j = 0; j < S * D; j++) q[j] = q[j % D];
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) f.k[t * D + d] = q[d] * (t == WINNER ? 1000.0f : -1000.0f);
            run(&f, set, NULL);
            for (int j = 0; j < S * D; j++) {
                float v = f.v[WINNER * D + j % D];
                float rounded = nmlp_bf16_to_f32(nmlp_f32_to_bf16(v));
                /* 1e-3: the last bit of scores of some thousands, before their exponential */
                if (rounds(set, &f.args))
                    assert_true(fabsf(f.args.out[j] - rounded) <= 1e-3f * fabsf(rounded));
                else
                    assert_true(f.args.out[j] == v);
            }
        }
        free_fixture(&f);
    }
}

/* Scores all far below zero or above it: probabilities are relative to each other, not to any fixed number. */
static void only_differences_of_scores_matter(void **state) {
    (void)state;
    enum { S = 40, T = 300, D = 32 };
    static const float sizes[] = {-60.0f, 60.0f}; /* e^60 is beyond 2^64, e^-60 below 2^-32 */
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        for (int which = 0; set && which < 2; which++) {
            struct fixture f =
                make_fixture((struct shape){.s = S, .first_pos = T - S, .n_heads = 1, .n_kv_heads = 1, .head_dim = D});
            float *q = (float *)(uintptr_t)f.args.q;
            for (int j = 0; j < S * D; j++) q[j] = 1.0f;
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) f.k[t * D + d] = (sizes[which] + (float)(t % 3)) / D / f.args.scale;
            run(&f, set, NULL);
            nmlp_truth truth = nmlp_truth_attention(&f.args, f.k, f.v);
            nmlp_assert_within(f.args.out, &truth, nmlp_kernels_name(set));
            nmlp_truth_free(&truth);
            free_fixture(&f);
        }
    }
}

/* A NaN in a key reaches the queries that see it, and only those. */
static void nan_reaches_only_later_queries(void **state) {
    (void)state;
    enum { S = 70, BAD = 40, D = 24 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        struct fixture f = make_fixture((struct shape){.s = S, .n_heads = 2, .n_kv_heads = 1, .head_dim = D});
        if (set) {
            f.k[BAD * D + 5] = NAN;
            run(&f, set, NULL);
            for (int j = 0; j < S * 2 * D; j++) assert_int_equal(isnan(f.args.out[j]) != 0, j / (2 * D) >= BAD);
        }
        free_fixture(&f);
    }
}

/* In a value, NaN or infinity reaches one dimension of the queries that see it; what the others see is as it was. */
static void bad_values_reach_only_later_queries(void **state) {
    (void)state;
    enum { S = 300, BAD = 261, D = 24, DIM = 5 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        for (int which = 0; set && which < 3; which++) {
            struct fixture f = make_fixture((struct shape){.s = S, .n_heads = 2, .n_kv_heads = 1, .head_dim = D});
            fill_cache(&f, set);
            nmlp_truth truth = nmlp_truth_attention(&f.args, f.k, f.v);
            f.v[BAD * D + DIM] = bad[which];
            nmlp_kv_store(&f.args.kv, f.k + BAD * D, f.v + BAD * D, BAD, 1);
            run_stored(&f.args, NULL);
            for (int j = 0; j < S * 2 * D; j++) {
                bool sees = j / (2 * D) >= BAD && j % D == DIM;
                assert_int_equal(isfinite(f.args.out[j]) == 0, sees);
                if (!sees) assert_true(fabs((double)f.args.out[j] - truth.value[j]) <= truth.bound[j]);
            }
            nmlp_truth_free(&truth);
            nmlp_guard_free(&f.guarded[2]);
            free_fixture(&f);
        }
    }
}

/* What was stored beyond the last query, in a text since cut short, may be anything. */
static void what_is_beyond_does_not_matter(void **state) {
    (void)state;
    enum { S = 20, D = 20, LEN = 64, HEADS = 2 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        float *k = nmlp_test_floats(LEN * HEADS * D, 4);
        float *v = nmlp_test_floats(LEN * HEADS * D, 5);
        float *q = nmlp_test_floats(S * HEADS * D, 6);
        float out[S * HEADS * D];
        for (int j = S * HEADS * D; j < LEN * HEADS * D; j++) k[j] = v[j] = NAN;
        nmlp_attention args = {.out = out,
                               .q = q,
                               .kv = {.kernels = set, .len = LEN, .n_heads = HEADS, .head_dim = D},
                               .s = S,
                               .n_heads = HEADS,
                               .scale = 0.2f};
        args.kv.memory = nmlp_mem_new(1, nmlp_kv_bytes(&args.kv), NULL);
        nmlp_kv_store(&args.kv, k, v, 0, LEN);
        nmlp_truth truth = nmlp_truth_attention(&args, k, v);
        run_stored(&args, NULL);
        nmlp_assert_within(out, &truth, nmlp_kernels_name(set));
        nmlp_truth_free(&truth);
        nmlp_mem_free(args.kv.memory);
        nmlp_mem_free(k);
        nmlp_mem_free(v);
        nmlp_mem_free(q);
    }
}

/* Sets that round keep half the bytes, overlap some room between strips. */
static void rounded_caches_are_half_as_large(void **state) {
    (void)state;
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        nmlp_kv kv = {.kernels = set, .len = 4096, .n_heads = 8, .head_dim = 64};
        double f32_bytes = 2.0 * 4096 * 8 * 64 * 4;
        double share = (double)nmlp_kv_bytes(&kv) / f32_bytes;
        if (nmlp_kernels_rounds_to_bf16(set))
            assert_true(share >= 0.5 && share < 0.53);
        else
            assert_true(share == 1.0);
    }
}

static void workspace_does_not_grow_with_the_context(void **state) {
    (void)state;
    nmlp_attention shape = {.s = 1, .kv = {.len = 1, .n_heads = 8, .head_dim = 128}, .n_heads = 32};
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        shape.kv.kernels = set;
        size_t bytes = nmlp_attention_workspace_bytes(&shape, 4);
        nmlp_attention longer = shape;
        longer.s = 4096;
        longer.first_pos = 1 << 20;
        longer.kv.len = longer.first_pos + longer.s;
        assert_int_equal(nmlp_attention_workspace_bytes(&longer, 4), bytes);
    }
}

/* The fixture's keys and values in pages that lie in another order, with one between them unused. */
struct paged {
    nmlp_kv kv;
    int32_t pages[64];
};

static void fill_pages(struct paged *p, const struct fixture *f, const nmlp_kernels *set) {
    p->kv = f->args.kv;
    p->kv.kernels = set;
    p->kv.pages = p->pages;
    p->kv.page = nmlp_kv_page_size(set);
    p->kv.page_step_bytes = nmlp_kv_bytes(&p->kv) + 192;
    int64_t n = (p->kv.len + p->kv.page - 1) / p->kv.page;
    assert_true(n <= 64);
    for (int64_t i = 0; i < n; i++) p->pages[i] = (int32_t)((n - i) * 2 - 1);
    p->kv.memory = nmlp_mem_new((size_t)(2 * n), p->kv.page_step_bytes, NULL);
    for (int64_t first = 0, some = 1; first < p->kv.len; first += some, some++) {
        int64_t at = first * p->kv.n_heads * p->kv.head_dim;
        if (some > p->kv.len - first) some = p->kv.len - first;
        nmlp_kv_store(&p->kv, f->k + at, f->v + at, first, some);
    }
}

static void pages_change_no_bit(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        size_t bytes = (size_t)(shapes[j].s * shapes[j].n_heads * shapes[j].head_dim) * sizeof(float);
        void *want = nmlp_mem_new(1, bytes, NULL);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            struct paged paged;
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            run(&f, set, pool);
            memcpy(want, f.args.out, bytes);
            fill_pages(&paged, &f, set);
            nmlp_attention args = f.args;
            args.kv = paged.kv;
            memset(args.out, 0xff, bytes);
            run_stored(&args, pool);
            assert_memory_equal(args.out, want, bytes);
            nmlp_mem_free(paged.kv.memory);
        }
        nmlp_mem_free(want);
        free_fixture(&f);
    }
    nmlp_pool_destroy(pool);
}

/* Every query of a text as a call of its own, all of them in one go, and in pieces: where nothing is rounded, the bits
 * of all queries at once. */
static void bits_do_not_depend_on_the_other_rows(void **state) {
    (void)state;
    static const struct shape some[] = {
        {150, 960, 8, 2, 64}, {40, 500, 4, 4, 40}, {90, 0, 6, 2, 80}, {5, 9000, 4, 2, 32}};
    nmlp_pool *pool = nmlp_test_pool(3);
    for (size_t j = 0; j < sizeof some / sizeof some[0]; j++) {
        struct fixture f = make_fixture(some[j]);
        int64_t row = some[j].n_heads * some[j].head_dim;
        size_t bytes = (size_t)(some[j].s * row) * sizeof(float);
        float *got = nmlp_mem_new(1, bytes, NULL);
        nmlp_attention args[150];
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set || nmlp_kernels_rounds_to_bf16(set)) continue;
            fill_cache(&f, set);
            run_stored(&f.args, pool);
            for (int64_t piece = 1; piece <= some[j].s; piece += 1 + piece / 2) {
                int64_t n = 0;
                for (int64_t first = 0; first < some[j].s; first += piece, n++) {
                    args[n] = f.args;
                    args[n].q += first * row;
                    args[n].out = got + first * row;
                    args[n].first_pos += first;
                    args[n].s = piece < some[j].s - first ? piece : some[j].s - first;
                }
                void *workspace = nmlp_mem_new(1, nmlp_attention_workspace_bytes(&args[0], 3), NULL);
                memset(got, 0xff, bytes);
                nmlp_attention_run_all(args, n, workspace, pool);
                assert_memory_equal(got, f.args.out, bytes);
                nmlp_mem_free(workspace);
            }
            nmlp_guard_free(&f.guarded[2]);
        }
        nmlp_mem_free(got);
        free_fixture(&f);
    }
    nmlp_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_change_no_bit),
        cmocka_unit_test(bits_do_not_depend_on_the_other_rows),
        cmocka_unit_test(all_shapes_match_float64),
        cmocka_unit_test(windows_and_caps_match_float64),
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(queries_are_rotated),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(bits_do_not_depend_on_other_queries),
        cmocka_unit_test(large_scores_pick_one_value),
        cmocka_unit_test(large_scores_pick_one_value_for_many),
        cmocka_unit_test(only_differences_of_scores_matter),
        cmocka_unit_test(nan_reaches_only_later_queries),
        cmocka_unit_test(bad_values_reach_only_later_queries),
        cmocka_unit_test(what_is_beyond_does_not_matter),
        cmocka_unit_test(rounded_caches_are_half_as_large),
        cmocka_unit_test(workspace_does_not_grow_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
