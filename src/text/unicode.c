/* Unicode properties, normal forms and letter case: the only file that uses utf8proc. */
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/utf8.h"

typedef enum newer_kind { CF, HAN, LL, LM, LO, LU, MC, MN, ND, NO, PD, PO, SM, SO } newer_kind;

/* Characters that Unicode 16 knows and Unicode 14 does not (one has changed its category since), with their category;
 * Han letters apart, since patterns ask for the script. From the differences between `tokenizers` 0.23, PCRE2 10.42 and
 * utf8proc 2.8 over all code points. */
static const struct newer_range {
    uint32_t first, last;
    newer_kind kind;
} newer_ranges[] = {
    // clang-format off
    {0x897, 0x897, MN}, {0xCF3, 0xCF3, MC}, {0xECE, 0xECE, MN}, {0x1B4E, 0x1B4F, PO}, {0x1B7F, 0x1B7F, PO},
    {0x1C89, 0x1C89, LU}, {0x1C8A, 0x1C8A, LL}, {0x2427, 0x2429, SO}, {0x2FFC, 0x2FFF, SO}, {0x31E4, 0x31E5, SO},
    {0x31EF, 0x31EF, SO}, {0xA7CB, 0xA7CC, LU}, {0xA7CD, 0xA7CD, LL}, {0xA7DA, 0xA7DA, LU}, {0xA7DB, 0xA7DB, LL},
    {0xA7DC, 0xA7DC, LU}, {0x105C0, 0x105F3, LO}, {0x10D40, 0x10D49, ND}, {0x10D4A, 0x10D4D, LO},
    {0x10D4E, 0x10D4E, LM}, {0x10D4F, 0x10D4F, LO}, {0x10D50, 0x10D65, LU}, {0x10D69, 0x10D6D, MN},
    {0x10D6E, 0x10D6E, PD}, {0x10D6F, 0x10D6F, LM}, {0x10D70, 0x10D85, LL}, {0x10D8E, 0x10D8F, SM},
    {0x10EC2, 0x10EC4, LO}, {0x10EFC, 0x10EFF, MN}, {0x1123F, 0x11240, LO}, {0x11241, 0x11241, MN},
    {0x11380, 0x11389, LO}, {0x1138B, 0x1138B, LO}, {0x1138E, 0x1138E, LO}, {0x11390, 0x113B5, LO},
    {0x113B7, 0x113B7, LO}, {0x113B8, 0x113BA, MC}, {0x113BB, 0x113C0, MN}, {0x113C2, 0x113C2, MC},
    {0x113C5, 0x113C5, MC}, {0x113C7, 0x113CA, MC}, {0x113CC, 0x113CD, MC}, {0x113CE, 0x113CE, MN},
    {0x113CF, 0x113CF, MC}, {0x113D0, 0x113D0, MN}, {0x113D1, 0x113D1, LO}, {0x113D2, 0x113D2, MN},
    {0x113D3, 0x113D3, LO}, {0x113D4, 0x113D5, PO}, {0x113D7, 0x113D8, PO}, {0x113E1, 0x113E2, MN},
    {0x116D0, 0x116E3, ND}, {0x1171E, 0x1171E, MC}, {0x11B00, 0x11B09, PO}, {0x11BC0, 0x11BE0, LO},
    {0x11BE1, 0x11BE1, PO}, {0x11BF0, 0x11BF9, ND}, {0x11F00, 0x11F01, MN}, {0x11F02, 0x11F02, LO},
    {0x11F03, 0x11F03, MC}, {0x11F04, 0x11F10, LO}, {0x11F12, 0x11F33, LO}, {0x11F34, 0x11F35, MC},
    {0x11F36, 0x11F3A, MN}, {0x11F3E, 0x11F3F, MC}, {0x11F40, 0x11F40, MN}, {0x11F41, 0x11F41, MC},
    {0x11F42, 0x11F42, MN}, {0x11F43, 0x11F4F, PO}, {0x11F50, 0x11F59, ND}, {0x11F5A, 0x11F5A, MN},
    {0x1342F, 0x1342F, LO}, {0x13439, 0x1343F, CF}, {0x13440, 0x13440, MN}, {0x13441, 0x13446, LO},
    {0x13447, 0x13455, MN}, {0x13460, 0x143FA, LO}, {0x16100, 0x1611D, LO}, {0x1611E, 0x16129, MN},
    {0x1612A, 0x1612C, MC}, {0x1612D, 0x1612F, MN}, {0x16130, 0x16139, ND}, {0x16D40, 0x16D42, LM},
    {0x16D43, 0x16D6A, LO}, {0x16D6B, 0x16D6C, LM}, {0x16D6D, 0x16D6F, PO}, {0x16D70, 0x16D79, ND},
    {0x18CFF, 0x18CFF, LO}, {0x1B132, 0x1B132, LO}, {0x1B155, 0x1B155, LO}, {0x1CC00, 0x1CCEF, SO},
    {0x1CCF0, 0x1CCF9, ND}, {0x1CD00, 0x1CEB3, SO}, {0x1D2C0, 0x1D2D3, NO}, {0x1DF25, 0x1DF2A, LL},
    {0x1E030, 0x1E06D, LM}, {0x1E08F, 0x1E08F, MN}, {0x1E4D0, 0x1E4EA, LO}, {0x1E4EB, 0x1E4EB, LM},
    {0x1E4EC, 0x1E4EF, MN}, {0x1E4F0, 0x1E4F9, ND}, {0x1E5D0, 0x1E5ED, LO}, {0x1E5EE, 0x1E5EF, MN},
    {0x1E5F0, 0x1E5F0, LO}, {0x1E5F1, 0x1E5FA, ND}, {0x1E5FF, 0x1E5FF, PO}, {0x1F6DC, 0x1F6DC, SO},
    {0x1F774, 0x1F776, SO}, {0x1F77B, 0x1F77F, SO}, {0x1F7D9, 0x1F7D9, SO}, {0x1F8B2, 0x1F8BB, SO},
    {0x1F8C0, 0x1F8C1, SO}, {0x1FA75, 0x1FA77, SO}, {0x1FA87, 0x1FA89, SO}, {0x1FA8F, 0x1FA8F, SO},
    {0x1FAAD, 0x1FAAF, SO}, {0x1FABB, 0x1FABF, SO}, {0x1FAC6, 0x1FAC6, SO}, {0x1FACE, 0x1FACF, SO},
    {0x1FADA, 0x1FADC, SO}, {0x1FADF, 0x1FADF, SO}, {0x1FAE8, 0x1FAE9, SO}, {0x1FAF7, 0x1FAF8, SO},
    {0x1FBCB, 0x1FBEF, SO}, {0x2B739, 0x2B739, HAN}, {0x2EBF0, 0x2EE5D, HAN}, {0x31350, 0x323AF, HAN},
    // clang-format on
};

