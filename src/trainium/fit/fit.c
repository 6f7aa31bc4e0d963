#include "trainium/fit/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "linalg/linalg.h"
#include "trainium/sim/time.h"

#define ASSUMED_NOISE 0.02
#define DERIVATIVE_STEP 0.04 /* of a number's logarithm: above the grain of the simulator's buckets */
#define STEP_MAX 0.5
#define TUKEY_WIDTH 4.685 /* times the noise: 95 % efficient on normal errors */
#define NOISE_MIN 0.002
#define ONE_SIGMA                                                                                                      \
    (3 / (TUKEY_WIDTH * TUKEY_WIDTH)) /* by which a standard error raises the cost: r^2 is 3 u^2 of it                 \
                                       */

enum { ROUNDS_MAX = 12, MEASUREMENTS_MAX = 100000, WIDENINGS_MAX = 6 };

const nmlp_machine_key nmlp_fit_default_keys[] = {
    NMLP_MACHINE_KEY_tensor_sustained, NMLP_MACHINE_KEY_dma_bytes_per_ns,
    NMLP_MACHINE_KEY_dma_row_ns,       NMLP_MACHINE_KEY_dma_small_bytes_per_ns,
    NMLP_MACHINE_KEY_dma_start_ns,     NMLP_MACHINE_KEY_vector_overhead_ns,
    NMLP_MACHINE_KEY_launch_us};
const int nmlp_fit_n_default_keys = sizeof nmlp_fit_default_keys / sizeof nmlp_fit_default_keys[0];

typedef struct fitting {
    const nmlp_machine *base;
    const nmlp_fit_measurement *list;
    int64_t n;
    nmlp_pool *pool;
    nmlp_machine_key keys[NMLP_FIT_KEYS_MAX];
    int n_keys;
    double theta[NMLP_FIT_KEYS_MAX]; /* logarithm of value over the base's */
    double *residuals;               /* [n] */
    double *slopes;                  /* [n, NMLP_FIT_KEYS_MAX] */
    double *weights;                 /* [n] */
    double *scratch;                 /* [n] */
    double noise;
} fitting;

typedef struct simulation {
    const fitting *f;
    nmlp_machine machine;
    double *us;
    nmlp_err *errs; /* by thread */
} simulation;

static void simulate_range(void *ctx, int64_t begin, int64_t end, int thread) {
    simulation *s = ctx;
    for (int64_t i = begin; i < end; i++) {
        nmlp_time_report report = {0};
        nmlp_err err = {0};
        if (nmlp_time_run(&report, s->f->list[i].program, &s->machine, NULL, &err) != NMLP_OK) s->errs[thread] = err;
        s->us[i] = report.latency_us - (s->f->list[i].with_launch ? 0 : s->machine.launch_us);
    }
}

static nmlp_machine machine_at(const fitting *f, const double *theta) {
    nmlp_machine m = *f->base;
    for (int k = 0; k < f->n_keys; k++) {
        double low, high, value = nmlp_machine_value(f->base, f->keys[k]) * exp(theta[k]);
        nmlp_machine_key_range(f->keys[k], &low, &high);
        nmlp_machine_set(&m, f->keys[k], fmin(fmax(value, low), high));
    }
    return m;
}

