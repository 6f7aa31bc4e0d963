/* The table of CUDA over pages, on a device that is played here: its memory holds token ids, and the token it chooses
 * is a hash of all tokens that the sequence's pages spell. Whatever is shared, copied, evicted, cut or run ahead of the
 * text, a choice is the hash of the sequence's own text. Runs where there is no GPU: the linker puts the functions
 * below between the engine and the device (--wrap). */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/cuda.h"
#include "cuda/layout.h"
#include "engine/backend.h"
#include "engine/batch.h"
#include "engine/scheduler.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

enum { PAGE = NMLP_CUDA_PAGE_POSITIONS, CONTEXT = 5 * PAGE + 11, SEQUENCES = 6, ROWS = 200, POSITIONS = 9 * PAGE };
enum { TABLE = (CONTEXT + PAGE - 1) / PAGE, PAGES_MAX = 64, STEPS = 6000, VOCAB = TINY_VOCAB };

/* ---- the device ---- */

struct device_sequence {
    int64_t length;
    bool ahead;
    int32_t choices[NMLP_CUDA_BATCH_AHEAD + 1]; /* the one after the last token, and those of steps ahead */
};

struct nmlp_cuda_batch {
    int64_t n_pages;
    int32_t memory[PAGES_MAX][PAGE];
    int32_t host_tables[SEQUENCES][TABLE];
    int32_t tables[SEQUENCES][TABLE]; /* what the device has got of them */
    struct device_sequence sequences[SEQUENCES];
    int32_t set[SEQUENCES];
    int64_t n_set, n_ahead, n_taken_ahead, n_forgotten, n_copies;
};

static int32_t hash_next(uint64_t hash, int32_t id) {
    return (int32_t)((hash * 31 + (uint64_t)id * 7919 + 1) % 1000003);
}

static int32_t choice_of(int32_t hash) { return hash % VOCAB; }

/* Token `id` at `position`: into its page, and a choice from all pages up to it. */
static int32_t run_row(nmlp_cuda_batch *b, int32_t sequence, int64_t position, int32_t id) {
    const int32_t *table = b->tables[sequence];
    int32_t hash = 0;
    assert_in_range(table[position / PAGE], 0, b->n_pages - 1);
    b->memory[table[position / PAGE]][position % PAGE] = id;
    for (int64_t p = 0; p <= position; p++) hash = hash_next((uint64_t)hash, b->memory[table[p / PAGE]][p % PAGE]);
    return choice_of(hash);
}

nmlp_status __wrap_nmlp_cuda_engine_create(nmlp_cuda_engine **out, const nmlp_model *model,
                                           const nmlp_progress *progress, nmlp_err *err);
void __wrap_nmlp_cuda_engine_destroy(nmlp_cuda_engine *engine);
const char *__wrap_nmlp_cuda_engine_name(const nmlp_cuda_engine *engine);
nmlp_status __wrap_nmlp_cuda_batch_create(nmlp_cuda_batch **out, const nmlp_cuda_engine *engine,
                                          const nmlp_cuda_batch_options *options, nmlp_err *err);
void __wrap_nmlp_cuda_batch_destroy(nmlp_cuda_batch *b);
void __wrap_nmlp_cuda_batch_set_pages(nmlp_cuda_batch *b, int32_t sequence, const int32_t *pages, int64_t n);
void __wrap_nmlp_cuda_batch_set_length(nmlp_cuda_batch *b, int32_t sequence, int64_t length);
nmlp_status __wrap_nmlp_cuda_batch_copy_page(nmlp_cuda_batch *b, int32_t to, int32_t from, nmlp_err *err);
nmlp_status __wrap_nmlp_cuda_batch_step(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items,
                                        nmlp_err *err);
nmlp_status __wrap_nmlp_cuda_batch_choose(nmlp_cuda_batch *b, nmlp_cuda_batch_choice *items, int64_t n_items,
                                          int64_t more, nmlp_err *err);
