#include "server/worker.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"

struct nmlp_worker {
    nmlp_worker_options options;
    nmlp_text_session *session;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of all below, and of the events of jobs */
    pthread_cond_t changed;
    nmlp_job *first, *last;
    nmlp_job *running;
    int n_waiting;
    bool stopping;
};

/* ---- events ---- */

void nmlp_job_event_destroy(nmlp_job_event *event) {
    nmlp_str_fini(&event->text);
    nmlp_mem_free(event->tokens);
    nmlp_mem_free(event);
}

static nmlp_job_event *new_event(nmlp_job_event_kind kind, int choice, nmlp_err *err) {
    nmlp_job_event *event = nmlp_mem_new(1, sizeof *event, err);
    if (!event) return NULL;
    *event = (nmlp_job_event){.kind = kind, .choice = choice};
    nmlp_str_init(&event->text);
    return event;
}

static void post(nmlp_worker *w, nmlp_job *job, nmlp_job_event *event) {
    pthread_mutex_lock(&w->lock);
    if (job->last) {
        job->last->next = event;
    } else {
        job->first = event;
    }
    job->last = event;
    pthread_mutex_unlock(&w->lock);
    w->options.on_event(w->options.ctx);
}

nmlp_job_event *nmlp_worker_take(nmlp_worker *w, nmlp_job *job) {
    pthread_mutex_lock(&w->lock);
    nmlp_job_event *first = job->first;
    job->first = job->last = NULL;
    pthread_mutex_unlock(&w->lock);
    return first;
}

/* ---- one choice ---- */

struct choice {
    nmlp_worker *worker;
    nmlp_job *job;
    int index;
    const int32_t *ids; /* of the prompt, while it is scored */
    int64_t n_ids;
    nmlp_server_token *tokens; /* not yet posted: they wait for their text */
    size_t n_tokens, capacity;
    nmlp_status st;
    nmlp_err *err;
};

static bool goes_on(void *ctx) {
    const struct choice *c = ctx;
    return c->st == NMLP_OK && !atomic_load(&c->job->cancelled);
}

static nmlp_server_token *add_token(struct choice *c) {
    if (c->n_tokens == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 16;
        nmlp_server_token *more = nmlp_mem_new(capacity, sizeof *more, c->err);
        if (!more) {
            c->st = NMLP_E_NOMEM;
            return NULL;
        }
        if (c->n_tokens) memcpy(more, c->tokens, c->n_tokens * sizeof *more);
        nmlp_mem_free(c->tokens);
        c->tokens = more;
        c->capacity = capacity;
    }
    return &c->tokens[c->n_tokens++];
}

static bool post_piece(struct choice *c, const char *text, size_t len) {
    nmlp_job_event *event = new_event(NMLP_JOB_PIECE, c->index, c->err);
    if (!event) {
        c->st = NMLP_E_NOMEM;
        return false;
    }
    nmlp_str_append(&event->text, text, len);
    event->tokens = c->tokens;
    event->n_tokens = c->n_tokens;
    c->tokens = NULL;
    c->n_tokens = c->capacity = 0;
    post(c->worker, c->job, event);
    return true;
}

static bool on_token(void *ctx, const nmlp_text_token *token) {
    struct choice *c = ctx;
    nmlp_server_token *kept = add_token(c);
    if (!kept) return false;
    *kept = (nmlp_server_token){.id = token->id, .logprob = token->logprob, .n_top = token->n_top};
    if (token->n_top) memcpy(kept->top, token->top, (size_t)token->n_top * sizeof *kept->top);
    return true;
}

static bool on_text(void *ctx, const char *text, size_t len) { return post_piece(ctx, text, len); }

/* ---- the prompt as part of the answer ---- */

