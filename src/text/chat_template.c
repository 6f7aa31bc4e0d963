#include "text/chat_template.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "text/jinja_internal.h"
#include "text/utf8.h"

struct nmlp_chat_template {
    nmlp_jinja_heap heap;
    nmlp_jinja_node *body;
    nmlp_str source;
    nmlp_str special_tokens; /* a JSON object */
};

void nmlp_chat_template_destroy(nmlp_chat_template *t) {
    if (!t) return;
    nmlp_jinja_heap_fini(&t->heap);
    nmlp_str_fini(&t->source);
    nmlp_str_fini(&t->special_tokens);
    nmlp_mem_free(t);
}

const char *nmlp_chat_template_source(const nmlp_chat_template *t) { return nmlp_str_text(&t->source); }

nmlp_status nmlp_chat_template_parse(nmlp_chat_template **out, const char *source, size_t len,
                                     const char *special_tokens, nmlp_err *err) {
    *out = NULL;
    nmlp_chat_template *t = nmlp_mem_new(1, sizeof *t, err);
    if (!t) return NMLP_E_NOMEM;
    nmlp_str_init(&t->source);
    nmlp_str_init(&t->special_tokens);
    nmlp_status st = nmlp_jinja_parse(&t->body, &t->heap, source, len, err);
    if (st == NMLP_OK) {
        nmlp_str_append(&t->source, source, len);
        nmlp_str_puts(&t->special_tokens, special_tokens ? special_tokens : "{}");
        st = nmlp_str_status(&t->source, err);
    }
    if (st == NMLP_OK) st = nmlp_str_status(&t->special_tokens, err);
    if (st == NMLP_OK)
        *out = t;
    else
        nmlp_chat_template_destroy(t);
    return st;
}

/* ---- loading ---- */

/* {"bos_token": "<s>", ...}: every string, or object with "content", whose key ends in _token. */
static void put_special_tokens(nmlp_str *out, const nmlp_json *config) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    for (const nmlp_json *member = nmlp_json_first(config); member; member = nmlp_json_next(member)) {
        const char *key = nmlp_json_key(member);
        size_t n = strlen(key);
        if (n < 6 || strcmp(key + n - 6, "_token") != 0) continue;
        const nmlp_json *value = nmlp_json_is_object(member) ? nmlp_json_get(member, "content") : member;
        if (!nmlp_json_is_string(value)) continue;
        const char *text = nmlp_json_string(value);
        nmlp_json_put_bytes(&w, key, text, strlen(text));
    }
    nmlp_json_end_object(&w);
}

/* A string, or [{"name": ..., "template": ...}, ...]; NULL for none of that name. */
static const char *choose_named(const nmlp_json *value, const char *name) {
    if (nmlp_json_is_string(value)) return nmlp_json_string(value);
    if (!nmlp_json_is_array(value)) return NULL;
    for (const nmlp_json *item = nmlp_json_first(value); item; item = nmlp_json_next(item))
        if (strcmp(nmlp_json_string(nmlp_json_get(item, "name")), name ? name : "default") == 0)
            return nmlp_json_string(nmlp_json_get(item, "template"));
    return NULL;
}

typedef struct folder {
    nmlp_json_doc config, side; /* tokenizer_config.json, chat_template.json */
    bool has_config, has_side;
    nmlp_str jinja; /* chat_template.jinja */
    bool has_jinja;
} folder;

static nmlp_status load_json_if_there(nmlp_json_doc *doc, bool *there, const char *dir, const char *file,
                                      nmlp_err *err) {
    char path[4096];
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, file, err));
    *there = nmlp_file_exists(path);
    if (!*there) return NMLP_OK;
    nmlp_status st = nmlp_json_load(doc, path, err);
    if (st != NMLP_OK) *there = false;
    return st;
}

static nmlp_status read_folder(folder *f, const char *dir, const char *name, nmlp_err *err) {
    char path[4096], file[256];
    bool named = name && strcmp(name, "default") != 0;
    NMLP_RETURN_IF_FAILED(load_json_if_there(&f->config, &f->has_config, dir, "tokenizer_config.json", err));
    NMLP_RETURN_IF_FAILED(load_json_if_there(&f->side, &f->has_side, dir, "chat_template.json", err));
    if (named && (strlen(name) > 100 || strchr(name, '/')))
        return nmlp_fail_field(err, NMLP_E_ARG, "chat_template", "is \"%.40s\", which is no name of a template", name);
    nmlp_str_clear(&f->jinja);
    snprintf(file, sizeof file, named ? "additional_chat_templates/%s.jinja" : "chat_template.jinja",
             named ? name : "");
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, file, err));
    f->has_jinja = nmlp_file_exists(path);
    return f->has_jinja ? nmlp_file_read(&f->jinja, path, NMLP_JINJA_SOURCE_MAX_BYTES, err) : NMLP_OK;
}

