/* The model card of a compressed checkpoint: README.md as Hugging Face shows it. */
#ifndef NMLP_COMPRESS_CARD_H
#define NMLP_COMPRESS_CARD_H

#include "base/str.h"
#include "compress/compress.h"

/* `base` is the directory of the original. The report's sizes before and its losses must be there. */
void nmlp_compress_card_write(const nmlp_compress_options *options, const nmlp_compress_report *report,
                              const char *base, nmlp_str *out);

#endif
