/* What gptq.c and gptq_sweeps.c share: the rows that one thread rounds at a time. */
#ifndef NMLP_COMPRESS_QUANTIZE_GPTQ_INTERNAL_H
#define NMLP_COMPRESS_QUANTIZE_GPTQ_INTERNAL_H

#include "compress/quantize/gptq.h"
#include "compress/quantize/quant_scales.h"
#include "tensor/dtype.h"

/* Some rows at a time, as one thread works on them; columns as stored unless said otherwise. */
typedef struct nmlp_gptq_rows {
    float *w;        /* [rows, K] in the order of rounding */
    float *errors;   /* [rows, K] w - q in that order */
    float *target;   /* [rows, columns of a block] what the errors of earlier columns add */
    float *codes;    /* [rows, K] */
    float *scales;   /* [rows, groups] */
    float *steps;    /* [rows] of the scales of types with multipliers */
    float *zeros;    /* [rows, groups] zero points; `codes` are without them */
    float *ones;     /* [K] C times the ones of a group */
    float *residual; /* [rows, K] w - q */
    float *gradient; /* [rows, K] C (w - q) */
    float *seen;     /* [rows, K] C times the codes of a group */
} nmlp_gptq_rows;

typedef struct nmlp_gptq_rounding {
    const nmlp_gptq *gptq;
    const float *w; /* [N,K] */
    const nmlp_view *out;
    int64_t group, n_groups;
    bool has_zeros;
    float lowest, highest;
    float *importance;    /* [K] diagonal of C */
    nmlp_gptq_rows *rows; /* [threads] */
    bool wants_loss;
    double *loss; /* [tasks] */
} nmlp_gptq_rounding;

/* The nearest code to w / scale. */
static inline float nmlp_gptq_code(const nmlp_gptq_rounding *r, float w, float inverse, float zero) {
    if (r->out->dtype == NMLP_DTYPE_FP8) return nmlp_fp8_round(w * inverse);
    return nmlp_quant_code(w, inverse, r->lowest - zero, r->highest - zero);
}

/* Residual and gradient of the codes as they are; w [rows, K] as stored. */
void nmlp_gptq_measure_rows(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, const float *w, int64_t n_rows);

/* One sweep: the best step along every scale, zero point, multiplier and code in turn. Rows were measured before. */
void nmlp_gptq_sweep(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t n_rows);

#endif
