/* Shrinking blocks: against a replay of arrivals and products, block by block. */
#include <math.h>

#include "base/rng.h"
#include "lib/testing.h"
#include "trainium/plan/strip.h"
#include "trainium/plan/strip_cost.h"

enum { N_STRETCHES = 2 };

static nmlp_machine machine(const char *name) {
    nmlp_machine m;
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_machine_open(&m, name, &err), &err);
    return m;
}

static int64_t block(const nmlp_taper *t, int i) { return t->end[i] - (i ? t->end[i - 1] : 0); }

/* How long after the last byte the tensor engine is done: a block is begun when it has come and the one before it is
 * through; the second product waits for the result of the first. */
static double lag_ns(const nmlp_taper *tapers, const nmlp_taper_weights *s, const nmlp_machine *m) {
    double come = 0, through = 0;
    for (int k = 0; k < N_STRETCHES; k++) {
        for (int i = 0; i < tapers[k].n; i++) {
            double rows = (double)block(&tapers[k], i);
            come += nmlp_dma_rows_ns(m, m->partitions, rows * s[k].row_bytes);
            through = fmax(come, through) + rows * s[k].tensor_ns;
        }
        if (k < N_STRETCHES - 1) through += s[k].turn_ns;
    }
    return through - come;
}

/* Factors of decode kernels: [I,r] and [r,H]. */
static void stretches_of(nmlp_taper_weights s[N_STRETCHES], const nmlp_machine *m, int64_t rows, nmlp_rng *rng) {
    int64_t r = 128 * (2 + nmlp_rng_below(rng, 12)), i = 128 * (16 + nmlp_rng_below(rng, 60)),
            h = 128 * (8 + nmlp_rng_below(rng, 16));
    nmlp_pack before = {.k = i, .n = r, .partitions = 128, .chunk_tiles = i / 128, .columns = 128, .planes = 1},
              last = {.k = r, .n = h, .partitions = 128, .chunk_tiles = r / 128, .columns = 128, .planes = 1};
    s[0] = nmlp_taper_weights_of(m, &before, rows, false, 2);
    s[1] = nmlp_taper_weights_of(m, &last, rows, true, 2);
}

static void blocks_end_with_the_lag_asked_for(void **state) {
    (void)state;
    static const char *const targets[] = {"trn1", "trn2", "trn3"};
    static const int64_t rows[] = {1, 16, 128};
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 11);
    int n_checked = 0;
    for (int i = 0; i < 200; i++) {
        nmlp_machine m = machine(targets[i % 3]);
        nmlp_taper_weights s[N_STRETCHES];
        nmlp_taper t[N_STRETCHES];
        int64_t least = 1 + nmlp_rng_below(&rng, 12);
        stretches_of(s, &m, rows[nmlp_rng_below(&rng, 3)], &rng);
        if (!nmlp_taper_blocks(t, s, N_STRETCHES, least, &m)) continue;
        n_checked++;
        for (int k = 0; k < N_STRETCHES; k++) {
            assert_int_equal(t[k].end[t[k].n - 1], s[k].tile_rows);
            for (int j = 0; j < t[k].n; j++) assert_true(block(&t[k], j) > 0 && block(&t[k], j) <= s[k].most);
        }
        assert_int_equal(block(&t[1], t[1].n - 1), least);
        /* Blocks are never shorter than `least`, so one that should be adds at most its own work. */
        double slowest = fmax(s[0].tensor_ns, s[1].tensor_ns);
        assert_true(lag_ns(t, s, &m) <= 2 * (double)least * slowest + s[0].turn_ns);
    }
    assert_true(n_checked > 150);
}

static void cut_leaves_what_is_behind_the_last_long_block(void **state) {
    (void)state;
    nmlp_taper t = {.end = {40, 70, 85, 92, 96}, .n = 5}; /* blocks of 40, 30, 15, 7, 4 tile rows */
    assert_int_equal(nmlp_taper_cut(&t, 16, 30), 5);      /* 70 rows end inside the fifth tile: 80 are left out */
    assert_int_equal(t.n, 3);
    assert_int_equal(t.end[0], 85);
    assert_int_equal(t.end[2], 96);
    assert_int_equal(nmlp_taper_cut(&t, 16, 200), 0);
    nmlp_taper all = {.end = {96}, .n = 1};
    assert_int_equal(nmlp_taper_cut(&all, 16, 96), 6); /* nothing is held */
    assert_int_equal(all.n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_end_with_the_lag_asked_for),
        cmocka_unit_test(cut_leaves_what_is_behind_the_last_long_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
