#include "eval/rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "text/utf8.h"

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static bool begins(const nmlp_task_rows *rows, const char *magic, size_t n) {
    return rows->len >= n && memcmp(rows->text, magic, n) == 0;
}

static nmlp_status refuse_binary(const nmlp_task_rows *rows, nmlp_err *err) {
    if (begins(rows, "PAR1", 4) || has_suffix(rows->origin, ".parquet")) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: is a Parquet file", rows->origin);
        nmlp_fail_hint(err, "get the data set's own JSON Lines file, or write one: {\"id\", \"question\", \"choices\", "
                            "\"gold\"} a line");
        return NMLP_E_UNSUPPORTED;
    }
    if (begins(rows, "\x1f\x8b", 2) || begins(rows, "PK\x03\x04", 4)) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: is compressed", rows->origin);
        nmlp_fail_hint(err, "unpack it first");
        return NMLP_E_UNSUPPORTED;
    }
    return NMLP_OK;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static nmlp_status check_text(const char *text, size_t len, nmlp_err *err) {
    if (len > NMLP_ROW_MAX_BYTES)
        return nmlp_fail(err, NMLP_E_LIMIT, "is %zu bytes long, at most %d are read", len, NMLP_ROW_MAX_BYTES);
    size_t valid = nmlp_utf8_valid_prefix(text, len);
    if (valid < len) return nmlp_fail(err, NMLP_E_FORMAT, "is not UTF-8 at byte %zu", valid + 1);
    if (memchr(text, '\0', len)) return nmlp_fail(err, NMLP_E_FORMAT, "has a NUL byte in it");
    return NMLP_OK;
}

/* Our strings end at NUL, so that an escaped one would cut a text short without a word. */
static nmlp_status check_escapes(const char *text, size_t len, nmlp_err *err) {
    for (size_t i = 0; i + 1 < len; i++) {
        if (text[i] != '\\') continue;
        if (len - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
            return nmlp_fail(err, NMLP_E_FORMAT, "has the character \\u0000 in it");
        i++;
    }
    return NMLP_OK;
}

static nmlp_status parse_json(nmlp_json_doc *doc, const char *text, size_t len, const char *unit, nmlp_err *err) {
    nmlp_err inner = {0};
    NMLP_RETURN_IF_FAILED(check_escapes(text, len, err));
    nmlp_status st = nmlp_json_parse(doc, text, len, "", &inner);
    if (st == NMLP_OK) return st;
    if (st != NMLP_E_FORMAT) return nmlp_fail(err, st, "%s", inner.message);
    const char *where = strstr(inner.message, "at line");
    const char *column = strstr(inner.message, "column");
    const char *at = strcmp(unit, "line") == 0 ? column : where;
    return nmlp_fail(err, NMLP_E_FORMAT, "is not valid JSON, %s", at ? at : inner.message);
}

static nmlp_status begin_array(nmlp_task_rows *rows, nmlp_err *err) {
    size_t valid = nmlp_utf8_valid_prefix(rows->text, rows->len);
    if (valid < rows->len)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: is not UTF-8 at byte %zu", rows->origin, valid + 1);
    nmlp_status st = parse_json(&rows->doc, rows->text, rows->len, "file", err);
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "%s", rows->origin);
        return st;
    }
    rows->item = nmlp_json_first(rows->doc.root);
    return NMLP_OK;
}

/* ---- one record of comma- or tab-separated text (RFC 4180) ---- */

/* A quoted field from behind its opening quote to behind its closing one. */
static nmlp_status quoted(const char *text, size_t len, size_t *at, nmlp_str *fields, int64_t *n_lines, nmlp_err *err) {
    while (*at < len) {
        char c = text[(*at)++];
        if (c == '"') {
            if (*at == len || text[*at] != '"') return NMLP_OK;
            (*at)++;
        }
        if (c == '\n') (*n_lines)++;
        nmlp_str_putc(fields, c);
    }
    return nmlp_fail(err, NMLP_E_FORMAT, "a quote is not closed");
}

