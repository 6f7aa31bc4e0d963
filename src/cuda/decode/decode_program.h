/* A streaming program: what one persistent kernel does between its launch and its end, as data.
 *
 * The kernel runs one block per multiprocessor. A program is a list of phases. Most phases are
 * matmuls Y [S,N] = X [S,K] W^T with S <= 4, whose cost is reading W once: one warp of every block does nothing but
 * copy weights into a ring of tiles in shared memory, phase after phase, never waiting for another block, while eight
 * warps wait for the phase's input, bring it into shared memory and multiply, each a tile of its own, and one finishes
 * what they summed. The ring is what keeps the memory busy while blocks wait for each other; it only does so where
 * multiplying is faster than copying, so that what piled up during a wait is soon gone.
 *
 * Work of a matmul is cut into units: 16 rows of W times one of `n_chunks` pieces of K. A block takes a run of
 * neighbouring units and goes through their tiles, 16 rows of up to 256 columns; tile i of the block, counted through
 * the whole program, belongs to multiplying warp i modulo 8. Pieces of K are summed by the reader or by the block that
 * has the first of them, always in the same order: same input, same bits.
 *
 * Blocks do not meet between phases. What one phase writes for another goes to memory as words of 64 bits: 32 bits of
 * value (one f32, or two bf16) and a tag that tells launch and phase. A reader asks for the words it needs until their
 * tags are the ones it expects. That saves what a barrier costs on a memory system kept full of copies: the fence
 * before it and the round trips after it. A word is never written again before all its readers have it, because every
 * reader of a phase contributes to that phase's output, which everything later depends on.
 *
 * A decode program ends with a pick and may run several times in one launch, each step with the token picked in the one
 * before: weights go on being copied where launches would pause. Every block picks for itself out of what all
 * published; nothing but that makes a step wait for the one before.
 *
 * This header is plain C, read by both compilers. Columns of weights and activations are padded with zeros to multiples
 * of NMLP_CUDA_PAD. */
#ifndef NMLP_CUDA_DECODE_DECODE_PROGRAM_H
#define NMLP_CUDA_DECODE_DECODE_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    NMLP_CUDA_WORD_BYTES = 8,  /* of a tagged value */
    NMLP_CUDA_PAD = 64,        /* elements; keeps rows 128-byte aligned */
    NMLP_CUDA_S_MAX = 4,       /* rows a streaming program takes; more have a kernel of their own (batch.h) */
    NMLP_CUDA_UNIT_ROWS = 16,  /* rows of W per unit: m of the mma instruction */
    NMLP_CUDA_TILE_COLS = 256, /* columns of a tile */
    NMLP_CUDA_ROW_SKEW = 32,  /* elements added to input rows in shared memory: 64 bytes, so that two rows of 32 columns
                                 meet all 32 banks */
    NMLP_CUDA_SLOTS_MAX = 24, /* tiles in the ring */
    NMLP_CUDA_CONSUMER_WARPS = 8,
    NMLP_CUDA_FIRST_PHASES = 6,
    NMLP_CUDA_CHUNK_KEYS_MIN = 128, /* keys of one attention unit, at least */
    NMLP_CUDA_KEY_CHUNKS_MAX = 16,
    NMLP_CUDA_SOFTMAX_STRIDE = 16 /* words between heads: all blocks ask for all of them at once, so each has a line of
                                     its own, in some slice of L2 */
};

typedef enum nmlp_cuda_kind {
    NMLP_CUDA_MATMUL,
    NMLP_CUDA_ATTENTION, /* one token against the cache */
    NMLP_CUDA_EMBED,
    NMLP_CUDA_PICK /* the next token out of each block's best */
} nmlp_cuda_kind;

typedef enum nmlp_cuda_input {
    NMLP_CUDA_PLAIN,
    NMLP_CUDA_NORM, /* RMS norm on the way in */
    NMLP_CUDA_HEADS /* attention's pieces, combined on the way in */
} nmlp_cuda_input;

typedef enum nmlp_cuda_output {
    NMLP_CUDA_STORE,    /* out[piece] = y + bias */
    NMLP_CUDA_ADD,      /* out += y + bias: the residual stream, one token */
    NMLP_CUDA_SILU_MUL, /* out = silu(y of matrix 0) * y of matrix 1 */
    NMLP_CUDA_LOGITS    /* store, and keep the best */
} nmlp_cuda_output;

/* One matrix of a matmul phase and the rows it is multiplied with. */
typedef struct nmlp_cuda_operand {
    const void *weight;    /* bf16 [N, k] */
    const void *map;       /* of it, for Hopper's copy engine */
    const void *x;         /* [n_parts][S, x_pitch], to be summed over parts: f32, or tagged words of them */
    int64_t x_part_stride; /* values, like the pitch */
    int32_t x_pitch;
    int32_t x_parts;
    int32_t x_cols;       /* values of a row that were written */
    int32_t x_written_by; /* number of the phase, from 1, whose tags they have; 0: plain, there before the launch */
    int32_t k;            /* padded K, also the pitch of weight */
    int32_t input;        /* nmlp_cuda_input */
} nmlp_cuda_operand;

