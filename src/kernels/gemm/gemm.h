/* The micro-kernel of every matmul, one implementation per instruction set, and the packed operands it reads.
 *
 * C [S,N] = A [S,K] B [K,N], B the transpose of a weight W [N,K]. In the words of BLIS: both operands are packed, the
 * micro-kernel keeps a micro-tile of C (MR rows x NR columns) in registers while it walks along K, and loops around it
 * (stage.h) choose which rows, columns and part of K.
 *
 * B, the weight, lies in *strips*: panels of 16 columns. A strip holds, for every two inputs k and k+1, 32 elements:
 * f32 and f16 as 16 of k then 16 of k+1; bf16 in pairs (k, k+1) per column, the order of AMX tiles, of which a shift
 * and a mask make two f32 vectors. NR is 1, 2 or 4 strips. K and N are padded to 32 with zeros.
 *
 * Strips of quantised weights (tensor/quant.h) hold a word of 32 bits per column in every line: of Q8 four inputs in
 * bytes 0, 2, 1, 3; of Q4 eight as 4-bit numbers with a sign, even ones in the low 16 bits and odd ones in the high. A
 * few shifts make vectors of int16 pairs (k, k+1) of them. A *span* is what 128 inputs have, so that memory is read
 * from front to back: codes, then of Q4 scales, f16 [groups][16], and zero points, int8 [groups][16]; of Q4M
 * multipliers, int8 [groups][16] with their step. Scales of Q8 and Q4M, one per column, are applied to complete sums
 * (stage.c): codes of Q4M are multiplied before all else, and from there on are those of Q8. Their micro-kernels take
 * activations as int16 in groups of 32 inputs, each row with a scale of its own in every group (nmlp_vec.quantise): the
 * products of a group are summed exactly in int32, groups are added in f32 in their order. A zero point takes its
 * product with the sum of the group's activations away, exactly in int32 too. Sets that round to bf16 unpack strips to
 * bf16 instead: codes of Q8 and Q4M exactly, those of Q4 with their scale. Where tiles take int8, the strips of Q8 are
 * tiles as they are, and activations are rounded to int8 with a scale for each row.
 *
 * A, the activations, lies in *tiles*: panels of up to MR rows. For every 64 bytes' worth of inputs (16 f32, 32 bf16 or
 * 64 int8, these in the order that Q8 has) a tile holds the 64 bytes of each row, one row after the other. The
 * micro-kernel walks both operands front to back, an AMX tile register of either is 16 consecutive lines, and the
 * epilogue writes a row of C into the next matmul's tiles by plain vector stores. */
#ifndef NMLP_KERNELS_GEMM_GEMM_H
#define NMLP_KERNELS_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"
#include "tensor/quant.h"

enum { NMLP_STRIP = 16, NMLP_PAD = 32, NMLP_LINE_BYTES = 64, NMLP_SPAN = 128 };

/* How a quantised strip is laid out. */
typedef struct nmlp_gemm_span {
    size_t bytes;     /* from span to span */
    int scales_at;    /* in the span; Q4 */
    int per_group_at; /* zero points of Q4, multipliers of Q4M; 0: it has none */
    int group_shift;  /* log2 of the inputs of a group */
} nmlp_gemm_span;

/* Scales of Q4 for the group of input k, of a span that begins there or before. */
static inline const char *nmlp_gemm_span_scales(const nmlp_gemm_span *s, const char *span, int64_t k) {
    return span + s->scales_at + (k % NMLP_SPAN >> s->group_shift) * NMLP_STRIP * 2;
}

/* Zero points or multipliers. */
static inline const int8_t *nmlp_gemm_span_per_group(const nmlp_gemm_span *s, const char *span, int64_t k) {
    return (const int8_t *)span + s->per_group_at + (k % NMLP_SPAN >> s->group_shift) * NMLP_STRIP;
}

/* Rows of vector work that a block does overlap its own, a few at every step of 32 inputs: products of tiles leave the
 * vector units idle. */
typedef struct nmlp_gemm_overlap {
    void (*do_rows)(void *ctx, int64_t row, int64_t n);
    void *ctx;
    int64_t row; /* the next */
    int64_t end;
    int64_t rows_per_step;
} nmlp_gemm_overlap;

