/* Kernels for many rows at once (prefill). Activations between matmuls are bf16 with rows padded like the weights; the
 * residual stream is f32. Plain C interface; every launcher returns a cudaError_t. */
#ifndef NMLP_CUDA_PREFILL_PREFILL_H
#define NMLP_CUDA_PREFILL_PREFILL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* hidden [S,pitch] f32 = embedding rows of ids. */
int nmlp_cuda_launch_embed(float *hidden, const void *embedding, const int32_t *ids, int32_t s, int32_t pitch,
                           void *stream);
/* f32 -> bf16, n elements, a multiple of 4. */
int nmlp_cuda_launch_narrow(void *out, const float *x, int64_t n, void *stream);
/* out [S,pitch] bf16 = silu(gate) * up; gate and up bf16 [S,pitch]. */
int nmlp_cuda_launch_silu_mul(void *out, const void *gate, const void *up, int64_t n, void *stream);
/* hidden [S,pitch] f32 += bias. */
int nmlp_cuda_launch_add_bias(float *hidden, const float *bias, int32_t s, int32_t n, int32_t pitch, void *stream);

/* out [S] = log p(target) of logits [S,pitch] f32. */
int nmlp_cuda_launch_logprob(float *out, const float *logits, const int32_t *targets, int32_t s, int32_t vocab,
                             int32_t pitch, void *stream);

typedef struct nmlp_cuda_attention {
    const float *qkv;  /* f32 [S, pitch]: queries, keys, values */
    const float *bias; /* or NULL */
    const float *q_norm;
    const float *k_norm;
    const float *rope;
    void *q;       /* bf16 [S, n_heads*D] out: rotated and multiplied by scale */
    void *k_cache; /* bf16 [n_kv_heads, context, D] out */
    void *v_cache;
    void *out; /* bf16 [S, out_pitch] of attention */
    const int32_t
        *text_begin; /* [S] first row of each row's text, where texts lie one after the other; NULL: one text */
    float eps;
    float scale;
    int32_t s;
    int32_t first; /* place of row 0 in the cache and, with one text, its position */
    int32_t pitch;
    int32_t out_pitch;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t context;
} nmlp_cuda_attention;

/* Bias, norms and rotation; fills q and the caches. */
int nmlp_cuda_launch_rope_append(const nmlp_cuda_attention *h, void *stream);
/* Causal attention of q over the cache. */
int nmlp_cuda_launch_attention(const nmlp_cuda_attention *h, void *stream);

/* y [S,N] = x [S,K] w^T, row pitches in elements; bf16 operands; y bf16, or f32 with `accumulate` choosing y += . */
typedef struct nmlp_cuda_gemm {
    void *y;
    const void *x;
    const void *w;
    int32_t s;
    int32_t n;
    int32_t k; /* a multiple of 64 */
    int32_t y_pitch;
    int32_t x_pitch;
    int32_t w_pitch;
    int32_t y_is_f32;
    int32_t accumulate;
} nmlp_cuda_gemm;

int nmlp_cuda_launch_gemm(const nmlp_cuda_gemm *g, void *stream);

#ifdef __cplusplus
}
#endif

#endif
