/* Rounding of one row. */
#include <math.h>

#include "base/mem.h"
#include "lib/guard.h"
#include "lib/testing.h"
#include "tensor/quant.h"

/* What is no number has some code, and what lies behind the row is not touched: 85 codes of 6 bits end in its last
 * byte. */
static void rows_with_nan_stay_inside(void **state) {
    enum { K = 85 };
    static const nmlp_dtype types[] = {NMLP_DTYPE_Q8, NMLP_DTYPE_Q6};
    (void)state;
    for (int t = 0; t < 2; t++) {
        nmlp_guarded guarded;
        float w[K], back[K], scale;
        nmlp_view view = nmlp_view_2d(NULL, types[t], 1, K);
        view.data = nmlp_guard_end(&guarded, nmlp_view_bytes(&view));
        view.scales = &scale;
        for (int i = 0; i < K; i++) w[i] = (float)(i % 11 - 5);
        w[3] = w[K - 1] = NAN;
        nmlp_quant_row_from_f32(&view, 0, w);
        nmlp_quant_row_to_f32(back, &view, 0);
        for (int i = 0; i < K; i++) {
            assert_true(isfinite(back[i]));
            if (isfinite(w[i])) assert_true(fabsf(back[i] - w[i]) <= 1.001f * fabsf(scale));
        }
        nmlp_guard_free(&guarded);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_with_nan_stay_inside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
