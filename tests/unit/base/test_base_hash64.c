/* XXH64 against values published with the algorithm. */
#include "base/hash64.h"
#include "lib/testing.h"

static uint64_t of(const char *text, uint64_t seed) { return nmlp_hash64(text, strlen(text), seed); }

static void published_values_are_met(void **state) {
    (void)state;
    assert_int_equal(of("", 0), 0xEF46DB3751D8E999u);
    assert_int_equal(of("a", 0), 0xD24EC4F1A98C6E5Bu);
    assert_int_equal(of("abc", 0), 0x44BC2CF5AD770999u);
    assert_int_equal(of("Nobody inspects the spammish repetition", 0),
                     0xFBCEA83C8A378BF1u); /* over 32 bytes: the lanes */
}

static void one_changed_byte_or_the_seed_changes_the_hash(void **state) {
    char text[100];
    (void)state;
    memset(text, 'x', sizeof text);
    uint64_t before = nmlp_hash64(text, sizeof text, 0);
    assert_true(before != nmlp_hash64(text, sizeof text, 1));
    for (size_t i = 0; i < sizeof text; i++) {
        text[i] ^= 1;
        assert_true(before != nmlp_hash64(text, sizeof text, 0));
        text[i] ^= 1;
    }
}

static void pieces_of_any_length_give_the_same_hash(void **state) {
    unsigned char bytes[200];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(37 * i + 11);
    for (size_t len = 0; len <= sizeof bytes; len++) {
        for (size_t step = 1; step < 70; step += 3) {
            nmlp_hash64_state hash;
            nmlp_hash64_begin(&hash, 5);
            for (size_t at = 0; at < len; at += step)
                nmlp_hash64_add(&hash, bytes + at, len - at < step ? len - at : step);
            assert_int_equal(nmlp_hash64_end(&hash), nmlp_hash64(bytes, len, 5));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values_are_met),
        cmocka_unit_test(pieces_of_any_length_give_the_same_hash),
        cmocka_unit_test(one_changed_byte_or_the_seed_changes_the_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
