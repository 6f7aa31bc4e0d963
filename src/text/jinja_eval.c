#define _POSIX_C_SOURCE 200809L /* localtime_r */
/* Walks the tree of a template. */
#include <string.h>
#include <time.h>

#include "text/jinja_internal.h"

typedef nmlp_jinja_node node;
typedef nmlp_jinja_value value;

static value eval(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n);
static void execute(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n);

/* ---- names ---- */

void nmlp_jinja_set(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const char *name, value v) {
    if (run->status != NMLP_OK) return;
    for (size_t i = 0; i < scope->n; i++) {
        if (strcmp(scope->variables[i].name, name) != 0) continue;
        scope->variables[i].value = v;
        return;
    }
    if (scope->n == scope->capacity) {
        size_t capacity = scope->capacity ? 2 * scope->capacity : 8;
        nmlp_jinja_variable *grown = nmlp_jinja_alloc(&run->heap, capacity * sizeof *grown);
        if (!grown) {
            nmlp_jinja_fail(run, NMLP_E_LIMIT, "too many variables");
            return;
        }
        if (scope->n) memcpy(grown, scope->variables, scope->n * sizeof *grown);
        scope->variables = grown;
        scope->capacity = capacity;
    }
    scope->variables[scope->n++] = (nmlp_jinja_variable){name, v};
}

static nmlp_jinja_scope *new_scope(nmlp_jinja_run *run, nmlp_jinja_scope *parent) {
    nmlp_jinja_scope *scope = run->status == NMLP_OK ? nmlp_jinja_alloc(&run->heap, sizeof *scope) : NULL;
    if (!scope) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "too much memory");
        return NULL;
    }
    scope->parent = parent;
    return scope;
}

static value lookup(nmlp_jinja_run *run, const nmlp_jinja_scope *scope, const char *name) {
    static const char *const globals[] = {"namespace", "raise_exception", "strftime_now", "range", "dict"};
    for (; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->n; i++)
            if (strcmp(scope->variables[i].name, name) == 0) return scope->variables[i].value;
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++)
        if (strcmp(globals[i], name) == 0)
            return nmlp_jinja_callable_new(run, (nmlp_jinja_callable){.type = NMLP_JINJA_GLOBAL, .name = globals[i]});
    return nmlp_jinja_undefined();
}

static value eval_compare(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    value left = eval(run, scope, n->children[0]);
    for (size_t i = 1; i < n->n_children && run->status == NMLP_OK; i++) {
        value right = eval(run, scope, n->children[i]);
        if (run->status != NMLP_OK || !nmlp_jinja_compare(run, n->ops[i - 1], left, right))
            return nmlp_jinja_bool(false);
        left = right;
    }
    return nmlp_jinja_bool(true);
}

/* ---- calls ---- */

static bool is_integer(value v) { return v.kind == NMLP_JINJA_INT || v.kind == NMLP_JINJA_BOOL; }
static int64_t integer_of(value v) { return v.kind == NMLP_JINJA_BOOL ? v.as.b : v.as.i; }

enum { ARGS_MAX = 32 };

typedef struct arg_list {
    value values[ARGS_MAX];
    const char *names[ARGS_MAX];
    nmlp_jinja_args args;
} arg_list;

static void eval_args(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n, arg_list *out) {
    size_t count = 0;
    for (size_t i = 1; i < n->n_children && run->status == NMLP_OK; i++, count++) {
        const node *child = n->children[i];
        if (count == ARGS_MAX) {
            nmlp_jinja_fail(run, NMLP_E_LIMIT, "more than %d arguments", (int)ARGS_MAX);
            break;
        }
        bool keyword = child->type == NMLP_JINJA_KEYWORD;
        out->names[count] = keyword ? child->text : NULL;
        out->values[count] = eval(run, scope, keyword ? child->children[0] : child);
    }
    out->args = (nmlp_jinja_args){.values = out->values, .names = out->names, .n = count};
}

/* The text that a body writes. */
static value capture(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *body) {
    nmlp_jinja_text text;
    nmlp_jinja_text *before = run->out;
    nmlp_jinja_text_init(&text);
    run->out = &text;
    execute(run, scope, body);
    run->out = before;
    return nmlp_jinja_text_take(run, &text);
}

