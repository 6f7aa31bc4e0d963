/* Rows of a data set as JSON objects, whatever the file: JSON Lines, one JSON array, CSV or TSV with a header line.
 * Every row knows its line, and a row that is not well formed is an error, never skipped. Parquet and compressed files
 * are refused with a hint. */
#ifndef NMLP_EVAL_ROWS_H
#define NMLP_EVAL_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/str.h"

/* The longest line (CSV: record) of a data set; the longest of the known ones is below 10 kB. */
enum { NMLP_ROW_MAX_BYTES = 1 << 20 };

typedef enum nmlp_task_rows_kind {
    NMLP_TASK_ROWS_JSONL,
    NMLP_TASK_ROWS_ARRAY,
    NMLP_TASK_ROWS_CSV,
    NMLP_TASK_ROWS_TSV
} nmlp_task_rows_kind;

typedef struct nmlp_task_rows {
    nmlp_task_rows_kind kind;
    const char *origin; /* borrowed; in messages */
    const char *text;
    size_t len;
    size_t at;
    int64_t line; /* of the row last returned; rows of an array are counted instead */
    int64_t next_line;
    nmlp_file_map map; /* when opened from a file */
    nmlp_json_doc doc; /* the row, or the whole array */
    const nmlp_json *item;
    nmlp_str header; /* CSV: field names, each NUL-ended */
    nmlp_str scratch;
} nmlp_task_rows;

/* `path` must outlive the rows. */
nmlp_status nmlp_task_rows_open(nmlp_task_rows *rows, const char *path, nmlp_err *err);
/* The same for text in memory; the kind of text is found by origin's ending and the first character. */
nmlp_status nmlp_task_rows_init(nmlp_task_rows *rows, const char *text, size_t len, const char *origin, nmlp_err *err);
void nmlp_task_rows_fini(nmlp_task_rows *rows);

/* The next row, valid until the next call; *row is NULL at the end. */
nmlp_status nmlp_task_rows_next(nmlp_task_rows *rows, const nmlp_json **row, nmlp_err *err);
/* Puts file and line in front of an error about the current row. */
void nmlp_task_rows_fail_context(const nmlp_task_rows *rows, nmlp_err *err);

#endif
