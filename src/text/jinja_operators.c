/* What expressions do with values: attributes, items, slices, operators. */
#include <math.h>
#include <string.h>

#include "text/jinja_internal.h"

typedef nmlp_jinja_value value;

value nmlp_jinja_callable_new(nmlp_jinja_run *run, nmlp_jinja_callable callable) {
    nmlp_jinja_callable *c = nmlp_jinja_alloc(&run->heap, sizeof *c);
    if (!c) return nmlp_jinja_fail(run, NMLP_E_LIMIT, "too much memory");
    *c = callable;
    return (value){.kind = NMLP_JINJA_CALLABLE, .as.callable = c};
}

/* ---- attributes and items ---- */

static value loop_attribute(nmlp_jinja_run *run, nmlp_jinja_loop *loop, const char *name) {
    int64_t index = (int64_t)loop->index;
    int64_t n = (int64_t)loop->items->n;
    if (strcmp(name, "index") == 0) return nmlp_jinja_int(index + 1);
    if (strcmp(name, "index0") == 0) return nmlp_jinja_int(index);
    if (strcmp(name, "revindex") == 0) return nmlp_jinja_int(n - index);
    if (strcmp(name, "revindex0") == 0) return nmlp_jinja_int(n - index - 1);
    if (strcmp(name, "first") == 0) return nmlp_jinja_bool(index == 0);
    if (strcmp(name, "last") == 0) return nmlp_jinja_bool(index == n - 1);
    if (strcmp(name, "length") == 0) return nmlp_jinja_int(n);
    if (strcmp(name, "depth") == 0) return nmlp_jinja_int(loop->depth);
    if (strcmp(name, "depth0") == 0) return nmlp_jinja_int(loop->depth - 1);
    if (strcmp(name, "previtem") == 0) return index > 0 ? loop->items->items[index - 1] : nmlp_jinja_undefined();
    if (strcmp(name, "nextitem") == 0) return index + 1 < n ? loop->items->items[index + 1] : nmlp_jinja_undefined();
    if (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0)
        return nmlp_jinja_callable_new(run, (nmlp_jinja_callable){.type = NMLP_JINJA_METHOD,
                                                                  .name = name,
                                                                  .self = {.kind = NMLP_JINJA_LOOP, .as.loop = loop}});
    return nmlp_jinja_undefined();
}

/* x.name looks for a method first, x["name"] for an item. */
value nmlp_jinja_attribute(nmlp_jinja_run *run, value v, const char *name, bool item_first) {
    if (v.kind == NMLP_JINJA_UNDEFINED)
        return nmlp_jinja_fail(run, NMLP_E_FORMAT, "an undefined value has no \"%.80s\"", name);
    if (v.kind == NMLP_JINJA_LOOP) return loop_attribute(run, v.as.loop, name);
    bool method = nmlp_jinja_has_method(v, name) && !(v.kind == NMLP_JINJA_DICT && v.as.dict->is_namespace);
    if (v.kind == NMLP_JINJA_DICT && (item_first || !method)) {
        const value *found = nmlp_jinja_dict_find(run, v.as.dict, name);
        if (found) return *found;
    }
    if (!method) return nmlp_jinja_undefined();
    return nmlp_jinja_callable_new(run, (nmlp_jinja_callable){.type = NMLP_JINJA_METHOD, .name = name, .self = v});
}

/* Byte of the nth character; the end for n beyond it. */
static size_t char_offset(const nmlp_jinja_string *s, size_t nth) {
    size_t at = 0;
    for (; at < s->len; at++) {
        if (((unsigned char)s->data[at] & 0xC0) == 0x80) continue;
        if (!nth--) break;
    }
    return at;
}

