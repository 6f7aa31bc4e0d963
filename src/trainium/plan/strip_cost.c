#include "trainium/plan/strip_cost.h"

#include <math.h>
#include <string.h>

static const char *const op_names[] = {"xw", "xuv", "mlp"};

const char *nmlp_plan_op_name(nmlp_plan_op op) { return op_names[op]; }

bool nmlp_plan_op_parse(const char *name, nmlp_plan_op *op) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(op_names[i], name) != 0) continue;
        *op = (nmlp_plan_op)i;
        return true;
    }
    return false;
}

static int mlp_products(nmlp_strip_product *p, const nmlp_kernel_shape *s, nmlp_mlp_ranks r) {
    int n = 0;
    bool pair = r.gate > 0 && r.gate == r.up; /* first factors of one shape, or one for both */
    if (r.gate > 0)
        p[n++] = (nmlp_strip_product){.kind = NMLP_PRODUCT_TRANSPOSED,
                                      .k = s->h,
                                      .n = r.gate,
                                      .planes = pair && !r.shared ? 2 : 1,
                                      .from_x = true};
    if (r.up > 0 && !pair)
        p[n++] =
            (nmlp_strip_product){.kind = NMLP_PRODUCT_TRANSPOSED, .k = s->h, .n = r.up, .planes = 1, .from_x = true};
    int64_t k_gate = r.gate > 0 ? r.gate : s->h, k_up = r.up > 0 ? r.up : s->h;
    p[n++] = (nmlp_strip_product){
        .kind = NMLP_PRODUCT_GATED, .k = k_gate, .n = s->o, .planes = 2, .k_second = k_up == k_gate ? 0 : k_up};
    if (r.down > 0) {
        p[n++] = (nmlp_strip_product){
            .kind = NMLP_PRODUCT_TRANSPOSED, .k = s->o, .n = r.down, .planes = 1, .from_act = true};
        p[n++] =
            (nmlp_strip_product){.kind = NMLP_PRODUCT_ROWS, .k = r.down, .n = s->h, .planes = 1, .k_is_rank = true};
    } else {
        p[n++] = (nmlp_strip_product){.kind = NMLP_PRODUCT_ROWS, .k = s->o, .n = s->h, .planes = 1, .from_act = true};
    }
    return n;
}

int nmlp_strip_products_of(nmlp_strip_product p[NMLP_STRIP_PRODUCTS_MAX], nmlp_plan_op op,
                           const nmlp_kernel_request *rq) {
    const nmlp_kernel_shape *s = &rq->shape;
    int n = 0;
    if (op == NMLP_PLAN_MLP) return mlp_products(p, s, nmlp_kernel_mlp_ranks(rq));
    if (op == NMLP_PLAN_XUV)
        p[n++] =
            (nmlp_strip_product){.kind = NMLP_PRODUCT_TRANSPOSED, .k = s->h, .n = s->r, .planes = 1, .from_x = true};
    p[n++] = (nmlp_strip_product){.kind = NMLP_PRODUCT_ROWS,
                                  .k = op == NMLP_PLAN_XUV ? s->r : s->h,
                                  .n = s->o,
                                  .planes = 1,
                                  .k_is_rank = op == NMLP_PLAN_XUV};
    return n;
}

double nmlp_strip_product_work(const nmlp_strip_product *p) {
    int64_t k = p->k_second > 0 ? p->k + p->k_second : p->k * p->planes;
    return (double)k * (double)p->n;
}

double nmlp_dma_rows_ns(const nmlp_machine *m, double rows, double bytes) {
    double full = m->dma_row_ns + fmax(bytes, m->dma_small_row_bytes) / m->dma_bytes_per_ns;
    double ns =
        bytes >= m->dma_small_row_bytes ? full : fmin(full, fmax(m->dma_row_ns, bytes / m->dma_small_bytes_per_ns));
    return fmax(rows / m->dma_engines * ns, rows * bytes / m->hbm_bytes_per_ns);
}

double nmlp_dma_peak_bytes_per_ns(const nmlp_machine *m) {
    return fmin(m->dma_engines * m->dma_bytes_per_ns, m->hbm_bytes_per_ns);
}

