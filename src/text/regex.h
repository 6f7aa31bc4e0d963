/* Regular expressions as tokenizer.json writes them, in the dialect of Oniguruma; the only user of PCRE2. */
#ifndef NMLP_TEXT_REGEX_H
#define NMLP_TEXT_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct nmlp_regex nmlp_regex; /* immutable once compiled; shareable */

/* `literal`: the pattern is a plain string. */
nmlp_status nmlp_regex_compile(nmlp_regex **out, const char *pattern, bool literal, nmlp_err *err);
void nmlp_regex_destroy(nmlp_regex *regex); /* NULL is fine */

/* What one thread needs while matching. */
typedef struct nmlp_regex_scratch {
    void *match_data;    /* pcre2_match_data */
    void *match_context; /* pcre2_match_context */
    void *jit_stack;     /* pcre2_jit_stack once a match needed more than the machine stack */
} nmlp_regex_scratch;

nmlp_status nmlp_regex_scratch_init(nmlp_regex_scratch *scratch, nmlp_err *err);
void nmlp_regex_scratch_fini(nmlp_regex_scratch *scratch);

typedef struct nmlp_span {
    size_t begin, end;
} nmlp_span;

/* The next match at or after `from` in valid UTF-8. */
nmlp_status nmlp_regex_find(const nmlp_regex *regex, nmlp_regex_scratch *scratch, const char *text, size_t len,
                            size_t from, nmlp_span *match, bool *found, nmlp_err *err);

#endif
