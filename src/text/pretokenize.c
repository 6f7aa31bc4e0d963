#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"

#include <pcre2.h>
#include <string.h>

#include "base/mem.h"

const char nmlp_split_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct step {
    pcre2_code *code; /* NULL: pieces stay whole */
    nmlp_split_behavior behavior;
    bool invert;
    bool prefix_space;
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
    for (size_t i = 0; i < pre->n_steps; i++) pcre2_code_free(pre->steps[i].code);
    nmlp_mem_free(pre);
}

/* PCRE2's \s takes U+180E for a space, which Unicode (and Oniguruma, whose dialect the file is written in) does not. */
static void append_pattern(nmlp_str *out, const char *pattern) {
    for (const char *c = pattern; *c; c++) {
        if (c[0] == '\\' && c[1] == 's') {
            nmlp_str_puts(out, "\\p{White_Space}");
            c++;
        } else if (c[0] == '\\' && c[1] == 'S') {
            nmlp_str_puts(out, "\\P{White_Space}");
            c++;
        } else if (c[0] == '\\' && c[1]) {
            nmlp_str_append(out, c, 2);
            c++;
        } else {
            nmlp_str_putc(out, *c);
        }
    }
}

static nmlp_status compile(pcre2_code **out, const nmlp_split_spec *spec, nmlp_err *err) {
    nmlp_str pattern;
    nmlp_str_init(&pattern);
    if (spec->literal)
        nmlp_str_puts(&pattern, spec->pattern);
    else
        append_pattern(&pattern, spec->pattern);
    nmlp_status st = nmlp_str_status(&pattern, err);
    if (st == NMLP_OK) {
        int code = 0;
        PCRE2_SIZE at = 0;
        uint32_t options = PCRE2_UTF | (spec->literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
        *out = pcre2_compile((PCRE2_SPTR)nmlp_str_text(&pattern), pattern.len, options, &code, &at, NULL);
        if (!*out) {
            PCRE2_UCHAR why[160];
            pcre2_get_error_message(code, why, sizeof why);
            st = nmlp_fail(err, NMLP_E_FORMAT, "pattern \"%.300s\" does not compile: %s", spec->pattern, (char *)why);
        }
    }
    nmlp_str_fini(&pattern);
    return st;
}

nmlp_status nmlp_pretokenizer_add(nmlp_pretokenizer *pre, const nmlp_split_spec *spec, nmlp_err *err) {
    if (pre->n_steps == NMLP_SPLIT_STEPS_MAX)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "more than %d pre-tokenizers", (int)NMLP_SPLIT_STEPS_MAX);
    step s = {.behavior = spec->behavior, .invert = spec->invert, .prefix_space = spec->prefix_space};
    if (spec->pattern) {
        NMLP_RETURN_IF_FAILED(compile(&s.code, spec, err));
        /* Without the JIT pcre2_match interprets: slower, same result. */
        (void)pcre2_jit_compile(s.code, PCRE2_JIT_COMPLETE);
    }
    pre->steps[pre->n_steps++] = s;
    return NMLP_OK;
}

nmlp_status nmlp_pretokenize_begin(nmlp_pretokenize_run *run, const nmlp_pretokenizer *pre, nmlp_piece_sink *sink,
                                   void *sink_ctx, nmlp_err *err) {
    *run = (nmlp_pretokenize_run){.pre = pre, .sink = sink, .sink_ctx = sink_ctx};
    run->match_data = pcre2_match_data_create(1, NULL);
    run->match_context = pcre2_match_context_create(NULL);
    if (run->match_data && run->match_context) return NMLP_OK;
    nmlp_pretokenize_end(run);
    return nmlp_fail(err, NMLP_E_NOMEM, "out of memory for the pre-tokenizer");
}

void nmlp_pretokenize_end(nmlp_pretokenize_run *run) {
    pcre2_match_data_free(run->match_data);
    pcre2_match_context_free(run->match_context);
    pcre2_jit_stack_free(run->jit_stack);
    for (size_t i = 0; i < NMLP_SPLIT_STEPS_MAX; i++) nmlp_str_fini(&run->prefixed[i]);
    *run = (nmlp_pretokenize_run){0};
}

