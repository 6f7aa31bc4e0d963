/* Load a Hugging Face checkpoint, dense or compressed; generate text, score texts, look at logits.
 *
 *     nmlp_llm *llm;
 *     nmlp_err err;
 *     if (nmlp_llm_open(&llm, "models/tiny", NULL, &err) != NMLP_OK) { puts(err.message); return 1; }
 *     nmlp_llm_generate(llm, "The old house", NULL, print_piece, NULL, &err);
 *     nmlp_llm_close(llm);
 *
 * Threads: an nmlp_llm belongs to one thread at a time; different ones may be used at once. It starts threads of its
 * own when it is opened and ends them when it is closed. Callbacks run on the thread that made the call, must not call
 * functions on the same nmlp_llm, and may not be left by longjmp or an exception.
 * Side effects: files of the model are read; nothing is written, printed or forked, and no setting of the process or of
 * another library is changed, except that Linux is asked once for permission to use AMX tiles where the CPU has them.
 */
#ifndef NEURONMLP_LLM_H
#define NEURONMLP_LLM_H

#include "neuronmlp/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nmlp_llm nmlp_llm;

/* ---- open and close ---- */

typedef struct nmlp_llm_options {
    size_t struct_bytes;
    int n_threads; /* 0: one per CPU */
    /* kernel set of the CPU: "ref", "avx2", "avx512", "avx512bf16", "amx"; NULL: the fastest for `precision` */
    const char *isa;
    int64_t context; /* positions; 0: the model's maximum, at most 4096 */
    /* since 0.2 */
    const char *device;    /* "cpu", "cuda", or "auto" (default): a GPU where one is usable and no isa is given */
    const char *precision; /* of activations: "f32" is exact; "bf16" is faster where the CPU has AMX; "auto"
                              (default): bf16 for weights stored as bf16, else f32 */
    nmlp_on_progress *on_progress; /* of loading; may be NULL */
    void *progress_ctx;
    const char *draft_dir; /* a smaller model of the same tokenizer that proposes tokens; NULL: none. The answers are
                              those of the model alone: greedy ones equal, sampled ones equally distributed */
} nmlp_llm_options;

/* Fills the struct with defaults. Any thread; no side effects. So do all other _init functions. */
NMLP_API void nmlp_llm_options_init(nmlp_llm_options *options, size_t struct_bytes);

/* `dir` holds config.json, *.safetensors and tokenizer.json. `options` may be NULL. Any thread. */
NMLP_API nmlp_status nmlp_llm_open(nmlp_llm **out, const char *dir, const nmlp_llm_options *options, nmlp_err *err);
NMLP_API void nmlp_llm_close(nmlp_llm *llm); /* NULL is fine; no call on it may be under way */

typedef struct nmlp_llm_info {
    size_t struct_bytes;
    int64_t context;     /* positions of this nmlp_llm */
    int64_t max_context; /* of the model */
    int64_t vocab;
    int64_t n_layers, hidden, intermediate;
    int64_t params, bytes; /* of the weights */
    const char *kernels;   /* what runs: "avx512", "amx", "cuda (NVIDIA H200)"; lives as long as the nmlp_llm */
} nmlp_llm_info;

NMLP_API void nmlp_llm_info_init(nmlp_llm_info *info, size_t struct_bytes);
NMLP_API nmlp_status nmlp_llm_describe(const nmlp_llm *llm, nmlp_llm_info *info, nmlp_err *err);

/* ---- generate ---- */

typedef struct nmlp_llm_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} nmlp_llm_message;

typedef struct nmlp_llm_logprob {
    int32_t id;
    double logprob; /* natural logarithm, of the model's own distribution: before temperature and filters */
} nmlp_llm_logprob;

/* A generated token; what it points to lives during the call. */
typedef struct nmlp_llm_token {
    int32_t id;
    double logprob;              /* NaN unless asked for */
    const nmlp_llm_logprob *top; /* [n_top] the likeliest tokens in its place, likeliest first */
    int n_top;
} nmlp_llm_token;

