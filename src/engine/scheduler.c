#include "engine/scheduler.h"

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"
#include "base/pool.h"
#include "engine/prompt_pace.h"
#include "engine/speculation.h"

/* The part of a step that is the prompts', when decoding sequences could fill it. */
enum { PROMPT_SHARE = 8 };
/* Rows of a step whose logits a prompt's owner gets: few, so that the other sequences of the step do not wait long. */
enum { PROMPT_LOGITS_ROWS = 64 };
/* Steps that a device may start before their turn: enough to keep it busy meanwhile, few since a new prompt waits for
 * all of them. */
enum { STEPS_AHEAD_MAX = 4 };

struct request {
    struct request *next; /* in the order they came */
    nmlp_scheduler_request asked;
    uint64_t number;
    int32_t sequence; /* NMLP_SEQUENCE_NEW: it waits */
    int64_t n_done;   /* of the prompt */
    int32_t id;       /* the token to append next, once the prompt is done */
    bool running;
    bool cancelled;
    bool blocked;        /* had no memory in this step */
    bool chooses;        /* the device does */
    bool complete;       /* says the constraint */
    const float *logits; /* of this step, one row or more */
    nmlp_speculation *speculation;
    bool verifies;                          /* proposals in this step */
    int64_t text_length;                    /* of the sequence, without proposals, after this step */
    int32_t tokens[1 + NMLP_PROPOSALS_MAX]; /* chosen in this step */
    int64_t n_tokens;
    nmlp_sampler sampler;
    nmlp_generation_stats stats;
    double started, first_token; /* seconds */
};

struct nmlp_scheduler {
    nmlp_batch *batch;
    nmlp_pool *pool;
    int64_t vocab;
    const nmlp_batch_options *limits;
    struct request *requests; /* in the order they came */
    int64_t n_running;
    uint64_t n_submitted;
    uint64_t n_steps;
    nmlp_prompt_pace pace;
    uint64_t last_served;          /* where the turn of decoding sequences stands */
    float *logits;                 /* [max_sequences, V] */
    nmlp_sampler_scratch *scratch; /* of threads */
    nmlp_step_item *items;         /* [max_sequences] */
    struct request **of_item;      /* [max_sequences] */
    struct request **chosen;       /* [max_sequences] that have a token to take */
    nmlp_choice_item *choices;     /* [max_sequences] */
    int64_t n_on_device;           /* of them in the last step */
    float *prompt_logits;          /* [PROMPT_LOGITS_ROWS, V] once a request asked for them */
    struct prompt_row {
        const struct request *request;
        int64_t position;
    } prompt_rows[PROMPT_LOGITS_ROWS]; /* of this step */
};

/* ---- life ---- */

