/* What every way to store a matrix costs in held-out divergence: the one table that ranks and bits are chosen from.
 *
 * Each matrix is measured alone (in 4 bits, and at one rank); other formats lose in proportion to their squared error,
 * other ranks in proportion to what is cut off. Losses of matrices add up to the model's, as far as they are small. */
#ifndef NMLP_COMPRESS_BUDGET_SURVEY_H
#define NMLP_COMPRESS_BUDGET_SURVEY_H

#include "compress/factor/factor_file.h"
#include "compress/quantize/quant_probe.h"
#include "compress/ranks/search.h"

typedef struct nmlp_loss_survey {
    int64_t n_layers;
    int64_t tile;
    int64_t n_ranks; /* ranks tile, 2 tile, ..., n_ranks tile; 0: no rank saves anything */
    double *bits;    /* [L * NMLP_QUANT_MATRICES + 1, NMLP_QUANT_OPTIONS] nats per token; the head last */
    double *cut;     /* [L, NMLP_NESTED_COUNT, n_ranks] the same by rank; infinite where a rank saves nothing */
} nmlp_loss_survey;

void nmlp_loss_survey_fini(nmlp_loss_survey *survey);

/* Measures; `search` has factor files, a held-out text with inputs of layers, and the ratio that ranks are probed at.
 */
nmlp_status nmlp_loss_survey_make(nmlp_loss_survey *survey, const nmlp_search *search, nmlp_err *err);

/* The survey in a work file, as an interrupted run finds it again. Where *state is not NMLP_WORK_VALID nothing was
 * read. */
nmlp_status nmlp_loss_survey_write(const char *path, uint64_t fingerprint, const nmlp_loss_survey *survey,
                                   nmlp_err *err);
nmlp_status nmlp_loss_survey_read(const char *path, uint64_t fingerprint, int64_t n_layers, nmlp_loss_survey *survey,
                                  nmlp_work_state *state, nmlp_err *err);

#endif
