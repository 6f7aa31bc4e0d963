/* Lines of Python: indentation, comments, statements that break where they are too long. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "trainium/emit/source.h"

enum { LINE_MAX_COLUMNS = 110, COMMENT_MAX_COLUMNS = 100 };

static void indent(nmlp_emit_source *src, int extra) {
    for (int i = 0; i < src->depth + extra; i++) nmlp_str_puts(src->out, "    ");
}

void nmlp_emit_source_part_end(const nmlp_emit_source *src, nmlp_str *part) {
    if (part->failed) src->out->failed = true;
    nmlp_str_fini(part);
}

void nmlp_emit_source_line(nmlp_emit_source *src, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof text) src->out->failed = true;
    if (n > 0) indent(src, 0);
    nmlp_str_puts(src->out, text);
    nmlp_str_putc(src->out, '\n');
    src->n_statements++;
    src->after_comment = false;
}

void nmlp_emit_source_comment(nmlp_emit_source *src, const char *text) {
    int room = COMMENT_MAX_COLUMNS - 4 * src->depth - 2;
    if (!src->after_comment) nmlp_str_putc(src->out, '\n');
    while (*text) {
        int len = (int)strlen(text), cut = len;
        if (len > room) {
            cut = room;
            while (cut > 0 && text[cut] != ' ') cut--;
            if (cut == 0) cut = (int)strcspn(text, " ");
        }
        indent(src, 0);
        nmlp_str_printf(src->out, "# %.*s\n", cut, text);
        text += cut;
        while (*text == ' ') text++;
    }
    src->after_comment = true;
}

void nmlp_emit_source_statement(nmlp_emit_source *src, const nmlp_str *marked) {
    const char *text = nmlp_str_text(marked);
    size_t columns = 4 * (size_t)src->depth;
    if (marked->failed) src->out->failed = true;
    for (const char *c = text; *c; c++) columns += *c == '\1' ? 2 : 1;
    bool wide = columns > LINE_MAX_COLUMNS;
    indent(src, 0);
    for (const char *c = text; *c; c++) {
        if (*c == '\2' || *c == '\3' || *c == '\1') {
            if (*c == '\2') nmlp_str_putc(src->out, '(');
            if (*c == '\1' || (*c == '\3' && wide)) nmlp_str_putc(src->out, ',');
            if (wide) {
                nmlp_str_putc(src->out, '\n');
                indent(src, *c == '\3' ? 0 : 1);
            } else if (*c == '\1') {
                nmlp_str_putc(src->out, ' ');
            }
            if (*c == '\3') nmlp_str_putc(src->out, ')');
        } else {
            nmlp_str_putc(src->out, *c);
        }
    }
    nmlp_str_putc(src->out, '\n');
    src->n_statements++;
    src->after_comment = false;
}
