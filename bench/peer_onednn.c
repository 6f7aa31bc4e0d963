/* The chain as oneDNN matmuls with weights in the order oneDNN likes best, plus element-wise code. */
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/pages.h"
#include "peers.h"

#if DNNL_VERSION_MAJOR == 2

enum { COPIES_MAX = NMLP_PEER_COPIES_MAX, SHAPES_MAX = 16 };

/* One matmul for one number of rows. */
struct matmul {
    dnnl_primitive_t primitive;
    dnnl_memory_t src;
    dnnl_memory_t dst;
};

struct onednn {
    nmlp_bench_case c;
    nmlp_chain chain;
    nmlp_dtype dtype;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_t w[COPIES_MAX][6]; /* in the order of the first shape asked for */
    int64_t rows[SHAPES_MAX];
    struct matmul matmul[SHAPES_MAX][6];
    int n_shapes;
    void *x;
    void *gate;
    void *up;
    void *inner;
    void *y;
};

static dnnl_data_type_t type_of(const struct onednn *o) { return o->dtype == NMLP_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32; }

static bool fine(dnnl_status_t st, const char *what) {
    if (st != dnnl_success) fprintf(stderr, "oneDNN: %s failed with %d\n", what, (int)st);
    return st == dnnl_success;
}

static bool describe(struct onednn *o, int at, int64_t s, dnnl_primitive_desc_t *pd) {
    const nmlp_view *w = &o->chain.w[at];
    dnnl_memory_desc_t src;
    dnnl_memory_desc_t weights;
    dnnl_memory_desc_t dst;
    dnnl_matmul_desc_t desc;
    dnnl_dims_t src_dims = {s, w->shape[1]};
    dnnl_dims_t w_dims = {w->shape[1], w->shape[0]};
    dnnl_dims_t dst_dims = {s, w->shape[0]};
    dnnl_memory_desc_init_by_tag(&src, 2, src_dims, type_of(o), dnnl_ab);
    dnnl_memory_desc_init_by_tag(&weights, 2, w_dims, type_of(o), dnnl_format_tag_any);
    dnnl_memory_desc_init_by_tag(&dst, 2, dst_dims, type_of(o), dnnl_ab);
    return fine(dnnl_matmul_desc_init(&desc, &src, &weights, NULL, &dst), "matmul_desc") &&
           fine(dnnl_primitive_desc_create(pd, &desc, NULL, o->engine, NULL), "matmul primitive_desc");
}

/* Brings one copy of a weight into the wanted order. */
static bool pack(struct onednn *o, int copy, int at, dnnl_primitive_desc_t pd) {
    const nmlp_view *w = &o->chain.w[at];
    dnnl_memory_desc_t plain;
    dnnl_memory_t from;
    dnnl_primitive_desc_t reorder_pd;
    dnnl_primitive_t reorder;
    dnnl_dims_t dims = {w->shape[1], w->shape[0]};
    const dnnl_memory_desc_t *wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_desc_init_by_tag(&plain, 2, dims, dnnl_bf16, dnnl_ba); /* [N,K] is the transpose of [K,N] */
    void *packed = nmlp_pages_new(dnnl_memory_desc_get_size(wanted), NULL);
    if (!fine(dnnl_memory_create(&from, &plain, o->engine, (void *)(uintptr_t)w->data), "memory") ||
        !fine(dnnl_memory_create(&o->w[copy][at], wanted, o->engine, packed), "memory") ||
        !fine(dnnl_reorder_primitive_desc_create(&reorder_pd, &plain, o->engine, wanted, o->engine, NULL), "reorder") ||
        !fine(dnnl_primitive_create(&reorder, reorder_pd), "reorder"))
        return false;
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, o->w[copy][at]}};
    bool ok = fine(dnnl_primitive_execute(reorder, o->stream, 2, args), "reorder");
    dnnl_stream_wait(o->stream);
    dnnl_primitive_destroy(reorder);
    dnnl_primitive_desc_destroy(reorder_pd);
    dnnl_memory_destroy(from);
    return ok;
}

static bool prepare_matmul(struct onednn *o, int shape, int at, int64_t s) {
    dnnl_primitive_desc_t pd;
    struct matmul *m = &o->matmul[shape][at];
    if (!describe(o, at, s, &pd)) return false;
    for (int copy = 0; copy < o->c.n_copies; copy++)
        if (!o->w[copy][at] && !pack(o, copy, at, pd)) return false;
    const dnnl_memory_desc_t *src = dnnl_primitive_desc_query_md(pd, dnnl_query_src_md, 0);
    const dnnl_memory_desc_t *dst = dnnl_primitive_desc_query_md(pd, dnnl_query_dst_md, 0);
    bool ok = fine(dnnl_primitive_create(&m->primitive, pd), "matmul") &&
              fine(dnnl_memory_create(&m->src, src, o->engine, DNNL_MEMORY_NONE), "memory") &&
              fine(dnnl_memory_create(&m->dst, dst, o->engine, DNNL_MEMORY_NONE), "memory");
    dnnl_primitive_desc_destroy(pd);
    return ok;
}