static bool ends_line(const char *text, size_t len, size_t at) {
    return at == len || text[at] == '\n' || (text[at] == '\r' && (at + 1 == len || text[at + 1] == '\n'));
}

/* Reads the record at text[*at], appends its fields to `fields` (each NUL-ended) and steps *at behind it; *n_lines
 * receives the line ends passed. Tab-separated text has no quoting. */
static nmlp_status csv_record(const char *text, size_t len, size_t *at, char separator, nmlp_str *fields,
                              size_t *n_fields, int64_t *n_lines, nmlp_err *err) {
    *n_fields = 0;
    *n_lines = 0;
    for (;;) {
        if (*at < len && text[*at] == '"' && separator == ',') {
            (*at)++;
            NMLP_RETURN_IF_FAILED(quoted(text, len, at, fields, n_lines, err));
            if (!ends_line(text, len, *at) && text[*at] != separator)
                return nmlp_fail(err, NMLP_E_FORMAT, "field %zu goes on behind its closing quote", *n_fields + 1);
        } else {
            while (!ends_line(text, len, *at) && text[*at] != separator) nmlp_str_putc(fields, text[(*at)++]);
        }
        nmlp_str_putc(fields, '\0');
        (*n_fields)++;
        if (ends_line(text, len, *at)) break;
        (*at)++; /* the separator */
    }
    if (*at < len && text[*at] == '\r') (*at)++;
    if (*at < len) {
        (*at)++;
        (*n_lines)++;
    }
    return nmlp_str_status(fields, err);
}

/* ---- rows ---- */

static nmlp_status read_csv(nmlp_task_rows *rows, nmlp_str *fields, size_t *n, nmlp_err *err) {
    int64_t n_lines;
    size_t begin = rows->at;
    nmlp_str_clear(fields);
    rows->line = rows->next_line;
    NMLP_RETURN_IF_FAILED(csv_record(rows->text, rows->len, &rows->at, rows->kind == NMLP_TASK_ROWS_TSV ? '\t' : ',',
                                     fields, n, &n_lines, err));
    rows->next_line += n_lines;
    return check_text(rows->text + begin, rows->at - begin, err);
}

static nmlp_status begin_csv(nmlp_task_rows *rows, nmlp_err *err) {
    size_t n;
    nmlp_status st = read_csv(rows, &rows->header, &n, err);
    if (st != NMLP_OK) nmlp_task_rows_fail_context(rows, err);
    return st;
}

nmlp_status nmlp_task_rows_init(nmlp_task_rows *rows, const char *text, size_t len, const char *origin, nmlp_err *err) {
    *rows = (nmlp_task_rows){.origin = origin, .text = text, .len = len, .next_line = 1};
    nmlp_str_init(&rows->header);
    nmlp_str_init(&rows->scratch);
    NMLP_RETURN_IF_FAILED(refuse_binary(rows, err));
    if (begins(rows, "\xef\xbb\xbf", 3)) rows->at = 3; /* byte order mark */
    size_t first = rows->at;
    while (first < len && is_space(text[first])) first++;
    if (first == len) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is empty", origin);
    if (has_suffix(origin, ".csv") || has_suffix(origin, ".tsv")) {
        rows->kind = has_suffix(origin, ".tsv") ? NMLP_TASK_ROWS_TSV : NMLP_TASK_ROWS_CSV;
        return begin_csv(rows, err);
    }
    rows->kind = text[first] == '[' ? NMLP_TASK_ROWS_ARRAY : NMLP_TASK_ROWS_JSONL;
    return rows->kind == NMLP_TASK_ROWS_ARRAY ? begin_array(rows, err) : NMLP_OK;
}

nmlp_status nmlp_task_rows_open(nmlp_task_rows *rows, const char *path, nmlp_err *err) {
    nmlp_file_map map;
    *rows = (nmlp_task_rows){.origin = path};
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    nmlp_status st = nmlp_task_rows_init(rows, map.data ? (const char *)map.data : "", map.bytes, path, err);
    rows->map = map;
    if (st != NMLP_OK) nmlp_task_rows_fini(rows);
    return st;
}

