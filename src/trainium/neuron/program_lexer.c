#include "trainium/neuron/program_lexer.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

nmlp_status nmlp_lexer_expected(nmlp_lexer *lx, const char *what) {
    char mark[3] = {lx->mark, 0, 0};
    const char *found = lx->text;
    if (lx->kind == NMLP_TOKEN_END) found = "the end of the text";
    if (lx->kind == NMLP_TOKEN_MARK) found = lx->range ? ":+" : mark;
    return nmlp_fail(lx->err, NMLP_E_FORMAT, "%s:%d: expected %s, found \"%.60s\"", lx->where, lx->token_line, what,
                     found);
}

static nmlp_status take_text(nmlp_lexer *lx, const char *from, const char *to, size_t max) {
    size_t len = (size_t)(to - from);
    if (len >= max || memchr(from, '\0', len))
        return nmlp_fail(lx->err, NMLP_E_FORMAT, "%s:%d: a word of %zu characters, at most %zu", lx->where, lx->line,
                         len, max - 1);
    memcpy(lx->text, from, len);
    lx->text[len] = '\0';
    lx->at = to;
    return NMLP_OK;
}

static nmlp_status lex_number(nmlp_lexer *lx) {
    const char *p = lx->at;
    while (p < lx->stop &&
           (word_char(*p) || *p == '.' || ((*p == '+' || *p == '-') && (p[-1] == 'e' || p[-1] == 'E') && p > lx->at)))
        p++;
    lx->kind = NMLP_TOKEN_NUMBER;
    return take_text(lx, lx->at, p, NMLP_NAME_MAX);
}

nmlp_status nmlp_lexer_next(nmlp_lexer *lx) {
    while (lx->at < lx->stop && isspace((unsigned char)*lx->at)) lx->line += *lx->at++ == '\n';
    lx->range = false;
    lx->mark = 0;
    lx->text[0] = '\0';
    lx->token_line = lx->line;
    if (lx->at == lx->stop) {
        lx->kind = NMLP_TOKEN_END;
        return NMLP_OK;
    }
    const char *p = lx->at;
    if (*p == '#') {
        const char *from = p + 1, *to;
        while (from < lx->stop && *from == ' ') from++;
        for (to = from; to < lx->stop && *to != '\n' && *to != '\r'; to++) {
        }
        lx->kind = NMLP_TOKEN_COMMENT;
        return take_text(lx, from, to, NMLP_COMMENT_TEXT_MAX);
    }
    if (isdigit((unsigned char)*p)) return lex_number(lx);
    if (word_char(*p)) {
        while (p < lx->stop && word_char(*p)) p++;
        lx->kind = NMLP_TOKEN_NAME;
        return take_text(lx, lx->at, p, NMLP_NAME_MAX);
    }
    lx->kind = NMLP_TOKEN_MARK;
    lx->mark = *p;
    lx->range = *p == ':' && p + 1 < lx->stop && p[1] == '+';
    lx->at = p + (lx->range ? 2 : 1);
    if (!strchr("[]{}(),;=*+-:", lx->mark) || !lx->mark)
        return nmlp_lexer_expected(lx, "a word, a number or one of []{}(),;=*+-");
    return NMLP_OK;
}

nmlp_status nmlp_lexer_init(nmlp_lexer *lx, const char *where, const char *text, size_t len, nmlp_err *err) {
    *lx = (nmlp_lexer){.where = where, .at = text, .stop = text + len, .line = 1, .err = err};
    return nmlp_lexer_next(lx);
}

bool nmlp_lexer_is_name(const nmlp_lexer *lx, const char *name) {
    return lx->kind == NMLP_TOKEN_NAME && strcmp(lx->text, name) == 0;
}

bool nmlp_lexer_is_mark(const nmlp_lexer *lx, char mark) {
    return lx->kind == NMLP_TOKEN_MARK && !lx->range && lx->mark == mark;
}

nmlp_status nmlp_lexer_take_name(nmlp_lexer *lx, char out[NMLP_NAME_MAX], const char *what) {
    if (lx->kind != NMLP_TOKEN_NAME) return nmlp_lexer_expected(lx, what);
    memcpy(out, lx->text, NMLP_NAME_MAX);
    out[NMLP_NAME_MAX - 1] = '\0';
    return nmlp_lexer_next(lx);
}

nmlp_status nmlp_lexer_take_keyword(nmlp_lexer *lx, const char *name) {
    return nmlp_lexer_is_name(lx, name) ? nmlp_lexer_next(lx) : nmlp_lexer_expected(lx, name);
}

nmlp_status nmlp_lexer_take_mark(nmlp_lexer *lx, char mark) {
    char what[2] = {mark, 0};
    return nmlp_lexer_is_mark(lx, mark) ? nmlp_lexer_next(lx) : nmlp_lexer_expected(lx, what);
}

nmlp_status nmlp_lexer_take_range(nmlp_lexer *lx) {
    return lx->kind == NMLP_TOKEN_MARK && lx->range ? nmlp_lexer_next(lx) : nmlp_lexer_expected(lx, ":+");
}

nmlp_status nmlp_lexer_take_int(nmlp_lexer *lx, int64_t *value) {
    bool negative = nmlp_lexer_is_mark(lx, '-');
    if (negative) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(lx));
    if (lx->kind != NMLP_TOKEN_NUMBER) return nmlp_lexer_expected(lx, "a whole number");
    char *end = NULL;
    long long n = strtoll(lx->text, &end, 10);
    if (*end || n > NMLP_INDEX_MAX) return nmlp_lexer_expected(lx, "a whole number up to 2^30");
    *value = negative ? -(int64_t)n : (int64_t)n;
    return nmlp_lexer_next(lx);
}

nmlp_status nmlp_lexer_take_real(nmlp_lexer *lx, double *value) {
    bool negative = nmlp_lexer_is_mark(lx, '-');
    if (negative) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(lx));
    if (lx->kind != NMLP_TOKEN_NUMBER) return nmlp_lexer_expected(lx, "a number");
    char *end = NULL;
    double n = strtod(lx->text, &end);
    if (*end || !isfinite(n)) return nmlp_lexer_expected(lx, "a finite number");
    *value = negative ? -n : n;
    return nmlp_lexer_next(lx);
}

nmlp_status nmlp_lexer_take_choice(nmlp_lexer *lx, const char *(*name_of)(int), int n, const char *what, int *choice) {
    for (int i = 0; lx->kind == NMLP_TOKEN_NAME && i < n; i++) {
        if (strcmp(lx->text, name_of(i)) != 0) continue;
        *choice = i;
        return nmlp_lexer_next(lx);
    }
    return nmlp_lexer_expected(lx, what);
}
