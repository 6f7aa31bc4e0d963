#include "grammar/guide.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "grammar/matcher.h"
#include "grammar/tool_calls.h"

enum { MASKS = 64, PREFIX_MAX = 255, END_IDS_MAX = 16 };

/* ---- the vocabulary ---- */

struct token {
    const char *text;
    uint32_t len;
    int32_t id;
    bool mark; /* special, and text only where calls of tools are written */
};

struct nmlp_token_order {
    struct token *tokens; /* by their bytes */
    uint8_t *shared;      /* [n] bytes that a token has in common with the one before, at most PREFIX_MAX */
    size_t n;
    size_t longest;
    bool strips_space;
    const nmlp_tokenizer *tokenizer;
};

static int by_bytes(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = memcmp(x->text, y->text, n);
    if (order != 0) return order;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static void count_shared(nmlp_token_order *o) {
    for (size_t i = 1; i < o->n; i++) {
        const struct token *x = &o->tokens[i - 1], *y = &o->tokens[i];
        size_t n = 0;
        while (n < x->len && n < y->len && n < PREFIX_MAX && x->text[n] == y->text[n]) n++;
        o->shared[i] = (uint8_t)n;
    }
}

/* Special tokens have a text only where they are marks of calls. */
static const char *text_of(const nmlp_tokenizer *t, int32_t id, size_t *len) {
    const char *special = nmlp_tokenizer_special_text(t, id, len);
    if (!special) return nmlp_tokenizer_bytes(t, id, len);
    if (nmlp_tool_is_mark(special, *len)) return special;
    *len = 0;
    return NULL;
}

nmlp_status nmlp_token_order_create(nmlp_token_order **out, const nmlp_tokenizer *t, nmlp_err *err) {
    size_t n = (size_t)nmlp_tokenizer_vocab_size(t);
    *out = NULL;
    if (!nmlp_tokenizer_joins_plainly(t))
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "grammar", "does not go with this tokenizer of whole words");
    nmlp_token_order *o = nmlp_mem_new(1, sizeof *o, err);
    if (!o) return NMLP_E_NOMEM;
    o->tokens = nmlp_mem_new(n ? n : 1, sizeof *o->tokens, err);
    o->shared = nmlp_mem_new(n ? n : 1, sizeof *o->shared, err);
    if (!o->tokens || !o->shared) {
        nmlp_token_order_destroy(o);
        return NMLP_E_NOMEM;
    }
    for (size_t id = 0; id < n; id++) {
        size_t len;
        const char *text = text_of(t, (int32_t)id, &len);
        if (!text) continue;
        o->tokens[o->n++] = (struct token){
            .text = text, .len = (uint32_t)len, .id = (int32_t)id, .mark = nmlp_tokenizer_is_special(t, (int64_t)id)};
        if (len > o->longest) o->longest = len;
    }
    qsort(o->tokens, o->n, sizeof *o->tokens, by_bytes);
    count_shared(o);
    o->strips_space = nmlp_tokenizer_strips_space(t);
    o->tokenizer = t;
    *out = o;
    return NMLP_OK;
}

void nmlp_token_order_destroy(nmlp_token_order *o) {
    if (!o) return;
    nmlp_mem_free(o->tokens);
    nmlp_mem_free(o->shared);
    nmlp_mem_free(o);
}

/* ---- an answer ---- */

struct nmlp_guide {
    const nmlp_token_order *order;
    nmlp_matcher *matcher;
    int64_t vocab;
    size_t mask_words;
    int64_t end_ids[END_IDS_MAX];
    int n_end_ids;
    bool marks;
    int32_t state;   /* NMLP_MATCHER_DEAD, NMLP_MATCHER_FAILED: no token may come */
    bool begun;      /* a token came */
    uint32_t *masks; /* [MASKS, mask_words] */
    int32_t of_state[MASKS];
    bool of_begun[MASKS];
    int next_mask;
    int32_t *path; /* [longest + 1] states after each byte of a token */
    nmlp_guide_stats stats;
};

nmlp_status nmlp_guide_create(nmlp_guide **out, const nmlp_grammar *grammar, const nmlp_token_order *order,
                              const nmlp_guide_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_guide *g = nmlp_mem_new(1, sizeof *g, err);
    if (!g) return NMLP_E_NOMEM;
    g->order = order;
    g->vocab = options->vocab;
    g->marks = options->marks;
    g->mask_words = ((size_t)options->vocab + 31) / 32;
    for (int i = 0; i < options->n_end_ids && g->n_end_ids < END_IDS_MAX; i++)
        if (options->end_ids[i] >= 0 && options->end_ids[i] < g->vocab)
            g->end_ids[g->n_end_ids++] = options->end_ids[i];
    g->masks = nmlp_mem_new(MASKS * g->mask_words, sizeof *g->masks, err);
    g->path = nmlp_mem_new(order->longest + 1, sizeof *g->path, err);
    if (!g->masks || !g->path) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_matcher_create(&g->matcher, grammar, err));
    for (int i = 0; i < MASKS; i++) g->of_state[i] = -1;
    nmlp_guide_restart(g);
    *out = g;
