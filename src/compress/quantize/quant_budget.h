/* Which format each matrix gets where bytes are given: the format whose loss on held-out text falls most for the bytes.
 *
 * Every matrix is rounded alone to 4 bits and the divergence measured; other formats lose in proportion to their
 * squared error. Losses of matrices add up, so the choice is a knapsack. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_BUDGET_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_BUDGET_H

#include "compress/quantize/quant_layer.h"
#include "compress/ranks/heldout.h"

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
