#include "report/markup.h"

#include <string.h>

void nmlp_markup_bytes(nmlp_str *out, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        switch (text[i]) {
        case '<': nmlp_str_puts(out, "&lt;"); break;
        case '>': nmlp_str_puts(out, "&gt;"); break;
        case '&': nmlp_str_puts(out, "&amp;"); break;
        case '"': nmlp_str_puts(out, "&quot;"); break;
        case '\'': nmlp_str_puts(out, "&#39;"); break;
        default: nmlp_str_putc(out, text[i]);
        }
    }
}

void nmlp_markup_text(nmlp_str *out, const char *text) { nmlp_markup_bytes(out, text, strlen(text)); }

/* In JSON these characters stand only inside strings, where an escape means the same. */
void nmlp_markup_json(nmlp_str *out, const nmlp_str *json) {
    for (size_t i = 0; i < json->len; i++) {
        char c = json->data[i];
        if (c == '<' || c == '>' || c == '&')
            nmlp_str_printf(out, "\\u%04x", (unsigned)c);
        else
            nmlp_str_putc(out, c);
    }
}
