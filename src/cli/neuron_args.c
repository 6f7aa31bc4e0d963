#include "cli/neuron_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* "dense" or a number from 1. */
static bool parse_rank(const char *text, size_t len, int64_t *rank) {
    char word[24], *end;
    if (len == 0 || len >= sizeof word) return false;
    memcpy(word, text, len);
    word[len] = '\0';
    *rank = 0;
    if (strcmp(word, "dense") == 0) return true;
    *rank = strtoll(word, &end, 10);
    return *end == '\0' && *rank >= 1;
}

/* --ranks "gate=112,up=112,down=dense"; what it does not name keeps its rank. */
static nmlp_status parse_ranks(nmlp_mlp_ranks *ranks, const char *text, nmlp_err *err) {
    const struct {
        const char *name;
        int64_t *rank;
    } known[] = {{"gate=", &ranks->gate}, {"up=", &ranks->up}, {"down=", &ranks->down}};
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, ",");
        bool ok = false;
        for (int i = 0; i < 3; i++) {
            size_t name = strlen(known[i].name);
            if (len > name && strncmp(at, known[i].name, name) == 0)
                ok = parse_rank(at + name, len - name, known[i].rank);
        }
        if (!ok)
            return nmlp_fail(err, NMLP_E_ARG, "--ranks has \"%.*s\"; expected gate=, up= or down= with a rank or dense",
                             (int)(len < 40 ? len : 40), at);
        at += at[len] ? len + 1 : len;
    }
    return NMLP_OK;
}

nmlp_status nmlp_cli_kernel_problem(nmlp_kernel_problem *problem, const nmlp_kernel_args *a, nmlp_err *err) {
    *problem = (nmlp_kernel_problem){.target = a->target, .kernel = a->kernel, .tiling = a->tiling, .dtype = a->dtype};
    const nmlp_kernel *kernel = nmlp_kernel_find(a->kernel, err);
    if (!kernel) return NMLP_E_ARG;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_shape(&problem->shape, a->shape, kernel->name, kernel->has_rank, err));
    if (a->norm < 0 || a->norm > 0.01)
        return nmlp_fail(err, NMLP_E_ARG, "--norm is %g; the epsilon of a norm is above 0 and at most 0.01", a->norm);
    problem->fuse = (nmlp_mlp_fusion){.norm_e12 = llround(a->norm * 1e12), .residual = a->residual};
    problem->fp8 = a->fp8;
    if (!a->ranks && !a->shared) return NMLP_OK;
    int64_t r = problem->shape.r;
    nmlp_mlp_ranks ranks = {r, r, r, a->shared};
    if (a->ranks) NMLP_RETURN_IF_FAILED(parse_ranks(&ranks, a->ranks, err));
    nmlp_kernel_request rq = {.shape = problem->shape};
    nmlp_kernel_set_ranks(&rq, ranks);
    problem->shape = rq.shape;
    problem->ranks = rq.ranks;
    return NMLP_OK;
}

void nmlp_cli_put_kernel_args(nmlp_str *out, const nmlp_kernel_args *a) {
    nmlp_str_printf(out, " --shape %s", a->shape);
    if (a->ranks) nmlp_str_printf(out, " --ranks %s", a->ranks);
    if (a->shared) nmlp_str_puts(out, " --shared");
    if (a->norm > 0) nmlp_str_printf(out, " --norm %g", a->norm);
    if (a->residual) nmlp_str_puts(out, " --residual");
    if (a->fp8) nmlp_str_puts(out, " --fp8");
    if (a->tiling && a->tiling[0]) nmlp_str_printf(out, " --tiling %s", a->tiling);
    if (a->dtype && strcmp(a->dtype, "bf16") != 0) nmlp_str_printf(out, " --dtype %s", a->dtype);
}
