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

static int64_t floor_rank(const nmlp_allocation *a, int64_t b, int matrix) {
    return a->floor > 0 ? (int64_t)(a->floor * (double)a->uniform[b].rank[matrix]) : 0;
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

/* Every option of `list` with every rank of matrix i. */
static nmlp_status multiply_options(const nmlp_allocation *a, int64_t b, int i, struct list *list, nmlp_err *err) {
    const nmlp_nested *n = &a->factor_files[b].nested[i];
    const nmlp_block *block = &a->blocks[b];
    int64_t low = lowest_rank(a, n, floor_rank(a, b, i)), top = top_rank(n, a->tile);
    struct list all = {0};
    nmlp_status st = NMLP_OK;
    for (size_t o = 0; o < list->n && st == NMLP_OK; o++) {
        for (int64_t k = a->dense ? 0 : low; k <= top && st == NMLP_OK; k = k == 0 ? low : k + a->tile) {
            nmlp_rank_option option = list->at[o];
            option.cost += a->cost->matrix(a->cost->ctx, block->rows[i], block->cols[i], k);
            option.loss += loss_at(n, k);
            option.rank[i] = k;
            st = push(&all, option, err);
            if (k == 0 && low == 0) break; /* no multiple of the tile saves anything: dense is all there is */
        }
    }
    nmlp_mem_free(list->at);
    *list = all;
    return st;
}

static nmlp_status list_separate(const nmlp_allocation *a, int64_t b, struct list *list, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(push(list, (nmlp_rank_option){0}, err));
    for (int i = 0; i < a->blocks[b].n_first; i++) {
        /* What is beaten now stays beaten, and products of three would be many. */
        if (i > 1) list->n = (size_t)nmlp_rank_options_prune(list->at, (int64_t)list->n);
        NMLP_RETURN_IF_FAILED(multiply_options(a, b, i, list, err));
    }
    for (size_t o = 0; o < list->n; o++) list->at[o].loss = weighted(a, a->s_first[b], list->at[o].loss);
    return NMLP_OK;
}

static nmlp_status list_joint(const nmlp_allocation *a, int64_t b, struct list *list, nmlp_err *err) {
    const nmlp_block *block = &a->blocks[b];
    const nmlp_nested *joint = &a->factor_files[b].nested[block->n_first + 1];
    int64_t low = lowest_rank(a, joint, floor_rank(a, b, 0));
    for (int64_t k = low; k > 0 && k <= top_rank(joint, a->tile); k += a->tile) {
        nmlp_rank_option option = {.cost = a->cost->matrix(a->cost->ctx, joint->rows, joint->cols, k),
                                   .loss = weighted(a, a->s_first[b], joint->loss[k]),
                                   .joint = true};
        for (int i = 0; i < block->n_first; i++) option.rank[i] = k;
        NMLP_RETURN_IF_FAILED(push(list, option, err));
    }
    if (a->separate || !a->dense) return NMLP_OK;
    nmlp_rank_option dense = {0};
    for (int i = 0; i < block->n_first; i++)
        dense.cost += a->cost->matrix(a->cost->ctx, block->rows[i], block->cols[i], 0);
    return push(list, dense, err);
}

static nmlp_status list_last(const nmlp_allocation *a, int64_t b, struct list *list, nmlp_err *err) {
    int last = a->blocks[b].n_first;
    const nmlp_nested *n = &a->factor_files[b].nested[last];
    int64_t low = lowest_rank(a, n, floor_rank(a, b, last));
    for (int64_t k = a->dense ? 0 : low; k <= top_rank(n, a->tile); k = k == 0 ? low : k + a->tile) {
        nmlp_rank_option option = {.cost = a->cost->matrix(a->cost->ctx, n->rows, n->cols, k),
                                   .loss = weighted(a, a->s_last[b], loss_at(n, k)),
                                   .rank = {k}};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
        if (k == 0 && low == 0) break;
    }
    return NMLP_OK;
}

/* Of all fields: without memory qsort is not stable, and what is chosen must not depend on that. */
static int by_cost_then_loss(const void *x, const void *y) {
    const nmlp_rank_option *a = x;
    const nmlp_rank_option *b = y;
    if (a->cost != b->cost) return a->cost < b->cost ? -1 : 1;
    if (a->loss != b->loss) return a->loss < b->loss ? -1 : 1;
    for (int i = 0; i < NMLP_MODULE_MATRICES_MAX - 1; i++)
        if (a->rank[i] != b->rank[i]) return a->rank[i] < b->rank[i] ? -1 : 1;
    if (a->joint != b->joint) return a->joint ? 1 : -1;
    for (int i = 0; i < 2; i++)
        if (a->format[i] != b->format[i]) return a->format[i] < b->format[i] ? -1 : 1;
    return 0;
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
    int64_t n_groups = 2 * a->n_blocks;
    nmlp_status st = NMLP_OK;
    nmlp_rank_group *groups = nmlp_mem_new((size_t)n_groups, sizeof *groups, err);
    int64_t *chosen = nmlp_mem_new((size_t)n_groups, sizeof *chosen, err);
    if (!groups || !chosen) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int64_t g = 0; g < n_groups; g++) {
        struct list list = {0};
        int64_t b = g / 2;
        if (g % 2 == 0 && a->separate) st = list_separate(a, b, &list, err);
        if (g % 2 == 0 && a->joint && st == NMLP_OK) st = list_joint(a, b, &list, err);
        if (g % 2 == 1) st = list_last(a, b, &list, err);
        for (size_t i = 0; i < list.n; i++) list.at[i].cost *= (double)nmlp_factor_file_mlps(&a->factor_files[b]);
        list.n = (size_t)nmlp_rank_options_prune(list.at, (int64_t)list.n);
        groups[g] = (nmlp_rank_group){.options = list.at, .n_options = (int64_t)list.n};
        if (st != NMLP_OK) goto out;
    }
    NMLP_TRY(nmlp_knapsack_solve(groups, n_groups, a->budget, choose_unit(a, groups, n_groups), chosen, err));
    for (int64_t b = 0; b < a->n_blocks; b++) {
        const nmlp_rank_option *first = &groups[2 * b].options[chosen[2 * b]];
        const nmlp_rank_option *last = &groups[2 * b + 1].options[chosen[2 * b + 1]];
        int n_first = a->blocks[b].n_first;
        ranks[b] = (nmlp_layer_ranks){.joint = first->joint};
        memcpy(ranks[b].rank, first->rank, (size_t)n_first * sizeof first->rank[0]);
        ranks[b].rank[n_first] = last->rank[0];
    }
out:
    for (int64_t g = 0; groups && g < n_groups; g++) nmlp_mem_free(groups[g].options);
    nmlp_mem_free(groups);
    nmlp_mem_free(chosen);
    return st;
}
