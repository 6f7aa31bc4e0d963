/* Which format each matrix gets where bytes are given: the format whose loss on held-out text falls most for the bytes.
 * Losses of matrices (quant_probe.h) add up, so the choice is a knapsack. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_BUDGET_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_BUDGET_H

#include "compress/quantize/quant_probe.h"

typedef struct nmlp_quant_budget {
    nmlp_engine *engine;
    const nmlp_heldout *heldout; /* with inputs of layers kept */
    int64_t bytes;               /* all of the checkpoint's tensors may take */
    const nmlp_progress *progress;
} nmlp_quant_budget;

/* The fewest bytes that any choice takes. */
int64_t nmlp_quant_budget_least(const nmlp_model *model);

/* Fills formats [L, NMLP_QUANT_MATRICES] and *head. Fails with NMLP_E_LIMIT below the fewest bytes. */
nmlp_status nmlp_quant_budget_choose(const nmlp_quant_budget *budget, nmlp_quant_format *formats,
                                     nmlp_quant_format *head, nmlp_err *err);

#endif