static bool on_logits(void *ctx, int64_t position, const float *logits) {
    struct choice *c = ctx;
    const nmlp_completion_request *r = &c->job->request;
    if (!goes_on(c)) return false;
    if (position + 1 == c->n_ids) return true;
    nmlp_server_token *kept = add_token(c);
    if (!kept) return false;
    kept->id = c->ids[position + 1];
    kept->n_top = r->n_top;
    int64_t vocab = c->worker->options.loaded->model.config.vocab;
    kept->logprob = nmlp_token_logprobs(logits, vocab, kept->id, kept->top, kept->n_top);
    return true;
}

static nmlp_status echo(struct choice *c, const nmlp_ids *prompt, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    nmlp_str_init(&text);
    c->ids = prompt->data;
    c->n_ids = (int64_t)prompt->len;
    nmlp_server_token *first = prompt->len ? add_token(c) : NULL;
    if (first) *first = (nmlp_server_token){.id = prompt->data[0], .logprob = (double)NAN};
    if (c->job->request.logprobs) {
        st = nmlp_text_session_logits(c->worker->session, c->ids, c->n_ids, 0, on_logits, c, err);
    } else {
        for (int64_t i = 1; i < c->n_ids && c->st == NMLP_OK; i++) {
            nmlp_server_token *kept = add_token(c);
            if (kept) *kept = (nmlp_server_token){.id = c->ids[i], .logprob = (double)NAN};
        }
    }
    if (st == NMLP_OK) st = c->st;
    if (st == NMLP_OK)
        st = nmlp_tokenizer_decode(c->worker->options.tokenizer, prompt->data, prompt->len, false, &text, err);
    if (st == NMLP_OK) st = nmlp_str_status(&text, err);
    if (st == NMLP_OK && !post_piece(c, nmlp_str_text(&text), text.len)) st = c->st;
    nmlp_str_fini(&text);
    return st;
}

/* ---- a job ---- */

static nmlp_status end_choice(struct choice *c, const nmlp_text_result *result, nmlp_err *err) {
    if (c->n_tokens && !post_piece(c, "", 0)) return c->st;
    nmlp_job_event *event = new_event(NMLP_JOB_CHOICE, c->index, err);
    if (!event) return NMLP_E_NOMEM;
    event->finish = result->finish;
    event->n_prompt = result->n_prompt;
    event->n_cached = result->n_cached;
    event->n_generated = (int64_t)result->ids.len;
    event->ttft_ms = result->ttft_ms;
    event->decode_ms = result->decode_ms;
    post(c->worker, c->job, event);
    return NMLP_OK;
}

static nmlp_status run_choice(nmlp_worker *w, nmlp_job *job, int index, const nmlp_ids *prompt,
                              nmlp_text_result *result, nmlp_err *err) {
    const nmlp_completion_request *r = &job->request;
    nmlp_status st = NMLP_OK;
    struct choice c = {.worker = w, .job = job, .index = index, .err = err};
    int64_t room = w->options.context - (int64_t)prompt->len;
    nmlp_text_request text = {.prompt = {.ids = prompt->data, .n_ids = prompt->len},
                              .is_chat = r->messages != NULL,
                              .max_new = r->max_new >= 0 && r->max_new < room ? r->max_new : room,
                              .sampling = r->sampling,
                              .ignore_eos = r->ignore_eos,
                              .stop = r->stop,
                              .n_stop = r->n_stop,
                              .logprobs = r->logprobs,
                              .n_top = r->n_top,
                              .on_token = on_token,
                              .on_text = on_text,
                              .go_on = goes_on,
                              .ctx = &c};
    text.sampling.seed += (uint64_t)index; /* choices of one prompt differ */
    result->ids.len = 0;
    if (r->echo) NMLP_TRY(echo(&c, prompt, err));
    if (r->max_new == 0) {
        result->n_prompt = (int64_t)prompt->len;
        result->n_cached = 0;
        result->finish = NMLP_FINISH_LENGTH;
    } else {
        if (text.max_new < 1) text.max_new = 1; /* a prompt that leaves no room is refused by name */
        NMLP_TRY(nmlp_text_session_run(w->session, &text, result, err));
        NMLP_TRY(c.st);
    }
    if (r->echo && r->logprobs) result->n_cached = 0; /* scoring has run all of it */
    st = end_choice(&c, result, err);
out:
    nmlp_mem_free(c.tokens);
    return st;
}

