#include "engine/kv_pool.h"

#include <string.h>

#include "base/mem.h"

enum { NONE = -1 };

struct page {
    int32_t n_users;   /* sequences that have it */
    int32_t n_tokens;  /* known in the tree; 0: not in the tree */
    int32_t parent;    /* in the tree; NONE: begins a text */
    int32_t children;  /* the first; NONE: a leaf */
    int32_t next;      /* sibling in the tree, or next free page */
    uint64_t last_use; /* of the clock */
};

struct sequence {
    int64_t length;
    int64_t n_pages;
    int64_t n_dropped; /* of them, the first: behind the window */
    int32_t *pages;    /* [context / page]; NONE: dropped */
};

struct nmlp_kv_pool {
    nmlp_kv_pool_options options;
    struct page *pages; /* [n_pages] */
    int32_t *ids;       /* [n_pages, page] tokens of each */
    struct sequence *sequences;
    int32_t *tables; /* of all sequences */
    int32_t roots;   /* pages that begin texts */
    int32_t free;
    uint64_t clock;
};

static int64_t pages_of(const nmlp_kv_pool *p, int64_t length) {
    return (length + p->options.page - 1) / p->options.page;
}
static int32_t *ids_of(const nmlp_kv_pool *p, int32_t page) { return p->ids + (int64_t)page * p->options.page; }

nmlp_status nmlp_kv_pool_create(nmlp_kv_pool **out, const nmlp_kv_pool_options *o, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_kv_pool *p = nmlp_mem_new(1, sizeof *p, err);
    if (!p) return NMLP_E_NOMEM;
    p->options = *o;
    size_t per_sequence = (size_t)pages_of(p, o->context);
    p->roots = NONE;
    p->free = NONE;
    p->pages = nmlp_mem_new((size_t)o->n_pages, sizeof *p->pages, err);
    p->ids = nmlp_mem_new((size_t)o->n_pages, (size_t)o->page * sizeof *p->ids, err);
    p->sequences = nmlp_mem_new((size_t)o->max_sequences, sizeof *p->sequences, err);
    p->tables = nmlp_mem_new((size_t)o->max_sequences, per_sequence * sizeof *p->tables, err);
    if (!p->pages || !p->ids || !p->sequences || !p->tables) NMLP_TRY(NMLP_E_NOMEM);
    for (int64_t i = 0; i < o->max_sequences; i++) p->sequences[i].pages = p->tables + (size_t)i * per_sequence;
    for (int64_t i = o->n_pages - 1; i >= 0; i--) { /* so that page 0 is taken first */
        p->pages[i] = (struct page){.parent = NONE, .children = NONE, .next = p->free};
        p->free = (int32_t)i;
    }
    *out = p;
out:
    if (st != NMLP_OK) nmlp_kv_pool_destroy(p);
    return st;
}

void nmlp_kv_pool_destroy(nmlp_kv_pool *p) {
    if (!p) return;
    nmlp_mem_free(p->pages);
    nmlp_mem_free(p->ids);
    nmlp_mem_free(p->sequences);
    nmlp_mem_free(p->tables);
    nmlp_mem_free(p);
}

/* ---- the tree ---- */

static int32_t *children_of(nmlp_kv_pool *p, int32_t parent) {
    return parent == NONE ? &p->roots : &p->pages[parent].children;
}

static void attach(nmlp_kv_pool *p, int32_t page, int32_t parent, int32_t n_tokens) {
    int32_t *first = children_of(p, parent);
    struct page *at = &p->pages[page];
    at->parent = parent;
    at->n_tokens = n_tokens;
    at->next = *first;
    *first = page;
}

static void detach(nmlp_kv_pool *p, int32_t page) {
    struct page *at = &p->pages[page];
    int32_t *link = children_of(p, at->parent);
    while (*link != page) link = &p->pages[*link].next;
    *link = at->next;
    at->n_tokens = 0;
    at->parent = NONE;
    at->next = NONE;
}

