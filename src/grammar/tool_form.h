/* How the known forms of tool calls are spelled; shared by the grammar that writes them and the reader. */
#ifndef NMLP_GRAMMAR_TOOL_FORM_H
#define NMLP_GRAMMAR_TOOL_FORM_H

#include "grammar/tool_calls.h"

typedef struct nmlp_tool_form {
    /* Where calls begin in the text; its first character does not come again in it. NULL: they are the whole answer. */
    const char *open;
    const char *lead; /* what the reader takes a name to follow, in every call */
    /* Behind `open`: calls with `next` between them, then `last`. A call: before, its name, between, arguments, after.
     * NULL: nothing. */
    const char *before, *between, *after, *next, *last;
    /* In the notation of grammars, NULL: nothing. In front of the first call, of `between` and of `after`. */
    const char *first, *id_before_arguments, *id_after_arguments;
} nmlp_tool_form;

const nmlp_tool_form *nmlp_tool_form_of(nmlp_tool_format format);

#endif
