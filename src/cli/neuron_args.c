#include "cli/neuron_args.h"

#include "base/mem.h"
#include "cli/cli.h"

nmlp_status nmlp_cli_parse_shape(nmlp_kernel_shape *shape, const char *text, const char *what, bool has_rank,
                                 nmlp_err *err) {
    int64_t *d = NULL;
    size_t n = 0, want = has_rank ? 4 : 3;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&d, &n, text, "--shape", err));
    if (n == want) *shape = (nmlp_kernel_shape){d[0], d[1], has_rank ? d[2] : 0, d[want - 1]};
    nmlp_mem_free(d);
    if (n == want) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_ARG, "--shape has %zu numbers; %s takes %s", n, what,
                     has_rank ? "S,H,R,O (of an MLP O is the intermediate width, and R 0 is dense)" : "S,H,O");
}

nmlp_status nmlp_cli_parse_dtype(nmlp_nc_dtype *dtype, const char *text, nmlp_err *err) {
    if (nmlp_nc_dtype_parse(text, dtype)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_ARG, "--dtype is \"%s\"; expected bf16, fp16 or fp32", text);
}
