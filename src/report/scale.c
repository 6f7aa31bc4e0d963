#include "report/scale.h"

#include <math.h>

/* A round step of 1, 2 or 5 times a power of ten. */
static double round_step(double span, int n_ticks) {
    double power = pow(10, floor(log10(span / n_ticks)));
    double rest = span / n_ticks / power;
    return power * (rest > 5 ? 10 : rest > 2 ? 5 : rest > 1 ? 2 : 1);
}

/* The largest (up: smallest) of 1, 2, 5 times a power of ten not above (below) the value. */
static double round_125(double value, bool up) {
    double power = pow(10, floor(log10(value) + 1e-12));
    double rest = value / power;
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 3; i++)
        if (rest <= steps[i + 1] * (1 + 1e-9)) {
            if (fabs(rest / steps[i] - 1) < 1e-9) return power * steps[i];
            if (fabs(rest / steps[i + 1] - 1) < 1e-9) return power * steps[i + 1];
            return power * steps[up ? i + 1 : i];
        }
    return power;
}

static nmlp_scale logarithmic(nmlp_scale_kind kind, double least, double most) {
    nmlp_scale s = {.kind = kind};
    if (kind == NMLP_SCALE_DECADES) {
        s.low = pow(10, floor(log10(least)));
        s.high = pow(10, ceil(log10(most)));
        if (s.high <= s.low) s.high = 10 * s.low;
        return s;
    }
    s.low = round_125(least, false);
    s.high = round_125(most, true);
    if (s.high <= s.low) s.high = round_125(1.5 * s.low, true);
    return s;
}

nmlp_scale nmlp_scale_around(nmlp_scale_kind kind, const double *values, size_t n, int n_ticks) {
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i]) || (kind != NMLP_SCALE_LINEAR && values[i] <= 0)) continue;
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    if (!(least <= most)) least = most = kind == NMLP_SCALE_LINEAR ? 0 : 1;
    if (kind != NMLP_SCALE_LINEAR) return logarithmic(kind, least, most);
    if (least == most) most = least + (least != 0 ? fabs(least) * 0.1 : 1);
    nmlp_scale s = {.kind = kind, .step = round_step(most - least, n_ticks)};
    s.low = floor(least / s.step + 1e-9) * s.step;
    s.high = ceil(most / s.step - 1e-9) * s.step;
    return s;
}

double nmlp_scale_place(const nmlp_scale *s, double value) {
    if (s->kind == NMLP_SCALE_LINEAR) return (value - s->low) / (s->high - s->low);
    return log10(value / s->low) / log10(s->high / s->low);
}

static int log_ticks(const nmlp_scale *s, double *ticks) {
    static const double steps[] = {1, 2, 5};
    bool fine = s->kind == NMLP_SCALE_LOG && log10(s->high / s->low) < 2.5;
    int n = 0;
    for (double e = floor(log10(s->low) + 1e-9); e <= log10(s->high) + 1e-9; e++)
        for (int i = 0; i < (fine ? 3 : 1); i++) {
            double tick = steps[i] * pow(10, e);
            if (tick >= s->low * (1 - 1e-9) && tick <= s->high * (1 + 1e-9) && n < NMLP_SCALE_TICKS_MAX)
                ticks[n++] = tick;
        }
    return n;
}

int nmlp_scale_ticks(const nmlp_scale *s, double ticks[NMLP_SCALE_TICKS_MAX]) {
    int n = 0;
    if (s->kind != NMLP_SCALE_LINEAR) return log_ticks(s, ticks);
    for (double at = s->low; at <= s->high + 0.5 * s->step && n < NMLP_SCALE_TICKS_MAX; at += s->step)
        ticks[n++] = fabs(at) < 1e-9 * s->step ? 0 : at;
    return n;
}
