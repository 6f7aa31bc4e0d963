#include "base/json.h"

#include <errno.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

/* tokenizer.json of the largest vocabularies is about 35 MB and has two million values. */
enum { JSON_FILE_MAX_BYTES = 256 << 20, JSON_VALUES_MAX = 6000000 };

static const cJSON *node(const nmlp_json *value) { return (const cJSON *)value; }
static const nmlp_json *value_of(const cJSON *item) { return (const nmlp_json *)item; }

static nmlp_status fail_at(nmlp_err *err, const char *origin, const char *text, const char *at) {
    size_t line = 1;
    const char *line_start = text;
    for (const char *c = text; c < at; c++) {
        if (*c == '\n') {
            line++;
            line_start = c + 1;
        }
    }
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: invalid JSON at line %zu, column %zu", origin, line,
                     (size_t)(at - line_start) + 1);
}

static bool only_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) at++;
    return at == end;
}

/* What malloc takes for so many bytes. */
static size_t block_bytes(size_t bytes) { return bytes <= 24 ? 32 : (bytes + 8 + 15) / 16 * 16; }

/* Every value but the first of a container stands behind a comma outside strings. */
nmlp_json_size nmlp_json_measure(const char *text, size_t len) {
    nmlp_json_size size = {.n_values = 1};
    size_t begin = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                quoted = false;
                size.n_strings++;
                size.bytes += block_bytes(i - begin);
            }
        } else if (c == '"') {
            quoted = true;
            begin = i;
        } else if (c == ',' || c == '[' || c == '{') {
            size.n_values++;
        }
    }
    size.bytes += size.n_values * block_bytes(sizeof(cJSON));
    return size;
}

nmlp_status nmlp_json_parse(nmlp_json_doc *doc, const char *text, size_t len, const char *origin, nmlp_err *err) {
    *doc = (nmlp_json_doc){0};
    if (len == 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is empty, JSON expected", origin);
    if (len > JSON_VALUES_MAX && nmlp_json_measure(text, len).n_values > JSON_VALUES_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: holds more than %d values", origin, JSON_VALUES_MAX);
    const char *end = text;
    errno = 0; /* of a text it cannot read cJSON says the same as of memory it cannot have */
    cJSON *root = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!root && errno == ENOMEM)
        return nmlp_fail(err, NMLP_E_NOMEM, "%s: out of memory: the values in it need about %zu bytes", origin,
                         nmlp_json_measure(text, len).bytes);
    if (end < text || end > text + len) end = text + len; /* cJSON can report one past a truncated text */
    if (!root) return fail_at(err, origin, text, end);
    if (!only_space(end, text + len)) {
        cJSON_Delete(root);
        return fail_at(err, origin, text, end);
    }
    doc->origin = nmlp_mem_new(strlen(origin) + 1, 1, err);
    if (!doc->origin) {
        cJSON_Delete(root);
        return NMLP_E_NOMEM;
    }
    memcpy(doc->origin, origin, strlen(origin));
    doc->root = (nmlp_json *)root;
    return NMLP_OK;
}

nmlp_status nmlp_json_load(nmlp_json_doc *doc, const char *path, nmlp_err *err) {
    nmlp_str text;
    *doc = (nmlp_json_doc){0};
    nmlp_str_init(&text);
    nmlp_status st = nmlp_file_read(&text, path, JSON_FILE_MAX_BYTES, err);
    if (st == NMLP_OK) st = nmlp_json_parse(doc, nmlp_str_text(&text), text.len, path, err);
    nmlp_str_fini(&text);
    return st;
}

void nmlp_json_free(nmlp_json_doc *doc) {
    cJSON_Delete((cJSON *)doc->root);
    nmlp_mem_free(doc->origin);
    *doc = (nmlp_json_doc){0};
}

bool nmlp_json_is_object(const nmlp_json *value) { return cJSON_IsObject(node(value)); }
bool nmlp_json_is_array(const nmlp_json *value) { return cJSON_IsArray(node(value)); }
bool nmlp_json_is_string(const nmlp_json *value) { return cJSON_IsString(node(value)); }
bool nmlp_json_is_number(const nmlp_json *value) { return cJSON_IsNumber(node(value)); }
bool nmlp_json_is_bool(const nmlp_json *value) { return cJSON_IsBool(node(value)); }
bool nmlp_json_is_null(const nmlp_json *value) { return !value || cJSON_IsNull(node(value)); }

bool nmlp_json_equal(const nmlp_json *a, const nmlp_json *b) { return cJSON_Compare(node(a), node(b), true); }

const nmlp_json *nmlp_json_get(const nmlp_json *object, const char *key) {
    if (!nmlp_json_is_object(object)) return NULL;
    return value_of(cJSON_GetObjectItemCaseSensitive(node(object), key));
}

const nmlp_json *nmlp_json_first(const nmlp_json *container) {
    if (!nmlp_json_is_object(container) && !nmlp_json_is_array(container)) return NULL;
    return value_of(node(container)->child);
}

const nmlp_json *nmlp_json_next(const nmlp_json *value) { return value_of(node(value)->next); }

size_t nmlp_json_count(const nmlp_json *container) {
    size_t count = 0;
    for (const nmlp_json *v = nmlp_json_first(container); v; v = nmlp_json_next(v)) count++;
    return count;
}

const char *nmlp_json_key(const nmlp_json *member) { return node(member)->string ? node(member)->string : ""; }

const char *nmlp_json_string(const nmlp_json *value) {
    return nmlp_json_is_string(value) ? node(value)->valuestring : "";
}

double nmlp_json_number(const nmlp_json *value) { return nmlp_json_is_number(value) ? node(value)->valuedouble : 0; }

bool nmlp_json_bool(const nmlp_json *value) { return cJSON_IsTrue(node(value)); }

bool nmlp_json_int_in(const nmlp_json *value, int64_t min, int64_t max, int64_t *out) {
    /* Doubles hold whole numbers exactly up to 2^53 only. */
    const double exact_max = 9007199254740992.0;
    double number = nmlp_json_number(value);
    if (!nmlp_json_is_number(value) || !(fabs(number) <= exact_max) || number != floor(number)) return false;
    if (number < (double)min || number > (double)max) return false;
    *out = (int64_t)number;
    return true;
}

static nmlp_status fail_missing(const nmlp_json_doc *doc, const char *key, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"%s\" is missing", doc->origin, key);
}