/* Index of the primitives for s rows, made on first use. */
static int shape_of(struct onednn *o, int64_t s) {
    for (int i = 0; i < o->n_shapes; i++)
        if (o->rows[i] == s) return i;
    if (o->n_shapes == SHAPES_MAX) return -1;
    for (int at = 0; at < o->chain.n; at++)
        if (!prepare_matmul(o, o->n_shapes, at, s)) return -1;
    o->rows[o->n_shapes] = s;
    return o->n_shapes++;
}

static void gemm(struct onednn *o, int shape, int copy, int at, void *y, void *x) {
    struct matmul *m = &o->matmul[shape][at];
    dnnl_memory_set_data_handle(m->src, x);
    dnnl_memory_set_data_handle(m->dst, y);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->src}, {DNNL_ARG_WEIGHTS, o->w[copy][at]}, {DNNL_ARG_DST, m->dst}};
    fine(dnnl_primitive_execute(m->primitive, o->stream, 3, args), "execute");
    dnnl_stream_wait(o->stream);
}

static void project(struct onednn *o, int shape, int copy, int which, void *y, void *x) {
    if (o->chain.n == 3) {
        gemm(o, shape, copy, which, y, x);
        return;
    }
    gemm(o, shape, copy, 2 * which, o->inner, x);
    gemm(o, shape, copy, 2 * which + 1, y, o->inner);
}

static void run(void *ctx, int copy, float *y, const float *x, int64_t s) {
    struct onednn *o = ctx;
    int shape = shape_of(o, s);
    int64_t n = s * o->c.hidden;
    if (shape < 0) return;
    copy %= o->c.n_copies;
    nmlp_chain_convert(o->c.pool, o->x, o->dtype, x, NMLP_DTYPE_F32, n);
    project(o, shape, copy, 0, o->gate, o->x);
    project(o, shape, copy, 1, o->up, o->x);
    nmlp_chain_activate(o->c.pool, o->gate, o->gate, o->up, o->dtype, s * o->c.inner);
    project(o, shape, copy, 2, o->y, o->gate);
    nmlp_chain_convert(o->c.pool, y, NMLP_DTYPE_F32, o->y, o->dtype, n);
}

static void destroy(void *ctx) { nmlp_mem_free(ctx); /* the rest lives as long as the program */ }

static nmlp_status make(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_dtype dtype, nmlp_err *err) {
    struct onednn *o = nmlp_mem_new(1, sizeof *o, err);
    if (!o) return NMLP_E_NOMEM;
    o->c = *c;
    if (o->c.n_copies > COPIES_MAX) o->c.n_copies = COPIES_MAX;
    o->chain = nmlp_chain_of(&c->desc);
    o->dtype = dtype;
    size_t act = (size_t)(c->s_max * c->inner);
    o->x = nmlp_mem_new((size_t)(c->s_max * c->hidden), sizeof(float), err);
    o->y = nmlp_mem_new((size_t)(c->s_max * c->hidden), sizeof(float), err);
    o->gate = nmlp_mem_new(act, sizeof(float), err);
    o->up = nmlp_mem_new(act, sizeof(float), err);
    o->inner = nmlp_mem_new((size_t)(c->s_max * (c->rank + 1)), sizeof(float), err);
    if (!o->x || !o->y || !o->gate || !o->up || !o->inner) return NMLP_E_NOMEM;
    if (!fine(dnnl_engine_create(&o->engine, dnnl_cpu, 0), "engine") ||
        !fine(dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags), "stream") ||
        shape_of(o, c->s_max) < 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "oneDNN has no %s matmul for this CPU", nmlp_dtype_name(dtype));
    *peer = (nmlp_peer){.ctx = o,
                        .run = run,
                        .destroy = destroy,
                        .bytes_per_weight = (double)nmlp_dtype_bytes(dtype),
                        .bf16 = dtype == NMLP_DTYPE_BF16};
    snprintf(peer->name, sizeof peer->name, "onednn-%s", nmlp_dtype_name(dtype));
    return NMLP_OK;
}

#else

static nmlp_status make(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_dtype dtype, nmlp_err *err) {
    (void)peer;
    (void)c;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "oneDNN %s: this benchmark speaks to version 2 only",
                     nmlp_dtype_name(dtype));
}

#endif

nmlp_status nmlp_peer_onednn_f32(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err) {
    return make(peer, c, NMLP_DTYPE_F32, err);
}

nmlp_status nmlp_peer_onednn_bf16(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err) {
    return make(peer, c, NMLP_DTYPE_BF16, err);
}
