/* A decode program: one persistent launch that runs a whole decode step (or an MLP of up to 4 rows), as data.
 *
 * The kernel runs one thread block per multiprocessor. A program is a list of phases; most are GEMVs Y [S,N] = X [S,K]
 * W^T with S <= 4, bound by reading W once.
 *
 * Warps. One producer warp fills a ring buffer of weight tiles in shared memory, phase after phase, never waiting for
 * another block; that keeps the memory busy while blocks wait for each other. Eight consumer warps poll for the phase's
 * input, stage it in shared memory and multiply, a tile each. One epilogue warp adds what they summed, applies norm
 * scale, bias, activation or residual, and stores.
 *
 * Tiling. The work of a phase is cut into units: 16 rows of W times one of `n_chunks` ranges of K (split-K). A block
 * takes a run of neighbouring units and walks their tiles of 16 rows by up to 256 columns; tile i of the block, counted
 * through the whole program, belongs to consumer warp i modulo 8. Split-K partial sums are added by the reader, or by
 * the block that has the first chunk, always in the same order: same input, same bits.
 *
 * Synchronisation. There is no grid barrier between phases. What one phase writes for another goes to memory as 64-bit
 * words: 32 bits of value (one f32, or two bf16) and a tag of launch and phase. A reader polls the words it needs until
 * their tags match. That saves the fence before a barrier and the round trips after it. A word is never overwritten
 * before all its readers have it, because every reader of a phase contributes to that phase's output, on which
 * everything later depends.
 *
 * A decode program ends with the choice of a token and may run several steps in one launch, each with the token chosen
 * in the one before: weights go on being prefetched where separate launches would pause. Every block reduces the
 * published candidates by itself; nothing else makes a step wait for the one before.
 *
 * Plain C, read by both compilers. Columns of weights and activations are padded with zeros to NMLP_CUDA_PAD. */
#ifndef NMLP_CUDA_DECODE_DECODE_PROGRAM_H
#define NMLP_CUDA_DECODE_DECODE_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/layout.h"

enum {
    NMLP_CUDA_DECODE_WORD_BYTES = 8, /* of a tagged value */
    NMLP_CUDA_DECODE_ROWS_MAX =
        4, /* rows a decode program takes; more have a kernel of their own (mlp_rows32_sm80.h) */
    NMLP_CUDA_DECODE_TILE_ROWS = 16,  /* rows of W per unit: m of the mma instruction */
    NMLP_CUDA_DECODE_TILE_COLS = 256, /* columns of a tile */
    NMLP_CUDA_DECODE_ROW_SKEW = 32,   /* elements added to input rows in shared memory: 64 bytes, so that two rows of 32
                                  columns   meet all 32 banks */
    NMLP_CUDA_DECODE_STAGES_MAX = 24, /* tiles in the ring */
    NMLP_CUDA_DECODE_SMALL_STAGES_MAX = 72, /* of quantised weights */
    NMLP_CUDA_DECODE_CONSUMER_WARPS = 8,
    NMLP_CUDA_DECODE_FIRST_PHASES = 6,
    NMLP_CUDA_DECODE_KEYS = 16,            /* that a warp takes at a time: neighbours in a page */
    NMLP_CUDA_DECODE_CHUNK_KEYS_MIN = 128, /* keys of one attention unit, at least */
    NMLP_CUDA_DECODE_KEY_CHUNKS_MAX = 16,
    NMLP_CUDA_DECODE_SOFTMAX_STRIDE = 16 /* words between heads: all blocks ask for all of them at once, so each has a
                                     line of its own, in some slice of L2 */
};

typedef enum nmlp_cuda_decode_kind {
    NMLP_CUDA_DECODE_MATMUL,
    NMLP_CUDA_DECODE_ATTENTION, /* one token against the cache */
    NMLP_CUDA_DECODE_EMBED,
    NMLP_CUDA_DECODE_PICK /* the next token out of each block's best */
} nmlp_cuda_decode_kind;

typedef enum nmlp_cuda_decode_input {
    NMLP_CUDA_DECODE_PLAIN,
    NMLP_CUDA_DECODE_NORM, /* RMS norm on the way in */
    NMLP_CUDA_DECODE_HEADS /* attention's pieces, combined on the way in */
} nmlp_cuda_decode_input;

typedef enum nmlp_cuda_decode_output {
    NMLP_CUDA_DECODE_STORE,    /* out[piece] = y + bias */
    NMLP_CUDA_DECODE_ADD,      /* out += y + bias: the residual stream, one token */
    NMLP_CUDA_DECODE_SILU_MUL, /* out = silu(y of matrix 0) * y of matrix 1 */
    NMLP_CUDA_DECODE_LOGITS    /* store, and keep the best */
} nmlp_cuda_decode_output;

/* One matrix of a matmul phase and the rows it is multiplied with. */
typedef struct nmlp_cuda_decode_operand {
    const void *weight;    /* bf16 [N, k] */
    const void *map;       /* of it, for TMA */
    const void *x;         /* [n_parts][S, x_pitch], to be summed over parts: f32, or tagged words of them */
    int64_t x_part_stride; /* values, like the pitch */
    int32_t x_pitch;
    int32_t x_parts;
    int32_t x_cols;       /* values of a row that were written */
    int32_t x_written_by; /* number of the phase, from 1, whose tags they have; 0: plain, there before the launch */
    int32_t k;            /* padded K, also the pitch of weight */
    int32_t input;        /* nmlp_cuda_decode_input */
    int32_t format;       /* nmlp_cuda_decode_format */
    const void *tiles;    /* of quantised weights (decode_quant.h), read instead; NULL: bf16 */
} nmlp_cuda_decode_operand;