nmlp_status nmlp_json_need_int(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, int64_t min,
                               int64_t max, int64_t *out, nmlp_err *err) {
    if (nmlp_json_is_null(nmlp_json_get(object, key))) return fail_missing(doc, key, err);
    return nmlp_json_optional_int(doc, object, key, min, max, out, err);
}

nmlp_status nmlp_json_optional_int(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, int64_t min,
                                   int64_t max, int64_t *out, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_int_in(value, min, max, out))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a whole number from %" PRId64 " to %" PRId64,
                         doc->origin, key, min, max);
    return NMLP_OK;
}

nmlp_status nmlp_json_need_number(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, double *out,
                                  nmlp_err *err) {
    if (nmlp_json_is_null(nmlp_json_get(object, key))) return fail_missing(doc, key, err);
    return nmlp_json_optional_number(doc, object, key, out, err);
}

nmlp_status nmlp_json_optional_number(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, double *out,
                                      nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_is_number(value) || !isfinite(nmlp_json_number(value)))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a finite number", doc->origin, key);
    *out = nmlp_json_number(value);
    return NMLP_OK;
}

nmlp_status nmlp_json_optional_bool(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, bool *out,
                                    nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_is_bool(value))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be true or false", doc->origin, key);
    *out = nmlp_json_bool(value);
    return NMLP_OK;
}

nmlp_status nmlp_json_need_string(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, const char **out,
                                  nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return fail_missing(doc, key, err);
    if (!nmlp_json_is_string(value))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a string", doc->origin, key);
    *out = nmlp_json_string(value);
    return NMLP_OK;
}

nmlp_status nmlp_json_need_object(const nmlp_json_doc *doc, const nmlp_json *object, const char *key,
                                  const nmlp_json **out, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return fail_missing(doc, key, err);
    if (!nmlp_json_is_object(value))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be an object", doc->origin, key);
    *out = value;
    return NMLP_OK;
}
