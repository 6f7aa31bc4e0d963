/* What the files of attention share: a block of queries of all heads that look at one head of keys, against keys block
 * by block. Query rows are stacked: row i is query first_query + i/group of head kv_head*group + i%group. */
#ifndef NMLP_KERNELS_ATTENTION_INT_H
#define NMLP_KERNELS_ATTENTION_INT_H

#include "kernels/tiles.h"

/* A thread's own memory. */
typedef struct nmlp_attend_scratch {
    nmlp_tiles q;     /* [rows,D] */
    nmlp_tiles p[2];  /* a tile of probabilities [mr,keys] and the one before it */
    char *pairs;      /* 16 keys as rows of bf16 */
    char *k_strips;   /* [keys/16][D][16], elements as those of the tiles */
    char *v_strips;   /* [D/16][keys][16] */
    float *scores[2]; /* one tile: [keys/width][mr][width], and the one before it */
    float *out;       /* [tiles][D/width][mr][width] */
    float *max;       /* [rows] */
    float *sum;       /* [rows] */
} nmlp_attend_scratch;

typedef struct nmlp_attend {
    const nmlp_attention *args;
    const nmlp_gemm *gemm;
    const nmlp_vec *vec;
    int64_t group;   /* heads that share keys and values */
    int64_t keys;    /* in a block */
    int64_t queries; /* in a block */
    int64_t rows;    /* in a block: queries*group */
    int64_t dim;     /* D padded */
    int64_t out_dim; /* D padded to blocks of columns */
    int width;
    int64_t n_splits; /* of the keys */
    float *partial;   /* [kv heads][splits][rows][D + max, sum] */
    nmlp_pieces scratch; /* of threads */
} nmlp_attend;

/* A block of queries against a range of keys. */
typedef struct nmlp_attend_task {
    const nmlp_attend *run;
    nmlp_attend_scratch *scratch;
    int64_t kv_head;
    int64_t first_query;
    int64_t rows;
    int64_t first_key;
    int64_t end_key;
} nmlp_attend_task;

static inline bool nmlp_attend_in_bf16(const nmlp_attend *run) { return run->gemm->elem_bytes == 2; }

/* Where a row begins in q and out. */
static inline int64_t nmlp_attend_row_offset(const nmlp_attend_task *task, int64_t row) {
    const nmlp_attend *run = task->run;
    int64_t query = task->first_query + row / run->group;
    int64_t head = task->kv_head * run->group + row % run->group;
    return (query * run->args->n_heads + head) * run->args->head_dim;
}

/* Keys key..key+n of the task's head to the scratch's strips; those up to n_padded are zeros. Values likewise. */
void nmlp_attend_load_keys(const nmlp_attend_task *task, int64_t key, int64_t n, int64_t n_padded);
void nmlp_attend_load_values(const nmlp_attend_task *task, int64_t key, int64_t n, int64_t n_padded);

/* All keys of the task; leaves unscaled sums in out, with max and sum of every row. */
void nmlp_attend_do(const nmlp_attend_task *task);

#endif
