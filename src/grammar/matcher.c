#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum {
    STATES_KEPT = 1 << 13, /* beyond which nmlp_matcher_trim forgets */
    STATES_MAX = 1 << 15,
    FRAMES_MAX = 1 << 22,
    ENTRIES_MAX = 1 << 14, /* stacks of one state, and places visited for it */
    UNKNOWN = -3
};

/* Where to go on when a rule ends; frame 0 is below the root. */
struct frame {
    int32_t to, below;
};

/* A step that takes a byte, with the stack under it. */
struct entry {
    int32_t step, frame;
};

struct state {
    uint32_t first, n; /* of entries */
    uint32_t hash;
    bool accepts;
};

struct nmlp_matcher {
    const nmlp_grammar *g;
    struct frame *frames;
    size_t n_frames, frames_capacity;
    int32_t *frame_slots; /* [n_frame_slots] open addressing, -1: free */
    size_t n_frame_slots;
    struct state *states;
    size_t n_states, states_capacity;
    int32_t *state_slots;
    size_t n_state_slots;
    int32_t *next; /* [states_capacity, n_classes] */
    size_t next_capacity;
    struct entry *entries; /* of all states */
    size_t n_entries, entries_capacity;
    struct entry *found, *work; /* [ENTRIES_MAX] of the state that is being made */
    size_t n_found, n_work;
    int32_t *seen; /* [SEEN_SLOTS] places of `visited` */
    struct entry *visited;
    size_t n_visited;
    bool accepts; /* the state that is being made */
    int32_t start;
};

enum { SEEN_SLOTS = 2 * ENTRIES_MAX };

static uint32_t mix(uint32_t a, uint32_t b) {
    uint32_t h = a * 0x9e3779b1u ^ (b + 0x85ebca6bu + (a << 6) + (a >> 2));
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return h ^ h >> 12;
}

/* ---- tables ---- */

static nmlp_status grow(void **table, size_t *capacity, size_t need, size_t bytes, nmlp_err *err) {
    return nmlp_mem_grow(table, capacity, need, bytes, err);
}

/* A table of twice the slots, all free. */
static nmlp_status grow_slots(int32_t **slots, size_t *n, nmlp_err *err) {
    size_t twice = *n ? 2 * *n : 1024;
    int32_t *more = nmlp_mem_new(twice, sizeof *more, err);
    if (!more) return NMLP_E_NOMEM;
    for (size_t i = 0; i < twice; i++) more[i] = -1;
    nmlp_mem_free(*slots);
    *slots = more;
    *n = twice;
    return NMLP_OK;
}

static void place_frame(nmlp_matcher *m, int32_t frame) {
    uint32_t h = mix((uint32_t)m->frames[frame].to, (uint32_t)m->frames[frame].below);
    while (m->frame_slots[h & (m->n_frame_slots - 1)] >= 0) h++;
    m->frame_slots[h & (m->n_frame_slots - 1)] = frame;
}

/* -1 after a failure. */
static int32_t intern_frame(nmlp_matcher *m, int32_t to, int32_t below) {
    void *frames = m->frames;
    for (uint32_t h = mix((uint32_t)to, (uint32_t)below);; h++) {
        int32_t at = m->frame_slots[h & (m->n_frame_slots - 1)];
        if (at < 0) break;
        if (m->frames[at].to == to && m->frames[at].below == below) return at;
    }
    if (m->n_frames == FRAMES_MAX) return -1;
    if (grow(&frames, &m->frames_capacity, m->n_frames + 1, sizeof *m->frames, NULL) != NMLP_OK) return -1;
    m->frames = frames;
    m->frames[m->n_frames] = (struct frame){to, below};
    int32_t made = (int32_t)m->n_frames++;
    if (2 * m->n_frames > m->n_frame_slots) {
        if (grow_slots(&m->frame_slots, &m->n_frame_slots, NULL) != NMLP_OK) {
            m->n_frames--;
            return -1;
        }
        for (int32_t i = 0; i < made; i++) place_frame(m, i);
    }
    place_frame(m, made);
    return made;
}

/* ---- from stacks to states ---- */

static void begin_state(nmlp_matcher *m) {
    for (size_t i = 0; i < m->n_visited; i++) { /* only what was used is emptied */
        uint32_t h = mix((uint32_t)m->visited[i].step, (uint32_t)m->visited[i].frame);
        while (m->seen[h & (SEEN_SLOTS - 1)] >= 0) m->seen[h++ & (SEEN_SLOTS - 1)] = -1;
    }
    m->n_visited = m->n_found = m->n_work = 0;
    m->accepts = false;
}

/* Queues a place that was not met yet; false: too many. */
static bool visit(nmlp_matcher *m, int32_t step, int32_t frame) {
    uint32_t h = mix((uint32_t)step, (uint32_t)frame);
    for (; m->seen[h & (SEEN_SLOTS - 1)] >= 0; h++) {
        const struct entry *e = &m->visited[m->seen[h & (SEEN_SLOTS - 1)]];
        if (e->step == step && e->frame == frame) return true;
    }
    if (m->n_visited == ENTRIES_MAX) return false;
    m->visited[m->n_visited] = (struct entry){step, frame};
    m->seen[h & (SEEN_SLOTS - 1)] = (int32_t)m->n_visited++;
    m->work[m->n_work++] = (struct entry){step, frame};
    return true;
}