static value call_macro(nmlp_jinja_run *run, const nmlp_jinja_callable *callable, const nmlp_jinja_args *args) {
    const node *macro = callable->macro;
    nmlp_jinja_scope *scope = new_scope(run, callable->scope);
    nmlp_jinja_flow flow = run->flow;
    if (!scope) return nmlp_jinja_undefined();
    for (size_t i = 1; i < macro->n_children && run->status == NMLP_OK; i++) {
        const node *parameter = macro->children[i];
        const value *given = nmlp_jinja_arg(args, i - 1, parameter->text);
        value v = given                    ? *given
                  : parameter->children[0] ? eval(run, scope, parameter->children[0])
                                           : nmlp_jinja_undefined();
        nmlp_jinja_set(run, scope, parameter->text, v);
    }
    const value *caller = nmlp_jinja_arg(args, SIZE_MAX, "caller");
    if (caller) nmlp_jinja_set(run, scope, "caller", *caller);
    run->flow = NMLP_JINJA_GOES_ON;
    value text = capture(run, scope, macro->children[0]);
    run->flow = flow;
    return text;
}

static value call_range(nmlp_jinja_run *run, const nmlp_jinja_args *args) {
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < args->n && i < 3; i++) {
        if (!is_integer(args->values[i])) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "range needs integers");
        bounds[i] = integer_of(args->values[i]);
    }
    if (args->n == 1) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    if (!bounds[2] || !args->n) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "range needs an end, and a step but 0");
    value list = nmlp_jinja_list_new(run, false);
    for (int64_t i = bounds[0]; run->status == NMLP_OK && (bounds[2] > 0 ? i < bounds[1] : i > bounds[1]);) {
        nmlp_jinja_list_push(run, list.as.list, nmlp_jinja_int(i));
        if (__builtin_add_overflow(i, bounds[2], &i)) break;
    }
    return list;
}

static value call_strftime(nmlp_jinja_run *run, const nmlp_jinja_args *args) {
    char format[128], text[512];
    struct tm parts;
    time_t now = (time_t)run->now_seconds;
    const value *given = nmlp_jinja_arg(args, 0, "format");
    if (!given || given->kind != NMLP_JINJA_STRING || given->as.s->len >= sizeof format)
        return nmlp_jinja_fail(run, NMLP_E_FORMAT, "strftime_now needs a format");
    memcpy(format, given->as.s->data, given->as.s->len);
    format[given->as.s->len] = 0;
    if (!localtime_r(&now, &parts)) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "strftime_now: no local time");
    size_t n = strftime(text, sizeof text, format, &parts);
    return nmlp_jinja_string_new(run, text, n, false);
}

static value call_global(nmlp_jinja_run *run, const char *name, const nmlp_jinja_args *args) {
    if (strcmp(name, "raise_exception") == 0) {
        const value *message = nmlp_jinja_arg(args, 0, "message");
        value text = nmlp_jinja_to_string(run, message ? *message : nmlp_jinja_undefined());
        if (run->status != NMLP_OK) return text;
        return nmlp_jinja_fail(run, NMLP_E_ARG, "%.*s", (int)(text.as.s->len < 400 ? text.as.s->len : 400),
                               text.as.s->data);
    }
    if (strcmp(name, "strftime_now") == 0) return call_strftime(run, args);
    if (strcmp(name, "range") == 0) return call_range(run, args);
    value dict = nmlp_jinja_dict_new(run); /* namespace, dict */
    if (run->status != NMLP_OK) return dict;
    dict.as.dict->is_namespace = strcmp(name, "namespace") == 0;
    for (size_t i = 0; i < args->n && run->status == NMLP_OK; i++) {
        const value *v = &args->values[i];
        if (args->names[i]) nmlp_jinja_dict_put(run, dict.as.dict, nmlp_jinja_cstring(run, args->names[i]), *v);
        for (size_t k = 0; !args->names[i] && v->kind == NMLP_JINJA_DICT && k < v->as.dict->n; k++)
            nmlp_jinja_dict_put(run, dict.as.dict, v->as.dict->keys[k], v->as.dict->values[k]);
    }
    return dict;
}

value nmlp_jinja_call_value(nmlp_jinja_run *run, value callee, const nmlp_jinja_args *args) {
    if (run->status != NMLP_OK) return nmlp_jinja_undefined();
    if (callee.kind != NMLP_JINJA_CALLABLE)
        return nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s cannot be called", nmlp_jinja_kind_name(callee));
    const nmlp_jinja_callable *c = callee.as.callable;
    switch (c->type) {
    case NMLP_JINJA_GLOBAL: return call_global(run, c->name, args);
    case NMLP_JINJA_METHOD: return nmlp_jinja_method(run, c->self, c->name, args);
    default: return call_macro(run, c, args);
    }
}

