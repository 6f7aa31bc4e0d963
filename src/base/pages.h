/* Large blocks straight from the operating system, in huge pages where it grants them: for data read end to end many
 * times, such as weights. */
#ifndef NMLP_BASE_PAGES_H
#define NMLP_BASE_PAGES_H

#include <stddef.h>

#include "base/status.h"

/* Zeroed, aligned to a page at least; pages are touched on first use. NULL with `err` set on failure. */
void *nmlp_pages_new(size_t bytes, nmlp_err *err);
/* `bytes` as given to nmlp_pages_new; NULL is accepted. */
void nmlp_pages_free(void *block, size_t bytes);

#endif
