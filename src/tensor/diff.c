#include "tensor/diff.h"

#include <math.h>

static void add_pair(nmlp_diff *diff, double *err_sum, double *want_sum, double got, double want, size_t index) {
    double gap = isnan(got) && isnan(want) ? 0 : fabs(got - want);
    if (isnan(gap)) gap = got == want ? 0 : INFINITY; /* also equal infinities */
    if (gap > diff->max_abs) {
        diff->max_abs = gap;
        diff->worst = index;
    }
    if (fabs(want) > diff->max_want) diff->max_want = fabs(want);
    *err_sum += gap * gap;
    *want_sum += want * want;
}

static void finish(nmlp_diff *diff, double err_sum, double want_sum) {
    diff->rel_to_max = diff->max_abs == 0 ? 0 : diff->max_abs / diff->max_want;
    diff->nmse = err_sum == 0 ? 0 : err_sum / want_sum;
}

nmlp_diff nmlp_diff_f32(const float *got, const float *want, size_t n) {
    nmlp_diff diff = {0};
    double err_sum = 0;
    double want_sum = 0;
    for (size_t i = 0; i < n; i++) add_pair(&diff, &err_sum, &want_sum, got[i], want[i], i);
    finish(&diff, err_sum, want_sum);
    return diff;
}

nmlp_diff nmlp_diff_f64(const float *got, const double *want, size_t n) {
    nmlp_diff diff = {0};
    double err_sum = 0;
    double want_sum = 0;
    for (size_t i = 0; i < n; i++) add_pair(&diff, &err_sum, &want_sum, got[i], want[i], i);
    finish(&diff, err_sum, want_sum);
    return diff;
}
