#define _GNU_SOURCE /* memmem */
#include "text/normalize.h"

#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

enum { STEPS_MAX = 32, RESULT_MAX_BYTES = 1 << 30 /* pieces are counted in 31 bits */ };

/* A result has GROWTH_MAX times the bytes of its text and GROWTH_FREE_BYTES at most. Unicode's decompositions need a
 * factor of 11; without a bound a hostile file takes all memory. */
enum { GROWTH_MAX = 64, GROWTH_FREE_BYTES = 1 << 16 };

static const char space_symbol[] = "\xE2\x96\x81"; /* U+2581 */

typedef struct step {
    nmlp_normalizer_spec spec; /* its strings are those below */
    nmlp_regex *regex;
    char *pattern, *content;
    nmlp_charsmap charsmap;
} step;

struct nmlp_normalizer {
    step steps[STEPS_MAX];
    size_t n_steps;
};

nmlp_status nmlp_normalizer_create(nmlp_normalizer **out, nmlp_err *err) {
    *out = nmlp_mem_new(1, sizeof **out, err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

static void free_step(step *s) {
    nmlp_regex_destroy(s->regex);
    nmlp_mem_free(s->pattern);
    nmlp_mem_free(s->content);
    nmlp_charsmap_fini(&s->charsmap);
}

void nmlp_normalizer_destroy(nmlp_normalizer *normalizer) {
    if (!normalizer) return;
    for (size_t i = 0; i < normalizer->n_steps; i++) free_step(&normalizer->steps[i]);
    nmlp_mem_free(normalizer);
}

bool nmlp_normalizer_is_empty(const nmlp_normalizer *normalizer) { return normalizer->n_steps == 0; }

static nmlp_status copy_string(char **out, const char *text, nmlp_err *err) {
    size_t len = text ? strlen(text) : 0;
    *out = nmlp_mem_new(len + 1, 1, err);
    if (!*out) return NMLP_E_NOMEM;
    if (len) memcpy(*out, text, len);
    return NMLP_OK;
}

nmlp_status nmlp_normalizer_add(nmlp_normalizer *normalizer, const nmlp_normalizer_spec *spec, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    step s = {.spec = *spec};
    if (normalizer->n_steps == STEPS_MAX)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "more than %d normalizers", (int)STEPS_MAX);
    NMLP_TRY(copy_string(&s.pattern, spec->pattern, err));
    NMLP_TRY(copy_string(&s.content, spec->content, err));
    s.spec.pattern = s.pattern;
    s.spec.content = s.content;
    if (spec->kind == NMLP_NORMALIZER_REPLACE && !spec->literal)
        NMLP_TRY(nmlp_regex_compile(&s.regex, spec->pattern, false, err));
    if (spec->charsmap_len) NMLP_TRY(nmlp_charsmap_init(&s.charsmap, spec->charsmap, spec->charsmap_len, err));
    s.spec.charsmap = NULL;
    normalizer->steps[normalizer->n_steps++] = s;
    return NMLP_OK;
out:
    free_step(&s);
    return st;
}

static void append_stripped(const step *s, const char *text, size_t len, nmlp_str *out) {
    size_t begin = 0;
    uint32_t c;
    while (s->spec.left && begin < len) {
        int n = nmlp_utf8_decode(text + begin, len - begin, &c);
        if (n <= 0 || !nmlp_unicode_is_space(c)) break;
        begin += (size_t)n;
    }
    while (s->spec.right && len > begin) {
        size_t n = nmlp_utf8_last(text, len, &c);
        if (!nmlp_unicode_is_space(c)) break;
        len -= n;
    }
    nmlp_str_append(out, text + begin, len - begin);
}

static void append_replaced(const step *s, const char *text, size_t len, size_t max_bytes, nmlp_str *out) {
    size_t pattern_len = strlen(s->pattern);
    size_t at = 0;
    while (pattern_len && at < len && out->len <= max_bytes) {
        const char *match = memmem(text + at, len - at, s->pattern, pattern_len);
        if (!match) break;
        nmlp_str_append(out, text + at, (size_t)(match - text) - at);
        nmlp_str_puts(out, s->content);
        at = (size_t)(match - text) + pattern_len;
    }
    if (at < len) nmlp_str_append(out, text + at, len - at);
}

static nmlp_status append_regex_replaced(const step *s, const char *text, size_t len, size_t max_bytes, nmlp_str *out,
                                         nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_regex_scratch scratch;
    nmlp_str copy;
    size_t done = 0;
    nmlp_str_init(&copy);
    NMLP_RETURN_IF_FAILED(nmlp_regex_scratch_init(&scratch, err));
    const char *known = nmlp_unicode_known_text(text, len, &copy);
    size_t from = 0;
    while (from <= len && out->len <= max_bytes) {
        nmlp_span match;
        bool found;
        NMLP_TRY(nmlp_regex_find(s->regex, &scratch, known, len, from, &match, &found, err));
        if (!found) break;
        from = match.end;
        if (match.begin == match.end) {
            do from++;
            while (from < len && ((unsigned char)text[from] & 0xC0) == 0x80);
            if (match.begin == done && done) continue; /* right behind the match before it */
        }
        nmlp_str_append(out, text + done, match.begin - done);
        nmlp_str_puts(out, s->content);
        done = match.end;
    }
    nmlp_str_append(out, text + done, len - done);
out:
    nmlp_str_fini(&copy);
    nmlp_regex_scratch_fini(&scratch);
    return st;
}

/* `tokenizers` replaces a whole grapheme of up to five bytes by what its shortest prefix in the table stands for, and
 * else goes character by character. */
static void append_precompiled(const step *s, const char *text, size_t len, size_t max_bytes, nmlp_str *out) {
    enum { GRAPHEME_MAX = 5 };
    const char *replacement;
    size_t prefix;
    for (size_t at = 0; at < len && out->len <= max_bytes;) {
        size_t n = nmlp_unicode_grapheme(text + at, len - at);
        if (n <= GRAPHEME_MAX &&
            nmlp_charsmap_find(&s->charsmap, text + at, n, NMLP_CHARSMAP_SHORTEST, &prefix, &replacement)) {
            nmlp_str_puts(out, replacement);
            at += n;
            continue;
        }
        for (size_t end = at + n; at < end && out->len <= max_bytes;) {
            uint32_t c;
            int bytes = nmlp_utf8_decode(text + at, end - at, &c);
            size_t one = bytes > 0 ? (size_t)bytes : 1;
            if (nmlp_charsmap_find(&s->charsmap, text + at, one, NMLP_CHARSMAP_SHORTEST, &prefix, &replacement))
                nmlp_str_puts(out, replacement);
            else
                nmlp_str_append(out, text + at, one);
            at += one;
        }
    }
}

/* sentencepiece: the longest prefix in the table, else one character; spaces are then joined, dropped at the ends and
 * written as U+2581. */
static void append_sentencepiece(const step *s, const char *text, size_t len, size_t max_bytes, nmlp_str *out) {
    const nmlp_normalizer_spec *spec = &s->spec;
    const char *space = spec->escape_space ? space_symbol : " ";
    size_t space_len = strlen(space);
    bool after_space = spec->remove_extra_space; /* leading spaces go */
    bool started = false;
    size_t text_begin = out->len;
    for (size_t at = 0; at < len && out->len <= max_bytes;) {
        uint32_t c;
        size_t n = 0;
        const char *piece = text + at;
        size_t piece_len;
        if (nmlp_charsmap_find(&s->charsmap, text + at, len - at, NMLP_CHARSMAP_LONGEST, &n, &piece)) {
            piece_len = strlen(piece);
        } else {
            int bytes = nmlp_utf8_decode(text + at, len - at, &c);
            n = piece_len = bytes > 0 ? (size_t)bytes : 1;
        }
        at += n;
        for (size_t i = 0; i < piece_len; i++) {
            if (piece[i] == ' ' && after_space && spec->remove_extra_space) continue;
            if (!started && spec->add_prefix) nmlp_str_append(out, space, space_len);
            started = true;
            after_space = piece[i] == ' ';
            if (after_space)
                nmlp_str_append(out, space, space_len);
            else
                nmlp_str_putc(out, piece[i]);
        }
    }
    if (out->len > max_bytes) return; /* cut short: it must stay too long */
    while (spec->remove_extra_space && !out->failed && out->len >= text_begin + space_len &&
           memcmp(out->data + out->len - space_len, space, space_len) == 0)
        out->len -= space_len;
}

/* Stops soon behind max_bytes, which the caller then refuses. */
static nmlp_status run_step(const step *s, const char *text, size_t len, size_t max_bytes, nmlp_str *out,
                            nmlp_err *err) {
    switch (s->spec.kind) {
    case NMLP_NORMALIZER_FORM: return nmlp_unicode_append_form(out, s->spec.form, text, len, err);
    case NMLP_NORMALIZER_LOWERCASE: nmlp_unicode_append_lowercase(out, text, len); break;
    case NMLP_NORMALIZER_STRIP: append_stripped(s, text, len, out); break;
    case NMLP_NORMALIZER_REPLACE:
        if (s->regex) return append_regex_replaced(s, text, len, max_bytes, out, err);
        append_replaced(s, text, len, max_bytes, out);
        break;
    case NMLP_NORMALIZER_PREPEND:
        if (len) nmlp_str_puts(out, s->content);
        nmlp_str_append(out, text, len);
        break;
    case NMLP_NORMALIZER_PRECOMPILED: append_precompiled(s, text, len, max_bytes, out); break;
    case NMLP_NORMALIZER_SENTENCEPIECE: append_sentencepiece(s, text, len, max_bytes, out); break;
    }
    return nmlp_str_status(out, err);
}

static nmlp_status refuse_growth(size_t text_bytes, size_t max_bytes, nmlp_err *err) {
    if (max_bytes == RESULT_MAX_BYTES)
        return nmlp_fail(err, NMLP_E_LIMIT, "text of %zu bytes has more than %zu when normalised", text_bytes,
                         max_bytes);
    return nmlp_fail(err, NMLP_E_LIMIT,
                     "the tokenizer's normalizer makes more than %zu bytes of %zu: is its file damaged?", max_bytes,
                     text_bytes);
}

nmlp_status nmlp_normalizer_run(const nmlp_normalizer *normalizer, const char *text, size_t len, nmlp_str *out,
                                nmlp_err *err) {
    nmlp_str other;
    nmlp_status st = NMLP_OK;
    const size_t text_bytes = len;
    const size_t max_bytes =
        len < RESULT_MAX_BYTES / GROWTH_MAX ? GROWTH_FREE_BYTES + GROWTH_MAX * len : RESULT_MAX_BYTES;
    nmlp_str_init(&other);
    nmlp_str_clear(out);
    if (!normalizer->n_steps) nmlp_str_append(out, text, len);
    for (size_t i = 0; i < normalizer->n_steps && st == NMLP_OK; i++) {
        if (i) { /* what the step before made is now the text */
            nmlp_str previous = *out;
            *out = other;
            other = previous;
            nmlp_str_clear(out);
            text = nmlp_str_text(&other);
            len = other.len;
        }
        st = run_step(&normalizer->steps[i], text, len, max_bytes, out, err);
        if (st == NMLP_OK && out->len > max_bytes) st = refuse_growth(text_bytes, max_bytes, err);
    }
    if (st == NMLP_OK) st = nmlp_str_status(out, err);
    nmlp_str_fini(&other);
    return st;
}
