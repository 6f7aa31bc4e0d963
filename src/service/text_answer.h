/* A request for text, and its answer as tokens come: prompts, decoding, stop strings, log-probabilities, statistics.
 * What sessions (text_session.h) and batches (text_batch.h) share. */
#ifndef NMLP_SERVICE_TEXT_ANSWER_H
#define NMLP_SERVICE_TEXT_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/generate.h"
#include "service/loaded_model.h"
#include "service/stop_text.h"
#include "text/tokenizer.h"

enum { NMLP_TEXT_CONTEXT_MAX = 4096, NMLP_TOP_LOGPROBS_MAX = 20, NMLP_STOP_STRINGS_MAX = 16 };

/* ---- prompts ---- */

/* One of text, messages and ids. */
typedef struct nmlp_text_prompt {
    const char *text; /* `len` bytes */
    size_t len;
    bool no_bos;     /* with text: do not put around it what the tokenizer's template puts there */
    bool no_special; /* with text: special tokens spelled in it stay text */
    const nmlp_chat_message *messages;
    size_t n_messages;
    /* With messages, for a model that has a template of its own; each may be NULL. The same messages with all their
     * members (tool_calls, …), tools that may be called, and further variables of the template, all JSON. */
    const char *messages_json, *tools_json, *kwargs_json;
    const int32_t *ids;
    size_t n_ids;
} nmlp_text_prompt;

/* Appends the prompt's token ids. */
nmlp_status nmlp_text_prompt_encode(nmlp_ids *ids, const nmlp_tokenizer *tokenizer, const nmlp_text_prompt *prompt,
                                    nmlp_err *err);

/* Positions a session needs: `asked`, or with 0 what the prompt and max_new tokens need, at most NMLP_TEXT_CONTEXT_MAX
 * unless the prompt itself is longer, and at most what the model takes. */
int64_t nmlp_text_context(const nmlp_config *config, int64_t asked, int64_t n_prompt, int64_t max_new);

/* ---- requests and results ---- */

typedef struct nmlp_token_logprob {
    int32_t id;
    double logprob; /* natural logarithm, of the model's own distribution: before temperature and filters */
} nmlp_token_logprob;

/* A generated token. */
typedef struct nmlp_text_token {
    int32_t id;
    double logprob;                /* NaN unless logprobs are asked for */
    const nmlp_token_logprob *top; /* [n_top] likeliest first */
    int n_top;
} nmlp_text_token;

typedef struct nmlp_text_request {
    nmlp_text_prompt prompt;
    int64_t max_new; /* 1 or more; 0 where the prompt alone is of interest (on_prompt_token, hidden) */
    nmlp_sampling sampling;
    bool is_chat; /* token ids that are a conversation: the answer ends as one to messages does */
    bool ignore_eos;
    bool show_special;       /* special tokens of the answer are part of its text */
    bool fresh;              /* compute the whole prompt, whatever the session holds */
    const char *const *stop; /* strings that end the answer and are not part of it; at most NMLP_STOP_STRINGS_MAX */
    size_t n_stop;
    bool logprobs; /* fill the log-probabilities of tokens; the device's own choice of tokens is then not used */
    int n_top;     /* alternatives to each token, at most NMLP_TOP_LOGPROBS_MAX */
    const nmlp_token_constraint *constraint; /* what the answer must look like; NULL: anything */
    float *hidden; /* [H] out: the state after the prompt, as the head takes it; NULL: not wanted */
    /* Every token of the prompt but the first, scored, with its place; several threads call it at once. May be NULL. */
    void (*on_prompt_token)(void *ctx, int64_t position, const nmlp_text_token *token);
    /* Each may be NULL. False ends the generation (NMLP_FINISH_CALLER). */
    bool (*on_token)(void *ctx, const nmlp_text_token *token);
    bool (*on_text)(void *ctx, const char *text, size_t len); /* whole UTF-8 characters, not NUL-ended */
    bool (*go_on)(void *ctx); /* asked between steps of the prompt, and for each token */
    void *ctx;
} nmlp_text_request;

typedef struct nmlp_text_result {
    nmlp_str text; /* of the answer; empty without a tokenizer */
    nmlp_ids ids;  /* of the answer */
    int64_t n_prompt;
    int64_t n_cached; /* of them: not computed again */
    nmlp_finish finish;
    double ttft_ms;     /* start to first token */
    double decode_ms;   /* the tokens after the first */
    int64_t n_proposed; /* tokens, by a draft */
    int64_t n_accepted; /* of them */
} nmlp_text_result;

void nmlp_text_result_init(nmlp_text_result *result);
void nmlp_text_result_fini(nmlp_text_result *result);
const char *nmlp_finish_name(nmlp_finish finish);                     /* "length", "stop", "context", "caller" */
double nmlp_text_prefill_rate(const nmlp_text_result *result);        /* tokens/s of what was computed; 0: none */
double nmlp_text_decode_rate(const nmlp_text_result *result);         /* tokens/s after the first; 0: none */
double nmlp_text_decode_ms_per_token(const nmlp_text_result *result); /* 0: none */

/* Log-probability of `id` and the n_top likeliest tokens (ties: the smaller id first), from logits [V]. */
double nmlp_token_logprobs(const float *logits, int64_t vocab, int32_t id, nmlp_token_logprob *top, int n_top);

/* ---- an answer under way ---- */

typedef struct nmlp_text_answer {
    const nmlp_config *config;
    const nmlp_tokenizer *tokenizer; /* NULL: ids only */
    const nmlp_text_request *request;
    nmlp_text_result *result;
    int64_t stop_ids[NMLP_STOP_IDS_MAX + 1];
    nmlp_decode_stream decoder;
    nmlp_stop_text stop;
    size_t released; /* bytes of the text given out */
    bool stopped;    /* by a stop string */
    const nmlp_ids *prompt;
    double logprob; /* of the next token */
    nmlp_token_logprob top[NMLP_TOP_LOGPROBS_MAX];
    nmlp_status st; /* why a callback ended the generation */
    nmlp_err *err;
} nmlp_text_answer;

/* Checks the request and empties the result. All is borrowed, also by the generation. */
nmlp_status nmlp_text_answer_begin(nmlp_text_answer *answer, const nmlp_model *model, const nmlp_tokenizer *tokenizer,
                                   const nmlp_text_request *request, nmlp_text_result *result, nmlp_err *err);
/* What the engine is asked for; its callbacks fill the answer. */
nmlp_generation nmlp_text_answer_generation(nmlp_text_answer *answer, const nmlp_ids *prompt);
/* After the generation: the last text and the statistics. */
nmlp_status nmlp_text_answer_end(nmlp_text_answer *answer, const nmlp_generation_stats *stats, nmlp_err *err);
void nmlp_text_answer_fini(nmlp_text_answer *answer);
/* Whether the caller wants it to go on. */
bool nmlp_text_answer_goes_on(const nmlp_text_answer *answer);
/* Refuses a prompt that is empty or leaves no room in `context` positions. */
nmlp_status nmlp_text_check_room(const nmlp_config *config, const nmlp_ids *prompt, int64_t context, nmlp_err *err);
/* Refuses two models whose tokenizer files differ: ids would not mean the same. `field` named the other one. */
nmlp_status nmlp_text_check_tokenizers(const nmlp_model *model, const nmlp_model *other, const char *field,
                                       nmlp_err *err);

#endif
