/* Bounds of indices over all iterations.
 *
 * A loop variable v runs to min(full, ceil(rest/step)) - 1, so v <= full-1 and v <= (rest-1)/step, where rest is affine
 * in outer variables. The upper bound of an index substitutes one of the two for its innermost variable and goes on;
 * the smaller result of the two is taken. That is exact for the usual tile-in-block index, where block and tile
 * variables cancel against the edge. */
#include <math.h>

#include "trainium/neuron/check.h"

typedef struct real_affine {
    double base;
    int n_terms;
    struct {
        int var;
        double coef;
    } terms[2 * NMLP_AFFINE_TERMS_MAX];
} real_affine;

static real_affine to_real(const nmlp_affine *a) {
    real_affine r = {.base = (double)a->base, .n_terms = a->n_terms};
    for (int i = 0; i < a->n_terms; i++) {
        r.terms[i].var = a->terms[i].var;
        r.terms[i].coef = (double)a->terms[i].coef;
    }
    return r;
}

/* Adds factor * a; false when there are too many variables. */
static bool add_scaled(real_affine *r, const nmlp_affine *a, double factor) {
    r->base += factor * (double)a->base;
    for (int i = 0; i < a->n_terms; i++) {
        int at = 0;
        while (at < r->n_terms && r->terms[at].var != a->terms[i].var) at++;
        if (at == r->n_terms) {
            if (r->n_terms == 2 * NMLP_AFFINE_TERMS_MAX) return false;
            r->terms[r->n_terms].var = a->terms[i].var;
            r->terms[r->n_terms++].coef = 0;
        }
        r->terms[at].coef += factor * (double)a->terms[i].coef;
    }
    return true;
}

/* Is rest a multiple of step in every iteration? Then ceil(rest/step) - 1 is rest/step - 1. */
static bool divides(const nmlp_affine *rest, int64_t step) {
    bool all = rest->base % step == 0;
    for (int i = 0; i < rest->n_terms; i++) all = all && rest->terms[i].coef % step == 0;
    return all;
}

static double upper(const nmlp_program *p, real_affine r, int budget) {
    int inner = -1;
    for (int i = 0; i < r.n_terms; i++)
        if (inner < 0 || r.terms[i].var > r.terms[inner].var) inner = i;
    if (inner < 0) return r.base;
    int var = r.terms[inner].var;
    double coef = r.terms[inner].coef;
    r.terms[inner] = r.terms[--r.n_terms];
    if (coef <= 1e-9) return upper(p, r, budget); /* smallest value of v is 0 */

    const nmlp_size *trips = &p->loops[var].trips;
    real_affine by_full = r;
    by_full.base += coef * (double)(trips->full > 0 ? trips->full - 1 : 0);
    double best = upper(p, by_full, budget);
    if (!trips->clamped || budget == 0) return best;
    real_affine by_rest = r;
    by_rest.base -= divides(&trips->rest, trips->step) ? coef : coef / (double)trips->step;
    if (!add_scaled(&by_rest, &trips->rest, coef / (double)trips->step)) return best;
    double other = upper(p, by_rest, budget - 1);
    return other < best ? other : best;
}

enum { SUBSTITUTIONS_MAX = 6 };

int64_t nmlp_affine_upper(const nmlp_program *p, const nmlp_affine *a) {
    return (int64_t)floor(upper(p, to_real(a), SUBSTITUTIONS_MAX) + 1e-6);
}

int64_t nmlp_size_upper(const nmlp_program *p, const nmlp_size *s) {
    if (!s->clamped) return s->full;
    int64_t rest = nmlp_affine_upper(p, &s->rest);
    int64_t n = rest <= 0 ? 0 : (rest + s->step - 1) / s->step;
    return n < s->full ? n : s->full;
}