static bool add_jit_stack(nmlp_pretokenize_run *run) {
    enum { FIRST_BYTES = 64 << 10, MAX_BYTES = 32 << 20 };
    if (run->jit_stack) return false;
    run->jit_stack = pcre2_jit_stack_create(FIRST_BYTES, MAX_BYTES, NULL);
    if (!run->jit_stack) return false;
    pcre2_jit_stack_assign(run->match_context, NULL, run->jit_stack);
    return true;
}

typedef struct span {
    size_t begin, end;
} span;

/* The next match at or after `from`; false when there is none. */
static nmlp_status find_match(nmlp_pretokenize_run *run, const pcre2_code *code, const char *text, size_t len,
                              size_t from, span *match, bool *found, nmlp_err *err) {
    int n;
    do {
        n = pcre2_match(code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, run->match_data, run->match_context);
    } while (n == PCRE2_ERROR_JIT_STACKLIMIT && add_jit_stack(run));
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return NMLP_OK;
    if (n < 0) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(n, why, sizeof why);
        return nmlp_fail(err, NMLP_E_LIMIT, "pre-tokenizer gave up after byte %zu of a text: %s", from, (char *)why);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(run->match_data);
    *match = (span){offsets[0], offsets[1]};
    if (match->begin < from || match->end < match->begin) *match = (span){from, from}; /* \K can do that */
    return NMLP_OK;
}

static nmlp_status run_step(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, nmlp_err *err);

/* Gathers matches and what lies between them into pieces, as the behavior says. */
typedef struct gatherer {
    nmlp_pretokenize_run *run;
    const char *text;
    size_t next_step;
    nmlp_split_behavior behavior;
    bool holding;
    span held;
    bool held_is_match;
} gatherer;

static nmlp_status pass_on(gatherer *g, span piece, nmlp_err *err) {
    if (piece.begin == piece.end) return NMLP_OK;
    return run_step(g->run, g->next_step, g->text + piece.begin, piece.end - piece.begin, err);
}

static nmlp_status gather(gatherer *g, span part, bool is_match, nmlp_err *err) {
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
static nmlp_status cut(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, nmlp_err *err) {
    const step *s = &run->pre->steps[nth];
    gatherer g = {.run = run, .text = text, .next_step = nth + 1, .behavior = s->behavior};
    size_t done = 0;
    size_t from = 0;
    bool any = false;
    while (from <= len) {
        span match;
        bool found;
        NMLP_RETURN_IF_FAILED(find_match(run, s->code, text, len, from, &match, &found, err));
        if (!found) break;
        from = match.end;
        if (match.begin == match.end) {
            do from++;
            while (from < len && ((unsigned char)text[from] & 0xC0) == 0x80);
            if (any && match.begin == done) continue;
        }
        any = true;
        if (done < match.begin) NMLP_RETURN_IF_FAILED(gather(&g, (span){done, match.begin}, s->invert, err));
        NMLP_RETURN_IF_FAILED(gather(&g, match, !s->invert, err));
        done = match.end;
    }
    if (done < len) NMLP_RETURN_IF_FAILED(gather(&g, (span){done, len}, s->invert, err));
    return pass_on(&g, g.held, err);
}

static nmlp_status run_step(nmlp_pretokenize_run *run, size_t nth, const char *text, size_t len, nmlp_err *err) {
    if (nth == run->pre->n_steps) return run->sink(run->sink_ctx, text, len, err);
    const step *s = &run->pre->steps[nth];
    if (s->prefix_space && text[0] != ' ') {
        nmlp_str *copy = &run->prefixed[nth];
        nmlp_str_clear(copy);
        nmlp_str_putc(copy, ' ');
        nmlp_str_append(copy, text, len);
        NMLP_RETURN_IF_FAILED(nmlp_str_status(copy, err));
        text = copy->data;
        len = copy->len;
    }
    return s->code ? cut(run, nth, text, len, err) : run_step(run, nth + 1, text, len, err);
}

nmlp_status nmlp_pretokenize_feed(nmlp_pretokenize_run *run, const char *text, size_t len, nmlp_err *err) {
    return len ? run_step(run, 0, text, len, err) : NMLP_OK;
}
