#include "trainium/plan/kernel_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainium/plan/kernels.h"
#include "trainium/plan/strip.h"
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

nmlp_mlp_ranks nmlp_kernel_mlp_ranks(const nmlp_kernel_request *rq) {
    nmlp_mlp_ranks ranks = rq->ranks;
    if (rq->shape.r > 0) ranks.gate = ranks.up = ranks.down = rq->shape.r;
    ranks.shared = ranks.gate > 0 && (ranks.shared || nmlp_tiling_get(rq->tiling, "shared", 0) == 1);
    return ranks;
}

void nmlp_kernel_set_ranks(nmlp_kernel_request *rq, nmlp_mlp_ranks ranks) {
    bool equal = ranks.gate == ranks.up && ranks.up == ranks.down;
    rq->shape.r = equal ? ranks.gate : 0;
    rq->ranks = equal ? (nmlp_mlp_ranks){.shared = ranks.shared} : ranks;
}

static void print_rank(char text[24], int64_t rank) {
    if (rank > 0)
        snprintf(text, 24, "%lld", (long long)rank);
    else
        snprintf(text, 24, "dense");
}

static void print_extras(char text[NMLP_KERNEL_SHAPE_TEXT_MAX], const nmlp_kernel_request *rq) {
    const nmlp_mlp_fusion *fuse = &rq->fuse;
    size_t used = strlen(text);
    if (fuse->norm_e12 > 0)
        snprintf(text + used, NMLP_KERNEL_SHAPE_TEXT_MAX - used, "/norm=%lld", (long long)fuse->norm_e12);
    used = strlen(text);
    if (fuse->residual) snprintf(text + used, NMLP_KERNEL_SHAPE_TEXT_MAX - used, "/residual");
    used = strlen(text);
    if (rq->fp8) snprintf(text + used, NMLP_KERNEL_SHAPE_TEXT_MAX - used, "/fp8");
}

void nmlp_kernel_shape_print(char text[NMLP_KERNEL_SHAPE_TEXT_MAX], const nmlp_kernel_request *rq) {
    const nmlp_kernel_shape *s = &rq->shape;
    const nmlp_mlp_ranks *r = &rq->ranks;
    char gate[24], up[24], down[24];
    if (r->gate == 0 && r->up == 0 && r->down == 0) {
        snprintf(text, NMLP_KERNEL_SHAPE_TEXT_MAX, "%lld,%lld,%lld%s,%lld", (long long)s->s, (long long)s->h,
                 (long long)s->r, r->shared ? "/shared" : "", (long long)s->o);
        print_extras(text, rq);
        return;
    }
    print_rank(gate, r->gate);
    print_rank(up, r->up);
    print_rank(down, r->down);
    snprintf(text, NMLP_KERNEL_SHAPE_TEXT_MAX, "%lld,%lld,gate=%s/up=%s/down=%s%s,%lld", (long long)s->s,
             (long long)s->h, gate, up, down, r->shared ? "/shared" : "", (long long)s->o);
    print_extras(text, rq);
}

/* An epsilon of 0.01. */
static const int64_t NORM_E12_MAX = 10000000000;

static nmlp_status check_fusion(const nmlp_kernel *kernel, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_mlp_fusion *f = &rq->fuse;
    if (f->norm_e12 == 0 && !f->residual) return NMLP_OK;
    if (kernel->build != nmlp_kernel_mlp)
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse", "is for kernel mlp; kernel %s has no norm and no residual",
                               kernel->name);
    if (f->norm_e12 < 0 || f->norm_e12 > NORM_E12_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse", "has an epsilon of %lld e-12; it must be above 0, at most 0.01",
                               (long long)f->norm_e12);
    if (f->residual && nmlp_tiling_get(rq->tiling, "x", 0) == NMLP_X_GIVEN)
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse", "has a residual, whose rows of x a transposed x does not have");
    return NMLP_OK;
}