int64_t __wrap_nmlp_cuda_batch_steps_ahead(const nmlp_cuda_batch *b);

static nmlp_cuda_batch *device; /* the one there is */

nmlp_status __wrap_nmlp_cuda_engine_create(nmlp_cuda_engine **out, const nmlp_model *model,
                                           const nmlp_progress *progress, nmlp_err *err) {
    (void)model;
    (void)progress;
    (void)err;
    *out = (nmlp_cuda_engine *)(void *)&device; /* only handed on */
    return NMLP_OK;
}

void __wrap_nmlp_cuda_engine_destroy(nmlp_cuda_engine *engine) { (void)engine; }

const char *__wrap_nmlp_cuda_engine_name(const nmlp_cuda_engine *engine) {
    (void)engine;
    return "played";
}

nmlp_status __wrap_nmlp_cuda_batch_create(nmlp_cuda_batch **out, const nmlp_cuda_engine *engine,
                                          const nmlp_cuda_batch_options *o, nmlp_err *err) {
    (void)engine;
    assert_true(o->n_pages <= PAGES_MAX && o->max_sequences == SEQUENCES && o->context == CONTEXT);
    *out = device = nmlp_mem_new(1, sizeof *device, err);
    device->n_pages = o->n_pages;
    memset(device->memory, 0xff, sizeof device->memory);
    memset(device->host_tables, 0xff, sizeof device->host_tables);
    return NMLP_OK;
}

void __wrap_nmlp_cuda_batch_destroy(nmlp_cuda_batch *b) { nmlp_mem_free(b); }

void __wrap_nmlp_cuda_batch_set_pages(nmlp_cuda_batch *b, int32_t sequence, const int32_t *pages, int64_t n) {
    assert_true(n <= TABLE);
    memcpy(b->host_tables[sequence], pages, (size_t)n * sizeof *pages);
}

static void forget_ahead(nmlp_cuda_batch *b) {
    for (int64_t i = 0; i < b->n_set; i++) b->sequences[b->set[i]].ahead = false;
    b->n_forgotten += b->n_ahead;
    b->n_set = b->n_ahead = 0;
}

void __wrap_nmlp_cuda_batch_set_length(nmlp_cuda_batch *b, int32_t sequence, int64_t length) {
    if (b->sequences[sequence].ahead) forget_ahead(b);
    b->sequences[sequence].length = length;
}

nmlp_status __wrap_nmlp_cuda_batch_copy_page(nmlp_cuda_batch *b, int32_t to, int32_t from, nmlp_err *err) {
    (void)err;
    assert_true(to != from);
    memcpy(b->memory[to], b->memory[from], sizeof b->memory[to]);
    b->n_copies++;
    return NMLP_OK;
}

static bool is_next_ahead(const nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items) {
    if (b->n_ahead == 0 || n_items != b->n_set) return false;
    for (int64_t i = 0; i < n_items; i++) {
        const struct device_sequence *s = &b->sequences[items[i].sequence];
        if (!s->ahead || items[i].n != 1 || items[i].n_logits || !items[i].choose || items[i].ids[0] != s->choices[0])
            return false;
    }
    return true;
}

nmlp_status __wrap_nmlp_cuda_batch_step(nmlp_cuda_batch *b, const nmlp_cuda_batch_item *items, int64_t n_items,
                                        nmlp_err *err) {
    bool choosing = true;
    (void)err;
    if (is_next_ahead(b, items, n_items)) {
        for (int64_t i = 0; i < n_items; i++) {
            struct device_sequence *s = &b->sequences[items[i].sequence];
            memmove(s->choices, s->choices + 1, sizeof s->choices - sizeof s->choices[0]);
            s->length++;
        }
        b->n_ahead--;
        b->n_taken_ahead++;
        return NMLP_OK;
    }
    forget_ahead(b);
    memcpy(b->tables, b->host_tables, sizeof b->tables);
    for (int64_t i = 0; i < n_items; i++) {
        struct device_sequence *s = &b->sequences[items[i].sequence];
        choosing = choosing && items[i].n == 1 && items[i].choose && !items[i].n_logits;
        for (int64_t j = 0; j < items[i].n; j++) {
            s->choices[0] = run_row(b, items[i].sequence, s->length++, items[i].ids[j]);
            int64_t row = j - (items[i].n - items[i].n_logits);
            if (row < 0) continue;
            memset(items[i].logits + row * VOCAB, 0, VOCAB * sizeof(float));
            items[i].logits[row * VOCAB + s->choices[0]] = 1;
        }
    }
    for (int64_t i = 0; i < n_items && choosing; i++) {
        b->set[b->n_set++] = items[i].sequence;
        b->sequences[items[i].sequence].ahead = true;
    }
    return NMLP_OK;
}

