/* The loop over blocks of rows that every matmul shares: a linear layer, several of one input, the fused MLP.
 *
 * Threads form teams of one size. A team takes a block of rows, packs it into tiles together (normalised first where
 * asked for), waits until all of it is there, and then runs the operation's stages on it, columns shared between its
 * threads. A single row is packed by every thread for itself, which takes less time than to wait. Where rows are enough
 * for every thread to have blocks of its own, teams have one thread and never wait. */
#ifndef NMLP_KERNELS_GEMM_ROW_DRIVER_H
#define NMLP_KERNELS_GEMM_ROW_DRIVER_H

#include "kernels/gemm/stage.h"

typedef struct nmlp_gemm_teams {
    int n;
    int n_max;   /* for fewer rows or threads: what memory is laid out for */
    int threads; /* of one team */
    int64_t s;
    int64_t rows;        /* of a block */
    int64_t rows_at_end; /* of the blocks of the last quarter, taken by single threads: less to wait for */
    _Atomic int64_t next_row;
} nmlp_gemm_teams;

typedef struct nmlp_gemm_pass nmlp_gemm_pass;

typedef struct nmlp_gemm_rows_run {
    const nmlp_kernels *kernels;
    nmlp_gemm_blocking blocking;
    nmlp_gemm_teams teams;
    nmlp_pieces team_memory;
    nmlp_pieces scratch; /* of threads */
    int64_t k;           /* inputs of a row */
    int64_t quant_k;     /* the most inputs of a quantised weight; 0: there is none */
    bool q8_first;       /* all weights that read the rows are Q8 (nmlp_gemm_weight_takes_int8) */
    bool int8;           /* so the rows are packed as int8 */
    bool packed_by_each; /* every thread packs the one row for itself */
    const float *x;      /* [s,k] */
    const nmlp_fused *fused;
    /* The operation: what it needs per team beyond the packed rows, its stages, and the weight they read first. */
    void (*carve)(nmlp_carver *carver, const struct nmlp_gemm_rows_run *run, const void *op);
    void (*block)(const nmlp_gemm_pass *pass);
    const nmlp_gemm_weight *first_weight;
    const void *op;
} nmlp_gemm_rows_run;

/* One thread's way through one block of rows. */
struct nmlp_gemm_pass {
    const nmlp_gemm_rows_run *run;
    nmlp_barrier *barrier; /* of the team */
    nmlp_gemm_worker *worker;
    const nmlp_gemm_scratch *scratch;
    const nmlp_gemm_tiles *x; /* the block, packed */
    nmlp_carver memory;       /* the team's, where `carve` began */
    int64_t rows;
    int64_t row; /* the first, of all */
};

/* How many threads are worth their start for s rows against weights of so many bytes and elements. */
int nmlp_gemm_rows_width(const nmlp_pool *pool, int64_t s, double weight_bytes, double weight_elems);
/* Blocking and memory for s rows; `inner` as in nmlp_gemm_blocking_make. The fields of the operation are set before.
 * Returns the workspace's bytes; with workspace NULL it only counts. */
size_t nmlp_gemm_rows_init(nmlp_gemm_rows_run *run, int64_t s, int64_t inner, int n_threads, void *workspace);
/* Bytes that do for s rows or fewer. */
size_t nmlp_gemm_rows_workspace_bytes(nmlp_gemm_rows_run *run, int64_t s, int64_t inner, int n_threads);
void nmlp_gemm_rows_run_all(nmlp_gemm_rows_run *run, nmlp_pool *pool);

/* Waits for the team. Memory need not wait meanwhile: `next`, from input k on, is the first weight of the stage after
 * the barrier and is prefetched. */
void nmlp_gemm_pass_wait(const nmlp_gemm_pass *pass, const nmlp_gemm_weight *next, int64_t k);
/* A stage of one product on the block's rows; the caller fills in operands and epilogue. */
nmlp_gemm_stage nmlp_gemm_pass_stage(const nmlp_gemm_pass *pass);

/* Threads that wait for others alternate between two buffers, so that one barrier does; one alone keeps its cache for
 * one. */
static inline int nmlp_gemm_teams_buffer(const nmlp_gemm_teams *teams, int64_t at) {
    return teams->threads > 1 ? (int)(at & 1) : 0;
}

#endif
