/* Memory, strings, hash map and random numbers. */
#include <stdatomic.h>

#include "base/hashmap.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "lib/testing.h"

static void sizes_that_overflow_are_refused(void **state) {
    nmlp_err err;
    (void)state;
    assert_null(nmlp_mem_new(SIZE_MAX / 2, 3, &err));
    assert_null(nmlp_mem_new_raw(SIZE_MAX / 2, 3, &err));
    assert_int_equal(err.code, NMLP_E_NOMEM);
    nmlp_arena arena;
    nmlp_arena_init(&arena);
    assert_null(nmlp_arena_new(&arena, SIZE_MAX, 2, &err));
    nmlp_arena_fini(&arena);
}

static void memory_is_zeroed_and_aligned(void **state) {
    nmlp_arena arena;
    (void)state;
    nmlp_arena_init(&arena);
    for (size_t n = 1; n < 200000; n = n * 3 + 1) {
        unsigned char *block = nmlp_arena_new(&arena, n, 1, NULL);
        assert_int_equal((uintptr_t)block % NMLP_ALIGN_BYTES, 0);
        for (size_t i = 0; i < n; i++) assert_int_equal(block[i], 0);
        memset(block, 0xff, n);
    }
    nmlp_arena_fini(&arena);
}

static void text_grows_and_keeps_nul_bytes(void **state) {
    nmlp_str str;
    (void)state;
    nmlp_str_init(&str);
    assert_string_equal(nmlp_str_text(&str), "");
    nmlp_str_append(&str, "a\0b", 3);
    for (int i = 0; i < 1000; i++) nmlp_str_printf(&str, "%d,", i % 10);
    assert_int_equal(str.len, 3 + 2000);
    assert_memory_equal(str.data, "a\0b0,1,", 7);
    assert_int_equal(str.data[str.len], 0);
    nmlp_str_fini(&str);
}

static void map_finds_what_was_put(void **state) {
    nmlp_hashmap map;
    static char keys[5000][8];
    uint32_t value;
    (void)state;
    nmlp_hashmap_init(&map);
    assert_false(nmlp_hashmap_get(&map, "x", 1, &value));
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(keys[i], sizeof keys[i], "k%u", i);
        nmlp_assert_ok(nmlp_hashmap_put(&map, keys[i], strlen(keys[i]), i * 3, NULL), NULL);
    }
    nmlp_assert_ok(nmlp_hashmap_put(&map, "k7", 2, 99, NULL), NULL);
    assert_int_equal(map.n_used, 5000);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_true(nmlp_hashmap_get(&map, keys[i], strlen(keys[i]), &value));
        assert_int_equal(value, i == 7 ? 99 : i * 3);
    }
    assert_false(nmlp_hashmap_get(&map, "k5000", 5, &value));
    nmlp_hashmap_fini(&map);
}

/* First outputs of SplitMix64 for seed 0, from its public reference description. */
static void random_numbers_are_splitmix64(void **state) {
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 0);
    assert_true(nmlp_rng_next(&rng) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(nmlp_rng_next(&rng) == UINT64_C(0x6e789e6aa1b965f4));
}

static void normal_numbers_have_mean_zero_and_variance_one(void **state) {
    enum { N = 200000 };
    nmlp_rng rng;
    double sum = 0;
    double squares = 0;
    (void)state;
    nmlp_rng_seed(&rng, 42);
    for (int i = 0; i < N; i++) {
        double x = nmlp_rng_normal(&rng);
        sum += x;
        squares += x * x;
    }
    /* five standard errors: 1/sqrt(N) and sqrt(2/N) */
    assert_true(sum / N < 5 * 0.00224 && sum / N > -5 * 0.00224);
    assert_true(squares / N - 1 < 5 * 0.00317 && squares / N - 1 > -5 * 0.00317);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(text_grows_and_keeps_nul_bytes),
        cmocka_unit_test(map_finds_what_was_put),
        cmocka_unit_test(random_numbers_are_splitmix64),
        cmocka_unit_test(normal_numbers_have_mean_zero_and_variance_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
