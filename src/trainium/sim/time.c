/* The timing run: set-up, the walk and the report. */
#include "trainium/sim/time.h"

#include <math.h>

#include "base/mem.h"
#include "trainium/neuron/check.h"
#include "trainium/sim/time_internal.h"

const char *nmlp_stall_name(nmlp_stall stall) {
    static const char *const names[] = {"dma", "engine", "psum", "buffer", "port", "warmup"};
    return names[stall];
}

const char *nmlp_traffic_name(nmlp_traffic traffic) {
    static const char *const names[] = {"input", "weights", "output", "scratch", "spill"};
    return names[traffic];
}

void nmlp_timer_event(const nmlp_timer *t, nmlp_nc_engine engine, nmlp_op op, const char *what, double start,
                      double end) {
    if (!t->options || !t->options->on_event) return;
    nmlp_time_event event = {engine, op, what, start * 1e-3, end * 1e-3};
    t->options->on_event(t->options->ctx, &event);
}

static void fini_timer(nmlp_timer *t) {
    for (size_t i = 0; t->buffers && i < t->p->n_buffers; i++) {
        nmlp_mem_free(t->buffers[i].slots);
        nmlp_mem_free(t->buffers[i].staging);
        nmlp_mem_free(t->buffers[i].home_ready);
        nmlp_mem_free(t->buffers[i].state);
    }
    nmlp_mem_free(t->buffers);
    nmlp_ledger_fini(&t->dma);
    nmlp_ledger_fini(&t->hbm);
    for (int i = 0; t->issue && i < t->n_streams; i++) nmlp_ledger_fini(&t->issue[i]);
    nmlp_mem_free(t->issue);
    nmlp_mem_free(t->stored);
}

static nmlp_status init_buffers(nmlp_timer *t, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_program *p = t->p;
    nmlp_placement *places = nmlp_mem_new(p->n_buffers + 1, sizeof *places, err);
    if (!places) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_place_buffers(p, t->m, places, err));
    t->report->sbuf_bytes = nmlp_placed_sbuf_bytes(p, places);
    for (size_t i = 0; i < p->n_buffers; i++) {
        nmlp_timed_buffer *b = &t->buffers[i];
        int64_t spilled = places[i].rows - places[i].resident;
        b->decl = &p->buffers[i];
        b->place = places[i];
        b->slots = nmlp_mem_new((size_t)(places[i].copies * places[i].resident) + 1, sizeof *b->slots, err);
        if (!b->slots) NMLP_TRY(NMLP_E_NOMEM);
        t->report->n_spilled_rows += spilled;
        t->report->n_lost_copies += p->buffers[i].copies - places[i].copies;
        if (spilled == 0) continue;
        b->staging = nmlp_mem_new((size_t)b->place.staging, sizeof *b->staging, err);
        b->home_ready = nmlp_mem_new((size_t)spilled, sizeof *b->home_ready, err);
        b->state = nmlp_mem_new((size_t)spilled, 1, err);
        if (!b->staging || !b->home_ready || !b->state) NMLP_TRY(NMLP_E_NOMEM);
        for (int s = 0; s < b->place.staging; s++) b->staging[s].row = -1;
    }
out:
    nmlp_mem_free(places);
    return st;
}

static nmlp_status init_timer(nmlp_timer *t, nmlp_err *err) {
    t->cost = (nmlp_cost_ctx){t->p, t->m};
    t->ramp_start = -1;
    t->func = -1;
    t->n_streams = (int)t->m->dma_issue_streams;
    t->buffers = nmlp_mem_new(t->p->n_buffers + 1, sizeof *t->buffers, err);
    t->issue = nmlp_mem_new((size_t)t->n_streams, sizeof *t->issue, err);
    t->stored = nmlp_mem_new(t->p->n_tensors + 1, sizeof *t->stored, err);
    if (!t->buffers || !t->issue || !t->stored) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(nmlp_ledger_init(&t->dma, t->m->dma_engines, err));
    NMLP_RETURN_IF_FAILED(nmlp_ledger_init(&t->hbm, t->m->hbm_bytes_per_ns, err));
    for (int i = 0; i < t->n_streams; i++) NMLP_RETURN_IF_FAILED(nmlp_ledger_init(&t->issue[i], 1.0, err));
    return init_buffers(t, err);
}