nmlp_status nmlp_scheduler_create(nmlp_scheduler **out, nmlp_batch *batch, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_scheduler *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->batch = batch;
    s->limits = nmlp_batch_limits(batch);
    s->pool = nmlp_engine_pool(nmlp_batch_engine(batch));
    s->vocab = nmlp_engine_model(nmlp_batch_engine(batch))->config.vocab;
    size_t n = (size_t)s->limits->max_sequences, n_threads = (size_t)nmlp_pool_threads(s->pool);
    s->logits = nmlp_mem_new(n, (size_t)s->vocab * sizeof *s->logits, err);
    s->scratch = nmlp_mem_new(n_threads, sizeof *s->scratch, err);
    s->items = nmlp_mem_new(n, sizeof *s->items, err);
    s->of_item = nmlp_mem_new(n, sizeof(struct request *), err);
    s->chosen = nmlp_mem_new(n, sizeof(struct request *), err);
    s->choices = nmlp_mem_new(n, sizeof *s->choices, err);
    if (!s->logits || !s->scratch || !s->items || !s->of_item || !s->chosen || !s->choices) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t i = 0; i < n_threads; i++) NMLP_TRY(nmlp_sampler_scratch_init(&s->scratch[i], s->vocab, err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_scheduler_destroy(s);
    return st;
}

/* Takes a request out of the list. */
static void drop(nmlp_scheduler *s, struct request *r) {
    struct request **link = &s->requests;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    if (r->running) s->n_running--;
    if (r->running && r->asked.sequence == NMLP_SEQUENCE_NEW) nmlp_batch_close(s->batch, r->sequence);
    nmlp_speculation_destroy(r->speculation);
    nmlp_sampler_fini(&r->sampler);
    nmlp_mem_free(r);
}

void nmlp_scheduler_destroy(nmlp_scheduler *s) {
    if (!s) return;
    while (s->requests) drop(s, s->requests);
    for (int i = 0; s->scratch && i < nmlp_pool_threads(s->pool); i++) nmlp_sampler_scratch_fini(&s->scratch[i]);
    nmlp_mem_free(s->scratch);
    nmlp_mem_free(s->logits);
    nmlp_mem_free(s->items);
    nmlp_mem_free(s->of_item);
    nmlp_mem_free(s->chosen);
    nmlp_mem_free(s->choices);
    nmlp_mem_free(s->prompt_logits);
    nmlp_mem_free(s);
}

/* ---- requests ---- */

static nmlp_status check(const nmlp_scheduler *s, const nmlp_scheduler_request *asked, nmlp_err *err) {
    const nmlp_generation *g = &asked->generation;
    bool is_new = asked->sequence == NMLP_SEQUENCE_NEW;
    int64_t n = g->n_prompt - g->n_held;
    int64_t room = nmlp_min(s->limits->context, s->limits->positions);
    if (!is_new) room -= nmlp_batch_length(s->batch, asked->sequence);
    if (n < 1) return nmlp_fail(err, NMLP_E_ARG, "the prompt is empty; at least one token is needed");
    if (is_new && g->n_held > 0)
        return nmlp_fail(err, NMLP_E_ARG, "a new sequence holds nothing of the prompt; n_held is %lld",
                         (long long)g->n_held);
    if (n >= room) {
        nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %lld tokens; the context of %lld leaves no room for an answer",
                  (long long)g->n_prompt, (long long)s->limits->context);
        nmlp_fail_hint(err, "shorten the prompt or raise `context`");
        return NMLP_E_LIMIT;
    }
    NMLP_RETURN_IF_FAILED(nmlp_sampling_check(&g->sampling, err));
    for (int64_t i = 0; i < g->n_prompt; i++)
        if (g->prompt[i] < 0 || g->prompt[i] >= s->vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld",
                             g->prompt[i], (long long)i, (long long)s->vocab);
    if (g->hidden && !nmlp_batch_gives_hidden(s->batch))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "this device does not give the states of tokens");
    if (g->draft && g->constraint)
        return nmlp_fail_field(err, NMLP_E_ARG, "draft", "does not go with a constraint of the answer");
    return g->draft ? nmlp_speculation_check(s->batch, g->draft, &g->sampling, err) : NMLP_OK;
}

nmlp_status nmlp_scheduler_submit(nmlp_scheduler *s, const nmlp_scheduler_request *asked, uint64_t *number,
                                  nmlp_err *err) {
    const nmlp_generation *g = &asked->generation;
    nmlp_status st = NMLP_OK;
    *number = 0;
    NMLP_RETURN_IF_FAILED(check(s, asked, err));
    struct request *r = nmlp_mem_new(1, sizeof *r, err);
    if (!r) return NMLP_E_NOMEM;
    r->asked = *asked;
    r->sequence = asked->sequence;
    r->n_done = g->n_held;
    r->chooses = !g->on_logits && !g->draft && !g->constraint && !g->on_prompt_logits &&
                 nmlp_batch_can_choose(s->batch, &g->sampling);
    r->stats.finish = NMLP_FINISH_LENGTH;
    r->started = nmlp_clock_seconds();
    if (g->on_prompt_logits && !s->prompt_logits) {
        s->prompt_logits = nmlp_mem_new(PROMPT_LOGITS_ROWS, (size_t)s->vocab * sizeof *s->prompt_logits, err);
        if (!s->prompt_logits) NMLP_TRY(NMLP_E_NOMEM);
    }
    NMLP_TRY(nmlp_sampler_init(&r->sampler, &g->sampling, s->vocab, err));
    for (int64_t i = 0; i < g->n_prompt; i++) nmlp_sampler_accept_prompt(&r->sampler, g->prompt[i]);
    if (g->draft)
        NMLP_TRY(nmlp_speculation_create(&r->speculation, g->draft, &g->sampling, g->prompt, g->n_prompt,
                                         s->limits->context + 1 + NMLP_PROPOSALS_MAX, err));
    *number = r->number = ++s->n_submitted;
    struct request **link = &s->requests;
    while (*link) link = &(*link)->next;
    *link = r;
    return NMLP_OK;
out:
    nmlp_sampler_fini(&r->sampler);
    nmlp_mem_free(r);
    return st;
}

