/* Memory: checked allocation and arenas.
 *
 * Every block is zeroed (but nmlp_mem_new_raw's) and aligned to 64 bytes (one cache line, one AVX-512 register). An
 * arena hands out memory that is released all at once; it is the owner of everything that lives as long as a model, a
 * program or a plan. Neither is safe to share between threads without a lock. */
#ifndef NMLP_BASE_MEM_H
#define NMLP_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { NMLP_ALIGN_BYTES = 64 };

/* count*size bytes, or NULL with `err` set. Free with nmlp_mem_free. */
void *nmlp_mem_new(size_t count, size_t size, nmlp_err *err);
/* The same, not zeroed: for a large block that is written before it is read, by the threads of a pool, whose pages then
 * come to all of them at once. */
void *nmlp_mem_new_raw(size_t count, size_t size, nmlp_err *err);
void nmlp_mem_free(void *block);

/* Grows an array to hold at least `need` elements (doubling); the old block is kept on failure. */
nmlp_status nmlp_mem_grow(void **array, size_t *capacity, size_t need, size_t elem_bytes, nmlp_err *err);

/* a*b and a+b that say when they overflow. */
bool nmlp_mul_overflows(size_t a, size_t b, size_t *product);
bool nmlp_add_overflows(size_t a, size_t b, size_t *sum);

typedef struct nmlp_arena_chunk nmlp_arena_chunk;
typedef struct nmlp_arena {
    nmlp_arena_chunk *chunks;
    size_t used_bytes;  /* of the newest chunk */
    size_t total_bytes; /* of all chunks */
} nmlp_arena;

void nmlp_arena_init(nmlp_arena *arena);
void nmlp_arena_fini(nmlp_arena *arena);
void *nmlp_arena_new(nmlp_arena *arena, size_t count, size_t size, nmlp_err *err);
char *nmlp_arena_strdup(nmlp_arena *arena, const char *text, nmlp_err *err);
char *nmlp_arena_strndup(nmlp_arena *arena, const char *text, size_t len, nmlp_err *err);

#endif