nmlp_status __wrap_nmlp_cuda_batch_choose(nmlp_cuda_batch *b, nmlp_cuda_batch_choice *items, int64_t n_items,
                                          int64_t more, nmlp_err *err) {
    bool whole = b->n_set == n_items && b->n_ahead == 0;
    (void)err;
    for (int64_t i = 0; i < n_items && whole; i++) whole = b->sequences[items[i].sequence].ahead;
    if (whole && more > 0) {
        assert_true(more <= NMLP_CUDA_BATCH_AHEAD);
        memcpy(b->tables, b->host_tables, sizeof b->tables);
        for (int64_t step = 0; step < more; step++) {
            for (int64_t i = 0; i < b->n_set; i++) {
                struct device_sequence *s = &b->sequences[b->set[i]];
                assert_true(s->length + step < CONTEXT);
                s->choices[step + 1] = run_row(b, b->set[i], s->length + step, s->choices[step]);
            }
        }
        b->n_ahead = more;
    }
    for (int64_t i = 0; i < n_items; i++) items[i].id = b->sequences[items[i].sequence].choices[0];
    return NMLP_OK;
}

int64_t __wrap_nmlp_cuda_batch_steps_ahead(const nmlp_cuda_batch *b) { return b->n_ahead; }

/* ---- the schedule ---- */

struct text {
    int32_t sequence; /* -1: none */
    int64_t n;
    bool chosen; /* the last step asked for a choice */
    int32_t ids[CONTEXT];
};

struct world {
    nmlp_batch *batch;
    nmlp_rng rng;
    struct text texts[SEQUENCES];
    float logits[SEQUENCES][VOCAB];
    int64_t n_cached, n_full, n_checked;
};

static int64_t below(struct world *w, int64_t n) { return (int64_t)nmlp_rng_below(&w->rng, (uint64_t)n); }

static int32_t expected(const struct text *t) {
    int32_t hash = 0;
    for (int64_t i = 0; i < t->n; i++) hash = hash_next((uint64_t)hash, t->ids[i]);
    return choice_of(hash);
}

/* One of four texts, parting from it somewhere. */
static void plan_text(struct world *w, int32_t *ids, int64_t n) {
    int64_t which = below(w, 4), parts = below(w, 2 * n);
    for (int64_t i = 0; i < n; i++)
        ids[i] = i < parts ? (int32_t)((which * 13 + i * 5) % VOCAB) : (int32_t)below(w, VOCAB);
}

static void drop(struct world *w, struct text *t) {
    nmlp_batch_close(w->batch, t->sequence);
    t->sequence = -1;
    t->n = 0;
}

static void open_text(struct world *w, struct text *t) {
    nmlp_err err;
    int64_t n = 1 + below(w, CONTEXT - 40);
    plan_text(w, t->ids, n);
    nmlp_assert_ok(nmlp_batch_open(w->batch, t->ids, n, &t->sequence, &err), &err);
    t->n = nmlp_batch_length(w->batch, t->sequence);
    t->chosen = false;
    assert_true(t->n < n);
    w->n_cached += t->n;
}