/* A character of each kind that every version knows, of three and of four bytes. */
static const uint32_t known_characters[][2] = {
    [CF] = {0x200B, 0x110BD}, [HAN] = {0x4E00, 0x20000}, [LL] = {0x1E01, 0x10428}, [LM] = {0x1D2C, 0x16B40},
    [LO] = {0x0E01, 0x10000}, [LU] = {0x1E00, 0x10400},  [MC] = {0x0903, 0x11000}, [MN] = {0x1AB0, 0x101FD},
    [ND] = {0x0966, 0x104A0}, [NO] = {0x2460, 0x10107},  [PD] = {0x2010, 0x10EAD}, [PO] = {0x2020, 0x10100},
    [SM] = {0x2200, 0x1D6C1}, [SO] = {0x2600, 0x1F300},
};

/* The character itself, or a known one of its category when it is new. */
static uint32_t known_character(uint32_t c) {
    size_t low = 0;
    size_t high = sizeof newer_ranges / sizeof newer_ranges[0];
    if (c < newer_ranges[0].first) return c;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c > newer_ranges[middle].last)
            low = middle + 1;
        else if (c < newer_ranges[middle].first)
            high = middle;
        else
            return known_characters[newer_ranges[middle].kind][c > 0xFFFF];
    }
    return c;
}

