/* Regular expressions of JSON Schema, the usual part: literals, classes, ., groups, |, * + ? {m,n}, ^ at the start and
 * $ at the end. The grammar derives texts that match from end to end, which a search finds too. */
#include <stdlib.h>
#include <string.h>

#include "grammar/json_schema.h"
#include "text/utf8.h"

enum { DEPTH_MAX = 50 };

struct pattern {
    const char *at;
    nmlp_str *out;
    const char *field;
    int depth;
    nmlp_status st;
    nmlp_err *err;
};

static void refuse(struct pattern *p, const char *what) {
    if (p->st != NMLP_OK) return;
    p->st =
        nmlp_fail_field(p->err, NMLP_E_UNSUPPORTED, p->field, "has a pattern with %s, which is not supported", what);
}

/* A character as it stands inside a JSON string. */
static void put_char(struct pattern *p, const char *text, size_t len) {
    if (len == 1 && (*text == '"' || *text == '\\')) {
        char escaped[2] = {'\\', *text};
        nmlp_schema_literal_append(p->out, escaped, 2);
    } else if (len == 1 && ((unsigned char)*text < 0x20 || *text == 0x7f)) {
        refuse(p, "a control character");
    } else {
        nmlp_schema_literal_append(p->out, text, len);
    }
}

/* Members of \d \w \s, to stand inside [ ]; NULL: not one of them. */
static const char *shorthand(char c) {
    switch (c) {
    case 'd': return "0-9";
    case 'w': return "A-Za-z0-9_";
    case 's': return " ";
    default: return NULL;
    }
}

static bool is_plain(char c) { return c && strchr("\\^$.|?*+()[]{}-/'\"@:;,=!<>&%#~` _", c) != NULL; }

/* Members of a class without brackets: quotes and backslashes would need an escape in JSON and are left out. */
static void put_class_char(struct pattern *p, const char *text, size_t len) {
    if (len == 1 && strchr("]^-\\[\"", *text)) nmlp_str_putc(p->out, '\\');
    nmlp_str_append(p->out, text, len);
}

/* One member; false: the class ends in the middle. */
static bool class_member(struct pattern *p, bool negated) {
    uint32_t c;
    if (*p->at == '\\') {
        const char *set = shorthand(p->at[1]);
        if (set && negated) {
            refuse(p, "\\d, \\w or \\s in a negated class"); /* they have members beyond ASCII */
        } else if (set) {
            nmlp_str_puts(p->out, set);
        } else if (is_plain(p->at[1]) && (p->at[1] != '"' && p->at[1] != '\\')) {
            put_class_char(p, p->at + 1, 1);
        } else if (!negated || !is_plain(p->at[1])) {
            refuse(p, "this escape in a class");
        }
        p->at += p->at[1] ? 2 : 1;
        return true;
    }
    int n = nmlp_utf8_decode(p->at, strlen(p->at), &c);
    if (n <= 0) return false;
    if (c < 0x20 || c == 0x7f) refuse(p, "a control character");
    if (c == '"') {
        if (!negated) refuse(p, "a quote in a class"); /* a negated class leaves it out anyway */
    } else if (c == '-' && p->at[1] != ']') {
        nmlp_str_putc(p->out, '-');
    } else {
        put_class_char(p, p->at, (size_t)n);
    }
    p->at += n;
    return true;
}

static void put_class(struct pattern *p) {
    bool negated = p->at[1] == '^';
    p->at += negated ? 2 : 1;
    if (*p->at == '-' && !negated) { /* first, it is itself */
        nmlp_str_puts(p->out, "[\\-");
        p->at++;
    } else {
        nmlp_str_puts(p->out, negated ? "[^\"\\\\\\x00-\\x1f\\x7f" : "[");
    }
    bool any = false;
    while (*p->at && *p->at != ']' && p->st == NMLP_OK) {
        any = true;
        if (!class_member(p, negated)) break;
    }
    if (*p->at != ']' || !any) {
        refuse(p, "an odd class");
        return;
    }
    p->at++;
    nmlp_str_puts(p->out, "]");
}

static void put_alternatives(struct pattern *p);

