/* The engine's thread: jobs in order of arrival, one at a time, behind a queue of limited length. What a job produces
 * is collected as events, which the server's thread takes when it is told that there are some. */
#ifndef NMLP_SERVER_WORKER_H
#define NMLP_SERVER_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/grammar_cache.h"
#include "server/request.h"
#include "service/text_batch.h"

/* A token of a choice, with what was asked for. */
typedef struct nmlp_server_token {
    int32_t id;
    double logprob; /* NaN: not asked for, or the first token of a prompt */
    nmlp_token_logprob top[NMLP_TOP_LOGPROBS_MAX];
    int n_top;
} nmlp_server_token;

typedef enum nmlp_job_event_kind {
    NMLP_JOB_PIECE,  /* text and tokens of a choice */
    NMLP_JOB_CHOICE, /* a choice is complete */
    NMLP_JOB_DONE    /* so is the job, or it failed; nothing follows */
} nmlp_job_event_kind;

typedef struct nmlp_job_event {
    nmlp_job_event_kind kind;
    int choice;
    nmlp_str text;
    nmlp_server_token *tokens;
    size_t n_tokens;
    nmlp_finish finish;                      /* of a choice */
    int64_t n_prompt, n_cached, n_generated; /* of a choice */
    double ttft_ms, decode_ms;               /* of a choice */
    float *values; /* of a choice: the state [H] of a prompt, of length 1; NULL: not asked for */
    int64_t n_values;
    nmlp_status st; /* of the job */
    nmlp_err err;
    struct nmlp_job_event *next;
} nmlp_job_event;

/* Belongs to the server's thread; the worker holds it between submit and NMLP_JOB_DONE. */
typedef struct nmlp_job {
    nmlp_completion_request request;
    nmlp_cached_grammar *grammar; /* of its answers; NULL: none */
    atomic_bool cancelled;        /* set by the server's thread */
    nmlp_job_event *first;        /* behind the worker's lock */
    nmlp_job_event *last;
    struct nmlp_job *next;           /* in the queue, or of those that run */
    struct nmlp_job_choice *choices; /* the worker's, from here on */
    int n_begun, n_ended;
    nmlp_status st;
    nmlp_err err;
} nmlp_job;

typedef struct nmlp_worker nmlp_worker;

typedef struct nmlp_worker_options {
    const nmlp_loaded *loaded;
    const nmlp_tokenizer *tokenizer;
    nmlp_text_batch_options batch;
    int max_waiting;
    void (*on_event)(void *ctx); /* on the worker's thread, after each step: some job has events */
    void *ctx;
} nmlp_worker_options;

nmlp_status nmlp_worker_create(nmlp_worker **out, const nmlp_worker_options *options, nmlp_err *err);
/* Cancels what runs and waits for it; jobs still queued get no event. */
void nmlp_worker_destroy(nmlp_worker *worker); /* NULL is fine */

/* NMLP_E_LIMIT when the queue is full. */
nmlp_status nmlp_worker_submit(nmlp_worker *worker, nmlp_job *job, nmlp_err *err);
/* The job's events so far, oldest first, or NULL; free each with nmlp_job_event_destroy. */
nmlp_job_event *nmlp_worker_take(nmlp_worker *worker, nmlp_job *job);
void nmlp_job_event_destroy(nmlp_job_event *event);
typedef struct nmlp_worker_state {
    int n_waiting, n_running; /* jobs */
    double memory_used;       /* of keys and values, 0 to 1 */
} nmlp_worker_state;

nmlp_worker_state nmlp_worker_look(nmlp_worker *worker);

#endif
