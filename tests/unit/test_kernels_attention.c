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
    {1, 0, 1, 1, 4},     {1, 0, 4, 2, 64},     {1, 9, 6, 3, 80},    {1, 700, 4, 1, 64}, {1, 5000, 8, 2, 32},
    {2, 1499, 9, 3, 16}, {3, 0, 2, 2, 100},    {5, 127, 4, 2, 128}, {17, 0, 8, 2, 64},  {33, 31, 3, 1, 96},
    {100, 0, 2, 1, 40},  {130, 257, 4, 4, 64}, {200, 0, 6, 2, 128}, {40, 3, 80, 1, 8},  {300, 700, 8, 2, 64},
    {140, 0, 8, 2, 72},  {65, 255, 4, 1, 33},  {600, 0, 1, 1, 32},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Inputs that end at guard pages; the cache is one row longer than what may be seen. */
struct fixture {
    nmlp_attention args;
    nmlp_guarded guarded[4];
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
    int64_t cache_len = s.first_pos + s.s;
    int64_t q_elems = s.s * s.n_heads * s.head_dim;
    int64_t kv_elems = s.n_kv_heads * cache_len * s.head_dim;
    f.args = (nmlp_attention){
        .q = guarded_floats(&f.guarded[0], q_elems, 1),
        .k = guarded_floats(&f.guarded[1], kv_elems, 2),
        .v = guarded_floats(&f.guarded[2], kv_elems, 3),
        .out = nmlp_guard_end(&f.guarded[3], (size_t)q_elems * sizeof(float)),
        .s = s.s,
        .first_pos = s.first_pos,
        .cache_len = cache_len,
        .n_heads = s.n_heads,
        .n_kv_heads = s.n_kv_heads,
        .head_dim = s.head_dim,
        .scale = 1.0f / sqrtf((float)s.head_dim),
    };
    return f;
}

static void free_fixture(struct fixture *f) {
    for (int i = 0; i < 4; i++) nmlp_guard_free(&f->guarded[i]);
}

static void run(const nmlp_kernels *set, const nmlp_attention *args, nmlp_pool *pool) {
    nmlp_guarded guarded;
    size_t bytes = nmlp_attention_workspace_bytes(set, args, nmlp_pool_threads(pool));
    void *workspace = nmlp_guard_end(&guarded, bytes);
    nmlp_attention_run(set, args, workspace, pool);
    nmlp_guard_free(&guarded);
}

static bool rounds(const nmlp_kernels *set, const nmlp_attention *a) {
    return nmlp_kernels_rounds_to_bf16(set) && a->s * (a->n_heads / a->n_kv_heads) > NMLP_ATTENTION_FEW_ROWS;
}

static void all_shapes_match_float64(void **state) {
    (void)state;
    nmlp_pool *pool = nmlp_test_pool(2);
    for (int j = 0; j < N_SHAPES; j++) {
        struct fixture f = make_fixture(shapes[j]);
        nmlp_truth exact = nmlp_truth_attention(&f.args, false);
        nmlp_truth rounded = nmlp_truth_attention(&f.args, true);
        for (int i = 0; i < NMLP_TEST_SETS; i++) {
            char what[96];
            const nmlp_kernels *set = nmlp_test_set(i);
            if (!set) continue;
            snprintf(what, sizeof what, "%s S=%lld pos=%lld D=%lld", nmlp_kernels_name(set), (long long)shapes[j].s,
                     (long long)shapes[j].first_pos, (long long)shapes[j].head_dim);
            run(set, &f.args, pool);
            nmlp_assert_within(f.args.out, rounds(set, &f.args) ? &rounded : &exact, what);
        }
        nmlp_truth_free(&exact);
        nmlp_truth_free(&rounded);
        free_fixture(&f);
    }
    nmlp_pool_destroy(pool);
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
            run(set, &f.args, NULL);
            memcpy(one, f.args.out, bytes);
            for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
                nmlp_pool *pool = nmlp_test_pool(threads[t]);
                run(set, &f.args, pool);
                assert_memory_equal(one, f.args.out, bytes);
                nmlp_pool_destroy(pool);
            }
        }
        nmlp_mem_free(one);
        free_fixture(&f);
    }
}

