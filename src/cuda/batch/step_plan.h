/* Builds the program of a step of decode rows (step_program.h). */
#ifndef NMLP_CUDA_BATCH_STEP_PLAN_H
#define NMLP_CUDA_BATCH_STEP_PLAN_H

#include "cuda/batch/step_program.h"
#include "cuda/engine_internal.h"

/* What a step reads and writes outside its exchange buffer. */
typedef struct nmlp_cuda_step_call {
    const nmlp_cuda_engine *engine;
    int32_t rows;
    float *hidden;                       /* [rows, H padded] */
    void *x;                             /* bf16, the same shape */
    float *squares;                      /* [rows] of hidden */
    float *logits;                       /* [rows, V padded] */
    nmlp_cuda_paged_attention attention; /* what is the same in all layers */
    void *const *k_pages;                /* per layer */
    void *const *v_pages;
} nmlp_cuda_step_call;

typedef struct nmlp_cuda_step {
    nmlp_cuda_step_program *program;
    bool fits; /* the model's shape does: dense MLPs, as many layers as the program has phases for */
} nmlp_cuda_step;

/* Takes memory from `arena`; called twice with the same `step`, which keeps what the first call allocated. */
nmlp_status nmlp_cuda_step_plan(nmlp_cuda_step *step, const nmlp_cuda_step_call *call, nmlp_cuda_arena *arena,
                                nmlp_err *err);
void nmlp_cuda_step_free(nmlp_cuda_step *step);

#endif
