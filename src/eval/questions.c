#include "eval/questions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/task_internal.h"
#include "eval/template.h"

enum { LABELS_MAX_BYTES = 16 << 20, PATH_BYTES = 4096 };

struct prompt {
    const char *question;
    const char *choice;
};

static nmlp_status lookup_prompt(void *ctx, const char *name, const char **value, nmlp_err *err) {
    const struct prompt *p = ctx;
    if (strcmp(name, "question") == 0) {
        *value = p->question;
    } else if (strcmp(name, "choice") == 0) {
        *value = p->choice;
    } else {
        return nmlp_fail(err, NMLP_E_FORMAT, "a prompt names {%s}; there are {question} and {choice}", name);
    }
    return NMLP_OK;
}

static nmlp_status expand(const char **out, nmlp_questions *q, const char *template, struct prompt *p, nmlp_err *err) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_template_expand(&text, template, lookup_prompt, p, err);
    if (st == NMLP_OK) {
        *out = nmlp_arena_strndup(&q->arena, nmlp_str_text(&text), text.len, err);
        st = *out ? NMLP_OK : NMLP_E_NOMEM;
    }
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status make_choice(nmlp_question_choice *choice, nmlp_questions *q, const nmlp_task *task, struct prompt *p,
                               const nmlp_question_choice *first, nmlp_err *err) {
    const char *length;
    if (first && !nmlp_template_uses(task->context, "choice")) {
        choice->context = first->context;
    } else {
        NMLP_RETURN_IF_FAILED(expand(&choice->context, q, task->context, p, err));
    }
    NMLP_RETURN_IF_FAILED(expand(&choice->continuation, q, task->continuation, p, err));
    NMLP_RETURN_IF_FAILED(expand(&length, q, task->length, p, err));
    choice->norm_bytes = (int64_t)strlen(length);
    if (choice->continuation[0] == '\0' || choice->norm_bytes == 0)
        return nmlp_fail(err, NMLP_E_FORMAT, "there is nothing to score: the continuation is empty");
    return NMLP_OK;
}

static nmlp_status add_question(nmlp_questions *q, const nmlp_task *task, const nmlp_task_fields *fields, int64_t line,
                                nmlp_err *err) {
    void *items = q->items;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&items, &q->capacity, q->n + 1, sizeof *q->items, err));
    q->items = items;
    nmlp_question *item = &q->items[q->n];
    *item = (nmlp_question){.line = line, .n_choices = (int64_t)fields->n_choices, .gold = fields->gold};
    item->choices = nmlp_arena_new(&q->arena, fields->n_choices, sizeof *item->choices, err);
    if (!item->choices) return NMLP_E_NOMEM;
    for (size_t i = 0; i < fields->n_choices; i++) {
        struct prompt p = {.question = nmlp_str_text(&fields->question), .choice = nmlp_str_text(&fields->choices[i])};
        NMLP_RETURN_IF_FAILED(make_choice(&item->choices[i], q, task, &p, i ? item->choices : NULL, err));
    }
    q->n++;
    return NMLP_OK;
}

static nmlp_status choose_layout(nmlp_questions *q, const nmlp_task *task, const nmlp_json *row, nmlp_err *err) {
    double best = 0;
    for (size_t i = 0; i < task->n_layouts && best < 1; i++) {
        double match = nmlp_layout_match(&task->layouts[i], row);
        if (match <= best) continue;
        best = match;
        q->layout = &task->layouts[i];
    }
    if (q->layout) return NMLP_OK;
    nmlp_fail(err, NMLP_E_FORMAT, "has none of the keys task %s looks for", task->name);
    nmlp_fail_hint(err,
                   "write rows {\"id\", \"question\", \"choices\", \"gold\"}, or describe the file with `task_file`");
    return NMLP_E_FORMAT;
}

