/* What the user may have meant by a word that is unknown. */
#ifndef NMLP_CLI_NEAREST_H
#define NMLP_CLI_NEAREST_H

#include <stddef.h>

/* Letters to insert, delete, replace or swap with their neighbour to get from `a` to `b`; what is above `limit` is
 * reported as limit + 1. */
int nmlp_edit_distance(const char *a, const char *b, int limit);

/* Keeps the nearest of the words it is shown. */
typedef struct nmlp_nearest {
    const char *word; /* what was typed */
    const char *best; /* NULL: nothing near enough */
    int distance;
} nmlp_nearest;

/* Accepts up to a third of the word's letters in edits, and at least one. */
nmlp_nearest nmlp_nearest_begin(const char *word);
void nmlp_nearest_try(nmlp_nearest *nearest, const char *candidate);

#endif