/* The child of `parent` that has the most of the n tokens at its beginning. */
static int32_t find_child(nmlp_kv_pool *p, int32_t parent, const int32_t *ids, int64_t n, int64_t *n_same) {
    int32_t best = NONE;
    *n_same = 0;
    for (int32_t c = *children_of(p, parent); c != NONE; c = p->pages[c].next) {
        const int32_t *own = ids_of(p, c);
        int64_t most = n < p->pages[c].n_tokens ? n : p->pages[c].n_tokens;
        int64_t same = 0;
        while (same < most && own[same] == ids[same]) same++;
        if (same > *n_same) {
            *n_same = same;
            best = c;
        }
    }
    return best;
}

/* ---- pages ---- */

static void put_free(nmlp_kv_pool *p, int32_t page) {
    p->pages[page] = (struct page){.parent = NONE, .children = NONE, .next = p->free};
    p->free = page;
}

/* The least recently used page of the tree that no sequence has. */
static int32_t find_oldest(const nmlp_kv_pool *p, bool leaf) {
    int32_t oldest = NONE;
    for (int32_t i = 0; i < p->options.n_pages; i++) {
        const struct page *at = &p->pages[i];
        if (at->n_users > 0 || at->n_tokens == 0 || (leaf && at->children != NONE)) continue;
        if (oldest == NONE || at->last_use < p->pages[oldest].last_use) oldest = i;
    }
    return oldest;
}

/* Takes the pages below one out of the tree; those that sequences have stay theirs. */
static void drop_children(nmlp_kv_pool *p, int32_t page) {
    int32_t at = page;
    for (;;) {
        while (p->pages[at].children != NONE) at = p->pages[at].children;
        if (at == page) return;
        int32_t parent = p->pages[at].parent;
        detach(p, at);
        if (p->pages[at].n_users == 0) put_free(p, at);
        at = parent;
    }
}

/* A page was used whenever one behind it was, so leaves are the oldest. Other pages without a user are those that
 * sequences dropped behind their windows. */
static bool evict(nmlp_kv_pool *p) {
    int32_t oldest = find_oldest(p, true);
    if (oldest == NONE) oldest = find_oldest(p, false);
    if (oldest == NONE) return false;
    drop_children(p, oldest);
    detach(p, oldest);
    put_free(p, oldest);
    return true;
}

static int32_t take(nmlp_kv_pool *p) {
    if (p->free == NONE && !evict(p)) return NONE;
    int32_t page = p->free;
    p->free = p->pages[page].next;
    p->pages[page] = (struct page){.n_users = 1, .parent = NONE, .children = NONE, .next = NONE};
    return page;
}

static void share(nmlp_kv_pool *p, int32_t page) { p->pages[page].n_users++; }

static void release(nmlp_kv_pool *p, int32_t page) {
    struct page *at = &p->pages[page];
    at->last_use = p->clock;
    if (--at->n_users == 0 && at->n_tokens == 0) put_free(p, page);
}

/* ---- windows ---- */

/* The first page that rows after `length` tokens see. */
static int64_t first_seen(const nmlp_kv_pool *p, int64_t length) {
    const nmlp_kv_pool_options *o = &p->options;
    int64_t first = length + 1 - o->window;
    return o->window > 0 && first > 0 ? first / o->span * o->span / o->page : 0;
}

static void drop_unseen(nmlp_kv_pool *p, struct sequence *s) {
    int64_t end = s->length > NMLP_KV_POOL_REWIND ? first_seen(p, s->length - NMLP_KV_POOL_REWIND) : 0;
    for (; s->n_dropped < end; s->n_dropped++) {
        release(p, s->pages[s->n_dropped]);
        s->pages[s->n_dropped] = NONE;
    }
}

int64_t nmlp_kv_pool_held_most(const nmlp_kv_pool_options *o) {
    int64_t most = o->window + NMLP_KV_POOL_REWIND + o->span + o->step;
    if (o->window == 0 || most > o->context) most = o->context;
    return (most + o->page - 1) / o->page * o->page;
}

/* ---- sequences ---- */

/* The page of the tree below which the sequence's page `at` belongs. False where there is none: the text before it is
 * not in the tree. */
