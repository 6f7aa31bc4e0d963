/* What the engines do with time. */
#include <math.h>

#include "trainium/sim/time_internal.h"

/* Starts an instruction on an in-order engine: notes the stall and returns the start. */
static double start_on(nmlp_timer *t, nmlp_nc_engine engine, const nmlp_wait *wait) {
    double free_at = t->free_at[engine];
    if (wait->at <= free_at) return free_at;
    t->report->stall_us[engine][wait->why] += (wait->at - free_at) * 1e-3;
    return wait->at;
}

static void finish_on(nmlp_timer *t, nmlp_nc_engine engine, double start, double end) {
    t->free_at[engine] = end;
    t->report->busy_us[engine] += (end - start) * 1e-3;
    if (end > t->end) t->end = end;
}

/* The power limiter: the rate ramps up over a window and falls back when a window was less than half used. */
static double warm_rate(nmlp_timer *t, double at) {
    double window = t->m->tensor_warmup_us * 1e3, cold = t->m->tensor_cold_rate;
    if (window <= 0) return 1.0;
    if (t->ramp_start < 0) t->ramp_start = t->window_start = at;
    while (at >= t->window_start + window) {
        /* Rounding can make the quotient fall just short of the one window the condition has seen. */
        double windows = fmax(1.0, floor((at - t->window_start) / window));
        bool idle = t->window_busy < 0.5 * window || windows > 1;
        bool ramped = t->window_start - t->ramp_start >= window;
        if (idle && ramped) t->ramp_start = at;
        t->window_start += windows * window;
        t->window_busy = 0;
    }
    double rate = cold + (1.0 - cold) * (at - t->ramp_start) / window;
    return rate < 1.0 ? rate : 1.0;
}

void nmlp_timer_matmul(nmlp_timer *t, const nmlp_step *step) {
    bool transpose = step->instr->op == NMLP_OP_TRANSPOSE;
    nmlp_wait stationary = {0}, wait = {0};
    double load = nmlp_cost_load_stationary(&t->cost, step), moving = nmlp_cost_moving(&t->cost, step);
    nmlp_timer_wait_read(t, &step->a, NMLP_ENGINE_TENSOR, &stationary);
    /* The next stationary operand is loaded while the current product runs. */
    double load_start = fmax(fmax(t->mm_start, t->load_end), stationary.at);
    nmlp_wait_for(&wait, load_start + load,
                  stationary.at >= t->free_at[NMLP_ENGINE_TENSOR] - load ? stationary.why : NMLP_STALL_ENGINE);
    if (!transpose) nmlp_timer_wait_read(t, &step->b, NMLP_ENGINE_TENSOR, &wait);
    nmlp_timer_wait_write(t, &step->dst, NMLP_ENGINE_TENSOR, step->accumulate, &wait);
    double start = start_on(t, NMLP_ENGINE_TENSOR, &wait);
    double rate = warm_rate(t, start), end = start + moving / rate;
    if (rate < 1.0) t->report->stall_us[NMLP_ENGINE_TENSOR][NMLP_STALL_WARMUP] += (end - start - moving) * 1e-3;
    t->load_end = load_start + load;
    t->mm_start = start;
    t->window_busy += end - start;
    finish_on(t, NMLP_ENGINE_TENSOR, start, end);
    nmlp_timer_did_read(t, &step->a, NMLP_ENGINE_TENSOR, end);
    if (!transpose) {
        nmlp_timer_did_read(t, &step->b, NMLP_ENGINE_TENSOR, end);
        t->report->flops +=
            2.0 * (double)step->a.parts * (double)nmlp_box_free(&step->a) * (double)nmlp_box_free(&step->b);
    }
    nmlp_timer_did_write(t, &step->dst, NMLP_ENGINE_TENSOR, end + t->m->tensor_latency_ns, NMLP_ROW_COMPUTED);
    nmlp_timer_event(t, NMLP_ENGINE_TENSOR, step->instr->op, t->p->buffers[step->dst.buffer].name, start, end);
}

static bool touches(const nmlp_timer *t, const nmlp_step *step, nmlp_space space) {
    const nmlp_box *boxes[] = {&step->dst, &step->a, &step->b};
    for (int i = 0; i < 3; i++)
        if (boxes[i]->buffer >= 0 && t->p->buffers[boxes[i]->buffer].space == space) return true;
    return false;
}

/* NeuronCore-v2: VectorE and ScalarE take turns on PSUM, VectorE and GpSimdE on SBUF. Returns which side of each port
 * the engine is, or -1. */
static int port_side(nmlp_nc_engine engine, nmlp_nc_engine other) {
    return engine == NMLP_ENGINE_VECTOR ? 0 : engine == other ? 1 : -1;
}

static double latency_of(const nmlp_machine *m, nmlp_nc_engine engine) {
    return engine == NMLP_ENGINE_SCALAR ? m->scalar_latency_ns : m->vector_latency_ns;
}

