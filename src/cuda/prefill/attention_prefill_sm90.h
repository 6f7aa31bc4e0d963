/* Attention of prompts on Hopper, by wgmma and TMA: over paged caches what nmlp_cuda_batch_prompt_attention does, over
 * caches in one piece what nmlp_cuda_launch_attention does for one text. */
#ifndef NMLP_CUDA_PREFILL_ATTENTION_PREFILL_SM90_H
#define NMLP_CUDA_PREFILL_ATTENTION_PREFILL_SM90_H

#include "cuda/batch/batch_kernels.h"
#include "cuda/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys and values of a layer as matrices of rows of D, in boxes of NMLP_CUDA_PAGE_POSITIONS rows by 64 columns. */
typedef struct nmlp_cuda_cache_maps {
    nmlp_cuda_tensor_map k;
    nmlp_cuda_tensor_map v;
} nmlp_cuda_cache_maps;

typedef struct nmlp_cuda_attention_sm90 {
    nmlp_cuda_cache_maps cache;
    const void *q; /* bf16 [rows, n_heads*D], rotated and scaled */
    void *out;     /* bf16 [rows, out_pitch] */
    /* Paged: row 0 of a head's page is row (table[page] * n_kv_heads + head) * 64 of the maps. */
    const int32_t *tables;             /* [sequences, table_pages]; NULL: one text in one piece */
    const nmlp_cuda_query_tile *tiles; /* [n_tiles], later ones have more keys */
    int32_t table_pages;
    /* One text: position 0 of a head is row head * context of the maps. */
    int32_t context;
    int32_t n_rows;   /* of queries */
    int32_t position; /* of the first */
    int32_t n_tiles;
    int32_t out_pitch;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t n_multiprocessors;
} nmlp_cuda_attention_sm90;

/* Whether the code that was loaded has Hopper's instructions, and a kernel for that head size. */
int nmlp_cuda_attention_has_sm90(int32_t head_dim);
/* Returns a cudaError_t. */
int nmlp_cuda_attention_sm90_launch(const nmlp_cuda_attention_sm90 *job, void *stream);

#ifdef __cplusplus
}
#endif

#endif
