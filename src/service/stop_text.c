#include "service/stop_text.h"

#include <string.h>

/* Whether the string stands at text + at, or could once more text has come. */
static bool may_begin(const char *string, const char *text, size_t len, size_t at, bool *whole) {
    size_t n = strlen(string), have = len - at;
    *whole = have >= n;
    return memcmp(string, text + at, *whole ? n : have) == 0;
}

size_t nmlp_stop_text_release(const nmlp_stop_text *stop, const char *text, size_t len, size_t released, bool *found) {
    *found = false;
    for (size_t at = released; at < len; at++) {
        bool held = false;
        for (size_t i = 0; i < stop->n_strings; i++) {
            bool whole;
            if (!may_begin(stop->strings[i], text, len, at, &whole)) continue;
            if (whole) {
                *found = true;
                return at;
            }
            held = true;
        }
        if (held) return at;
    }
    return len;
}