void nmlp_task_rows_fini(nmlp_task_rows *rows) {
    nmlp_json_free(&rows->doc);
    nmlp_str_fini(&rows->header);
    nmlp_str_fini(&rows->scratch);
    nmlp_file_map_close(&rows->map);
    *rows = (nmlp_task_rows){0};
}

void nmlp_task_rows_fail_context(const nmlp_task_rows *rows, nmlp_err *err) {
    nmlp_fail_context(err, "%s: %s %" PRId64, rows->origin, rows->kind == NMLP_TASK_ROWS_ARRAY ? "row" : "line",
                      rows->line);
}

static bool only_space(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (!is_space(text[i])) return false;
    }
    return true;
}

static nmlp_status next_jsonl(nmlp_task_rows *rows, const nmlp_json **row, nmlp_err *err) {
    const char *text = rows->text + rows->at;
    const char *end = memchr(text, '\n', rows->len - rows->at);
    size_t len = end ? (size_t)(end - text) : rows->len - rows->at;
    rows->line = rows->next_line++;
    rows->at += len + (end != NULL);
    NMLP_RETURN_IF_FAILED(check_text(text, len, err));
    if (only_space(text, len)) return nmlp_fail(err, NMLP_E_FORMAT, "is empty, a JSON object expected");
    NMLP_RETURN_IF_FAILED(parse_json(&rows->doc, text, len, "line", err));
    *row = rows->doc.root;
    return NMLP_OK;
}

/* A CSV record becomes an object of strings, so that one way of reading fields serves all files. */
static nmlp_status next_csv(nmlp_task_rows *rows, const nmlp_json **row, nmlp_err *err) {
    nmlp_str fields;
    nmlp_json_writer w;
    size_t n = 0, n_names = 0;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&fields);
    NMLP_TRY(read_csv(rows, &fields, &n, err));
    for (size_t i = 0; i < rows->header.len; i++) n_names += rows->header.data[i] == '\0';
    if (n != n_names) {
        st = nmlp_fail(err, NMLP_E_FORMAT, "has %zu fields, the header names %zu", n, n_names);
        goto out;
    }
    nmlp_str_clear(&rows->scratch);
    nmlp_json_writer_init(&w, &rows->scratch);
    nmlp_json_begin_object(&w, NULL);
    const char *name = rows->header.data, *value = fields.data;
    for (size_t i = 0; i < n; i++) {
        nmlp_json_put_string(&w, name, value);
        name += strlen(name) + 1;
        value += strlen(value) + 1;
    }
    nmlp_json_end_object(&w);
    NMLP_TRY(nmlp_str_status(&rows->scratch, err));
    NMLP_TRY(nmlp_json_parse(&rows->doc, rows->scratch.data, rows->scratch.len, rows->origin, err));
    *row = rows->doc.root;
out:
    nmlp_str_fini(&fields);
    return st;
}

static nmlp_status next_item(nmlp_task_rows *rows, const nmlp_json **row, nmlp_err *err) {
    (void)err;
    *row = rows->item;
    rows->line++;
    rows->item = nmlp_json_next(rows->item);
    return NMLP_OK;
}

nmlp_status nmlp_task_rows_next(nmlp_task_rows *rows, const nmlp_json **row, nmlp_err *err) {
    nmlp_status st;
    *row = NULL;
    if (rows->kind == NMLP_TASK_ROWS_ARRAY) {
        if (!rows->item) return NMLP_OK;
        st = next_item(rows, row, err);
    } else {
        nmlp_json_free(&rows->doc);
        if (only_space(rows->text + rows->at, rows->len - rows->at))
            return NMLP_OK; /* the end, blank lines before it or not */
        st = rows->kind == NMLP_TASK_ROWS_JSONL ? next_jsonl(rows, row, err) : next_csv(rows, row, err);
    }
    if (st == NMLP_OK && !nmlp_json_is_object(*row)) st = nmlp_fail(err, NMLP_E_FORMAT, "is not a JSON object");
    if (st != NMLP_OK) nmlp_task_rows_fail_context(rows, err);
    return st;
}
