#include "plan/pack.h"

#include <string.h>

static int64_t cdiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t nmlp_pack_k_tiles(const nmlp_pack *p) { return cdiv(p->k, p->partitions); }
int64_t nmlp_pack_chunks(const nmlp_pack *p) { return cdiv(nmlp_pack_k_tiles(p), p->chunk_tiles); }
int64_t nmlp_pack_n_tiles(const nmlp_pack *p) { return cdiv(p->n, p->columns); }
int64_t nmlp_pack_tile_run(const nmlp_pack *p) { return p->planes * p->chunk_tiles * p->columns; }
int64_t nmlp_pack_rows(const nmlp_pack *p) { return p->k < p->partitions ? p->k : p->partitions; }
int64_t nmlp_pack_cols(const nmlp_pack *p) { return nmlp_pack_chunks(p) * nmlp_pack_n_tiles(p) * nmlp_pack_tile_run(p); }

int64_t nmlp_pack_col(const nmlp_pack *p, int64_t plane, int64_t k, int64_t n) {
    int64_t k_tile = k / p->partitions, chunk = k_tile / p->chunk_tiles;
    int64_t column_tile = chunk * nmlp_pack_n_tiles(p) + n / p->columns;
    int64_t tile = (column_tile * p->planes + plane) * p->chunk_tiles + k_tile % p->chunk_tiles;
    return tile * p->columns + n % p->columns;
}

void nmlp_pack_write(const nmlp_pack *p, int64_t plane, void *packed, const void *matrix, size_t elem_bytes) {
    unsigned char *to = packed;
    const unsigned char *from = matrix;
    int64_t cols = nmlp_pack_cols(p);
    for (int64_t k = 0; k < p->k; k++) {
        for (int64_t n = 0; n < p->n; n += p->columns) {
            int64_t run = p->n - n < p->columns ? p->n - n : p->columns;
            int64_t at = (k % p->partitions) * cols + nmlp_pack_col(p, plane, k, n);
            memcpy(to + (size_t)at * elem_bytes, from + (size_t)(k * p->n + n) * elem_bytes, (size_t)run * elem_bytes);
        }
    }
}
