/* Reading a task file. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "eval/task_internal.h"
#include "eval/template.h"

static nmlp_status copy(const char **out, nmlp_arena *arena, const char *text, nmlp_err *err) {
    *out = nmlp_arena_strdup(arena, text, err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status need_text(const char **out, nmlp_arena *arena, const nmlp_json_doc *doc, const nmlp_json *object,
                             const char *key, nmlp_err *err) {
    const char *text;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, object, key, &text, err));
    return copy(out, arena, text, err);
}

static nmlp_status optional_text(const char **out, nmlp_arena *arena, const nmlp_json_doc *doc, const nmlp_json *object,
                                 const char *key, nmlp_err *err) {
    if (nmlp_json_is_null(nmlp_json_get(object, key))) return NMLP_OK;
    return need_text(out, arena, doc, object, key, err);
}

static nmlp_status need_template(const char **out, nmlp_arena *arena, const nmlp_json_doc *doc, const nmlp_json *object,
                                 const char *key, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(need_text(out, arena, doc, object, key, err));
    nmlp_status st = nmlp_template_check(*out, err);
    if (st != NMLP_OK) nmlp_fail_context(err, "%s: key \"%s\"", doc->origin, key);
    return st;
}

static nmlp_status refuse_unknown(const nmlp_json_doc *doc, const nmlp_json *object, const char *const *known,
                                  nmlp_err *err) {
    for (const nmlp_json *m = nmlp_json_first(object); m; m = nmlp_json_next(m)) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], nmlp_json_key(m)) != 0) i++;
        if (!known[i]) return nmlp_fail(err, NMLP_E_FORMAT, "%s: unknown key \"%s\"", doc->origin, nmlp_json_key(m));
    }
    return NMLP_OK;
}

/* "choices" is the path of a list, or a list of templates; "split" says that one template holds them all. */
static nmlp_status parse_choices(nmlp_task_layout *layout, nmlp_arena *arena, const nmlp_json_doc *doc,
                                 const nmlp_json *object, nmlp_err *err) {
    const char *split = NULL;
    const nmlp_json *choices = nmlp_json_get(object, "choices");
    NMLP_RETURN_IF_FAILED(optional_text(&split, arena, doc, object, "split", err));
    if (nmlp_json_is_array(choices)) {
        layout->choices_kind = NMLP_CHOICES_FIELDS;
        for (const nmlp_json *c = nmlp_json_first(choices); c; c = nmlp_json_next(c)) {
            if (!nmlp_json_is_string(c) || layout->n_choices == NMLP_CHOICES_MAX)
                return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"choices\" must be at most %d templates", doc->origin,
                                 NMLP_CHOICES_MAX);
            NMLP_RETURN_IF_FAILED(nmlp_template_check(nmlp_json_string(c), err));
            NMLP_RETURN_IF_FAILED(copy(&layout->choices[layout->n_choices++], arena, nmlp_json_string(c), err));
        }
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(need_template(&layout->choices[0], arena, doc, object, "choices", err));
    layout->n_choices = 1;
    if (split && strcmp(split, "letters") == 0) {
        layout->choices_kind = NMLP_CHOICES_LETTERS;
    } else if (split && strcmp(split, "paren") == 0) {
        layout->choices_kind = NMLP_CHOICES_PAREN;
    } else if (split) {
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"split\" is \"%s\", letters or paren expected", doc->origin, split);
    }
    return NMLP_OK;
}

static nmlp_status parse_gold(nmlp_task_layout *layout, nmlp_arena *arena, const nmlp_json_doc *doc,
                              const nmlp_json *object, nmlp_err *err) {
    static const char *const kinds[] = {"index", "index1", "label", "labels_file"};
    const char *kind = "index";
    NMLP_RETURN_IF_FAILED(optional_text(&kind, arena, doc, object, "gold_is", err));
    size_t i = 0;
    while (i < 4 && strcmp(kinds[i], kind) != 0) i++;
    if (i == 4)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"gold_is\" is \"%s\"; index, index1, label or labels_file expected",
                         doc->origin, kind);
    layout->gold_kind = (nmlp_gold_kind)i;
    if (layout->gold_kind == NMLP_GOLD_LABELS_FILE) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(need_text(&layout->gold, arena, doc, object, "gold", err));
    return optional_text(&layout->labels, arena, doc, object, "labels", err);
}

