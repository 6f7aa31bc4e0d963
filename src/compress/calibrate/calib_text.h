/* The text a model is compressed with: read, encoded, and cut into windows of equal length. Some windows are held out:
 * nothing is fitted to them, and choices are measured on them. */
#ifndef NMLP_COMPRESS_CALIBRATE_CALIB_TEXT_H
#define NMLP_COMPRESS_CALIBRATE_CALIB_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "text/tokenizer.h"

/* Appends the token ids of `file`, or with NULL of calib.txt in the model's directory. `name` receives the file's name
 * without its folder. */
nmlp_status nmlp_calib_text_read(const char *model_dir, const char *file, nmlp_ids *ids, nmlp_str *name, nmlp_err *err);

typedef struct nmlp_calib_windows {
    int32_t *ids;    /* [n_calib + n_heldout, context]; calibration first */
    int64_t context; /* tokens in a window */
    int64_t n_calib;
    int64_t n_heldout;
} nmlp_calib_windows;

static inline int64_t nmlp_calib_windows_calib_tokens(const nmlp_calib_windows *w) { return w->n_calib * w->context; }
static inline int64_t nmlp_calib_windows_heldout_tokens(const nmlp_calib_windows *w) {
    return w->n_heldout * w->context;
}
static inline int64_t nmlp_calib_windows_tokens(const nmlp_calib_windows *w) {
    return (w->n_calib + w->n_heldout) * w->context;
}

/* Cuts the first tokens of a text into windows without overlap; a rest shorter than a window is dropped. Held-out
 * windows are spread evenly between the calibration windows, since texts are often joined from several sources. A short
 * text gives fewer of both, at least one calibration window, and held-out windows as long as there are two windows. */
nmlp_status nmlp_calib_windows_cut(nmlp_calib_windows *w, const int32_t *ids, int64_t n_ids, int64_t context,
                                   int64_t calib_tokens, int64_t heldout_tokens, nmlp_err *err);
void nmlp_calib_windows_fini(nmlp_calib_windows *w);

#endif