static nmlp_status encode(const nmlp_worker *w, const nmlp_completion_request *r, int index, nmlp_ids *ids,
                          nmlp_err *err) {
    nmlp_text_prompt prompt = {.messages = r->messages, .n_messages = r->n_messages};
    if (!r->messages) prompt = r->prompts[index];
    ids->len = 0;
    return nmlp_text_prompt_encode(ids, w->options.tokenizer, &prompt, err);
}

static nmlp_status run_job(nmlp_worker *w, nmlp_job *job, nmlp_err *err) {
    const nmlp_completion_request *r = &job->request;
    nmlp_status st = NMLP_OK;
    nmlp_ids ids;
    nmlp_text_result result;
    nmlp_ids_init(&ids);
    nmlp_text_result_init(&result);
    for (int i = 0; i < r->n_prompts * r->n && !atomic_load(&job->cancelled); i++) {
        NMLP_TRY(encode(w, r, i / r->n, &ids, err));
        NMLP_TRY(run_choice(w, job, i, &ids, &result, err));
    }
out:
    nmlp_text_result_fini(&result);
    nmlp_ids_fini(&ids);
    return st;
}

/* ---- the thread ---- */

static nmlp_job *next_job(nmlp_worker *w) {
    pthread_mutex_lock(&w->lock);
    w->running = NULL;
    while (!w->first && !w->stopping) pthread_cond_wait(&w->changed, &w->lock);
    nmlp_job *job = w->stopping ? NULL : w->first;
    if (job) {
        w->first = job->next;
        if (!w->first) w->last = NULL;
        w->n_waiting--;
        w->running = job;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *ctx) {
    nmlp_worker *w = ctx;
    for (nmlp_job *job; (job = next_job(w)) != NULL;) {
        nmlp_err err = {0};
        nmlp_status st = atomic_load(&job->cancelled) ? NMLP_E_INTERRUPTED : run_job(w, job, &err);
        nmlp_job_event *done = new_event(NMLP_JOB_DONE, 0, NULL);
        while (!done) done = new_event(NMLP_JOB_DONE, 0, NULL); /* the server waits for it */
        done->st = st;
        done->err = err;
        post(w, job, done);
    }
    return NULL;
}

nmlp_status nmlp_worker_create(nmlp_worker **out, const nmlp_worker_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_worker *w = nmlp_mem_new(1, sizeof *w, err);
    if (!w) return NMLP_E_NOMEM;
    w->options = *options;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    NMLP_TRY(nmlp_text_session_create(&w->session, options->loaded, options->tokenizer, options->context, err));
    if (pthread_create(&w->thread, NULL, work, w) != 0)
        NMLP_TRY(nmlp_fail(err, NMLP_E_NOMEM, "the engine's thread could not be started"));
    w->started = true;
    *out = w;
out:
    if (st != NMLP_OK) nmlp_worker_destroy(w);
    return st;
}

void nmlp_worker_destroy(nmlp_worker *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    if (w->running) atomic_store(&w->running->cancelled, true);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    nmlp_text_session_destroy(w->session);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    nmlp_mem_free(w);
}

nmlp_status nmlp_worker_submit(nmlp_worker *w, nmlp_job *job, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    pthread_mutex_lock(&w->lock);
    if (w->n_waiting >= w->options.max_waiting) {
        st = nmlp_fail(err, NMLP_E_LIMIT, "%d requests wait already; try again later", w->n_waiting);
    } else {
        job->next = NULL;
        if (w->last) {
            w->last->next = job;
        } else {
            w->first = job;
        }
        w->last = job;
        w->n_waiting++;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return st;
}

void nmlp_worker_load(nmlp_worker *w, int *n_waiting, int *n_running) {
    pthread_mutex_lock(&w->lock);
    *n_waiting = w->n_waiting;
    *n_running = w->running != NULL;
    pthread_mutex_unlock(&w->lock);
}