static nmlp_status parse_folder(nmlp_chat_template **out, const folder *f, const char *dir, const char *name,
                                nmlp_err *err) {
    const char *source = NULL;
    nmlp_str tokens;
    nmlp_str_init(&tokens);
    put_special_tokens(&tokens, f->has_config ? f->config.root : NULL);
    if (f->has_jinja) source = nmlp_str_text(&f->jinja);
    if (!source && f->has_side) source = choose_named(nmlp_json_get(f->side.root, "chat_template"), name);
    if (!source && f->has_config) source = choose_named(nmlp_json_get(f->config.root, "chat_template"), name);
    nmlp_status st = nmlp_str_status(&tokens, err);
    if (st == NMLP_OK && !source && name)
        st = nmlp_fail_field(err, NMLP_E_MISSING, "chat_template", "\"%.40s\" is not among those of %s", name, dir);
    if (st == NMLP_OK && source) {
        st = nmlp_chat_template_parse(out, source, strlen(source), nmlp_str_text(&tokens), err);
        if (st != NMLP_OK) nmlp_fail_context(err, "%s", dir);
    }
    nmlp_str_fini(&tokens);
    return st;
}

nmlp_status nmlp_chat_template_load(nmlp_chat_template **out, const char *model_dir, const char *name, nmlp_err *err) {
    folder f = {0};
    *out = NULL;
    if (!nmlp_file_is_dir(model_dir)) return NMLP_OK;
    nmlp_str_init(&f.jinja);
    nmlp_status st = read_folder(&f, model_dir, name, err);
    if (st == NMLP_OK) st = parse_folder(out, &f, model_dir, name, err);
    if (f.has_config) nmlp_json_free(&f.config);
    if (f.has_side) nmlp_json_free(&f.side);
    nmlp_str_fini(&f.jinja);
    return st;
}

/* ---- rendering ---- */

void nmlp_chat_text_init(nmlp_chat_text *text) {
    *text = (nmlp_chat_text){0};
    nmlp_str_init(&text->text);
}

void nmlp_chat_text_fini(nmlp_chat_text *text) {
    nmlp_str_fini(&text->text);
    nmlp_mem_free(text->spans);
    *text = (nmlp_chat_text){0};
}

/* Names that templates build special tokens of, as in "<|" + role + "|>". */
static void trust_roles(nmlp_jinja_run *run, nmlp_jinja_value messages) {
    static const char *const roles[] = {"system", "user",     "assistant", "tool",   "developer",
                                        "model",  "function", "ipython",   "context"};
    if (messages.kind != NMLP_JINJA_LIST) return;
    for (size_t i = 0; i < messages.as.list->n && run->status == NMLP_OK; i++) {
        nmlp_jinja_value message = messages.as.list->items[i];
        if (message.kind != NMLP_JINJA_DICT) continue;
        const nmlp_jinja_value *role = nmlp_jinja_dict_find(run, message.as.dict, "role");
        for (size_t k = 0; role && k < sizeof roles / sizeof roles[0]; k++) {
            if (!nmlp_jinja_is_text(*role, roles[k])) continue;
            nmlp_jinja_dict_put(run, message.as.dict, nmlp_jinja_cstring(run, "role"),
                                nmlp_jinja_cstring(run, roles[k]));
            break;
        }
    }
}

/* Every member of a JSON object becomes a variable. */
static void set_members(nmlp_jinja_run *run, const char *json, const char *what, bool user) {
    if (!json || run->status != NMLP_OK) return;
    nmlp_jinja_value object = nmlp_jinja_json_read(run, json, strlen(json), user);
    if (run->status != NMLP_OK) return;
    if (object.kind != NMLP_JINJA_DICT) {
        nmlp_jinja_fail(run, NMLP_E_ARG, "%s must be a JSON object", what);
        return;
    }
    for (size_t i = 0; i < object.as.dict->n; i++)
        nmlp_jinja_set(run, run->globals, object.as.dict->keys[i].as.s->data, object.as.dict->values[i]);
}

