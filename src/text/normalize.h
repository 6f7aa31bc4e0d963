/* Normalisers: what is done to text before it is cut into pieces. A list of steps, run in order. */
#ifndef NMLP_TEXT_NORMALIZE_H
#define NMLP_TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "base/str.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/unicode.h"

typedef enum nmlp_normalizer_kind {
    NMLP_NORMALIZER_FORM, /* NFC, NFD, NFKC, NFKD */
    NMLP_NORMALIZER_LOWERCASE,
    NMLP_NORMALIZER_STRIP,         /* white space at the ends */
    NMLP_NORMALIZER_REPLACE,       /* every match of a pattern */
    NMLP_NORMALIZER_PREPEND,       /* a string before text that is not empty */
    NMLP_NORMALIZER_PRECOMPILED,   /* a charsmap as `tokenizers` applies it: grapheme by grapheme, shortest match */
    NMLP_NORMALIZER_SENTENCEPIECE, /* a charsmap as sentencepiece applies it: longest match, and white space */
} nmlp_normalizer_kind;

/* One step. Strings are borrowed while it is added. */
typedef struct nmlp_normalizer_spec {
    nmlp_normalizer_kind kind;
    nmlp_unicode_form form;
    bool left, right;    /* STRIP: which ends */
    const char *pattern; /* REPLACE */
    bool literal;        /* REPLACE: the pattern is a plain string */
    const char *content; /* REPLACE, PREPEND */
    const void *charsmap;
    size_t charsmap_len;
    bool add_prefix;         /* SENTENCEPIECE: a space in front */
    bool remove_extra_space; /* SENTENCEPIECE: one space between words, none at the ends */
    bool escape_space;       /* SENTENCEPIECE: U+2581 for the space */
} nmlp_normalizer_spec;

typedef struct nmlp_normalizer nmlp_normalizer; /* immutable once built; shareable */

nmlp_status nmlp_normalizer_create(nmlp_normalizer **out, nmlp_err *err);
void nmlp_normalizer_destroy(nmlp_normalizer *normalizer); /* NULL is fine */
nmlp_status nmlp_normalizer_add(nmlp_normalizer *normalizer, const nmlp_normalizer_spec *spec, nmlp_err *err);
bool nmlp_normalizer_is_empty(const nmlp_normalizer *normalizer);

/* `out` gets the normalised form of valid UTF-8. */
nmlp_status nmlp_normalizer_run(const nmlp_normalizer *normalizer, const char *text, size_t len, nmlp_str *out,
                                nmlp_err *err);

#endif
