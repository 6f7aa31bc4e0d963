/* How a long text is cut into windows that fit a model, and which tokens of each are scored.
 *
 * Windows begin every `stride` tokens and hold `ctx`. Each token is scored once, by the first window that has it past
 * its first place: with stride = ctx the first token of a window is never scored; with a smaller stride every token but
 * the text's first is, and has at least ctx - stride tokens before it (the sliding window of Hugging Face's perplexity
 * guide). */
#ifndef NMLP_EVAL_WINDOW_H
#define NMLP_EVAL_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nmlp_text_windows {
    int64_t n_tokens;
    int64_t ctx;       /* 2 or more */
    int64_t stride;    /* 1..ctx */
    bool drop_partial; /* leave out a last window that is not full */
} nmlp_text_windows;

typedef struct nmlp_text_window {
    int64_t begin; /* first token */
    int64_t end;   /* one past the last */
    int64_t score; /* tokens score..end-1 are scored; > begin */
} nmlp_text_window;

/* The next window; start with a zeroed one. False when the text is used up (also when nothing more can be scored). */
bool nmlp_text_window_next(const nmlp_text_windows *windows, nmlp_text_window *window);
/* Tokens that will be scored in all. */
int64_t nmlp_text_windows_scored(const nmlp_text_windows *windows);

#endif
