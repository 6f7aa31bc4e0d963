#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

/* pcre2_code under a name of ours. */
static pcre2_code *code_of(const nmlp_regex *regex) { return (pcre2_code *)(uintptr_t)regex; }

void nmlp_regex_destroy(nmlp_regex *regex) { pcre2_code_free(code_of(regex)); }

typedef struct rewrite {
    char letter;
    const char *inside, *outside; /* of a bracket; NULL: cannot be said there */
} rewrite;

/* Letters, marks, digits, letter numerals, connectors; letters in circles and squares. Outside brackets also the
 * superscripts and fractions of Latin-1. */
#define WORD                                                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{"    \
    "1F189}"
#define WORD_LATIN1 "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* Escapes that mean something else in Oniguruma than in PCRE2: \s does not take U+180E for a space, \w has all marks
 * and connectors, \h is a hexadecimal digit. */
static const rewrite rewrites[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'w', WORD, "[" WORD WORD_LATIN1 "]"},
    {'W', NULL, "[^" WORD WORD_LATIN1 "]"},
    {'h', "0-9A-Fa-f", "[0-9A-Fa-f]"},
    {'H', NULL, "[^0-9A-Fa-f]"},
};

static const rewrite *find_rewrite(char letter) {
    for (size_t i = 0; i < sizeof rewrites / sizeof rewrites[0]; i++)
        if (rewrites[i].letter == letter) return &rewrites[i];
    return NULL;
}

static nmlp_status fail_unsupported(const char *pattern, const char *what, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "pattern \"%.300s\": %s is not supported", pattern, what);
}

static nmlp_status append_escape(nmlp_str *out, const char *pattern, const char *c, bool in_class, nmlp_err *err) {
    const rewrite *r = find_rewrite(c[1]);
    if (!r) {
        nmlp_str_append(out, c, 2);
        return NMLP_OK;
    }
    const char *text = in_class ? r->inside : r->outside;
    if (!text) return fail_unsupported(pattern, "\\W or \\H inside brackets", err);
    nmlp_str_puts(out, text);
    return NMLP_OK;
}

/* The brace of {n,m}+, which repeats in Oniguruma and is possessive in PCRE2. */
static bool is_repeated_count(const char *pattern, const char *brace) {
    if (brace[0] != '}' || brace[1] != '+') return false;
    const char *c = brace;
    while (c > pattern && (c[-1] == ',' || (c[-1] >= '0' && c[-1] <= '9'))) c--;
    return c < brace && c > pattern && c[-1] == '{';
}

/* The same pattern in PCRE2's words. */
static nmlp_status append_pattern(nmlp_str *out, const char *pattern, nmlp_err *err) {
    bool in_class = false;
    for (const char *c = pattern; *c; c++) {
        if (c[0] == '\\' && c[1]) {
            NMLP_RETURN_IF_FAILED(append_escape(out, pattern, c, in_class, err));
            c++;
            continue;
        }
        if (in_class && c[0] == '&' && c[1] == '&') return fail_unsupported(pattern, "&& inside brackets", err);
        if (in_class && c[0] == '[' && c[1] != ':') return fail_unsupported(pattern, "a bracket inside brackets", err);
        if (!in_class && is_repeated_count(pattern, c)) return fail_unsupported(pattern, "{n,m}+", err);
        nmlp_str_putc(out, *c);
        if (!in_class && c[0] == '[') {
            in_class = true;
            if (c[1] == '^') nmlp_str_putc(out, *++c);
            if (c[1] == ']') nmlp_str_putc(out, *++c);
        } else if (in_class && c[0] == '[') { /* [:alpha:] */
            const char *end = strstr(c, ":]");
            if (!end) return fail_unsupported(pattern, "a bracket inside brackets", err);
            nmlp_str_append(out, c + 1, (size_t)(end + 2 - (c + 1)));
            c = end + 1;
        } else if (in_class && c[0] == ']') {
            in_class = false;
        }
    }
    return nmlp_str_status(out, err);
}

nmlp_status nmlp_regex_compile(nmlp_regex **out, const char *pattern, bool literal, nmlp_err *err) {
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    int code = 0;
    PCRE2_SIZE at = 0;
    nmlp_str_init(&text);
    if (literal)
        nmlp_str_puts(&text, pattern);
    else
        NMLP_TRY(append_pattern(&text, pattern, err));
    NMLP_TRY(nmlp_str_status(&text, err));
    /* In Oniguruma's default dialect ^ and $ stand at every line. */
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)nmlp_str_text(&text), text.len, options, &code, &at, NULL);
    if (!compiled) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        st = nmlp_fail(err, NMLP_E_FORMAT, "pattern \"%.300s\" does not compile: %s", pattern, (char *)why);
        goto out;
    }
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without the JIT pcre2_match interprets: same result */
    *out = (nmlp_regex *)compiled;
out:
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_regex_scratch_init(nmlp_regex_scratch *scratch, nmlp_err *err) {
    *scratch = (nmlp_regex_scratch){0};
    scratch->match_data = pcre2_match_data_create(1, NULL);
    scratch->match_context = pcre2_match_context_create(NULL);
    if (scratch->match_data && scratch->match_context) return NMLP_OK;
    nmlp_regex_scratch_fini(scratch);
    return nmlp_fail(err, NMLP_E_NOMEM, "out of memory for regular expressions");
}

void nmlp_regex_scratch_fini(nmlp_regex_scratch *scratch) {
    pcre2_match_data_free(scratch->match_data);
    pcre2_match_context_free(scratch->match_context);
    pcre2_jit_stack_free(scratch->jit_stack);
    *scratch = (nmlp_regex_scratch){0};
}

static bool add_jit_stack(nmlp_regex_scratch *scratch) {
    enum { FIRST_BYTES = 64 << 10, MAX_BYTES = 32 << 20 };
    if (scratch->jit_stack) return false;
    scratch->jit_stack = pcre2_jit_stack_create(FIRST_BYTES, MAX_BYTES, NULL);
    if (!scratch->jit_stack) return false;
    pcre2_jit_stack_assign(scratch->match_context, NULL, scratch->jit_stack);
    return true;
}

nmlp_status nmlp_regex_find(const nmlp_regex *regex, nmlp_regex_scratch *scratch, const char *text, size_t len,
                            size_t from, nmlp_span *match, bool *found, nmlp_err *err) {
    int n;
    do {
        n = pcre2_match(code_of(regex), (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, scratch->match_data,
                        scratch->match_context);
    } while (n == PCRE2_ERROR_JIT_STACKLIMIT && add_jit_stack(scratch));
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return NMLP_OK;
    if (n < 0) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(n, why, sizeof why);
        return nmlp_fail(err, NMLP_E_LIMIT, "regular expression gave up after byte %zu of a text: %s", from,
                         (char *)why);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(scratch->match_data);
    *match = (nmlp_span){offsets[0], offsets[1]};
    if (match->begin < from || match->end < match->begin) *match = (nmlp_span){from, from}; /* \K can do that */
    return NMLP_OK;
}