void nmlp_timer_elementwise(nmlp_timer *t, const nmlp_step *step) {
    const nmlp_machine *m = t->m;
    nmlp_nc_engine engine = step->instr->engine;
    nmlp_wait wait = {0};
    bool keeps = step->dst.buffer == step->a.buffer || step->dst.buffer == step->b.buffer;
    int psum =
        m->psum_port_shared > 0 && touches(t, step, NMLP_SPACE_PSUM) ? port_side(engine, NMLP_ENGINE_SCALAR) : -1;
    int sbuf =
        m->sbuf_port_shared > 0 && touches(t, step, NMLP_SPACE_SBUF) ? port_side(engine, NMLP_ENGINE_GPSIMD) : -1;
    double cost = nmlp_cost_elementwise(&t->cost, step);
    if (engine == NMLP_ENGINE_SCALAR && step->instr->op == NMLP_OP_ACTIVATION && t->func != (int)step->instr->func) {
        t->func = (int)step->instr->func;
        cost += m->scalar_table_load_ns;
    }
    if (step->a.buffer >= 0) nmlp_timer_wait_read(t, &step->a, engine, &wait);
    if (step->b.buffer >= 0) nmlp_timer_wait_read(t, &step->b, engine, &wait);
    nmlp_timer_wait_write(t, &step->dst, engine, keeps, &wait);
    if (psum >= 0) nmlp_wait_for(&wait, t->psum_port[1 - psum], NMLP_STALL_PORT);
    if (sbuf >= 0) nmlp_wait_for(&wait, t->sbuf_port[1 - sbuf], NMLP_STALL_PORT);
    double start = start_on(t, engine, &wait), end = start + cost;
    if (psum >= 0) t->psum_port[psum] = end;
    if (sbuf >= 0) t->sbuf_port[sbuf] = end;
    finish_on(t, engine, start, end);
    if (step->a.buffer >= 0) nmlp_timer_did_read(t, &step->a, engine, end);
    if (step->b.buffer >= 0) nmlp_timer_did_read(t, &step->b, engine, end);
    nmlp_timer_did_write(t, &step->dst, engine, end + latency_of(m, engine),
                         step->instr->op == NMLP_OP_MEMSET ? NMLP_ROW_FILLED : NMLP_ROW_COMPUTED);
    nmlp_timer_event(t, engine, step->instr->op, t->p->buffers[step->dst.buffer].name, start, end);
}

double nmlp_timer_dma(nmlp_timer *t, double ready, int queue, const nmlp_dma_cost *cost, double *first_byte) {
    const nmlp_machine *m = t->m;
    nmlp_ledger *issue = &t->issue[queue % t->n_streams];
    double issued = m->dma_issue_ns > 0 ? nmlp_ledger_book(issue, ready, m->dma_issue_ns, 1.0) : ready;
    double begin = issued + m->dma_start_ns;
    double by_engine = nmlp_ledger_book(&t->dma, begin, cost->engines * cost->engine_ns, cost->engines);
    double by_hbm = nmlp_ledger_book(&t->hbm, begin, cost->bytes, m->hbm_bytes_per_ns);
    double end = fmax(by_engine, by_hbm) + m->dma_done_ns;
    *first_byte = begin;
    if (end > t->end) t->end = end;
    t->report->n_instrs[NMLP_ENGINE_DMA]++;
    return end;
}

void nmlp_timer_transfer(nmlp_timer *t, const nmlp_step *step) {
    const nmlp_instr *in = step->instr;
    const nmlp_tensor *tensor = &t->p->tensors[in->hbm.tensor];
    bool store = in->op == NMLP_OP_DMA_STORE, flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    const nmlp_box *box = store ? &step->a : &step->dst;
    const nmlp_buffer *b = &t->p->buffers[box->buffer];
    int64_t free = nmlp_box_free(box), run = box->count[b->n_dims - 1];
    for (int d = b->n_dims - 2; d >= 0 && box->count[d + 1] == b->dims[d + 1]; d--) run *= box->count[d];
    int64_t hbm_run = flip ? free : step->cols;
    if (hbm_run < run) run = hbm_run;
    nmlp_dma_cost cost = nmlp_cost_dma(t->m, box->parts, (free + run - 1) / run,
                                       (double)run * (double)nmlp_nc_dtype_bytes(tensor->dtype), flip);
    nmlp_wait wait = {0};
    if (store)
        nmlp_timer_wait_read(t, box, NMLP_ENGINE_DMA, &wait);
    else
        nmlp_timer_wait_write(t, box, NMLP_ENGINE_DMA, false, &wait);
    /* What one part of a kernel leaves in HBM for the next must be there: parts are calls of their own. */
    if (!store && tensor->role == NMLP_ROLE_SCRATCH) nmlp_wait_for(&wait, t->stored[in->hbm.tensor], NMLP_STALL_DMA);
    double first, end = nmlp_timer_dma(t, wait.at, in->queue, &cost, &first);
    if (store) t->stored[in->hbm.tensor] = fmax(t->stored[in->hbm.tensor], end);
    nmlp_traffic cause = (nmlp_traffic)tensor->role;
    if (store) {
        t->report->write_bytes[cause] += cost.bytes;
        nmlp_timer_did_read(t, box, NMLP_ENGINE_DMA, end);
    } else {
        t->report->read_bytes[cause] += cost.bytes;
        nmlp_timer_did_write(t, box, NMLP_ENGINE_DMA, end, NMLP_ROW_LOADED);
    }
    nmlp_timer_event(t, NMLP_ENGINE_DMA, in->op, tensor->name, first, end);
}
