/* The inner block of every matmul, one implementation per instruction set, and the layouts it reads.
 *
 * Weights W [N,K] lie in *strips* of 16 outputs. A strip holds, for every two inputs k and k+1, 32 elements: f32 and
 * f16 as 16 of k then 16 of k+1; bf16 in pairs (k, k+1) per output, the order of AMX tiles, of which a shift and a mask
 * make two f32 vectors. K is padded to 32 and N to 32, with zeros.
 *
 * Activations lie in *tiles* of up to `mr` rows: for every 64 bytes' worth of inputs (16 f32 or 32 bf16) the
 * 64 bytes of each row, one row after the other. The inner loop walks both operands front to back, an AMX tile of
 * either is 16 consecutive lines, and an output row is written into the next matmul's tile by plain vector stores. */
#ifndef NMLP_KERNELS_GEMM_GEMM_H
#define NMLP_KERNELS_GEMM_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

enum { NMLP_STRIP = 16, NMLP_PAD = 32, NMLP_LINE_BYTES = 64, NMLP_DTYPES = 3 };

/* Rows of vector work that a block does beside its own, a few at every step of 32 inputs: products of tiles leave the
 * vector units idle. */
typedef struct nmlp_beside {
    void (*do_rows)(void *ctx, int64_t row, int64_t n);
    void *ctx;
    int64_t row; /* the next */
    int64_t end;
    int64_t rows_per_step;
} nmlp_beside;

static inline void nmlp_beside_step(nmlp_beside *beside) {
    int64_t n = beside->end - beside->row;
    if (n <= 0) return;
    if (n > beside->rows_per_step) n = beside->rows_per_step;
    beside->do_rows(beside->ctx, beside->row, n);
    beside->row += n;
}

/* C [rows, 16*strips] = or += A [rows,k] B [k, 16*strips] */
typedef struct nmlp_block {
    float *c;      /* rows of 16 * the gemm's strips, contiguous, aligned to 64 bytes */
    const void *a; /* tile, at the first k */
    const void *b; /* first strip, at the first k */
    size_t a_step; /* bytes from one line of inputs to the next: 64 * rows the tile was laid out for */
    size_t b_step; /* bytes from strip to strip */
    int64_t k;     /* multiple of 32 */
    int rows;      /* 1..mr */
    int strips;    /* the gemm's, or half as many at the end of a matrix */
    bool accumulate;
    bool stream;       /* B comes from memory and is used once: fetch it ahead */
    const char *ahead; /* strips needed next, ahead_step apart */
    size_t ahead_step;
    nmlp_beside *beside; /* only for gemms with panels */
} nmlp_block;

typedef void nmlp_block_fn(const nmlp_block *block);

/* All rows of a task against one block of columns (panel.h). */
typedef struct nmlp_panel nmlp_panel;
typedef void nmlp_panel_fn(const nmlp_panel *panel);

typedef struct nmlp_gemm {
    int mr;          /* rows of a full tile */
    int strips;      /* strips of one block: 1, 2 or 4 */
    int elem_bytes;  /* of activations in tiles: 4 f32, 2 bf16 */
    int narrow_rows; /* up to this many rows weights are used as packed; above they are widened to f32 first */
    bool full_tiles; /* tiles are laid out for mr rows even where fewer are used */
    nmlp_block_fn *block[NMLP_DTYPES]; /* by type of the packed weight; NULL: cannot */
    nmlp_panel_fn *panel;              /* for bf16 and many rows; NULL: only blocks */
    /* n elements of a strip (multiple of 32) to the f32 order. */
    void (*widen)(float *dst, const void *src, nmlp_dtype dtype, int64_t n);
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
extern const nmlp_gemm nmlp_gemm_amx;
extern const nmlp_gemm nmlp_gemm_few_amx;
#endif

static inline int64_t nmlp_pad(int64_t n) { return (n + NMLP_PAD - 1) / NMLP_PAD * NMLP_PAD; }

#endif
