/* Element-wise helpers, compiled once per instruction set from vec_body.h. */
#ifndef NMLP_KERNELS_OPS_VEC_H
#define NMLP_KERNELS_OPS_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/activation.h"
#include "tensor/dtype.h"

/* Rows on their way into a tile of gemm.h, whose lines lie at dst, dst + step, ... for the first row and 64 bytes
 * further on for each next one. dst may be the middle of a bf16 line. */
typedef struct nmlp_vec_put {
    void *dst;
    size_t step;
    const float *src;
    const float *up; /* written is activation(src) * up; NULL: src as it is */
    nmlp_activation activation;
    int64_t src_stride; /* floats, of up too */
    int64_t n_rows;
    int64_t n;        /* values of a row */
    int64_t n_padded; /* multiple of 16; zeros are written from n on */
} nmlp_vec_put;

/* One step of an online softmax in f32: the scores of one row for one block of keys. */
typedef struct nmlp_vec_softmax {
    const float *scores;  /* in pieces of 16 * strips */
    int64_t block_stride; /* floats from piece to piece */
    int strips;
    int64_t n;        /* keys seen by the row; may be 0 */
    int64_t n_padded; /* probabilities written, zeros from n on; multiple of 16 */
    float scale;
    void *line; /* probabilities go into a tile: dst and step of nmlp_vec_put */
    size_t step;
    float max;    /* in and out: what probabilities are relative to, a maximum of the scaled scores so far */
    float sum;    /* in and out: of the probabilities so far, relative to max */
    float shrink; /* out: what sums made relative to the old max must be multiplied with */
} nmlp_vec_softmax;

/* The same for some rows whose probabilities are rounded to bf16. */
typedef struct nmlp_vec_softmax_rows {
    const float *scores; /* in pieces of 32 keys, the rows of a piece one after the other */
    int64_t block_stride;
    int64_t n_rows;
    const int64_t *n; /* [n_rows] keys seen by a row, may be 0; NULL: all */
    int64_t n_padded; /* multiple of 32 */
    float scale;
    char *lines; /* the first row's in a tile */
    size_t step;
    float *max;    /* [n_rows] in and out, as above */
    float *sums;   /* [n_rows,16] in and out: sums of probabilities, in parts */
    float *shrink; /* [n_rows] out */
} nmlp_vec_softmax_rows;

/* Rows of f32 in a tile (gemm.h), on their way to int16 in groups of 32 with a scale each: x is about q * scale, to
 * 2^-16 of the largest of its group. A group that is not finite gets a scale that is not. */
typedef struct nmlp_vec_quantisation {
    int16_t *dst;  /* [groups][rows][32] */
    float *scales; /* [groups][rows] */
    const char *src;
    size_t step; /* bytes from 16 inputs to the next; a row's are 64 bytes after those of the row before */
    int rows;
    int64_t n_groups;
} nmlp_vec_quantisation;

/* A row on its way into a tile of int8 (gemm.h), with one scale: x is about q * scale, to 1/254 of the largest. Of
 * every four inputs the second and third change places, as in strips of Q8. */
typedef struct nmlp_vec_int8_row {
    int8_t *dst;      /* lines at dst, dst + step, ... */
    bool is_unsigned; /* 128 is added: bytes from 1 to 255 */
    size_t step;
    const float *src;
    int64_t n;
    int64_t n_padded; /* multiple of 64; zeros are written from n on */
} nmlp_vec_int8_row;

/* Two rows on their way into strips of bf16 pairs (gemm.h): one line of every strip. */
typedef struct nmlp_vec_pairing {
    char *dst;
    size_t step;       /* from strip to strip */
    const float *even; /* [n]; NULL: zeros */
    const float *odd;
    int64_t n;
    int64_t n_padded; /* multiple of 16; zeros are written from n on */
} nmlp_vec_pairing;

/* Values of a block of neurons for some tokens: rows of gate and up, and where their sums of squares go. */
typedef struct nmlp_vec_swiglu {
    const float *gate;
    const float *up;
    int64_t stride; /* floats from token to token */
    int64_t n_tokens;
    int64_t n;                  /* neurons */
    nmlp_activation activation; /* f */
    float *gate2;               /* [n] out: f(gate)^2 */
    float *slope2;              /* [n] out: (up * f'(gate))^2 */
    float *act2;                /* [n] out: (f(gate) * up)^2 */
} nmlp_vec_glu;

typedef struct nmlp_vec {
    /* act = gate / (1 + exp(-gate)) * up; act may be gate or up. */
    void (*silu_mul)(float *act, const float *gate, const float *up, int64_t n);
    void (*gelu_mul)(float *act, const float *gate, const float *up, int64_t n); /* NMLP_ACTIVATION_GELU_TANH */
    void (*softcap)(float *x, float factor, float cap, int64_t n);               /* x = cap * tanh(x * factor) */
    void (*put_f32)(const nmlp_vec_put *put);
    void (*put_bf16)(const nmlp_vec_put *put);
    /* dst [n_rows of n] = src + bias; bias [n] may be NULL. */
    void (*copy_rows)(float *dst, int64_t dst_stride, const nmlp_vec_put *from, const float *bias);
    /* dst += src + bias */
    void (*add_rows)(float *dst, int64_t dst_stride, const nmlp_vec_put *from, const float *bias);
    void (*softmax)(nmlp_vec_softmax *row);
    /* True when nothing shrinks. */
    bool (*softmax_bf16)(const nmlp_vec_softmax_rows *rows);
    void (*quantise)(const nmlp_vec_quantisation *q);
    /* Returns the scale, which is no number where something in the row is not finite. */
    float (*put_int8)(const nmlp_vec_int8_row *row);
    void (*pair_rows)(const nmlp_vec_pairing *pairing);
    void (*scale)(float *y, const float *x, float factor, int64_t n); /* y = x*factor */
    float (*dot)(const float *a, const float *b, int64_t n);
    void (*mul_scaled)(float *y, const float *x, const float *weight, float factor,
                       int64_t n); /* y = x*factor*weight */
    void (*add)(float *x, const float *y, int64_t n);
    float (*largest)(const float *x, int64_t n);
    /* sums[0] = sum of e^(x-top), sums[1] = the same weighted with x-y; y NULL: none. x at most top. */
    void (*exp_sums)(double sums[2], const float *x, const float *y, float top, int64_t n);
    void (*glu_squares)(const nmlp_vec_glu *block);
    /* y [2n]: the n pairs (i, n+i) of x turned by angles given as n cosines and n sines; y may be x. */
    void (*rotate)(float *y, const float *x, const float *angles, int64_t n);
    /* dst [n,16] = transpose of 16 rows of n elements of 4 bytes; rows from n_rows on are zeros. */
    void (*transpose)(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n);
    /* The same; false when among the elements, f32 or pairs of bf16, is NaN or Inf. */
    bool (*transpose_checked)(void *dst, const void *src, int64_t row_stride, int64_t n_rows, int64_t n,
                              nmlp_dtype dtype);
    /* No NaN or Inf in lines of 64 bytes, f32 or bf16. */
    bool (*is_finite)(const void *lines, int64_t n_lines, nmlp_dtype dtype);
} nmlp_vec;

extern const nmlp_vec nmlp_vec_ref;
#if defined(__x86_64__)
extern const nmlp_vec nmlp_vec_avx2;
extern const nmlp_vec nmlp_vec_avx512;
extern const nmlp_vec nmlp_vec_avx512bf16; /* of the amx set too */
#endif

#endif
