/* Kernels of a step of many sequences, between its GEMMs. Row r of a step is token ids[r] at position[r] of
 * sequence[r]; rows with sequence -1 are padding: their hidden states are zero and they touch no cache.
 *
 * Keys and values are paged: key p of a sequence is row p modulo 64 of page table[p / 64], pages are bf16
 * [n_kv_heads, 64, D]. Plain C interface; every launcher returns a cudaError_t. */
#ifndef NMLP_CUDA_BATCH_BATCH_KERNELS_H
#define NMLP_CUDA_BATCH_BATCH_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    NMLP_CUDA_ATTENTION_CHUNK = 256, /* keys of one block of decode attention, at least */
    NMLP_CUDA_ATTENTION_CHUNKS_MAX = 16,
    NMLP_CUDA_ATTENTION_TILE_ROWS = 128, /* query rows of one block of prompt attention */
    NMLP_CUDA_CHOICE_RING = 32           /* newest choices of a sequence kept for the host */
};

/* The rows of a step, on the device. */
typedef struct nmlp_cuda_step_rows {
    int32_t *ids;               /* [rows] */
    int32_t *position;          /* [rows] */
    int32_t *sequence;          /* [rows], -1: padding */
    float *inverse_temperature; /* [rows], 0: greedy, -1: no choice */
    uint32_t *seed;             /* [rows] */
    uint32_t *n_choices;        /* [rows] choices of the row's sequence before this step */
    int32_t *head_rows;         /* [rows] row whose logits are row i of the head's input */
} nmlp_cuda_step_rows;

/* hidden [rows, pitch] f32 = embedding rows; zero for padding. Begins when all work before it in the stream has ended,
 * unlike the other kernels here: what the steps before left is complete for every kernel of a step, even before the
 * kernel before that one has ended. */
int nmlp_cuda_batch_embed(float *hidden, const void *embedding, const nmlp_cuda_step_rows *rows, int32_t n,
                          int32_t pitch, void *stream);

/* hidden += delta + bias, then out = hidden / rms(hidden) * weight as bf16. delta and bias may be NULL. */
typedef struct nmlp_cuda_add_norm {
    void *out;     /* bf16 [n, pitch] */
    float *hidden; /* f32 [rows, pitch] */
    const float *delta;
    const float *bias;
    const float *weight;
    const int32_t *gather; /* row i of out is of row gather[i] of hidden, which is left as it is; NULL: row i */
    float eps;
    int32_t n;
    int32_t dim;
    int32_t pitch;
} nmlp_cuda_add_norm;

int nmlp_cuda_batch_add_norm(const nmlp_cuda_add_norm *a, void *stream);

/* A range of prompt rows that one block of attention takes: neighbours of one sequence. */
typedef struct nmlp_cuda_query_tile {
    int32_t row;
    int32_t n;        /* at most NMLP_CUDA_ATTENTION_TILE_ROWS */
    int32_t position; /* of the first */
    int32_t sequence;
} nmlp_cuda_query_tile;

typedef struct nmlp_cuda_paged_attention {
    nmlp_cuda_step_rows rows;
    const float *qkv;  /* f32 [rows, qkv_pitch]: queries, keys, values */
    const float *bias; /* or NULL */
    const float *q_norm;
    const float *k_norm;
    const float *rope; /* [context, D] cos|sin */
    void *q;           /* bf16 [rows, n_heads*D], rotated and scaled */
    void *k_pages;
    void *v_pages;
    const int32_t *tables; /* [sequences, table_pages] */
    void *out;             /* bf16 [rows, out_pitch] */
    const nmlp_cuda_query_tile *tiles;
    const void *next; /* what the launch after decode attention reads first, for L2 */
    int64_t next_bytes;
    int32_t asks_early; /* decode attention has L2 bring keys that it reads late */
    /* Decode rows, their tables, and the keys and values that decode attention reads from pages were complete when the
     * launch before began: it reads them before that launch has ended. */
    int32_t keys_settled;
    float *partial; /* f32 [rows, n_heads, chunks, D + 2] of decode rows: result, largest score, sum */
    uint32_t *
        arrived; /* [rows, n_kv_heads * head groups] blocks that have stored their partial result; zero between steps */
    float eps;
    float scale;
    int32_t n_rows;
    int32_t n_decode_rows; /* the first rows, one per sequence */
    int32_t appends;       /* decode attention itself rotates and appends its rows, each of another sequence */
    int32_t n_tiles;       /* of the others */
    int32_t n_chunks;      /* of the longest decode row, rounded up */
    int32_t qkv_pitch;
    int32_t out_pitch;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t table_pages;
    int32_t n_multiprocessors; /* decides how many heads a block of decode attention takes, which changes no bit */
} nmlp_cuda_paged_attention;

/* Bias, q/k norm and rotation; q goes to `q`, keys and values to the sequences' pages. With `appends`, not of decode
 * rows. */
int nmlp_cuda_batch_rope_append(const nmlp_cuda_paged_attention *a, void *stream);
/* Once, before decode attention is first launched. */
int nmlp_cuda_batch_decode_attention_prepare(void);
/* Attention of the decode rows: a block per (row, heads of a kv head, chunk of keys). How keys are cut depends on their
 * number alone, so a row's result does not depend on the other rows. */
int nmlp_cuda_batch_decode_attention(const nmlp_cuda_paged_attention *a, void *stream);
/* Causal attention of the tiles' rows; head sizes 16, 32, 64 and 128 (rows of others run as decode rows). */
int nmlp_cuda_batch_has_prompt_kernel(int32_t head_dim);
int nmlp_cuda_batch_prompt_attention(const nmlp_cuda_paged_attention *a, void *stream);
/* Elements of `arrived` for that many rows. */
int64_t nmlp_cuda_batch_arrivals(int32_t rows, int32_t n_heads, int32_t n_kv_heads);

/* The next token of every head row, greedy or drawn as the decode kernel draws: it becomes the row's id at the next
 * position, and goes to choices [sequences, NMLP_CUDA_CHOICE_RING] (pinned host memory): number above, token below. */
typedef struct nmlp_cuda_choose {
    nmlp_cuda_step_rows rows;
    const float *logits;      /* [n, pitch] */
    unsigned long long *best; /* [n] scratch, zero between steps */
    unsigned long long *choices;
    int32_t first; /* head row of logits row 0 */
    int32_t n;
    int32_t vocab;
    int32_t pitch;
} nmlp_cuda_choose;

int nmlp_cuda_batch_choose_launch(const nmlp_cuda_choose *c, void *stream);

#ifdef __cplusplus
}
#endif

#endif
