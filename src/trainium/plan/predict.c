#include "trainium/plan/predict.h"

#include <math.h>
#include <string.h>

#include "trainium/plan/strip_cost.h"

enum { NORM_PASSES = 3 /* square, sum, scale */, SOFTMAX_PASSES = 2 /* maximum, sum and scale */ };

typedef struct pass {
    const nmlp_planner *planner;
    const nmlp_predict_request *rq;
    int64_t batch;   /* sequences */
    int64_t rows;    /* tokens of this pass, of all sequences */
    int64_t context; /* tokens attended to by the last one of a sequence */
    bool *by_rank;   /* out: the split that was faster */
} pass;

/* A planned kernel without its launch. */
static nmlp_status plan_us(const pass *p, nmlp_plan_op op, nmlp_kernel_request rq, double *us, nmlp_err *err) {
    nmlp_kernel_plan plan;
    rq.dtype = p->rq->dtype;
    rq.machine = p->planner->machine;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_plan_find(&plan, p->planner, op, &rq, err));
    *us = plan.winner.cost.latency_us - p->planner->machine->launch_us;
    return NMLP_OK;
}

static nmlp_status kernel_us(const pass *p, nmlp_plan_op op, nmlp_kernel_shape shape, double *us, nmlp_err *err) {
    return plan_us(p, op, (nmlp_kernel_request){.shape = shape}, us, err);
}

static int64_t share(int64_t n, int64_t tp) { return (n + tp - 1) / tp; }

static double round_trip_us(const nmlp_machine *m) { return (m->dma_start_ns + m->dma_done_ns) * 1e-3; }

/* Rows in and out of HBM once, against what the vector engine has to do. */
static double norm_us(const pass *p) {
    const nmlp_machine *m = p->planner->machine;
    double elems = (double)p->rows * (double)p->rq->decoder.hidden,
           bytes = 2 * elems * (double)nmlp_nc_dtype_bytes(p->rq->dtype);
    double vector = NORM_PASSES * elems / m->partitions / m->vector_clock_ghz;
    return fmax(bytes / nmlp_dma_peak_bytes_per_ns(m), vector) * 1e-3 + 2 * round_trip_us(m);
}

/* Scores and values on the tensor engine, the exponentials on the scalar engine, maxima and sums on the vector engine,
 * the cache through DMA; the largest counts. Causal: each row attends to the tokens before it. */
static double attention_us(const pass *p) {
    const nmlp_machine *m = p->planner->machine;
    const nmlp_decoder *d = &p->rq->decoder;
    double heads = (double)share(d->n_heads, p->rq->tp), kv_heads = (double)share(d->n_kv_heads, p->rq->tp),
           dim = (double)d->head_dim;
    double batch = (double)p->batch, rows = (double)p->rows / batch, past = (double)p->context - rows,
           pairs = batch * (rows * past + rows * (rows + 1) / 2);
    double flops = 4 * pairs * heads * dim;
    double tensor = flops / nmlp_machine_peak_flops_per_ns(m, p->rq->dtype == NMLP_NC_FP32) / m->tensor_sustained;
    if (dim < m->partitions) tensor *= m->partitions / dim / 2 + 0.5; /* scores contract over the head only */
    double scalar = pairs * heads / m->partitions / m->scalar_clock_ghz;
    double vector = SOFTMAX_PASSES * pairs * heads / m->partitions / m->vector_clock_ghz;
    double elem = (double)nmlp_nc_dtype_bytes(p->rq->dtype);
    double cache = 2 * batch * kv_heads * dim * elem * ((double)p->context + rows),
           io = 2 * batch * rows * heads * dim * elem;
    double dma = (cache + io) / nmlp_dma_peak_bytes_per_ns(m);
    return fmax(fmax(tensor, dma), fmax(scalar, vector)) * 1e-3 + 2 * round_trip_us(m);
}

/* Ring: 2 (n-1) steps, each a hop and 1/n of the rows. */
static double all_reduce_us(const pass *p) {
    const nmlp_machine *m = p->planner->machine;
    double n = (double)p->rq->tp,
           bytes = (double)p->rows * (double)p->rq->decoder.hidden * (double)nmlp_nc_dtype_bytes(p->rq->dtype);
    if (n <= 1) return 0;
    double rate = fmin(nmlp_dma_peak_bytes_per_ns(m), m->link_bytes_per_ns);
    return 2 * (n - 1) * (m->collective_hop_us + bytes / n / rate * 1e-3);
}

