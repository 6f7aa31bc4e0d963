#include "server/worker.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"

struct nmlp_worker {
    nmlp_worker_options options;
    nmlp_text_batch *batch;
    pthread_t thread;
    bool started;
    nmlp_job *active;     /* jobs that run; the worker's thread only */
    int64_t n_choices;    /* of theirs under way */
    bool posted;          /* events of which the server has not heard */
    pthread_mutex_t lock; /* of all below, and of the events of jobs */
    pthread_cond_t changed;
    nmlp_job *first, *last;
    int n_waiting, n_active;
    double memory_used;
    bool stopping;
};

/* One answer of a job. */
typedef struct nmlp_job_choice {
    nmlp_worker *worker;
    nmlp_job *job;
    int index;
    bool under_way;
    bool echoes;     /* the prompt is still to be posted */
    uint64_t number; /* in the batch */
    nmlp_ids prompt;
    nmlp_guide *guide; /* of an answer that must follow a grammar */
    nmlp_token_constraint constraint;
    float *hidden;             /* [H] where a state is asked for */
    nmlp_server_token *tokens; /* not yet posted: they wait for their text */
    size_t n_tokens, capacity;
    nmlp_status st;
    nmlp_err err;
} nmlp_job_choice;

/* ---- events ---- */

void nmlp_job_event_destroy(nmlp_job_event *event) {
    nmlp_str_fini(&event->text);
    nmlp_mem_free(event->tokens);
    nmlp_mem_free(event->values);
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
    w->posted = true;
}

