/* A step of decode rows of up to 8 sequences in one persistent launch: all layers and the head.
 *
 * Built from the parts of mlp_rows32_sm80.h: a list of phases, a thread block per multiprocessor, a producer warp that
 * fills a ring buffer with weights, phase after phase, never waiting for another block, and eight consumer warps. What
 * one phase hands to the next are words of an exchange buffer that readers poll, so there is no grid barrier, and
 * weights of the next phases arrive while attention or an exchange is waited for.
 *
 * The norm of a row needs all its columns. A phase that adds to the residual stream therefore stores the new hidden
 * state h as f32, h times the weight of the norm that follows as bf16 (the input of the next GEMM), and each tile's sum
 * of h*h; the reader multiplies its sums by 1/rms, for which it adds these in a fixed order.
 *
 * Programs are arguments of the kernel, which bounds the number of phases. */
#ifndef NMLP_CUDA_BATCH_STEP_PROGRAM_H
#define NMLP_CUDA_BATCH_STEP_PROGRAM_H

#include "cuda/batch/batch_kernels.h"
#include "cuda/mlp/mlp_rows32_sm80.h"

enum {
    NMLP_CUDA_STEP_PHASES_MAX = 100,
    NMLP_CUDA_STEP_SQUARES_MAX = 160, /* tiles of a phase that adds to the residual stream */
    NMLP_CUDA_STEP_ADD_PAIRS = 4      /* pairs of columns of such a tile that one thread finishes, at most */
};

typedef enum nmlp_cuda_step_output {
    NMLP_CUDA_STEP_BF16,     /* words of two bf16; with two factors silu(y0) * y1 */
    NMLP_CUDA_STEP_F32,      /* words of one f32 */
    NMLP_CUDA_STEP_ADD,      /* the residual stream, see above */
    NMLP_CUDA_STEP_LOGITS,   /* f32, not polled */
    NMLP_CUDA_STEP_ATTENTION /* not a GEMM */
} nmlp_cuda_step_output;

/* Values of the exchange buffer, or memory that another launch reads or has written. */
typedef struct nmlp_cuda_step_words {
    void *at; /* of set 0 */
    int32_t in_set;
} nmlp_cuda_step_words;

typedef struct nmlp_cuda_step_phase {
    nmlp_cuda_mlp_rows32_phase gemm; /* of attention: f[0].x are q, k, v as f32, out its result */
    int32_t output;                  /* nmlp_cuda_step_output */
    int32_t scaled;                  /* bit m: sums of factor m are times 1/rms */
    int32_t n_squares;
    int32_t out_in_set;
    nmlp_cuda_step_words squares;     /* f32 [S, n_squares] */
    nmlp_cuda_step_words before;      /* ADD: f32 [S, out_pitch], what is added to */
    nmlp_cuda_step_words hidden;      /* the sum */
    nmlp_cuda_step_words squares_out; /* f32 [S, tiles] */
    const float *norm_weight;         /* ADD: of the norm that follows */
    const float *bias;
    void *k_pages; /* attention */
    void *v_pages;
    const float *q_norm;
    const float *k_norm;
} nmlp_cuda_step_phase;

typedef struct nmlp_cuda_step_program {
    nmlp_cuda_step_phase phase[NMLP_CUDA_STEP_PHASES_MAX];
    int32_t n_phases;
    int32_t s;
    int32_t n_stages;
    int32_t stage_bytes;
    int32_t sums_bytes;
    int32_t n_in_flight;
    int32_t norm_dim;
    float eps;
    unsigned *tickets;
    char *exchange;
    int64_t set_bytes;
    nmlp_cuda_paged_attention attention; /* what is the same in all layers */
} nmlp_cuda_step_program;

#ifdef __cplusplus
extern "C" {
#endif

size_t nmlp_cuda_step_shared_bytes(const nmlp_cuda_step_program *p);
/* Shared memory attention needs in place of sums. */
size_t nmlp_cuda_step_attention_bytes(void);
/* Once per device: allows that much shared memory. All return a cudaError_t. */
int nmlp_cuda_step_prepare(size_t shared_bytes);
int nmlp_cuda_step_launch(const nmlp_cuda_step_program *p, int grid, void *stream);

/* hidden = the rows' embeddings, x = hidden times the weight of the norm, squares [rows] = sums of squares. */
typedef struct nmlp_cuda_step_embed {
    float *hidden;
    void *x; /* bf16 */
    float *squares;
    const void *embedding;
    const float *weight;
    nmlp_cuda_step_rows rows;
    int32_t n;
    int32_t pitch;
} nmlp_cuda_step_embed;

int nmlp_cuda_step_embed_launch(const nmlp_cuda_step_embed *e, void *stream);

#ifdef __cplusplus
}
#endif

#endif
