/* Unicode properties and NFC: the only file that uses utf8proc. */
#include <utf8proc.h>

#include "base/mem.h"
#include "text/utf8.h"

bool nmlp_unicode_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    if (c == 0x85) return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool nmlp_unicode_is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true; /* symbols that are Alphabetic: letters in circles and squares */
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

typedef struct code_points {
    utf8proc_int32_t *data;
    size_t capacity;
} code_points;

static nmlp_status append_composed(nmlp_str *out, code_points *scratch, const char *text, size_t len, nmlp_err *err) {
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    utf8proc_ssize_t n = utf8proc_decompose(bytes, (utf8proc_ssize_t)len, NULL, 0, options);
    if (n < 0) return nmlp_fail(err, NMLP_E_FORMAT, "NFC: %s", utf8proc_errmsg(n));
    void *data = scratch->data;
    /* One more: utf8proc_reencode ends its output with a NUL. */
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&data, &scratch->capacity, (size_t)n + 1, sizeof *scratch->data, err));
    scratch->data = data;
    n = utf8proc_decompose(bytes, (utf8proc_ssize_t)len, scratch->data, (utf8proc_ssize_t)scratch->capacity, options);
    if (n >= 0) n = utf8proc_reencode(scratch->data, n, options);
    if (n < 0) return nmlp_fail(err, NMLP_E_FORMAT, "NFC: %s", utf8proc_errmsg(n));
    nmlp_str_append(out, scratch->data, (size_t)n);
    return NMLP_OK;
}

/* Characters below U+0300 are in NFC and never join what stands before them, so only the stretches from one character
 * before a higher one to the next ASCII byte have to be looked at. */
nmlp_status nmlp_unicode_append_nfc(nmlp_str *out, const char *text, size_t len, nmlp_err *err) {
    enum { LEAD_OF_U0300 = 0xCC };
    nmlp_status st = NMLP_OK;
    code_points scratch = {0};
    size_t done = 0;
    size_t at = 0;
    while (at < len) {
        if ((unsigned char)text[at] < LEAD_OF_U0300) { /* also continuation bytes */
            at++;
            continue;
        }
        uint32_t before;
        size_t begin = at > done ? at - nmlp_utf8_last(text, at, &before) : at;
        nmlp_str_append(out, text + done, begin - done);
        while (at < len && (unsigned char)text[at] >= 0x80) at++;
        NMLP_TRY(append_composed(out, &scratch, text + begin, at - begin, err));
        done = at;
    }
    nmlp_str_append(out, text + done, len - done);
    st = nmlp_str_status(out, err);
out:
    nmlp_mem_free(scratch.data);
    return st;
}
