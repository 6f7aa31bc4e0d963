#include "lib/alloc_count.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The wrapped functions have no other way to reach their counter. */
static atomic_int n_allocations, fails_at;

/* Counts; true where this one is to fail. */
static int fails(void) { return ++n_allocations == atomic_load(&fails_at); }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset);

void *__wrap_malloc(size_t bytes) { return fails() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }

void *__wrap_realloc(void *block, size_t bytes) { return fails() ? NULL : __real_realloc(block, bytes); }

void *__wrap_aligned_alloc(size_t align, size_t bytes) { return fails() ? NULL : __real_aligned_alloc(align, bytes); }

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    n_allocations++;
    return __real_mmap(at, bytes, protection, flags, file, offset);
}

void nmlp_test_fail_allocation(int n) { atomic_store(&fails_at, n > 0 ? atomic_load(&n_allocations) + n : 0); }

int nmlp_test_allocations(void) { return atomic_load(&n_allocations); }