static nmlp_status simulate_at(const fitting *f, const double *theta, double *us, nmlp_err *err) {
    simulation s = {.f = f, .machine = machine_at(f, theta), .us = us};
    int n_threads = nmlp_pool_threads(f->pool);
    s.errs = nmlp_mem_new((size_t)n_threads, sizeof *s.errs, err);
    if (!s.errs) return NMLP_E_NOMEM;
    nmlp_pool_for(f->pool, f->n, 1, simulate_range, &s);
    nmlp_status st = NMLP_OK;
    for (int t = 0; t < n_threads && st == NMLP_OK; t++)
        if (s.errs[t].code != NMLP_OK) {
            if (err) *err = s.errs[t];
            st = s.errs[t].code;
        }
    nmlp_mem_free(s.errs);
    return st;
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median_of(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, compare_numbers);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Residuals at theta, and how far measurements scatter: the median absolute one as a standard deviation. */
static nmlp_status look(fitting *f, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(simulate_at(f, f->theta, f->scratch, err));
    for (int64_t i = 0; i < f->n; i++) f->residuals[i] = log(f->list[i].measured_us / f->scratch[i]);
    for (int64_t i = 0; i < f->n; i++) f->scratch[i] = fabs(f->residuals[i]);
    f->noise = fmax(1.4826 * median_of(f->scratch, f->n), NOISE_MIN);
    for (int64_t i = 0; i < f->n; i++) {
        double u = f->residuals[i] / (TUKEY_WIDTH * f->noise), inside = 1 - u * u;
        f->weights[i] = inside > 0 ? inside * inside : 0;
    }
    return NMLP_OK;
}

/* d log(simulated) / d theta, from both sides. */
static nmlp_status derive(fitting *f, nmlp_err *err) {
    double *up = nmlp_mem_new((size_t)f->n, sizeof *up, err);
    if (!up) return NMLP_E_NOMEM;
    nmlp_status st = NMLP_OK;
    for (int k = 0; k < f->n_keys && st == NMLP_OK; k++) {
        double theta[NMLP_FIT_KEYS_MAX];
        memcpy(theta, f->theta, sizeof theta);
        theta[k] = f->theta[k] + DERIVATIVE_STEP;
        st = simulate_at(f, theta, up, err);
        theta[k] = f->theta[k] - DERIVATIVE_STEP;
        if (st == NMLP_OK) st = simulate_at(f, theta, f->scratch, err);
        for (int64_t i = 0; i < f->n && st == NMLP_OK; i++)
            f->slopes[i * NMLP_FIT_KEYS_MAX + k] = log(up[i] / f->scratch[i]) / (2 * DERIVATIVE_STEP);
    }
    nmlp_mem_free(up);
    return st;
}

enum { K = NMLP_FIT_KEYS_MAX };

/* Step of each key and covariance of all, [n_keys, n_keys], for a noise of 1, from J^T W J; directions without
 * information get neither a step nor a small variance. */
static nmlp_status solve(const fitting *f, double *step, double covariance[K * K], nmlp_err *err) {
    double normal[K * K] = {0}, values[K] = {0}, gradient[K] = {0};
    int p = f->n_keys;
    for (int64_t i = 0; i < f->n; i++)
        for (int a = 0; a < p; a++) {
            const double *row = f->slopes + i * K;
            gradient[a] += f->weights[i] * row[a] * f->residuals[i];
            for (int b = 0; b < p; b++) normal[a * p + b] += f->weights[i] * row[a] * row[b];
        }
    NMLP_RETURN_IF_FAILED(nmlp_linalg_eigen(normal, p, values, err));
    memset(step, 0, (size_t)p * sizeof *step);
    memset(covariance, 0, (size_t)(p * p) * sizeof *covariance);
    for (int v = 0; v < p; v++) {
        const double *vector = normal + v * p;
        double along = 0, value = fmax(values[v], 1e-9);
        for (int a = 0; a < p; a++) along += vector[a] * gradient[a];
        for (int a = 0; a < p; a++) {
            if (values[v] > 1e-9) step[a] += vector[a] * along / value;
            for (int b = 0; b < p; b++) covariance[a * p + b] += vector[a] * vector[b] / value;
        }
    }
    return NMLP_OK;
}

static double cost_of(const fitting *f, const double *residuals) {
    double width = TUKEY_WIDTH * f->noise, sum = 0;
    for (int64_t i = 0; i < f->n; i++) {
        double u = fmin(fabs(residuals[i]) / width, 1), inside = 1 - u * u;
        sum += 1 - inside * inside * inside;
    }
    return sum;
}

/* One step, shortened until it is an improvement; *moved says how far it went. */
static nmlp_status improve(fitting *f, double *moved, nmlp_err *err) {
    double step[K] = {0}, covariance[K * K], start[K];
    NMLP_RETURN_IF_FAILED(look(f, err));
    NMLP_RETURN_IF_FAILED(derive(f, err));
    NMLP_RETURN_IF_FAILED(solve(f, step, covariance, err));
    double before = cost_of(f, f->residuals), scale = 1;
    memcpy(start, f->theta, sizeof start);
    *moved = 0;
    for (int tries = 0; tries < 5; tries++, scale *= 0.5) {
        for (int k = 0; k < f->n_keys; k++) f->theta[k] = start[k] + scale * fmin(fmax(step[k], -STEP_MAX), STEP_MAX);
        NMLP_RETURN_IF_FAILED(simulate_at(f, f->theta, f->scratch, err));
        for (int64_t i = 0; i < f->n; i++) f->scratch[i] = log(f->list[i].measured_us / f->scratch[i]);
        if (cost_of(f, f->scratch) >= before) continue;
        for (int k = 0; k < f->n_keys; k++) *moved = fmax(*moved, fabs(f->theta[k] - start[k]));
        return NMLP_OK;
    }
    memcpy(f->theta, start, sizeof start);
    return NMLP_OK;
}

/* Simulated times have kinks, at which slopes mislead: small changes of one key at a time are tried too. */
static nmlp_status polish(fitting *f, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(look(f, err));
    double best = cost_of(f, f->residuals);
    for (double change = 0.02; change > 0.001;) {
        bool better = false;
        for (int k = 0; k < 2 * f->n_keys; k++) {
            double start = f->theta[k / 2];
            f->theta[k / 2] = start + (k % 2 ? change : -change);
            NMLP_RETURN_IF_FAILED(simulate_at(f, f->theta, f->scratch, err));
            for (int64_t i = 0; i < f->n; i++) f->scratch[i] = log(f->list[i].measured_us / f->scratch[i]);
            double cost = cost_of(f, f->scratch);
            better = better || cost < best;
            if (cost < best)
                best = cost;
            else
                f->theta[k / 2] = start;
        }
        if (!better) change *= 0.5;
    }
    return NMLP_OK;
}

/* Takes key `k` out; its uncertainty stays in the result. */
static void put_aside(fitting *f, int k) {
    for (int i = k; i + 1 < f->n_keys; i++) {
        f->keys[i] = f->keys[i + 1];
        f->theta[i] = f->theta[i + 1];
    }
    f->n_keys--;
}

static nmlp_fit_key *key_of(nmlp_fit_result *r, nmlp_machine_key key) {
    int i = 0;
    while (r->keys[i].key != key) i++;
    return &r->keys[i];
}

/* Puts the least certain keys aside until all that stay are certain enough. */
static nmlp_status choose_keys(fitting *f, nmlp_fit_result *r, double noise, bool *changed, nmlp_err *err) {
    *changed = false;
    while (f->n_keys > 0) {
        double step[K], covariance[K * K];
        int worst = 0;
        NMLP_RETURN_IF_FAILED(derive(f, err));
        NMLP_RETURN_IF_FAILED(solve(f, step, covariance, err));
        for (int k = 0; k < f->n_keys; k++) {
            key_of(r, f->keys[k])->uncertainty = noise * sqrt(covariance[k * f->n_keys + k]);
            if (covariance[k * f->n_keys + k] > covariance[worst * f->n_keys + worst]) worst = k;
        }
        if (key_of(r, f->keys[worst])->uncertainty <= NMLP_FIT_UNCERTAIN_MAX && f->n_keys < f->n) return NMLP_OK;
        key_of(r, f->keys[worst])->fitted = false;
        put_aside(f, worst);
        *changed = true;
    }
    return nmlp_fail(err, NMLP_E_ARG, "%lld measurements determine none of the numbers", (long long)f->n);
}

/* The more keys for few measurements, the smaller the residuals that are left: Rousseeuw's correction of the noise. */
static double few_measurements(const fitting *f) { return 1 + 5 / (double)(f->n > f->n_keys ? f->n - f->n_keys : 1); }

/* How far key `k` may go to either side before the measurements speak against it, the others following as their
 * covariance says. Simulated times have kinks, behind which a number may matter less than its slope at the best fit. */
static nmlp_status widen(const fitting *f, int k, const double covariance[K * K], double *uncertainty, nmlp_err *err) {
    double linear = *uncertainty, best = cost_of(f, f->residuals), few = few_measurements(f);
    const double *along = covariance + k * f->n_keys;
    for (int side = -1; side <= 1; side += 2) {
        double reach = linear, before = 0;
        for (int i = 0; i < WIDENINGS_MAX; i++, before = reach, reach *= 1.5) {
            double theta[K];
            for (int a = 0; a < f->n_keys; a++) theta[a] = f->theta[a] + side * reach * along[a] / along[k];
            NMLP_RETURN_IF_FAILED(simulate_at(f, theta, f->scratch, err));
            for (int64_t j = 0; j < f->n; j++) f->scratch[j] = log(f->list[j].measured_us / f->scratch[j]);
            double more = cost_of(f, f->scratch) - best;
            if (more < few * few * ONE_SIGMA) continue;
            reach = fmax(before, reach * few * sqrt(ONE_SIGMA / more));
            break;
        }
        *uncertainty = fmax(*uncertainty, reach);
    }
    return NMLP_OK;
}

/* Of the keys that stayed, where the fit ended. */
static nmlp_status state_uncertainty(fitting *f, nmlp_fit_result *r, nmlp_err *err) {
    double step[K], covariance[K * K];
    NMLP_RETURN_IF_FAILED(derive(f, err));
    NMLP_RETURN_IF_FAILED(solve(f, step, covariance, err));
    for (int k = 0; k < f->n_keys; k++) {
        double *own = &key_of(r, f->keys[k])->uncertainty;
        *own *= few_measurements(f);
        NMLP_RETURN_IF_FAILED(widen(f, k, covariance, own, err));
    }
    return NMLP_OK;
}

static nmlp_status refuse_undetermined(const nmlp_fit_result *r, nmlp_err *err) {
    for (int k = 0; k < r->n_keys; k++)
        if (!r->keys[k].fitted)
            return nmlp_fail_field(err, NMLP_E_ARG, "keys",
                                   "the measurements do not determine %s: it would be uncertain by %.0f %%",
                                   nmlp_machine_key_name(r->keys[k].key), 100 * r->keys[k].uncertainty);
    return NMLP_OK;
}

static nmlp_status run(fitting *f, nmlp_fit_result *r, bool strict, nmlp_err *err) {
    bool changed = true;
    for (int64_t i = 0; i < f->n; i++) f->weights[i] = 1;
    nmlp_status chosen = choose_keys(f, r, ASSUMED_NOISE, &changed, err);
    if (strict) NMLP_RETURN_IF_FAILED(refuse_undetermined(r, err));
    if (chosen != NMLP_OK) return chosen;
    for (changed = true; changed;) {
        double moved = 1;
        for (int round = 0; round < ROUNDS_MAX && moved > 1e-4; round++) NMLP_RETURN_IF_FAILED(improve(f, &moved, err));
        NMLP_RETURN_IF_FAILED(polish(f, err));
        NMLP_RETURN_IF_FAILED(look(f, err));
        NMLP_RETURN_IF_FAILED(choose_keys(f, r, f->noise, &changed, err));
    }
    if (strict) NMLP_RETURN_IF_FAILED(refuse_undetermined(r, err));
    return state_uncertainty(f, r, err);
}

static nmlp_fit_error error_of(const fitting *f, const double *us) {
    nmlp_fit_error e = {0};
    for (int64_t i = 0; i < f->n; i++) {
        f->scratch[i] = fabs(f->list[i].measured_us / us[i] - 1);
        e.largest = fmax(e.largest, f->scratch[i]);
    }
    e.median = median_of(f->scratch, f->n);
    return e;
}

static void take_over(const fitting *f, nmlp_fit_result *r, nmlp_machine *machine, const char *source) {
    nmlp_machine fitted = machine_at(f, f->theta);
    for (int k = 0; k < f->n_keys; k++) {
        nmlp_fit_key *key = key_of(r, f->keys[k]);
        nmlp_origin *origin = &machine->origin[f->keys[k]];
        key->after = nmlp_machine_value(&fitted, f->keys[k]);
        nmlp_machine_set(machine, f->keys[k], key->after);
        origin->tag = NMLP_ORIGIN_MEASURED;
        snprintf(origin->source, sizeof origin->source, "%.100s: %lld kernels, +- %.1f %%", source, (long long)f->n,
                 100 * key->uncertainty);
    }
    for (int64_t i = 0; i < f->n; i++) r->n_outliers += f->weights[i] == 0;
}

nmlp_status nmlp_fit_machine(nmlp_fit_result *r, nmlp_machine *machine, const nmlp_fit_measurement *list, int64_t n,
                             const nmlp_machine_key *keys, int n_keys, bool strict, const char *source, nmlp_pool *pool,
                             nmlp_err *err) {
    const nmlp_machine base = *machine;
    fitting f = {.base = &base, .list = list, .n = n, .pool = pool, .n_keys = n_keys};
    nmlp_status st = NMLP_OK;
    *r = (nmlp_fit_result){.n_keys = n_keys};
    if (n_keys < 1 || n_keys > NMLP_FIT_KEYS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "keys", "must be 1 to %d", NMLP_FIT_KEYS_MAX);
    if (n < 1 || n > MEASUREMENTS_MAX) return nmlp_fail(err, NMLP_E_ARG, "no measurements to fit");
    for (int k = 0; k < n_keys; k++) {
        f.keys[k] = keys[k];
        r->keys[k] = (nmlp_fit_key){.key = keys[k], .fitted = true};
        r->keys[k].before = r->keys[k].after = nmlp_machine_value(machine, keys[k]);
    }
    double **arrays[] = {&f.residuals, &f.weights, &f.scratch, &r->simulated_us};
    for (int i = 0; i < 4; i++) *arrays[i] = nmlp_mem_new((size_t)n, sizeof **arrays[i], err);
    f.slopes = nmlp_mem_new((size_t)n * NMLP_FIT_KEYS_MAX, sizeof *f.slopes, err);
    if (!f.residuals || !f.weights || !f.scratch || !r->simulated_us || !f.slopes) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(simulate_at(&f, f.theta, r->simulated_us, err));
    r->before = error_of(&f, r->simulated_us);
    NMLP_TRY(run(&f, r, strict, err));
    NMLP_TRY(simulate_at(&f, f.theta, r->simulated_us, err));
    r->after = error_of(&f, r->simulated_us);
    take_over(&f, r, machine, source);
out:
    nmlp_mem_free(f.residuals);
    nmlp_mem_free(f.weights);
    nmlp_mem_free(f.scratch);
    nmlp_mem_free(f.slopes);
    if (st != NMLP_OK) {
        nmlp_mem_free(r->simulated_us);
        r->simulated_us = NULL;
    }
    return st;
}