static bool find_parent(const nmlp_kv_pool *p, const struct sequence *s, int64_t at, int32_t *parent) {
    *parent = at > 0 ? s->pages[at - 1] : NONE;
    return at == 0 || (*parent != NONE && p->pages[*parent].n_tokens == p->options.page);
}

void nmlp_kv_pool_open(nmlp_kv_pool *p, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_shared) {
    enum { COPY_TOKENS_MIN = 8 }; /* fewer are sooner computed than copied */
    struct sequence *s = &p->sequences[sequence];
    int32_t parent = NONE;
    int64_t same;
    p->clock++;
    s->length = 0;
    s->n_pages = 0;
    s->n_dropped = 0;
    while (s->length < n - 1) {
        int32_t page = find_child(p, parent, ids + s->length, n - 1 - s->length, &same);
        if (page == NONE || same < COPY_TOKENS_MIN) break;
        share(p, page);
        p->pages[page].last_use = p->clock;
        if (same < p->options.page) { /* its rest would be written: a copy */
            int32_t own = take(p);
            if (own != NONE) {
                p->options.copy(p->options.ctx, own, page, same);
                memcpy(ids_of(p, own), ids_of(p, page), (size_t)same * sizeof *ids);
                s->pages[s->n_pages++] = own;
                s->length += same;
            }
            release(p, page);
            break;
        }
        s->pages[s->n_pages++] = page;
        s->length += p->options.page;
        parent = page;
    }
    drop_unseen(p, s);
    *n_shared = s->length;
}

/* A last page that is not full is kept in the tree too, unless a page there has all of it. */
static void keep_rest(nmlp_kv_pool *p, const struct sequence *s) {
    int64_t n = s->length % p->options.page;
    int64_t same;
    if (n == 0) return;
    int64_t at = s->length / p->options.page;
    int32_t page = s->pages[at];
    int32_t parent;
    if (p->pages[page].n_users > 1 || p->pages[page].n_tokens > 0 || !find_parent(p, s, at, &parent)) return;
    (void)find_child(p, parent, ids_of(p, page), n, &same);
    if (same < n) attach(p, page, parent, (int32_t)n);
}

static void release_from(nmlp_kv_pool *p, struct sequence *s, int64_t first) {
    while (s->n_pages > first)
        if (s->pages[--s->n_pages] != NONE) release(p, s->pages[s->n_pages]);
    if (s->n_dropped > first) s->n_dropped = first;
}

void nmlp_kv_pool_close(nmlp_kv_pool *p, int32_t sequence) {
    struct sequence *s = &p->sequences[sequence];
    p->clock++;
    keep_rest(p, s);
    release_from(p, s, 0);
    s->length = 0;
}

/* Whether all is there that rows after the first `length` tokens see. */
static bool reaches_back(const nmlp_kv_pool *p, const struct sequence *s, int64_t length) {
    return length == 0 || first_seen(p, length) >= s->n_dropped;
}

int64_t nmlp_kv_pool_truncate(nmlp_kv_pool *p, int32_t sequence, int64_t length) {
    struct sequence *s = &p->sequences[sequence];
    p->clock++;
    s->length = reaches_back(p, s, length) ? length : 0;
    release_from(p, s, pages_of(p, s->length));
    return s->length;
}

bool nmlp_kv_pool_fork(nmlp_kv_pool *p, int32_t parent, int64_t length, int32_t child) {
    const struct sequence *from = &p->sequences[parent];
    struct sequence *s = &p->sequences[child];
    if (!reaches_back(p, from, length)) return false;
    s->length = length;
    s->n_pages = pages_of(p, length);
    s->n_dropped = from->n_dropped < s->n_pages ? from->n_dropped : s->n_pages;
    for (int64_t i = 0; i < s->n_pages; i++) {
        s->pages[i] = from->pages[i];
        if (s->pages[i] != NONE) share(p, s->pages[i]);
    }
    return true;
}

/* Makes the sequence's page `at`, of which the first n tokens are its text, one that it alone has and that the tree
 * does not know. */