/* Ring all-gather, or reduce-scatter, of `columns` values per row: n-1 steps. */
static double half_ring_us(const pass *p, double columns) {
    const nmlp_machine *m = p->planner->machine;
    double n = (double)p->rq->tp, bytes = (double)p->rows * columns * (double)nmlp_nc_dtype_bytes(p->rq->dtype);
    return (n - 1) *
           (m->collective_hop_us + bytes / n / fmin(nmlp_dma_peak_bytes_per_ns(m), m->link_bytes_per_ns) * 1e-3);
}

const char *nmlp_mlp_kernels_name(nmlp_mlp_kernels kernels) {
    static const char *const names[] = {"ours", "paper", "aws"};
    return names[kernels];
}

bool nmlp_mlp_kernels_parse(const char *name, nmlp_mlp_kernels *kernels) {
    for (int i = NMLP_MLP_KERNELS_OURS; i <= NMLP_MLP_KERNELS_AWS; i++) {
        if (strcmp(nmlp_mlp_kernels_name((nmlp_mlp_kernels)i), name) != 0) continue;
        *kernels = (nmlp_mlp_kernels)i;
        return true;
    }
    return false;
}

/* A kernel of somebody else's as it is, without its launch. */
static nmlp_status foreign_us(const pass *p, const nmlp_kernel *kernel, nmlp_kernel_shape shape,
                              const nmlp_tiling *tiling, double *us, nmlp_err *err) {
    nmlp_kernel_request rq = {.shape = shape, .dtype = p->rq->dtype, .tiling = tiling, .machine = p->planner->machine};
    nmlp_kernel_cost cost;
    nmlp_program *program = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_build(&program, kernel, &rq, err));
    nmlp_status st = p->planner->cost(p->planner->cost_ctx, program, p->planner->machine, &cost, err);
    nmlp_program_destroy(program);
    if (st == NMLP_OK) *us = cost.latency_us - p->planner->machine->launch_us;
    return st;
}

/* The paper's kernels have two tables of block sizes: the better one counts. */
static nmlp_status add_kernel_us(const pass *p, const char *name, nmlp_kernel_shape shape, double *us, nmlp_err *err) {
    const nmlp_kernel *kernel = nmlp_kernel_find(name, err);
    if (!kernel) return NMLP_E_MISSING;
    double best = INFINITY;
    int n_tables = strstr(kernel->tiling_keys, "table") ? 2 : 1;
    for (int table = 1; table <= n_tables; table++) {
        nmlp_tiling tiling = {0};
        double one;
        if (n_tables > 1) NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&tiling, "table", table, err));
        NMLP_RETURN_IF_FAILED(foreign_us(p, kernel, shape, &tiling, &one, err));
        best = fmin(best, one);
    }
    *us += best;
    return NMLP_OK;
}

/* AWS's kernel for each matrix; the paper's chains, if `fused`, for factors. silu and product read two results and
 * write one. */
static nmlp_status separate_us(const pass *p, int64_t intermediate, nmlp_mlp_ranks r, bool fused, double *us,
                               nmlp_err *err) {
    const nmlp_machine *m = p->planner->machine;
    const int64_t ranks[] = {r.gate, r.up, r.down};
    int64_t h = p->rq->decoder.hidden;
    *us = 0;
    for (int k = 0; k < 3; k++) {
        nmlp_kernel_shape shape = {p->rows, k == 2 ? intermediate : h, ranks[k], k == 2 ? h : intermediate};
        const char *chain = fused ? "xuv-fused" : "xuv-seq";
        NMLP_RETURN_IF_FAILED(add_kernel_us(p, ranks[k] > 0 ? chain : "xw-opt", shape, us, err));
    }
    double bytes = 3 * (double)p->rows * (double)intermediate * (double)nmlp_nc_dtype_bytes(p->rq->dtype);
    *us += bytes / nmlp_dma_peak_bytes_per_ns(m) * 1e-3 + round_trip_us(m);
    return NMLP_OK;
}

/* gate and up in one kernel, which has one rank, and down in another. */
static nmlp_status paper_us(const pass *p, int64_t intermediate, nmlp_mlp_ranks r, double *us, nmlp_err *err) {
    int64_t h = p->rq->decoder.hidden;
    if (r.gate == 0 || r.up == 0 || r.down == 0) return separate_us(p, intermediate, r, true, us, err);
    *us = 0;
    NMLP_RETURN_IF_FAILED(add_kernel_us(
        p, "mlp-up-paper", (nmlp_kernel_shape){p->rows, h, r.gate > r.up ? r.gate : r.up, intermediate}, us, err));
    return add_kernel_us(p, "xtuv-fused", (nmlp_kernel_shape){p->rows, intermediate, r.down, h}, us, err);
}

