#include "compress/calibrate/windows.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

nmlp_status nmlp_windows_cut(nmlp_windows *w, const int32_t *ids, int64_t n_ids, int64_t context, int64_t calib_tokens,
                             int64_t heldout_tokens, nmlp_err *err) {
    *w = (nmlp_windows){0};
    if (n_ids < 2)
        return nmlp_fail(err, NMLP_E_LIMIT, "the calibration text has %lld tokens; at least 2 are needed",
                         (long long)n_ids);
    if (context < 2 || calib_tokens < 2 || heldout_tokens < 0)
        return nmlp_fail(err, NMLP_E_ARG, "windows of %lld tokens, %lld of calibration: both must be at least 2",
                         (long long)context, (long long)calib_tokens);
    w->context = nmlp_min(context, nmlp_min(calib_tokens, n_ids));
    int64_t available = n_ids / w->context;
    w->n_calib = calib_tokens / w->context;
    w->n_heldout = (heldout_tokens + w->context - 1) / w->context;
    if (w->n_calib + w->n_heldout > available) {
        if (w->n_heldout > 0) w->n_heldout = nmlp_min(w->n_heldout, (available + 7) / 8);
        if (available < 2) w->n_heldout = 0;
        w->n_calib = nmlp_min(w->n_calib, available - w->n_heldout);
    }
    int64_t total = w->n_calib + w->n_heldout;
    w->ids = nmlp_mem_new((size_t)(total * w->context), sizeof *w->ids, err);
    if (!w->ids) return NMLP_E_NOMEM;
    int64_t calib = 0;
    int64_t heldout = w->n_calib;
    for (int64_t i = 0; i < total; i++) {
        bool held = (i + 1) * w->n_heldout / total > i * w->n_heldout / total;
        int64_t slot = held ? heldout++ : calib++;
        memcpy(w->ids + slot * w->context, ids + i * w->context, (size_t)w->context * sizeof *ids);
    }
    return NMLP_OK;
}

void nmlp_windows_fini(nmlp_windows *w) {
    nmlp_mem_free(w->ids);
    *w = (nmlp_windows){0};
}
