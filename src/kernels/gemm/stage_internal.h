/* What the two ways to work on a stage share: sums of all rows for a part of the inputs at a time (stage.c), and all
 * inputs for a tile of rows at a time (stage_panels.c). */
#ifndef NMLP_KERNELS_GEMM_STAGE_INTERNAL_H
#define NMLP_KERNELS_GEMM_STAGE_INTERNAL_H

#include "kernels/gemm/stage.h"

static inline int nmlp_gemm_stage_width(const nmlp_gemm *gemm) { return gemm->strips * NMLP_STRIP; }

/* Of full tiles: what blocks write, and the distance between blocks of columns in acc. */
static inline int64_t nmlp_gemm_stage_block_floats(const nmlp_gemm *gemm, int64_t rows) {
    return nmlp_ceil_div(rows, gemm->mr) * gemm->mr * nmlp_gemm_stage_width(gemm);
}

/* Strips of the block that begins at `strip`. */
static inline int nmlp_gemm_stage_strips_from(const nmlp_gemm *gemm, const nmlp_gemm_weight *w, int64_t strip) {
    return (int)nmlp_min(gemm->strips, w->n_padded / NMLP_STRIP - strip);
}

/* Inputs k..k+n of a product's quantised weight, strips one after the other, in the type of activations; returns the
 * bytes from strip to strip. */
size_t nmlp_gemm_stage_unpack(const nmlp_gemm *gemm, const nmlp_gemm_product *p, int64_t strip, int n_strips, int64_t k,
                              int64_t n, void *to);

/* One block of columns, some tiles of rows. */
typedef struct nmlp_gemm_stage_part {
    int64_t block;
    int64_t strip; /* the block's first */
    int n_strips;  /* the gemm's, fewer at the end of a matrix or where threads share strips */
    int64_t first_tile;
    int64_t end_tile;
} nmlp_gemm_stage_part;

typedef struct nmlp_gemm_stage_next {
    const char *strips;
    size_t step;
} nmlp_gemm_stage_next;

/* The weights used after inputs k.. of a block of columns: the other product's; then the next part's; after the last,
 * the first of the next block of columns, which most often is this thread's too. */
static inline nmlp_gemm_stage_next
nmlp_gemm_stage_next_after(const nmlp_gemm_stage *s, const nmlp_gemm_stage_part *part, int product, int64_t k) {
    int other = (product + 1) % s->n_products;
    bool same_part = other > product;
    const nmlp_gemm_product *p = &s->product[other];
    bool more = same_part || k + s->kc < p->k;
    int64_t strip = more ? part->strip : part->strip + part->n_strips;
    int64_t at = same_part ? k : more ? k + s->kc : 0;
    return (nmlp_gemm_stage_next){.strips = nmlp_gemm_weight_at(p->w, strip, p->w_k + at), .step = p->w->strip_bytes};
}

typedef struct nmlp_gemm_stage_tasks {
    const nmlp_gemm *gemm;
    int64_t n_strips;
    int64_t n_tiles;
    int64_t parts; /* of the rows */
    bool by_strip; /* threads share strips, not blocks of them */
} nmlp_gemm_stage_tasks;

nmlp_gemm_stage_tasks nmlp_gemm_stage_begin(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker);
/* False when none is left. */
bool nmlp_gemm_stage_take(const nmlp_gemm_stage_tasks *tasks, nmlp_gemm_worker *worker, nmlp_gemm_stage_part *part);

/* Few rows come to a memory-bound stage in which a block of columns takes tens of microseconds, and threads do not get
 * equal shares of the memory's bandwidth: towards its end they take single strips. */
static inline bool nmlp_gemm_stage_by_strip(const nmlp_gemm *gemm, int n_threads) {
    return gemm->splits_blocks && n_threads > 1;
}

void nmlp_gemm_stage_work_panels(const nmlp_gemm_stage *stage, nmlp_gemm_worker *worker,
                                 const nmlp_gemm_scratch *scratch);

#endif
