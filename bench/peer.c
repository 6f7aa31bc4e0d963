#include "peer.h"

#include <stdio.h>

#include "base/mem.h"
#include "kernels/vec.h"

enum { ELEMS_PER_TASK = 8192, PIECE = 512, COPIES_MAX = 64 };

struct activation {
    void *act;
    const void *gate;
    const void *up;
    nmlp_dtype dtype;
};

static const nmlp_vec *vec_of_machine(void) {
#if defined(__x86_64__)
    nmlp_cpu cpu = {.avx512 = __builtin_cpu_supports("avx512bw") != 0, .avx2_fma = __builtin_cpu_supports("avx2") != 0};
    if (cpu.avx512) return &nmlp_vec_avx512;
    if (cpu.avx2_fma) return &nmlp_vec_avx2;
#endif
    return &nmlp_vec_ref;
}

static void activate_piece(const struct activation *a, const nmlp_vec *vec, int64_t at, int64_t n) {
    size_t offset = (size_t)at * nmlp_dtype_bytes(a->dtype);
    float gate[PIECE];
    float up[PIECE];
    nmlp_to_f32(gate, (const char *)a->gate + offset, a->dtype, (size_t)n);
    nmlp_to_f32(up, (const char *)a->up + offset, a->dtype, (size_t)n);
    vec->silu_mul(gate, gate, up, n);
    nmlp_from_f32((char *)a->act + offset, a->dtype, gate, (size_t)n);
}

static void activate(void *arg, int64_t begin, int64_t end, int thread) {
    const struct activation *a = arg;
    const nmlp_vec *vec = vec_of_machine();
    (void)thread;
    for (int64_t at = begin; at < end; at += PIECE) activate_piece(a, vec, at, end - at < PIECE ? end - at : PIECE);
}

void nmlp_peer_activate(nmlp_pool *pool, void *act, const void *gate, const void *up, nmlp_dtype dtype, int64_t n) {
    struct activation activation = {.act = act, .gate = gate, .up = up, .dtype = dtype};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, activate, &activation);
}

nmlp_chain nmlp_chain_of(const nmlp_mlp_desc *desc) {
    const nmlp_factors *factors[] = {&desc->gate, &desc->up, &desc->down};
    nmlp_chain chain = {.n = 0};
    for (int i = 0; i < 3; i++) {
        if (factors[i]->w.data) {
            chain.w[chain.n++] = factors[i]->w;
        } else {
            chain.w[chain.n++] = factors[i]->v;
            chain.w[chain.n++] = factors[i]->u;
        }
    }
    return chain;
}

struct ours {
    nmlp_mlp *mlp[COPIES_MAX];
    int n_copies;
    void *workspace;
    nmlp_pool *pool;
};

static void run_ours(void *ctx, int copy, float *y, const float *x, int64_t s) {
    struct ours *ours = ctx;
    nmlp_mlp_run(ours->mlp[copy % ours->n_copies], y, x, s, ours->workspace, ours->pool);
}

static void destroy_ours(void *ctx) {
    struct ours *ours = ctx;
    for (int i = 0; i < ours->n_copies; i++) nmlp_mlp_destroy(ours->mlp[i]);
    nmlp_mem_free(ours->workspace);
    nmlp_mem_free(ours);
}

bool nmlp_peer_ours(nmlp_peer *peer, const nmlp_bench_case *c, const char *set) {
    nmlp_err err = {.message = ""};
    const nmlp_kernels *kernels;
    struct ours *ours = nmlp_mem_new(1, sizeof *ours, &err);
    bool ok = ours && nmlp_kernels_select(&kernels, c->cpu, set, &err) == NMLP_OK;
    for (int i = 0; ok && i < c->n_copies && i < COPIES_MAX; i++) {
        ok = nmlp_mlp_create(&ours->mlp[i], kernels, &c->desc, c->pool, &err) == NMLP_OK;
        if (ok) ours->n_copies++;
    }
    if (ok) {
        ours->pool = c->pool;
        ours->workspace =
            nmlp_mem_new(1, nmlp_mlp_workspace_bytes(ours->mlp[0], c->s_max, nmlp_pool_threads(c->pool)), &err);
    }
    if (!ok || !ours->workspace) {
        fprintf(stderr, "SKIPPED: %s: %s\n", set, err.message);
        if (ours) destroy_ours(ours);
        return false;
    }
    *peer = (nmlp_peer){.ctx = ours,
                        .run = run_ours,
                        .destroy = destroy_ours,
                        .bytes_per_weight = 2.0,
                        .bf16 = nmlp_kernels_rounds_to_bf16(kernels)};
    snprintf(peer->name, sizeof peer->name, "ours-%s", nmlp_kernels_name(kernels));
    return true;
}
