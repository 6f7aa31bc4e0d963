#include "lib/grammar_walk.h"

#include <string.h>

bool grammar_walk(nmlp_str *out, nmlp_matcher *m, nmlp_rng *rng, size_t max_bytes) {
    int32_t state = nmlp_matcher_start(m);
    for (size_t n = 0; n < max_bytes; n++) {
        unsigned char allowed[256], closing[256];
        size_t n_allowed = 0, n_closing = 0;
        if (nmlp_matcher_accepts(m, state) && (nmlp_matcher_is_final(m, state) || nmlp_rng_below(rng, 4) == 0))
            return true;
        for (int b = 0; b < 256; b++) {
            if (nmlp_matcher_next(m, state, (unsigned char)b) < 0) continue;
            allowed[n_allowed++] = (unsigned char)b;
            if (b && strchr("\"]},", b)) closing[n_closing++] = (unsigned char)b;
        }
        if (n_allowed == 0) return false;
        bool close = n_closing > 0 && nmlp_rng_below(rng, 3) > 0;
        unsigned char byte = close ? closing[nmlp_rng_below(rng, n_closing)] : allowed[nmlp_rng_below(rng, n_allowed)];
        nmlp_str_putc(out, (char)byte);
        state = nmlp_matcher_next(m, state, byte);
    }
    return false;
}