/* Follows everything that needs no byte. */
static bool close_state(nmlp_matcher *m) {
    const nmlp_grammar *g = m->g;
    while (m->n_work > 0) {
        struct entry e = m->work[--m->n_work];
        const nmlp_grammar_step *step = &g->steps[e.step];
        bool ok = true;
        switch ((nmlp_grammar_op)step->op) {
        case NMLP_GRAMMAR_BYTE: m->found[m->n_found++] = e; break;
        case NMLP_GRAMMAR_SPLIT: ok = visit(m, step->to, e.frame) && visit(m, step->other, e.frame); break;
        case NMLP_GRAMMAR_CALL: {
            /* Nothing is left to do behind a call at the end of a rule. */
            bool last = g->steps[step->to].op == NMLP_GRAMMAR_RETURN;
            int32_t frame = last ? e.frame : intern_frame(m, step->to, e.frame);
            ok = frame >= 0 && visit(m, g->rules[step->other].start, frame);
            break;
        }
        case NMLP_GRAMMAR_RETURN:
            if (e.frame == 0)
                m->accepts = true;
            else
                ok = visit(m, m->frames[e.frame].to, m->frames[e.frame].below);
            break;
        }
        if (!ok) return false;
    }
    return true;
}

static int by_place(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

static void place_state(nmlp_matcher *m, int32_t state) {
    uint32_t h = m->states[state].hash;
    while (m->state_slots[h & (m->n_state_slots - 1)] >= 0) h++;
    m->state_slots[h & (m->n_state_slots - 1)] = state;
}

static nmlp_status reserve_state(nmlp_matcher *m, nmlp_err *err) {
    void *states = m->states, *entries = m->entries, *next = m->next;
    size_t width = (size_t)m->g->n_classes;
    NMLP_RETURN_IF_FAILED(grow(&states, &m->states_capacity, m->n_states + 1, sizeof *m->states, err));
    m->states = states;
    NMLP_RETURN_IF_FAILED(grow(&entries, &m->entries_capacity, m->n_entries + m->n_found, sizeof *m->entries, err));
    m->entries = entries;
    NMLP_RETURN_IF_FAILED(grow(&next, &m->next_capacity, (m->n_states + 1) * width, sizeof *m->next, err));
    m->next = next;
    if (2 * (m->n_states + 1) > m->n_state_slots) {
        NMLP_RETURN_IF_FAILED(grow_slots(&m->state_slots, &m->n_state_slots, err));
        for (size_t i = 0; i < m->n_states; i++) place_state(m, (int32_t)i);
    }
    return NMLP_OK;
}

/* The number of the state that was closed. */
static int32_t intern_state(nmlp_matcher *m) {
    uint32_t hash = m->accepts ? 7 : 3;
    size_t width = (size_t)m->g->n_classes;
    if (m->n_found == 0 && !m->accepts) return NMLP_MATCHER_DEAD;
    qsort(m->found, m->n_found, sizeof *m->found, by_place);
    for (size_t i = 0; i < m->n_found; i++)
        hash = mix(hash, mix((uint32_t)m->found[i].step, (uint32_t)m->found[i].frame));
    for (uint32_t h = hash; m->n_state_slots > 0; h++) {
        int32_t at = m->state_slots[h & (m->n_state_slots - 1)];
        if (at < 0) break;
        const struct state *s = &m->states[at];
        if (s->hash == hash && s->n == m->n_found && s->accepts == m->accepts &&
            (s->n == 0 || memcmp(m->entries + s->first, m->found, s->n * sizeof *m->found) == 0))
            return at;
    }
    if (m->n_states == STATES_MAX || reserve_state(m, NULL) != NMLP_OK) return NMLP_MATCHER_FAILED;
    if (m->n_found) memcpy(m->entries + m->n_entries, m->found, m->n_found * sizeof *m->found);
    m->states[m->n_states] = (struct state){(uint32_t)m->n_entries, (uint32_t)m->n_found, hash, m->accepts};
    m->n_entries += m->n_found;
    for (size_t i = 0; i < width; i++) m->next[m->n_states * width + i] = UNKNOWN;
    int32_t made = (int32_t)m->n_states++;
    place_state(m, made);
    return made;
}

static int32_t compute_next(nmlp_matcher *m, int32_t state, unsigned char byte) {
    const struct state *s = &m->states[state];
    begin_state(m);
    for (uint32_t i = 0; i < s->n; i++) {
        struct entry e = m->entries[s->first + i];
        const nmlp_grammar_step *step = &m->g->steps[e.step];
        if (byte < step->first || byte > step->last) continue;
        if (!visit(m, step->to, e.frame)) return NMLP_MATCHER_FAILED;
    }
    return close_state(m) ? intern_state(m) : NMLP_MATCHER_FAILED;
}

int32_t nmlp_matcher_next(nmlp_matcher *m, int32_t state, unsigned char byte) {
    size_t at = (size_t)state * (size_t)m->g->n_classes + m->g->byte_class[byte];
    int32_t known = m->next[at];
    if (known != UNKNOWN) return known;
    known = compute_next(m, state, byte);
    if (known != NMLP_MATCHER_FAILED) m->next[at] = known;
    return known;
}

int32_t nmlp_matcher_start(const nmlp_matcher *m) { return m->start; }
int32_t nmlp_matcher_states(const nmlp_matcher *m) { return (int32_t)m->n_states; }
bool nmlp_matcher_accepts(const nmlp_matcher *m, int32_t state) { return m->states[state].accepts; }
bool nmlp_matcher_is_final(const nmlp_matcher *m, int32_t state) { return m->states[state].n == 0; }

/* ---- life ---- */

/* Empty tables, and the start. */
static nmlp_status begin_tables(nmlp_matcher *m, nmlp_err *err) {
    m->n_frames = m->n_states = m->n_entries = 0;
    for (size_t i = 0; i < m->n_frame_slots; i++) m->frame_slots[i] = -1;
    for (size_t i = 0; i < m->n_state_slots; i++) m->state_slots[i] = -1;
    begin_state(m);
    int32_t bottom = intern_frame(m, -1, -1);
    bool ok = bottom == 0 && visit(m, m->g->rules[m->g->root].start, 0) && close_state(m);
    m->start = ok ? intern_state(m) : NMLP_MATCHER_FAILED;
    if (m->start >= 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_LIMIT, "grammar", "is too ambiguous at its beginning");
}

/* The frame with all below it, anew from a table that is about to go: from the bottom up. -1 after a failure. */
static int32_t copy_frame(nmlp_matcher *m, const struct frame *old, int32_t frame, int32_t *path) {
    int32_t n = 0, made = 0;
    for (int32_t at = frame; at > 0; at = old[at].below) path[n++] = at;
    while (n-- > 0 && made >= 0) made = intern_frame(m, old[path[n]].to, made);
    return made;
}

nmlp_status nmlp_matcher_trim(nmlp_matcher *m, int32_t *state, bool *forgot, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *forgot = m->n_states > STATES_KEPT;
    if (!*forgot) return NMLP_OK;
    struct state kept = m->states[*state];
    size_t n_old = m->n_frames;
    struct frame *old = nmlp_mem_new(n_old, sizeof *old, err);
    struct entry *entries = nmlp_mem_new(kept.n ? kept.n : 1, sizeof *entries, err);
    int32_t *path = nmlp_mem_new(n_old, sizeof *path, err);
    if (!old || !entries || !path) NMLP_TRY(NMLP_E_NOMEM);
    memcpy(old, m->frames, n_old * sizeof *old);
    if (kept.n) memcpy(entries, m->entries + kept.first, kept.n * sizeof *entries);
    NMLP_TRY(begin_tables(m, err));
    begin_state(m);
    m->accepts = kept.accepts;
    for (uint32_t i = 0; i < kept.n; i++) {
        int32_t frame = copy_frame(m, old, entries[i].frame, path);
        if (frame < 0) NMLP_TRY(nmlp_fail_field(err, NMLP_E_LIMIT, "grammar", "needs too many states"));
        m->found[m->n_found++] = (struct entry){entries[i].step, frame};
    }
    *state = intern_state(m);
out:
    nmlp_mem_free(path);
    nmlp_mem_free(entries);
    nmlp_mem_free(old);
    return st;
}

nmlp_status nmlp_matcher_create(nmlp_matcher **out, const nmlp_grammar *grammar, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_matcher *m = nmlp_mem_new(1, sizeof *m, err);
    if (!m) return NMLP_E_NOMEM;
    m->g = grammar;
    m->found = nmlp_mem_new(ENTRIES_MAX, sizeof *m->found, err);
    m->work = nmlp_mem_new(ENTRIES_MAX, sizeof *m->work, err);
    m->visited = nmlp_mem_new(ENTRIES_MAX, sizeof *m->visited, err);
    m->seen = nmlp_mem_new(SEEN_SLOTS, sizeof *m->seen, err);
    if (!m->found || !m->work || !m->visited || !m->seen) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t i = 0; i < SEEN_SLOTS; i++) m->seen[i] = -1;
    NMLP_TRY(grow_slots(&m->frame_slots, &m->n_frame_slots, err));
    NMLP_TRY(begin_tables(m, err));
    *out = m;
out:
    if (st != NMLP_OK) nmlp_matcher_destroy(m);
    return st;
}

void nmlp_matcher_destroy(nmlp_matcher *m) {
    if (!m) return;
    nmlp_mem_free(m->frames);
    nmlp_mem_free(m->frame_slots);
    nmlp_mem_free(m->states);
    nmlp_mem_free(m->state_slots);
    nmlp_mem_free(m->next);
    nmlp_mem_free(m->entries);
    nmlp_mem_free(m->found);
    nmlp_mem_free(m->work);
    nmlp_mem_free(m->visited);
    nmlp_mem_free(m->seen);
    nmlp_mem_free(m);
}
