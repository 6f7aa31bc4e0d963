/* What each matrix of a model loses in fewer bits, alone, on held-out text.
 *
 * Every matrix is rounded to 4 bits and the divergence measured; other formats lose in proportion to their squared
 * error. Losses of matrices add up. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_PROBE_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_PROBE_H

#include "compress/quantize/quant_layer.h"
#include "compress/ranks/heldout.h"

/* Formats a matrix may have, the smallest first; the last leaves it as it is. A matrix whose groups do not fit takes
 * Q8 instead (quant_layer.h). */
enum { NMLP_QUANT_OPTIONS = 10, NMLP_QUANT_OPTION_Q8 = 8, NMLP_QUANT_OPTION_PLAIN = 9 };
nmlp_quant_format nmlp_quant_option(int option);
/* The option whose kernels run it on a CPU: Q8 for those that are widened to it. */
int nmlp_quant_option_runs_as(int option);
/* Bytes of a matrix [rows,cols] in that format, scales included; `plain` is the type it has as it is. */
int64_t nmlp_quant_option_bytes(nmlp_dtype plain, int64_t rows, int64_t cols, int option);

typedef struct nmlp_quant_probe {
    nmlp_engine *engine;
    const nmlp_heldout *heldout; /* with inputs of layers kept; its group shares the matrices */
    const nmlp_progress *progress;
} nmlp_quant_probe;

/* Fills loss [L * NMLP_QUANT_MATRICES + 1, NMLP_QUANT_OPTIONS], nats per token; the head last. By all processes of
 * the group together: each measures whole matrices, so none depends on how many there are. */
nmlp_status nmlp_quant_probe_run(const nmlp_quant_probe *probe, double *loss, nmlp_err *err);

#endif
