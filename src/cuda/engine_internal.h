/* What engine.c, session.c, score.c and prefill.c share. */
#ifndef NMLP_CUDA_ENGINE_INTERNAL_H
#define NMLP_CUDA_ENGINE_INTERNAL_H

#include "base/mem.h"
#include "cuda/blas.h"
#include "cuda/mlp/mlp_gemm.h"
#include "cuda/decode/decode_plan.h"
#include "cuda/prefill/attention_prefill_sm90.h"

typedef struct nmlp_cuda_layer {
    float *attention_norm; /* f32 [H padded], as all vectors here */
    float *mlp_norm;
    float *q_norm; /* or NULL */
    float *k_norm;
    float *qkv_bias;
    float *o_bias;
    nmlp_cuda_matrix qkv; /* queries, keys, values one under the other */
    nmlp_cuda_matrix o;
    nmlp_cuda_mlp_weights mlp;
} nmlp_cuda_layer;

struct nmlp_cuda_engine {
    const nmlp_model *model;
    nmlp_cuda_device device;
    nmlp_cuda_arena arena;
    nmlp_cuda_layer *layers;
    nmlp_cuda_matrix embedding;
    nmlp_cuda_matrix lm_head;
    float *final_norm;
    char name[300];
};

enum { NMLP_CUDA_PREFILL_ROWS = 2048 };

/* Memory of prefill, for up to `rows` tokens at a time. */
typedef struct nmlp_cuda_prefill {
    int32_t rows;
    int32_t *ids;  /* [rows] */
    float *hidden; /* f32 [rows, H padded] */
    void *normed;  /* bf16, the same shape */
    float *qkv;    /* f32 [rows, qkv padded] */
    void *q;       /* bf16 [rows, n_heads*D] */
    void *mixed;   /* bf16 [rows, n_heads*D padded] */
    nmlp_cuda_mlp_gemm_buffers mlp;
    nmlp_cuda_blas *blas;
} nmlp_cuda_prefill;

struct nmlp_cuda_session {
    const nmlp_cuda_engine *engine;
    nmlp_cuda_arena arena;
    int64_t context;
    int64_t length; /* tokens in the cache, those of steps ahead of the text included */
    bool picked;    /* the device has made or makes a choice after the last token */
    int32_t last;   /* that token */
    float *rope;    /* [context, D] */
    void **k;       /* per layer bf16 [n_kv_heads, context, D] */
    void **v;
    nmlp_cuda_cache_maps
        *maps;     /* [n_layers]; NULL: chips and head sizes that attention_prefill_sm90.cu has nothing for */
    float *hidden; /* f32 [H padded] prefill's last row */
    float *logits; /* f32 [V padded] */
    nmlp_cuda_decode_state *state;
    nmlp_cuda_decode_state settings; /* what the host last requested */
    nmlp_cuda_decode_program step;   /* embed to pick */
    nmlp_cuda_decode_program head;   /* logits and pick alone, after prefill */
    nmlp_cuda_prefill prefill;
    cudaStream_t stream;
    _Atomic uint64_t *choices; /* pinned, see nmlp_cuda_decode_program */
    uint32_t n_choices;        /* requested so far */
    uint32_t current; /* number of the choice after the last token; those after it are of steps ahead of the text */
    int32_t chosen;   /* the last one that was polled */
};

/* Takes the memory for up to `rows` tokens at a time; called twice, like everything that lays out an arena. */
nmlp_status nmlp_cuda_prefill_lay_out(nmlp_cuda_prefill *p, const nmlp_cuda_engine *e, nmlp_cuda_arena *arena,
                                      int64_t rows, nmlp_err *err);

/* Maps of the caches k and v [n_layers], bf16 of n_kv_heads * positions rows each. Leaves NULL where there is no kernel
 * that takes them. Free with nmlp_mem_free. */
nmlp_status nmlp_cuda_cache_maps_make(nmlp_cuda_cache_maps **out, const nmlp_cuda_engine *e, void *const *k,
                                      void *const *v, int64_t positions, nmlp_err *err);

/* Many tokens through all layers: the continuation of one text, or texts one after the other. */
typedef struct nmlp_cuda_prefill_pass {
    const nmlp_cuda_engine *engine;
    nmlp_cuda_prefill *prefill;
    const float *rope; /* [positions, D] */
    void *const *k;    /* per layer bf16 [n_kv_heads, context, D] */
    void *const *v;
    const nmlp_cuda_cache_maps *maps; /* per layer, for one text; or NULL */
    int64_t context;                  /* rows of a head's cache */
    int64_t first;                    /* where the first token goes in it */
    const int32_t *text_begin;        /* on the device, see prefill.h */
    cudaStream_t stream;
} nmlp_cuda_prefill_pass;

/* Runs n <= rows tokens and leaves their last hidden states in prefill->hidden. */
nmlp_status nmlp_cuda_prefill_run(const nmlp_cuda_prefill_pass *pass, const int32_t *ids, int32_t n, nmlp_err *err);
/* y [n, N padded] f32 (+)= x [n,K] bf16 times w. */
nmlp_status nmlp_cuda_prefill_gemm(const nmlp_cuda_prefill_pass *pass, float *y, bool accumulate, const void *x,
                                   const nmlp_cuda_matrix *w, int32_t n, nmlp_err *err);
/* prefill->normed = the norm of `x`, n rows of the hidden size. */
nmlp_status nmlp_cuda_prefill_norm(const nmlp_cuda_prefill_pass *pass, float *x, const float *weight, int32_t n,
                                   nmlp_err *err);

#endif
