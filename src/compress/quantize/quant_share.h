/* How the processes of a group share a quantisation, to the bytes of one: windows of the text are dealt round-robin,
 * the matrices of a layer that see the same inputs go to one owner, rows of the head to all. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_SHARE_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_SHARE_H

#include "base/process_group.h"
#include "compress/calibrate/calib_text.h"
#include "compress/quantize/quant_layer.h"

/* In turn t process r runs calibration window t * size + r, so that the windows of a turn follow each other in the text
 * and sums over them can keep its order. Held-out windows are shared in runs, as nmlp_heldout does. */
typedef struct nmlp_quant_share {
    const nmlp_process_group *group; /* borrowed; NULL: this process has all windows */
    const nmlp_calib_windows *all;   /* borrowed */
    nmlp_calib_windows own;          /* alone: borrows the ids of `all` */
} nmlp_quant_share;

nmlp_status nmlp_quant_share_init(nmlp_quant_share *share, const nmlp_process_group *group,
                                  const nmlp_calib_windows *all, nmlp_err *err);
void nmlp_quant_share_fini(nmlp_quant_share *share);

/* Turns that n windows take, and how many of them run in one. */
int64_t nmlp_quant_share_turns(const nmlp_quant_share *share, int64_t n);
int64_t nmlp_quant_share_in_turn(const nmlp_quant_share *share, int64_t n, int64_t turn);

/* owners [NMLP_QUANT_INPUTS]: the process that makes the matrices which see an input. The largest work first, each to
 * the process with the least. */
void nmlp_quant_share_owners(const nmlp_quant_share *share, nmlp_layer *layer, const nmlp_config *config, int64_t index,
                             int owners[NMLP_QUANT_INPUTS]);
/* Quantised views of `made` that their owners have, for every process; new memory is of the arena. */
nmlp_status nmlp_quant_share_layer(const nmlp_quant_share *share, nmlp_layer *made, const nmlp_config *config,
                                   int64_t index, const int owners[NMLP_QUANT_INPUTS], nmlp_arena *arena,
                                   nmlp_err *err);

/* First row of a matrix that process `rank` rounds, a multiple of NMLP_GPTQ_ROWS; that of the group's size is n. */
int64_t nmlp_quant_share_row(const nmlp_quant_share *share, int64_t n, int rank);
/* Rows of a quantised view that every process has made its own of, for all. */
nmlp_status nmlp_quant_share_rows(const nmlp_quant_share *share, const nmlp_view *view, nmlp_err *err);

#endif