static nmlp_status ranks_us(const pass *p, int64_t intermediate, nmlp_mlp_ranks ranks, double *us, nmlp_err *err) {
    nmlp_kernel_request rq = {.shape = {p->rows, p->rq->decoder.hidden, 0, intermediate}, .fp8 = p->rq->fp8};
    nmlp_kernel_set_ranks(&rq, ranks);
    if (p->rq->kernels == NMLP_MLP_KERNELS_AWS) return separate_us(p, intermediate, ranks, false, us, err);
    if (p->rq->kernels == NMLP_MLP_KERNELS_PAPER) return paper_us(p, intermediate, ranks, us, err);
    return plan_us(p, NMLP_PLAN_MLP, rq, us, err);
}

nmlp_status nmlp_predict_mlp_us(double *us, const nmlp_planner *planner, nmlp_mlp_kernels kernels, int64_t rows,
                                const nmlp_decoder *decoder, nmlp_mlp_ranks ranks, nmlp_err *err) {
    nmlp_predict_request rq = {.decoder = *decoder, .tp = 1, .kernels = kernels, .dtype = NMLP_NC_BF16};
    pass p = {planner, &rq, 1, rows, rows, NULL};
    return ranks_us(&p, decoder->intermediate, ranks, us, err);
}

/* Rank of a slice's own factors where all slices together have as many parameters as the whole matrix's: tp slices of
 * (H + I/tp) r' against (H + I) r. */
static int64_t slice_rank(const nmlp_decoder *d, int64_t tp, int64_t rank) {
    enum { GRAIN = 8 };
    int64_t own = rank * (d->hidden + d->intermediate) / (tp * d->hidden + d->intermediate) / GRAIN * GRAIN;
    return rank > 0 && own < GRAIN ? GRAIN : own;
}

/* Factors over several cores, the better of two ways. Wide: each core has its columns of the intermediate width and
 * whole first factors, no communication inside. Thin, where all three have factors: each core has its part of the
 * ranks; x u is gathered (gate and up), the sum of the down projection's first product is scattered. */
static nmlp_status form_us(const pass *p, nmlp_mlp_ranks r, double *us, nmlp_err *err) {
    const nmlp_decoder *d = &p->rq->decoder;
    int64_t tp = p->rq->tp;
    if (d->slices > 0) { /* a core computes its slices one after the other */
        NMLP_RETURN_IF_FAILED(ranks_us(p, d->intermediate / d->slices, r, us, err));
        *us *= (double)(d->slices / tp);
        return NMLP_OK;
    }
    if (p->rq->slices && tp > 1) {
        nmlp_mlp_ranks own = {slice_rank(d, tp, r.gate), slice_rank(d, tp, r.up), slice_rank(d, tp, r.down), r.shared};
        return ranks_us(p, share(d->intermediate, tp), own, us, err);
    }
    NMLP_RETURN_IF_FAILED(ranks_us(p, share(d->intermediate, tp), r, us, err));
    if (r.gate == 0 || r.up == 0 || r.down == 0 || tp == 1) return NMLP_OK;
    double thin, gathered = (double)(r.shared ? r.gate : r.gate + r.up);
    nmlp_mlp_ranks part = {share(r.gate, tp), share(r.up, tp), share(r.down, tp), r.shared};
    NMLP_RETURN_IF_FAILED(ranks_us(p, d->intermediate, part, &thin, err));
    thin += half_ring_us(p, gathered) + half_ring_us(p, (double)r.down);
    if (p->by_rank) *p->by_rank = thin < *us;
    *us = fmin(*us, thin);
    return NMLP_OK;
}

/* All layers. */
static nmlp_status mlp_us(const pass *p, double *us, nmlp_err *err) {
    const nmlp_decoder *d = &p->rq->decoder;
    nmlp_mlp_form dense = {.n_layers = d->n_layers};
    const nmlp_mlp_form *forms = d->forms ? d->forms : &dense;
    *us = 0;
    for (size_t i = 0; i < (d->forms ? d->n_forms : 1); i++) {
        double one;
        NMLP_RETURN_IF_FAILED(form_us(p, forms[i].ranks, &one, err));
        *us += one * (double)forms[i].n_layers;
    }
    return NMLP_OK;
}