value nmlp_jinja_item(nmlp_jinja_run *run, value v, value key) {
    if (v.kind == NMLP_JINJA_UNDEFINED) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "an undefined value has no items");
    if (v.kind == NMLP_JINJA_DICT) {
        const value *found = nmlp_jinja_dict_get(run, v.as.dict, key);
        if (found) return *found;
    }
    if (key.kind == NMLP_JINJA_INT && (v.kind == NMLP_JINJA_LIST || v.kind == NMLP_JINJA_STRING)) {
        int64_t n = v.kind == NMLP_JINJA_LIST ? (int64_t)v.as.list->n : (int64_t)nmlp_jinja_chars(v.as.s);
        int64_t i = key.as.i < 0 ? key.as.i + n : key.as.i;
        if (i < 0 || i >= n || !nmlp_jinja_step(run, 1)) return nmlp_jinja_undefined();
        if (v.kind == NMLP_JINJA_LIST) return v.as.list->items[i];
        return nmlp_jinja_substring(run, v.as.s, char_offset(v.as.s, (size_t)i), char_offset(v.as.s, (size_t)i + 1));
    }
    if (key.kind == NMLP_JINJA_STRING) {
        char name[64];
        if (key.as.s->len >= sizeof name) return nmlp_jinja_undefined();
        memcpy(name, key.as.s->data, key.as.s->len);
        name[key.as.s->len] = 0;
        value attribute = nmlp_jinja_attribute(run, v, name, true);
        if (attribute.kind == NMLP_JINJA_CALLABLE) { /* `name` does not live on */
            nmlp_jinja_callable copy = *attribute.as.callable;
            copy.name = key.as.s->data;
            value text = nmlp_jinja_string_new(run, key.as.s->data, key.as.s->len, false);
            if (run->status == NMLP_OK) copy.name = text.as.s->data;
            return nmlp_jinja_callable_new(run, copy);
        }
        return attribute;
    }
    return nmlp_jinja_undefined();
}

/* Bounds as Python takes them: from the end when negative, within 0..n. */
static int64_t slice_bound(nmlp_jinja_run *run, value v, int64_t n, int64_t absent, bool backwards) {
    if (v.kind == NMLP_JINJA_NONE || v.kind == NMLP_JINJA_UNDEFINED) return absent;
    if (v.kind != NMLP_JINJA_INT && v.kind != NMLP_JINJA_BOOL) {
        nmlp_jinja_fail(run, NMLP_E_FORMAT, "slices need integers");
        return 0;
    }
    int64_t i = v.kind == NMLP_JINJA_INT ? v.as.i : v.as.b;
    if (i < 0) i = i < -n ? -1 : i + n;
    int64_t low = backwards ? -1 : 0;
    int64_t high = backwards ? n - 1 : n;
    return i < low ? low : i > high ? high : i;
}

value nmlp_jinja_slice(nmlp_jinja_run *run, value v, value first, value last, value by) {
    value result = nmlp_jinja_undefined();
    if (v.kind != NMLP_JINJA_LIST && v.kind != NMLP_JINJA_STRING)
        return nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s cannot be sliced", nmlp_jinja_kind_name(v));
    int64_t step = by.kind == NMLP_JINJA_INT ? by.as.i : 1;
    const nmlp_jinja_list *items = v.kind == NMLP_JINJA_LIST ? v.as.list : NULL;
    int64_t n = items ? (int64_t)items->n : (int64_t)nmlp_jinja_chars(v.as.s);
    if (!step) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "a slice's step must not be 0");
    int64_t begin = slice_bound(run, first, n, step > 0 ? 0 : n - 1, step < 0);
    int64_t end = slice_bound(run, last, n, step > 0 ? n : -1, step < 0);
    if (run->status != NMLP_OK) return result;
    if (!items && step == 1) {
        if (end < begin) end = begin;
        return nmlp_jinja_substring(run, v.as.s, char_offset(v.as.s, (size_t)begin), char_offset(v.as.s, (size_t)end));
    }
    if (!items) items = nmlp_jinja_iterate(run, v);
    if (!items) return result;
    result = nmlp_jinja_list_new(run, items->is_tuple);
    for (int64_t i = begin; run->status == NMLP_OK && (step > 0 ? i < end : i > end); i += step) {
        nmlp_jinja_list_push(run, result.as.list, items->items[i]);
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step) break;
    }
    if (v.kind == NMLP_JINJA_LIST || run->status != NMLP_OK) return result;
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    for (size_t i = 0; i < result.as.list->n; i++)
        nmlp_jinja_text_add_string(run, &text, result.as.list->items[i].as.s);
    return nmlp_jinja_text_take(run, &text);
}

/* ---- operators ---- */

