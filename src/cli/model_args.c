#include "cli/model_args.h"

#include <inttypes.h>

#include "base/mem.h"

nmlp_status nmlp_cli_load(nmlp_loaded *loaded, const nmlp_cli *cli, const char *dir, const nmlp_load_options *options,
                          nmlp_err *err) {
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_load_options with_bar = *options;
    with_bar.n_threads = (int)cli->n_threads;
    with_bar.progress = &progress;
    nmlp_status st = nmlp_load(loaded, dir, &with_bar, err);
    nmlp_cli_progress_end(&bar);
    return st;
}

nmlp_status nmlp_cli_parse_ids(nmlp_ids *ids, const char *text, const char *what, nmlp_err *err) {
    int64_t *values = NULL;
    size_t n = 0;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&values, &n, text, what, err));
    nmlp_status st = NMLP_OK;
    for (size_t i = 0; i < n && st == NMLP_OK; i++) {
        if (values[i] < 0 || values[i] > INT32_MAX) {
            st = nmlp_fail(err, NMLP_E_ARG, "%s: %" PRId64 " is not a token id", what, values[i]);
        } else {
            st = nmlp_ids_push(ids, (int32_t)values[i], err);
        }
    }
    nmlp_mem_free(values);
    return st;
}
