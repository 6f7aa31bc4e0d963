/* The messages of a chat, as this program and as the model's template read them. */
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"
#include "server/request.h"

/* A string, or a list of parts {"type": "text", "text": …} that are put together. */
static nmlp_status read_content(nmlp_completion_request *r, size_t i, const nmlp_json *content, nmlp_err *err) {
    if (nmlp_json_is_string(content)) {
        r->messages[i].content = nmlp_json_string(content);
        return NMLP_OK;
    }
    if (!nmlp_json_is_array(content))
        return nmlp_fail_field(err, NMLP_E_ARG, "messages", "[%zu].content must be a string or a list of parts", i);
    for (const nmlp_json *part = nmlp_json_first(content); part; part = nmlp_json_next(part)) {
        const nmlp_json *type = nmlp_json_get(part, "type"), *text = nmlp_json_get(part, "text");
        if (strcmp(nmlp_json_string(type), "text") != 0 || !nmlp_json_is_string(text))
            return nmlp_fail_field(err, NMLP_E_ARG, "messages",
                                   "[%zu].content has a part of type \"%s\"; only text is "
                                   "taken",
                                   i, nmlp_json_string(type));
        nmlp_str_puts(&r->texts[i], nmlp_json_string(text));
    }
    r->messages[i].content = nmlp_str_text(&r->texts[i]);
    return nmlp_str_status(&r->texts[i], err);
}

/* Arguments of calls come as text and go to templates as what they say. */
static void put_tool_calls(nmlp_json_writer *w, const nmlp_json *calls) {
    nmlp_json_begin_array(w, "tool_calls");
    for (const nmlp_json *call = nmlp_json_first(calls); call; call = nmlp_json_next(call)) {
        const nmlp_json *function = nmlp_json_get(call, "function");
        const char *arguments = nmlp_json_string(nmlp_json_get(function, "arguments"));
        nmlp_json_doc parsed = {0};
        nmlp_json_begin_object(w, NULL);
        for (const nmlp_json *m = nmlp_json_first(call); m; m = nmlp_json_next(m))
            if (m != function) nmlp_json_put_value(w, nmlp_json_key(m), m);
        nmlp_json_begin_object(w, "function");
        for (const nmlp_json *m = nmlp_json_first(function); m; m = nmlp_json_next(m)) {
            bool text = strcmp(nmlp_json_key(m), "arguments") == 0 && nmlp_json_is_string(m);
            bool valid = text && nmlp_json_parse(&parsed, arguments, strlen(arguments), "arguments", NULL) == NMLP_OK;
            nmlp_json_put_value(w, nmlp_json_key(m), valid ? parsed.root : m);
            nmlp_json_free(&parsed);
        }
        nmlp_json_end_object(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

/* Role and content as they were read, other members as they came; `m` may be NULL. */
static void put_message(nmlp_json_writer *w, const nmlp_json *m, const nmlp_chat_message *read) {
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "role", read->role);
    if (m && nmlp_json_is_null(nmlp_json_get(m, "content")))
        nmlp_json_put_null(w, "content");
    else
        nmlp_json_put_string(w, "content", read->content);
    for (const nmlp_json *v = m ? nmlp_json_first(m) : NULL; v; v = nmlp_json_next(v)) {
        const char *key = nmlp_json_key(v);
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0) continue;
        if (strcmp(key, "tool_calls") == 0 && nmlp_json_is_array(v))
            put_tool_calls(w, v);
        else
            nmlp_json_put_value(w, key, v);
    }
    nmlp_json_end_object(w);
}

static nmlp_status read_role(nmlp_completion_request *r, size_t i, const nmlp_json *m, bool tools, nmlp_err *err) {
    const char *role = nmlp_json_string(nmlp_json_get(m, "role"));
    bool tool = strcmp(role, "tool") == 0;
    if (strcmp(role, "developer") == 0) role = "system"; /* its newer name */
    if (tool && !tools)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "messages",
                               "[%zu].role is \"tool\"; the model has no template that speaks of tools", i);
    if (!tool && strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "messages",
                               "[%zu].role is \"%s\"; it must be system, user, assistant or tool", i, role);
    r->messages[i].role = role;
    return NMLP_OK;
}

/* What a model is told of its tools where its template has no place for them: behind the system's words, or as such. */
static nmlp_status describe_tools(nmlp_completion_request *r, const char *system, nmlp_err *err) {
    nmlp_str *out = &r->system;
    if (system) nmlp_str_printf(out, "%s\n\n", system);
    nmlp_str_puts(out, "You can call functions. Each line is one of them, with a JSON Schema of its arguments:\n");
    for (const nmlp_json *t = nmlp_json_first(nmlp_json_get(r->doc.root, "tools")); t; t = nmlp_json_next(t)) {
        nmlp_json_writer w;
        nmlp_json_writer_init(&w, out);
        nmlp_json_put_value(&w, NULL, nmlp_json_get(t, "function"));
        nmlp_str_putc(out, '\n');
    }
    return nmlp_str_status(out, err);
}

