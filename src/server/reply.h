/* Answers in OpenAI's format: whole objects, chunks of a stream, errors. */
#ifndef NMLP_SERVER_REPLY_H
#define NMLP_SERVER_REPLY_H

#include "base/json_write.h"
#include "server/worker.h"

/* What every object of one answer says about itself. */
typedef struct nmlp_reply_head {
    char id[48];
    int64_t created; /* seconds since 1970 */
    const char *model;
    bool chat;
    const nmlp_tokenizer *tokenizer;
} nmlp_reply_head;

typedef struct nmlp_reply_tool_call {
    nmlp_str name, arguments;
} nmlp_reply_tool_call;

/* One choice as it grows. */
typedef struct nmlp_reply_choice {
    nmlp_str text;
    float *values; /* [n_values] of an embedding */
    int64_t n_values;
    bool calls_tools; /* its text is read for calls */
    nmlp_tool_reader reader;
    nmlp_reply_tool_call *calls;
    size_t n_calls, calls_capacity;
    nmlp_server_token *tokens;
    size_t n_tokens, capacity;
    int64_t text_offset; /* characters before the tokens not yet sent in a stream */
    bool begun;          /* the first chunk is sent */
    nmlp_finish finish;
} nmlp_reply_choice;

typedef struct nmlp_reply_usage {
    int64_t prompt, completion, cached;
} nmlp_reply_usage;

/* `calls_tools`: answers may be calls of tools, in that format. */
void nmlp_reply_choice_init(nmlp_reply_choice *choice, bool calls_tools, nmlp_tool_format format);
/* Takes over an event's text and tokens. */
nmlp_status nmlp_reply_add(nmlp_reply_choice *choice, const nmlp_job_event *event, nmlp_err *err);
/* The text is over. */
nmlp_status nmlp_reply_add_end(nmlp_reply_choice *choice, nmlp_err *err);
void nmlp_reply_choice_fini(nmlp_reply_choice *choice);

void nmlp_reply_whole(nmlp_str *out, const nmlp_reply_head *head, const nmlp_reply_choice *choices, int n,
                      const nmlp_reply_usage *usage, bool logprobs);

/* {"object":"list","data":[{"embedding": …}]}; values as numbers, or their bytes as base64. */
void nmlp_reply_embeddings(nmlp_str *out, const nmlp_reply_head *head, const nmlp_reply_choice *choices, int n,
                           const nmlp_reply_usage *usage, bool base64);

/* Server-sent events, each "data: …\n\n". The piece of an event; the end of a choice; the usage; the end of all. */
void nmlp_reply_chunk(nmlp_str *out, const nmlp_reply_head *head, int index, nmlp_reply_choice *choice,
                      const nmlp_job_event *event, bool logprobs);
void nmlp_reply_chunk_end(nmlp_str *out, const nmlp_reply_head *head, int index, nmlp_reply_choice *choice,
                          nmlp_finish finish);
void nmlp_reply_chunk_usage(nmlp_str *out, const nmlp_reply_head *head, const nmlp_reply_usage *usage);

/* {"error":{message, type, param, code}}; `status` is that of HTTP. */
void nmlp_reply_error(nmlp_str *out, int status, const nmlp_err *err);
/* The status of HTTP for an error of a request. */
int nmlp_reply_status(nmlp_status st);

#endif
