#include "text/pretokenize.h"

#include <string.h>

#include "base/mem.h"
#include "text/unicode.h"

const char nmlp_split_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { METASPACE_MAX_BYTES = 8 };

typedef struct step {
    nmlp_regex *regex; /* NULL: pieces stay whole */
    nmlp_split_behavior behavior;
    bool invert;
    bool prefix_space;
    char metaspace[METASPACE_MAX_BYTES]; /* "": none */
    nmlp_metaspace_prepend metaspace_prepend;
} step;

struct nmlp_pretokenizer {
    step steps[NMLP_SPLIT_STEPS_MAX];
    size_t n_steps;
};

nmlp_status nmlp_pretokenizer_create(nmlp_pretokenizer **out, nmlp_err *err) {
    *out = nmlp_mem_new(1, sizeof **out, err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_pretokenizer_destroy(nmlp_pretokenizer *pre) {
    if (!pre) return;
    for (size_t i = 0; i < pre->n_steps; i++) nmlp_regex_destroy(pre->steps[i].regex);
    nmlp_mem_free(pre);
}

nmlp_status nmlp_pretokenizer_add(nmlp_pretokenizer *pre, const nmlp_split_spec *spec, nmlp_err *err) {
    if (pre->n_steps == NMLP_SPLIT_STEPS_MAX)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "more than %d pre-tokenizers", (int)NMLP_SPLIT_STEPS_MAX);
    step s = {.behavior = spec->behavior,
              .invert = spec->invert,
              .prefix_space = spec->prefix_space,
              .metaspace_prepend = spec->metaspace_prepend};
    if (spec->metaspace) {
        size_t len = strlen(spec->metaspace);
        if (!len || len >= METASPACE_MAX_BYTES)
            return nmlp_fail(err, NMLP_E_FORMAT, "Metaspace: \"replacement\" must be one character");
        memcpy(s.metaspace, spec->metaspace, len);
    }
    if (spec->pattern) NMLP_RETURN_IF_FAILED(nmlp_regex_compile(&s.regex, spec->pattern, spec->literal, err));
    pre->steps[pre->n_steps++] = s;
    return NMLP_OK;
}

nmlp_status nmlp_pretokenize_begin(nmlp_pretokenize_run *run, const nmlp_pretokenizer *pre, nmlp_piece_sink *sink,
                                   void *sink_ctx, nmlp_err *err) {
    *run = (nmlp_pretokenize_run){.pre = pre, .sink = sink, .sink_ctx = sink_ctx};
    return nmlp_regex_scratch_init(&run->regex, err);
}

void nmlp_pretokenize_end(nmlp_pretokenize_run *run) {
    nmlp_regex_scratch_fini(&run->regex);
    for (size_t i = 0; i < NMLP_SPLIT_STEPS_MAX; i++) {
        nmlp_str_fini(&run->changed[i]);
        nmlp_str_fini(&run->known[i]);
    }
    *run = (nmlp_pretokenize_run){0};
}

static nmlp_status run_step(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, bool first,
                            nmlp_err *err);

/* Gathers matches and what lies between them into pieces, as the behavior says. */
typedef struct gatherer {
    nmlp_pretokenize_run *run;
    const char *text;
    size_t next_step;
    bool first; /* the text is at the start of what is encoded */
    nmlp_split_behavior behavior;
    bool holding;
    nmlp_span held;
    bool held_is_match;
} gatherer;

static nmlp_status pass_on(gatherer *g, nmlp_span piece, nmlp_err *err) {
    if (piece.begin == piece.end) return NMLP_OK;
    return run_step(g->run, g->next_step, g->text + piece.begin, piece.end - piece.begin, g->first && !piece.begin,
                    err);
}

static nmlp_status gather(gatherer *g, nmlp_span part, bool is_match, nmlp_err *err) {
    bool join = false;
    switch (g->behavior) {
    case NMLP_SPLIT_ISOLATED: return pass_on(g, part, err);
    case NMLP_SPLIT_REMOVED: return is_match ? NMLP_OK : pass_on(g, part, err);
    case NMLP_SPLIT_MERGED_WITH_PREVIOUS: join = g->holding && is_match && !g->held_is_match; break;
    case NMLP_SPLIT_MERGED_WITH_NEXT: join = g->holding && !is_match && g->held_is_match; break;
    case NMLP_SPLIT_CONTIGUOUS: join = g->holding && is_match == g->held_is_match; break;
    }
    nmlp_status st = NMLP_OK;
    if (join) {
        g->held.end = part.end;
    } else {
        st = pass_on(g, g->held, err);
        g->held = part;
        g->holding = true;
    }
    g->held_is_match = is_match;
    return st;
}

/* An empty match cuts where it stands, but does not count right behind the match before it. */
static nmlp_status cut(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, bool first, nmlp_err *err) {
    const step *s = &run->pre->steps[nth];
    gatherer g = {.run = run, .text = text, .next_step = nth + 1, .first = first, .behavior = s->behavior};
    const char *known = nmlp_unicode_known_text(text, len, &run->known[nth]);
    size_t done = 0;
    size_t from = 0;
    bool any = false;
    while (from <= len) {
        nmlp_span match;
        bool found;
        NMLP_RETURN_IF_FAILED(nmlp_regex_find(s->regex, &run->regex, known, len, from, &match, &found, err));
        if (!found) break;
        from = match.end;
        if (match.begin == match.end) {
            do from++;
            while (from < len && ((unsigned char)text[from] & 0xC0) == 0x80);
            if (any && match.begin == done) continue;
        }
        any = true;
        if (done < match.begin) NMLP_RETURN_IF_FAILED(gather(&g, (nmlp_span){done, match.begin}, s->invert, err));
        NMLP_RETURN_IF_FAILED(gather(&g, match, !s->invert, err));
        done = match.end;
    }
    if (done < len) NMLP_RETURN_IF_FAILED(gather(&g, (nmlp_span){done, len}, s->invert, err));
    return pass_on(&g, g.held, err);
}

/* Spaces become the metaspace character, and one may come in front. */
static void append_metaspaced(nmlp_str *out, const step *s, const char *text, size_t len, bool first) {
    size_t meta_len = strlen(s->metaspace);
    bool starts = text[0] == ' ' || (len >= meta_len && memcmp(text, s->metaspace, meta_len) == 0);
    bool prepend =
        s->metaspace_prepend == NMLP_METASPACE_ALWAYS || (s->metaspace_prepend == NMLP_METASPACE_FIRST && first);
    if (prepend && !starts) nmlp_str_append(out, s->metaspace, meta_len);
    for (size_t i = 0; i < len; i++) {
        if (text[i] == ' ')
            nmlp_str_append(out, s->metaspace, meta_len);
        else
            nmlp_str_putc(out, text[i]);
    }
}

static nmlp_status run_step(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, bool first,
                            nmlp_err *err) {
    if (nth == run->pre->n_steps) return run->sink(run->sink_ctx, text, len, err);
    const step *s = &run->pre->steps[nth];
    bool prefix = s->prefix_space && text[0] != ' ';
    if (prefix || s->metaspace[0]) {
        nmlp_str *copy = &run->changed[nth];
        nmlp_str_clear(copy);
        if (prefix) nmlp_str_putc(copy, ' ');
        if (s->metaspace[0])
            append_metaspaced(copy, s, text, len, first);
        else
            nmlp_str_append(copy, text, len);
        NMLP_RETURN_IF_FAILED(nmlp_str_status(copy, err));
        text = copy->data;
        len = copy->len;
    }
    return s->regex ? cut(run, nth, text, len, first, err) : run_step(run, nth + 1, text, len, first, err);
}

nmlp_status nmlp_pretokenize_feed(nmlp_pretokenize_run *run, const char *text, size_t len, bool first, nmlp_err *err) {
    return len ? run_step(run, 0, text, len, first, err) : NMLP_OK;
}