static void set_variables(nmlp_jinja_run *run, const nmlp_chat_template *t, const char *messages_json,
                          const nmlp_chat_render_options *o) {
    nmlp_jinja_value messages = nmlp_jinja_json_read(run, messages_json, strlen(messages_json), true);
    if (run->status == NMLP_OK && messages.kind != NMLP_JINJA_LIST)
        nmlp_jinja_fail(run, NMLP_E_ARG, "messages must be a JSON array");
    trust_roles(run, messages);
    set_members(run, nmlp_str_text(&t->special_tokens), "special_tokens", false);
    nmlp_jinja_set(run, run->globals, "messages", messages);
    nmlp_jinja_set(run, run->globals, "add_generation_prompt", nmlp_jinja_bool(o->add_generation_prompt));
    nmlp_jinja_value tools =
        o->tools_json ? nmlp_jinja_json_read(run, o->tools_json, strlen(o->tools_json), true) : nmlp_jinja_none();
    nmlp_jinja_set(run, run->globals, "tools", tools);
    nmlp_jinja_set(run, run->globals, "documents", nmlp_jinja_none());
    set_members(run, o->kwargs_json, "kwargs", true);
}

static nmlp_status take_spans(nmlp_chat_text *out, const nmlp_jinja_text *text, nmlp_err *err) {
    const char *user = nmlp_str_text(&text->user);
    size_t capacity = 0;
    for (size_t at = 0; at < text->user.len;) {
        size_t end = at;
        while (end < text->user.len && user[end] == user[at]) end++;
        if (user[at]) {
            void *spans = out->spans;
            NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&spans, &capacity, out->n_spans + 1, sizeof *out->spans, err));
            out->spans = spans;
            out->spans[out->n_spans++] = (nmlp_text_span){at, end};
        }
        at = end;
    }
    nmlp_str_append(&out->text, nmlp_str_text(&text->bytes), text->bytes.len);
    return nmlp_str_status(&out->text, err);
}

nmlp_status nmlp_chat_template_render(const nmlp_chat_template *t, const char *messages_json,
                                      const nmlp_chat_render_options *options, nmlp_chat_text *out, nmlp_err *err) {
    nmlp_jinja_text text;
    nmlp_jinja_scope globals = {0};
    nmlp_jinja_text_init(&text);
    nmlp_jinja_run run = {.err = err, .out = &text, .globals = &globals, .now_seconds = options->now_seconds};
    if (!run.now_seconds) run.now_seconds = (int64_t)time(NULL);
    nmlp_chat_text_fini(out);
    nmlp_chat_text_init(out);
    set_variables(&run, t, messages_json, options);
    if (run.status == NMLP_OK) nmlp_jinja_execute(&run, t->body);
    nmlp_status st = run.status;
    if (st == NMLP_OK) st = take_spans(out, &text, err);
    nmlp_jinja_text_fini(&text);
    nmlp_jinja_heap_fini(&run.heap);
    if (st != NMLP_OK) {
        nmlp_chat_text_fini(out);
        nmlp_chat_text_init(out);
    }
    return st;
}

nmlp_status nmlp_chat_template_encode(const nmlp_chat_template *t, const nmlp_tokenizer *tokenizer,
                                      const char *messages_json, const nmlp_chat_render_options *options, nmlp_ids *out,
                                      nmlp_err *err) {
    nmlp_chat_text rendered;
    nmlp_chat_text_init(&rendered);
    nmlp_status st = nmlp_chat_template_render(t, messages_json, options, &rendered, err);
    if (st == NMLP_OK)
        st = nmlp_tokenizer_encode_spans(tokenizer, nmlp_str_text(&rendered.text), rendered.text.len, rendered.spans,
                                         rendered.n_spans, out, err);
    nmlp_chat_text_fini(&rendered);
    return st;
}

nmlp_status nmlp_chat_template_encode_messages(const nmlp_chat_template *t, const nmlp_tokenizer *tokenizer,
                                               const nmlp_chat_message *messages, size_t n_messages, nmlp_ids *out,
                                               nmlp_err *err) {
    const nmlp_chat_render_options options = {.add_generation_prompt = true};
    nmlp_str json, content;
    nmlp_json_writer w;
    nmlp_str_init(&json);
    nmlp_str_init(&content);
    nmlp_json_writer_init(&w, &json);
    nmlp_json_begin_array(&w, NULL);
    for (size_t i = 0; i < n_messages; i++) {
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_bytes(&w, "role", messages[i].role, strlen(messages[i].role));
        nmlp_str_clear(&content);
        nmlp_utf8_append_lossy(&content, messages[i].content, strlen(messages[i].content));
        nmlp_json_put_bytes(&w, "content", nmlp_str_text(&content), content.len);
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_array(&w);
    nmlp_status st = nmlp_str_status(&content, err);
    if (st == NMLP_OK) st = nmlp_str_status(&json, err);
    if (st == NMLP_OK) st = nmlp_chat_template_encode(t, tokenizer, nmlp_str_text(&json), &options, out, err);
    nmlp_str_fini(&json);
    nmlp_str_fini(&content);
    return st;
}
