/* The decode program of a whole model: embedding to the choice of a token, for one sequence. */
#ifndef NMLP_CUDA_DECODE_DECODE_STEP_H
#define NMLP_CUDA_DECODE_DECODE_STEP_H

#include "cuda/engine_internal.h"

/* What a step reads and writes beside weights and its own intermediates. Keys and values are pages of 64 positions; a
 * program's `table`, which may change between launches, says which. */
typedef struct nmlp_cuda_decode_step_call {
    const nmlp_cuda_engine *engine;
    const float *rope; /* [context, D] */
    void *const *k;    /* per layer bf16 */
    void *const *v;
    int64_t page_stride; /* elements from a page to the next */
    int64_t head_stride; /* and from a kv head to the next */
    const float *hidden; /* f32 [H padded], read by a program of the head alone */
    float *logits;       /* f32 [V padded] */
    nmlp_cuda_decode_state *state;
    unsigned long long *choices; /* see nmlp_cuda_decode_program */
} nmlp_cuda_decode_step_call;

/* Takes memory from `arena`; called twice. With `head_only` it begins with the last norm. */
nmlp_status nmlp_cuda_decode_step_plan(nmlp_cuda_decode_program *program, const nmlp_cuda_decode_step_call *call,
                                       bool head_only, nmlp_cuda_arena *arena, nmlp_err *err);

#endif
