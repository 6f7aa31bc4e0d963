/* Calibration text as windows of equal length. Some are held out: they judge what the others decide. */
#ifndef NMLP_COMPRESS_CALIBRATE_WINDOWS_H
#define NMLP_COMPRESS_CALIBRATE_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_windows {
    int32_t *ids;    /* [n_calib + n_heldout, context]; calibration first */
    int64_t context; /* tokens in a window */
    int64_t n_calib;
    int64_t n_heldout;
} nmlp_windows;

static inline int64_t nmlp_windows_calib_tokens(const nmlp_windows *w) { return w->n_calib * w->context; }
static inline int64_t nmlp_windows_heldout_tokens(const nmlp_windows *w) { return w->n_heldout * w->context; }
static inline int64_t nmlp_windows_tokens(const nmlp_windows *w) { return (w->n_calib + w->n_heldout) * w->context; }

/* Cuts the first tokens of a text into windows without overlap; a rest shorter than a window is dropped. Held-out
 * windows are spread evenly between the calibration windows, since texts are often joined from several sources. A short
 * text gives fewer of both, at least one calibration window, and held-out windows as long as there are two windows. */
nmlp_status nmlp_windows_cut(nmlp_windows *w, const int32_t *ids, int64_t n_ids, int64_t context, int64_t calib_tokens,
                             int64_t heldout_tokens, nmlp_err *err);
void nmlp_windows_fini(nmlp_windows *w);

#endif
