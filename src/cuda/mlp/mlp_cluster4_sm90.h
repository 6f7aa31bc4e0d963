/* The MLP of 5 to 32 rows in one launch, as data for a kernel of clusters of four blocks (quad.cu; Hopper).
 *
 * Products Y [S,N] = X [S,K] W^T follow one another. W's rows go by clusters, and of a cluster's rows each of its four
 * blocks takes a quarter of K: so a block reads a quarter of X, keeps it in shared memory, and partial sums meet in the
 * cluster's shared memory, never in L2. Four warps of a block bring weights into a ring, slots of some octets of rows
 * by 64 columns, product after product, never waiting for another block; eight warps multiply, each slots of its own.
 *
 *   basis  X V^T            results go to all clusters through L2
 *   pair   silu(gate) * up  results stay in the cluster's shared memory: a cluster has all of S and `cluster_rows`
 * neighbouring columns of I part   of down's first factor, the columns of K that the cluster has: sums over clusters
 * meet in L2, in f32 or, of more than 16 rows, two in a word down   its second factor
 *
 * Dense matrices leave out the first or the last product. Words between clusters are awaited one by one: pairs of bf16
 * in memory set to a word no result has (two sets of it: a launch uses one and clears the other), sums by a bit that
 * alternates from launch to launch: f32 by their lowest, which is cut off by the reader.
 *
 * Columns of X and W are padded with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_H
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_H

#include <stddef.h>
#include <stdint.h>

enum {
    NMLP_CUDA_QUAD_BLOCKS = 4,  /* of a cluster */
    NMLP_CUDA_QUAD_WARPS = 8,   /* of a block, that multiply */
    NMLP_CUDA_QUAD_COPIERS = 4, /* warps that copy */
    NMLP_CUDA_QUAD_SLOTS_MAX = 48,
    NMLP_CUDA_QUAD_OCTET = 8, /* rows: n of the mma */
    NMLP_CUDA_QUAD_OCTETS_MAX =
        6, /* of a slot: what registers hold sums for; code for more does not stay in the instruction cache */
    NMLP_CUDA_QUAD_COLS = 64,         /* of a slot */
    NMLP_CUDA_QUAD_X_SKEW_BYTES = 16, /* added to rows of X, so that eight rows meet all banks */
    NMLP_CUDA_QUAD_JOIN_BYTES = 1024, /* per token, in the place of X: where warps add what clusters have of a part */
    NMLP_CUDA_QUAD_MAPS_MAX = 5,      /* basis, gate, up, and two for down */
    NMLP_CUDA_QUAD_MAP_BYTES = 128
};

typedef enum nmlp_cuda_quad_kind {
    NMLP_CUDA_QUAD_BASIS,
    NMLP_CUDA_QUAD_PAIR,
    NMLP_CUDA_QUAD_PART,
    NMLP_CUDA_QUAD_DOWN
} nmlp_cuda_quad_kind;

/* Rows a product reads; the part's are in the cluster's shared memory. */
typedef struct nmlp_cuda_quad_input {
    const void *x; /* bf16 [S, pitch]; where it is in a set, of set 0 */
    int32_t pitch;
    int32_t k;           /* columns */
    int32_t from_before; /* there before the launch, in no set */
} nmlp_cuda_quad_input;

typedef struct nmlp_cuda_quad_product {
    const void *map[2]; /* of W for the copy engine, boxes of box_octets by 64 columns; the second: up, where the first
                           is gate */
    nmlp_cuda_quad_input in[2];
    int32_t kind;
    int32_t n_factors;
    int32_t same_x;       /* both factors read the same rows */
    int32_t n;            /* results that are not padding */
    int32_t rows;         /* with padding, a multiple of 8 */
    int32_t blocks;       /* of 64 columns: K, of the longer factor; of the part: what a cluster has */
    int32_t cluster_rows; /* of a cluster; of the part: all */
    int32_t
        n_passes; /* a cluster's rows in turns of row_warps * slot_octets octets; of the part: the rows of 32 warps */
    int32_t slot_octets;
    int32_t box_octets;
    int32_t row_shift;  /* log2 of row_warps: warps that differ in rows */
    int32_t side_shift; /* log2 of row_warps * n_factors; the others differ in K */
    void *out;          /* bf16 words [S, out_pitch] of set 0, or f32 in the last */
    int32_t out_pitch;
    int32_t last;
} nmlp_cuda_quad_product;

typedef struct nmlp_cuda_quad_program {
    nmlp_cuda_quad_product product[4];
    int32_t n_products;
    int32_t s;
    int32_t n_clusters;
    int32_t n_sources; /* clusters that have columns of the part */
    int32_t window;    /* columns of the part a cluster has */
    int32_t n_slots;
    int32_t slot_bytes;
    int32_t sums_bytes;
    int32_t x_bytes;
    int32_t act_pitch;   /* bytes */
    int32_t n_under_way; /* slots being copied at a time, at most */
    unsigned *tickets;   /* every block of a launch takes one, which tells launches apart */
    char *exchange;      /* set 0, then set 1 */
    int64_t set_bytes;   /* a multiple of 16 */
    char *maps;          /* all of them, one after the other */
    int32_t n_maps;
    void *parts; /* [octets of rows][n_sources][tokens by 8, as registers hold them]: f32, or two in a word
                    (quad_packed.h) */
} nmlp_cuda_quad_program;

#ifdef __cplusplus
extern "C" {
#endif

/* 8, 16 or 32. */
int32_t nmlp_cuda_quad_tokens(int32_t s);
size_t nmlp_cuda_quad_shared_bytes(const nmlp_cuda_quad_program *p);
/* Clusters that are resident together with that much shared memory per block; 0 where the code or the chip has none. */
int nmlp_cuda_quad_clusters(size_t shared_bytes);
/* Returns a cudaError_t. */
int nmlp_cuda_quad_launch(const nmlp_cuda_quad_program *p, void *stream);

#ifdef __cplusplus
}
#endif

#endif