void nmlp_scheduler_cancel(nmlp_scheduler *s, uint64_t number) {
    for (struct request *r = s->requests; r; r = r->next)
        if (r->number == number) r->cancelled = true;
}

int64_t nmlp_scheduler_count(const nmlp_scheduler *s) {
    int64_t n = 0;
    for (const struct request *r = s->requests; r; r = r->next) n++;
    return n;
}

double nmlp_scheduler_memory_used(const nmlp_scheduler *s) {
    int64_t held = 0;
    for (const struct request *r = s->requests; r; r = r->next)
        if (r->running) held += nmlp_batch_length(s->batch, r->sequence);
    return (double)nmlp_min(held, s->limits->positions) / (double)s->limits->positions;
}

/* The request leaves before its owner hears of it, so that the owner may submit another. */
static void finish(nmlp_scheduler *s, struct request *r, nmlp_status status, const nmlp_err *err) {
    nmlp_generation_stats stats = r->stats;
    nmlp_scheduler_request asked = r->asked;
    if (r->first_token > 0) stats.decode_ms = 1e3 * (nmlp_clock_seconds() - r->first_token);
    drop(s, r);
    if (asked.on_done) asked.on_done(asked.generation.ctx, status, &stats, status == NMLP_OK ? NULL : err);
}

static bool is_prompt(const struct request *r) { return r->n_done < r->asked.generation.n_prompt; }

/* ---- admission ---- */

static void end_cancelled(nmlp_scheduler *s) {
    for (struct request *r = s->requests, *next; r; r = next) {
        next = r->next;
        if (!r->cancelled) continue;
        r->stats.finish = NMLP_FINISH_CALLER;
        finish(s, r, NMLP_OK, NULL);
    }
}

/* Memory for the whole prompt, so that prompts under way do not wait for each other. */
static nmlp_status admit(nmlp_scheduler *s, struct request *r, nmlp_err *err) {
    const nmlp_generation *g = &r->asked.generation;
    bool is_new = r->asked.sequence == NMLP_SEQUENCE_NEW;
    if (is_new) {
        int64_t n_shareable = g->on_prompt_logits ? 0 : g->n_prompt;
        NMLP_RETURN_IF_FAILED(nmlp_batch_open(s->batch, g->prompt, n_shareable, &r->sequence, err));
        r->n_done = r->stats.n_cached = nmlp_batch_length(s->batch, r->sequence);
    }
    nmlp_status st = nmlp_batch_reserve(s->batch, r->sequence, g->n_prompt - r->n_done, err);
    if (st != NMLP_OK) {
        if (is_new) nmlp_batch_close(s->batch, r->sequence);
        return st;
    }
    r->running = true;
    s->n_running++;
    return NMLP_OK;
}

/* In the order they came; those behind one that must wait for memory wait too. */
static void admit_waiting(nmlp_scheduler *s) {
    nmlp_err err;
    for (struct request *r = s->requests, *next; r; r = next) {
        next = r->next;
        if (r->running) continue;
        if (s->n_running == s->limits->max_sequences) return;
        nmlp_status st = admit(s, r, &err);
        if (st == NMLP_OK) continue;
        if (st == NMLP_E_LIMIT && s->n_running > 0) return;
        finish(s, r, st, &err);
    }
}

/* ---- a step ---- */

/* What one step holds. */
struct plan {
    int64_t n_items;
    int64_t n_rows;
    int64_t n_decoding; /* items at the beginning that are no prompts */
    int64_t n_decoding_rows;
    int64_t n_logits;
    int64_t n_prompt_logits;
    int64_t n_prompts; /* under way */
};

