#include "service/finalists.h"

#include <math.h>

#include "bench/samples.h"

double nmlp_finalist_ratio(const nmlp_finalists *f, int which) {
    nmlp_samples samples = {.n = 0};
    for (int i = 0; i < f->n_repeats; i++) nmlp_samples_add(&samples, f->list[which].ratio[i]);
    return nmlp_samples_quantile(&samples, 0.5);
}

void nmlp_finalist_range(const nmlp_finalists *f, int which, double *low, double *high) {
    *low = *high = f->list[which].ratio[0];
    for (int i = 1; i < f->n_repeats; i++) {
        *low = fmin(*low, f->list[which].ratio[i]);
        *high = fmax(*high, f->list[which].ratio[i]);
    }
}

bool nmlp_finalist_leads(const nmlp_finalists *f, int a, int b) {
    nmlp_samples quotients = {.n = 0};
    int behind = 0;
    for (int i = 0; i < f->n_repeats; i++) {
        double quotient = f->list[a].ratio[i] / f->list[b].ratio[i];
        behind += quotient >= 1;
        nmlp_samples_add(&quotients, quotient);
    }
    return behind <= f->n_repeats / NMLP_FINAL_REPEATS && nmlp_samples_quantile(&quotients, 0.5) <= 1 - f->least;
}

int nmlp_finalists_choose(const nmlp_finalists *f, int *fastest) {
    *fastest = 0;
    for (int i = 1; i < f->n; i++)
        if (nmlp_finalist_ratio(f, i) < nmlp_finalist_ratio(f, *fastest)) *fastest = i;
    if (!nmlp_finalist_leads(f, *fastest, 0)) return 0;
    int chosen = *fastest;
    for (int i = 1; i < f->n; i++)
        if (nmlp_finalist_leads(f, i, 0) && !nmlp_finalist_leads(f, *fastest, i) &&
            f->list[i].loss < f->list[chosen].loss)
            chosen = i;
    return chosen;
}
