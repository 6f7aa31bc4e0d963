/* Tests: what stands behind `is`. */
#include <string.h>

#include "text/jinja_internal.h"

typedef nmlp_jinja_value value;
typedef nmlp_jinja_args args_t;

static bool is_kind(value v, const char *name, bool *known) {
    bool integer = v.kind == NMLP_JINJA_INT;
    bool number = integer || v.kind == NMLP_JINJA_FLOAT || v.kind == NMLP_JINJA_BOOL;
    bool text = v.kind == NMLP_JINJA_STRING;
    bool holder = v.kind == NMLP_JINJA_LIST || v.kind == NMLP_JINJA_DICT;
    const struct {
        const char *name;
        bool is;
    } kinds[] = {
        {"defined", v.kind != NMLP_JINJA_UNDEFINED},
        {"undefined", v.kind == NMLP_JINJA_UNDEFINED},
        {"none", v.kind == NMLP_JINJA_NONE},
        {"boolean", v.kind == NMLP_JINJA_BOOL},
        {"true", v.kind == NMLP_JINJA_BOOL && v.as.b},
        {"false", v.kind == NMLP_JINJA_BOOL && !v.as.b},
        {"integer", integer},
        {"float", v.kind == NMLP_JINJA_FLOAT},
        {"number", number},
        {"string", text},
        {"mapping", v.kind == NMLP_JINJA_DICT && !v.as.dict->is_namespace},
        {"iterable", text || holder || v.kind == NMLP_JINJA_UNDEFINED},
        {"sequence", text || holder || v.kind == NMLP_JINJA_UNDEFINED},
        {"callable", v.kind == NMLP_JINJA_CALLABLE},
    };
    *known = true;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0) return kinds[i].is;
    *known = false;
    return false;
}

static bool test_number(nmlp_jinja_run *run, const char *name, value v, const value *arg) {
    int64_t i = v.kind == NMLP_JINJA_INT ? v.as.i : v.kind == NMLP_JINJA_BOOL ? v.as.b : 0;
    if (v.kind != NMLP_JINJA_INT && v.kind != NMLP_JINJA_BOOL) {
        nmlp_jinja_fail(run, NMLP_E_FORMAT, "test \"%s\" needs an integer", name);
        return false;
    }
    if (strcmp(name, "odd") == 0) return i % 2 != 0;
    if (strcmp(name, "even") == 0) return i % 2 == 0;
    if (!arg || arg->kind != NMLP_JINJA_INT || !arg->as.i || arg->as.i == -1) return arg && arg->as.i == -1;
    return i % arg->as.i == 0;
}

static bool test_order(nmlp_jinja_run *run, const char *name, value v, value arg, bool *known) {
    static const struct {
        const char *name;
        bool below, same, above;
    } orders[] = {
        {"lt", true, false, false},          {"lessthan", true, false, false}, {"<", true, false, false},
        {"le", true, true, false},           {"<=", true, true, false},        {"gt", false, false, true},
        {"greaterthan", false, false, true}, {">", false, false, true},        {"ge", false, true, true},
        {">=", false, true, true},
    };
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        if (strcmp(orders[i].name, name) != 0) continue;
        int order = nmlp_jinja_order(run, v, arg);
        *known = true;
        return order < 0 ? orders[i].below : order > 0 ? orders[i].above : orders[i].same;
    }
    *known = false;
    return false;
}

static bool is_any(const char *name, const char *a, const char *b, const char *c) {
    return strcmp(name, a) == 0 || strcmp(name, b) == 0 || strcmp(name, c) == 0;
}

bool nmlp_jinja_test(nmlp_jinja_run *run, const char *name, value v, const args_t *args) {
    bool known;
    const args_t none = {0};
    const value *arg = nmlp_jinja_arg(args, 0, NULL);
    bool is = is_kind(v, name, &known);
    if (known) return is;
    if (is_any(name, "odd", "even", "divisibleby")) return test_number(run, name, v, arg);
    if (is_any(name, "lower", "upper", "lower") && v.kind == NMLP_JINJA_STRING) {
        value folded_text = nmlp_jinja_method(run, v, name, &none);
        return run->status == NMLP_OK && nmlp_jinja_equal(run, v, folded_text);
    }
    if (arg) {
        if (is_any(name, "eq", "equalto", "==") || strcmp(name, "sameas") == 0) return nmlp_jinja_equal(run, v, *arg);
        if (is_any(name, "ne", "!=", "ne")) return !nmlp_jinja_equal(run, v, *arg);
        if (strcmp(name, "in") == 0) {
            const nmlp_jinja_list *items = nmlp_jinja_iterate(run, *arg);
            for (size_t i = 0; items && i < items->n; i++)
                if (nmlp_jinja_equal(run, items->items[i], v)) return true;
            return false;
        }
        is = test_order(run, name, v, *arg, &known);
        if (known) return is;
    }
    nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "test \"%.60s\" is not supported", name);
    return false;
}