static void disturb(struct world *w, struct text *t) {
    nmlp_err err;
    struct text *other = &w->texts[below(w, SEQUENCES)];
    switch (below(w, 30)) {
    case 0: drop(w, t); break;
    case 1:
        t->n = below(w, t->n + 1);
        nmlp_batch_truncate(w->batch, t->sequence, t->n);
        t->chosen = false;
        break;
    case 2:
        if (other == t || other->sequence < 0 || other->n == 0) break;
        drop(w, t);
        t->n = 1 + below(w, other->n);
        nmlp_assert_ok(nmlp_batch_fork(w->batch, other->sequence, t->n, &t->sequence, &err), &err);
        memcpy(t->ids, other->ids, (size_t)t->n * sizeof t->ids[0]);
        t->chosen = false;
        break;
    default: break;
    }
}

/* A prompt, or tokens of some sequences; the choices or logits after them are compared. */
static void step(struct world *w) {
    static const nmlp_sampling greedy = {.repetition_penalty = 1, .top_p = 1};
    nmlp_step_item items[SEQUENCES];
    struct text *of[SEQUENCES];
    nmlp_err err;
    int64_t n_items = 0, rows = 0;
    bool prompt = below(w, 3) == 0, by_logits = below(w, 5) == 0;
    for (int i = 0; i < SEQUENCES; i++) {
        struct text *t = &w->texts[i];
        if (t->sequence < 0 || below(w, 4) == 0) continue;
        int64_t n = prompt && below(w, 2) ? 1 + below(w, 70) : 1;
        if (t->n + n > CONTEXT || rows + n > ROWS) continue;
        rows += n;
        if (n == 1 && t->chosen)
            t->ids[t->n] = expected(t); /* as a generation goes on */
        else
            plan_text(w, t->ids + t->n, n);
        items[n_items] = (nmlp_step_item){.sequence = t->sequence, .ids = t->ids + t->n, .n = n};
        if (by_logits) {
            items[n_items].n_logits = 1;
            items[n_items].logits = w->logits[n_items];
        } else {
            items[n_items].choose = &greedy;
        }
        of[n_items++] = t;
    }
    if (n_items == 0) return;
    nmlp_status st = nmlp_batch_step(w->batch, items, n_items, &err);
    if (st != NMLP_OK) { /* the memory is used up: somebody has to go */
        assert_int_equal(st, NMLP_E_LIMIT);
        w->n_full++;
        drop(w, of[below(w, n_items)]);
        return;
    }
    nmlp_choice_item choices[SEQUENCES];
    for (int64_t i = 0; i < n_items; i++) {
        of[i]->n += items[i].n;
        of[i]->chosen = !by_logits;
        choices[i].sequence = items[i].sequence;
        if (by_logits) choices[i].id = (int32_t)nmlp_argmax(items[i].logits, VOCAB);
    }
    if (!by_logits) nmlp_assert_ok(nmlp_batch_choose(w->batch, choices, n_items, below(w, 12), &err), &err);
    for (int64_t i = 0; i < n_items; i++, w->n_checked++) assert_int_equal(choices[i].id, expected(of[i]));
}

struct engine_on_device {
    char dir[256];
    tiny_checkpoint checkpoint;
    loaded_engine loaded;
    nmlp_batch *batch;
};

static void open_engine(struct engine_on_device *e) {
    nmlp_err err;
    nmlp_test_mkdtemp(e->dir, sizeof e->dir);
    tiny_init(&e->checkpoint, 5);
    snprintf(e->checkpoint.config, sizeof e->checkpoint.config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"vocab_size\":64,\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-5,"
             "\"tie_word_embeddings\":true}");
    tiny_write(&e->checkpoint, e->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&e->loaded.model, e->dir, &err), &err);
    nmlp_engine_options options = {.backend = nmlp_backend_cuda()};
    nmlp_assert_ok(nmlp_engine_create(&e->loaded.engine, &e->loaded.model, &options, &err), &err);
    nmlp_batch_options limits = {
        .context = CONTEXT, .positions = POSITIONS, .max_sequences = SEQUENCES, .max_rows = ROWS};
    nmlp_assert_ok(nmlp_batch_create(&e->batch, e->loaded.engine, &limits, &err), &err);
}