static nmlp_status check_fp8(const nmlp_kernel *kernel, const nmlp_kernel_request *rq, nmlp_err *err) {
    if (!rq->fp8) return NMLP_OK;
    if (kernel->build != nmlp_kernel_mlp)
        return nmlp_fail_field(err, NMLP_E_ARG, "weights", "are fp8 for kernel mlp only, not for %s", kernel->name);
    if (rq->dtype == NMLP_NC_FP32)
        return nmlp_fail_field(err, NMLP_E_ARG, "weights",
                               "are fp8, which the tensor engine does not mix with activations in fp32");
    return NMLP_OK;
}

static nmlp_status check_ranks(const nmlp_kernel *kernel, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_mlp_ranks *given = &rq->ranks;
    int64_t limit = NMLP_INDEX_MAX / 64;
    bool any = given->gate || given->up || given->down;
    if ((any || given->shared) && kernel->build != nmlp_kernel_mlp)
        return nmlp_fail_field(err, NMLP_E_ARG, "ranks", "are for kernel mlp; kernel %s has one rank", kernel->name);
    if (any && rq->shape.r != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "ranks", "and the rank R=%lld of the shape are both given",
                               (long long)rq->shape.r);
    if (given->gate < 0 || given->up < 0 || given->down < 0 || given->gate > limit || given->up > limit ||
        given->down > limit)
        return nmlp_fail_field(err, NMLP_E_ARG, "ranks", "are gate %lld, up %lld, down %lld; each must be 0 to %lld",
                               (long long)given->gate, (long long)given->up, (long long)given->down, (long long)limit);
    nmlp_mlp_ranks ranks = nmlp_kernel_mlp_ranks(rq);
    if ((given->shared || ranks.shared) && (ranks.gate == 0 || ranks.gate != ranks.up))
        return nmlp_fail_field(err, NMLP_E_ARG, "ranks",
                               "of gate and up are %lld and %lld; to share their first "
                               "factor both must have the same rank",
                               (long long)ranks.gate, (long long)ranks.up);
    return NMLP_OK;
}

nmlp_status nmlp_kernel_check_request(const nmlp_kernel *kernel, const nmlp_kernel_request *rq, nmlp_err *err) {
    const nmlp_kernel_shape *s = &rq->shape;
    int64_t limit = NMLP_INDEX_MAX / 64;
    bool ok = s->s >= 1 && s->h >= 1 && s->o >= 1 && s->s <= limit && s->h <= limit && s->o <= limit;
    bool rank_ok = kernel->has_rank ? s->r >= (kernel->gated ? 0 : 1) && s->r <= limit : s->r == 0;
    NMLP_RETURN_IF_FAILED(check_ranks(kernel, rq, err));
    NMLP_RETURN_IF_FAILED(check_fusion(kernel, rq, err));
    NMLP_RETURN_IF_FAILED(check_fp8(kernel, rq, err));
    if (!ok || !rank_ok)
        return nmlp_fail_field(err, NMLP_E_ARG, "shape",
                               "of kernel %s is S=%lld H=%lld R=%lld O=%lld; each must be 1 to %lld%s", kernel->name,
                               (long long)s->s, (long long)s->h, (long long)s->r, (long long)s->o, (long long)limit,
                               kernel->has_rank ? "" : ", without R");
    for (int i = 0; rq->tiling && i < rq->tiling->n; i++) {
        const char *key = rq->tiling->entries[i].key;
        int64_t value = rq->tiling->entries[i].value;
        if (!listed(kernel->tiling_keys, key))
            return nmlp_fail(err, NMLP_E_ARG, "kernel %s has no tiling key \"%s\"; it takes: %s", kernel->name, key,
                             kernel->tiling_keys[0] ? kernel->tiling_keys : "none");
        int least = listed("tail,taper,turn", key) ? 0 : 1; /* may be left out */
        int most = strcmp(key, "turn") == 0 ? NMLP_TURN_BUT_TAIL : 1024;
        if (value < least || value > most)
            return nmlp_fail(err, NMLP_E_ARG, "kernel %s: tiling %s=%lld is outside %d..%d", kernel->name, key,
                             (long long)value, least, most);
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

void nmlp_tiling_print(const nmlp_tiling *tiling, nmlp_str *out) {
    for (int i = 0; i < tiling->n; i++)
        nmlp_str_printf(out, "%s%s=%lld", i ? "," : "", tiling->entries[i].key, (long long)tiling->entries[i].value);
}
