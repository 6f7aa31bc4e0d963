#include "compress/ranks/allocate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { UNITS_MAX = 1 << 18, OPTIONS_MAX = 65535 };

/* ---- the knapsack ---- */

/* best[b] after the groups so far, at most b units spent; pick[g][b] the option group g took there. */
struct table {
    double *best;
    double *next;
    uint16_t *pick; /* [n_groups, n_units+1] */
    int64_t n_units;
};

static int64_t units_of(double cost, double unit) { return (int64_t)ceil(cost / unit - 1e-9); }

static void add_group(struct table *t, const nmlp_rank_group *group, double unit, uint16_t *pick) {
    for (int64_t b = 0; b <= t->n_units; b++) {
        t->next[b] = INFINITY;
        pick[b] = 0;
    }
    for (int64_t o = 0; o < group->n_options; o++) {
        int64_t cost = units_of(group->options[o].cost, unit);
        double loss = group->options[o].loss;
        for (int64_t b = cost; b <= t->n_units; b++) {
            double total = t->best[b - cost] + loss;
            if (total < t->next[b]) {
                t->next[b] = total;
                pick[b] = (uint16_t)o;
            }
        }
    }
    double *swap = t->best;
    t->best = t->next;
    t->next = swap;
}

nmlp_status nmlp_knapsack_solve(const nmlp_rank_group *groups, int64_t n_groups, double budget, double unit,
                                int64_t *chosen, nmlp_err *err) {
    struct table t = {.n_units = (int64_t)floor(budget / unit + 1e-9)};
    nmlp_status st = NMLP_E_NOMEM;
    if (t.n_units < 0) t.n_units = 0;
    size_t width = (size_t)t.n_units + 1;
    t.best = nmlp_mem_new(width, sizeof *t.best, err);
    t.next = nmlp_mem_new(width, sizeof *t.next, err);
    t.pick = nmlp_mem_new(width * (size_t)n_groups, sizeof *t.pick, err);
    if (!t.best || !t.next || !t.pick) goto out;
    for (int64_t g = 0; g < n_groups; g++) add_group(&t, &groups[g], unit, t.pick + (size_t)g * width);
    if (!isfinite(t.best[t.n_units])) {
        st = nmlp_fail(err, NMLP_E_LIMIT, "no choice of ranks fits into a budget of %.6g", budget);
        goto out;
    }
    int64_t left = t.n_units;
    for (int64_t g = n_groups; g-- > 0;) {
        chosen[g] = t.pick[(size_t)g * width + (size_t)left];
        left -= units_of(groups[g].options[chosen[g]].cost, unit);
    }
    st = NMLP_OK;
out:
    nmlp_mem_free(t.best);
    nmlp_mem_free(t.next);
    nmlp_mem_free(t.pick);
    return st;
}

int64_t nmlp_rank_uniform(int64_t rows, int64_t cols, double ratio, int64_t tile) {
    int64_t most = nmlp_rank_break_even(rows, cols) / tile * tile;
    double want = (1 - ratio) * (double)rows * (double)cols / (double)(rows + cols);
    int64_t rank = (int64_t)floor(want / (double)tile + 0.5) * tile;
    if (rank < tile) rank = tile;
    return rank < most ? rank : most;
}

/* ---- options from error curves ---- */

static double share_lost(const nmlp_nested *n, int64_t rank) { return n->loss[0] > 0 ? n->loss[rank] / n->loss[0] : 0; }

/* rank 0 is dense */
static double loss_at(const nmlp_nested *n, int64_t rank) { return rank == 0 ? 0 : n->loss[rank]; }

static double weighted(const nmlp_allocation *a, double s, double loss) {
    return a->power == 1 ? s * loss : s * pow(loss, a->power);
}

static int64_t top_rank(const nmlp_nested *n, int64_t tile) { return n->rank / tile * tile; }

