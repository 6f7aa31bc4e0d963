#include "trainium/neuron/pack.h"

#include <stdio.h>
#include <string.h>

#include "base/ints.h"

int64_t nmlp_pack_plane_k(const nmlp_pack *p, int64_t plane) {
    return plane > 0 && p->k_second > 0 ? p->k_second : p->k;
}
int64_t nmlp_pack_plane_rows(const nmlp_pack *p, int64_t plane) {
    return plane > 0 && p->k_second > 0 ? p->partitions_second : p->partitions;
}

int64_t nmlp_pack_k_tiles(const nmlp_pack *p) { return nmlp_ceil_div(p->k, p->partitions); }
int64_t nmlp_pack_chunks(const nmlp_pack *p) { return nmlp_ceil_div(nmlp_pack_k_tiles(p), p->chunk_tiles); }
int64_t nmlp_pack_n_tiles(const nmlp_pack *p) { return nmlp_ceil_div(p->n, p->columns); }

int64_t nmlp_pack_plane_tiles(const nmlp_pack *p, int64_t plane) {
    return p->k_second > 0 ? nmlp_ceil_div(nmlp_pack_plane_k(p, plane), nmlp_pack_plane_rows(p, plane))
                           : p->chunk_tiles;
}

int64_t nmlp_pack_plane_run(const nmlp_pack *p, int64_t plane) { return nmlp_pack_plane_tiles(p, plane) * p->columns; }
int64_t nmlp_pack_plane_start(const nmlp_pack *p, int64_t plane) { return plane * nmlp_pack_plane_run(p, 0); }

int64_t nmlp_pack_tile_run(const nmlp_pack *p) {
    return nmlp_pack_plane_run(p, 0) + (p->planes - 1) * nmlp_pack_plane_run(p, 1);
}

int64_t nmlp_pack_rows(const nmlp_pack *p) {
    int64_t rows = 0;
    for (int64_t plane = 0; plane < p->planes; plane++)
        rows = nmlp_max(rows, nmlp_min(nmlp_pack_plane_k(p, plane), nmlp_pack_plane_rows(p, plane)));
    return rows;
}

int64_t nmlp_pack_cols(const nmlp_pack *p) {
    return nmlp_pack_chunks(p) * nmlp_pack_n_tiles(p) * nmlp_pack_tile_run(p);
}

int64_t nmlp_pack_col(const nmlp_pack *p, int64_t plane, int64_t k, int64_t n) {
    int64_t k_tile = k / nmlp_pack_plane_rows(p, plane), tiles = nmlp_pack_plane_tiles(p, plane),
            chunk = k_tile / tiles;
    int64_t column_tile = chunk * nmlp_pack_n_tiles(p) + n / p->columns;
    return column_tile * nmlp_pack_tile_run(p) + nmlp_pack_plane_start(p, plane) + k_tile % tiles * p->columns +
           n % p->columns;
}

typedef void (*move_run)(unsigned char *packed, unsigned char *matrix, size_t bytes);

static void to_packed(unsigned char *packed, unsigned char *matrix, size_t bytes) { memcpy(packed, matrix, bytes); }
static void to_matrix(unsigned char *packed, unsigned char *matrix, size_t bytes) { memcpy(matrix, packed, bytes); }

static void for_each_run(const nmlp_pack *p, int64_t plane, unsigned char *packed, unsigned char *matrix,
                         size_t elem_bytes, move_run move) {
    int64_t cols = nmlp_pack_cols(p), plane_k = nmlp_pack_plane_k(p, plane);
    for (int64_t k = 0; k < plane_k; k++) {
        for (int64_t n = 0; n < p->n; n += p->columns) {
            int64_t run = p->n - n < p->columns ? p->n - n : p->columns;
            int64_t at = (k % nmlp_pack_plane_rows(p, plane)) * cols + nmlp_pack_col(p, plane, k, n);
            move(packed + (size_t)at * elem_bytes, matrix + (size_t)(k * p->n + n) * elem_bytes,
                 (size_t)run * elem_bytes);
        }
    }
}

void nmlp_pack_write(const nmlp_pack *p, int64_t plane, void *packed, const void *matrix, size_t elem_bytes) {
    for_each_run(p, plane, packed, (unsigned char *)(uintptr_t)matrix, elem_bytes, to_packed);
}

void nmlp_pack_read(const nmlp_pack *p, int64_t plane, void *matrix, const void *packed, size_t elem_bytes) {
    for_each_run(p, plane, (unsigned char *)(uintptr_t)packed, matrix, elem_bytes, to_matrix);
}

static const char *param_name(char out[NMLP_NAME_MAX], const char *tensor, const char *what) {
    snprintf(out, NMLP_NAME_MAX, "pack_%s_%s", tensor, what);
    return out;
}

int nmlp_pack_declare(nmlp_program *program, const char *name, nmlp_nc_dtype dtype, const nmlp_pack *p) {
    char key[NMLP_NAME_MAX];
    nmlp_program_add_param(program, param_name(key, name, "k"), p->k);
    nmlp_program_add_param(program, param_name(key, name, "n"), p->n);
    nmlp_program_add_param(program, param_name(key, name, "chunk"), p->chunk_tiles);
    nmlp_program_add_param(program, param_name(key, name, "columns"), p->columns);
    nmlp_program_add_param(program, param_name(key, name, "planes"), p->planes);
    nmlp_program_add_param(program, param_name(key, name, "partitions"), p->partitions);
    if (p->k_second > 0) {
        nmlp_program_add_param(program, param_name(key, name, "k2"), p->k_second);
        nmlp_program_add_param(program, param_name(key, name, "partitions2"), p->partitions_second);
    }
    return nmlp_program_add_tensor(program, name, NMLP_ROLE_WEIGHT, dtype, nmlp_pack_rows(p), nmlp_pack_cols(p));
}

bool nmlp_pack_find(const nmlp_program *program, const char *name, nmlp_pack *p) {
    char key[NMLP_NAME_MAX];
    p->k_second = p->partitions_second = 0;
    if (nmlp_program_param(program, param_name(key, name, "k2"), &p->k_second) &&
        !nmlp_program_param(program, param_name(key, name, "partitions2"), &p->partitions_second))
        return false;
    return nmlp_program_param(program, param_name(key, name, "k"), &p->k) &&
           nmlp_program_param(program, param_name(key, name, "n"), &p->n) &&
           nmlp_program_param(program, param_name(key, name, "chunk"), &p->chunk_tiles) &&
           nmlp_program_param(program, param_name(key, name, "columns"), &p->columns) &&
           nmlp_program_param(program, param_name(key, name, "planes"), &p->planes) &&
           nmlp_program_param(program, param_name(key, name, "partitions"), &p->partitions);
}
