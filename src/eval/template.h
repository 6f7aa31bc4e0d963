/* Small text templates: "Question: {question}\nAnswer:". A name in braces is replaced by its value, which filters may
 * change on the way: {ctx_b|capitalize}, {question|after:_|strip}. "{{" stands for a brace.
 *
 * Filters: strip (ASCII white space at both ends), capitalize (first letter up, the rest down; ASCII), before:X and
 * after:X (what stands before or after the first X, which must be there), hellaswag (the harness's cleaning of WikiHow
 * marks). */
#ifndef NMLP_EVAL_TEMPLATE_H
#define NMLP_EVAL_TEMPLATE_H

#include <stdbool.h>

#include "base/status.h"
#include "base/str.h"

enum { NMLP_TEMPLATE_NAME_MAX = 64 };

/* The value of a name, valid until the next call; fails (saying why) where there is none. */
typedef nmlp_status nmlp_template_lookup(void *ctx, const char *name, const char **value, nmlp_err *err);

/* Appends the expansion. */
nmlp_status nmlp_template_expand(nmlp_str *out, const char *text, nmlp_template_lookup *lookup, void *ctx,
                                 nmlp_err *err);
/* Refuses unclosed braces and unknown filters. */
nmlp_status nmlp_template_check(const char *text, nmlp_err *err);
/* Whether the template asks for `name`. */
bool nmlp_template_uses(const char *text, const char *name);

#endif
