/* Two f32 in a word: how far they are off, tags, and what is not finite. */
#include <math.h>

#include "base/rng.h"
#include "cuda/mlp/mlp_cluster4_sm90_packed.h"
#include "lib/testing.h"

static uint32_t packed_as(float a, float b, uint32_t tag) {
    uint32_t w = nmlp_cuda_mlp_cluster4_pack(a, b, tag);
    assert_int_equal(w & NMLP_CUDA_MLP_CLUSTER4_TAG, tag);
    assert_int_equal(w ^ nmlp_cuda_mlp_cluster4_pack(a, b, tag ^ NMLP_CUDA_MLP_CLUSTER4_TAG),
                     NMLP_CUDA_MLP_CLUSTER4_TAG);
    return w;
}

static void check_bound(float a, float b, uint32_t tag) {
    const nmlp_cuda_mlp_cluster4_pair got = nmlp_cuda_mlp_cluster4_unpack(packed_as(a, b, tag));
    const double allowed = fmax(fabs((double)a), fabs((double)b)) * 0x1p-10;
    if (!(fabs((double)got.a - a) <= allowed && fabs((double)got.b - b) <= allowed))
        fail_msg("%a and %a became %a and %a", (double)a, (double)b, (double)got.a, (double)got.b);
}

/* Of every size, and of unlike sizes. */
static void both_are_within_the_bound(void **state) {
    (void)state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 5);
    for (int i = 0; i < 1000000; i++) {
        const int exponent = (int)(nmlp_rng_next(&rng) % 220) - 92; /* 2^-93 to 2^127 */
        const int apart = (int)(nmlp_rng_next(&rng) % 24);
        const float a = ldexpf((float)(2 * nmlp_rng_uniform(&rng) - 1), exponent);
        const float b = ldexpf((float)(2 * nmlp_rng_uniform(&rng) - 1), exponent - apart);
        check_bound(a, b, (uint32_t)i << 31);
        check_bound(b, a, (uint32_t)i << 31);
    }
}

/* Where rounding reaches the next power of two, the unit is that one's. */
static void the_largest_of_a_power_is_within_the_bound(void **state) {
    (void)state;
    for (int exponent = -90; exponent < 127; exponent++)
        for (int ulps = 1; ulps < 40000; ulps += 13) {
            const float below = ldexpf(1.0f - (float)ulps * 0x1p-24f, exponent);
            check_bound(below, -below, 0);
            check_bound(-ldexpf(1.0f, exponent - 1), below, NMLP_CUDA_MLP_CLUSTER4_TAG);
        }
}

/* Whole units come back as they were. */
static void few_bits_are_exact(void **state) {
    (void)state;
    for (int i = 512; i < 1024; i++)
        for (int j = -i; j <= i; j += 7) {
            const nmlp_cuda_mlp_cluster4_pair got =
                nmlp_cuda_mlp_cluster4_unpack(nmlp_cuda_mlp_cluster4_pack((float)i, (float)j, 0));
            assert_true(got.a == (float)i && got.b == (float)j);
        }
    const nmlp_cuda_mlp_cluster4_pair zero = nmlp_cuda_mlp_cluster4_unpack(nmlp_cuda_mlp_cluster4_pack(0.0f, -0.0f, 0));
    assert_true(zero.a == 0.0f && zero.b == 0.0f);
}

static void not_finite_is_nan(void **state) {
    const float values[] = {INFINITY,
                            -INFINITY,
                            NAN,
                            nmlp_cuda_mlp_cluster4_float(0x7fffffffu),
                            nmlp_cuda_mlp_cluster4_float(0xffffffffu),
                            nmlp_cuda_mlp_cluster4_float(0x7f800001u)};
    (void)state;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 2; j++) {
            const nmlp_cuda_mlp_cluster4_pair got = nmlp_cuda_mlp_cluster4_unpack(
                packed_as(j ? values[i] : 1.0f, j ? 1.0f : values[i], NMLP_CUDA_MLP_CLUSTER4_TAG));
            assert_true(isnan(got.a) && isnan(got.b));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_are_within_the_bound),
        cmocka_unit_test(the_largest_of_a_power_is_within_the_bound),
        cmocka_unit_test(few_bits_are_exact),
        cmocka_unit_test(not_finite_is_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