/* "dir/valid.jsonl" has its labels in "dir/valid-labels.lst". */
static nmlp_status find_labels(char out[PATH_BYTES], const char *data, const char *given, nmlp_err *err) {
    const char *slash = strrchr(data, '/');
    const char *dot = strrchr(slash ? slash : data, '.');
    int stem = dot ? (int)(dot - data) : (int)strlen(data);
    int n = given ? snprintf(out, PATH_BYTES, "%s", given) : snprintf(out, PATH_BYTES, "%.*s-labels.lst", stem, data);
    if (n < 0 || n >= PATH_BYTES) return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", data);
    if (nmlp_file_exists(out)) return NMLP_OK;
    nmlp_fail(err, NMLP_E_MISSING, "%s: has no answers in it, and their file %s is absent", data, out);
    nmlp_fail_hint(err, "give the answers' file with `labels_file`");
    return NMLP_E_MISSING;
}

static nmlp_status set_label(nmlp_questions *q, size_t i, const char *path, const char *line, size_t len,
                             nmlp_err *err) {
    char text[16];
    char *end = text;
    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == ' ')) len--;
    bool ok = len > 0 && len < sizeof text;
    if (ok) {
        memcpy(text, line, len);
        text[len] = '\0';
        q->items[i].gold = strtol(text, &end, 10);
        ok = *end == '\0';
    }
    if (!ok || q->items[i].gold < 0 || q->items[i].gold >= q->items[i].n_choices)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: line %zu: is \"%.*s\", a number from 0 to %" PRId64 " expected", path,
                         i + 1, (int)(len < 32 ? len : 32), line, q->items[i].n_choices - 1);
    return NMLP_OK;
}

static nmlp_status read_labels(nmlp_questions *q, const char *data, const char *given, nmlp_err *err) {
    char path[PATH_BYTES];
    nmlp_str text;
    NMLP_RETURN_IF_FAILED(find_labels(path, data, given, err));
    nmlp_str_init(&text);
    nmlp_status st = nmlp_file_read(&text, path, LABELS_MAX_BYTES, err);
    const char *line = nmlp_str_text(&text);
    for (size_t i = 0; i < q->n && st == NMLP_OK; i++) {
        size_t len = strcspn(line, "\n");
        if (*line == '\0') {
            st = nmlp_fail(err, NMLP_E_FORMAT, "%s: has %zu lines, the data %zu rows", path, i, q->n);
        } else {
            st = set_label(q, i, path, line, len, err);
        }
        line += len + (line[len] == '\n');
    }
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_questions_read(nmlp_questions *q, const nmlp_task *task, nmlp_task_rows *rows,
                                const nmlp_questions_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_task_fields fields;
    const nmlp_json *row = NULL;
    *q = (nmlp_questions){0};
    nmlp_arena_init(&q->arena);
    nmlp_fields_init(&fields);
    while (options->limit == 0 || (int64_t)q->n < options->limit) {
        NMLP_TRY(nmlp_task_rows_next(rows, &row, err));
        if (!row) break;
        if (!q->layout) st = choose_layout(q, task, row, err);
        if (st == NMLP_OK) st = nmlp_fields_read(&fields, q->layout, row, err);
        if (st == NMLP_OK) st = add_question(q, task, &fields, rows->line, err);
        if (st != NMLP_OK) {
            nmlp_task_rows_fail_context(rows, err);
            goto out;
        }
    }
    if (q->n == 0) {
        st = nmlp_fail(err, NMLP_E_FORMAT, "%s: has no rows", rows->origin);
    } else if (q->layout->gold_kind == NMLP_GOLD_LABELS_FILE) {
        st = read_labels(q, rows->origin, options->labels_path, err);
    }
out:
    nmlp_fields_fini(&fields);
    if (st != NMLP_OK) nmlp_questions_free(q);
    return st;
}

nmlp_status nmlp_questions_load(nmlp_questions *q, const nmlp_task *task, const char *path,
                                const nmlp_questions_options *options, nmlp_err *err) {
    nmlp_task_rows rows;
    *q = (nmlp_questions){0};
    NMLP_RETURN_IF_FAILED(nmlp_task_rows_open(&rows, path, err));
    nmlp_status st = nmlp_questions_read(q, task, &rows, options, err);
    nmlp_task_rows_fini(&rows);
    return st;
}

void nmlp_questions_free(nmlp_questions *q) {
    nmlp_arena_fini(&q->arena);
    nmlp_mem_free(q->items);
    *q = (nmlp_questions){0};
}
