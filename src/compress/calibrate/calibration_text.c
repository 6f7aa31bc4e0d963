#include "compress/calibrate/calibration_text.h"

#include <string.h>

#include "base/file.h"
#include "text/encode_file.h"

enum { PATH_MAX_BYTES = 4096 };

nmlp_status nmlp_calibration_read(const char *model_dir, const char *file, nmlp_ids *ids, nmlp_str *name,
                                  nmlp_err *err) {
    char own[PATH_MAX_BYTES];
    if (!file) {
        NMLP_RETURN_IF_FAILED(nmlp_path_join(own, sizeof own, model_dir, "calib.txt", err));
        if (!nmlp_file_exists(own)) {
            nmlp_fail(err, NMLP_E_MISSING, "%s: the model brings no calibration text", own);
            nmlp_fail_hint(err, "give one (--calib FILE): a few hundred kB of the kind of text the model is for");
            return NMLP_E_MISSING;
        }
        file = own;
    }
    const char *slash = strrchr(file, '/');
    nmlp_str_puts(name, slash ? slash + 1 : file);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(name, err));
    return nmlp_encode_file(model_dir, file, ids, err);
}