/* Scores far apart: exp must neither overflow nor lose the winner. */
static void large_scores_pick_one_value(void **state) {
    (void)state;
    enum { T = 300, D = 16, WINNER = 123 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        struct fixture f =
            make_fixture((struct shape){.s = 1, .first_pos = T - 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = D});
        float *k = (float *)(uintptr_t)f.args.k;
        if (set) {
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) k[t * D + d] = f.args.q[d] * (t == WINNER ? 1000.0f : -1000.0f);
            run(set, &f.args, NULL);
            for (int d = 0; d < D; d++) assert_true(f.args.out[d] == f.args.v[WINNER * D + d]);
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
        float *k = (float *)(uintptr_t)f.args.k;
        if (set) {
            for (int j = 0; j < S * D; j++) q[j] = q[j % D];
            for (int t = 0; t < T; t++)
                for (int d = 0; d < D; d++) k[t * D + d] = q[d] * (t == WINNER ? 1000.0f : -1000.0f);
            run(set, &f.args, NULL);
            for (int j = 0; j < S * D; j++) {
                float v = f.args.v[WINNER * D + j % D];
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

/* A NaN in a key reaches the queries that see it, and only those. */
static void nan_reaches_only_later_queries(void **state) {
    (void)state;
    enum { S = 70, BAD = 40, D = 24 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        struct fixture f = make_fixture((struct shape){.s = S, .n_heads = 2, .n_kv_heads = 1, .head_dim = D});
        if (set) {
            ((float *)(uintptr_t)f.args.k)[BAD * D + 5] = NAN;
            run(set, &f.args, NULL);
            for (int j = 0; j < S * 2 * D; j++) assert_int_equal(isnan(f.args.out[j]) != 0, j / (2 * D) >= BAD);
        }
        free_fixture(&f);
    }
}

/* Rows of the cache that are not yet written hold anything. */
static void unwritten_cache_is_not_read(void **state) {
    (void)state;
    enum { S = 20, D = 20, LEN = 64 };
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        float *k = nmlp_test_floats(2 * LEN * D, 4);
        float *v = nmlp_test_floats(2 * LEN * D, 5);
        float *q = nmlp_test_floats(S * 2 * D, 6);
        float out[S * 2 * D];
        for (int h = 0; h < 2; h++)
            for (int j = S * D; j < LEN * D; j++) k[h * LEN * D + j] = v[h * LEN * D + j] = NAN;
        nmlp_attention args = {.out = out,
                               .q = q,
                               .k = k,
                               .v = v,
                               .s = S,
                               .cache_len = LEN,
                               .n_heads = 2,
                               .n_kv_heads = 2,
                               .head_dim = D,
                               .scale = 0.2f};
        nmlp_truth truth = nmlp_truth_attention(&args, rounds(set, &args));
        run(set, &args, NULL);
        nmlp_assert_within(out, &truth, nmlp_kernels_name(set));
        nmlp_truth_free(&truth);
        nmlp_mem_free(k);
        nmlp_mem_free(v);
        nmlp_mem_free(q);
    }
}

static void workspace_does_not_grow_with_the_context(void **state) {
    (void)state;
    nmlp_attention shape = {.s = 1, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128};
    for (int i = 0; i < NMLP_TEST_SETS; i++) {
        const nmlp_kernels *set = nmlp_test_set(i);
        if (!set) continue;
        size_t bytes = nmlp_attention_workspace_bytes(set, &shape, 4);
        nmlp_attention longer = shape;
        longer.s = 4096;
        longer.first_pos = 1 << 20;
        assert_int_equal(nmlp_attention_workspace_bytes(set, &longer, 4), bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shapes_match_float64),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(large_scores_pick_one_value),
        cmocka_unit_test(nan_reaches_only_later_queries),
        cmocka_unit_test(large_scores_pick_one_value_for_many),
        cmocka_unit_test(unwritten_cache_is_not_read),
        cmocka_unit_test(workspace_does_not_grow_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