static bool must_describe_tools(const nmlp_completion_request *r, const char *template_source) {
    const nmlp_json *tools = nmlp_json_get(r->doc.root, "tools");
    if (!nmlp_json_is_array(tools) || nmlp_json_count(tools) == 0) return false;
    if (strcmp(nmlp_json_string(nmlp_json_get(r->doc.root, "tool_choice")), "none") == 0) return false;
    return nmlp_tool_format_of(template_source) != NMLP_TOOLS_NONE && nmlp_tool_format_lists_none(template_source);
}

static nmlp_status read_message(nmlp_completion_request *r, nmlp_json_writer *w, const nmlp_json *m,
                                const char *template_source, nmlp_err *err) {
    size_t i = r->n_messages++;
    const nmlp_json *content = nmlp_json_get(m, "content");
    nmlp_chat_message *read = &r->messages[i];
    NMLP_RETURN_IF_FAILED(read_role(r, i, m, template_source && strstr(template_source, "tool"), err));
    read->content = "";
    if (!nmlp_json_is_null(content) || nmlp_json_count(nmlp_json_get(m, "tool_calls")) == 0)
        NMLP_RETURN_IF_FAILED(read_content(r, i, content, err));
    if (i == 0 && must_describe_tools(r, template_source)) {
        bool system = strcmp(read->role, "system") == 0;
        NMLP_RETURN_IF_FAILED(describe_tools(r, system ? read->content : NULL, err));
        const nmlp_chat_message told = {.role = "system", .content = nmlp_str_text(&r->system)};
        put_message(w, system ? m : NULL, &told);
        if (system) return NMLP_OK;
    }
    put_message(w, m, read);
    return NMLP_OK;
}

static nmlp_status read_kwargs(nmlp_completion_request *r, const char *template_source, nmlp_err *err) {
    const nmlp_json *kwargs = nmlp_json_get(r->doc.root, "chat_template_kwargs");
    nmlp_json_writer w;
    if (nmlp_json_is_null(kwargs)) return NMLP_OK;
    if (!nmlp_json_is_object(kwargs))
        return nmlp_fail_field(err, NMLP_E_ARG, "chat_template_kwargs", "must be an object");
    nmlp_json_writer_init(&w, &r->kwargs_json);
    nmlp_json_put_value(&w, NULL, kwargs);
    /* without a template there is nothing they could change */
    if (!template_source && nmlp_json_count(kwargs) > 0) nmlp_str_puts(&r->ignored, "chat_template_kwargs");
    return nmlp_str_status(&r->kwargs_json, err);
}

nmlp_status nmlp_request_read_messages(nmlp_completion_request *r, const char *template_source, nmlp_err *err) {
    const nmlp_json *messages = nmlp_json_get(r->doc.root, "messages");
    size_t n = nmlp_json_is_array(messages) ? nmlp_json_count(messages) : 0;
    nmlp_json_writer w;
    if (n == 0) return nmlp_fail_field(err, NMLP_E_ARG, "messages", "must be a list of at least one message");
    r->messages = nmlp_mem_new(n, sizeof *r->messages, err);
    r->texts = nmlp_mem_new(n, sizeof *r->texts, err);
    if (!r->messages || !r->texts) return NMLP_E_NOMEM;
    nmlp_json_writer_init(&w, &r->messages_json);
    nmlp_json_begin_array(&w, NULL);
    for (const nmlp_json *m = nmlp_json_first(messages); m; m = nmlp_json_next(m))
        NMLP_RETURN_IF_FAILED(read_message(r, &w, m, template_source, err));
    nmlp_json_end_array(&w);
    r->n_prompts = 1;
    NMLP_RETURN_IF_FAILED(read_kwargs(r, template_source, err));
    return nmlp_str_status(&r->messages_json, err);
}

void nmlp_request_chat_prompt(nmlp_text_prompt *prompt, const nmlp_completion_request *r) {
    *prompt = (nmlp_text_prompt){.messages = r->messages,
                                 .n_messages = r->n_messages,
                                 .messages_json = nmlp_str_text(&r->messages_json),
                                 .tools_json = r->tools_json.len ? nmlp_str_text(&r->tools_json) : NULL,
                                 .kwargs_json = r->kwargs_json.len ? nmlp_str_text(&r->kwargs_json) : NULL};
}
