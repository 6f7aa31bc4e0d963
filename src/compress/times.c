#include "compress/times.h"

#include "base/clock.h"

const char *nmlp_compress_stage_name(nmlp_compress_stage stage) {
    static const char *const names[NMLP_COMPRESS_STAGE_COUNT] = {"statistics", "ranks", "refit", "write"};
    return names[stage];
}

const char *nmlp_compress_work_name(nmlp_compress_work work) {
    static const char *const names[NMLP_COMPRESS_WORK_COUNT] = {"forward", "moments", "eigen", "products",
                                                                "packing", "compare", "files", "other"};
    return names[work];
}

/* Books the time since the last change. */
static void book(nmlp_compress_times *t) {
    double now = nmlp_clock_seconds();
    if (t->since > 0) t->seconds[t->stage][t->work] += now - t->since;
    t->since = now;
}

void nmlp_compress_times_stage(nmlp_compress_times *t, nmlp_compress_stage stage) {
    book(t);
    t->stage = stage;
    t->work = NMLP_COMPRESS_WORK_OTHER;
}

nmlp_compress_work nmlp_compress_times_enter(nmlp_compress_times *t, nmlp_compress_work work) {
    if (!t) return work;
    nmlp_compress_work before = t->work;
    book(t);
    t->work = work;
    return before;
}

double nmlp_compress_times_of_stage(const nmlp_compress_times *t, nmlp_compress_stage stage) {
    double sum = 0;
    for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++) sum += t->seconds[stage][i];
    return sum;
}

double nmlp_compress_times_of_work(const nmlp_compress_times *t, nmlp_compress_work work) {
    double sum = 0;
    for (int i = 0; i < NMLP_COMPRESS_STAGE_COUNT; i++) sum += t->seconds[i][work];
    return sum;
}

double nmlp_compress_times_outside_forward(const nmlp_compress_times *t) {
    double sum = 0;
    for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++)
        if (i != NMLP_COMPRESS_WORK_FORWARD) sum += nmlp_compress_times_of_work(t, (nmlp_compress_work)i);
    return sum;
}
