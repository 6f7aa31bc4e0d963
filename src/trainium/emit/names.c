/* Python identifiers. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "trainium/emit/source.h"

static const char *const reserved[] = {
    "and",   "as",     "assert",   "break",     "class", "continue", "def",   "del",         "elif",
    "else",  "except", "finally",  "for",       "from",  "global",   "if",    "import",      "in",
    "is",    "lambda", "nonlocal", "not",       "or",    "pass",     "raise", "return",      "try",
    "while", "with",   "yield",    "None",      "True",  "False",    "async", "await",       "print",
    "range", "min",    "max",      "nl",        "nisa",  "nki",      "np",    "P",           "argparse",
    "os",    "time",   "inputs",   "reference", "check", "main",     "kind",  "pack_scales",
};

enum { N_RESERVED = sizeof reserved / sizeof reserved[0] };

static bool is_reserved(const nmlp_emit_source *src, const char *name) {
    for (int i = 0; i < N_RESERVED; i++)
        if (strcmp(reserved[i], name) == 0) return true;
    for (size_t i = 0; i < src->p->n_params; i++)
        if (strcmp(src->p->params[i].name, name) == 0) return true;
    return strcmp(src->p->name, name) == 0;
}

static bool is_taken(const nmlp_emit_source *src, const char *name, bool loops_too) {
    for (size_t i = 0; i < src->p->n_tensors; i++)
        if (src->tensor_names[i] && strcmp(src->tensor_names[i], name) == 0) return true;
    for (size_t i = 0; i < src->p->n_buffers; i++)
        if (src->buffer_names[i] && strcmp(src->buffer_names[i], name) == 0) return true;
    for (size_t i = 0; loops_too && i < src->p->n_loops; i++)
        if (src->loop_names[i] && strcmp(src->loop_names[i], name) == 0) return true;
    return is_reserved(src, name);
}

/* `name` with other characters than letters, digits and _ replaced, and a suffix where it is taken. */
static nmlp_status choose(nmlp_emit_source *src, const char **out, const char *name, const char *suffix,
                          bool loops_too) {
    char text[NMLP_EMIT_SOURCE_NAME_MAX];
    snprintf(text, sizeof text - 16, "%s%s", isdigit((unsigned char)name[0]) ? "_" : "", name);
    for (char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '_';
    size_t len = strlen(text);
    for (int i = 1; is_taken(src, text, loops_too); i++)
        snprintf(text + len, sizeof text - len, i == 1 ? "%s" : "%s%d", suffix, i);
    *out = nmlp_arena_strdup(&src->arena, text, src->err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_emit_source_name_all(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    for (size_t i = 0; i < p->n_tensors; i++)
        NMLP_RETURN_IF_FAILED(choose(src, &src->tensor_names[i], p->tensors[i].name, "_hbm", true));
    for (size_t i = 0; i < p->n_buffers; i++)
        NMLP_RETURN_IF_FAILED(choose(src, &src->buffer_names[i], p->buffers[i].name,
                                     p->buffers[i].space == NMLP_SPACE_PSUM ? "_psum" : "_sbuf", true));
    /* Loops beside each other may share a name, as they may in Python. */
    for (size_t i = 0; i < p->n_loops; i++)
        NMLP_RETURN_IF_FAILED(choose(src, &src->loop_names[i], p->loops[i].name, "_i", false));
    return NMLP_OK;
}
