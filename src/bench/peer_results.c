#include "bench/peer_results.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum { FILE_MAX_BYTES = 16 << 20, FIELDS_MAX = 128, ROWS_MAX = 4096 };

/* Numbers that the two programs write under these names. llama-bench: one test a record, a prompt (n_gen 0) or tokens
 * (n_prompt 0) behind n_depth others. llama-batched-bench: pl sequences of pp prompt and tg generated tokens. */
enum key { K_PROMPT, K_GEN, K_DEPTH, K_RATE, K_PP, K_TG, K_PL, K_SPEED_PP, K_SPEED_TG, K_THREADS, N_KEYS };
static const char *const key_names[N_KEYS] = {"n_prompt", "n_gen", "n_depth",  "avg_ts",   "pp",
                                              "tg",       "pl",    "speed_pp", "speed_tg", "n_threads"};
static const char model_key[] = "model_type";

/* One object or line. */
struct record {
    double value[N_KEYS];
    bool present[N_KEYS];
    char model[NMLP_PEER_MODEL_MAX];
};

static nmlp_status add(nmlp_peer_results *r, nmlp_peer_result row, const char *path, nmlp_err *err) {
    if (row.tokens_s <= 0) return NMLP_OK;
    if (r->n == ROWS_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d results", path, ROWS_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow((void **)&r->rows, &r->capacity, r->n + 1, sizeof *r->rows, err));
    r->rows[r->n++] = row;
    return NMLP_OK;
}

static int64_t whole(const struct record *rec, enum key key) { return (int64_t)rec->value[key]; }

/* Of llama-bench. Prompt and tokens timed as one have no counterpart here and are left out. */
static nmlp_status add_single(nmlp_peer_results *r, const struct record *rec, nmlp_peer_result row, const char *path,
                              nmlp_err *err) {
    row.batch = 1;
    row.tokens_s = rec->value[K_RATE];
    row.generate = whole(rec, K_GEN);
    row.decode = row.generate > 0;
    row.prompt = row.decode ? whole(rec, K_DEPTH) : whole(rec, K_PROMPT);
    bool both = row.decode && whole(rec, K_PROMPT) > 0;
    bool deep_prompt = !row.decode && whole(rec, K_DEPTH) > 0;
    return both || deep_prompt ? NMLP_OK : add(r, row, path, err);
}

/* Of llama-batched-bench: a prefill and a decode. */
static nmlp_status add_batched(nmlp_peer_results *r, const struct record *rec, nmlp_peer_result row, const char *path,
                               nmlp_err *err) {
    row.batch = whole(rec, K_PL);
    row.prompt = whole(rec, K_PP);
    row.tokens_s = rec->value[K_SPEED_PP];
    NMLP_RETURN_IF_FAILED(add(r, row, path, err));
    row.decode = true;
    row.generate = whole(rec, K_TG);
    row.tokens_s = rec->value[K_SPEED_TG];
    return add(r, row, path, err);
}

static bool has_all(const struct record *rec, const enum key *keys, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!rec->present[keys[i]]) return false;
    return true;
}

static nmlp_status add_record(nmlp_peer_results *r, const struct record *rec, const char *path, int line,
                              nmlp_err *err) {
    static const enum key single[] = {K_PROMPT, K_GEN, K_RATE};
    static const enum key batched[] = {K_PP, K_TG, K_PL, K_SPEED_PP, K_SPEED_TG};
    nmlp_peer_result row = {.threads = whole(rec, K_THREADS)};
    snprintf(row.model, sizeof row.model, "%s", rec->model);
    if (has_all(rec, single, sizeof single / sizeof single[0])) return add_single(r, rec, row, path, err);
    if (has_all(rec, batched, sizeof batched / sizeof batched[0])) return add_batched(r, rec, row, path, err);
    return nmlp_fail(err, NMLP_E_FORMAT,
                     "%s: result %d has neither n_prompt, n_gen and avg_ts (llama-bench) nor pp, tg, pl, speed_pp and "
                     "speed_tg (llama-batched-bench)",
                     path, line);
}

