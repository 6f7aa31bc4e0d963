#include "text/byte_alphabet.h"

#include "text/utf8.h"

int nmlp_byte_alphabet_byte(uint32_t c) {
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
        int byte = n > 0 ? nmlp_byte_alphabet_byte(c) : -1;
        if (byte < 0) return -1;
        out[n_out++] = (char)byte;
        at += (size_t)n;
    }
    return n_out;
}
