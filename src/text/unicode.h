/* Unicode properties, normal forms and letter case, in the version that Hugging Face's `tokenizers` uses. The system's
 * utf8proc and PCRE2 may be older: unicode.c carries the characters that they do not know yet. */
#ifndef NMLP_TEXT_UNICODE_H
#define NMLP_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

bool nmlp_unicode_is_space(uint32_t code_point); /* White_Space */
bool nmlp_unicode_is_word(uint32_t code_point);  /* \w of UTS #18: letters, marks, digits, connectors */

typedef enum nmlp_unicode_form {
    NMLP_UNICODE_NFC,
    NMLP_UNICODE_NFD,
    NMLP_UNICODE_NFKC,
    NMLP_UNICODE_NFKD
} nmlp_unicode_form;

/* Append a form of valid UTF-8. */
nmlp_status nmlp_unicode_append_form(nmlp_str *out, nmlp_unicode_form form, const char *text, size_t len,
                                     nmlp_err *err);
void nmlp_unicode_append_lowercase(nmlp_str *out, const char *text, size_t len);
void nmlp_unicode_append_uppercase(nmlp_str *out, const char *text, size_t len);

/* Bytes of the grapheme cluster at the start of valid text, len > 0. */
size_t nmlp_unicode_grapheme(const char *text, size_t len);

/* The text with every character that a regular expression library of Unicode 14 does not know replaced by a known one
 * of the same category and the same number of bytes, so that matches have the same offsets. Returns `text` itself when
 * nothing had to be replaced, else the content of `copy`. */
const char *nmlp_unicode_known_text(const char *text, size_t len, nmlp_str *copy);

#endif