static int64_t lowest_rank(const nmlp_allocation *a, const nmlp_nested *n, int64_t floor_rank) {
    int64_t low = (floor_rank + a->tile - 1) / a->tile * a->tile;
    int64_t top = top_rank(n, a->tile);
    if (low < a->tile) low = a->tile;
    if (low > top) low = top;
    while (low < top && share_lost(n, low) > a->cap) low += a->tile;
    return low;
}

static int64_t floor_rank(const nmlp_allocation *a, int64_t l, nmlp_mlp_matrix matrix) {
    return a->floor > 0 ? (int64_t)(a->floor * (double)a->uniform[l].rank[matrix]) : 0;
}

struct list {
    nmlp_rank_option *at;
    size_t n, capacity;
};

static nmlp_status push(struct list *list, nmlp_rank_option option, nmlp_err *err) {
    void *at = list->at;
    nmlp_status st = nmlp_mem_grow(&at, &list->capacity, list->n + 1, sizeof option, err);
    list->at = at;
    if (st == NMLP_OK) list->at[list->n++] = option;
    return st;
}

static nmlp_status list_separate(const nmlp_allocation *a, int64_t l, struct list *list, nmlp_err *err) {
    const nmlp_nested *gate = &a->factor_files[l].nested[NMLP_NESTED_GATE];
    const nmlp_nested *up = &a->factor_files[l].nested[NMLP_NESTED_UP];
    int64_t low_gate = lowest_rank(a, gate, floor_rank(a, l, NMLP_MLP_GATE));
    int64_t low_up = lowest_rank(a, up, floor_rank(a, l, NMLP_MLP_GATE));
    int64_t top = top_rank(gate, a->tile);
    for (int64_t g = a->dense ? 0 : low_gate; g <= top; g = g == 0 ? low_gate : g + a->tile) {
        for (int64_t u = a->dense ? 0 : low_up; u <= top; u = u == 0 ? low_up : u + a->tile) {
            nmlp_rank_option option = {.cost = a->cost->matrix(a->cost->ctx, gate->rows, gate->cols, g) +
                                               a->cost->matrix(a->cost->ctx, up->rows, up->cols, u),
                                       .loss = weighted(a, a->s_gate_up[l], loss_at(gate, g) + loss_at(up, u)),
                                       .rank = {g, u}};
            NMLP_RETURN_IF_FAILED(push(list, option, err));
            if (u == 0 && low_up == 0) break; /* no multiple of the tile saves anything: dense is all there is */
        }
        if (g == 0 && low_gate == 0) break;
    }
    return NMLP_OK;
}

static nmlp_status list_joint(const nmlp_allocation *a, int64_t l, struct list *list, nmlp_err *err) {
    const nmlp_nested *joint = &a->factor_files[l].nested[NMLP_NESTED_JOINT];
    int64_t low = lowest_rank(a, joint, floor_rank(a, l, NMLP_MLP_GATE));
    for (int64_t k = low; k > 0 && k <= top_rank(joint, a->tile); k += a->tile) {
        nmlp_rank_option option = {.cost = a->cost->matrix(a->cost->ctx, joint->rows, joint->cols, k),
                                   .loss = weighted(a, a->s_gate_up[l], joint->loss[k]),
                                   .rank = {k, k},
                                   .joint = true};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
    }
    if (a->separate || !a->dense) return NMLP_OK;
    nmlp_rank_option dense = {.cost = 2 * a->cost->matrix(a->cost->ctx, joint->rows / 2, joint->cols, 0)};
    return push(list, dense, err);
}

static nmlp_status list_down(const nmlp_allocation *a, int64_t l, struct list *list, nmlp_err *err) {
    const nmlp_nested *down = &a->factor_files[l].nested[NMLP_NESTED_DOWN];
    int64_t low = lowest_rank(a, down, floor_rank(a, l, NMLP_MLP_DOWN));
    for (int64_t k = a->dense ? 0 : low; k <= top_rank(down, a->tile); k = k == 0 ? low : k + a->tile) {
        nmlp_rank_option option = {.cost = a->cost->matrix(a->cost->ctx, down->rows, down->cols, k),
                                   .loss = weighted(a, a->s_down[l], loss_at(down, k)),
                                   .rank = {k, 0}};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
        if (k == 0 && low == 0) break;
    }
    return NMLP_OK;
}

