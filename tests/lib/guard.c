#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "lib/guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include "lib/testing.h"

/* The writable middle of a mapping whose first and last page cannot be touched. */
static char *map_between_guards(nmlp_guarded *guarded, size_t bytes, size_t *middle_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *middle_bytes = (bytes + page - 1) / page * page;
    guarded->map_bytes = *middle_bytes + 2 * page;
    guarded->map = mmap(NULL, guarded->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(guarded->map, MAP_FAILED);
    char *middle = (char *)guarded->map + page;
    if (*middle_bytes) assert_int_equal(mprotect(middle, *middle_bytes, PROT_READ | PROT_WRITE), 0);
    return middle;
}

void *nmlp_guard_end(nmlp_guarded *guarded, size_t bytes) {
    size_t middle_bytes;
    char *middle = map_between_guards(guarded, bytes, &middle_bytes);
    return middle + middle_bytes - bytes;
}

void *nmlp_guard_begin(nmlp_guarded *guarded, size_t bytes) {
    size_t middle_bytes;
    return map_between_guards(guarded, bytes, &middle_bytes);
}

void nmlp_guard_free(nmlp_guarded *guarded) { munmap(guarded->map, guarded->map_bytes); }
