#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/memory_limit.h"

static const size_t HUGE_BYTES = (size_t)2 << 20;

/* Maps `bytes` so that the block starts at a multiple of the huge page: maps more and cuts both ends off. */
static void *map_aligned(size_t bytes) {
    char *raw = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    size_t head = (HUGE_BYTES - (uintptr_t)raw % HUGE_BYTES) % HUGE_BYTES;
    if (head) munmap(raw, head);
    munmap(raw + head + bytes, HUGE_BYTES - head);
    return raw + head;
}

/* Whole pages, so that the cuts of map_aligned fall on page borders. */
static size_t mapped_bytes(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

void *nmlp_pages_new(size_t bytes, nmlp_err *err) {
    size_t total;
    void *block = NULL;
    if (nmlp_memory_check(bytes, err) != NMLP_OK) return NULL;
    if (!nmlp_add_overflows(bytes, HUGE_BYTES + 4096, &total)) block = map_aligned(mapped_bytes(bytes ? bytes : 1));
    if (!block) {
        nmlp_fail(err, NMLP_E_NOMEM, "out of memory: %zu bytes could not be mapped", bytes);
        return NULL;
    }
    /* Only whole huge pages: the tail would cost up to 2 MiB that nothing uses. Refusal is no error. */
    if (bytes >= HUGE_BYTES) madvise(block, bytes / HUGE_BYTES * HUGE_BYTES, MADV_HUGEPAGE);
    return block;
}

void nmlp_pages_free(void *block, size_t bytes) {
    if (block) munmap(block, mapped_bytes(bytes ? bytes : 1));
}