static bool is_integer(value v) { return v.kind == NMLP_JINJA_INT || v.kind == NMLP_JINJA_BOOL; }
static bool is_number(value v) { return is_integer(v) || v.kind == NMLP_JINJA_FLOAT; }
static int64_t integer_of(value v) { return v.kind == NMLP_JINJA_BOOL ? v.as.b : v.as.i; }
static double number_of(value v) { return v.kind == NMLP_JINJA_FLOAT ? v.as.f : (double)integer_of(v); }
static value new_float(double f) { return (value){.kind = NMLP_JINJA_FLOAT, .as.f = f}; }

static value fail_operands(nmlp_jinja_run *run, const char *op, value a, value b) {
    return nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s does not work on %s and %s", op, nmlp_jinja_kind_name(a),
                           nmlp_jinja_kind_name(b));
}

static value integer_result(nmlp_jinja_run *run, bool overflow, int64_t i) {
    return overflow ? nmlp_jinja_fail(run, NMLP_E_LIMIT, "an integer is too large") : nmlp_jinja_int(i);
}

static value floor_divide(nmlp_jinja_run *run, value a, value b, bool remainder) {
    if (number_of(b) == 0) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "division by zero");
    if (!is_integer(a) || !is_integer(b)) {
        double quotient = floor(number_of(a) / number_of(b));
        return new_float(remainder ? number_of(a) - quotient * number_of(b) : quotient);
    }
    int64_t x = integer_of(a);
    int64_t y = integer_of(b);
    if (y == -1) return remainder ? nmlp_jinja_int(0) : integer_result(run, x == INT64_MIN, x == INT64_MIN ? 0 : -x);
    int64_t q = x / y;
    int64_t r = x % y;
    if (r && (r < 0) != (y < 0)) {
        q--;
        r += y;
    }
    return nmlp_jinja_int(remainder ? r : q);
}

static value repeat(nmlp_jinja_run *run, value v, int64_t times) {
    if (v.kind == NMLP_JINJA_STRING) {
        nmlp_jinja_text text;
        nmlp_jinja_text_init(&text);
        for (int64_t i = 0; i < times && run->status == NMLP_OK; i++) nmlp_jinja_text_add_string(run, &text, v.as.s);
        return nmlp_jinja_text_take(run, &text);
    }
    value list = nmlp_jinja_list_new(run, v.as.list->is_tuple);
    for (int64_t i = 0; i < times && nmlp_jinja_step(run, 1); i++)
        for (size_t k = 0; k < v.as.list->n && run->status == NMLP_OK; k++)
            nmlp_jinja_list_push(run, list.as.list, v.as.list->items[k]);
    return list;
}

static value integer_arithmetic(nmlp_jinja_run *run, nmlp_jinja_op op, int64_t a, int64_t b) {
    int64_t i;
    bool overflow = op == NMLP_JINJA_ADD   ? __builtin_add_overflow(a, b, &i)
                    : op == NMLP_JINJA_SUB ? __builtin_sub_overflow(a, b, &i)
                                           : __builtin_mul_overflow(a, b, &i);
    return overflow ? nmlp_jinja_fail(run, NMLP_E_LIMIT, "an integer is too large") : nmlp_jinja_int(i);
}

static value arithmetic(nmlp_jinja_run *run, nmlp_jinja_op op, value a, value b) {
    bool integers = is_integer(a) && is_integer(b);
    switch (op) {
    case NMLP_JINJA_ADD:
    case NMLP_JINJA_SUB:
    case NMLP_JINJA_MUL:
        if (integers) return integer_arithmetic(run, op, integer_of(a), integer_of(b));
        if (op == NMLP_JINJA_MUL) return new_float(number_of(a) * number_of(b));
        return new_float(op == NMLP_JINJA_ADD ? number_of(a) + number_of(b) : number_of(a) - number_of(b));
    case NMLP_JINJA_DIV:
        if (number_of(b) == 0) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "division by zero");
        return new_float(number_of(a) / number_of(b));
    case NMLP_JINJA_POW: {
        double power = pow(number_of(a), number_of(b));
        bool whole = integers && integer_of(b) >= 0 && fabs(power) < 9e15;
        return whole ? nmlp_jinja_int((int64_t)power) : new_float(power);
    }
    default: return floor_divide(run, a, b, op == NMLP_JINJA_MOD);
    }
}

static value concatenate(nmlp_jinja_run *run, value a, value b) {
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    nmlp_jinja_text_add_value(run, &text, a);
    nmlp_jinja_text_add_value(run, &text, b);
    return nmlp_jinja_text_take(run, &text);
}