static value eval_call(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    arg_list list;
    value callee = eval(run, scope, n->children[0]);
    if (run->status == NMLP_OK && callee.kind == NMLP_JINJA_UNDEFINED && n->children[0]->type == NMLP_JINJA_NAME)
        return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "function \"%.60s\" is not defined", n->children[0]->text);
    if (run->status == NMLP_OK && callee.kind == NMLP_JINJA_UNDEFINED && n->children[0]->type == NMLP_JINJA_ATTRIBUTE)
        return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "method \"%.60s\" is not supported here", n->children[0]->text);
    eval_args(run, scope, n, &list);
    return nmlp_jinja_call_value(run, callee, &list.args);
}

/* ---- expressions ---- */

static value eval_display(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    if (n->type == NMLP_JINJA_LIST_DISPLAY) {
        value list = nmlp_jinja_list_new(run, n->flag);
        for (size_t i = 0; i < n->n_children && run->status == NMLP_OK; i++) {
            value item = eval(run, scope, n->children[i]);
            if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, item);
        }
        return list;
    }
    value dict = nmlp_jinja_dict_new(run);
    for (size_t i = 0; i + 1 < n->n_children && run->status == NMLP_OK; i += 2) {
        value key = eval(run, scope, n->children[i]);
        value item = eval(run, scope, n->children[i + 1]);
        if (run->status == NMLP_OK) nmlp_jinja_dict_put(run, dict.as.dict, key, item);
    }
    return dict;
}

static value eval_filter_or_test(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    arg_list list;
    value v = eval(run, scope, n->children[0]);
    eval_args(run, scope, n, &list);
    if (run->status != NMLP_OK) return nmlp_jinja_undefined();
    if (n->type == NMLP_JINJA_FILTER) return nmlp_jinja_filter(run, n->text, v, &list.args);
    return nmlp_jinja_bool(nmlp_jinja_test(run, n->text, v, &list.args) != n->flag);
}

static value eval_optional(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    return n ? eval(run, scope, n) : nmlp_jinja_none();
}

static value eval_inner(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    node *const *c = n->children;
    value v;
    switch (n->type) {
    case NMLP_JINJA_LITERAL: return n->literal;
    case NMLP_JINJA_NAME: return lookup(run, scope, n->text);
    case NMLP_JINJA_LIST_DISPLAY:
    case NMLP_JINJA_DICT_DISPLAY: return eval_display(run, scope, n);
    case NMLP_JINJA_ATTRIBUTE:
        v = eval(run, scope, c[0]);
        return run->status == NMLP_OK ? nmlp_jinja_attribute(run, v, n->text, false) : v;
    case NMLP_JINJA_ITEM: {
        v = eval(run, scope, c[0]);
        value key = eval(run, scope, c[1]);
        return run->status == NMLP_OK ? nmlp_jinja_item(run, v, key) : v;
    }
    case NMLP_JINJA_SLICE: {
        v = eval(run, scope, c[0]);
        value first = eval_optional(run, scope, c[1]);
        value last = eval_optional(run, scope, c[2]);
        value by = eval_optional(run, scope, c[3]);
        return run->status == NMLP_OK ? nmlp_jinja_slice(run, v, first, last, by) : v;
    }
    case NMLP_JINJA_CALL: return eval_call(run, scope, n);
    case NMLP_JINJA_FILTER:
    case NMLP_JINJA_TEST: return eval_filter_or_test(run, scope, n);
    case NMLP_JINJA_UNARY:
        v = eval(run, scope, c[0]);
        return run->status == NMLP_OK ? nmlp_jinja_unary(run, n->op, v) : v;
    case NMLP_JINJA_BINARY: {
        v = eval(run, scope, c[0]);
        value right = eval(run, scope, c[1]);
        return nmlp_jinja_binary(run, n->op, v, right);
    }
    case NMLP_JINJA_COMPARE: return eval_compare(run, scope, n);
    case NMLP_JINJA_AND:
    case NMLP_JINJA_OR:
        v = eval(run, scope, c[0]);
        return nmlp_jinja_is_true(v) == (n->type == NMLP_JINJA_AND) ? eval(run, scope, c[1]) : v;
    case NMLP_JINJA_CONDITIONAL:
        v = eval(run, scope, c[1]);
        if (nmlp_jinja_is_true(v)) return eval(run, scope, c[0]);
        return c[2] ? eval(run, scope, c[2]) : nmlp_jinja_undefined();
    default: return nmlp_jinja_fail(run, NMLP_E_ILLEGAL, "a statement stands where an expression should");
    }
}

