/* Calls of tools inside an answer: the grammar that makes a model write them, and reading them while they come.
 *
 * Forms of published templates that are known:
 *   tags (Hermes, Qwen)   <tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>, any number behind some text
 *   object (Llama 3.x)    {"name": "f", "parameters": {…}} as the whole answer
 *   list (Mistral v3)     [TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "…"}, …]
 *   args (Mistral v11)    [TOOL_CALLS]f[CALL_ID]…[ARGS]{…}, any number; some templates have no [CALL_ID]
 *   fence (DeepSeek R1)
 * <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{…}\n```<｜tool▁call▁end｜>… plain
 * (DeepSeek V3.1) the same with f<｜tool▁sep｜>{…} between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>
 *
 * The marks of the last four are special tokens of their vocabularies, which are text in such an answer. */
#ifndef NMLP_GRAMMAR_TOOL_CALLS_H
#define NMLP_GRAMMAR_TOOL_CALLS_H

#include <stdbool.h>

#include "base/json.h"
#include "base/str.h"

typedef enum nmlp_tool_format {
    NMLP_TOOLS_NONE,
    NMLP_TOOLS_TAGS,
    NMLP_TOOLS_OBJECT,
    NMLP_TOOLS_LIST,
    NMLP_TOOLS_ARGS,
    NMLP_TOOLS_ARGS_ID, /* with [CALL_ID] */
    NMLP_TOOLS_FENCE,
    NMLP_TOOLS_PLAIN
} nmlp_tool_format;

/* The form of a chat template's source; NULL has none. */
nmlp_tool_format nmlp_tool_format_of(const char *template_source);
/* Whether the template has a form for calls but no place for the list of tools: the model must be told otherwise. */
bool nmlp_tool_format_lists_none(const char *template_source);
/* Whether a special token with this text is a mark of some form. */
bool nmlp_tool_is_mark(const char *text, size_t len);

typedef struct nmlp_tool_choice {
    bool may_answer;  /* without a call */
    bool several;     /* calls, where the form has a place for them */
    const char *name; /* of the only tool that may be called; NULL: any */
} nmlp_tool_choice;

/* Appends a grammar whose root is an answer. `tools` is OpenAI's list. Errors name "tools" or "tool_choice". */
nmlp_status nmlp_tool_grammar_append(nmlp_str *out, nmlp_tool_format format, const nmlp_json *tools,
                                     const nmlp_tool_choice *choice, nmlp_err *err);

/* ---- reading (tool_reader.c) ---- */

typedef enum nmlp_tool_part_kind {
    NMLP_TOOL_TEXT,     /* text of the answer itself */
    NMLP_TOOL_NAME,     /* a call begins: the tool's name */
    NMLP_TOOL_ARGUMENTS /* the next piece of its arguments, which are JSON as a whole */
} nmlp_tool_part_kind;

typedef void nmlp_tool_on_part(void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len);

typedef struct nmlp_tool_reader {
    nmlp_tool_format format;
    nmlp_str held; /* not given out yet */
    int place;     /* private */
    int depth;     /* of the arguments */
    bool quoted, escaped;
    bool begun; /* some text of the answer was given out */
    int n_calls;
} nmlp_tool_reader;

void nmlp_tool_reader_init(nmlp_tool_reader *reader, nmlp_tool_format format);
void nmlp_tool_reader_fini(nmlp_tool_reader *reader);
/* More of an answer that follows the grammar. */
void nmlp_tool_reader_push(nmlp_tool_reader *reader, const char *text, size_t len, nmlp_tool_on_part *on_part,
                           void *ctx);
/* The answer is over: gives out what was held. */
void nmlp_tool_reader_end(nmlp_tool_reader *reader, nmlp_tool_on_part *on_part, void *ctx);

#endif