static value join_lists(nmlp_jinja_run *run, const nmlp_jinja_list *a, const nmlp_jinja_list *b) {
    value list = nmlp_jinja_list_new(run, a->is_tuple);
    for (size_t i = 0; i < a->n && run->status == NMLP_OK; i++) nmlp_jinja_list_push(run, list.as.list, a->items[i]);
    for (size_t i = 0; i < b->n && run->status == NMLP_OK; i++) nmlp_jinja_list_push(run, list.as.list, b->items[i]);
    return list;
}

value nmlp_jinja_binary(nmlp_jinja_run *run, nmlp_jinja_op op, value a, value b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**", "~"};
    if (run->status != NMLP_OK) return nmlp_jinja_undefined();
    if (op == NMLP_JINJA_CONCAT) return concatenate(run, a, b);
    if (is_number(a) && is_number(b)) return arithmetic(run, op, a, b);
    if (op == NMLP_JINJA_ADD && a.kind == NMLP_JINJA_STRING && b.kind == NMLP_JINJA_STRING)
        return concatenate(run, a, b);
    if (op == NMLP_JINJA_ADD && a.kind == NMLP_JINJA_LIST && b.kind == NMLP_JINJA_LIST)
        return join_lists(run, a.as.list, b.as.list);
    bool a_repeats = a.kind == NMLP_JINJA_STRING || a.kind == NMLP_JINJA_LIST;
    bool b_repeats = b.kind == NMLP_JINJA_STRING || b.kind == NMLP_JINJA_LIST;
    if (op == NMLP_JINJA_MUL && a_repeats && is_integer(b)) return repeat(run, a, integer_of(b));
    if (op == NMLP_JINJA_MUL && b_repeats && is_integer(a)) return repeat(run, b, integer_of(a));
    return fail_operands(run, names[op], a, b);
}

static bool contains(nmlp_jinja_run *run, value item, value in) {
    if (in.kind == NMLP_JINJA_STRING) {
        if (item.kind != NMLP_JINJA_STRING) {
            fail_operands(run, "in", item, in);
            return false;
        }
        const nmlp_jinja_string *a = item.as.s;
        const nmlp_jinja_string *b = in.as.s;
        for (size_t i = 0; i + a->len <= b->len && nmlp_jinja_step(run, !(i % 64)); i++)
            if (memcmp(b->data + i, a->data, a->len) == 0) return true;
        return false;
    }
    if (in.kind == NMLP_JINJA_DICT) return nmlp_jinja_dict_get(run, in.as.dict, item);
    const nmlp_jinja_list *list = nmlp_jinja_iterate(run, in);
    for (size_t i = 0; list && i < list->n && nmlp_jinja_step(run, 1); i++)
        if (nmlp_jinja_equal(run, list->items[i], item)) return true;
    return false;
}

bool nmlp_jinja_compare(nmlp_jinja_run *run, nmlp_jinja_op op, value a, value b) {
    switch (op) {
    case NMLP_JINJA_EQ: return nmlp_jinja_equal(run, a, b);
    case NMLP_JINJA_NE: return !nmlp_jinja_equal(run, a, b);
    case NMLP_JINJA_LT: return nmlp_jinja_order(run, a, b) < 0;
    case NMLP_JINJA_LE: return nmlp_jinja_order(run, a, b) <= 0;
    case NMLP_JINJA_GT: return nmlp_jinja_order(run, a, b) > 0;
    case NMLP_JINJA_GE: return nmlp_jinja_order(run, a, b) >= 0;
    case NMLP_JINJA_IN: return contains(run, a, b);
    default: return !contains(run, a, b);
    }
}

value nmlp_jinja_unary(nmlp_jinja_run *run, nmlp_jinja_op op, value v) {
    if (op == NMLP_JINJA_NOT) return nmlp_jinja_bool(!nmlp_jinja_is_true(v));
    if (!is_number(v)) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s has no sign", nmlp_jinja_kind_name(v));
    if (op == NMLP_JINJA_POS) return v;
    if (v.kind == NMLP_JINJA_FLOAT) return new_float(-v.as.f);
    return integer_result(run, integer_of(v) == INT64_MIN, integer_of(v) == INT64_MIN ? 0 : -integer_of(v));
}
