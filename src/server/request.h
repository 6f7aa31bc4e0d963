/* Bodies of requests in OpenAI's format: what is asked for, checked. Errors name the field at fault. */
#ifndef NMLP_SERVER_REQUEST_H
#define NMLP_SERVER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/str.h"
#include "grammar/tool_calls.h"
#include "service/text_session.h"

enum { NMLP_CHOICES_PER_REQUEST_MAX = 128 };

/* Strings point into `doc` or `texts`. */
typedef struct nmlp_completion_request {
    nmlp_json_doc doc;
    nmlp_chat_message *messages; /* of a chat; NULL: prompts */
    size_t n_messages;
    nmlp_str *texts;           /* [n_messages] contents that came in parts */
    nmlp_str messages_json;    /* the same messages with all their members */
    nmlp_str kwargs_json;      /* chat_template_kwargs; empty: none */
    nmlp_str tools_json;       /* tools that the model may call; empty: none */
    nmlp_str system;           /* the system's words, where tools were added to them */
    nmlp_str grammar;          /* what the answer must look like (grammar/grammar.h); empty: anything */
    const char *grammar_field; /* the field that asked for it */
    bool calls_tools;          /* the answer may be calls of tools, in this format */
    nmlp_tool_format tool_format;
    nmlp_text_prompt *prompts;
    int32_t **ids; /* [n_prompts] of prompts that came as ids */
    int n_prompts; /* 1 for a chat */
    int n;         /* choices of each prompt */
    bool embeds;   /* states of the prompts are asked for, no answers */
    bool base64;   /* as text of their bytes */
    bool stream, include_usage;
    bool echo;
    bool logprobs;
    int n_top;
    bool ignore_eos;
    int64_t max_new;  /* -1: what the context leaves */
    double timeout_s; /* 0: none is given */
    nmlp_sampling sampling;
    nmlp_token_bias *biases; /* what `sampling` points to */
    const char *stop[NMLP_STOP_STRINGS_MAX];
    size_t n_stop;
    const char *model; /* its name; NULL: none is given */
    nmlp_str ignored;  /* names of fields nobody here knows, with commas */
} nmlp_completion_request;

/* Takes a body of /v1/chat/completions or /v1/completions. `seed` is used where the body has none; `template_source` is
 * the source of the model's chat template, NULL where it has none. To be released whatever the status. */
nmlp_status nmlp_completion_request_read(nmlp_completion_request *request, bool chat, const char *body, size_t len,
                                         uint64_t seed, const char *template_source, nmlp_err *err);
/* The same for a body of /v1/embeddings. */
nmlp_status nmlp_embedding_request_read(nmlp_completion_request *request, const char *body, size_t len, nmlp_err *err);
void nmlp_completion_request_fini(nmlp_completion_request *request);

/* request_messages.c: messages and chat_template_kwargs. */
nmlp_status nmlp_request_read_messages(nmlp_completion_request *request, const char *template_source, nmlp_err *err);
/* What the messages of a request, once read, are as a prompt. */
void nmlp_request_chat_prompt(nmlp_text_prompt *prompt, const nmlp_completion_request *request);
/* request_output.c: response_format, grammar, tools and tool_choice. */
nmlp_status nmlp_request_read_output(nmlp_completion_request *request, bool chat, const char *template_source,
                                     nmlp_err *err);

/* Token ids of a JSON array into a new array (free with nmlp_mem_free). */
nmlp_status nmlp_request_ids(int32_t **ids, size_t *n, const nmlp_json *array, const char *field, nmlp_err *err);

#endif