/* A piece of generated text: whole UTF-8 characters, not NUL-ended. Return 0 to go on. */
typedef int nmlp_llm_on_text(void *ctx, const char *text, size_t len);
/* A token, before its text. Return 0 to go on. */
typedef int nmlp_llm_on_token(void *ctx, const nmlp_llm_token *token);
/* Asked between the steps of a long prompt and after every token. Return 0 to go on, anything else to end the answer.
 */
typedef int nmlp_llm_on_cancel(void *ctx);

typedef struct nmlp_llm_request {
    size_t struct_bytes;
    int64_t max_new;    /* tokens; 128 */
    double temperature; /* 0: greedy */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1: all */
    double min_p;       /* 0: all */
    uint64_t seed;
    /* since 0.2 */
    double repetition_penalty;        /* 1: none */
    const char *prompt;               /* the text to continue, in which special tokens become their ids; or … */
    const nmlp_llm_message *messages; /* … a conversation to answer, by the chat template or format; or … */
    size_t n_messages;
    const int32_t *ids; /* … token ids to continue */
    size_t n_ids;
    int no_bos;              /* with `prompt`: 1: do not put the begin-of-text token in front */
    int ignore_eos;          /* 1: go on after end-of-text tokens */
    int fresh;               /* 1: compute the whole prompt. 0: what it shares at its beginning with the last text of
                                this nmlp_llm, its answer included, is not computed again */
    const char *const *stop; /* strings that end the answer and are left out of it; at most 16 */
    size_t n_stop;
    int logprobs;     /* 1: on_token hears log-probabilities */
    int top_logprobs; /* and of so many alternatives, at most 20 */
    nmlp_llm_on_text *on_text;
    nmlp_llm_on_token *on_token;
    nmlp_llm_on_cancel *on_cancel;
    void *ctx; /* of the three */
} nmlp_llm_request;

NMLP_API void nmlp_llm_request_init(nmlp_llm_request *request, size_t struct_bytes);

typedef enum nmlp_llm_finish {
    NMLP_LLM_FINISH_LENGTH = 0,  /* max_new tokens */
    NMLP_LLM_FINISH_STOP = 1,    /* an end-of-text token or a stop string */
    NMLP_LLM_FINISH_CONTEXT = 2, /* the context is full */
    NMLP_LLM_FINISH_CALLER = 3   /* a callback said so */
} nmlp_llm_finish;

typedef struct nmlp_llm_result {
    size_t struct_bytes;
    const char *text; /* the answer, NUL-ended; lives until the next call on the nmlp_llm, as do the ids */
    size_t text_bytes;
    const int32_t *ids;
    int64_t prompt_tokens;
    int64_t cached_tokens; /* of them: not computed again */
    int64_t generated_tokens;
    nmlp_llm_finish finish;
    double ttft_ms;          /* time to the first token */
    double decode_ms;        /* of the tokens after the first */
    double decode_tok_s;     /* their rate; 0 where there are none */
    int64_t proposed_tokens; /* by the draft */
    int64_t accepted_tokens; /* of them */
} nmlp_llm_result;

NMLP_API void nmlp_llm_result_init(nmlp_llm_result *result, size_t struct_bytes);

/* Answers a request; `result` may be NULL. An answer ended by a callback is no failure. */
NMLP_API nmlp_status nmlp_llm_run(nmlp_llm *llm, const nmlp_llm_request *request, nmlp_llm_result *result,
                                  nmlp_err *err);

/* The same for a plain prompt: `prompt`, `on_text` and `ctx` stand in for the request's. `request` may be NULL. */
NMLP_API nmlp_status nmlp_llm_generate(nmlp_llm *llm, const char *prompt, const nmlp_llm_request *request,
                                       nmlp_llm_on_text *on_text, void *ctx, nmlp_err *err);

/* ---- tokens ---- */

/* Token ids of a text and of a conversation as a prompt has them. `ids` lives until the next call on the nmlp_llm. */
NMLP_API nmlp_status nmlp_llm_tokenize(nmlp_llm *llm, const char *text, size_t len, int no_bos, const int32_t **ids,
                                       size_t *n, nmlp_err *err);
NMLP_API nmlp_status nmlp_llm_tokenize_chat(nmlp_llm *llm, const nmlp_llm_message *messages, size_t n_messages,
                                            const int32_t **ids, size_t *n, nmlp_err *err);
