#include "compress/calibrate/calib_text.h"

#include <string.h>

#include "base/file.h"
#include "base/ints.h"
#include "base/mem.h"
#include "text/tokenizer.h"

enum { PATH_MAX_BYTES = 4096 };

nmlp_status nmlp_calib_text_read(const char *model_dir, const char *file, nmlp_ids *ids, nmlp_str *name,
                                 nmlp_err *err) {
    char own[PATH_MAX_BYTES];
    if (!file) {
        NMLP_RETURN_IF_FAILED(nmlp_path_join(own, sizeof own, model_dir, "calib.txt", err));
        if (!nmlp_file_exists(own)) {
            nmlp_fail(err, NMLP_E_MISSING, "%s: the model brings no calibration text", own);
            nmlp_fail_hint(err, "give one (`calibration`): a few hundred kB of the kind of text the model is for");
            return NMLP_E_MISSING;
        }
        file = own;
    }
    const char *slash = strrchr(file, '/');
    nmlp_str_puts(name, slash ? slash + 1 : file);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(name, err));
    return nmlp_tokenizer_encode_file(model_dir, file, ids, err);
}

nmlp_status nmlp_calib_windows_cut(nmlp_calib_windows *w, const int32_t *ids, int64_t n_ids, int64_t context,
                                   int64_t calib_tokens, int64_t heldout_tokens, nmlp_err *err) {
    *w = (nmlp_calib_windows){0};
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

void nmlp_calib_windows_fini(nmlp_calib_windows *w) {
    nmlp_mem_free(w->ids);
    *w = (nmlp_calib_windows){0};
}
