/* Reads machine files: `key value [tag] source`, one a line. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainium/neuron/machine.h"

typedef struct key_range {
    double low, high;
} key_range;

static const key_range key_ranges[] = {
#define KEY_RANGE(key, low, high, meaning) {low, high},
    NMLP_MACHINE_KEYS(KEY_RANGE)
#undef KEY_RANGE
};

enum { LINE_MAX_BYTES = 512 };

typedef struct line_reader {
    nmlp_machine *machine;
    const char *where;
    int line;
    bool have_name;
    bool have[NMLP_MACHINE_N_KEYS];
} line_reader;

static char *skip_space(char *at) {
    while (*at == ' ' || *at == '\t' || *at == '\r') at++;
    return at;
}

/* Cuts the next word off `*at`; "" when there is none. */
static char *next_word(char **at) {
    char *word = skip_space(*at), *end = word;
    while (*end && !isspace((unsigned char)*end)) end++;
    *at = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

void nmlp_machine_key_range(nmlp_machine_key key, double *low, double *high) {
    *low = key_ranges[key].low;
    *high = key_ranges[key].high;
}

static nmlp_status parse_name(line_reader *reader, char *rest, nmlp_err *err) {
    char *name = next_word(&rest);
    size_t len = strlen(name);
    if (reader->have_name)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"name\" comes twice", reader->where, reader->line);
    if (len == 0 || len >= NMLP_MACHINE_NAME_MAX)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"name\" needs one word of 1 to %d characters, found %zu",
                         reader->where, reader->line, NMLP_MACHINE_NAME_MAX - 1, len);
    memcpy(reader->machine->name, name, len + 1);
    reader->have_name = true;
    return NMLP_OK;
}

static nmlp_status parse_number(line_reader *reader, int key, const char *word, nmlp_err *err) {
    const char *name = nmlp_machine_key_name((nmlp_machine_key)key);
    char *end = NULL;
    double value = strtod(word, &end);
    if (!*word || *end || !isfinite(value))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"%s\": \"%.40s\" is not a number", reader->where,
                         reader->line, name, word);
    if (value < key_ranges[key].low || value > key_ranges[key].high)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"%s\": %g is outside %g..%g", reader->where, reader->line,
                         name, value, key_ranges[key].low, key_ranges[key].high);
    nmlp_machine_set(reader->machine, (nmlp_machine_key)key, value);
    return NMLP_OK;
}

static nmlp_status parse_origin(line_reader *reader, int key, char *rest, nmlp_err *err) {
    const char *name = nmlp_machine_key_name((nmlp_machine_key)key);
    nmlp_origin *origin = &reader->machine->origin[key];
    char *tag = next_word(&rest);
    size_t len = strlen(tag);
    bool known = false;
    for (int t = NMLP_ORIGIN_DOCUMENTED; t <= NMLP_ORIGIN_MEASURED; t++) {
        const char *tag_name = nmlp_origin_tag_name((nmlp_origin_tag)t);
        if (len == strlen(tag_name) + 2 && tag[0] == '[' && tag[len - 1] == ']' &&
            strncmp(tag + 1, tag_name, len - 2) == 0) {
            origin->tag = (nmlp_origin_tag)t;
            known = true;
        }
    }
    if (!known)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s:%d: key \"%s\": tag is \"%.40s\", expected [documented], [figure], [third-party], "
                         "[fitted] or [measured]",
                         reader->where, reader->line, name, tag);
    char *source = skip_space(rest);
    len = strlen(source);
    while (len && isspace((unsigned char)source[len - 1])) len--;
    if (len == 0)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"%s\" names no source", reader->where, reader->line, name);
    if (len >= NMLP_MACHINE_SOURCE_MAX)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"%s\": source of %zu bytes, at most %d", reader->where,
                         reader->line, name, len, NMLP_MACHINE_SOURCE_MAX - 1);
    memcpy(origin->source, source, len);
    origin->source[len] = '\0';
    return NMLP_OK;
}

static nmlp_status parse_line(line_reader *reader, char *line, nmlp_err *err) {
    char *comment = strchr(line, '#');
    if (comment) *comment = '\0';
    char *rest = line;
    char *word = next_word(&rest);
    if (!*word) return NMLP_OK;
    if (strcmp(word, "name") == 0) return parse_name(reader, rest, err);

    nmlp_machine_key key;
    if (!nmlp_machine_key_find(word, &key))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: unknown key \"%.60s\"", reader->where, reader->line, word);
    if (reader->have[key])
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: key \"%s\" comes twice", reader->where, reader->line, word);
    NMLP_RETURN_IF_FAILED(parse_number(reader, key, next_word(&rest), err));
    NMLP_RETURN_IF_FAILED(parse_origin(reader, key, rest, err));
    reader->have[key] = true;
    return NMLP_OK;
}

static nmlp_status check_complete(const line_reader *reader, nmlp_err *err) {
    const nmlp_machine *m = reader->machine;
    int n_fitted = 0;
    if (!reader->have_name) return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"name\" is missing", reader->where);
    for (int key = 0; key < NMLP_MACHINE_N_KEYS; key++) {
        if (!reader->have[key])
            return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"%s\" (%s) is missing", reader->where,
                             nmlp_machine_key_name((nmlp_machine_key)key),
                             nmlp_machine_key_meaning((nmlp_machine_key)key));
        n_fitted += m->origin[key].tag == NMLP_ORIGIN_FITTED;
    }
    if (n_fitted > NMLP_MACHINE_FITTED_MAX)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: %d keys are [fitted], at most %d may be", reader->where, n_fitted,
                         NMLP_MACHINE_FITTED_MAX);
    if (m->sbuf_usable_bytes > m->sbuf_partition_bytes)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"sbuf_usable_bytes\": %g is more than sbuf_partition_bytes %g",
                         reader->where, m->sbuf_usable_bytes, m->sbuf_partition_bytes);
    return NMLP_OK;
}

nmlp_status nmlp_machine_parse(nmlp_machine *machine, const char *where, const char *text, size_t len, nmlp_err *err) {
    line_reader reader = {.machine = machine, .where = where};
    *machine = (nmlp_machine){0};
    for (size_t at = 0; at < len;) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t bytes = newline ? (size_t)(newline - text) - at : len - at;
        char line[LINE_MAX_BYTES];
        reader.line++;
        if (bytes >= sizeof line)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: line of %zu bytes, at most %zu", where, reader.line, bytes,
                             sizeof line - 1);
        if (memchr(text + at, '\0', bytes))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: holds a zero byte: not a text file", where, reader.line);
        memcpy(line, text + at, bytes);
        line[bytes] = '\0';
        NMLP_RETURN_IF_FAILED(parse_line(&reader, line, err));
        at += bytes + 1;
    }
    return check_complete(&reader, err);
}
