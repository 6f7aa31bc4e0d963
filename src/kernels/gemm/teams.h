/* How the threads of a job share blocks of rows: in teams of one size, each with a block at a time (plan.h). */
#ifndef NMLP_KERNELS_GEMM_TEAMS_H
#define NMLP_KERNELS_GEMM_TEAMS_H

#include <stdatomic.h>

#include "kernels/gemm/blocking.h"

typedef struct nmlp_teams {
    int n;
    int n_max;   /* for fewer rows or threads: what memory is laid out for */
    int threads; /* of one team */
    int64_t s;
    int64_t rows;        /* of a block */
    int64_t rows_at_end; /* of the blocks of the last quarter, taken by single threads: less to wait for */
    _Atomic int64_t next_row;
} nmlp_teams;

/* A block; n is 0 when none is left. */
typedef struct nmlp_row_block {
    int64_t first;
    int64_t n;
} nmlp_row_block;

static inline void nmlp_teams_init(nmlp_teams *teams, const nmlp_plan *plan, int64_t s, int n_threads) {
    teams->n = nmlp_plan_teams(plan, s, n_threads);
    teams->n_max = nmlp_plan_teams_cap(plan, s, n_threads);
    teams->threads = n_threads / teams->n;
    teams->s = s;
    teams->rows = nmlp_plan_team_rows(plan, s, teams->n);
    teams->rows_at_end = nmlp_ceil_div(teams->rows / 2, plan->gemm->mr) * plan->gemm->mr;
    atomic_init(&teams->next_row, 0);
}

static inline nmlp_row_block nmlp_teams_block(const nmlp_teams *teams, int64_t first, int64_t rows) {
    return (nmlp_row_block){.first = first, .n = nmlp_max(0, nmlp_min(rows, teams->s - first))};
}

/* A team's block number `at`. Single threads take what is next, so that a slow one delays nobody. */
static inline nmlp_row_block nmlp_teams_take(nmlp_teams *teams, int team, int64_t at) {
    if (teams->threads > 1) return nmlp_teams_block(teams, (team + at * teams->n) * teams->rows, teams->rows);
    int64_t first = atomic_load_explicit(&teams->next_row, memory_order_relaxed);
    int64_t rows;
    do {
        bool at_end = teams->n > 1 && 4 * (teams->s - first) <= teams->s;
        rows = at_end ? teams->rows_at_end : teams->rows;
    } while (!atomic_compare_exchange_weak_explicit(&teams->next_row, &first, first + rows, memory_order_relaxed,
                                                    memory_order_relaxed));
    return nmlp_teams_block(teams, first, rows);
}

/* Threads that wait for others need two buffers in turn; one alone keeps its cache for one. */
static inline int nmlp_teams_buffer(const nmlp_teams *teams, int64_t at) {
    return teams->threads > 1 ? (int)(at & 1) : 0;
}

#endif