static int by_cost_then_loss(const void *x, const void *y) {
    const nmlp_rank_option *a = x;
    const nmlp_rank_option *b = y;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    if (a->loss != b->loss) return a->loss < b->loss ? -1 : 1;
    if (a->rank[0] != b->rank[0]) return a->rank[0] < b->rank[0] ? -1 : 1;
    return (a->rank[1] > b->rank[1]) - (a->rank[1] < b->rank[1]);
}

int64_t nmlp_rank_options_prune(nmlp_rank_option *options, int64_t n) {
    int64_t kept = 0;
    if (n == 0) return 0;
    qsort(options, (size_t)n, sizeof *options, by_cost_then_loss);
    for (int64_t i = 0; i < n; i++)
        if (kept == 0 || options[i].loss < options[kept - 1].loss) options[kept++] = options[i];
    return kept < OPTIONS_MAX ? kept : OPTIONS_MAX;
}

static double gcd(double a, double b) {
    while (b > 0.5) {
        double rest = fmod(a, b);
        a = b;
        b = rest;
    }
    return a;
}

/* Parameters have a common divisor, which makes the knapsack exact; times do not. */
static double choose_unit(const nmlp_allocation *a, const nmlp_rank_group *groups, int64_t n_groups) {
    double unit = 0;
    bool whole = strcmp(a->cost->unit, "parameters") == 0;
    for (int64_t g = 0; whole && g < n_groups; g++)
        for (int64_t o = 0; o < groups[g].n_options; o++) unit = gcd(groups[g].options[o].cost, unit);
    double least = a->budget / UNITS_MAX;
    if (!whole) return a->budget / 8192;
    return unit > least ? unit : unit * ceil(least / unit);
}

nmlp_status nmlp_allocate(const nmlp_allocation *a, nmlp_layer_ranks *ranks, nmlp_err *err) {
    int64_t n_groups = 2 * a->n_layers;
    nmlp_status st = NMLP_OK;
    nmlp_rank_group *groups = nmlp_mem_new((size_t)n_groups, sizeof *groups, err);
    int64_t *chosen = nmlp_mem_new((size_t)n_groups, sizeof *chosen, err);
    if (!groups || !chosen) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int64_t g = 0; g < n_groups; g++) {
        struct list list = {0};
        int64_t l = g / 2;
        if (g % 2 == 0 && a->separate) st = list_separate(a, l, &list, err);
        if (g % 2 == 0 && a->joint && st == NMLP_OK) st = list_joint(a, l, &list, err);
        if (g % 2 == 1) st = list_down(a, l, &list, err);
        for (size_t i = 0; i < list.n; i++) list.at[i].cost *= (double)nmlp_factor_file_mlps(&a->factor_files[l]);
        list.n = (size_t)nmlp_rank_options_prune(list.at, (int64_t)list.n);
        groups[g] = (nmlp_rank_group){.options = list.at, .n_options = (int64_t)list.n};
        if (st != NMLP_OK) goto out;
    }
    NMLP_TRY(nmlp_knapsack_solve(groups, n_groups, a->budget, choose_unit(a, groups, n_groups), chosen, err));
    for (int64_t l = 0; l < a->n_layers; l++) {
        const nmlp_rank_option *tall = &groups[2 * l].options[chosen[2 * l]];
        const nmlp_rank_option *down = &groups[2 * l + 1].options[chosen[2 * l + 1]];
        ranks[l] = (nmlp_layer_ranks){.rank = {tall->rank[0], tall->rank[1], down->rank[0]}, .joint = tall->joint};
    }
out:
    for (int64_t g = 0; groups && g < n_groups; g++) nmlp_mem_free(groups[g].options);
    nmlp_mem_free(groups);
    nmlp_mem_free(chosen);
    return st;
}
