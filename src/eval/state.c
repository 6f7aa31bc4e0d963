#include "eval/state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

static const char FORMAT[] = "neuronmlp-eval-state-1";

void nmlp_eval_cell_put(nmlp_json_writer *w, const nmlp_eval_cell *c) {
    if (c->is_ppl) {
        nmlp_json_put_int(w, "tokens", c->n);
        nmlp_json_put_number(w, "nll", c->nll);
        nmlp_json_put_number(w, "ppl", c->ppl);
        nmlp_json_put_number(w, "word_ppl", c->word_ppl);
        nmlp_json_put_number(w, "bits_per_byte", c->bits_per_byte);
    } else {
        nmlp_json_put_int(w, "n", c->n);
        nmlp_json_put_number(w, "acc", c->acc);
        nmlp_json_put_number(w, "acc_stderr", c->acc_stderr);
        nmlp_json_put_number(w, "acc_norm", c->acc_norm);
        nmlp_json_put_number(w, "acc_norm_stderr", c->acc_norm_stderr);
    }
    nmlp_json_put_number(w, "seconds", c->seconds);
}

/* A standard error of one question is null. */
static nmlp_status number(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, double *out,
                          nmlp_err *err) {
    *out = NAN;
    return nmlp_json_optional_number(doc, object, key, out, err);
}

static nmlp_status read_cell(nmlp_eval_cell *c, const nmlp_json_doc *doc, const nmlp_json *object, nmlp_err *err) {
    *c = (nmlp_eval_cell){.present = true, .resumed = true, .is_ppl = nmlp_json_get(object, "ppl") != NULL};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, object, c->is_ppl ? "tokens" : "n", 1, INT64_C(1) << 50, &c->n, err));
    if (c->is_ppl) {
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, object, "nll", &c->nll, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, object, "ppl", &c->ppl, err));
        NMLP_RETURN_IF_FAILED(number(doc, object, "word_ppl", &c->word_ppl, err));
        NMLP_RETURN_IF_FAILED(number(doc, object, "bits_per_byte", &c->bits_per_byte, err));
    } else {
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, object, "acc", &c->acc, err));
        NMLP_RETURN_IF_FAILED(number(doc, object, "acc_stderr", &c->acc_stderr, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(doc, object, "acc_norm", &c->acc_norm, err));
        NMLP_RETURN_IF_FAILED(number(doc, object, "acc_norm_stderr", &c->acc_norm_stderr, err));
    }
    return number(doc, object, "seconds", &c->seconds, err);
}

static nmlp_status add(nmlp_eval_state *s, const char *key, const nmlp_eval_cell *cell, nmlp_err *err) {
    void *entries = s->entries;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&entries, &s->capacity, s->n + 1, sizeof *s->entries, err));
    s->entries = entries;
    nmlp_eval_state_entry *entry = &s->entries[s->n];
    int n = snprintf(entry->key, sizeof entry->key, "%s", key);
    if (n < 0 || (size_t)n >= sizeof entry->key)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: a key is longer than %d", s->path, NMLP_STATE_KEY - 1);
    entry->cell = *cell;
    s->n++;
    return NMLP_OK;
}

static nmlp_status read_entries(nmlp_eval_state *s, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *results;
    const char *format = nmlp_json_string(nmlp_json_get(doc->root, "format"));
    if (strcmp(format, FORMAT) != 0) {
        nmlp_fail(err, NMLP_E_FORMAT, "%s: is not the state of an evaluation (\"format\" is \"%s\")", s->path, format);
        nmlp_fail_hint(err, "`resume` names a file this program writes; give a new name to begin one");
        return NMLP_E_FORMAT;
    }
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, doc->root, "results", &results, err));
    for (const nmlp_json *m = nmlp_json_first(results); m; m = nmlp_json_next(m)) {
        nmlp_eval_cell cell;
        NMLP_RETURN_IF_FAILED(read_cell(&cell, doc, m, err));
        NMLP_RETURN_IF_FAILED(add(s, nmlp_json_key(m), &cell, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_eval_state_open(nmlp_eval_state *s, const char *path, nmlp_err *err) {
    nmlp_json_doc doc;
    *s = (nmlp_eval_state){.path = path};
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = read_entries(s, &doc, err);
    nmlp_json_free(&doc);
    if (st != NMLP_OK) nmlp_eval_state_close(s);
    return st;
}

void nmlp_eval_state_close(nmlp_eval_state *s) {
    nmlp_mem_free(s->entries);
    *s = (nmlp_eval_state){0};
}

const nmlp_eval_cell *nmlp_eval_state_find(const nmlp_eval_state *s, const char *key) {
    for (size_t i = 0; i < s->n; i++) {
        if (strcmp(s->entries[i].key, key) == 0) return &s->entries[i].cell;
    }
    return NULL;
}

static nmlp_status save(const nmlp_eval_state *s, nmlp_err *err) {
    nmlp_json_writer w;
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "format", FORMAT);
    nmlp_json_begin_object(&w, "results");
    for (size_t i = 0; i < s->n; i++) {
        nmlp_json_begin_object(&w, s->entries[i].key);
        nmlp_eval_cell_put(&w, &s->entries[i].cell);
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_object(&w);
    nmlp_json_end_object(&w);
    nmlp_str_putc(&out, '\n');
    nmlp_status st = nmlp_str_status(&out, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(s->path, out.data, out.len, err);
    nmlp_str_fini(&out);
    return st;
}

nmlp_status nmlp_eval_state_put(nmlp_eval_state *s, const char *key, const nmlp_eval_cell *cell, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(add(s, key, cell, err));
    return save(s, err);
}
