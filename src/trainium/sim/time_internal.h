/* State of a timing run. Times in ns. */
#ifndef NMLP_TRAINIUM_SIM_TIME_INTERNAL_H
#define NMLP_TRAINIUM_SIM_TIME_INTERNAL_H

#include "trainium/neuron/walk.h"
#include "trainium/sim/cost.h"
#include "trainium/sim/ledger.h"
#include "trainium/sim/residency.h"
#include "trainium/sim/time.h"

/* One row of one copy of a buffer. */
typedef struct nmlp_slot {
    double written;       /* last write readable */
    double read;          /* last read over */
    unsigned char writer; /* engine of the last write */
    unsigned char reader; /* engine of the last read */
    bool dirty;           /* staging: not in HBM */
    int64_t row;          /* staging: the row held, -1 none */
} nmlp_slot;

/* Who wrote a row, and what a spilled row is while it is not on chip. */
typedef enum nmlp_row_source { NMLP_ROW_COMPUTED, NMLP_ROW_LOADED, NMLP_ROW_FILLED } nmlp_row_source;
typedef enum nmlp_row_state {
    NMLP_ROW_EMPTY,
    NMLP_ROW_STORED, /* in HBM */
    NMLP_ROW_REMADE  /* one value throughout: written again where it is needed, never stored */
} nmlp_row_state;

typedef struct nmlp_timed_buffer {
    const nmlp_buffer *decl;
    nmlp_placement place;
    int copy;           /* the one the name means now */
    nmlp_slot *slots;   /* [copies][resident] */
    nmlp_slot *staging; /* place.staging of them */
    int next_stage;
    double *home_ready;   /* spilled rows: in HBM since */
    unsigned char *state; /* spilled rows: nmlp_row_state */
} nmlp_timed_buffer;

typedef struct nmlp_timer {
    const nmlp_program *p;
    const nmlp_machine *m;
    nmlp_cost_ctx cost;
    const nmlp_time_options *options;
    nmlp_time_report *report;
    nmlp_timed_buffer *buffers;
    double free_at[NMLP_N_ENGINES];
    double end; /* of everything */
    /* TensorE */
    double mm_start, load_end;
    double window_start, window_busy, ramp_start;
    /* ScalarE */
    int func;
    /* ports of NeuronCore-v2 */
    double psum_port[2]; /* until when VectorE [0], ScalarE [1] hold PSUM */
    double sbuf_port[2]; /* until when VectorE [0], GpSimdE [1] hold SBUF */
    nmlp_ledger dma, hbm, *issue;
    double *stored; /* by tensor: when the last store into it was done */
    int n_streams;
} nmlp_timer;

/* A moment and the reason for waiting until then. */
typedef struct nmlp_wait {
    double at;
    nmlp_stall why;
} nmlp_wait;

static inline void nmlp_wait_for(nmlp_wait *wait, double at, nmlp_stall why) {
    if (at > wait->at) wait->at = at, wait->why = why;
}

/* The slot behind a row of a buffer; a spilled row is brought to staging first. `keeps`: the old contents are needed.
 */
nmlp_slot *nmlp_timer_slot(nmlp_timer *t, int buffer, int64_t row, bool keeps);
/* Books a DMA that may start at `ready`; returns when its data are usable. */
double nmlp_timer_dma(nmlp_timer *t, double ready, int queue, const nmlp_dma_cost *cost, double *first_byte);
void nmlp_timer_event(const nmlp_timer *t, nmlp_nc_engine engine, nmlp_op op, const char *what, double start,
                      double end);
void nmlp_timer_matmul(nmlp_timer *t, const nmlp_step *step);
void nmlp_timer_elementwise(nmlp_timer *t, const nmlp_step *step);
void nmlp_timer_transfer(nmlp_timer *t, const nmlp_step *step);

/* Walks the rows of a box: for (nmlp_sim_rows it = begin; next(&it); ) it.row */
typedef struct nmlp_sim_rows {
    int64_t row, i, j, c0, c1, base, s0;
} nmlp_sim_rows;
nmlp_sim_rows nmlp_sim_rows_of(const nmlp_timer *t, const nmlp_box *box);
static inline bool nmlp_sim_rows_next(nmlp_sim_rows *r) {
    if (r->i == r->c0) return false;
    r->row = r->base + r->i * r->s0 + r->j;
    if (++r->j == r->c1) r->j = 0, r->i++;
    return true;
}

/* Collects what a read or write has to wait for, and books it once its end is known. */
void nmlp_timer_wait_read(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, nmlp_wait *wait);
void nmlp_timer_wait_write(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, bool keeps, nmlp_wait *wait);
void nmlp_timer_did_read(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, double end);
void nmlp_timer_did_write(nmlp_timer *t, const nmlp_box *box, nmlp_nc_engine engine, double readable,
                          nmlp_row_source source);

#endif