static nmlp_status parse_layout(nmlp_task_layout *layout, nmlp_arena *arena, const nmlp_json_doc *doc,
                                const nmlp_json *object, nmlp_err *err) {
    static const char *const known[] = {"name",    "question", "choices", "split", "gold",
                                        "gold_is", "labels",   "id",      "clean", NULL};
    char template[NMLP_TEMPLATE_NAME_MAX];
    *layout = (nmlp_task_layout){.name = "custom"};
    NMLP_RETURN_IF_FAILED(refuse_unknown(doc, object, known, err));
    NMLP_RETURN_IF_FAILED(optional_text(&layout->name, arena, doc, object, "name", err));
    NMLP_RETURN_IF_FAILED(need_template(&layout->question, arena, doc, object, "question", err));
    NMLP_RETURN_IF_FAILED(parse_choices(layout, arena, doc, object, err));
    NMLP_RETURN_IF_FAILED(parse_gold(layout, arena, doc, object, err));
    NMLP_RETURN_IF_FAILED(optional_text(&layout->id, arena, doc, object, "id", err));
    NMLP_RETURN_IF_FAILED(optional_text(&layout->clean, arena, doc, object, "clean", err));
    if (!layout->clean) return NMLP_OK;
    int n = snprintf(template, sizeof template, "{value|%s}", layout->clean);
    if (n < 0 || (size_t)n >= sizeof template)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"clean\" is too long", doc->origin);
    return nmlp_template_check(template, err);
}

static nmlp_status parse_layouts(nmlp_task *task, nmlp_arena *arena, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *layouts = nmlp_json_get(doc->root, "layouts");
    task->layouts[task->n_layouts++] = nmlp_layout_ours;
    if (!nmlp_json_is_null(layouts) && !nmlp_json_is_array(layouts))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"layouts\" must be a list", doc->origin);
    for (const nmlp_json *l = nmlp_json_first(layouts); l; l = nmlp_json_next(l)) {
        if (task->n_layouts == NMLP_TASK_LAYOUTS_MAX)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: more than %d layouts", doc->origin, NMLP_TASK_LAYOUTS_MAX - 1);
        if (!nmlp_json_is_object(l))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: a layout must be an object", doc->origin);
        NMLP_RETURN_IF_FAILED(parse_layout(&task->layouts[task->n_layouts++], arena, doc, l, err));
    }
    return NMLP_OK;
}

static nmlp_status parse_doc(nmlp_task *task, nmlp_arena *arena, const nmlp_json_doc *doc, nmlp_err *err) {
    static const char *const known[] = {"name", "context", "continuation", "length", "layouts", NULL};
    *task = (nmlp_task){.length = "{choice}"};
    if (!nmlp_json_is_object(doc->root)) return nmlp_fail(err, NMLP_E_FORMAT, "%s: must be a JSON object", doc->origin);
    NMLP_RETURN_IF_FAILED(refuse_unknown(doc, doc->root, known, err));
    NMLP_RETURN_IF_FAILED(need_text(&task->name, arena, doc, doc->root, "name", err));
    if (!task->name[0]) return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"name\" must not be empty", doc->origin);
    NMLP_RETURN_IF_FAILED(need_template(&task->context, arena, doc, doc->root, "context", err));
    NMLP_RETURN_IF_FAILED(need_template(&task->continuation, arena, doc, doc->root, "continuation", err));
    if (!nmlp_json_is_null(nmlp_json_get(doc->root, "length")))
        NMLP_RETURN_IF_FAILED(need_template(&task->length, arena, doc, doc->root, "length", err));
    return parse_layouts(task, arena, doc, err);
}

nmlp_status nmlp_task_parse(nmlp_task *task, nmlp_arena *arena, const char *json, size_t len, const char *origin,
                            nmlp_err *err) {
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_json_parse(&doc, json, len, origin, err));
    nmlp_status st = parse_doc(task, arena, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_task_load(nmlp_task *task, nmlp_arena *arena, const char *path, nmlp_err *err) {
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = parse_doc(task, arena, &doc, err);
    nmlp_json_free(&doc);
    return st;
}
