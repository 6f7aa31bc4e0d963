/* Any number of threads, any split of work between them: the same bits. With the argument "time": what starting
 * threads, barriers and stages of a memory-bound step cost on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/pages.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

enum { TOKENS = 40 };

/* Rows one at a time, in small pieces, and all together take different kernels and numbers of threads. */
static void threads_change_no_bit(void **state) {
    static const int threads[] = {2, 3, 7, 16};
    static const int64_t chunks[] = {1, 5, TOKENS};
    int32_t ids[TOKENS];
    (void)state;
    for (int i = 0; i < TOKENS; i++) ids[i] = i * 37 % 8000 + 3;
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        loaded_engine one;
        loaded_engine_open(&one, NMLP_TEST_ROOT "/models/tiny", NULL, 1);
        size_t bytes = (size_t)(TOKENS * one.model.config.vocab) * sizeof(float);
        float *want = loaded_engine_logits(&one, ids, TOKENS, chunks[c]);
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            loaded_engine many;
            loaded_engine_open(&many, NMLP_TEST_ROOT "/models/tiny", NULL, threads[t]);
            float *got = loaded_engine_logits(&many, ids, TOKENS, chunks[c]);
            assert_memory_equal(got, want, bytes);
            nmlp_mem_free(got);
            loaded_engine_close(&many);
        }
        nmlp_mem_free(want);
        loaded_engine_close(&one);
    }
}

/* ---- times ---- */

enum { JOBS = 3000, BARRIERS = 3000, STAGES = 60 };
static const size_t STAGE_BYTES = (size_t)8 << 20;

struct timing {
    nmlp_pool *pool;
    const char *memory;
    size_t memory_bytes;
    size_t piece_bytes; /* of a stage, taken at a time; 0: every thread its part, and no barrier */
    _Atomic int64_t next[STAGES];
    _Atomic uint64_t sink;
};

static void nothing(void *ctx, int thread, int n_threads) {
    (void)ctx;
    (void)thread;
    (void)n_threads;
}

static void barriers(void *ctx, int thread, int n_threads) {
    struct timing *t = ctx;
    for (int i = 0; i < BARRIERS; i++) nmlp_pool_barrier(t->pool, thread, n_threads);
}

static uint64_t read_bytes(const char *from, size_t bytes) {
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= bytes; i += 64) {
        uint64_t line[8];
        memcpy(line, from + i, sizeof line);
        for (int j = 0; j < 8; j++) sum[j] ^= line[j];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static void stages(void *ctx, int thread, int n_threads) {
    struct timing *t = ctx;
    uint64_t sum = 0;
    for (int64_t i = 0; i < STAGES; i++) {
        const char *stage = t->memory + (size_t)i * STAGE_BYTES % t->memory_bytes;
        if (t->piece_bytes == 0) {
            size_t part = STAGE_BYTES / (size_t)n_threads / 64 * 64;
            sum ^= read_bytes(stage + part * (size_t)thread, part);
            continue;
        }
        int64_t n = (int64_t)(STAGE_BYTES / t->piece_bytes);
        for (int64_t at; (at = atomic_fetch_add(&t->next[i], 1)) < n;)
            sum ^= read_bytes(stage + (size_t)at * t->piece_bytes, t->piece_bytes);
        nmlp_pool_barrier(t->pool, thread, n_threads);
    }
    atomic_fetch_xor(&t->sink, sum);
}

static double stages_gbs(struct timing *t, size_t piece_bytes) {
    double best = 0;
    t->piece_bytes = piece_bytes;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < STAGES; i++) atomic_store(&t->next[i], 0);
        double begin = nmlp_clock_seconds();
        nmlp_pool_run(t->pool, stages, t);
        double gbs = STAGES * (double)STAGE_BYTES * 1e-9 / (nmlp_clock_seconds() - begin);
        if (gbs > best) best = gbs;
    }
    return best;
}

static void print_times(struct timing *t, int n_threads) {
    nmlp_err err;
    nmlp_assert_ok(nmlp_pool_create(&t->pool, n_threads, &err), &err);
    for (int i = 0; i < 100; i++) nmlp_pool_run(t->pool, nothing, NULL);
    double begin = nmlp_clock_seconds();
    for (int i = 0; i < JOBS; i++) nmlp_pool_run(t->pool, nothing, NULL);
    double job_us = 1e6 * (nmlp_clock_seconds() - begin) / JOBS;
    begin = nmlp_clock_seconds();
    nmlp_pool_run(t->pool, barriers, t);
    double barrier_us = 1e6 * (nmlp_clock_seconds() - begin) / BARRIERS;
    printf("%2d threads: job %.2f us, barrier %.2f us; stages of 8 MiB: alone %.1f GB/s, with barriers in pieces of "
           "512K %.1f, 128K %.1f, 32K %.1f\n",
           n_threads, job_us, barrier_us, stages_gbs(t, 0), stages_gbs(t, 512 << 10), stages_gbs(t, 128 << 10),
           stages_gbs(t, 32 << 10));
    nmlp_pool_destroy(t->pool);
}

static void print_all_times(void) {
    struct timing *t = nmlp_mem_new(1, sizeof *t, NULL);
    t->memory_bytes = STAGES * STAGE_BYTES;
    char *memory = nmlp_pages_new(t->memory_bytes, NULL);
    memset(memory, 1, t->memory_bytes);
    t->memory = memory;
    for (int n = 1; n <= nmlp_cpus_usable(); n *= 2) print_times(t, n);
    nmlp_pages_free(memory, t->memory_bytes);
    nmlp_mem_free(t);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_change_no_bit)};
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        print_all_times();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
