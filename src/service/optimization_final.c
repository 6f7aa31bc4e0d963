/* The choice: the fastest points, at least one of every kind, are verified and timed in repeats beside the dense model.
 */
#include <math.h>

#include "bench/samples.h"
#include "service/finalists.h"
#include "service/optimization_internal.h"

/* Kinds of points: the answer is compared with the best of each. */
enum kind { KIND_FORMAT, KIND_BITS, KIND_RANKS, KIND_MIXED, KIND_TRAINED, KINDS, KIND_ANY = KINDS };
_Static_assert((int)NMLP_FINALISTS_MAX <= (int)NMLP_BENCH_MODELS_MAX, "they are measured together");

static const double LEAST_MEASURED = 0.02, LEAST_SIMULATED = 0.001; /* shares of time for which nothing is lost */
/* By the first timing: of a kind none is looked at beyond this multiple of the dense model's time, and of the others
 * none beyond this multiple of the fastest one's. */
static const double NEAR_DENSE = 1.1, NEAR_FASTEST = 1.15;

static enum kind kind_of(const struct nmlp_optimize_job *j, int point) {
    const nmlp_optimized_point *p = &j->result->points[point];
    if (p->trained) return KIND_TRAINED;
    if (point - 1 == j->q8 || point - 1 == j->q4) return KIND_FORMAT;
    return p->ranks && p->bits ? KIND_MIXED : p->ranks ? KIND_RANKS : KIND_BITS;
}

static const nmlp_mix *mix_of(const struct nmlp_optimize_job *j, int point) {
    return &j->models.list[point == j->trained ? j->trained_from : point - 1].mix;
}

/* The fastest of a kind within `ms` by the first timing; 0: none. */
static int fastest_of(const struct nmlp_optimize_job *j, enum kind kind, double ms, const bool *seen) {
    const nmlp_optimization *r = j->result;
    int best = 0;
    for (int i = 1; i < r->n_points; i++)
        if (!seen[i] && r->points[i].within && (kind == KIND_ANY || kind_of(j, i) == kind) &&
            r->points[i].ms < (best ? r->points[best].ms : ms))
            best = i;
    return best;
}

static nmlp_status verify(const struct nmlp_optimize_job *j, int point, nmlp_divergence *d, nmlp_err *err) {
    *d = (nmlp_divergence){0};
    if (j->verify.len == 0) return NMLP_OK;
    return nmlp_mix_models_compare(&j->models, nmlp_optimize_dir(j, point), j->verify.data, (int64_t)j->verify.len, d,
                                   err);
}

/* Those that are measured once more, with what the verification says of each. */
struct picked {
    nmlp_finalists finalists;
    nmlp_divergence verified[NMLP_FINALISTS_MAX];
    bool seen[NMLP_OPTIMIZED_POINTS_MAX];
};

/* *taken: it keeps the bound on the text of the verification too. */
static nmlp_status try_point(struct nmlp_optimize_job *j, struct picked *picked, int point, bool *taken,
                             nmlp_err *err) {
    nmlp_optimized_point *p = &j->result->points[point];
    nmlp_finalists *f = &picked->finalists;
    nmlp_divergence d;
    if (!nmlp_progress_update(j->models.method.progress, "verifying", f->n, NMLP_FINALISTS_MAX, "models"))
        return nmlp_fail(err, NMLP_E_INTERRUPTED, "the verification was stopped");
    NMLP_RETURN_IF_FAILED(verify(j, point, &d, err));
    picked->seen[point] = true;
    p->refused = d.nll - d.nll_before > j->result->bound;
    j->result->n_stepped_back += p->refused;
    *taken = !p->refused;
    if (p->refused) return NMLP_OK;
    picked->verified[f->n] = d;
    f->list[f->n++] = (nmlp_finalist){.point = point, .loss = p->loss};
    return NMLP_OK;
}

/* The fastest of each kind; then, as far as there is room, others that are nearly as fast as the fastest. */
static nmlp_status pick(struct nmlp_optimize_job *j, struct picked *picked, nmlp_err *err) {
    const nmlp_optimization *r = j->result;
    nmlp_finalists *f = &picked->finalists;
    double near_ms = r->points[0].ms;
    f->n = 1;
    for (int i, kind = 0; kind < KINDS; kind++) {
        bool taken = false;
        while (!taken && (i = fastest_of(j, (enum kind)kind, NEAR_DENSE * r->points[0].ms, picked->seen)) != 0)
            NMLP_RETURN_IF_FAILED(try_point(j, picked, i, &taken, err));
        if (taken) near_ms = fmin(near_ms, r->points[i].ms);
    }
    for (int i; f->n < NMLP_FINALISTS_MAX;) {
        bool taken;
        if ((i = fastest_of(j, KIND_ANY, NEAR_FASTEST * near_ms, picked->seen)) == 0) break;
        NMLP_RETURN_IF_FAILED(try_point(j, picked, i, &taken, err));
    }
    return NMLP_OK;
}