static void add_item(nmlp_scheduler *s, struct plan *p, struct request *r, const int32_t *ids, int64_t n, bool last) {
    nmlp_step_item *item = &s->items[p->n_items];
    *item = (nmlp_step_item){.sequence = r->sequence, .ids = ids, .n = n};
    r->logits = NULL;
    r->verifies = false;
    r->text_length = nmlp_batch_length(s->batch, r->sequence) + n;
    if (last && is_prompt(r)) item->hidden = r->asked.generation.hidden;
    if (last && r->asked.generation.max_new > 0) {
        if (r->chooses) {
            item->choose = &r->asked.generation.sampling;
        } else {
            item->n_logits = 1;
            item->logits = s->logits + p->n_logits++ * s->vocab;
            r->logits = item->logits;
        }
    }
    s->of_item[p->n_items++] = r;
    p->n_rows += n;
}

/* The next token and what the draft proposes after it, at most `most` tokens. */
static void add_speculation(nmlp_scheduler *s, struct plan *p, struct request *r, int64_t most) {
    const nmlp_generation *g = &r->asked.generation;
    most = nmlp_min(most, s->limits->context - nmlp_batch_length(s->batch, r->sequence) - 1);
    most = nmlp_min(most, g->max_new - r->stats.n_generated - 1);
    int64_t n = nmlp_speculation_propose(r->speculation, &r->sampler, &s->scratch[0], most);
    nmlp_step_item *item = &s->items[p->n_items];
    if (n > 0 && nmlp_batch_reserve(s->batch, r->sequence, 1 + n, NULL) != NMLP_OK) { /* then without */
        n = nmlp_speculation_propose(r->speculation, &r->sampler, &s->scratch[0], 0);
    }
    add_item(s, p, r, nmlp_speculation_rows(r->speculation), 1 + n, false);
    item->n_logits = 1 + n;
    item->logits = nmlp_speculation_logits(r->speculation);
    r->logits = item->logits;
    r->verifies = true;
    r->text_length -= n;
    r->stats.n_proposed += n;
}

/* One row of each decoding sequence, beginning behind the one that was served last. */
static void add_decoding(nmlp_scheduler *s, struct plan *p, int64_t budget) {
    nmlp_err err;
    uint64_t turn = s->last_served;
    for (int round = 0; round < 2; round++) {
        for (struct request *r = s->requests; r && p->n_rows < budget; r = r->next) {
            if (!r->running || is_prompt(r) || (r->number > turn) != (round == 0)) continue;
            r->blocked = nmlp_batch_reserve(s->batch, r->sequence, 1, &err) != NMLP_OK;
            if (r->blocked) continue;
            if (r->speculation)
                add_speculation(s, p, r, budget - p->n_rows - 1);
            else
                add_item(s, p, r, &r->id, 1, true);
            s->last_served = r->number;
        }
    }
}

/* A piece of a prompt whose owner wants the logits of all its rows. */
static void add_prompt_with_logits(nmlp_scheduler *s, struct plan *p, struct request *r, int64_t most) {
    const nmlp_generation *g = &r->asked.generation;
    int64_t left = g->n_prompt - r->n_done;
    int64_t some = nmlp_min(nmlp_min(left, most), PROMPT_LOGITS_ROWS - p->n_prompt_logits);
    if (some < 1) return;
    nmlp_step_item *item = &s->items[p->n_items];
    add_item(s, p, r, g->prompt + r->n_done, some, false);
    item->n_logits = some;
    item->logits = s->prompt_logits + p->n_prompt_logits * s->vocab;
    if (some == left) item->hidden = g->hidden;
    if (some == left && g->max_new > 0) r->logits = item->logits + (some - 1) * s->vocab;
    for (int64_t i = 0; i < some; i++)
        s->prompt_rows[p->n_prompt_logits++] = (struct prompt_row){.request = r, .position = r->n_done + i};
}

static void add_prompts(nmlp_scheduler *s, struct plan *p) {
    int64_t most = s->limits->max_rows, pace = nmlp_prompt_pace_rows(&s->pace, p->n_decoding, p->n_prompts);
    if (pace < most - p->n_rows) most = p->n_rows + pace;
    for (struct request *r = s->requests; r && p->n_rows < most; r = r->next) {
        const nmlp_generation *g = &r->asked.generation;
        if (!r->running || !is_prompt(r)) continue;
        int64_t left = g->n_prompt - r->n_done;
        int64_t some = nmlp_min(left, most - p->n_rows);
        if (g->on_prompt_logits)
            add_prompt_with_logits(s, p, r, some);
        else
            add_item(s, p, r, g->prompt + r->n_done, some, some == left);
    }
}

