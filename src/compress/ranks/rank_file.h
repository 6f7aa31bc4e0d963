/* The ranks a search decided on, in a file, so that an interrupted run need not search again. */
#ifndef NMLP_COMPRESS_RANKS_RANK_FILE_H
#define NMLP_COMPRESS_RANKS_RANK_FILE_H

#include "base/status.h"
#include "compress/ranks/heldout.h"
#include "compress/factor/factor_file.h"

typedef struct nmlp_rank_plan {
    char name[64]; /* of the winning candidate */
    int64_t n_candidates;
    nmlp_loss loss;
    double cost; /* in the unit of the budget */
} nmlp_rank_plan;

nmlp_status nmlp_rank_plan_write(const char *path, uint64_t fingerprint, const nmlp_rank_plan *plan,
                                 const nmlp_layer_ranks *ranks, int64_t n_blocks, nmlp_err *err);
/* `plan` and ranks [n_blocks] are filled where *state is NMLP_WORK_VALID. */
nmlp_status nmlp_rank_plan_read(const char *path, uint64_t fingerprint, const nmlp_block *blocks, int64_t n_blocks,
                                nmlp_rank_plan *plan, nmlp_layer_ranks *ranks, nmlp_work_state *state, nmlp_err *err);

#endif
