#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory_limit.h"

struct nmlp_arena_chunk {
    nmlp_arena_chunk *next;
    size_t capacity_bytes;
    _Alignas(NMLP_ALIGN_BYTES) unsigned char data[];
};

enum { ARENA_CHUNK_BYTES = 1 << 16, SMALL_PAGE_BYTES = 4096, LARGE_PAGE_BYTES = 2 << 20 };

bool nmlp_mul_overflows(size_t a, size_t b, size_t *product) { return __builtin_mul_overflow(a, b, product); }

bool nmlp_add_overflows(size_t a, size_t b, size_t *sum) { return __builtin_add_overflow(a, b, sum); }

static bool round_up(size_t bytes, size_t *rounded) {
    if (nmlp_add_overflows(bytes, NMLP_ALIGN_BYTES - 1, rounded)) return false;
    *rounded &= ~(size_t)(NMLP_ALIGN_BYTES - 1);
    return true;
}

/* Matrices are walked down their columns too: with large pages that does not miss the TLB at every row. A kernel that
 * has none says no. */
static void ask_for_large_pages(void *block, size_t bytes) {
    uintptr_t first = ((uintptr_t)block + SMALL_PAGE_BYTES - 1) & ~(uintptr_t)(SMALL_PAGE_BYTES - 1);
    uintptr_t end = ((uintptr_t)block + bytes) & ~(uintptr_t)(SMALL_PAGE_BYTES - 1);
#ifdef MADV_HUGEPAGE
    (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)first;
    (void)end;
#endif
}

static void *take(size_t count, size_t size, size_t *rounded, nmlp_err *err) {
    size_t bytes;
    if (nmlp_mul_overflows(count, size, &bytes) || !round_up(bytes ? bytes : 1, rounded)) {
        nmlp_fail(err, NMLP_E_NOMEM, "%zu elements of %zu bytes do not fit in memory", count, size);
        return NULL;
    }
    if (nmlp_memory_check(*rounded, err) != NMLP_OK) return NULL;
    void *block = aligned_alloc(NMLP_ALIGN_BYTES, *rounded);
    if (!block) {
        nmlp_fail(err, NMLP_E_NOMEM, "out of memory: %zu bytes could not be allocated", *rounded);
        return NULL;
    }
    if (*rounded >= 2 * (size_t)LARGE_PAGE_BYTES) ask_for_large_pages(block, *rounded);
    return block;
}

void *nmlp_mem_new(size_t count, size_t size, nmlp_err *err) {
    size_t bytes;
    void *block = take(count, size, &bytes, err);
    if (block) memset(block, 0, bytes);
    return block;
}

void *nmlp_mem_new_raw(size_t count, size_t size, nmlp_err *err) {
    size_t bytes;
    return take(count, size, &bytes, err);
}

void nmlp_mem_free(void *block) { free(block); }

nmlp_status nmlp_mem_grow(void **array, size_t *capacity, size_t need, size_t elem_bytes, nmlp_err *err) {
    if (need <= *capacity) return NMLP_OK;
    size_t grown = *capacity ? *capacity : 16;
    while (grown < need) {
        if (nmlp_mul_overflows(grown, 2, &grown))
            return nmlp_fail(err, NMLP_E_NOMEM, "an array of %zu elements does not fit in memory", need);
    }
    void *block = nmlp_mem_new(grown, elem_bytes, err);
    if (!block) return NMLP_E_NOMEM;
    if (*array) memcpy(block, *array, *capacity * elem_bytes);
    nmlp_mem_free(*array);
    *array = block;
    *capacity = grown;
    return NMLP_OK;
}

void nmlp_arena_init(nmlp_arena *arena) { *arena = (nmlp_arena){0}; }

void nmlp_arena_fini(nmlp_arena *arena) {
    nmlp_arena_chunk *chunk = arena->chunks;
    while (chunk) {
        nmlp_arena_chunk *next = chunk->next;
        nmlp_mem_free(chunk);
        chunk = next;
    }
    *arena = (nmlp_arena){0};
}

static nmlp_status add_chunk(nmlp_arena *arena, size_t bytes, nmlp_err *err) {
    size_t capacity = bytes > ARENA_CHUNK_BYTES ? bytes : ARENA_CHUNK_BYTES;
    size_t total;
    if (nmlp_add_overflows(capacity, sizeof(nmlp_arena_chunk), &total))
        return nmlp_fail(err, NMLP_E_NOMEM, "%zu bytes do not fit in memory", bytes);
    nmlp_arena_chunk *chunk = nmlp_mem_new(1, total, err);
    if (!chunk) return NMLP_E_NOMEM;
    chunk->capacity_bytes = capacity;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    arena->used_bytes = 0;
    arena->total_bytes += total;
    return NMLP_OK;
}

void *nmlp_arena_new(nmlp_arena *arena, size_t count, size_t size, nmlp_err *err) {
    size_t bytes;
    size_t rounded;
    if (nmlp_mul_overflows(count, size, &bytes) || !round_up(bytes, &rounded)) {
        nmlp_fail(err, NMLP_E_NOMEM, "%zu elements of %zu bytes do not fit in memory", count, size);
        return NULL;
    }
    if (!arena->chunks || arena->chunks->capacity_bytes - arena->used_bytes < rounded) {
        if (add_chunk(arena, rounded, err) != NMLP_OK) return NULL;
    }
    void *block = arena->chunks->data + arena->used_bytes;
    arena->used_bytes += rounded;
    return block;
}

char *nmlp_arena_strndup(nmlp_arena *arena, const char *text, size_t len, nmlp_err *err) {
    char *copy = nmlp_arena_new(arena, len + 1, 1, err);
    if (copy) memcpy(copy, text, len);
    return copy;
}

char *nmlp_arena_strdup(nmlp_arena *arena, const char *text, nmlp_err *err) {
    return nmlp_arena_strndup(arena, text, strlen(text), err);
}
