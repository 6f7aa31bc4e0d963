#include "train/schedule.h"

#include <math.h>

double nmlp_train_schedule_rate(const nmlp_train_schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846;
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);
    int64_t falling = s->steps - 1 - s->warmup;
    if (falling <= 0) return s->peak;
    double way = (double)(step - s->warmup) / (double)falling;
    return s->peak * (s->floor + (1 - s->floor) * 0.5 * (1 + cos(pi * way)));
}