static void close_engine(struct engine_on_device *e) {
    nmlp_batch_destroy(e->batch);
    nmlp_engine_destroy(e->loaded.engine);
    nmlp_model_close(&e->loaded.model);
    tiny_fini(&e->checkpoint);
    nmlp_test_rmdir(e->dir);
}

static void choices_are_those_of_the_own_text(void **state) {
    static struct world w;
    struct engine_on_device e = {0};
    (void)state;
    open_engine(&e);
    w = (struct world){.batch = e.batch};
    nmlp_rng_seed(&w.rng, 3);
    for (int i = 0; i < SEQUENCES; i++) w.texts[i].sequence = -1;
    for (int i = 0; i < STEPS; i++) {
        for (int s = 0; s < SEQUENCES; s++) {
            if (w.texts[s].sequence < 0) {
                if (below(&w, 8) == 0) open_text(&w, &w.texts[s]);
            } else if (below(&w, 3) == 0) {
                disturb(&w, &w.texts[s]);
            }
        }
        step(&w);
    }
    /* Everything that was to be tried has been. */
    assert_true(w.n_cached > 1000 && w.n_full > 50 && w.n_checked > 3000);
    assert_true(device->n_taken_ahead > 50 && device->n_copies > 50);
    close_engine(&e);
}

static bool add_token(void *ctx, int32_t id) {
    struct text *t = ctx;
    assert_int_equal(id, expected(t));
    t->ids[t->n++] = id;
    return true;
}

/* Requests that join while others decode: no step that the device has started is lost, and none waits for the end. */
static void prompts_wait_for_steps_that_have_begun(void **state) {
    static struct text texts[SEQUENCES];
    static int32_t prompts[SEQUENCES][40];
    enum { NEW = 100, JOIN_AFTER = 9 };
    struct engine_on_device e = {0};
    nmlp_scheduler *scheduler;
    nmlp_err err;
    (void)state;
    open_engine(&e);
    nmlp_assert_ok(nmlp_scheduler_create(&scheduler, e.batch, &err), &err);
    for (int step = 0, n = 0; step == 0 || nmlp_scheduler_count(scheduler) > 0; step++) {
        if (step % JOIN_AFTER == 0 && n < SEQUENCES) {
            struct text *t = &texts[n];
            for (int i = 0; i < 40; i++) prompts[n][i] = t->ids[i] = (7 * n + 3 * i) % VOCAB;
            t->n = 40;
            nmlp_scheduler_request asked = {.sequence = NMLP_SEQUENCE_NEW,
                                            .generation = {.prompt = prompts[n],
                                                           .n_prompt = 40,
                                                           .max_new = NEW,
                                                           .sampling = {.repetition_penalty = 1, .top_p = 1},
                                                           .on_token = add_token,
                                                           .ctx = t}};
            uint64_t number;
            nmlp_assert_ok(nmlp_scheduler_submit(scheduler, &asked, &number, &err), &err);
            n++;
        }
        nmlp_assert_ok(nmlp_scheduler_step(scheduler, &err), &err);
        if (step == (SEQUENCES - 1) * JOIN_AFTER + 40) /* four rows a step at least, behind four steps */
            for (int i = 0; i < SEQUENCES; i++) assert_true(texts[i].n > 40);
    }
    for (int i = 0; i < SEQUENCES; i++) assert_int_equal(texts[i].n, 40 + NEW);
    assert_true(device->n_taken_ahead > NEW / 2);
    assert_int_equal(device->n_forgotten, 0);
    nmlp_scheduler_destroy(scheduler);
    close_engine(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices_are_those_of_the_own_text),
                                       cmocka_unit_test(prompts_wait_for_steps_that_have_begun)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
