/* What an answer must look like: response_format, grammar, tools. Each becomes a grammar. */
#include <string.h>

#include "base/json_write.h"
#include "grammar/json_schema.h"
#include "server/request.h"

static nmlp_status wrong(nmlp_err *err, const char *field, const char *expected) {
    return nmlp_fail_field(err, NMLP_E_ARG, field, "must be %s", expected);
}

/* One grammar only. */
static nmlp_status claim(nmlp_completion_request *r, const char *field, nmlp_err *err) {
    if (r->grammar_field)
        return nmlp_fail_field(err, NMLP_E_ARG, field, "does not go with `%s` in one request", r->grammar_field);
    r->grammar_field = field;
    return NMLP_OK;
}

static nmlp_status read_format(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *format = nmlp_json_get(r->doc.root, "response_format");
    const char *type = nmlp_json_string(nmlp_json_get(format, "type"));
    if (nmlp_json_is_null(format) || strcmp(type, "text") == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(claim(r, "response_format", err));
    nmlp_json_grammar_append(&r->grammar);
    if (strcmp(type, "json_object") == 0) {
        const nmlp_json *schema = nmlp_json_get(format, "schema"); /* as llama.cpp takes it */
        if (schema) return nmlp_json_schema_append(&r->grammar, "root", schema, "response_format", err);
        nmlp_str_puts(&r->grammar, "root ::= object\n");
        return nmlp_str_status(&r->grammar, err);
    }
    if (strcmp(type, "json_schema") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "response_format",
                               "has type \"%.40s\"; it must be text, json_object or json_schema", type);
    const nmlp_json *schema = nmlp_json_get(nmlp_json_get(format, "json_schema"), "schema");
    if (!schema) return nmlp_fail_field(err, NMLP_E_ARG, "response_format", "lacks json_schema.schema");
    return nmlp_json_schema_append(&r->grammar, "root", schema, "response_format", err);
}

static nmlp_status read_grammar(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *grammar = nmlp_json_get(r->doc.root, "grammar");
    if (nmlp_json_is_null(grammar)) return NMLP_OK;
    if (!nmlp_json_is_string(grammar)) return wrong(err, "grammar", "a string");
    NMLP_RETURN_IF_FAILED(claim(r, "grammar", err));
    nmlp_str_puts(&r->grammar, nmlp_json_string(grammar));
    return nmlp_str_status(&r->grammar, err);
}

/* "auto", "none", "required", or {"type": "function", "function": {"name": …}}. */
static nmlp_status read_choice(const nmlp_json *o, nmlp_tool_choice *choice, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(o, "tool_choice");
    const char *word = nmlp_json_string(value);
    *choice = (nmlp_tool_choice){.may_answer = true};
    if (nmlp_json_is_null(value) || strcmp(word, "auto") == 0) return NMLP_OK;
    choice->may_answer = false;
    if (strcmp(word, "required") == 0) return NMLP_OK;
    const nmlp_json *name = nmlp_json_get(nmlp_json_get(value, "function"), "name");
    choice->name = nmlp_json_string(name);
    if (nmlp_json_is_string(name)) return NMLP_OK;
    return wrong(err, "tool_choice", "auto, none, required or a function");
}

static nmlp_status read_tools(nmlp_completion_request *r, const char *template_source, nmlp_err *err) {
    const nmlp_json *o = r->doc.root, *tools = nmlp_json_get(o, "tools");
    const nmlp_json *parallel = nmlp_json_get(o, "parallel_tool_calls");
    nmlp_tool_choice choice;
    nmlp_json_writer w;
    if (nmlp_json_is_null(tools) || (nmlp_json_is_array(tools) && nmlp_json_count(tools) == 0)) return NMLP_OK;
    if (!nmlp_json_is_array(tools)) return wrong(err, "tools", "a list");
    if (strcmp(nmlp_json_string(nmlp_json_get(o, "tool_choice")), "none") == 0) return NMLP_OK;
    r->tool_format = nmlp_tool_format_of(template_source);
    if (r->tool_format == NMLP_TOOLS_NONE)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "tools",
                               "is not supported by this model: its template speaks of none, or calls them in a form "
                               "not known here");
    NMLP_RETURN_IF_FAILED(read_choice(o, &choice, err));
    choice.several = nmlp_json_is_null(parallel) || nmlp_json_bool(parallel);
    NMLP_RETURN_IF_FAILED(claim(r, "tools", err));
    r->calls_tools = true;
    nmlp_json_writer_init(&w, &r->tools_json);
    nmlp_json_put_value(&w, NULL, tools);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&r->tools_json, err));
    return nmlp_tool_grammar_append(&r->grammar, r->tool_format, tools, &choice, err);
}

nmlp_status nmlp_request_read_output(nmlp_completion_request *r, bool chat, const char *template_source,
                                     nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(read_format(r, err));
    NMLP_RETURN_IF_FAILED(read_grammar(r, err));
    if (chat) return read_tools(r, template_source, err);
    if (nmlp_json_count(nmlp_json_get(r->doc.root, "tools")) > 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "go with messages, not with a prompt");
    return NMLP_OK;
}
