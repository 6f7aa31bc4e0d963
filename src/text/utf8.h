/* UTF-8 and the few Unicode properties tokenizers ask for. */
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

/* Of valid text: the last character before `end` (end > 0); returns its bytes. */
size_t nmlp_utf8_last(const char *text, size_t end, uint32_t *code_point);

bool nmlp_unicode_is_space(uint32_t code_point); /* White_Space */
bool nmlp_unicode_is_word(uint32_t code_point);  /* \w of UTS #18: letters, marks, digits, connectors */

/* Appends NFC of valid text. */
nmlp_status nmlp_unicode_append_nfc(nmlp_str *out, const char *text, size_t len, nmlp_err *err);

#endif
