/* Builds decode programs: which phases an MLP or a decode step has, where their intermediates lie, how K is cut.
 *
 * A plan is built twice with the same calls, once to measure its memory (arena not committed) and once for real. */
#ifndef NMLP_CUDA_DECODE_DECODE_PLAN_H
#define NMLP_CUDA_DECODE_DECODE_PLAN_H

#include "base/mem.h"
#include "cuda/device.h"
#include "cuda/decode/decode_program.h"
#include "cuda/weights.h"

typedef struct nmlp_cuda_decode_plan {
    const nmlp_cuda_device *device;
    nmlp_cuda_arena *arena; /* intermediates come from here */
    int32_t s;
    int32_t input_elems; /* most of all phases */
    bool quantised;      /* some matrices are */
    int32_t stage_elems; /* the largest tile, in bf16 elements */
    nmlp_cuda_decode_phase *phases;
    size_t n_phases;
    size_t capacity;
} nmlp_cuda_decode_plan;

/* Rows that are some phase's output and the next one's input. */
typedef struct nmlp_cuda_decode_rows {
    const void *x; /* see nmlp_cuda_decode_operand */
    int64_t part_stride;
    int32_t pitch;
    int32_t parts;
    int32_t cols;
    int32_t written_by;       /* phase number, 0: plain rows that are there already */
    int32_t input;            /* nmlp_cuda_decode_input */
    const float *norm_weight; /* with NMLP_CUDA_DECODE_NORM */
    int32_t norm_dim;
    float eps;
    const void *embedding; /* with NMLP_CUDA_DECODE_NORM: they are the token's row of it, which readers need not wait
                              for; may be NULL */
} nmlp_cuda_decode_rows;

void nmlp_cuda_decode_plan_init(nmlp_cuda_decode_plan *plan, const nmlp_cuda_device *device, nmlp_cuda_arena *arena,
                                int32_t s);
void nmlp_cuda_decode_plan_fini(nmlp_cuda_decode_plan *plan);

nmlp_status nmlp_cuda_decode_plan_push(nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_phase *phase, nmlp_err *err);

/* One matmul with what its output needs; `out` NULL takes memory for tagged rows, and `rows` (may be NULL) receives
 * where they are. With `whole` the result is one part. */
typedef struct nmlp_cuda_decode_matmul {
    const nmlp_cuda_matrix *w[2];
    nmlp_cuda_decode_rows x[2];
    int n_matrices;
    nmlp_cuda_decode_output output; /* STORE, ADD, SILU_MUL or LOGITS */
    void *out;                      /* plain f32; with ADD tagged words */
    int32_t out_before;             /* with ADD: the phase that wrote them */
    const float *bias;
    bool whole;
} nmlp_cuda_decode_matmul;

nmlp_status nmlp_cuda_decode_plan_matmul(nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_matmul *m,
                                         nmlp_cuda_decode_rows *rows, nmlp_err *err);

/* out = mlp(x), plain, or with output ADD x's own rows += mlp(norm(x)); then x is up to date for what follows. */
nmlp_status nmlp_cuda_decode_plan_mlp(nmlp_cuda_decode_plan *plan, const nmlp_cuda_mlp_weights *w,
                                      nmlp_cuda_decode_rows *x, nmlp_cuda_decode_output output, void *out,
                                      nmlp_err *err);

/* Uploads the phases (to memory taken from the block) and fills the program: stages, shared memory, barrier. */
nmlp_status nmlp_cuda_decode_plan_finish(nmlp_cuda_decode_plan *plan, nmlp_cuda_decode_program *program, nmlp_err *err);

#ifdef NMLP_CUDA_CLOCKS
/* Where the blocks of the last launch stood when: smallest, mean and largest cycle of every event of every phase, on
 * stderr. */
nmlp_status nmlp_cuda_decode_print_clocks(const nmlp_cuda_decode_program *program, int grid, nmlp_err *err);
#endif

#endif