static void pick_binding(nmlp_bounds *b) {
    const double ns[] = {b->tensor_ns, b->dma_ns, b->vector_ns, b->scalar_ns};
    static const char *const names[] = {"tensor", "dma", "vector", "scalar"};
    b->largest_ns = 0;
    for (int i = 0; i < 4; i++)
        if (ns[i] > b->largest_ns) b->largest_ns = ns[i], b->binding = names[i];
}

/* From the trigger of a DMA to its first byte. */
static double begin_ns(const nmlp_machine *m) { return m->dma_issue_ns + m->dma_start_ns; }

/* From the last matmul issued to the end: the result is read out of PSUM, by the quickest engine, and stored. */
static double end_ns(const nmlp_machine *m) {
    double vector = m->vector_min_cycles / m->vector_clock_ghz + m->vector_overhead_ns + m->vector_latency_ns,
           scalar = m->scalar_min_cycles / m->scalar_clock_ghz + m->scalar_overhead_ns + m->scalar_latency_ns,
           gpsimd = 1 / m->gpsimd_clock_ghz + m->gpsimd_overhead_ns + m->vector_latency_ns;
    return m->tensor_latency_ns + m->semaphore_ns + fmin(vector, fmin(scalar, gpsimd)) + begin_ns(m) + m->dma_row_ns +
           m->dma_done_ns;
}

/* `in_bytes`: x and the weights. Their last byte is followed by at least one matmul and a store; no matmul begins
 * before the first DMA is done. */
static double floor_of(const nmlp_machine *m, const nmlp_bounds *b, double in_bytes, bool fp32) {
    double matmul =
               m->tensor_min_cycles * (fp32 ? m->tensor_fp32_passes : 1) / m->tensor_clock_ghz / m->tensor_sustained,
           loads = begin_ns(m) + in_bytes / nmlp_dma_peak_bytes_per_ns(m) + m->dma_done_ns + matmul + end_ns(m),
           stores = begin_ns(m) + b->dma_ns + m->dma_done_ns,
           tensor = begin_ns(m) + m->dma_row_ns + m->dma_done_ns + b->tensor_ns + end_ns(m);
    return fmax(fmax(loads, stores), fmax(tensor, b->largest_ns));
}

nmlp_bounds nmlp_bounds_of(nmlp_plan_op op, const nmlp_kernel_request *rq) {
    const nmlp_machine *m = rq->machine;
    const nmlp_kernel_shape *s = &rq->shape;
    nmlp_strip_product products[NMLP_STRIP_PRODUCTS_MAX];
    int n = nmlp_strip_products_of(products, op, rq);
    bool fp32 = rq->dtype == NMLP_NC_FP32;
    double rows = (double)s->s, elem = (double)nmlp_nc_dtype_bytes(rq->dtype), flops = 0, weights = 0, gated = 0,
           plain = 0;
    for (int i = 0; i < n; i++) {
        double work = nmlp_strip_product_work(&products[i]);
        flops += 2 * rows * work;
        weights += work;
        if (products[i].kind == NMLP_PRODUCT_GATED)
            gated += rows * (double)products[i].n;
        else
            plain += rows * (double)(products[i].n * products[i].planes);
    }
    double out = (double)(op == NMLP_PLAN_MLP ? s->h : s->o), lanes = m->partitions;
    nmlp_bounds b = {0};
    b.tensor_ns = flops / nmlp_machine_peak_flops_per_ns(m, fp32) / m->tensor_sustained;
    double x_reads = rq->fuse.residual ? 2 : 1;
    double weight_bytes = (double)nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(rq)) * weights;
    b.dma_ns = (weight_bytes + elem * rows * (x_reads * (double)s->h + out)) / nmlp_dma_peak_bytes_per_ns(m);
    b.vector_ns = (gated + plain / 2) / lanes / m->vector_clock_ghz;
    b.scalar_ns = (gated + plain / 2) / lanes / m->scalar_clock_ghz;
    pick_binding(&b);
    b.floor_ns = floor_of(m, &b, weight_bytes + elem * rows * (double)s->h, fp32);
    return b;
}