static nmlp_status set_number(struct record *rec, enum key key, double value, const char *path, int line,
                              nmlp_err *err) {
    if (!isfinite(value) || value < 0 || value > 1e12)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: result %d: %s is %g, out of range", path, line, key_names[key],
                         value);
    rec->value[key] = value;
    rec->present[key] = true;
    return NMLP_OK;
}

/* ---- JSON ---- */

static nmlp_status read_object(nmlp_peer_results *r, const nmlp_json *object, const char *path, int line,
                               nmlp_err *err) {
    struct record rec = {.value = {0}};
    if (!nmlp_json_is_object(object))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: result %d is not an object", path, line);
    for (int key = 0; key < N_KEYS; key++) {
        const nmlp_json *value = nmlp_json_get(object, key_names[key]);
        if (!value) continue;
        if (!nmlp_json_is_number(value))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: result %d: %s is not a number", path, line, key_names[key]);
        NMLP_RETURN_IF_FAILED(set_number(&rec, (enum key)key, nmlp_json_number(value), path, line, err));
    }
    snprintf(rec.model, sizeof rec.model, "%s", nmlp_json_string(nmlp_json_get(object, model_key)));
    return add_record(r, &rec, path, line, err);
}

static nmlp_status read_array(nmlp_peer_results *r, const nmlp_str *text, const char *path, nmlp_err *err) {
    nmlp_json_doc doc;
    nmlp_status st = NMLP_OK;
    int line = 0;
    NMLP_RETURN_IF_FAILED(nmlp_json_parse(&doc, nmlp_str_text(text), text->len, path, err));
    for (const nmlp_json *v = nmlp_json_first(doc.root); v && st == NMLP_OK; v = nmlp_json_next(v))
        st = read_object(r, v, path, ++line, err);
    nmlp_json_free(&doc);
    return st;
}

/* ---- lines ---- */

/* Cuts the next line off, in place; NULL at the end. */
static char *next_line(char **at) {
    char *line = *at;
    if (!line || !*line) return NULL;
    char *end = strchr(line, '\n');
    *at = end ? end + 1 : NULL;
    if (end) *end = '\0';
    line[strcspn(line, "\r")] = '\0';
    return line;
}

/* Lines that are no object are what the program said besides. */
static nmlp_status read_objects(nmlp_peer_results *r, nmlp_str *text, const char *path, nmlp_err *err) {
    char *at = text->data;
    int n = 0;
    for (char *line; (line = next_line(&at));) {
        nmlp_json_doc doc;
        if (line[0] != '{') continue;
        NMLP_RETURN_IF_FAILED(nmlp_json_parse(&doc, line, strlen(line), path, err));
        nmlp_status st = read_object(r, doc.root, path, ++n, err);
        nmlp_json_free(&doc);
        NMLP_RETURN_IF_FAILED(st);
    }
    return NMLP_OK;
}

/* Cuts a line into fields, in place; quotes around a field are dropped, doubled ones within stand for one. */
static int split_fields(char *line, char *fields[FIELDS_MAX]) {
    int n = 0;
    for (char *at = line; at && n < FIELDS_MAX;) {
        char *out = at;
        bool quoted = *at == '"';
        if (quoted) at++;
        fields[n++] = out;
        while (*at && (quoted || *at != ',')) {
            if (quoted && *at == '"' && *++at != '"') {
                quoted = false;
                continue;
            }
            *out++ = *at++;
        }
        char *next = *at == ',' ? at + 1 : NULL;
        *out = '\0';
        at = next;
    }
    return n;
}

static nmlp_status read_fields(nmlp_peer_results *r, char **names, int n_names, char **fields, int n, const char *path,
                               int line, nmlp_err *err) {
    struct record rec = {.value = {0}};
    if (n != n_names)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: line %d has %d fields, the first line %d", path, line, n, n_names);
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], model_key) == 0) snprintf(rec.model, sizeof rec.model, "%s", fields[i]);
        for (int key = 0; key < N_KEYS; key++) {
            if (strcmp(names[i], key_names[key]) != 0) continue;
            char *end;
            double value = strtod(fields[i], &end);
            if (end == fields[i] || *end)
                return nmlp_fail(err, NMLP_E_FORMAT, "%s: line %d: %s is \"%.40s\", not a number", path, line, names[i],
                                 fields[i]);
            NMLP_RETURN_IF_FAILED(set_number(&rec, (enum key)key, value, path, line, err));
        }
    }
    return add_record(r, &rec, path, line, err);
}

