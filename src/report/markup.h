/* Text inside HTML, SVG and script elements: what somebody else wrote never becomes markup. */
#ifndef NMLP_REPORT_MARKUP_H
#define NMLP_REPORT_MARKUP_H

#include "base/str.h"

/* As element text or inside a quoted attribute. */
void nmlp_markup_text(nmlp_str *out, const char *text);
void nmlp_markup_bytes(nmlp_str *out, const char *text, size_t len);
/* JSON text as the content of a script element: nothing in it can end the element. */
void nmlp_markup_json(nmlp_str *out, const nmlp_str *json);

#endif
