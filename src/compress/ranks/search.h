/* The search for ranks: candidates from the knapsack under several settings, compared on held-out tokens.
 */
#ifndef NMLP_COMPRESS_RANKS_SEARCH_H
#define NMLP_COMPRESS_RANKS_SEARCH_H

#include "base/progress.h"
#include "base/status.h"
#include "compress/ranks/allocate.h"
#include "compress/ranks/heldout.h"
#include "engine/engine.h"

typedef enum nmlp_joint_mode { NMLP_JOINT_NEVER, NMLP_JOINT_AUTO, NMLP_JOINT_ALWAYS } nmlp_joint_mode;

typedef struct nmlp_search {
    nmlp_engine *engine;
    const nmlp_block *blocks; /* [n_all]: MLPs of all layers, then attentions or none */
    int64_t n_blocks;         /* that may be factorised; those behind them stay dense */
    int64_t n_all;
    const nmlp_factor_file *factor_files; /* [n_all] */
    const nmlp_heldout *heldout;          /* NULL: nothing is heldout_measured, uniform only */
    const nmlp_progress *progress;
    const nmlp_cost *cost;
    double budget; /* in the unit of the cost, of a slice */
    double ratio;  /* of the uniform candidate */
    int64_t tile;
    nmlp_joint_mode joint;
    int rounds; /* of measuring sensitivities again around the best candidate */
} nmlp_search;

typedef struct nmlp_rank_candidate {
    const char *name;
    nmlp_layer_ranks *ranks; /* [n_all] */
    double cost;
    nmlp_loss loss;
} nmlp_rank_candidate;

enum { NMLP_RANK_CANDIDATES_MAX = 96 };

typedef struct nmlp_search_result {
    nmlp_rank_candidate candidates[NMLP_RANK_CANDIDATES_MAX];
    int n_candidates;
    int best;
} nmlp_search_result;

/* Uniform ranks: the same fraction of every matrix. Fails where rounding to tiles would make matrices larger than
 * dense. */
nmlp_status nmlp_search_uniform(const nmlp_search *search, nmlp_layer_ranks *ranks, nmlp_err *err);

/* Candidates with the uniform ones among them (when they fit the budget), best by held-out KL. Where attentions take
 * part, those of MLPs alone at the same cost are among them too, so that more choice never loses. */
nmlp_status nmlp_search_adaptive(const nmlp_search *search, nmlp_search_result *result, nmlp_err *err);
void nmlp_search_result_fini(nmlp_search_result *result);

/* What compressing one group alone, to uniform ranks, costs in held-out KL for each unit of its loss: gate_up [L] and
 * down [L] of MLPs. */
nmlp_status nmlp_search_probe(const nmlp_search *search, double *gate_up, double *down, nmlp_err *err);

/* Puts these ranks into the engine (ranks NULL: the dense model again) and measures. */
nmlp_status nmlp_search_measure(const nmlp_search *search, const nmlp_layer_ranks *ranks, nmlp_loss *loss,
                                nmlp_err *err);
double nmlp_ranks_cost(const nmlp_search *search, const nmlp_layer_ranks *ranks);

#endif
