/* Unicode properties and NFC: the only file that uses utf8proc. */
#include <string.h>
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
    size_t len, capacity;
} code_points;

static nmlp_status reserve(code_points *list, size_t extra, nmlp_err *err) {
    void *data = list->data;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&data, &list->capacity, list->len + extra, sizeof *list->data, err));
    list->data = data;
    return NMLP_OK;
}

static const utf8proc_option_t nfc_options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

static nmlp_status decompose(code_points *list, const char *text, size_t len, nmlp_err *err) {
    enum { ONE_CHARACTER_MAX = 32 }; /* canonical decompositions have 4 code points at most */
    size_t at = 0;
    list->len = 0;
    while (at < len) {
        uint32_t c = 0;
        int bound_class = 0;
        at += (size_t)nmlp_utf8_decode(text + at, len - at, &c);
        NMLP_RETURN_IF_FAILED(reserve(list, ONE_CHARACTER_MAX, err));
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, list->data + list->len, ONE_CHARACTER_MAX,
                                                     nfc_options, &bound_class);
        if (n < 0 || n > ONE_CHARACTER_MAX)
            return nmlp_fail(err, NMLP_E_FORMAT, "NFC: U+%04X cannot be decomposed", (unsigned)c);
        list->len += (size_t)n;
    }
    return NMLP_OK;
}

static unsigned class_of(utf8proc_int32_t c) { return (unsigned)utf8proc_get_property(c)->combining_class & 255u; }

/* Puts a run of combining marks in the order of their classes; marks of one class keep theirs. Counting, since the sort
 * inside utf8proc_decompose takes half a minute for a hostile 200 kB. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *sorted) {
    size_t ends[256] = {0};
    for (size_t i = 0; i < n; i++) ends[class_of(marks[i])]++;
    for (size_t c = 1; c < 256; c++) ends[c] += ends[c - 1];
    for (size_t i = n; i-- > 0;) sorted[--ends[class_of(marks[i])]] = marks[i];
    memcpy(marks, sorted, n * sizeof *marks);
}

static nmlp_status order_marks(code_points *list, code_points *scratch, nmlp_err *err) {
    size_t begin = 0;
    scratch->len = 0;
    while (begin < list->len) {
        if (class_of(list->data[begin]) == 0) {
            begin++;
            continue;
        }
        size_t end = begin + 1;
        bool in_order = true;
        unsigned last = class_of(list->data[begin]);
        for (unsigned c; end < list->len && (c = class_of(list->data[end])) != 0; end++) {
            if (c < last) in_order = false;
            last = c;
        }
        if (!in_order) {
            NMLP_RETURN_IF_FAILED(reserve(scratch, end - begin, err));
            sort_marks(list->data + begin, end - begin, scratch->data);
        }
        begin = end;
    }
    return NMLP_OK;
}

typedef struct nfc_scratch {
    code_points list, sorted;
} nfc_scratch;

static nmlp_status append_composed(nmlp_str *out, nfc_scratch *scratch, const char *text, size_t len, nmlp_err *err) {
    code_points *list = &scratch->list;
    NMLP_RETURN_IF_FAILED(decompose(list, text, len, err));
    NMLP_RETURN_IF_FAILED(order_marks(list, &scratch->sorted, err));
    NMLP_RETURN_IF_FAILED(reserve(list, 1, err)); /* utf8proc_reencode ends its output with a NUL */
    utf8proc_ssize_t n = utf8proc_reencode(list->data, (utf8proc_ssize_t)list->len, nfc_options);
    if (n < 0) return nmlp_fail(err, NMLP_E_FORMAT, "NFC: %s", utf8proc_errmsg(n));
    nmlp_str_append(out, list->data, (size_t)n);
    return NMLP_OK;
}

/* Characters below U+0300 are in NFC and never join what stands before them, so only the runs from one character
 * before a higher one to the next ASCII byte have to be looked at. */
nmlp_status nmlp_unicode_append_nfc(nmlp_str *out, const char *text, size_t len, nmlp_err *err) {
    enum { LEAD_OF_U0300 = 0xCC };
    nmlp_status st = NMLP_OK;
    nfc_scratch scratch = {0};
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
    nmlp_mem_free(scratch.list.data);
    nmlp_mem_free(scratch.sorted.data);
    return st;
}
