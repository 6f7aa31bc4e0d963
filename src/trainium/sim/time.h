/* Runs a tile program for its time.
 *
 * Every engine executes its instructions in program order; an instruction starts when its engine is free and what it
 * reads is there (RAW), what it overwrites is no longer needed (WAR) and earlier writes are done (WAW), per row of each
 * copy of each buffer. DMAs are issued, wait for the start latency, share the DMA engines and HBM, and signal their
 * completion. docs/simulator.md has the whole model. Memory does not depend on the length of the program; the result is
 * the same on every run. */
#ifndef NMLP_TRAINIUM_SIM_TIME_H
#define NMLP_TRAINIUM_SIM_TIME_H

#include "base/progress.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

typedef enum nmlp_stall {
    NMLP_STALL_DMA,    /* operand still on its way from HBM */
    NMLP_STALL_ENGINE, /* operand still being computed */
    NMLP_STALL_PSUM,   /* PSUM bank not yet read out */
    NMLP_STALL_BUFFER, /* SBUF copy still in use */
    NMLP_STALL_PORT,   /* memory port taken by the neighbouring engine */
    NMLP_STALL_WARMUP, /* power limiter of the tensor engine */
    NMLP_N_STALLS
} nmlp_stall;

typedef enum nmlp_traffic {
    NMLP_TRAFFIC_INPUT,
    NMLP_TRAFFIC_WEIGHT,
    NMLP_TRAFFIC_OUTPUT,
    NMLP_TRAFFIC_SCRATCH,
    NMLP_TRAFFIC_SPILL,
    NMLP_N_TRAFFICS
} nmlp_traffic;

typedef struct nmlp_time_report {
    double latency_us;
    double read_bytes[NMLP_N_TRAFFICS], write_bytes[NMLP_N_TRAFFICS]; /* HBM, by cause */
    double hbm_read_bytes, hbm_write_bytes, spill_bytes;              /* sums; spill is part of both */
    double flops;
    double tensor_utilisation;           /* of the nominal peak over the whole kernel */
    double tensor_sustained_utilisation; /* of the sustained rate */
    double busy_us[NMLP_N_ENGINES];      /* DMA: mean over its engines */
    double stall_us[NMLP_N_ENGINES][NMLP_N_STALLS];
    int64_t n_instrs[NMLP_N_ENGINES]; /* executed */
    int64_t n_total;
    int64_t sbuf_bytes; /* high water per partition */
    int64_t psum_banks;
    int64_t n_spilled_rows; /* rows of buffers that live in HBM */
    int n_lost_copies;      /* rotating copies given up for lack of SBUF */
} nmlp_time_report;

/* One instruction, for drawing. `what` is a role or buffer name that lives as long as the program. */
typedef struct nmlp_time_event {
    nmlp_nc_engine engine;
    nmlp_op op;
    const char *what;
    double start_us, end_us;
} nmlp_time_event;

typedef struct nmlp_time_options {
    void (*on_event)(void *ctx, const nmlp_time_event *event); /* NULL: none */
    void *ctx;
    const nmlp_progress *progress;
} nmlp_time_options;

/* `options` may be NULL. A program that nmlp_program_check refuses is refused here too. */
nmlp_status nmlp_time_run(nmlp_time_report *report, const nmlp_program *program, const nmlp_machine *machine,
                          const nmlp_time_options *options, nmlp_err *err);

const char *nmlp_stall_name(nmlp_stall stall);
const char *nmlp_traffic_name(nmlp_traffic traffic);

#endif
