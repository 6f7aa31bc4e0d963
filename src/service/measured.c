#include "service/measured.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { FILE_MAX_BYTES = 64 << 20, LINE_MAX_BYTES = 1024, EXTENT_MAX = 1 << 24 };

typedef enum column {
    COLUMN_KERNEL,
    COLUMN_S,
    COLUMN_H,
    COLUMN_O,
    COLUMN_US,
    COLUMN_R,
    COLUMN_GATE,
    COLUMN_UP,
    COLUMN_DOWN,
    COLUMN_SHARED,
    COLUMN_DTYPE,
    COLUMN_TILING,
    COLUMN_LAUNCH,
    COLUMN_NORM,
    COLUMN_RESIDUAL,
    COLUMN_FP8,
    N_COLUMNS
} column;

enum { N_NEEDED = COLUMN_US + 1 };

static const char *const column_names[N_COLUMNS] = {"kernel", "s",    "h",        "o",      "us",    "r",
                                                    "gate",   "up",   "down",     "shared", "dtype", "tiling",
                                                    "launch", "norm", "residual", "fp8"};

typedef struct table_reader {
    const char *path;
    const nmlp_machine *machine;
    int line;
    int place[N_COLUMNS]; /* in a line; -1: absent */
    bool has_header;
    char *cells[64];
    int n_cells;
} table_reader;

static void split(table_reader *t, char *line) {
    t->n_cells = 0;
    for (char *at = line; at && t->n_cells < 64;) {
        char *comma = strchr(at, ',');
        t->cells[t->n_cells++] = at;
        if (comma) *comma++ = '\0';
        at = comma;
    }
}

static nmlp_status read_header(table_reader *t, nmlp_err *err) {
    for (int c = 0; c < N_COLUMNS; c++) {
        t->place[c] = -1;
        for (int i = 0; i < t->n_cells; i++)
            if (strcmp(t->cells[i], column_names[c]) == 0) t->place[c] = i;
        if (c < N_NEEDED && t->place[c] < 0)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: the header has no column \"%s\"", t->path, t->line,
                             column_names[c]);
    }
    t->has_header = true;
    return NMLP_OK;
}

static const char *cell(const table_reader *t, column c) {
    return t->place[c] >= 0 && t->place[c] < t->n_cells ? t->cells[t->place[c]] : "";
}

/* An absent or empty cell is 0. */
static nmlp_status read_number(const table_reader *t, column c, double low, double high, double *value, nmlp_err *err) {
    const char *text = cell(t, c);
    char *end = NULL;
    *value = *text ? strtod(text, &end) : 0;
    if ((!end || !*end) && isfinite(*value) && *value >= low && *value <= high) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: column \"%s\": \"%.40s\" is not a number from %g to %g", t->path,
                     t->line, column_names[c], text, low, high);
}

static nmlp_status read_row(const table_reader *t, nmlp_built_kernel *kernel, nmlp_fit_measurement *m, nmlp_err *err) {
    char tiling[LINE_MAX_BYTES];
    double s, h, o, r, gate, up, down, shared, norm, residual, fp8, launch, us;
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_S, 1, EXTENT_MAX, &s, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_H, 1, EXTENT_MAX, &h, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_O, 1, EXTENT_MAX, &o, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_US, 1e-3, 1e12, &us, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_R, 0, EXTENT_MAX, &r, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_GATE, 0, EXTENT_MAX, &gate, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_UP, 0, EXTENT_MAX, &up, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_DOWN, 0, EXTENT_MAX, &down, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_SHARED, 0, 1, &shared, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_NORM, 0, 0.01, &norm, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_RESIDUAL, 0, 1, &residual, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_FP8, 0, 1, &fp8, err));
    NMLP_RETURN_IF_FAILED(read_number(t, COLUMN_LAUNCH, 0, 1, &launch, err));
    snprintf(tiling, sizeof tiling, "%s", cell(t, COLUMN_TILING));
    for (char *c = tiling; *c; c++)
        if (*c == ' ' || *c == ';') *c = ',';
    nmlp_kernel_problem problem = {
        .machine = t->machine,
        .kernel = cell(t, COLUMN_KERNEL),
        .shape = {(int64_t)s, (int64_t)h, (int64_t)r, (int64_t)o},
        .ranks = {.gate = (int64_t)gate, .up = (int64_t)up, .down = (int64_t)down, .shared = shared > 0},
        .fuse = {.norm_e12 = llround(norm * 1e12), .residual = residual > 0},
        .fp8 = fp8 > 0,
        .tiling = tiling,
        .dtype = *cell(t, COLUMN_DTYPE) ? cell(t, COLUMN_DTYPE) : NULL};
    nmlp_err inner = {0};
    nmlp_status st = nmlp_kernel_build_problem(kernel, &problem, &inner);
    if (st != NMLP_OK)
        return nmlp_fail(err, st, "%s:%d: the kernel cannot be built: %s", t->path, t->line, inner.message);
    *m = (nmlp_fit_measurement){.program = kernel->program, .measured_us = us, .with_launch = launch > 0};
    return NMLP_OK;
}

static nmlp_status read_line(table_reader *t, nmlp_measured *out, const char *text, size_t len, nmlp_err *err) {
    char line[LINE_MAX_BYTES];
    t->line++;
    while (len && (text[len - 1] == '\r' || text[len - 1] == ' ')) len--;
    if (len == 0 || text[0] == '#') return NMLP_OK;
    if (len >= sizeof line || memchr(text, '\0', len))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: not a line of a table", t->path, t->line);
    memcpy(line, text, len);
    line[len] = '\0';
    split(t, line);
    if (!t->has_header) return read_header(t, err);
    NMLP_RETURN_IF_FAILED(read_row(t, &out->kernels[out->n], &out->list[out->n], err));
    out->n++;
    return NMLP_OK;
}

nmlp_status nmlp_measured_read(nmlp_measured *out, const char *path, const nmlp_machine *machine, nmlp_err *err) {
    table_reader t = {.path = path, .machine = machine};
    size_t n_lines = 1;
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    *out = (nmlp_measured){0};
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_file_read(&text, path, FILE_MAX_BYTES, err));
    for (size_t i = 0; i < text.len; i++) n_lines += text.data[i] == '\n';
    out->kernels = nmlp_mem_new(n_lines, sizeof *out->kernels, err);
    out->list = nmlp_mem_new(n_lines, sizeof *out->list, err);
    if (!out->kernels || !out->list) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t at = 0; at < text.len;) {
        const char *from = text.data + at, *end = memchr(from, '\n', text.len - at);
        size_t len = end ? (size_t)(end - from) : text.len - at;
        NMLP_TRY(read_line(&t, out, from, len, err));
        at += len + 1;
    }
    if (out->n == 0) st = nmlp_fail(err, NMLP_E_FORMAT, "%s: holds no measurements", path);
out:
    nmlp_str_fini(&text);
    return st;
}

void nmlp_measured_fini(nmlp_measured *m) {
    for (int64_t i = 0; m->kernels && i < m->n; i++) nmlp_built_kernel_fini(&m->kernels[i]);
    nmlp_mem_free(m->kernels);
    nmlp_mem_free(m->list);
    *m = (nmlp_measured){0};
}