static value eval(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    if (!nmlp_jinja_step(run, 1)) return nmlp_jinja_undefined();
    if (run->depth >= NMLP_JINJA_DEPTH_MAX) return nmlp_jinja_fail(run, NMLP_E_LIMIT, "nested too deeply");
    run->depth++;
    run->line = n->line;
    value v = eval_inner(run, scope, n);
    run->depth--;
    return run->status == NMLP_OK ? v : nmlp_jinja_undefined();
}

/* ---- statements ---- */

static void assign(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *target, value v) {
    if (run->status != NMLP_OK) return;
    if (target->type == NMLP_JINJA_NAME) {
        nmlp_jinja_set(run, scope, target->text, v);
    } else if (target->type == NMLP_JINJA_ATTRIBUTE) {
        value object = eval(run, scope, target->children[0]);
        if (object.kind != NMLP_JINJA_DICT || !object.as.dict->is_namespace)
            nmlp_jinja_fail(run, NMLP_E_FORMAT, "attributes are set on a namespace only");
        else
            nmlp_jinja_dict_put(run, object.as.dict, nmlp_jinja_cstring(run, target->text), v);
    } else {
        const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
        if (items && items->n != target->n_children)
            nmlp_jinja_fail(run, NMLP_E_FORMAT, "%zu values for %zu names", items->n, target->n_children);
        for (size_t i = 0; items && run->status == NMLP_OK && i < items->n; i++)
            assign(run, scope, target->children[i], items->items[i]);
    }
}

/* The items that pass the loop's own filter. */
static const nmlp_jinja_list *filtered(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n,
                                       const nmlp_jinja_list *items) {
    if (!n->children[4] || !items) return items;
    value list = nmlp_jinja_list_new(run, false);
    nmlp_jinja_scope *inner = new_scope(run, scope);
    for (size_t i = 0; i < items->n && run->status == NMLP_OK; i++) {
        assign(run, inner, n->children[0], items->items[i]);
        value keep = eval(run, inner, n->children[4]);
        if (run->status == NMLP_OK && nmlp_jinja_is_true(keep))
            nmlp_jinja_list_push(run, list.as.list, items->items[i]);
    }
    return run->status == NMLP_OK ? list.as.list : NULL;
}

static void execute_for(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    value iterable = eval(run, scope, n->children[1]);
    if (run->status != NMLP_OK) return;
    if (n->flag) {
        nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "recursive loops are not supported");
        return;
    }
    const nmlp_jinja_list *items = filtered(run, scope, n, nmlp_jinja_iterate(run, iterable));
    nmlp_jinja_loop *loop = items ? nmlp_jinja_alloc(&run->heap, sizeof *loop) : NULL;
    if (!loop) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "too much memory");
        return;
    }
    *loop = (nmlp_jinja_loop){.items = items, .depth = ++run->loop_depth};
    size_t count = items->n; /* a list that grows meanwhile is not followed */
    for (size_t i = 0; i < count && i < items->n && run->status == NMLP_OK; i++) {
        nmlp_jinja_scope *inner = new_scope(run, scope);
        if (!inner) break;
        loop->index = i;
        nmlp_jinja_set(run, inner, "loop", (value){.kind = NMLP_JINJA_LOOP, .as.loop = loop});
        assign(run, inner, n->children[0], items->items[i]);
        execute(run, inner, n->children[2]);
        bool stop = run->flow == NMLP_JINJA_BREAKS;
        run->flow = NMLP_JINJA_GOES_ON;
        if (stop) break;
    }
    run->loop_depth--;
    if (!count && n->children[3]) execute(run, scope, n->children[3]);
}

/* A filter whose innermost operand is the placeholder: `text` takes its place. */
static value apply_filters(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *filter, value text) {
    nmlp_jinja_scope *inner = new_scope(run, scope);
    if (!inner) return nmlp_jinja_undefined();
    nmlp_jinja_set(run, inner, "", text);
    return eval(run, inner, filter);
}

