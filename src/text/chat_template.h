/* A model's own chat template, written in Jinja: conversations as text.
 *
 * The interpreter knows the part of Jinja that published templates use, in the environment `transformers` gives them
 * (trim_blocks, lstrip_blocks, raise_exception, strftime_now, tojson without escapes). What it does not know is refused
 * by name. Steps, depth, memory and output are bounded, and a template reaches nothing but its arguments and the clock.
 *
 * A template is immutable after loading and may be used by many threads at once. */
#ifndef NMLP_TEXT_CHAT_TEMPLATE_H
#define NMLP_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"
#include "text/tokenizer.h"

typedef struct nmlp_chat_template nmlp_chat_template;

/* The template of a model's folder: chat_template.jinja, chat_template.json, or `chat_template` of
 * tokenizer_config.json, a string or a list of named ones. `name` chooses among named ones; NULL takes "default". *out
 * is NULL, without a failure, where the model has none. bos_token and its like come from tokenizer_config.json. */
nmlp_status nmlp_chat_template_load(nmlp_chat_template **out, const char *model_dir, const char *name, nmlp_err *err);
/* From memory. `special_tokens` is a JSON object of names and texts ({"bos_token": "<s>"}), or NULL. */
nmlp_status nmlp_chat_template_parse(nmlp_chat_template **out, const char *source, size_t len,
                                     const char *special_tokens, nmlp_err *err);
void nmlp_chat_template_destroy(nmlp_chat_template *t); /* NULL is fine */
/* The template's text, NUL-ended. */
const char *nmlp_chat_template_source(const nmlp_chat_template *t);

typedef struct nmlp_chat_render_options {
    bool add_generation_prompt; /* end with the header of the answer */
    const char *tools_json;     /* a JSON array of tools; NULL: none */
    const char *kwargs_json;    /* a JSON object of further variables (enable_thinking); NULL: none */
    int64_t now_seconds;        /* since 1970, for strftime_now; 0: the clock */
} nmlp_chat_render_options;

/* What a template made of a conversation. */
typedef struct nmlp_chat_text {
    nmlp_str text;
    nmlp_text_span *spans; /* the parts that came from messages, tools or kwargs, sorted */
    size_t n_spans;
} nmlp_chat_text;

void nmlp_chat_text_init(nmlp_chat_text *text);
void nmlp_chat_text_fini(nmlp_chat_text *text);

/* `messages_json` is a JSON array of {"role": ..., "content": ..., ...}. Fails with NMLP_E_ARG and the template's own
 * words where it calls raise_exception. A role's usual names do not count as a user's text. */
nmlp_status nmlp_chat_template_render(const nmlp_chat_template *t, const char *messages_json,
                                      const nmlp_chat_render_options *options, nmlp_chat_text *out, nmlp_err *err);
/* Renders and appends the ids; special tokens spelled by a user stay text. */
nmlp_status nmlp_chat_template_encode(const nmlp_chat_template *t, const nmlp_tokenizer *tokenizer,
                                      const char *messages_json, const nmlp_chat_render_options *options, nmlp_ids *out,
                                      nmlp_err *err);
/* The same for roles and contents as they are (malformed UTF-8 counts as U+FFFD), with the answer's header. */
nmlp_status nmlp_chat_template_encode_messages(const nmlp_chat_template *t, const nmlp_tokenizer *tokenizer,
                                               const nmlp_chat_message *messages, size_t n_messages, nmlp_ids *out,
                                               nmlp_err *err);

/* The template that was loaded with a tokenizer's folder, or NULL. */
const nmlp_chat_template *nmlp_tokenizer_chat_template(const nmlp_tokenizer *t);

#endif