/* The name now means the next copy; spilled rows lose their contents. */
static void alloc_buffer(nmlp_timer *t, int buffer) {
    nmlp_timed_buffer *b = &t->buffers[buffer];
    b->copy = (b->copy + 1) % b->place.copies;
    for (int64_t i = 0; i < b->place.rows - b->place.resident; i++) b->state[i] = 0;
    for (int i = 0; b->staging && i < b->place.staging; i++) {
        nmlp_slot *s = &b->staging[i];
        if (s->written > s->read) s->read = s->written;
        s->row = -1;
        s->dirty = false;
    }
}

static void time_step(nmlp_timer *t, const nmlp_step *step) {
    switch (step->instr->op) {
    case NMLP_OP_ALLOC: alloc_buffer(t, step->dst.buffer); return;
    case NMLP_OP_DMA_LOAD:
    case NMLP_OP_DMA_STORE:
    case NMLP_OP_DMA_TRANSPOSE: nmlp_timer_transfer(t, step); break;
    case NMLP_OP_MATMUL: nmlp_timer_matmul(t, step); break;
    case NMLP_OP_TRANSPOSE:
        if (step->instr->engine == NMLP_ENGINE_TENSOR)
            nmlp_timer_matmul(t, step);
        else
            nmlp_timer_elementwise(t, step);
        break;
    default: nmlp_timer_elementwise(t, step); break;
    }
    if (step->instr->engine != NMLP_ENGINE_DMA) t->report->n_instrs[step->instr->engine]++;
    t->report->n_total++;
}

static bool computes_in_fp32(const nmlp_program *p) {
    for (size_t i = 0; i < p->n_instrs; i++)
        if (p->instrs[i].op == NMLP_OP_MATMUL && p->buffers[p->instrs[i].a.buffer].dtype == NMLP_NC_FP32) return true;
    return false;
}

static nmlp_status check_memory(const nmlp_timer *t, nmlp_err *err) {
    bool starved = t->dma.starved || t->hbm.starved;
    for (int i = 0; i < t->n_streams; i++) starved = starved || t->issue[i].starved;
    return starved ? nmlp_fail(err, NMLP_E_NOMEM, "out of memory for the timeline of the DMA engines") : NMLP_OK;
}

static void finish_report(nmlp_timer *t) {
    nmlp_time_report *r = t->report;
    double latency_ns = t->end + t->m->launch_us * 1e3,
           peak = nmlp_machine_peak_flops_per_ns(t->m, computes_in_fp32(t->p));
    r->latency_us = latency_ns * 1e-3;
    r->busy_us[NMLP_ENGINE_DMA] = t->dma.total / t->m->dma_engines * 1e-3;
    for (int i = 0; i < NMLP_N_TRAFFICS; i++) {
        r->hbm_read_bytes += r->read_bytes[i];
        r->hbm_write_bytes += r->write_bytes[i];
    }
    r->spill_bytes = r->read_bytes[NMLP_TRAFFIC_SPILL] + r->write_bytes[NMLP_TRAFFIC_SPILL];
    r->tensor_utilisation = r->flops / (peak * latency_ns);
    r->tensor_sustained_utilisation = r->tensor_utilisation / t->m->tensor_sustained;
    r->psum_banks = nmlp_program_psum_banks(t->p, t->m);
}

nmlp_status nmlp_time_run(nmlp_time_report *report, const nmlp_program *program, const nmlp_machine *machine,
                          const nmlp_time_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_walk walk = {0};
    nmlp_step step;
    nmlp_timer t = {.p = program, .m = machine, .options = options, .report = report};
    *report = (nmlp_time_report){0};
    NMLP_TRY(nmlp_program_check(program, machine, NULL, err)); /* also keeps every access below inside its buffer */
    NMLP_TRY(init_timer(&t, err));
    NMLP_TRY(nmlp_walk_init(&walk, program, err));
    while (nmlp_walk_next(&walk, &step)) {
        time_step(&t, &step);
        if (options && (report->n_total & 0xffff) == 0 &&
            !nmlp_progress_update(options->progress, "time", (double)report->n_total, 0, "instructions"))
            NMLP_TRY(nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped after %lld instructions", (long long)report->n_total));
    }
    NMLP_TRY(check_memory(&t, err));
    finish_report(&t);
out:
    nmlp_walk_fini(&walk);
    fini_timer(&t);
    return st;
}
