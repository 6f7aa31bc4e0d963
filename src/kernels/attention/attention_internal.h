/* What the files of attention share: a block of queries of all heads that look at one head of keys, against keys block
 * by block. Query rows are stacked: row i is query first_query + i/group of head kv_head*group + i%group. */
#ifndef NMLP_KERNELS_ATTENTION_ATTENTION_INTERNAL_H
#define NMLP_KERNELS_ATTENTION_ATTENTION_INTERNAL_H

#include "kernels/attention/kv.h"
#include "kernels/gemm/packed_rows.h"

/* Of the splits put together so far, beside their unscaled sums. */
typedef struct nmlp_attention_merged {
    float max; /* -INFINITY: none yet */
    float sum;
} nmlp_attention_merged;

/* A thread's own memory. */
typedef struct nmlp_attention_scratch {
    nmlp_gemm_tiles q;             /* [rows,D] */
    nmlp_gemm_tiles p[2];          /* a tile of probabilities [mr,keys] and the one before it */
    float *rotated;                /* [group,D] one query */
    char *k_strips;                /* [keys/16][D][16] f32, where the cache has none that the gemm takes */
    char *v_strips;                /* [D/16][keys][16] */
    float *scores[2];              /* one tile: [keys/width][mr][width], and the one before it */
    float *out;                    /* [tiles][D/width][mr][width] */
    int64_t *seen[2];              /* [mr] keys of the block that rows of these tiles see */
    float *shrink[2];              /* [mr] what their sums shrink by before these values are added */
    float *max;                    /* [rows] */
    float *sum;                    /* [rows], or [rows,16] in parts where probabilities are rounded */
    nmlp_attention_merged *merged; /* [rows] */
} nmlp_attention_scratch;

typedef struct nmlp_attention_job {
    const nmlp_attention *args;
    const nmlp_gemm *gemm;
    const nmlp_vec *vec;
    nmlp_scores_fn *scores_64; /* NULL: blocks do */
    nmlp_kv_layout layout;     /* of a cache in bf16 */
    nmlp_dtype strip_dtype;    /* of what blocks read */
    bool as_stored;            /* they read the cache itself */
    int64_t group;             /* heads that share keys and values */
    int64_t keys;              /* in a block */
    int64_t queries;           /* in a block */
    int64_t rows;              /* in a block: queries*group */
    int64_t tiles_at_once;     /* of them that take a block of keys in turn */
    int64_t dim;               /* D padded */
    int64_t out_dim;           /* D padded to blocks of columns */
    int width;
    bool few;            /* rows: threads share the splits */
    int64_t first_split; /* the first that some query sees */
    int64_t n_splits;    /* from there on */
    float *partial;      /* [kv heads][rows][2 + splits at once * (D + 2)], with few rows and several splits */
} nmlp_attention_job;

/* A block of queries against a range of keys. */
typedef struct nmlp_attention_task {
    const nmlp_attention_job *run;
    nmlp_attention_scratch *scratch;
    int64_t kv_head;
    int64_t first_query;
    int64_t rows;
    int64_t first_key; /* multiple of 32 */
    int64_t end_key;
} nmlp_attention_task;

/* A block of keys and their values, in strips. */
typedef struct nmlp_attention_keys {
    int64_t first;
    int64_t n_padded; /* those beyond the last have any keys, and any or no values */
    const char *k;
    size_t k_step; /* bytes from 16 keys to the next */
    const char *v;
    size_t v_step; /* bytes from 16 dimensions to the next */
} nmlp_attention_keys;

/* Parts that a row's sum of probabilities has. */
static inline int64_t nmlp_attention_sum_parts(const nmlp_attention_job *run) {
    return run->gemm->elem_bytes == 2 ? NMLP_STRIP : 1;
}

/* Queries and probabilities are rounded. */
static inline bool nmlp_attention_in_bf16(const nmlp_attention_job *run) { return run->gemm->elem_bytes == 2; }

/* The first position that a query sees. */
static inline int64_t nmlp_attention_window_begin(const nmlp_attention *args, int64_t query) {
    return args->window > 0 ? nmlp_max(0, args->first_pos + query + 1 - args->window) : 0;
}

/* Where a row begins in q and out. */
static inline int64_t nmlp_attention_row_offset(const nmlp_attention_task *task, int64_t row) {
    const nmlp_attention_job *run = task->run;
    int64_t query = task->first_query + row / run->group;
    int64_t head = task->kv_head * run->group + row % run->group;
    return (query * run->args->n_heads + head) * run->args->kv.head_dim;
}

/* Keys from `first` on, as many as a block takes and the task has. What the cache does not have in strips for the gemm
 * is laid out in the scratch, for one block at a time. */
nmlp_attention_keys nmlp_attention_load(const nmlp_attention_task *task, int64_t first);

/* Adds to a tile's sums c what a row sees of a block: values first..end-1, and nothing of the others, not even 0 times
 * their NaN. As slow as it is rare. */
typedef struct nmlp_attention_values {
    const nmlp_attention_job *run;
    const nmlp_attention_keys *keys;
    const nmlp_gemm_tiles *p;
    float *c;
} nmlp_attention_values;
void nmlp_attention_add_seen(const nmlp_attention_values *values, int64_t row, int64_t first, int64_t end);

/* All keys of the task; leaves unscaled sums in out, with max and sum of every row. Blocks of keys lie in one page. */
void nmlp_attention_do(const nmlp_attention_task *task);

#endif
