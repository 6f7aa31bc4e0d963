/* The byte-level alphabet of GPT-2: every byte has a printable character, so that vocabularies can be written as text.
 * Printable Latin-1 stands for itself, the other 68 bytes are U+0100..U+0143 in order ("Ġ" is the space). */
#ifndef NMLP_TEXT_BYTE_ALPHABET_H
#define NMLP_TEXT_BYTE_ALPHABET_H

#include <stddef.h>
#include <stdint.h>

/* The byte a character stands for, or -1. */
int nmlp_byte_alphabet_byte(uint32_t code_point);

/* Turns a piece into the bytes it stands for. `out` holds len bytes at least. Returns the number of bytes, or -1 when a
 * character is not of the alphabet. */
int64_t nmlp_byte_alphabet_decode(const char *piece, size_t len, char *out);

#endif