out:
    if (st != NMLP_OK) nmlp_guide_destroy(g);
    return st;
}

void nmlp_guide_destroy(nmlp_guide *g) {
    if (!g) return;
    nmlp_matcher_destroy(g->matcher);
    nmlp_mem_free(g->masks);
    nmlp_mem_free(g->path);
    nmlp_mem_free(g);
}

void nmlp_guide_restart(nmlp_guide *g) {
    g->state = nmlp_matcher_start(g->matcher);
    g->begun = false;
}

/* The first space of an answer is not decoded by some tokenizers. */
static bool is_dropped(const nmlp_guide *g, const char *text, size_t at) {
    return at == 0 && !g->begun && g->order->strips_space && text[0] == ' ';
}

/* The tokens whose bytes the grammar takes; false where its limits end. */
static bool compute(nmlp_guide *g, uint32_t *mask) {
    const nmlp_token_order *o = g->order;
    memset(mask, 0, g->mask_words * sizeof *mask);
    g->path[0] = g->state;
    for (size_t i = 0; i < o->n;) {
        const struct token *t = &o->tokens[i];
        size_t at = o->shared[i];
        int32_t state = g->path[at];
        while (at < t->len) {
            if (!is_dropped(g, t->text, at)) state = nmlp_matcher_next(g->matcher, state, (unsigned char)t->text[at]);
            if (state < 0) break;
            g->path[++at] = state;
        }
        if (state == NMLP_MATCHER_FAILED) return false;
        if (at == t->len && t->id < g->vocab && (g->marks || !t->mark)) mask[t->id / 32] |= 1u << (t->id % 32);
        for (i++; at < t->len && i < o->n && o->shared[i] > at;) i++; /* they begin with what was refused */
    }
    return true;
}

static void add_ends(const nmlp_guide *g, uint32_t *mask) {
    if (!nmlp_matcher_accepts(g->matcher, g->state)) return;
    for (int i = 0; i < g->n_end_ids; i++) mask[g->end_ids[i] / 32] |= 1u << (g->end_ids[i] % 32);
}

static uint32_t *mask_of(nmlp_guide *g) {
    for (int i = 0; i < MASKS; i++)
        if (g->of_state[i] == g->state && g->of_begun[i] == g->begun) return g->masks + (size_t)i * g->mask_words;
    bool forgot = false;
    if (nmlp_matcher_trim(g->matcher, &g->state, &forgot, NULL) != NMLP_OK) g->state = NMLP_MATCHER_FAILED;
    for (int i = 0; forgot && i < MASKS; i++) g->of_state[i] = -1;
    int at = g->next_mask;
    uint32_t *mask = g->masks + (size_t)at * g->mask_words;
    g->next_mask = (at + 1) % MASKS;
    g->of_state[at] = -1;
    g->stats.n_computed++;
    if (g->state < 0 || !compute(g, mask)) {
        memset(mask, 0, g->mask_words * sizeof *mask);
        return mask;
    }
    add_ends(g, mask);
    g->of_state[at] = g->state;
    g->of_begun[at] = g->begun;
    return mask;
}

const uint32_t *nmlp_guide_allowed(nmlp_guide *g) {
    double began = nmlp_clock_seconds();
    if (g->state >= 0 && nmlp_matcher_is_final(g->matcher, g->state)) return NULL;
    const uint32_t *mask = mask_of(g);
    g->stats.n_steps++;
    g->stats.seconds += nmlp_clock_seconds() - began;
    return mask;
}

void nmlp_guide_accept(nmlp_guide *g, int32_t id) {
    size_t len;
    for (int i = 0; i < g->n_end_ids; i++)
        if (g->end_ids[i] == id) return;
    const char *text = text_of(g->order->tokenizer, id, &len);
    for (size_t i = 0; i < len && g->state >= 0; i++)
        if (!is_dropped(g, text, i)) g->state = nmlp_matcher_next(g->matcher, g->state, (unsigned char)text[i]);
    g->begun = true;
}

bool nmlp_guide_is_complete(const nmlp_guide *g) { return g->state >= 0 && nmlp_matcher_accepts(g->matcher, g->state); }

nmlp_guide_stats nmlp_guide_take_stats(nmlp_guide *g) {
    nmlp_guide_stats stats = g->stats;
    g->stats = (nmlp_guide_stats){0};
    return stats;
}