static nmlp_status forward(nmlp_forward_time *t, const pass *p, nmlp_err *err) {
    const nmlp_decoder *d = &p->rq->decoder;
    int64_t tp = p->rq->tp, heads = share(d->n_heads, tp), kv = share(d->n_kv_heads, tp);
    double layers = (double)d->n_layers, mlp, qkv, o, head;
    NMLP_RETURN_IF_FAILED(mlp_us(p, &mlp, err));
    NMLP_RETURN_IF_FAILED(kernel_us(
        p, NMLP_PLAN_XW, (nmlp_kernel_shape){p->rows, d->hidden, 0, (heads + 2 * kv) * d->head_dim}, &qkv, err));
    NMLP_RETURN_IF_FAILED(
        kernel_us(p, NMLP_PLAN_XW, (nmlp_kernel_shape){p->rows, heads * d->head_dim, 0, d->hidden}, &o, err));
    NMLP_RETURN_IF_FAILED(
        kernel_us(p, NMLP_PLAN_XW, (nmlp_kernel_shape){p->batch, d->hidden, 0, share(d->vocab, tp)}, &head, err));
    *t = (nmlp_forward_time){.mlp = mlp,
                             .projections = layers * (qkv + o),
                             .attention = layers * attention_us(p),
                             .norms = (2 * layers + 1) * norm_us(p),
                             .lm_head = head,
                             .all_reduce = 2 * layers * all_reduce_us(p),
                             .launch = p->planner->machine->launch_us};
    return NMLP_OK;
}

double nmlp_forward_total_us(const nmlp_forward_time *t) {
    double sum = 0;
#define ADD_PART(part) sum += t->part;
    NMLP_PREDICT_PARTS(ADD_PART)
#undef ADD_PART
    return sum;
}

/* Parameters of one MLP on all cores: first factors are on every core or of every slice, the rest is split. */
static double mlp_params(const nmlp_predict_request *rq, nmlp_mlp_ranks r) {
    const nmlp_decoder *d = &rq->decoder;
    if (rq->slices && rq->tp > 1)
        r = (nmlp_mlp_ranks){slice_rank(d, rq->tp, r.gate), slice_rank(d, rq->tp, r.up), slice_rank(d, rq->tp, r.down),
                             r.shared};
    double h = (double)d->hidden, i = (double)d->intermediate, tp = (double)(d->slices > 0 ? d->slices : rq->tp),
           gate = (double)r.gate, up = (double)r.up, down = (double)r.down;
    double first = h * tp * (gate + (r.shared ? 0 : up) + down);
    return first + (r.gate > 0 ? gate * i : h * i) + (r.up > 0 ? up * i : h * i) + (r.down > 0 ? down * i : h * i);
}

static double weight_bytes(const nmlp_predict_request *rq) {
    const nmlp_decoder *d = &rq->decoder;
    double h = (double)d->hidden, q = (double)(d->n_heads * d->head_dim), kv = (double)(d->n_kv_heads * d->head_dim),
           mlp = 0;
    for (size_t i = 0; i < d->n_forms; i++) mlp += (double)d->forms[i].n_layers * mlp_params(rq, d->forms[i].ranks);
    if (!d->forms) mlp = (double)d->n_layers * mlp_params(rq, (nmlp_mlp_ranks){0});
    double elem = (double)nmlp_nc_dtype_bytes(rq->dtype), mlp_elem = rq->fp8 ? 1 : elem;
    return mlp * mlp_elem + ((double)d->n_layers * (2 * h * q + 2 * h * kv) + h * (double)d->vocab) * elem;
}

nmlp_status nmlp_predict(nmlp_prediction *out, const nmlp_planner *planner, const nmlp_predict_request *rq,
                         nmlp_err *err) {
    int64_t batch = rq->batch > 0 ? rq->batch : 1;
    if (rq->decoder.slices > 0 && rq->decoder.slices % rq->tp != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "tp",
                               "is %lld; the factors belong to %lld slices, which it must divide", (long long)rq->tp,
                               (long long)rq->decoder.slices);
    pass prefill = {planner, rq, batch, batch * rq->prompt, rq->prompt, NULL},
         decode = {planner, rq, batch, batch, rq->prompt + (rq->generate + 1) / 2, &out->by_rank};
    *out = (nmlp_prediction){.weight_bytes = weight_bytes(rq)};
    double room = planner->machine->hbm_device_bytes / planner->machine->cores_per_device * (double)rq->tp;
    if (out->weight_bytes > room)
        return nmlp_fail_field(
            err, NMLP_E_LIMIT, "tp", "is too small: weights of %.1f GB do not fit %lld core%s of %s, %.1f GB of HBM",
            out->weight_bytes * 1e-9, (long long)rq->tp, rq->tp == 1 ? "" : "s", planner->machine->name, room * 1e-9);
    NMLP_RETURN_IF_FAILED(forward(&out->prefill, &prefill, err));
    NMLP_RETURN_IF_FAILED(forward(&out->decode, &decode, err));
    out->ttft_ms = nmlp_forward_total_us(&out->prefill) * 1e-3;
    out->tpot_ms = nmlp_forward_total_us(&out->decode) * 1e-3;
    out->e2e_ms = out->ttft_ms + out->tpot_ms * (double)(rq->generate > 1 ? rq->generate - 1 : 0);
    out->tokens_per_s = (double)(batch * rq->generate) / out->e2e_ms * 1e3;
    return NMLP_OK;
}
