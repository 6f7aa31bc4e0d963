#include "chain.h"

#include "base/cpu.h"
#include "kernels/ops/vec.h"

enum { ELEMS_PER_TASK = 8192, PIECE = 512 };

struct activation {
    void *act;
    const void *gate;
    const void *up;
    nmlp_dtype dtype;
};

static const nmlp_vec *vec_of_machine(void) {
#if defined(__x86_64__)
    if (nmlp_cpu_get()->avx512) return &nmlp_vec_avx512;
    if (nmlp_cpu_get()->avx2_fma) return &nmlp_vec_avx2;
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

void nmlp_chain_activate(nmlp_pool *pool, void *act, const void *gate, const void *up, nmlp_dtype dtype, int64_t n) {
    struct activation activation = {.act = act, .gate = gate, .up = up, .dtype = dtype};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, activate, &activation);
}

struct conversion {
    void *dst;
    const void *src;
    nmlp_dtype to;
    nmlp_dtype from;
};

static void convert(void *arg, int64_t begin, int64_t end, int thread) {
    const struct conversion *c = arg;
    float piece[PIECE];
    (void)thread;
    for (int64_t at = begin; at < end; at += PIECE) {
        size_t n = (size_t)(end - at < PIECE ? end - at : PIECE);
        nmlp_to_f32(piece, (const char *)c->src + (size_t)at * nmlp_dtype_bytes(c->from), c->from, n);
        nmlp_from_f32((char *)c->dst + (size_t)at * nmlp_dtype_bytes(c->to), c->to, piece, n);
    }
}

void nmlp_chain_convert(nmlp_pool *pool, void *dst, nmlp_dtype to, const void *src, nmlp_dtype from, int64_t n) {
    struct conversion conversion = {.dst = dst, .src = src, .to = to, .from = from};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, convert, &conversion);
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