static void put_group(struct pattern *p) {
    p->at++;
    if (p->at[0] == '?') {
        if (p->at[1] != ':') {
            refuse(p, "a group of this kind");
            return;
        }
        p->at += 2;
    }
    if (++p->depth > DEPTH_MAX) refuse(p, "groups nested so deeply");
    if (p->st != NMLP_OK) return;
    nmlp_str_puts(p->out, "(");
    put_alternatives(p);
    nmlp_str_puts(p->out, ")");
    if (*p->at != ')') refuse(p, "a group that does not end");
    if (*p->at) p->at++;
    p->depth--;
}

static void put_escape(struct pattern *p) {
    const char *set = shorthand(p->at[1]);
    if (set)
        nmlp_str_printf(p->out, "[%s]", set);
    else if (is_plain(p->at[1]))
        put_char(p, p->at + 1, 1);
    else
        refuse(p, "this escape");
    p->at += p->at[1] ? 2 : 1;
}

static void put_item(struct pattern *p) {
    uint32_t c;
    switch (*p->at) {
    case '(': put_group(p); return;
    case '[': put_class(p); return;
    case '\\': put_escape(p); return;
    case '.':
        nmlp_str_puts(p->out, "[^\"\\\\\\x00-\\x1f\\x7f]");
        p->at++;
        return;
    case '^':
    case '$': refuse(p, "an anchor inside"); return;
    case '*':
    case '+':
    case '?':
    case '{': refuse(p, "a repetition of nothing"); return;
    default: break;
    }
    int n = nmlp_utf8_decode(p->at, strlen(p->at), &c);
    if (n <= 0) {
        refuse(p, "malformed UTF-8");
        return;
    }
    put_char(p, p->at, (size_t)n);
    p->at += n;
}

/* Bytes of "{2}", "{2,}" or "{2,5}"; 0: it is something else, or its numbers are long. */
static size_t count_repeat(const char *at) {
    enum { DIGITS_MAX = 6 };
    size_t least = strspn(at + 1, "0123456789"), n = 1 + least, most = 0;
    if (at[n] == ',') most = strspn(at + ++n, "0123456789");
    if (most > 0 && strtol(at + 1, NULL, 10) > strtol(at + n, NULL, 10)) return 0;
    n += most;
    return least > 0 && least <= DIGITS_MAX && most <= DIGITS_MAX && at[n] == '}' ? n + 1 : 0;
}

static void put_repeat(struct pattern *p) {
    if (*p->at == '{') {
        size_t n = count_repeat(p->at);
        if (n == 0) refuse(p, "an odd repetition");
        if (p->st != NMLP_OK) return;
        nmlp_str_append(p->out, p->at, n);
        p->at += n;
    } else if (*p->at && strchr("*+?", *p->at)) {
        nmlp_str_putc(p->out, *p->at++);
    } else {
        nmlp_str_putc(p->out, ' ');
        return;
    }
    if (*p->at == '?' || *p->at == '+') refuse(p, "a lazy or possessive repetition");
    nmlp_str_putc(p->out, ' ');
}

static void put_alternatives(struct pattern *p) {
    bool begins = true; /* an alternative */
    while (*p->at && *p->at != ')' && p->st == NMLP_OK) {
        bool anchor =
            p->depth == 0 && ((begins && *p->at == '^') || (*p->at == '$' && (p->at[1] == '\0' || p->at[1] == '|')));
        begins = *p->at == '|';
        if (begins) {
            nmlp_str_puts(p->out, "| ");
            p->at++;
        } else if (anchor) {
            p->at++;
        } else {
            put_item(p);
            if (p->st == NMLP_OK) put_repeat(p);
        }
    }
}

nmlp_status nmlp_schema_pattern_append(nmlp_str *out, const char *pattern, const char *field, nmlp_err *err) {
    struct pattern p = {.at = pattern, .out = out, .field = field, .err = err};
    nmlp_str_puts(out, "( ");
    put_alternatives(&p);
    nmlp_str_puts(out, ") ");
    if (p.st == NMLP_OK && *p.at) refuse(&p, "a bracket that was not opened");
    return p.st;
}
