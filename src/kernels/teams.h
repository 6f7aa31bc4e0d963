/* How the threads of a job share blocks of rows: in teams of one size, each with a block at a time (plan.h). */
#ifndef NMLP_KERNELS_TEAMS_H
#define NMLP_KERNELS_TEAMS_H

#include <stdatomic.h>

#include "kernels/plan.h"

typedef struct nmlp_teams {
    int n;
    int n_max; /* for fewer rows or threads: what memory is laid out for */
    int threads; /* of one team */
    int64_t s;
    int64_t rows; /* of a block */
    _Atomic int64_t next_row;
} nmlp_teams;

static inline void nmlp_teams_init(nmlp_teams *teams, const nmlp_plan *plan, int64_t s, int n_threads) {
    teams->n = nmlp_plan_teams(plan, s, n_threads);
    teams->n_max = nmlp_plan_teams_cap(plan, s, n_threads);
    teams->threads = n_threads / teams->n;
    teams->s = s;
    teams->rows = nmlp_plan_team_rows(plan, s, teams->n);
    atomic_init(&teams->next_row, 0);
}

/* The first row of a team's block number `at`, or s or more: none is left. Single threads take what is next, so that a slow
 * one delays nobody. */
static inline int64_t nmlp_teams_take(nmlp_teams *teams, int team, int64_t at) {
    if (teams->threads == 1) return atomic_fetch_add_explicit(&teams->next_row, teams->rows, memory_order_relaxed);
    return (team + at * teams->n) * teams->rows;
}

/* Threads that wait for others need two buffers in turn; one alone keeps its cache for one. */
static inline int nmlp_teams_buffer(const nmlp_teams *teams, int64_t at) {
    return teams->threads > 1 ? (int)(at & 1) : 0;
}

#endif
