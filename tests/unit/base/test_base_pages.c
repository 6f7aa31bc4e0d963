/* Blocks from the operating system: zeroed, writable to the last byte, refused when absurd. */
#include "base/pages.h"
#include "lib/testing.h"

static void blocks_are_zeroed_and_writable(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, (2u << 20) - 1, 2u << 20, (5u << 20) + 123};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nmlp_err err;
        unsigned char *block = nmlp_pages_new(sizes[i], &err);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 4096, 0);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(block[j], 0);
        memset(block, 0xff, sizes[i]);
        nmlp_pages_free(block, sizes[i]);
    }
    nmlp_pages_free(NULL, 100);
}

static void absurd_sizes_are_refused(void **state) {
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nmlp_err err = {.code = NMLP_OK};
        assert_null(nmlp_pages_new(sizes[i], &err));
        assert_int_equal(err.code, NMLP_E_NOMEM);
        assert_non_null(strstr(err.message, "memory"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zeroed_and_writable),
        cmocka_unit_test(absurd_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