typedef struct nmlp_cuda_decode_phase {
    int32_t kind;
    int32_t output;
    int32_t n;          /* N */
    int32_t n_matrices; /* 1 or 2 */
    int32_t same_x;     /* both matrices read the same rows */
    int32_t tagged_out; /* out is words with this phase's tag */
    int32_t out_before; /* with ADD: the phase that wrote out before */
    int32_t n_chunks;   /* split-K chunks */
    int32_t k_chunk;    /* columns per piece */
    nmlp_cuda_decode_operand op[2];
    void *out;
    void *parts; /* where split-K chunks meet, tagged f32 [groups of rows][n_chunks][matrices][S, 16]; who has piece 0
                    sums them in order. NULL: readers do */
    int64_t out_part_stride;
    int32_t out_pitch;
    int32_t norm_dim;         /* H, unpadded */
    const float *norm_weight; /* [k] */
    const float *bias;        /* [N] or NULL */
    float eps;
    /* attention and its reader */
    float scale;
    void *softmax; /* tagged [chunks][n_heads][NMLP_CUDA_DECODE_SOFTMAX_STRIDE], the first two largest score and sum */
    const float *q_norm;
    const float *k_norm;
    const float *rope; /* [context, D] cos|sin */
    void *k_cache;     /* bf16; key p of a kv head is row p modulo 64 of a page, which the program's table names */
    void *v_cache;
    int64_t page_stride; /* elements from a page to the next */
    int64_t head_stride; /* and from a kv head to the next */
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    const void *embedding; /* bf16 [V, k]; with NORM: x is the token's row of it, and nobody's output need be polled */
} __attribute__((aligned(16))) nmlp_cuda_decode_phase; /* copied 16 bytes at a time */

/* What a decode step changes, on the device. */
typedef struct nmlp_cuda_decode_state {
    int32_t token;             /* in: the token to run; out: the one picked */
    int32_t length;            /* tokens in the cache before the step; the step adds one */
    uint32_t n_choices;        /* made before the step, which adds one */
    float inverse_temperature; /* 0: greedy */
    uint32_t seed;
} nmlp_cuda_decode_state;

enum {
    NMLP_CUDA_DECODE_STEPS_MAX = 8, /* of one launch */
    NMLP_CUDA_DECODE_CHOICES = 32   /* the newest ones, kept for the host: more than two launches make */
};

typedef struct nmlp_cuda_decode_program {
    nmlp_cuda_decode_phase first[NMLP_CUDA_DECODE_FIRST_PHASES]; /* the first ones come as arguments: no wait for memory
                                                      before weights are loaded */
    const nmlp_cuda_decode_phase *phases;                        /* all, on the device */
    int32_t n_phases;
    int32_t n_steps; /* times the phases run, each time with the token picked before; 1 without a pick */
    int32_t s;
    int32_t n_stages;
    int32_t n_in_flight; /* tiles the producer warp has in flight at a time, at most; without quantised matrices */
    int32_t input_elems; /* bf16 elements of shared memory for X */
    int32_t head_dim;    /* of its attention phases; 0: none */
    int32_t quantised;   /* some matrices are */
    int32_t stage_elems; /* bf16 elements of a stage of the ring */
    unsigned *tickets;   /* on the device; every block of a launch takes one, which tells the launches apart */
    nmlp_cuda_decode_state *state;
    const int32_t *table;        /* on the device: pages of the sequence's keys and values; NULL: page i is the i-th */
    void *best;                  /* tagged [grid][2]: score and token of each block's best */
    unsigned long long *choices; /* pinned host memory [NMLP_CUDA_DECODE_CHOICES]: choice n at n modulo that, its token
                                    below, n above */
#ifdef NMLP_CUDA_CLOCKS
    long long *clocks; /* [grid][n_phases][NMLP_CUDA_DECODE_CLOCK_EVENTS] cycles since the block began */
#endif
} nmlp_cuda_decode_program;

#ifdef NMLP_CUDA_CLOCKS
enum { NMLP_CUDA_DECODE_CLOCK_EVENTS = 7 };
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of shared memory a program needs with that many stages of that many bf16 elements. */
size_t nmlp_cuda_decode_shared_bytes(int32_t input_elems, int32_t n_stages, int32_t stage_elems);
/* bf16 elements of input space an attention phase needs. */
int nmlp_cuda_decode_attention_elems(int32_t head_dim);
/* Launches on `stream` with one block per multiprocessor. Returns a cudaError_t. */
int nmlp_cuda_decode_launch(const nmlp_cuda_decode_program *program, int grid, void *stream);
/* Largest dynamic shared memory must be allowed once per device before the first launch. Returns a cudaError_t. */
int nmlp_cuda_decode_prepare(size_t shared_bytes);
/* Whether the device's tensor cores multiply subnormal bf16 exactly, which PTX leaves open and quantised tiles
 * (decode_quant.cuh) rely on. Returns a cudaError_t. */
int nmlp_cuda_decode_check_subnormals(int *exact);

#ifdef __cplusplus
}
#endif

#endif