typedef struct nmlp_cuda_phase {
    int32_t kind;
    int32_t output;
    int32_t n;          /* N */
    int32_t n_matrices; /* 1 or 2 */
    int32_t same_x;     /* both matrices read the same rows */
    int32_t tagged_out; /* out is words with this phase's tag */
    int32_t out_before; /* with ADD: the phase that wrote out before */
    int32_t n_chunks;   /* pieces of K */
    int32_t k_chunk;    /* columns per piece */
    nmlp_cuda_operand op[2];
    void *out;
    void *parts; /* where pieces of K meet, tagged f32 [groups of rows][n_chunks][matrices][S, 16]; who has piece 0 sums
                    them in order. NULL: readers do */
    int64_t out_part_stride;
    int32_t out_pitch;
    int32_t norm_dim;         /* H, unpadded */
    const float *norm_weight; /* [k] */
    const float *bias;        /* [N] or NULL */
    float eps;
    /* attention and its reader */
    float scale;
    void *softmax; /* tagged [chunks][n_heads][NMLP_CUDA_SOFTMAX_STRIDE], the first two largest score and sum */
    const float *q_norm;
    const float *k_norm;
    const float *rope; /* [context, D] cos|sin */
    void *k_cache;     /* bf16 [n_kv_heads, context, D] */
    void *v_cache;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t context;
    const void *embedding; /* bf16 [V, k]; with NORM: x is the token's row of it, and nobody's output need be awaited */
} __attribute__((aligned(16))) nmlp_cuda_phase; /* copied 16 bytes at a time */

/* What a decode step changes, on the device. */
typedef struct nmlp_cuda_state {
    int32_t token;             /* in: the token to run; out: the one picked */
    int32_t length;            /* tokens in the cache before the step; the step adds one */
    uint32_t n_choices;        /* made before the step, which adds one */
    float inverse_temperature; /* 0: greedy */
    uint32_t seed;
} nmlp_cuda_state;

enum {
    NMLP_CUDA_STEPS_MAX = 8, /* of one launch */
    NMLP_CUDA_CHOICES = 32   /* the newest ones, kept for the host: more than two launches make */
};

typedef struct nmlp_cuda_program {
    nmlp_cuda_phase first[NMLP_CUDA_FIRST_PHASES]; /* the first ones come as arguments: no wait for memory before
                                                      weights are asked for */
    const nmlp_cuda_phase *phases;                 /* all, on the device */
    int32_t n_phases;
    int32_t n_steps; /* times the phases run, each time with the token picked before; 1 without a pick */
    int32_t s;
    int32_t n_slots;
    int32_t n_under_way; /* tiles the copying warp has under way at a time, at most */
    int32_t input_elems; /* bf16 elements of shared memory for X */
    int32_t head_dim;    /* of its attention phases; 0: none */
    unsigned *tickets;   /* on the device; every block of a launch takes one, which tells the launches apart */
    nmlp_cuda_state *state;
    void *best; /* tagged [grid][2]: score and token of each block's best */
    unsigned long long
        *choices; /* pinned host memory [NMLP_CUDA_CHOICES]: choice n at n modulo that, its token below, n above */
#ifdef NMLP_CUDA_CLOCKS
    long long *clocks; /* [grid][n_phases][NMLP_CUDA_CLOCK_EVENTS] cycles since the block began */
#endif
} nmlp_cuda_program;

#ifdef NMLP_CUDA_CLOCKS
enum { NMLP_CUDA_CLOCK_EVENTS = 7 };
#endif

static inline int32_t nmlp_cuda_pad(int64_t n) {
    return (int32_t)((n + NMLP_CUDA_PAD - 1) / NMLP_CUDA_PAD * NMLP_CUDA_PAD);
}

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of shared memory a program needs with that many slots. */
size_t nmlp_cuda_stream_shared_bytes(int32_t input_elems, int32_t n_slots);
/* bf16 elements of input space an attention phase needs. */
int nmlp_cuda_attention_scratch_elems(int32_t head_dim);
/* Launches on `stream` with one block per multiprocessor. Returns a cudaError_t. */
int nmlp_cuda_stream_launch(const nmlp_cuda_program *program, int grid, void *stream);
/* Largest dynamic shared memory must be allowed once per device before the first launch. Returns a cudaError_t. */
int nmlp_cuda_stream_prepare(size_t shared_bytes);

#ifdef __cplusplus
}
#endif

#endif
