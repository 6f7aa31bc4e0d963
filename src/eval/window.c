#include "eval/window.h"

#include "base/ints.h"

bool nmlp_text_window_next(const nmlp_text_windows *w, nmlp_text_window *window) {
    bool first = window->end == 0;
    int64_t begin = first ? 0 : window->begin + w->stride;
    int64_t covered = window->end;
    if (covered >= w->n_tokens) return false;
    int64_t end = begin + w->ctx < w->n_tokens ? begin + w->ctx : w->n_tokens;
    if (w->drop_partial && end - begin < w->ctx) return false;
    int64_t score = nmlp_max(begin + 1, covered);
    if (score >= end) return false;
    *window = (nmlp_text_window){.begin = begin, .end = end, .score = score};
    return true;
}

int64_t nmlp_text_windows_scored(const nmlp_text_windows *w) {
    nmlp_text_window window = {0};
    int64_t n = 0;
    while (nmlp_text_window_next(w, &window)) n += window.end - window.score;
    return n;
}
