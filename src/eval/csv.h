/* One record of comma- or tab-separated text (RFC 4180): fields may be quoted, a quoted field may hold separators, line
 * ends and doubled quotes. */
#ifndef NMLP_EVAL_CSV_H
#define NMLP_EVAL_CSV_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

/* Reads the record at text[*at], appends its fields to `fields` (each NUL-ended) and steps *at behind it; *n_lines
 * receives the line ends passed. Tab-separated text has no quoting. */
nmlp_status nmlp_csv_record(const char *text, size_t len, size_t *at, char separator, nmlp_str *fields,
                            size_t *n_fields, int64_t *n_lines, nmlp_err *err);

#endif
