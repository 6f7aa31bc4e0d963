#include "cli/token_ids.h"

#include <inttypes.h>

#include "base/mem.h"
#include "cli/cli.h"

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
