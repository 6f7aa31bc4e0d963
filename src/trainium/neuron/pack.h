/* How our kernels want a weight matrix in HBM: cut into tiles, the tiles in the order in which they are used.
 *
 * W[K,N] becomes [P, …]: row p of the packed tensor holds, one after the other, row p of every tile. A tile has P rows
 * of W (fewer where K is cut more evenly so) and `columns` columns; tiles are ordered by K chunk, then by column, then
 * by plane, then by row inside the chunk. So any number of neighbouring column tiles is one contiguous run per
 * partition, and one DMA moves rows of many KiB where the row-major matrix would give runs of a few hundred bytes. Two
 * planes (gate and up) interleave two matrices with as many columns; where their K differ, neither is cut into chunks.
 * The last tile of each axis is filled with zeros. Packing happens once, when a checkpoint is loaded. */
#ifndef NMLP_TRAINIUM_NEURON_PACK_H
#define NMLP_TRAINIUM_NEURON_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "trainium/neuron/program.h"

typedef struct nmlp_pack {
    int64_t k, n;              /* of the matrix */
    int64_t partitions;        /* rows of a tile: at most those of the machine */
    int64_t chunk_tiles;       /* tiles of K in a chunk; all of them where K is not cut */
    int64_t columns;           /* of a tile */
    int64_t planes;            /* 1, or 2 for a pair */
    int64_t k_second;          /* K of the second plane where it is another, with tiles of … */
    int64_t partitions_second; /* … so many rows; 0: the same as the first */
} nmlp_pack;

/* K of a plane, the rows of its tiles, and how many of those a chunk has. */
int64_t nmlp_pack_plane_k(const nmlp_pack *pack, int64_t plane);
int64_t nmlp_pack_plane_rows(const nmlp_pack *pack, int64_t plane);
int64_t nmlp_pack_plane_tiles(const nmlp_pack *pack, int64_t plane);
/* Of the first plane. */
int64_t nmlp_pack_k_tiles(const nmlp_pack *pack);
int64_t nmlp_pack_chunks(const nmlp_pack *pack);
int64_t nmlp_pack_n_tiles(const nmlp_pack *pack);
/* Elements per partition of one column tile (all planes, one chunk of K). */
int64_t nmlp_pack_tile_run(const nmlp_pack *pack);
/* Elements of that before a plane, and of the plane itself. */
int64_t nmlp_pack_plane_start(const nmlp_pack *pack, int64_t plane);
int64_t nmlp_pack_plane_run(const nmlp_pack *pack, int64_t plane);
/* The packed tensor is [rows, cols]. */
int64_t nmlp_pack_rows(const nmlp_pack *pack);
int64_t nmlp_pack_cols(const nmlp_pack *pack);
/* Where element (k, n) of a plane lies: row k % (rows of the plane's tiles), and this column. */
int64_t nmlp_pack_col(const nmlp_pack *pack, int64_t plane, int64_t k, int64_t n);
/* Copies a row-major [K,N] matrix of `elem_bytes` elements into its plane of a zeroed packed tensor. */
void nmlp_pack_write(const nmlp_pack *pack, int64_t plane, void *packed, const void *matrix, size_t elem_bytes);
/* The way back: reads a plane into a row-major [K,N] matrix. */
void nmlp_pack_read(const nmlp_pack *pack, int64_t plane, void *matrix, const void *packed, size_t elem_bytes);

/* A program says how a tensor is packed through parameters named after it: pack_<tensor>_k, _n, _chunk, _columns,
 * _planes, _partitions and, where the planes differ, _k2 and _partitions2. */
int nmlp_pack_declare(nmlp_program *program, const char *name, nmlp_nc_dtype dtype, const nmlp_pack *pack);
/* False for a tensor that is not packed. */
bool nmlp_pack_find(const nmlp_program *program, const char *name, nmlp_pack *pack);

/* The norm's weights as a tensor of their own, where matrices are codes of FP8: weight k in row k mod rows of column
 * k / rows. */
#define NMLP_GAIN_TENSOR "norm"

#endif
