#include "text/utf8.h"

#include <string.h>

int nmlp_utf8_decode(const char *text, size_t len, uint32_t *code_point) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned lead = s[0];
    if (lead < 0x80) {
        *code_point = lead;
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) return -1;
    int n = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* The second byte's range keeps out overlong forms, surrogates and what lies above U+10FFFF. */
    unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t c = lead & (0x7Fu >> n);
    for (int i = 1; i < n; i++) {
        if ((size_t)i == len) return 0;
        if (s[i] < low || s[i] > high) return -i;
        c = c << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *code_point = c;
    return n;
}

size_t nmlp_utf8_valid_prefix(const char *text, size_t len) {
    size_t at = 0;
    while (at < len) {
        uint64_t block;
        while (at + sizeof block <= len) { /* most text is ASCII: eight bytes at a time */
            memcpy(&block, text + at, sizeof block);
            if (block & 0x8080808080808080u) break;
            at += sizeof block;
        }
        if (at == len) break;
        uint32_t c;
        int n = nmlp_utf8_decode(text + at, len - at, &c);
        if (n <= 0) return at;
        at += (size_t)n;
    }
    return len;
}

void nmlp_utf8_append_lossy(nmlp_str *out, const char *text, size_t len) {
    static const char replacement[] = "\xEF\xBF\xBD";
    size_t at = 0;
    while (at < len) {
        size_t good = nmlp_utf8_valid_prefix(text + at, len - at);
        nmlp_str_append(out, text + at, good);
        at += good;
        if (at == len) break;
        uint32_t c;
        int n = nmlp_utf8_decode(text + at, len - at, &c);
        nmlp_str_append(out, replacement, sizeof replacement - 1);
        at += n == 0 ? len - at : (size_t)-n;
    }
}

void nmlp_utf8_append(nmlp_str *out, uint32_t c) {
    if (c < 0x80) {
        nmlp_str_putc(out, (char)c);
        return;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    unsigned char bytes[4];
    for (int i = n - 1; i > 0; i--, c >>= 6) bytes[i] = (unsigned char)(0x80 | (c & 0x3F));
    bytes[0] = (unsigned char)((0xF00u >> n & 0xF0) | c);
    nmlp_str_append(out, bytes, (size_t)n);
}

size_t nmlp_utf8_last(const char *text, size_t end, uint32_t *code_point) {
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    *code_point = 0xFFFD;
    nmlp_utf8_decode(text + at, end - at, code_point);
    return end - at;
}

/* The byte a character of the byte-level alphabet stands for, or -1. */
static int byte_of(uint32_t c) {
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
    if (c < 256) return -1;
    uint32_t nth = c - 256;
    if (nth <= 32) return (int)nth;              /* 0..32 */
    if (nth <= 66) return (int)(127 + nth - 33); /* 127..160 */
    return nth == 67 ? 173 : -1;
}

int64_t nmlp_byte_alphabet_decode(const char *piece, size_t len, char *out) {
    size_t at = 0;
    int64_t n_out = 0;
    while (at < len) {
        uint32_t c;
        int n = nmlp_utf8_decode(piece + at, len - at, &c);
        int byte = n > 0 ? byte_of(c) : -1;
        if (byte < 0) return -1;
        out[n_out++] = (char)byte;
        at += (size_t)n;
    }
    return n_out;
}