static void hand_over_prompt_logits(void *arg, int64_t begin, int64_t end, int thread) {
    const nmlp_scheduler *s = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const nmlp_generation *g = &s->prompt_rows[i].request->asked.generation;
        g->on_prompt_logits(g->ctx, s->prompt_rows[i].position, s->prompt_logits + i * s->vocab);
    }
}

/* Rows that decoding sequences may take beside prompts; of a single row every other one. */
static int64_t decode_rows(const nmlp_scheduler *s) {
    int64_t rows = s->limits->max_rows;
    if (rows == 1) return (int64_t)(s->n_steps & 1);
    return rows - nmlp_max(1, rows / PROMPT_SHARE);
}

static struct plan plan_step(nmlp_scheduler *s) {
    struct plan p = {0};
    for (struct request *r = s->requests; r; r = r->next) {
        r->blocked = false;
        p.n_prompts += r->running && is_prompt(r);
    }
    s->n_steps++;
    add_decoding(s, &p, p.n_prompts > 0 ? decode_rows(s) : s->limits->max_rows);
    p.n_decoding = p.n_items;
    p.n_decoding_rows = p.n_rows;
    /* Steps that have been started are not thrown away: their rows would wait for them and for a step of their own. */
    bool started = nmlp_batch_steps_ahead(s->batch) > 0 && p.n_items == s->n_on_device;
    if (!started) add_prompts(s, &p);
    return p;
}

/* Nobody can go on: the one that came last gives its memory back. */
static void fail_last_blocked(nmlp_scheduler *s) {
    struct request *last = NULL;
    nmlp_err err;
    for (struct request *r = s->requests; r; r = r->next)
        if (r->blocked) last = r;
    if (!last) return;
    nmlp_status st = nmlp_batch_reserve(s->batch, last->sequence, 1, &err);
    if (st != NMLP_OK) finish(s, last, st, &err);
}

/* One token, or none where the text is complete or, with -1, cannot be gone on with. */
static void sample_constrained(struct request *r, nmlp_sampler_scratch *scratch) {
    const nmlp_token_constraint *c = r->asked.generation.constraint;
    r->sampler.allowed = c->allowed(c->ctx);
    r->complete = !r->sampler.allowed;
    if (r->complete)
        r->n_tokens = 0;
    else
        r->tokens[0] = nmlp_sampler_next(&r->sampler, scratch, r->logits);
}

static void sample(void *arg, int64_t begin, int64_t end, int thread) {
    nmlp_scheduler *s = arg;
    for (int64_t i = begin; i < end; i++) {
        struct request *r = s->chosen[i];
        if (r->verifies) {
            r->n_tokens = nmlp_speculation_verify(r->speculation, &r->sampler, &s->scratch[thread], r->tokens);
        } else if (r->asked.generation.constraint) {
            sample_constrained(r, &s->scratch[thread]);
        } else if (r->logits) {
            r->tokens[0] = nmlp_sampler_next(&r->sampler, &s->scratch[thread], r->logits);
        }
    }
}

/* Steps that all sequences will take as they are now, as far as is known. */
static int64_t steps_ahead(const nmlp_scheduler *s, const struct plan *p) {
    int64_t most = s->limits->max_sequences > 1 ? STEPS_AHEAD_MAX : INT64_MAX;
    if (p->n_prompts > 0) return 0;
    for (const struct request *r = s->requests; r; r = r->next) {
        if (!r->running || r->blocked || !r->chooses) return 0;
        most = nmlp_min(most, r->asked.generation.max_new - r->stats.n_generated - 1);
    }
    return nmlp_max(0, most);
}