static inline void nmlp_gemm_overlap_step(nmlp_gemm_overlap *overlap) {
    int64_t n = overlap->end - overlap->row;
    if (n <= 0) return;
    if (n > overlap->rows_per_step) n = overlap->rows_per_step;
    overlap->do_rows(overlap->ctx, overlap->row, n);
    overlap->row += n;
}

/* One micro-tile: C [rows, 16*strips] = or += A [rows,k] B [k, 16*strips] */
typedef struct nmlp_gemm_microtile {
    float *c;              /* rows of 16 * the gemm's strips, contiguous, aligned to 64 bytes */
    const void *a;         /* tile, at the first k */
    const void *b;         /* first strip, at the first k */
    size_t a_step;         /* bytes from one line of inputs to the next: 64 * rows the tile was laid out for */
    size_t b_step;         /* bytes from strip to strip */
    int64_t k;             /* multiple of 32 */
    int rows;              /* 1..mr */
    int strips;            /* the gemm's, or half as many at the end of a matrix */
    const float *a_scales; /* quantised: [k/32][rows the tile was laid out for]; `a` is then int16 [k/32][rows][32] */
    const int32_t *a_sums; /* beside a_scales: sums of 32 inputs; only with zero points */
    nmlp_gemm_span span;   /* quantised: `b` begins with one */
    bool accumulate;
    bool stream;       /* B comes from memory and is used once: fetch it ahead */
    const char *ahead; /* strips needed next, ahead_step apart */
    size_t ahead_step;
    nmlp_gemm_overlap *overlap; /* only for gemms with panels */
} nmlp_gemm_microtile;

typedef void nmlp_gemm_microkernel(const nmlp_gemm_microtile *block);

/* All rows of a task against one panel of columns (panel.h). */
typedef struct nmlp_gemm_panel nmlp_gemm_panel;
typedef void nmlp_gemm_panel_fn(const nmlp_gemm_panel *panel);

/* A strip of a quantised weight from some span on. */
typedef struct nmlp_gemm_quant_strip {
    const char *spans;
    nmlp_gemm_span span;
    nmlp_dtype dtype;
} nmlp_gemm_quant_strip;

typedef struct nmlp_gemm {
    int mr;             /* rows of a full tile */
    int strips;         /* strips of one block: 1, 2 or 4 */
    int elem_bytes;     /* of activations in tiles: 4 f32, 2 bf16 */
    int narrow_rows;    /* up to this many rows weights are used as packed; above they are widened to f32 first */
    bool splits_blocks; /* micro-kernels take one and two strips as well, so that threads share columns finely */
    bool full_tiles;    /* tiles are laid out for mr rows even where fewer are used */
    bool int8_panels;   /* panels take int8 activations with Q8 weights */
    bool unsigned_rows; /* those activations lie 128 higher, as bytes without a sign */
    nmlp_gemm_microkernel *microkernel[NMLP_DTYPES]; /* by type of the packed weight; NULL: cannot */
    nmlp_gemm_panel_fn *panel;                       /* for bf16 and many rows; NULL: only blocks */
    /* n elements of a strip (multiple of 32) to the f32 order. */
    void (*widen)(float *dst, const void *src, nmlp_dtype dtype, int64_t n);
    /* k inputs (multiple of 32) of a quantised strip to the order of bf16; only for gemms with bf16 activations. */
    void (*unpack)(void *dst, const nmlp_gemm_quant_strip *strip, int64_t k);
    void (*begin)(void); /* per thread, before and after a job's blocks; NULL: nothing to do */
    void (*end)(void);
} nmlp_gemm;

extern const nmlp_gemm nmlp_gemm_ref;
extern const nmlp_gemm nmlp_gemm_emu; /* the layout and arithmetic of AMX, in C */
extern const nmlp_gemm nmlp_gemm_few_emu;
#if defined(__x86_64__)
extern const nmlp_gemm nmlp_gemm_avx2;
extern const nmlp_gemm nmlp_gemm_avx512;
extern const nmlp_gemm nmlp_gemm_narrow_avx512;
extern const nmlp_gemm nmlp_gemm_few_avx512;
extern const nmlp_gemm nmlp_gemm_avx512bf16;
extern const nmlp_gemm nmlp_gemm_amx;
extern const nmlp_gemm nmlp_gemm_few_amx;
#endif

static inline int64_t nmlp_pad(int64_t n) { return (n + NMLP_PAD - 1) / NMLP_PAD * NMLP_PAD; }

#endif
