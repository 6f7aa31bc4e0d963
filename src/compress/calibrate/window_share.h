/* The windows of a text shared by the processes of a group: each has a run of calibration windows and a run of held-out
 * windows, keeps the rows of these alone, and gives the others what a result over all tokens needs. Windows stay whole
 * and in order, so a result does not depend on the number of processes. */
#ifndef NMLP_COMPRESS_CALIBRATE_WINDOW_SHARE_H
#define NMLP_COMPRESS_CALIBRATE_WINDOW_SHARE_H

#include "base/process_group.h"
#include "compress/calibrate/calib_text.h"

typedef struct nmlp_window_share {
    const nmlp_process_group *group; /* borrowed; NULL: this process has all windows */
    const nmlp_calib_windows *all;   /* borrowed */
    nmlp_calib_windows own;          /* alone: borrows the ids of `all` */
    int64_t calib_tokens;            /* of all processes */
    int64_t heldout_tokens;
} nmlp_window_share;

nmlp_status nmlp_window_share_init(nmlp_window_share *share, const nmlp_process_group *group,
                                   const nmlp_calib_windows *all, nmlp_err *err);
void nmlp_window_share_fini(nmlp_window_share *share);

/* First calibration (or held-out) token that process `rank` has; that of the group's size is their number. */
int64_t nmlp_window_share_first(const nmlp_window_share *share, bool heldout, int rank);

/* items of all calibration (or held-out) tokens, `item_bytes` each, of which this process has filled its own. */
nmlp_status nmlp_window_share_gather(const nmlp_window_share *share, void *items, size_t item_bytes, bool heldout,
                                     nmlp_err *err);

/* The part of calibration tokens first..first+n-1 that this process has: `count` of them, from `at` of these n and from
 * `own` of its own tokens on. */
typedef struct nmlp_own_tokens {
    int64_t at, own, count;
} nmlp_own_tokens;

nmlp_own_tokens nmlp_window_share_own(const nmlp_window_share *share, int64_t first, int64_t n);
/* rows [n,width] of calibration tokens `first`.., of which this process has filled its own. */
nmlp_status nmlp_window_share_fill(const nmlp_window_share *share, float *rows, int64_t width, int64_t first, int64_t n,
                                   nmlp_err *err);
/* Rows [n,width] of calibration tokens `first`.. of all processes, made of own [own tokens,width]: a part of `own`
 * where this process is alone, else in room [n,width]. */
nmlp_status nmlp_window_share_rows(const nmlp_window_share *share, const float *own, int64_t width, int64_t first,
                                   int64_t n, float *room, const float **rows, nmlp_err *err);

#endif