const char *nmlp_unicode_known_text(const char *text, size_t len, nmlp_str *copy) {
    size_t done = 0;
    nmlp_str_clear(copy);
    for (size_t at = 0; at < len;) {
        uint32_t c;
        if ((unsigned char)text[at] < 0xE0) { /* below U+0800 nothing is new */
            at++;
            continue;
        }
        int n = nmlp_utf8_decode(text + at, len - at, &c);
        if (n <= 0) break;
        uint32_t known = known_character(c);
        if (known != c) {
            nmlp_str_append(copy, text + done, at - done);
            nmlp_utf8_append(copy, known);
            done = at + (size_t)n;
        }
        at += (size_t)n;
    }
    if (!done) return text;
    nmlp_str_append(copy, text + done, len - done);
    return copy->failed ? text : copy->data;
}

static utf8proc_category_t category_of(uint32_t c) { return utf8proc_category((utf8proc_int32_t)known_character(c)); }

bool nmlp_unicode_is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    if (c == 0x85) return true;
    utf8proc_category_t category = category_of(c);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool nmlp_unicode_is_word(uint32_t c) {
    if (c == 0x200C || c == 0x200D) return true;
    if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
        (c >= 0x1F170 && c <= 0x1F189))
        return true; /* symbols that are Alphabetic: letters in circles and squares */
    switch (category_of(c)) {
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

static const utf8proc_option_t form_options[] = {
    [NMLP_UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NMLP_UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NMLP_UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NMLP_UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

/* Characters whose decomposition is newer than the tables that `tokenizers` normalises with: they stay as they are. */
static const struct whole_range {
    uint32_t first, last;
} whole_ranges[] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0},
    {0x107B2, 0x107BA}, {0x11938, 0x11938}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool stays_whole(uint32_t c) {
    if (c < whole_ranges[0].first) return false;
    for (size_t i = 0; i < sizeof whole_ranges / sizeof whole_ranges[0]; i++)
        if (c >= whole_ranges[i].first && c <= whole_ranges[i].last) return true;
    return false;
}

static nmlp_status decompose(code_points *list, utf8proc_option_t options, const char *text, size_t len,
                             nmlp_err *err) {
    enum { ONE_CHARACTER_MAX = 32 }; /* decompositions have 18 code points at most */
    size_t at = 0;
    list->len = 0;
    while (at < len) {
        uint32_t c = 0;
        int bound_class = 0;
        at += (size_t)nmlp_utf8_decode(text + at, len - at, &c);
        NMLP_RETURN_IF_FAILED(reserve(list, ONE_CHARACTER_MAX, err));
        if (stays_whole(c)) {
            list->data[list->len++] = (utf8proc_int32_t)c;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, list->data + list->len, ONE_CHARACTER_MAX,
                                                     options, &bound_class);
        if (n < 0 || n > ONE_CHARACTER_MAX)
            return nmlp_fail(err, NMLP_E_FORMAT, "normal form: U+%04X cannot be decomposed", (unsigned)c);
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

typedef struct form_scratch {
    code_points list, sorted;
} form_scratch;

static nmlp_status append_reencoded(nmlp_str *out, form_scratch *scratch, utf8proc_option_t options, const char *text,
                                    size_t len, nmlp_err *err) {
    code_points *list = &scratch->list;
    NMLP_RETURN_IF_FAILED(decompose(list, options, text, len, err));
    NMLP_RETURN_IF_FAILED(order_marks(list, &scratch->sorted, err));
    NMLP_RETURN_IF_FAILED(reserve(list, 1, err)); /* utf8proc_reencode ends its output with a NUL */
    utf8proc_ssize_t n = utf8proc_reencode(list->data, (utf8proc_ssize_t)list->len, options);
    if (n < 0) return nmlp_fail(err, NMLP_E_FORMAT, "normal form: %s", utf8proc_errmsg(n));
    nmlp_str_append(out, list->data, (size_t)n);
    return NMLP_OK;
}

/* Characters below U+0300 are in NFC, those below U+0080 are in every form, and neither joins what stands before it: so
 * only the parts from one character before a higher one to the next ASCII byte have to be looked at. */
nmlp_status nmlp_unicode_append_form(nmlp_str *out, nmlp_unicode_form form, const char *text, size_t len,
                                     nmlp_err *err) {
    const unsigned char lowest_lead = form == NMLP_UNICODE_NFC ? 0xCC : 0xC2; /* lead bytes of U+0300 and U+0080 */
    nmlp_status st = NMLP_OK;
    form_scratch scratch = {0};
    size_t done = 0;
    size_t at = 0;
    while (at < len) {
        if ((unsigned char)text[at] < lowest_lead) { /* also continuation bytes */
            at++;
            continue;
        }
        uint32_t before;
        size_t begin = at > done ? at - nmlp_utf8_last(text, at, &before) : at;
        nmlp_str_append(out, text + done, begin - done);
        while (at < len && (unsigned char)text[at] >= 0x80) at++;
        NMLP_TRY(append_reencoded(out, &scratch, form_options[form], text + begin, at - begin, err));
        done = at;
    }
    nmlp_str_append(out, text + done, len - done);
    st = nmlp_str_status(out, err);
out:
    nmlp_mem_free(scratch.list.data);
    nmlp_mem_free(scratch.sorted.data);
    return st;
}

/* Capitals that Unicode 15 did not know. */
static const struct newer_capitals {
    uint32_t first, last;
    int32_t to_lower;
} newer_capitals[] = {
    {0x1C89, 0x1C89, 1},    {0xA7CB, 0xA7CB, -42343}, {0xA7CC, 0xA7CC, 1}, {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},    {0xA7D4, 0xA7D4, 1},      {0xA7DA, 0xA7DA, 1}, {0xA7DC, 0xA7DC, -42561},
    {0x10D50, 0x10D65, 32}, {0x16EA0, 0x16EB8, 27},
};

static uint32_t lowercase_of(uint32_t c) {
    for (size_t i = 0; c >= newer_capitals[0].first && i < sizeof newer_capitals / sizeof newer_capitals[0]; i++)
        if (c >= newer_capitals[i].first && c <= newer_capitals[i].last)
            return (uint32_t)((int64_t)c + newer_capitals[i].to_lower);
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

void nmlp_unicode_append_lowercase(nmlp_str *out, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t c = 0;
        int n = nmlp_utf8_decode(text + at, len - at, &c);
        if (n <= 0) return;
        at += (size_t)n;
        if (c == 0x130) /* the one lowercase form of two characters: i with a dot above */
            nmlp_str_puts(out, "i\xCC\x87");
        else
            nmlp_utf8_append(out, lowercase_of(c));
    }
}

void nmlp_unicode_append_uppercase(nmlp_str *out, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t c = 0;
        int n = nmlp_utf8_decode(text + at, len - at, &c);
        if (n <= 0) return;
        at += (size_t)n;
        if (c == 0xDF)
            nmlp_str_puts(out, "SS");
        else
            nmlp_utf8_append(out, (uint32_t)utf8proc_toupper((utf8proc_int32_t)c));
    }
}

size_t nmlp_unicode_grapheme(const char *text, size_t len) {
    uint32_t c = 0;
    utf8proc_int32_t state = 0;
    int n = nmlp_utf8_decode(text, len, &c);
    size_t at = n > 0 ? (size_t)n : 1;
    while (at < len) {
        uint32_t next = 0;
        n = nmlp_utf8_decode(text + at, len - at, &next);
        if (n <= 0 || utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) break;
        c = next;
        at += (size_t)n;
    }
    return at;
}