/* Text of token ids, valid UTF-8, NUL-ended; lives until the next call on the nmlp_llm. */
NMLP_API nmlp_status nmlp_llm_detokenize(nmlp_llm *llm, const int32_t *ids, size_t n, const char **text, size_t *len,
                                         nmlp_err *err);

/* ---- score ---- */

/* logprobs[i] = log p(ids[i] | ids[0..i-1]) for i = 1..n-1; logprobs[0] is NaN. n is at most the context. */
NMLP_API nmlp_status nmlp_llm_score(nmlp_llm *llm, const int32_t *ids, size_t n, double *logprobs, nmlp_err *err);

/* logits [n - first, vocab] after the tokens first..n-1, into the caller's memory. */
NMLP_API nmlp_status nmlp_llm_logits(nmlp_llm *llm, const int32_t *ids, size_t n, size_t first, float *logits,
                                     nmlp_err *err);

typedef struct nmlp_llm_perplexity_options {
    size_t struct_bytes;
    int64_t context;               /* tokens in a window; 0: the model's maximum, at most 2048 */
    int64_t stride;                /* 0: the window, no overlap */
    int64_t max_tokens;            /* of the text; 0: all */
    int bos;                       /* 1: the begin-of-text token in front of the text */
    nmlp_on_progress *on_progress; /* may be NULL */
    void *progress_ctx;
} nmlp_llm_perplexity_options;

NMLP_API void nmlp_llm_perplexity_options_init(nmlp_llm_perplexity_options *options, size_t struct_bytes);

typedef struct nmlp_llm_perplexity_result {
    size_t struct_bytes;
    int64_t scored_tokens;
    double nll; /* mean per scored token, natural logarithm */
    double ppl; /* exp(nll) */
    double word_ppl, bits_per_byte;
    double seconds;
} nmlp_llm_perplexity_result;

NMLP_API void nmlp_llm_perplexity_result_init(nmlp_llm_perplexity_result *result, size_t struct_bytes);

/* Perplexity of a text (docs/evaluation.md). For figures to compare, open the model with precision "f32". */
NMLP_API nmlp_status nmlp_llm_perplexity(nmlp_llm *llm, const char *text, size_t len,
                                         const nmlp_llm_perplexity_options *options, nmlp_llm_perplexity_result *result,
                                         nmlp_err *err);

typedef struct nmlp_llm_multiple_choice_options {
    size_t struct_bytes;
    const char *task;      /* built in: "openbookqa", "arc_easy", ... (docs/evaluation.md); NULL: `task_file` */
    const char *task_file; /* JSON that describes another one; NULL: `task` */
    const char *data;      /* file of questions */
    const char *labels;    /* second file of a task that needs one; NULL: "<data>-labels.lst" beside the data */
    int64_t limit;         /* only the first questions; 0: all */
    int bos;               /* begin-of-text token in front: 0 as the tokenizer does by itself, 1 always, -1 never */
    nmlp_on_progress *on_progress; /* may be NULL; its result cancels */
    void *progress_ctx;
} nmlp_llm_multiple_choice_options;

NMLP_API void nmlp_llm_multiple_choice_options_init(nmlp_llm_multiple_choice_options *options, size_t struct_bytes);

typedef struct nmlp_llm_multiple_choice_result {
    size_t struct_bytes;
    int64_t n;                        /* questions */
    double acc, acc_stderr;           /* by the summed log-probability of a choice */
    double acc_norm, acc_norm_stderr; /* by that sum divided by the choice's bytes */
    int64_t n_truncated;              /* sequences cut at their beginning to fit the model */
    double seconds;
} nmlp_llm_multiple_choice_result;

NMLP_API void nmlp_llm_multiple_choice_result_init(nmlp_llm_multiple_choice_result *result, size_t struct_bytes);

/* Accuracy on questions with choices, as lm-evaluation-harness counts it. Open the model with precision "f32" for
 * figures to compare. */
NMLP_API nmlp_status nmlp_llm_multiple_choice(nmlp_llm *llm, const nmlp_llm_multiple_choice_options *options,
                                              nmlp_llm_multiple_choice_result *result, nmlp_err *err);

#ifdef __cplusplus
}
#endif

#endif
