/* Dependencies through buffers, and spilled rows. */
#include "trainium/sim/time_internal.h"

nmlp_sim_rows nmlp_sim_rows_of(const nmlp_timer *t, const nmlp_box *box) {
    const nmlp_buffer *b = &t->p->buffers[box->buffer];
    nmlp_sim_rows r = {.c0 = 1, .c1 = 1};
    if (b->n_dims == 2) {
        r.c1 = box->count[0];
        r.base = box->start[0];
    } else if (b->n_dims == 3) {
        r.c0 = box->count[0];
        r.c1 = box->count[1];
        r.s0 = b->dims[1];
        r.base = box->start[0] * r.s0 + box->start[1];
    }
    return r;
}

static void count_spill(nmlp_timer *t, double bytes, bool write) {
    if (write)
        t->report->write_bytes[NMLP_TRAFFIC_SPILL] += bytes;
    else
        t->report->read_bytes[NMLP_TRAFFIC_SPILL] += bytes;
}

/* Moves a staged row to its home or back; returns when it is done. */
static double move_row(nmlp_timer *t, const nmlp_buffer *b, double ready, bool write) {
    double row_bytes = (double)(b->dims[b->n_dims - 1] * (int64_t)nmlp_nc_dtype_bytes(b->dtype)), first;
    nmlp_dma_cost cost = nmlp_cost_dma(t->m, b->partitions, 1, row_bytes, false);
    count_spill(t, cost.bytes, write);
    double end = nmlp_timer_dma(t, ready, 0, &cost, &first);
    nmlp_timer_event(t, NMLP_ENGINE_DMA, write ? NMLP_OP_DMA_STORE : NMLP_OP_DMA_LOAD, "spill", first, end);
    return end;
}

static nmlp_slot *stage_row(nmlp_timer *t, nmlp_timed_buffer *b, int64_t row, bool keeps) {
    int64_t spilled = row - b->place.resident;
    for (int i = 0; i < b->place.staging; i++)
        if (b->staging[i].row == row) return &b->staging[i];
    nmlp_slot *s = &b->staging[b->next_stage];
    b->next_stage = (b->next_stage + 1) % b->place.staging;
    double free_at = s->read > s->written ? s->read : s->written;
    if (s->row >= 0 && s->dirty) {
        b->state[s->row - b->place.resident] = NMLP_ROW_STORED;
        free_at = move_row(t, b->decl, free_at, true);
        b->home_ready[s->row - b->place.resident] = free_at;
    }
    *s = (nmlp_slot){.row = row, .written = 0, .read = free_at, .reader = NMLP_ENGINE_DMA};
    if (keeps && b->state[spilled] == NMLP_ROW_STORED) {
        double ready = free_at > b->home_ready[spilled] ? free_at : b->home_ready[spilled];
        s->written = move_row(t, b->decl, ready, false);
        s->writer = NMLP_ENGINE_DMA;
    }
    return s;
}

nmlp_slot *nmlp_timer_slot(nmlp_timer *t, int buffer, int64_t row, bool keeps) {
    nmlp_timed_buffer *b = &t->buffers[buffer];
    if (row < b->place.resident) return &b->slots[b->copy * b->place.resident + row];
    return stage_row(t, b, row, keeps);
}

void nmlp_timer_wait_read(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, nmlp_wait *wait) {
    for (nmlp_sim_rows r = nmlp_sim_rows_of(t, box); nmlp_sim_rows_next(&r);) {
        const nmlp_slot *s = nmlp_timer_slot(t, box->buffer, r.row, true);
        double at = s->written;
        if (s->writer != engine && s->writer != NMLP_ENGINE_DMA && engine != NMLP_ENGINE_DMA) at += t->m->semaphore_ns;
        nmlp_wait_for(wait, at, s->writer == NMLP_ENGINE_DMA ? NMLP_STALL_DMA : NMLP_STALL_ENGINE);
    }
}

void nmlp_timer_wait_write(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, bool keeps, nmlp_wait *wait) {
    bool psum = t->p->buffers[box->buffer].space == NMLP_SPACE_PSUM;
    for (nmlp_sim_rows r = nmlp_sim_rows_of(t, box); nmlp_sim_rows_next(&r);) {
        const nmlp_slot *s = nmlp_timer_slot(t, box->buffer, r.row, keeps);
        nmlp_stall why = psum ? NMLP_STALL_PSUM : NMLP_STALL_BUFFER;
        /* An engine keeps the order of its own accesses by itself. */
        if (s->reader != engine || engine == NMLP_ENGINE_DMA)
            nmlp_wait_for(wait, s->read + t->m->semaphore_ns * (s->read > 0), why);
        if (s->writer != engine || engine == NMLP_ENGINE_DMA)
            nmlp_wait_for(wait, s->written, s->writer == NMLP_ENGINE_DMA ? NMLP_STALL_DMA : why);
    }
}

void nmlp_timer_did_read(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, double end) {
    for (nmlp_sim_rows r = nmlp_sim_rows_of(t, box); nmlp_sim_rows_next(&r);) {
        nmlp_slot *s = nmlp_timer_slot(t, box->buffer, r.row, true);
        if (end < s->read) continue;
        s->read = end;
        s->reader = (unsigned char)engine;
    }
}

void nmlp_timer_did_write(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, double readable,
                          nmlp_row_source source) {
    nmlp_timed_buffer *b = &t->buffers[box->buffer];
    for (nmlp_sim_rows r = nmlp_sim_rows_of(t, box); nmlp_sim_rows_next(&r);) {
        nmlp_slot *s = nmlp_timer_slot(t, box->buffer, r.row, true);
        s->written = readable;
        s->writer = (unsigned char)engine;
        if (r.row < b->place.resident) continue;
        s->dirty = source == NMLP_ROW_COMPUTED; /* loaded or filled rows can be loaded or filled again */
        b->state[r.row - b->place.resident] = source == NMLP_ROW_FILLED ? NMLP_ROW_REMADE : NMLP_ROW_STORED;
    }
}
