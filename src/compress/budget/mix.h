/* A mix: for every matrix of a model a rank (or none) and a format, chosen from a survey under one budget.
 *
 * The choice is a knapsack: the least loss within a cost, or the least cost within a loss. What a matrix costs is the
 * caller's: bytes, or time on a machine. */
#ifndef NMLP_COMPRESS_BUDGET_MIX_H
#define NMLP_COMPRESS_BUDGET_MIX_H

#include "compress/budget/survey.h"

typedef struct nmlp_mix {
    int64_t n_layers;
    nmlp_layer_ranks *ranks;    /* [L] */
    nmlp_quant_format *formats; /* [L, NMLP_QUANT_MATRICES] */
    nmlp_quant_format head;
    double cost; /* of all matrices, in the unit of the problem */
    double loss; /* as the survey has it, corrected */
} nmlp_mix;

void nmlp_mix_fini(nmlp_mix *mix);
nmlp_status nmlp_mix_copy(nmlp_mix *to, const nmlp_mix *from, nmlp_err *err);
/* Every matrix in one format, the head in another. */
nmlp_status nmlp_mix_uniform(nmlp_mix *mix, int64_t n_layers, const nmlp_quant_format *body,
                             const nmlp_quant_format *head, nmlp_err *err);
bool nmlp_mix_has_ranks(const nmlp_mix *mix);
bool nmlp_mix_has_bits(const nmlp_mix *mix);
/* Equal only for equal choices. */
uint64_t nmlp_mix_hash(const nmlp_mix *mix);

typedef struct nmlp_mix_cost {
    /* Cost of W [rows,cols] at a rank (0: dense) with both factors in a format of nmlp_quant_option. A shared basis is
     * one matrix of twice the rows. */
    double (*matrix)(const void *ctx, int64_t rows, int64_t cols, int64_t rank, int option);
    double (*head)(const void *ctx, int option); /* of the output matrix, and of the embedding where that counts */
    bool mlp_only;                               /* other matrices cost nothing, and so stay as they are */
    const void *ctx;
} nmlp_mix_cost;

/* What measured models lost over what the survey said; 1 where nothing is known. */
typedef struct nmlp_mix_scale {
    double ranks;
    double bits[NMLP_QUANT_OPTIONS];
} nmlp_mix_scale;

nmlp_mix_scale nmlp_mix_scale_none(void);

typedef struct nmlp_mix_problem {
    const nmlp_model *model; /* dense */
    const nmlp_loss_survey *survey;
    const nmlp_mix_cost *cost;
    nmlp_mix_scale scale;
    bool ranks;       /* matrices may have ranks */
    unsigned options; /* formats allowed, one bit each; as it is must be among them */
} nmlp_mix_problem;

/* Cost and loss of a mix by this problem's tables. */
void nmlp_mix_price(const nmlp_mix_problem *problem, nmlp_mix *mix);

/* The least loss among those that cost at most `budget`. Fails with NMLP_E_LIMIT where none does. */
nmlp_status nmlp_mix_within_cost(const nmlp_mix_problem *problem, double budget, nmlp_mix *mix, nmlp_err *err);
/* The least cost among those that lose at most `loss`: as it is where nothing cheaper does. */
nmlp_status nmlp_mix_within_loss(const nmlp_mix_problem *problem, double loss, nmlp_mix *mix, nmlp_err *err);

#endif
