/* UTF-8, and the byte-level alphabet of GPT-2. */
#ifndef NMLP_TEXT_UTF8_H
#define NMLP_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* One character from text[0..len), len > 0. Returns its bytes (1..4); 0 when the text ends inside a character that is
 * well formed so far; -n when the first n bytes are malformed (the maximal part that U+FFFD stands for). */
int nmlp_utf8_decode(const char *text, size_t len, uint32_t *code_point);

/* Bytes of the longest prefix that is valid UTF-8. */
size_t nmlp_utf8_valid_prefix(const char *text, size_t len);

/* Appends the text with U+FFFD for every malformed part. */
void nmlp_utf8_append_lossy(nmlp_str *out, const char *text, size_t len);

/* Appends one character (up to U+10FFFF, no surrogate). */
void nmlp_utf8_append(nmlp_str *out, uint32_t code_point);

/* Of valid text: the last character before `end` (end > 0); returns its bytes. */
size_t nmlp_utf8_last(const char *text, size_t end, uint32_t *code_point);

/* The byte-level alphabet: every byte has a printable character, so that vocabularies can be written as text. Printable
 * Latin-1 stands for itself, the other 68 bytes are U+0100..U+0143 in order ("Ġ" is the space). Turns a vocabulary
 * entry into the bytes it stands for; `out` holds len bytes at least. Returns the number of bytes, or -1 when a
 * character is not of the alphabet. */
int64_t nmlp_byte_alphabet_decode(const char *piece, size_t len, char *out);

#endif
