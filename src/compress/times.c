#include "compress/times.h"

#include "base/clock.h"

const char *nmlp_stage_name(nmlp_stage stage) {
    static const char *const names[NMLP_STAGE_COUNT] = {"statistics", "ranks", "refit", "write"};
    return names[stage];
}

const char *nmlp_work_name(nmlp_work work) {
    static const char *const names[NMLP_WORK_COUNT] = {"forward", "moments", "eigen", "products",
                                                       "packing", "compare", "files", "other"};
    return names[work];
}

/* Books the time since the last change. */
static void book(nmlp_times *t) {
    double now = nmlp_clock_seconds();
    if (t->since > 0) t->seconds[t->stage][t->work] += now - t->since;
    t->since = now;
}

void nmlp_times_stage(nmlp_times *t, nmlp_stage stage) {
    book(t);
    t->stage = stage;
    t->work = NMLP_WORK_OTHER;
}

nmlp_work nmlp_times_enter(nmlp_times *t, nmlp_work work) {
    if (!t) return work;
    nmlp_work before = t->work;
    book(t);
    t->work = work;
    return before;
}

double nmlp_times_of_stage(const nmlp_times *t, nmlp_stage stage) {
    double sum = 0;
    for (int i = 0; i < NMLP_WORK_COUNT; i++) sum += t->seconds[stage][i];
    return sum;
}

double nmlp_times_of_work(const nmlp_times *t, nmlp_work work) {
    double sum = 0;
    for (int i = 0; i < NMLP_STAGE_COUNT; i++) sum += t->seconds[i][work];
    return sum;
}

double nmlp_times_outside_forward(const nmlp_times *t) {
    double sum = 0;
    for (int i = 0; i < NMLP_WORK_COUNT; i++)
        if (i != NMLP_WORK_FORWARD) sum += nmlp_times_of_work(t, (nmlp_work)i);
    return sum;
}
