/* BPE merging against the definition: look at all pairs, join the leftmost of the lowest rank, repeat. */
#include "lib/testing.h"

#include "base/rng.h"
#include "text/bpe.h"

enum { N_BASE = 4, N_MERGES = 60, N_MAX = 400 };

typedef struct merge {
    int32_t left, right, merged;
} merge;

static size_t merge_by_definition(const merge *merges, int32_t *ids, size_t n) {
    for (;;) {
        size_t best_rank = N_MERGES;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t rank = 0; rank < best_rank; rank++) {
                if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
                    best_rank = rank;
                    best = i;
                }
            }
        }
        if (best_rank == N_MERGES) return n;
        ids[best] = merges[best_rank].merged;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static bool is_new(const merge *merges, size_t n, merge m) {
    for (size_t i = 0; i < n; i++)
        if (merges[i].left == m.left && merges[i].right == m.right) return false;
    return true;
}

static void any_length_gives_what_the_definition_gives(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_err err = {0};
    nmlp_bpe_scratch scratch = {0};
    nmlp_rng_seed(&rng, 4);
    for (int table = 0; table < 40; table++) {
        merge merges[N_MERGES];
        nmlp_bpe bpe;
        nmlp_assert_ok(nmlp_bpe_init(&bpe, N_MERGES, &err), &err);
        for (size_t rank = 0; rank < N_MERGES;) {
            int64_t n_known = N_BASE + (int64_t)rank;
            merge m = {(int32_t)nmlp_rng_below(&rng, n_known), (int32_t)nmlp_rng_below(&rng, n_known),
                       (int32_t)n_known};
            if (!is_new(merges, rank, m)) continue;
            merges[rank] = m;
            nmlp_bpe_put(&bpe, (uint32_t)m.left, (uint32_t)m.right, (uint32_t)rank, (uint32_t)m.merged);
            rank++;
        }
        for (int text = 0; text < 40; text++) {
            int32_t ids[N_MAX], want[N_MAX];
            size_t n = 1 + (size_t)nmlp_rng_below(&rng, text % 2 ? N_MAX : 60);
            for (size_t i = 0; i < n; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, text % 4 ? N_BASE : 1);
            memcpy(want, ids, n * sizeof *ids);
            size_t n_want = merge_by_definition(merges, want, n);
            nmlp_assert_ok(nmlp_bpe_merge(&bpe, &scratch, ids, &n, &err), &err);
            assert_int_equal(n, n_want);
            assert_memory_equal(ids, want, n * sizeof *ids);
        }
        nmlp_bpe_fini(&bpe);
    }
    nmlp_bpe_scratch_fini(&scratch);
}

static void no_symbols_and_no_merges_stay_as_they_are(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_bpe bpe;
    nmlp_bpe_scratch scratch = {0};
    int32_t ids[100] = {1, 2, 3};
    size_t n = 0;
    nmlp_assert_ok(nmlp_bpe_init(&bpe, 0, &err), &err);
    nmlp_assert_ok(nmlp_bpe_merge(&bpe, &scratch, ids, &n, &err), &err);
    assert_int_equal(n, 0);
    n = 100;
    nmlp_assert_ok(nmlp_bpe_merge(&bpe, &scratch, ids, &n, &err), &err);
    assert_int_equal(n, 100);
    assert_int_equal(ids[2], 3);
    nmlp_bpe_scratch_fini(&scratch);
    nmlp_bpe_fini(&bpe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_length_gives_what_the_definition_gives),
        cmocka_unit_test(no_symbols_and_no_merges_stay_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
