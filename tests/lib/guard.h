/* Buffers with an unreadable page before and after: a stray access of any instruction, tile or vector, kills the test.
 */
#ifndef NMLP_TESTS_GUARD_H
#define NMLP_TESTS_GUARD_H

#include <stddef.h>

typedef struct nmlp_guarded {
    void *map;
    size_t map_bytes;
} nmlp_guarded;

/* `bytes` that end exactly at the page after... */
void *nmlp_guard_end(nmlp_guarded *guarded, size_t bytes);
/* ...or begin exactly at the page before. */
void *nmlp_guard_begin(nmlp_guarded *guarded, size_t bytes);
void nmlp_guard_free(nmlp_guarded *guarded);

#endif