/* Once a step, whatever its events: a wake-up costs both threads more than an event does. */
static void tell_server(nmlp_worker *w) {
    if (!w->posted) return;
    w->posted = false;
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

static bool goes_on(void *ctx) {
    const nmlp_job_choice *c = ctx;
    return c->st == NMLP_OK && !atomic_load(&c->job->cancelled);
}

static nmlp_server_token *add_token(nmlp_job_choice *c) {
    if (c->n_tokens == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 1; /* most are posted before the next one comes */
        nmlp_server_token *more = nmlp_mem_new(capacity, sizeof *more, &c->err);
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

static bool post_piece(nmlp_job_choice *c, const char *text, size_t len) {
    if (c->st != NMLP_OK) return false; /* a piece before this one is lacking */
    nmlp_job_event *event = new_event(NMLP_JOB_PIECE, c->index, &c->err);
    if (!event) {
        c->st = NMLP_E_NOMEM;
        return false;
    }
    nmlp_str_append(&event->text, text, len);
    c->st = nmlp_str_status(&event->text, &c->err);
    if (c->st != NMLP_OK) {
        nmlp_job_event_destroy(event);
        return false;
    }
    event->tokens = c->tokens;
    event->n_tokens = c->n_tokens;
    c->tokens = NULL;
    c->n_tokens = c->capacity = 0;
    post(c->worker, c->job, event);
    return true;
}

static void keep_token(nmlp_server_token *kept, const nmlp_text_token *token) {
    *kept = (nmlp_server_token){.id = token->id, .logprob = token->logprob, .n_top = token->n_top};
    if (token->n_top) memcpy(kept->top, token->top, (size_t)token->n_top * sizeof *kept->top);
}

static bool on_text(void *ctx, const char *text, size_t len) { return post_piece(ctx, text, len); }

/* ---- the prompt as part of the answer ---- */

static void on_prompt_token(void *ctx, int64_t position, const nmlp_text_token *token) {
    nmlp_job_choice *c = ctx;
    keep_token(&c->tokens[position], token); /* there is room, see begin_echo */
}

/* Room for the tokens of the prompt; nothing stands before the first, so that it is never scored. */
static nmlp_status begin_echo(nmlp_job_choice *c, nmlp_err *err) {
    c->tokens = nmlp_mem_new(c->prompt.len, sizeof *c->tokens, err);
    if (!c->tokens) return NMLP_E_NOMEM;
    c->n_tokens = c->capacity = c->prompt.len;
    for (size_t i = 0; i < c->prompt.len; i++)
        c->tokens[i] = (nmlp_server_token){.id = c->prompt.data[i], .logprob = (double)NAN};
    return NMLP_OK;
}

/* The text of the prompt, once its tokens are scored. */
static bool end_echo(nmlp_job_choice *c) {
    const nmlp_tokenizer *tokenizer = c->worker->options.tokenizer;
    nmlp_str text;
    if (!c->echoes) return true;
    c->echoes = false;
    nmlp_str_init(&text);
    c->st = nmlp_tokenizer_decode(tokenizer, c->prompt.data, c->prompt.len, false, &text, &c->err);
    if (c->st == NMLP_OK) c->st = nmlp_str_status(&text, &c->err);
    bool ok = c->st == NMLP_OK && post_piece(c, nmlp_str_text(&text), text.len);
    nmlp_str_fini(&text);
    return ok;
}

static bool on_token(void *ctx, const nmlp_text_token *token) {
    nmlp_job_choice *c = ctx;
    nmlp_server_token *kept = end_echo(c) ? add_token(c) : NULL;
    if (!kept) return false;
    keep_token(kept, token);
    return true;
}

/* ---- grammars ---- */

static const uint32_t *allowed_tokens(void *ctx) { return nmlp_guide_allowed(ctx); }
static void accept_token(void *ctx, int32_t id) { nmlp_guide_accept(ctx, id); }

static nmlp_status begin_guide(nmlp_job_choice *c, nmlp_text_request *text, nmlp_err *err) {
    if (!c->job->grammar) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_cached_grammar_begin(c->job->grammar, &c->guide, err));
    c->constraint = (nmlp_token_constraint){.allowed = allowed_tokens, .accept = accept_token, .ctx = c->guide};
    text->constraint = &c->constraint;
    return NMLP_OK;
}

/* ---- a job ---- */

static void fail_job(nmlp_job *job, nmlp_status st, const nmlp_err *err) {
    if (job->st != NMLP_OK) return;
    job->st = st;
    if (err) job->err = *err;
    atomic_store(&job->cancelled, true); /* its other choices end too */
}

/* A vector of length 1, as similarities are computed. */
static void normalise(float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n && sum > 0; i++) x[i] = (float)((double)x[i] / sqrt(sum));
}

static void end_choice(nmlp_job_choice *c, const nmlp_text_result *result) {
    nmlp_job *job = c->job;
    nmlp_job_event *event = NULL;
    c->under_way = false;
    job->n_ended++;
    if (job->st == NMLP_OK && end_echo(c) && (!c->n_tokens || post_piece(c, "", 0)))
        event = new_event(NMLP_JOB_CHOICE, c->index, &job->err);
    if (!event) {
        fail_job(job, NMLP_E_NOMEM, NULL);
        return;
    }
    event->finish = result->finish;
    if (c->hidden) {
        event->n_values = c->worker->options.loaded->model.config.hidden;
        normalise(c->hidden, event->n_values);
        event->values = c->hidden;
        c->hidden = NULL;
    }
    event->n_prompt = result->n_prompt;
    event->n_cached = result->n_cached;
    event->n_generated = (int64_t)result->ids.len;
    event->ttft_ms = result->ttft_ms;
    event->decode_ms = result->decode_ms;
    post(c->worker, job, event);
}

static void on_done(void *ctx, nmlp_status status, const nmlp_text_result *result, const nmlp_err *err) {
    nmlp_job_choice *c = ctx;
    c->worker->n_choices--;
    nmlp_err busy;
    if (status == NMLP_OK) status = c->st;
    if (status == NMLP_E_LIMIT) { /* the request could run, had others not taken the memory */
        status = nmlp_fail(&busy, NMLP_E_NOMEM, "the memory for keys and values is used up; try again later");
        err = &busy;
    }
    if (status != NMLP_OK) fail_job(c->job, status, err ? err : &c->err);
    end_choice(c, result);
}

static nmlp_status begin_choice(nmlp_job_choice *c, nmlp_err *err) {
    nmlp_worker *w = c->worker;
    const nmlp_completion_request *r = &c->job->request;
    nmlp_text_prompt prompt;
    nmlp_request_chat_prompt(&prompt, r);
    if (!r->messages) prompt = r->prompts[c->index / r->n];
    NMLP_RETURN_IF_FAILED(nmlp_text_prompt_encode(&c->prompt, w->options.tokenizer, &prompt, err));
    c->echoes = r->echo && c->prompt.len > 0;
    if (c->echoes) NMLP_RETURN_IF_FAILED(begin_echo(c, err));
    if (r->embeds) {
        c->hidden = nmlp_mem_new((size_t)w->options.loaded->model.config.hidden, sizeof *c->hidden, err);
        if (!c->hidden) return NMLP_E_NOMEM;
    }
    if (r->max_new == 0 && !r->logprobs && !r->embeds) { /* then the prompt is echoed only */
        const nmlp_worker_options *o = &w->options;
        NMLP_RETURN_IF_FAILED(nmlp_text_check_room(&o->loaded->model.config, &c->prompt, o->batch.context, err));
        nmlp_text_result nothing = {.n_prompt = (int64_t)c->prompt.len, .finish = NMLP_FINISH_LENGTH};
        end_choice(c, &nothing);
        return NMLP_OK;
    }
    int64_t room = w->options.batch.context - (int64_t)c->prompt.len;
    nmlp_text_request text = {.prompt = {.ids = c->prompt.data, .n_ids = c->prompt.len},
                              .is_chat = r->messages != NULL,
                              .max_new = r->max_new >= 0 && r->max_new < room ? r->max_new : room,
                              .sampling = r->sampling,
                              .ignore_eos = r->ignore_eos,
                              .show_special = r->calls_tools, /* marks of calls; the grammar allows no others */
                              .hidden = c->hidden,
                              .stop = r->stop,
                              .n_stop = r->n_stop,
                              .logprobs = r->logprobs,
                              .n_top = r->n_top,
                              .on_token = on_token,
                              .on_text = on_text,
                              .go_on = goes_on,
                              .ctx = c};
    if (r->echo && r->logprobs) text.on_prompt_token = on_prompt_token;
    if (text.max_new < 1 && r->max_new != 0) text.max_new = 1; /* a prompt that leaves no room is refused by name */
    text.sampling.seed += (uint64_t)c->index;                  /* choices of one prompt differ */
    NMLP_RETURN_IF_FAILED(begin_guide(c, &text, err));
    NMLP_RETURN_IF_FAILED(nmlp_text_batch_submit(w->batch, &text, on_done, &c->number, err));
    c->under_way = true;
    w->n_choices++;
    return NMLP_OK;
}

/* The next choice of a job; one that cannot begin ends the job. */
static void begin_next(nmlp_worker *w, nmlp_job *job) {
    nmlp_job_choice *c = &job->choices[job->n_begun];
    c->worker = w;
    c->job = job;
    c->index = job->n_begun++;
    nmlp_ids_init(&c->prompt);
    nmlp_status st = begin_choice(c, &c->err);
    if (st == NMLP_OK) return;
    fail_job(job, st, &c->err);
    job->n_ended++;
}

static int n_choices_of(const nmlp_job *job) { return job->request.n_prompts * job->request.n; }

static bool has_more(const nmlp_job *job) { return !atomic_load(&job->cancelled) && job->n_begun < n_choices_of(job); }

static void end_job(nmlp_worker *w, nmlp_job *job) {
    nmlp_job_event *done = new_event(NMLP_JOB_DONE, 0, NULL);
    while (!done) done = new_event(NMLP_JOB_DONE, 0, NULL); /* the server waits for it */
    for (int i = 0; i < job->n_begun; i++) {
        nmlp_ids_fini(&job->choices[i].prompt);
        nmlp_cached_grammar_end(job->grammar, job->choices[i].guide);
        nmlp_mem_free(job->choices[i].hidden);
        nmlp_mem_free(job->choices[i].tokens);
    }
    nmlp_mem_free(job->choices);
    job->choices = NULL;
    done->st = job->st == NMLP_OK && job->n_begun < n_choices_of(job) ? NMLP_E_INTERRUPTED : job->st;
    done->err = job->err;
    post(w, job, done);
}

/* ---- the thread ---- */

/* A job of the queue whose client is gone: it leaves at once. */
static nmlp_job *take_cancelled(nmlp_worker *w) {
    nmlp_job *before = NULL;
    for (nmlp_job *job = w->first; job; before = job, job = job->next) {
        if (!atomic_load(&job->cancelled)) continue;
        if (before)
            before->next = job->next;
        else
            w->first = job->next;
        if (w->last == job) w->last = before;
        w->n_waiting--;
        w->n_active++;
        return job;
    }
    return NULL;
}

/* The first job of the queue, where another one may run; waits for one when nothing runs. NULL: none, or the end. */
static nmlp_job *next_job(nmlp_worker *w) {
    nmlp_job *job = NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->active && !w->stopping) pthread_cond_wait(&w->changed, &w->lock);
    job = take_cancelled(w);
    if (!job && !w->stopping && w->first && w->n_active < w->options.batch.max_sequences &&
        w->n_choices < w->options.batch.max_sequences) {
        job = w->first;
        w->first = job->next;
        if (!w->first) w->last = NULL;
        w->n_waiting--;
        w->n_active++;
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static bool is_stopping(nmlp_worker *w) {
    double memory_used = nmlp_text_batch_memory_used(w->batch);
    pthread_mutex_lock(&w->lock);
    bool stopping = w->stopping;
    w->memory_used = memory_used;
    pthread_mutex_unlock(&w->lock);
    return stopping;
}

/* New jobs come first, so that one with many choices does not keep others waiting; what is free then is theirs. */
static void fill(nmlp_worker *w) {
    for (nmlp_job *job; (job = next_job(w)) != NULL;) {
        job->choices = nmlp_mem_new((size_t)n_choices_of(job), sizeof *job->choices, &job->err);
        if (!job->choices) fail_job(job, NMLP_E_NOMEM, NULL);
        job->next = w->active;
        w->active = job;
        if (has_more(job)) begin_next(w, job);
    }
    for (nmlp_job *job = w->active; job; job = job->next)
        while (w->n_choices < w->options.batch.max_sequences && has_more(job)) begin_next(w, job);
}

static void cancel_choices(nmlp_worker *w, nmlp_job *job) {
    for (int i = 0; i < job->n_begun; i++)
        if (job->choices[i].under_way) nmlp_text_batch_cancel(w->batch, job->choices[i].number);
}

/* Jobs that are cancelled or complete leave. */
static void sort_out(nmlp_worker *w) {
    for (nmlp_job **at = &w->active; *at;) {
        nmlp_job *job = *at;
        bool cancelled = atomic_load(&job->cancelled);
        if (cancelled) cancel_choices(w, job);
        if (job->n_ended < job->n_begun || has_more(job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        pthread_mutex_lock(&w->lock);
        w->n_active--;
        pthread_mutex_unlock(&w->lock);
        end_job(w, job);
    }
}

static void *work(void *ctx) {
    nmlp_worker *w = ctx;
    while (!is_stopping(w)) {
        fill(w);
        sort_out(w);
        if (w->n_choices > 0) nmlp_text_batch_step(w->batch);
        tell_server(w);
    }
    for (nmlp_job *job = w->active; job; job = job->next) atomic_store(&job->cancelled, true);
    sort_out(w);
    if (w->n_choices > 0) nmlp_text_batch_step(w->batch); /* ends them */
    sort_out(w);
    tell_server(w);
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
    NMLP_TRY(nmlp_text_batch_create(&w->batch, options->loaded, options->tokenizer, &options->batch, err));
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
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->started) pthread_join(w->thread, NULL);
    nmlp_text_batch_destroy(w->batch);
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

nmlp_worker_state nmlp_worker_look(nmlp_worker *w) {
    pthread_mutex_lock(&w->lock);
    nmlp_worker_state state = {.n_waiting = w->n_waiting, .n_running = w->n_active, .memory_used = w->memory_used};
    pthread_mutex_unlock(&w->lock);
    return state;
}
