/* Pre-tokenizers: how text is cut into the pieces that the model works on. A list of steps, each cutting the pieces of
 * the one before it. */
#ifndef NMLP_TEXT_PRETOKENIZE_H
#define NMLP_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"
#include "text/regex.h"

enum { NMLP_SPLIT_STEPS_MAX = 16 };

/* What is done with the matches of a pattern; names as in tokenizer.json. */
typedef enum nmlp_split_behavior {
    NMLP_SPLIT_ISOLATED,
    NMLP_SPLIT_REMOVED,
    NMLP_SPLIT_MERGED_WITH_PREVIOUS,
    NMLP_SPLIT_MERGED_WITH_NEXT,
    NMLP_SPLIT_CONTIGUOUS
} nmlp_split_behavior;

/* Which pieces get a replacement character in front. */
typedef enum nmlp_metaspace_prepend {
    NMLP_METASPACE_NEVER,
    NMLP_METASPACE_FIRST, /* the piece at the start of the text */
    NMLP_METASPACE_ALWAYS
} nmlp_metaspace_prepend;

typedef struct nmlp_split_spec {
    const char *pattern; /* NULL: do not cut */
    bool literal;        /* the pattern is a plain string */
    nmlp_split_behavior behavior;
    bool invert;           /* what lies between the matches counts as match */
    bool prefix_space;     /* ByteLevel: a piece that does not start with a space gets one */
    const char *metaspace; /* Metaspace: what stands for a space; NULL: none */
    nmlp_metaspace_prepend metaspace_prepend;
} nmlp_split_spec;

/* GPT-2's pattern, which ByteLevel uses unless told otherwise. */
extern const char nmlp_split_gpt2_pattern[];

typedef struct nmlp_pretokenizer nmlp_pretokenizer; /* immutable once built; shareable */

nmlp_status nmlp_pretokenizer_create(nmlp_pretokenizer **out, nmlp_err *err);
void nmlp_pretokenizer_destroy(nmlp_pretokenizer *pre);
nmlp_status nmlp_pretokenizer_add(nmlp_pretokenizer *pre, const nmlp_split_spec *spec, nmlp_err *err);

/* Receives the pieces in order; never an empty one. The text is valid during the call only. */
typedef nmlp_status nmlp_piece_sink(void *ctx, const char *piece, size_t len, nmlp_err *err);

/* What one thread needs while cutting. */
typedef struct nmlp_pretokenize_run {
    const nmlp_pretokenizer *pre;
    nmlp_piece_sink *sink;
    void *sink_ctx;
    nmlp_regex_scratch regex;
    nmlp_str changed[NMLP_SPLIT_STEPS_MAX]; /* the piece as a step changed it */
    nmlp_str known[NMLP_SPLIT_STEPS_MAX];   /* the piece as the pattern sees it (nmlp_unicode_known_text) */
} nmlp_pretokenize_run;

nmlp_status nmlp_pretokenize_begin(nmlp_pretokenize_run *run, const nmlp_pretokenizer *pre, nmlp_piece_sink *sink,
                                   void *sink_ctx, nmlp_err *err);
/* `text` is valid UTF-8; `first`: it stands at the start of what is encoded. */
nmlp_status nmlp_pretokenize_feed(nmlp_pretokenize_run *run, const char *text, size_t len, bool first, nmlp_err *err);
void nmlp_pretokenize_end(nmlp_pretokenize_run *run);

#endif