static void execute_set_block(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    nmlp_jinja_scope *inner = new_scope(run, scope);
    value text = inner ? capture(run, inner, n->children[1]) : nmlp_jinja_undefined();
    if (n->children[2] && run->status == NMLP_OK) text = apply_filters(run, scope, n->children[2], text);
    assign(run, scope, n->children[0], text);
}

static void execute_call_block(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    arg_list list;
    value callee = eval(run, scope, n->children[0]->children[0]);
    eval_args(run, scope, n->children[0], &list);
    if (run->status != NMLP_OK || list.args.n == ARGS_MAX) return;
    list.names[list.args.n] = "caller";
    list.values[list.args.n++] = nmlp_jinja_callable_new(
        run, (nmlp_jinja_callable){.type = NMLP_JINJA_CALLER, .macro = n->children[1], .scope = scope});
    value text = nmlp_jinja_call_value(run, callee, &list.args);
    if (run->status == NMLP_OK) nmlp_jinja_text_add_value(run, run->out, text);
}

static void execute_with(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    nmlp_jinja_scope *inner = new_scope(run, scope);
    for (size_t i = 1; inner && i + 1 < n->n_children && run->status == NMLP_OK; i += 2)
        assign(run, inner, n->children[i], eval(run, scope, n->children[i + 1]));
    if (run->status == NMLP_OK) execute(run, inner, n->children[0]);
}

static void execute_if(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    value test = eval(run, scope, n->children[0]);
    if (run->status != NMLP_OK) return;
    if (nmlp_jinja_is_true(test))
        execute(run, scope, n->children[1]);
    else if (n->children[2])
        execute(run, scope, n->children[2]);
}

static void execute_inner(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    value v;
    switch (n->type) {
    case NMLP_JINJA_BODY:
        for (size_t i = 0; i < n->n_children && run->status == NMLP_OK && run->flow == NMLP_JINJA_GOES_ON; i++)
            execute(run, scope, n->children[i]);
        break;
    case NMLP_JINJA_TEXT: nmlp_jinja_text_add(run, run->out, n->text, n->len, NULL); break;
    case NMLP_JINJA_OUTPUT:
        v = eval(run, scope, n->children[0]);
        if (run->status == NMLP_OK) nmlp_jinja_text_add_value(run, run->out, v);
        break;
    case NMLP_JINJA_IF: execute_if(run, scope, n); break;
    case NMLP_JINJA_FOR: execute_for(run, scope, n); break;
    case NMLP_JINJA_SET: assign(run, scope, n->children[0], eval(run, scope, n->children[1])); break;
    case NMLP_JINJA_SET_BLOCK: execute_set_block(run, scope, n); break;
    case NMLP_JINJA_MACRO_DEF:
        v = nmlp_jinja_callable_new(run, (nmlp_jinja_callable){.type = NMLP_JINJA_MACRO, .macro = n, .scope = scope});
        nmlp_jinja_set(run, scope, n->text, v);
        break;
    case NMLP_JINJA_CALL_BLOCK: execute_call_block(run, scope, n); break;
    case NMLP_JINJA_FILTER_BLOCK:
        v = capture(run, scope, n->children[1]);
        if (run->status == NMLP_OK) v = apply_filters(run, scope, n->children[0], v);
        if (run->status == NMLP_OK) nmlp_jinja_text_add_value(run, run->out, v);
        break;
    case NMLP_JINJA_WITH: execute_with(run, scope, n); break;
    case NMLP_JINJA_BREAK: run->flow = NMLP_JINJA_BREAKS; break;
    case NMLP_JINJA_CONTINUE: run->flow = NMLP_JINJA_CONTINUES; break;
    default: nmlp_jinja_fail(run, NMLP_E_ILLEGAL, "an expression stands where a statement should");
    }
}

static void execute(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const node *n) {
    if (!nmlp_jinja_step(run, 1)) return;
    if (run->depth >= NMLP_JINJA_DEPTH_MAX) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "nested too deeply");
        return;
    }
    run->depth++;
    run->line = n->line;
    execute_inner(run, scope, n);
    run->depth--;
}

void nmlp_jinja_execute(nmlp_jinja_run *run, const node *body) {
    nmlp_jinja_scope *scope = new_scope(run, run->globals);
    if (scope) execute(run, scope, body);
}
