/* Stop strings in text that comes in pieces: what may still become one is held back until that is known. */
#ifndef NMLP_SERVICE_STOP_TEXT_H
#define NMLP_SERVICE_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nmlp_stop_text {
    const char *const *strings; /* borrowed, none empty */
    size_t n_strings;
} nmlp_stop_text;

/* `text` holds all text so far, of which the first `released` bytes were given out and hold no stop string. Returns how
 * many bytes may be given out now. `found`: a stop string begins there, and nothing more may follow. */
size_t nmlp_stop_text_release(const nmlp_stop_text *stop, const char *text, size_t len, size_t released, bool *found);

#endif
