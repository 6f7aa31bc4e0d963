/* One step of a chain of matmuls: a block of rows in tile order times one or two weights, block of columns by block of
 * columns, each handed to an epilogue while it is still in cache. */
#ifndef NMLP_KERNELS_GEMM_STAGE_H
#define NMLP_KERNELS_GEMM_STAGE_H

#include "kernels/gemm/packed_weight.h"
#include "kernels/gemm/panel.h"
#include "kernels/gemm/blocking.h"
#include "kernels/gemm/work_sharing.h"
#include "kernels/gemm/packed_rows.h"

enum { NMLP_GEMM_PRODUCTS_MAX = 2 };

typedef struct nmlp_gemm_product {
    const nmlp_gemm_weight *w;
    nmlp_gemm_tiles a;
    int64_t w_k; /* the weight's input at which the tiles begin */
    int64_t k;   /* inputs, padded */
} nmlp_gemm_product;

/* A finished block of columns: rows row..row+n_rows of every product. */
typedef struct nmlp_gemm_columns {
    float *c[NMLP_GEMM_PRODUCTS_MAX];
    int64_t col; /* first column */
    int64_t row;
    int64_t n_rows;
    int width;  /* columns */
    int stride; /* floats from row to row */
} nmlp_gemm_columns;

typedef void nmlp_gemm_epilogue(void *ctx, const nmlp_gemm_columns *columns);

/* The same in the words of a panel, whose columns and first row are given; nothing where they do not suffice. */
typedef void nmlp_gemm_epilogue_description(const void *ctx, const nmlp_gemm_columns *columns, nmlp_gemm_panel *panel);

typedef struct nmlp_gemm_stage {
    const nmlp_gemm *gemm;
    const nmlp_vec *vec;
    nmlp_gemm_product product[NMLP_GEMM_PRODUCTS_MAX]; /* two have the same outputs; the same tiles too, or not */
    int n_products;
    int64_t rows;    /* in the block of rows */
    int64_t row;     /* of all, with which the block begins */
    int64_t kc;      /* inputs done at a time, multiple of 32 */
    bool widen;      /* weights to f32 before use */
    bool stream;     /* few rows: weights come straight from memory */
    float *acc;      /* [column blocks][tile rows][width]: sums that outlive the stage; NULL: the thread's own */
    bool accumulate; /* onto acc */
    nmlp_gemm_epilogue *epilogue; /* NULL: the sums stay in acc */
    nmlp_gemm_epilogue_description *describe;
    void *epilogue_ctx;
} nmlp_gemm_stage;

/* A thread's own memory: sums of a block of columns, for panels the tile of them that is made and the one that is
 * delivered, widened weights. */
typedef struct nmlp_gemm_scratch {
    float *c;
    float *tiles;
    float *b;
    float *row; /* [k] of the first input */
    int16_t *a; /* a tile of inputs quantised, for quantised weights */
    float *a_scales;
    int32_t *a_sums; /* of a's groups, for weights with zero points */
} nmlp_gemm_scratch;

/* `quant_k` is the most inputs of a quantised weight, 0 without one. */
nmlp_gemm_scratch nmlp_gemm_scratch_carve(nmlp_carver *carver, const nmlp_gemm_blocking *blocking, int64_t k,
                                          int64_t quant_k);

/* Floats of acc for n outputs. */
int64_t nmlp_gemm_stage_acc_floats(const nmlp_gemm *gemm, int64_t rows, int64_t n);

/* Weights a thread will need first in a stage to come, brought near piece by piece while it waits. */
typedef struct nmlp_gemm_prefetch {
    const char *strips; /* of a block of columns, as they will be read: side by side */
    size_t step;
    int n_strips;
    size_t strip_bytes;
    size_t at;
    int64_t left_bytes;
} nmlp_gemm_prefetch;
/* Of w's inputs from k on. */
nmlp_gemm_prefetch nmlp_gemm_prefetch_of(const nmlp_gemm *gemm, const nmlp_gemm_weight *w, int64_t k,
                                         const nmlp_gemm_worker *worker);
/* False when there is nothing left. */
bool nmlp_gemm_prefetch_next(nmlp_gemm_prefetch *fetch);

/* Takes tasks until none is left. */
void nmlp_gemm_stage_work(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker, const nmlp_gemm_scratch *scratch);

#endif