static nmlp_status read_csv(nmlp_peer_results *r, nmlp_str *text, const char *path, nmlp_err *err) {
    char *names[FIELDS_MAX], *fields[FIELDS_MAX], *at = text->data;
    int n_names = 0, number = 0;
    for (char *line; (line = next_line(&at));) {
        number++;
        if (!line[0]) continue;
        if (n_names == 0) {
            n_names = split_fields(line, names);
            continue;
        }
        int n = split_fields(line, fields);
        NMLP_RETURN_IF_FAILED(read_fields(r, names, n_names, fields, n, path, number, err));
    }
    return NMLP_OK;
}

static bool has_object_line(const nmlp_str *text) {
    return nmlp_str_text(text)[0] == '{' || strstr(nmlp_str_text(text), "\n{") != NULL;
}

nmlp_status nmlp_peer_results_load(nmlp_peer_results *results, const char *path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    *results = (nmlp_peer_results){0};
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_file_read(&text, path, FILE_MAX_BYTES, err));
    if (nmlp_str_text(&text)[0] == '[')
        NMLP_TRY(read_array(results, &text, path, err));
    else if (has_object_line(&text))
        NMLP_TRY(read_objects(results, &text, path, err));
    else
        NMLP_TRY(read_csv(results, &text, path, err));
    if (results->n == 0)
        NMLP_TRY(
            nmlp_fail(err, NMLP_E_FORMAT,
                      "%s: holds no result of a prompt or of generated tokens; expected what llama-bench writes as "
                      "csv, json or jsonl, or llama-batched-bench as jsonl",
                      path));
out:
    nmlp_str_fini(&text);
    if (st != NMLP_OK) nmlp_peer_results_fini(results);
    return st;
}

void nmlp_peer_results_fini(nmlp_peer_results *results) {
    nmlp_mem_free(results->rows);
    *results = (nmlp_peer_results){0};
}

/* ---- looking up ---- */

static int64_t distance(int64_t a, int64_t b) { return a > b ? a - b : b - a; }

static bool nearer(const nmlp_peer_result *a, const nmlp_peer_result *b, nmlp_peer_test test) {
    int64_t threads_a = test.threads ? distance(a->threads, test.threads) : 0;
    int64_t threads_b = test.threads ? distance(b->threads, test.threads) : 0;
    if (threads_a != threads_b) return threads_a < threads_b;
    int64_t tokens_a = distance(a->prompt, test.prompt) + distance(a->generate, test.generate);
    int64_t tokens_b = distance(b->prompt, test.prompt) + distance(b->generate, test.generate);
    if (tokens_a != tokens_b) return tokens_a < tokens_b;
    return a->tokens_s > b->tokens_s;
}

const nmlp_peer_result *nmlp_peer_results_find(const nmlp_peer_results *results, nmlp_peer_test test) {
    const nmlp_peer_result *best = NULL;
    if (!test.decode) test.generate = 0;
    for (size_t i = 0; i < results->n; i++) {
        const nmlp_peer_result *row = &results->rows[i];
        if (row->decode != test.decode || row->batch != test.batch) continue;
        if (!test.decode && row->prompt != test.prompt) continue;
        if (!best || nearer(row, best, test)) best = row;
    }
    return best;
}

void nmlp_peer_result_describe(char text[NMLP_PEER_TEST_MAX], const nmlp_peer_result *result) {
    int n = snprintf(text, NMLP_PEER_TEST_MAX, "%s%s%s%lld", result->model, result->model[0] ? " " : "",
                     result->decode ? "tg" : "pp", (long long)(result->decode ? result->generate : result->prompt));
    if (result->decode && result->prompt)
        n += snprintf(text + n, (size_t)(NMLP_PEER_TEST_MAX - n), " d%lld", (long long)result->prompt);
    if (result->batch > 1)
        n += snprintf(text + n, (size_t)(NMLP_PEER_TEST_MAX - n), " x%lld", (long long)result->batch);
    if (result->threads) snprintf(text + n, (size_t)(NMLP_PEER_TEST_MAX - n), " t%lld", (long long)result->threads);
}
