/* Perplexity of a text under a model. Natural logarithms throughout.
 *
 * word_ppl and bits_per_byte are lm-evaluation-harness's: exp(nll_sum / words) and nll_sum / bytes / ln 2, with words
 * the pieces between white space and bytes the UTF-8 length of the text the windows cover (all of it, or what its first
 * tokens spell). */
#ifndef NMLP_EVAL_PERPLEXITY_H
#define NMLP_EVAL_PERPLEXITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "base/str.h"
#include "engine/engine.h"
#include "text/tokenizer.h"

enum { NMLP_PPL_CTX_DEFAULT = 2048 };

typedef struct nmlp_ppl_options {
    int64_t ctx;        /* window; 0: the model's maximum, at most NMLP_PPL_CTX_DEFAULT */
    int64_t stride;     /* 0: ctx, no overlap */
    int64_t max_tokens; /* use the first tokens only; 0: all */
    bool bos;           /* the begin-of-text token in front, once, before the text */
    bool parse_special; /* special tokens spelled in the text become their ids; else they are text */
    bool rolling;       /* the harness's rolling windows behind a prefix token; every token of the text is scored */
    bool keep_partial;  /* score a last window that is not full too, where windows do not overlap (else it always is) */
    const char *stage;  /* name for the progress; may be NULL */
    const nmlp_progress *progress; /* may be NULL */
} nmlp_ppl_options;

typedef struct nmlp_ppl_result {
    int64_t ctx; /* as used */
    int64_t stride;
    int64_t n_tokens;  /* of the text used */
    int64_t n_covered; /* up to the end of the last window */
    int64_t n_scored;
    int64_t n_run; /* positions computed, overlaps counted again */
    int64_t n_words;
    int64_t n_bytes;
    double nll_sum;
    double nll; /* per scored token */
    double ppl;
    double word_ppl;
    double bits_per_byte;
    double seconds;
} nmlp_ppl_result;

/* A data set whose protocol in the SVD papers is the default one here: wikitext2, ptb, c4. */
typedef struct nmlp_ppl_preset {
    const char *name;
    const char *about; /* how the text file is made */
} nmlp_ppl_preset;

const nmlp_ppl_preset *nmlp_ppl_preset_find(const char *name); /* NULL: unknown */

/* Fills ctx and stride with their defaults and refuses what the model cannot do. */
nmlp_status nmlp_ppl_options_check(nmlp_ppl_options *options, const nmlp_config *config, nmlp_err *err);

nmlp_status nmlp_perplexity(nmlp_ppl_result *result, const nmlp_engine *engine, const nmlp_tokenizer *tokenizer,
                            const char *text, size_t len, const nmlp_ppl_options *options, nmlp_err *err);
/* The same for ids; words and bytes stay 0, and what depends on them NaN. */
nmlp_status nmlp_perplexity_ids(nmlp_ppl_result *result, const nmlp_engine *engine, const int32_t *ids, int64_t n,
                                const nmlp_ppl_options *options, nmlp_err *err);

/* The protocol in words. */
void nmlp_ppl_describe(nmlp_str *out, const nmlp_ppl_options *options);

/* Pieces of UTF-8 text between white space. */
int64_t nmlp_count_words(const char *text, size_t len);

/* How a long text is cut into windows that fit a model, and which tokens of each are scored.
 *
 * Windows begin every `stride` tokens and hold `ctx`. Each token is scored once, by the first window that has it past
 * its first place: with stride = ctx the first token of a window is never scored; with a smaller stride every token but
 * the text's first is, and has at least ctx - stride tokens before it (the sliding window of Hugging Face's perplexity
 * guide).
 *
 * Rolling windows are lm-evaluation-harness's: token 0 is a prefix that is not of the text; every other token is scored
 * once, ctx at a time, each window with the token before it; the last window begins early enough to be full. */
typedef struct nmlp_text_windows {
    int64_t n_tokens;
    int64_t ctx;       /* 2 or more */
    int64_t stride;    /* 1..ctx */
    bool drop_partial; /* leave out a last window that is not full */
    bool rolling;      /* as below, instead of strides */
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