static bool own_page(nmlp_kv_pool *p, struct sequence *s, int64_t at, int64_t n) {
    int32_t page = s->pages[at];
    const struct page *old = &p->pages[page];
    if (old->n_users == 1 && old->n_tokens == 0) return true;
    if (old->n_users == 1 && old->children == NONE) {
        detach(p, page);
        return true;
    }
    int32_t copy = take(p);
    if (copy != NONE) {
        p->options.copy(p->options.ctx, copy, page, n);
        memcpy(ids_of(p, copy), ids_of(p, page), (size_t)n * sizeof *p->ids);
        s->pages[at] = copy;
        release(p, page);
        return true;
    }
    if (old->n_users > 1) return false;
    drop_children(p, page);
    detach(p, page);
    return true;
}

nmlp_status nmlp_kv_pool_reserve(nmlp_kv_pool *p, int32_t sequence, int64_t n, nmlp_err *err) {
    struct sequence *s = &p->sequences[sequence];
    int64_t before = s->n_pages;
    int64_t most = s->n_dropped + nmlp_kv_pool_held_most(&p->options) / p->options.page;
    int64_t all = pages_of(p, s->length + n);
    int64_t need = all < most ? all : most;
    int64_t rest = s->length % p->options.page;
    bool enough = true;
    while (enough && s->n_pages < need) {
        int32_t page = take(p);
        enough = page != NONE;
        if (enough) s->pages[s->n_pages++] = page;
    }
    if (enough && n > 0 && rest > 0) enough = own_page(p, s, s->length / p->options.page, rest);
    if (enough) return NMLP_OK;
    release_from(p, s, before);
    nmlp_fail(err, NMLP_E_LIMIT,
              "the KV memory of %lld positions is used up: %lld more tokens of a sequence of %lld do not fit",
              (long long)(p->options.n_pages * p->options.page), (long long)n, (long long)s->length);
    nmlp_fail_hint(err, "run fewer or shorter sequences at a time, or raise `positions`");
    return NMLP_E_LIMIT;
}

/* The sequence's page `at` is full. Where the tree has one of the same text, that one serves both. */
static void complete(nmlp_kv_pool *p, struct sequence *s, int64_t at) {
    int32_t page = s->pages[at];
    int32_t parent;
    int64_t same;
    if (!find_parent(p, s, at, &parent)) return;
    int32_t twin = find_child(p, parent, ids_of(p, page), p->options.page, &same);
    if (same < p->options.page) {
        attach(p, page, parent, (int32_t)p->options.page);
        return;
    }
    share(p, twin);
    s->pages[at] = twin;
    release(p, page);
}

void nmlp_kv_pool_append(nmlp_kv_pool *p, int32_t sequence, const int32_t *ids, int64_t n) {
    struct sequence *s = &p->sequences[sequence];
    p->clock++;
    for (int64_t done = 0; done < n;) {
        int64_t at = s->length / p->options.page;
        int64_t offset = s->length % p->options.page;
        int64_t some = n - done < p->options.page - offset ? n - done : p->options.page - offset;
        memcpy(ids_of(p, s->pages[at]) + offset, ids + done, (size_t)some * sizeof *ids);
        s->length += some;
        done += some;
        if (offset + some == p->options.page) complete(p, s, at);
    }
    drop_unseen(p, s);
}

int64_t nmlp_kv_pool_length(const nmlp_kv_pool *p, int32_t sequence) { return p->sequences[sequence].length; }

const int32_t *nmlp_kv_pool_pages(const nmlp_kv_pool *p, int32_t sequence) { return p->sequences[sequence].pages; }

nmlp_kv_pool_counts nmlp_kv_pool_count(const nmlp_kv_pool *p) {
    nmlp_kv_pool_counts c = {.n_pages = p->options.n_pages};
    for (int64_t i = 0; i < c.n_pages; i++) {
        const struct page *at = &p->pages[i];
        if (at->n_users > 0)
            c.n_used++;
        else if (at->n_tokens > 0)
            c.n_cached++;
        else
            c.n_free++;
    }
    return c;
}
