#include "trainium/plan/kernel_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainium/plan/kernels.h"
#include "trainium/plan/strip_plan.h"

static const nmlp_kernel kernels[] = {
    {"xw-tiled", "dense, one tile at a time (AWS tutorial 1)", false, false, "", nmlp_kernel_xw_tiled},
    {"xw-hoist", "dense, row tiles loaded once (AWS tutorial 2)", false, false, "", nmlp_kernel_xw_hoist},
    {"xw-block", "dense, free dimensions blocked (AWS tutorial 3)", false, false, "m,n", nmlp_kernel_xw_block},
    {"xw-opt", "dense, all dimensions blocked (AWS tutorial 4)", false, false, "m,n,k", nmlp_kernel_xw_opt},
    {"xuv-seq", "two dense products with a transpose in HBM between them", true, false, "m,n,k", nmlp_kernel_xuv_seq},
    {"xuv-fused", "the paper's fused chain, x loaded transposed", true, false, "m,r,k,n,table", nmlp_kernel_xuv_fused},
    {"xtuv-fused", "the paper's fused chain, x given transposed", true, false, "m,r,k,n,table", nmlp_kernel_xtuv_fused},
    {"xuv-naive", "fusion without the paper's ideas; cache=2, turn=2 switch them on", true, false, "cache,turn,m,r,k,n",
     nmlp_kernel_xuv_naive},
    {"xuv-turned", "the paper's chain with a transposed result", true, false, "m,r,k,n,table", nmlp_kernel_xuv_turned},
    {"xtuv-turned", "the same, x given transposed", true, false, "m,r,k,n,table", nmlp_kernel_xtuv_turned},
    {"mlp-up-paper", "the paper's gate and up with silu and product, transposed result", true, false, "m,r,k,n,table",
     nmlp_kernel_mlp_up_paper},
    {"mlp-paper", "the paper's MLP: mlp-up-paper, then xtuv-fused", true, true, "m,r,k,n,table", nmlp_kernel_mlp_paper},
    {"xw", "ours: dense product, packed weights", false, false, NMLP_STRIP_KEYS, nmlp_kernel_xw},
    {"xuv", "ours: strips through both products on chip, packed weights", true, false, NMLP_STRIP_KEYS,
     nmlp_kernel_xuv},
    {"mlp", "ours: the whole gated MLP on chip, dense or low-rank", true, true, NMLP_STRIP_KEYS, nmlp_kernel_mlp},
};

enum { N_KERNELS = sizeof kernels / sizeof kernels[0] };

const nmlp_kernel *nmlp_kernel_at(size_t index) { return index < N_KERNELS ? &kernels[index] : NULL; }

const nmlp_kernel *nmlp_kernel_find(const char *name, nmlp_err *err) {
    char names[512] = "";
    for (size_t i = 0; i < N_KERNELS; i++) {
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", kernels[i].name);
    }
    nmlp_fail(err, NMLP_E_ARG, "there is no kernel \"%.60s\"", name);
    nmlp_fail_hint(err, "kernels: %s", names);
    return NULL;
}

/* Is `key` one of the comma-separated `keys`? */
static bool listed(const char *keys, const char *key) {
    size_t len = strlen(key);
    for (const char *at = keys; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, key, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
    return false;
}

nmlp_status nmlp_kernel_check_request(const nmlp_kernel *kernel, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_kernel_shape *s = &rq->shape;
    int64_t limit = NMLP_INDEX_MAX / 64;
    bool ok = s->s >= 1 && s->h >= 1 && s->o >= 1 && s->s <= limit && s->h <= limit && s->o <= limit;
    bool rank_ok = kernel->has_rank ? s->r >= (kernel->gated ? 0 : 1) && s->r <= limit : s->r == 0;
    if (!ok || !rank_ok)
        return nmlp_fail(err, NMLP_E_SHAPE, "kernel %s: S=%lld H=%lld R=%lld O=%lld; each must be 1 to %lld%s",
                         kernel->name, (long long)s->s, (long long)s->h, (long long)s->r, (long long)s->o,
                         (long long)limit, kernel->has_rank ? "" : ", without R");
    for (int i = 0; rq->tiling && i < rq->tiling->n; i++) {
        const char *key = rq->tiling->entries[i].key;
        int64_t value = rq->tiling->entries[i].value;
        if (!listed(kernel->tiling_keys, key))
            return nmlp_fail(err, NMLP_E_ARG, "kernel %s has no tiling key \"%s\"; it takes: %s", kernel->name, key,
                             kernel->tiling_keys[0] ? kernel->tiling_keys : "none");
        int least = strcmp(key, "tail") == 0 || strcmp(key, "taper") == 0 ? 0 : 1; /* may be left out */
        if (value < least || value > 1024)
            return nmlp_fail(err, NMLP_E_ARG, "kernel %s: tiling %s=%lld is outside %d..1024", kernel->name, key,
                             (long long)value, least);
    }
    return NMLP_OK;
}

nmlp_status nmlp_kernel_build(nmlp_program **out, const nmlp_kernel *kernel, const nmlp_kernel_request *rq,
                              nmlp_err *err) {
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_check_request(kernel, rq, err));
    NMLP_RETURN_IF_FAILED(kernel->build(out, rq, err));
    nmlp_status st = nmlp_program_finish(*out, err);
    if (st == NMLP_OK) return NMLP_OK;
    nmlp_fail_context(err, "kernel %s", kernel->name);
    nmlp_program_destroy(*out);
    *out = NULL;
    return st;
}

nmlp_status nmlp_tiling_set(nmlp_tiling *tiling, const char *key, int64_t value, nmlp_err *err) {
    int at = 0;
    while (at < tiling->n && strcmp(tiling->entries[at].key, key) != 0) at++;
    if (at == NMLP_TILING_MAX || strlen(key) == 0 || strlen(key) >= NMLP_TILING_KEY_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "tiling: at most %d keys of 1 to %d letters, found \"%.40s\"",
                         NMLP_TILING_MAX, NMLP_TILING_KEY_MAX - 1, key);
    snprintf(tiling->entries[at].key, NMLP_TILING_KEY_MAX, "%s", key);
    tiling->entries[at].value = value;
    if (at == tiling->n) tiling->n++;
    return NMLP_OK;
}

nmlp_status nmlp_tiling_parse(nmlp_tiling *tiling, const char *text, nmlp_err *err) {
    *tiling = (nmlp_tiling){0};
    while (*text) {
        size_t len = strcspn(text, "=,");
        char key[NMLP_TILING_KEY_MAX], *end = NULL;
        if (text[len] != '=' || len == 0 || len >= sizeof key)
            return nmlp_fail(err, NMLP_E_ARG, "tiling: expected key=number at \"%.40s\"", text);
        memcpy(key, text, len);
        key[len] = '\0';
        long long value = strtoll(text + len + 1, &end, 10);
        if (end == text + len + 1 || (*end && *end != ','))
            return nmlp_fail(err, NMLP_E_ARG, "tiling: \"%s\" needs a whole number, found \"%.40s\"", key,
                             text + len + 1);
        NMLP_RETURN_IF_FAILED(nmlp_tiling_set(tiling, key, value, err));
        text = *end ? end + 1 : end;
    }
    return NMLP_OK;
}

int64_t nmlp_tiling_get(const nmlp_tiling *tiling, const char *key, int64_t fallback) {
    for (int i = 0; tiling && i < tiling->n; i++)
        if (strcmp(tiling->entries[i].key, key) == 0) return tiling->entries[i].value;
    return fallback;
}