/* The next token of every sequence whose last known one was in the step. */
static nmlp_status choose(nmlp_scheduler *s, const struct plan *p, int64_t *n_chosen, nmlp_err *err) {
    int64_t n = 0, n_on_device = 0;
    for (int64_t i = 0; i < p->n_items; i++) {
        if (!s->of_item[i]->logits && !s->items[i].choose) continue;
        s->chosen[n++] = s->of_item[i];
        if (s->items[i].choose) s->choices[n_on_device++] = (nmlp_choice_item){.sequence = s->items[i].sequence};
    }
    *n_chosen = n;
    s->n_on_device = n_on_device;
    if (n_on_device > 0)
        NMLP_RETURN_IF_FAILED(nmlp_batch_choose(s->batch, s->choices, n_on_device, steps_ahead(s, p), err));
    for (int64_t i = 0, at = 0; i < n; i++) {
        struct request *r = s->chosen[i];
        r->n_tokens = 1;
        if (!r->logits) r->tokens[0] = s->choices[at++].id;
    }
    if (n > n_on_device) nmlp_pool_for(s->pool, n, 1, sample, s);
    return NMLP_OK;
}

/* Hands over the tokens of a step. Those that a draft proposed are in the sequence already; what follows the last of
 * them is dropped. False when the request is done. */
static bool take(nmlp_scheduler *s, struct request *r) {
    const nmlp_generation *g = &r->asked.generation;
    if (r->complete) {
        r->stats.finish = NMLP_FINISH_STOP;
        return false;
    }
    nmlp_batch_truncate(s->batch, r->sequence, r->text_length + r->n_tokens - 1);
    for (int64_t i = 0; i < r->n_tokens; i++) {
        int64_t length = r->text_length + i;
        if (i + 1 < r->n_tokens) r->stats.n_accepted++;
        if (r->speculation) nmlp_speculation_append(r->speculation, r->tokens[i]);
        nmlp_sampler_accept(&r->sampler, r->tokens[i]);
        if (g->constraint) g->constraint->accept(g->constraint->ctx, r->tokens[i]);
        const float *logits = r->logits ? r->logits + i * s->vocab : NULL;
        if (!nmlp_generation_take(g, &r->stats, r->tokens[i], logits, s->limits->context - length)) {
            nmlp_batch_truncate(s->batch, r->sequence, length);
            return false;
        }
    }
    r->id = r->tokens[r->n_tokens - 1];
    return true;
}

static void take_tokens(nmlp_scheduler *s, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        struct request *r = s->chosen[i];
        if (r->first_token == 0) {
            r->first_token = nmlp_clock_seconds();
            r->stats.ttft_ms = 1e3 * (r->first_token - r->started);
        }
        if (r->n_tokens > 0 && r->tokens[0] < 0) {
            nmlp_err err;
            nmlp_fail(&err, NMLP_E_UNSUPPORTED, "no token of the vocabulary goes on as the grammar wants it");
            finish(s, r, NMLP_E_UNSUPPORTED, &err);
        } else if (!take(s, r)) {
            finish(s, r, NMLP_OK, NULL);
        }
    }
}

/* Prompts that were only to be appended. */
static void end_silent(nmlp_scheduler *s) {
    for (struct request *r = s->requests, *next; r; r = next) {
        next = r->next;
        if (r->running && !is_prompt(r) && r->asked.generation.max_new < 1) finish(s, r, NMLP_OK, NULL);
    }
}

nmlp_status nmlp_scheduler_step(nmlp_scheduler *s, nmlp_err *err) {
    int64_t n_chosen = 0;
    end_cancelled(s);
    admit_waiting(s);
    struct plan p = plan_step(s);
    if (p.n_items == 0) {
        fail_last_blocked(s);
        return NMLP_OK;
    }
    double started = nmlp_clock_seconds();
    nmlp_status st = nmlp_batch_step(s->batch, s->items, p.n_items, err);
    if (st == NMLP_OK) {
        for (int64_t i = 0; i < p.n_items; i++)
            if (is_prompt(s->of_item[i])) s->of_item[i]->n_done += s->items[i].n;
        nmlp_pool_for(s->pool, p.n_prompt_logits, 1, hand_over_prompt_logits, s);
        st = choose(s, &p, &n_chosen, err);
    }
    if (st != NMLP_OK) {
        for (int64_t i = 0; i < p.n_items; i++) finish(s, s->of_item[i], st, err);
        return st;
    }
    nmlp_prompt_pace_note(&s->pace, p.n_decoding, p.n_prompts, p.n_rows - p.n_decoding_rows,
                          nmlp_clock_seconds() - started);
    take_tokens(s, n_chosen);
    end_silent(s);
    return NMLP_OK;
}
