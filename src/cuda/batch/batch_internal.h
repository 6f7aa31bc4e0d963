/* What batch.c (sequences, steps, choices) and forward.c (memory, programs, layers) share. */
#ifndef NMLP_CUDA_BATCH_BATCH_INTERNAL_H
#define NMLP_CUDA_BATCH_BATCH_INTERNAL_H

#include "cuda/batch/batch_kernels.h"
#include "cuda/batch/gemm_resident_sm90.h"
#include "cuda/batch/gemm_stream_sm90.h"
#include "cuda/decode/decode_step.h"
#include "cuda/engine_internal.h"
#include "cuda/mlp/mlp_plan.h"
#include "cuda/prefill/attention_prefill_sm90.h"

enum {
    NMLP_CUDA_FEW_BUCKETS = 3, /* 8, 16 and 32 rows: what the fused kernels take */
    NMLP_CUDA_LOGIT_ROWS = 64, /* rows of one pass of the head */
    NMLP_CUDA_ROW_WORDS = 7    /* 32-bit words of a row's description, see nmlp_cuda_step_rows */
};

/* A GEMM of few rows, on one of three kernels. */
typedef struct nmlp_cuda_few_gemm {
    nmlp_cuda_gemm_resident resident;    /* qkv and o, where they fit; else of no tiles */
    nmlp_cuda_gemm_stream stream;        /* the head, where it fits; else of no stages */
    nmlp_cuda_mlp_rows32_program rows32; /* everything else: larger models, chips before Hopper */
} nmlp_cuda_few_gemm;

/* How one layer runs with few rows. */
typedef struct nmlp_cuda_few_layer {
    enum { NMLP_CUDA_FEW_GEMM, NMLP_CUDA_FEW_ROWS32, NMLP_CUDA_FEW_CLUSTER4 } mlp_kernel;
    nmlp_cuda_mlp_cluster4_program cluster4;
    nmlp_cuda_mlp_rows32_program rows32;
    nmlp_cuda_few_gemm qkv;
    nmlp_cuda_few_gemm o;
} nmlp_cuda_few_layer;

typedef struct nmlp_cuda_few_rows {
    int32_t rows;
    nmlp_cuda_few_layer *layers; /* [n_layers] */
    nmlp_cuda_few_gemm head;
    bool folds_norms; /* all but the first and the last are parts of the GEMMs */
} nmlp_cuda_few_rows;

/* Device memory and programs of a step. */
typedef struct nmlp_cuda_forward {
    const nmlp_cuda_engine *engine;
    nmlp_cuda_arena arena;
    int32_t max_rows;
    int32_t max_sequences;
    int64_t context;
    int64_t n_pages;
    int32_t table_pages;
    float *rope;    /* [context, D] */
    void **k_pages; /* per layer bf16 [n_pages, n_kv_heads, 64, D] */
    void **v_pages;
    int32_t *tables;             /* [max_sequences, table_pages] */
    int32_t *row_words;          /* [ROW_WORDS, rows of the step] */
    nmlp_cuda_query_tile *tiles; /* [max_rows] */
    float *hidden;               /* f32 [max_rows, H padded] */
    float *delta;                /* what the last GEMM adds to it */
    void *normed;                /* bf16 [max_rows, H padded] */
    float *qkv;                  /* f32 [max_rows, qkv padded] */
    void *q;                     /* bf16 [max_rows, n_heads*D] */
    void *mixed;                 /* bf16 [max_rows, n_heads*D padded] */
    nmlp_cuda_cache_maps *maps;  /* [n_layers]; NULL where attention_prefill_sm90.cu has no kernel */
    float *squares;              /* f32 [few rows, H padded / SQUARES_COLS]: of hidden (residual.h) */
    float *partial;              /* of decode attention */
    uint32_t *arrived;
    void *head_input;            /* bf16 [LOGIT_ROWS, H padded] */
    float *logits;               /* f32 [LOGIT_ROWS, V padded] */
    unsigned long long *best;    /* [LOGIT_ROWS] */
    unsigned long long *choices; /* pinned host memory [max_sequences, NMLP_CUDA_CHOICE_RING] */
    nmlp_cuda_mlp_gemm_buffers mlp_buffers;
    nmlp_cuda_few_rows few[NMLP_CUDA_FEW_BUCKETS];
    nmlp_cuda_decode_program one; /* a decode row alone */
    nmlp_cuda_decode_state *one_state;
    float *one_logits; /* f32 [V padded] */
    nmlp_cuda_blas *blas;
    cudaStream_t stream;
} nmlp_cuda_forward;

/* The shape of a step: rows are padded to `n_rows`, decode rows first. */
typedef struct nmlp_cuda_step_shape {
    int32_t n_rows;
    int32_t n_decode_rows;
    int32_t n_tiles;
    int32_t n_chunks;
} nmlp_cuda_step_shape;

/* The programs of that many rows; takes memory from the arena. */
nmlp_status nmlp_cuda_few_rows_plan(nmlp_cuda_forward *f, nmlp_cuda_few_rows *few, nmlp_err *err);
nmlp_status nmlp_cuda_forward_create(nmlp_cuda_forward *f, const float *rope, nmlp_err *err);
void nmlp_cuda_forward_destroy(nmlp_cuda_forward *f);
/* Rows beyond the few are padded to a multiple of this, so that there are few shapes of GEMM. */
int32_t nmlp_cuda_forward_step(int32_t n);
/* Rows that a step of n rows is padded to. */
int32_t nmlp_cuda_forward_padded(const nmlp_cuda_forward *f, int32_t n);
/* Where the arrays of a step of n rows lie. */
nmlp_cuda_step_rows nmlp_cuda_forward_rows(const nmlp_cuda_forward *f, int32_t n);
/* Enqueues all layers. */
nmlp_status nmlp_cuda_forward_layers(nmlp_cuda_forward *f, const nmlp_cuda_step_shape *shape, nmlp_err *err);
/* Enqueues the logits of head rows first..first+n-1 (n <= LOGIT_ROWS) and the choice of the tokens after them. */
nmlp_status nmlp_cuda_forward_head(nmlp_cuda_forward *f, const nmlp_cuda_step_shape *shape, int32_t first, int32_t n,
                                   nmlp_err *err);
/* Where the sequence that is to run alone stands. The bytes are read before the call returns. */
nmlp_status nmlp_cuda_forward_set_one(nmlp_cuda_forward *f, const nmlp_cuda_decode_state *state, nmlp_err *err);
/* Enqueues n decode steps of a sequence alone, from where it stands, each with the token chosen in the one before. */
nmlp_status nmlp_cuda_forward_one(nmlp_cuda_forward *f, int32_t sequence, int64_t n, nmlp_err *err);
/* Copies a page of every layer. */
nmlp_status nmlp_cuda_forward_copy_page(nmlp_cuda_forward *f, int32_t to, int32_t from, nmlp_err *err);

#endif