/* What the first timing says; for a simulation that is all there is to say. */
static void fill_ratios(const nmlp_optimization *r, nmlp_finalists *f) {
    f->n_repeats = 1;
    f->least = LEAST_SIMULATED;
    for (int i = 0; i < f->n; i++) f->list[i].ratio[0] = r->points[f->list[i].point].ms / r->points[0].ms;
}

/* Each repeat opens the models in another order. */
static nmlp_status repeat(struct nmlp_optimize_job *j, nmlp_finalists *f, int which, double *dense_ms, nmlp_err *err) {
    const char *dirs[NMLP_FINALISTS_MAX];
    double ms[NMLP_FINALISTS_MAX];
    nmlp_workload_timer timer = j->timer;
    timer.rounds = NMLP_FINAL_ROUNDS;
    for (int i = 0; i < f->n; i++) dirs[i] = nmlp_optimize_dir(j, f->list[(i + which) % f->n].point);
    NMLP_RETURN_IF_FAILED(nmlp_workload_time(&timer, dirs, f->n, ms, err));
    *dense_ms = ms[(f->n - which % f->n) % f->n];
    for (int i = 0; i < f->n; i++) f->list[(i + which) % f->n].ratio[which] = ms[i] / *dense_ms;
    return NMLP_OK;
}

static nmlp_status time_finalists(struct nmlp_optimize_job *j, nmlp_finalists *f, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    nmlp_samples dense = {.n = 0};
    f->n_repeats = NMLP_FINAL_REPEATS;
    f->least = LEAST_MEASURED;
    for (int i = 0; i < f->n_repeats; i++) {
        double ms;
        if (!nmlp_progress_update(j->models.method.progress, "timing in repeats", i, f->n_repeats, "repeats"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "timing was stopped");
        NMLP_RETURN_IF_FAILED(repeat(j, f, i, &ms, err));
        nmlp_samples_add(&dense, ms);
    }
    /* Points that were timed once keep their ratio to the dense model. */
    double scale = nmlp_samples_quantile(&dense, 0.5) / r->points[0].ms;
    for (int i = 0; i < r->n_points; i++) r->points[i].ms *= scale;
    for (int i = 0; i < f->n; i++) {
        nmlp_optimized_point *p = &r->points[f->list[i].point];
        double low, high;
        nmlp_finalist_range(f, i, &low, &high);
        p->ms = r->points[0].ms * nmlp_finalist_ratio(f, i);
        p->speedup_low = 1 / high;
        p->speedup_high = 1 / low;
    }
    r->n_repeats = f->n_repeats;
    return NMLP_OK;
}

static nmlp_verdict verdict_of(const nmlp_optimized_point *p) {
    return p->ranks && p->bits ? NMLP_VERDICT_MIXED
           : p->ranks          ? NMLP_VERDICT_RANKS
           : p->bits           ? NMLP_VERDICT_BITS
                               : NMLP_VERDICT_DENSE;
}

nmlp_status nmlp_optimize_choose(struct nmlp_optimize_job *j, nmlp_err *err) {
    nmlp_optimization *r = j->result;
    struct picked picked = {.finalists = {.n = 0}};
    nmlp_finalists *f = &picked.finalists;
    int fastest;
    NMLP_RETURN_IF_FAILED(pick(j, &picked, err));
    if (r->simulated || f->n == 1)
        fill_ratios(r, f);
    else
        NMLP_RETURN_IF_FAILED(time_finalists(j, f, err));
    int chosen = nmlp_finalists_choose(f, &fastest);
    r->chosen = f->list[chosen].point;
    r->fastest = f->list[fastest].point;
    r->verified = picked.verified[chosen];
    r->verdict = verdict_of(&r->points[r->chosen]);
    if (r->chosen > 0) return nmlp_mix_copy(&r->mix, mix_of(j, r->chosen), err);
    nmlp_quant_format plain = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN);
    return nmlp_mix_uniform(&r->mix, r->config.n_layers, &plain, &plain, err);
}
