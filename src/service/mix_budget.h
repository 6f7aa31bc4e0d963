/* A checkpoint of so many bytes: ranks and bits chosen together, compared with bits alone and ranks alone. */
#ifndef NMLP_SERVICE_BYTE_BUDGET_H
#define NMLP_SERVICE_BYTE_BUDGET_H

#include "service/mix_models.h"

enum { NMLP_BUDGET_MIXED, NMLP_BUDGET_BITS, NMLP_BUDGET_RANKS, NMLP_BUDGET_ANSWERS };

/* One answer to the budget. */
typedef struct nmlp_budget_answer {
    const char *name; /* "ranks and bits", "bits alone", "ranks alone" */
    bool possible;    /* else it cannot have so few bytes: `least_bytes` */
    int64_t bytes, least_bytes;
    nmlp_divergence heldout;
} nmlp_budget_answer;

typedef struct nmlp_byte_budget {
    nmlp_budget_answer answers[NMLP_BUDGET_ANSWERS];
    int chosen;   /* the answer with the least held-out divergence */
    nmlp_mix mix; /* of it */
    int64_t params_before, params_after, mlp_params_before, mlp_params_after;
    int64_t bytes_before, bytes_after;
    int64_t calib_tokens, heldout_tokens;
} nmlp_byte_budget;

void nmlp_byte_budget_fini(nmlp_byte_budget *budget);

/* Writes the best answer that takes at most `bytes` into out_dir, which is replaced once it is complete. Fails with
 * NMLP_E_LIMIT where no mix is that small. */
nmlp_status nmlp_byte_budget_run(nmlp_byte_budget *budget, const nmlp_mix_models_request *request, int64_t bytes,
                                 nmlp_err *err);

#endif
