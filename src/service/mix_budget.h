/* A model within a budget of bytes or of time: ranks and bits chosen together, compared with bits alone and ranks
 * alone. */
#ifndef NMLP_SERVICE_MIX_BUDGET_H
#define NMLP_SERVICE_MIX_BUDGET_H

#include "service/form_times.h"
#include "service/mix_models.h"

enum { NMLP_BUDGET_MIXED, NMLP_BUDGET_BITS, NMLP_BUDGET_RANKS, NMLP_BUDGET_ANSWERS };

/* One answer to the budget. */
typedef struct nmlp_budget_answer {
    const char *name; /* "ranks and bits", "bits alone", "ranks alone" */
    bool possible;    /* else it cannot be so small: `least` */
    int64_t bytes;
    double cost, least; /* bytes, or ms of all MLPs for one token */
    nmlp_divergence heldout;
} nmlp_budget_answer;

typedef struct nmlp_mix_budget {
    nmlp_budget_answer answers[NMLP_BUDGET_ANSWERS];
    int chosen;   /* the answer with the least held-out divergence */
    nmlp_mix mix; /* of it */
    int64_t params_before, params_after, mlp_params_before, mlp_params_after;
    int64_t bytes_before, bytes_after;
    double ms_before, ms_after; /* of all MLPs for one token on this CPU; 0 with a budget of bytes */
    int64_t calib_tokens, heldout_tokens;
} nmlp_mix_budget;

void nmlp_mix_budget_fini(nmlp_mix_budget *budget);

/* One of both is above 0. */
typedef struct nmlp_mix_limit {
    int64_t bytes; /* of the checkpoint */
    double ms;     /* of all MLPs for one token, on this CPU; other matrices stay as they are */
} nmlp_mix_limit;

/* Writes the best answer within the limit into out_dir, which is replaced once it is complete; processes of the
 * method's group do a limit of bytes together. Fails with NMLP_E_LIMIT where no mix is that small. */
nmlp_status nmlp_mix_budget_run(nmlp_mix_budget *budget, const nmlp_mix_models_request *request, nmlp_mix_limit limit,
                                nmlp_err *err);

#endif
