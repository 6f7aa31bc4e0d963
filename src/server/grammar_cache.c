#include "server/grammar_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

enum { GRAMMARS_KEPT = 16, GUIDES_KEPT = 4, END_IDS_KEPT = 16 };

struct nmlp_cached_grammar {
    nmlp_grammar_cache *cache;
    nmlp_str text;
    int64_t end_ids[END_IDS_KEPT];
    int n_end_ids;
    bool marks;
    nmlp_grammar *grammar;
    nmlp_guide *guides[GUIDES_KEPT]; /* not in use */
    int n_guides;
    int n_users;
    struct nmlp_cached_grammar *next; /* used less recently */
};

struct nmlp_grammar_cache {
    const nmlp_tokenizer *tokenizer;
    int64_t vocab;
    nmlp_token_order *order; /* once a grammar was asked for */
    pthread_mutex_t lock;    /* of all below, and of the guides of grammars */
    nmlp_cached_grammar *first;
    nmlp_guide_stats stats;
};

nmlp_status nmlp_grammar_cache_create(nmlp_grammar_cache **out, const nmlp_tokenizer *tokenizer, int64_t vocab,
                                      nmlp_err *err) {
    nmlp_grammar_cache *c = *out = nmlp_mem_new(1, sizeof *c, err);
    if (!c) return NMLP_E_NOMEM;
    c->tokenizer = tokenizer;
    c->vocab = vocab;
    pthread_mutex_init(&c->lock, NULL);
    return NMLP_OK;
}

static void destroy_grammar(nmlp_cached_grammar *g) {
    for (int i = 0; i < g->n_guides; i++) nmlp_guide_destroy(g->guides[i]);
    nmlp_grammar_destroy(g->grammar);
    nmlp_str_fini(&g->text);
    nmlp_mem_free(g);
}

void nmlp_grammar_cache_destroy(nmlp_grammar_cache *c) {
    if (!c) return;
    for (nmlp_cached_grammar *g = c->first, *next; g; g = next) {
        next = g->next;
        destroy_grammar(g);
    }
    nmlp_token_order_destroy(c->order);
    pthread_mutex_destroy(&c->lock);
    nmlp_mem_free(c);
}

/* Takes it out of the list, or gives NULL. */
static nmlp_cached_grammar *find(nmlp_grammar_cache *c, const nmlp_grammar_key *key) {
    for (nmlp_cached_grammar **at = &c->first; *at; at = &(*at)->next) {
        nmlp_cached_grammar *g = *at;
        if (g->text.len != key->text->len || memcmp(g->text.data, key->text->data, g->text.len) != 0) continue;
        if (g->marks != key->marks || g->n_end_ids != key->n_end_ids) continue;
        if (memcmp(g->end_ids, key->end_ids, (size_t)g->n_end_ids * sizeof *g->end_ids) != 0) continue;
        *at = g->next;
        return g;
    }
    return NULL;
}

/* Those used least recently, unless somebody uses them now. */
static void forget_old(nmlp_grammar_cache *c) {
    int n = 0;
    for (nmlp_cached_grammar **at = &c->first; *at;) {
        nmlp_cached_grammar *g = *at;
        if (++n <= GRAMMARS_KEPT || g->n_users > 0) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        destroy_grammar(g);
    }
}

static nmlp_status compile(nmlp_grammar_cache *c, const nmlp_str *text, nmlp_cached_grammar **out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cached_grammar *g = nmlp_mem_new(1, sizeof *g, err);
    if (!g) return NMLP_E_NOMEM;
    g->cache = c;
    nmlp_str_init(&g->text);
    nmlp_str_append(&g->text, nmlp_str_text(text), text->len);
    NMLP_TRY(nmlp_str_status(&g->text, err));
    if (!c->order) NMLP_TRY(nmlp_token_order_create(&c->order, c->tokenizer, err));
    NMLP_TRY(nmlp_grammar_parse(&g->grammar, nmlp_str_text(text), text->len, err));
    *out = g;
out:
    if (st != NMLP_OK) destroy_grammar(g);
    return st;
}

/* An error of a grammar that was made from another field is that field's. */
static void rename_field(nmlp_err *err, const char *field) {
    if (!err || strcmp(field, "grammar") == 0 || strcmp(err->field, "grammar") != 0) return;
    nmlp_err made = *err;
    nmlp_fail_field(err, made.code, field, "cannot be followed: %s", made.message);
}

nmlp_status nmlp_grammar_cache_take(nmlp_grammar_cache *c, const nmlp_grammar_key *asked, const char *field,
                                    nmlp_cached_grammar **out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_grammar_key key = *asked;
    if (key.n_end_ids > END_IDS_KEPT) key.n_end_ids = END_IDS_KEPT;
    pthread_mutex_lock(&c->lock);
    nmlp_cached_grammar *g = find(c, &key);
    if (!g) {
        st = compile(c, key.text, &g, err);
        if (st == NMLP_OK) {
            memcpy(g->end_ids, key.end_ids, (size_t)key.n_end_ids * sizeof *g->end_ids);
            g->n_end_ids = key.n_end_ids;
            g->marks = key.marks;
        }
    }
    if (st == NMLP_OK) {
        g->n_users++;
        g->next = c->first;
        c->first = g;
        forget_old(c);
        *out = g;
    }
    pthread_mutex_unlock(&c->lock);
    if (st != NMLP_OK) rename_field(err, field);
    return st;
}

void nmlp_grammar_cache_give_back(nmlp_grammar_cache *c, nmlp_cached_grammar *g) {
    if (!g) return;
    pthread_mutex_lock(&c->lock);
    g->n_users--;
    pthread_mutex_unlock(&c->lock);
}

nmlp_status nmlp_cached_grammar_begin(nmlp_cached_grammar *g, nmlp_guide **guide, nmlp_err *err) {
    nmlp_grammar_cache *c = g->cache;
    pthread_mutex_lock(&c->lock);
    *guide = g->n_guides > 0 ? g->guides[--g->n_guides] : NULL;
    pthread_mutex_unlock(&c->lock);
    if (*guide) {
        nmlp_guide_restart(*guide);
        return NMLP_OK;
    }
    const nmlp_guide_options options = {
        .vocab = c->vocab, .end_ids = g->end_ids, .n_end_ids = g->n_end_ids, .marks = g->marks};
    return nmlp_guide_create(guide, g->grammar, c->order, &options, err);
}

void nmlp_cached_grammar_end(nmlp_cached_grammar *g, nmlp_guide *guide) {
    nmlp_grammar_cache *c = g ? g->cache : NULL;
    if (!guide || !c) return;
    nmlp_guide_stats stats = nmlp_guide_take_stats(guide);
    pthread_mutex_lock(&c->lock);
    c->stats.n_steps += stats.n_steps;
    c->stats.n_computed += stats.n_computed;
    c->stats.seconds += stats.seconds;
    bool kept = g->n_guides < GUIDES_KEPT;
    if (kept) g->guides[g->n_guides++] = guide;
    pthread_mutex_unlock(&c->lock);
    if (!kept) nmlp_guide_destroy(guide);
}

nmlp_guide_stats nmlp_grammar_cache_stats(nmlp_grammar_cache *c) {
    pthread_mutex_lock(&c->lock);
    nmlp_guide_stats stats = c->stats;
    pthread_mutex_unlock(&c->lock);
    return stats;
}
