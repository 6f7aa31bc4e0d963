/* Numbers between bounds, digit by digit. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "grammar/json_schema.h"

/* Larger magnitudes are not produced: all below are exact in a double. */
static const int64_t largest = 999999999999999;
enum { DIGITS = 16 };

static void put_class(nmlp_str *out, char first, char last) {
    if (first == last)
        nmlp_str_printf(out, "\"%c\" ", first);
    else
        nmlp_str_printf(out, "[%c-%c] ", first, last);
}

static void put_any(nmlp_str *out, size_t n) {
    if (n > 0) nmlp_str_printf(out, "[0-9]{%zu} ", n);
}

/* As many digits as `bound`, not below (or not above) it. */
static void put_bounded(nmlp_str *out, const char *bound, bool at_least) {
    size_t n = strlen(bound);
    char edge = at_least ? '9' : '0';
    if (n == 0) return;
    nmlp_str_puts(out, "( ");
    nmlp_str_printf(out, "\"%c\" ", bound[0]);
    put_bounded(out, bound + 1, at_least);
    if (bound[0] != edge) {
        nmlp_str_puts(out, "| ");
        put_class(out, at_least ? (char)(bound[0] + 1) : '0', at_least ? '9' : (char)(bound[0] - 1));
        put_any(out, n - 1);
    }
    nmlp_str_puts(out, ") ");
}

/* low and high have the same number of digits. */
static void put_between(nmlp_str *out, const char *low, const char *high) {
    size_t n = strlen(low);
    if (n == 0) return;
    if (low[0] == high[0]) {
        nmlp_str_printf(out, "\"%c\" ", low[0]);
        put_between(out, low + 1, high + 1);
        return;
    }
    nmlp_str_puts(out, "( ");
    nmlp_str_printf(out, "\"%c\" ", low[0]);
    put_bounded(out, low + 1, true);
    if (high[0] - low[0] > 1) {
        nmlp_str_puts(out, "| ");
        put_class(out, (char)(low[0] + 1), (char)(high[0] - 1));
        put_any(out, n - 1);
    }
    nmlp_str_printf(out, "| \"%c\" ", high[0]);
    put_bounded(out, high + 1, false);
    nmlp_str_puts(out, ") ");
}

/* Whole numbers 0 <= low <= high. */
static void put_naturals(nmlp_str *out, int64_t low, int64_t high) {
    char from[DIGITS + 8], to[DIGITS + 8];
    const char *bar = "";
    nmlp_str_puts(out, "( ");
    for (int64_t least = 0, most = 9; least <= high; least = most + 1, most = 10 * most + 9) {
        if (most < low) continue;
        snprintf(from, sizeof from, "%" PRId64, low > least ? low : least);
        snprintf(to, sizeof to, "%" PRId64, high < most ? high : most);
        nmlp_str_puts(out, bar);
        put_between(out, from, to);
        bar = "| ";
    }
    nmlp_str_puts(out, ") ");
}

/* The whole numbers that the bounds leave; false: none. */
static bool whole_bounds(const nmlp_schema_bounds *b, int64_t *low, int64_t *high) {
    double min = ceil(b->min), max = floor(b->max);
    if (b->min_excluded && min == b->min) min++;
    if (b->max_excluded && max == b->max) max--;
    if (!(min <= max) || min > (double)largest || max < -(double)largest) return false;
    *low = min < -(double)largest ? -largest : (int64_t)min;
    *high = max > (double)largest ? largest : (int64_t)max;
    return true;
}

bool nmlp_schema_integer_append(nmlp_str *out, const nmlp_schema_bounds *b) {
    int64_t low, high;
    if (!whole_bounds(b, &low, &high)) return false;
    nmlp_str_puts(out, "( ");
    if (low < 0) {
        nmlp_str_puts(out, "\"-\" ");
        put_naturals(out, high < 0 ? -high : 1, -low);
        if (high >= 0) nmlp_str_puts(out, "| ");
    }
    if (high >= 0) put_naturals(out, low > 0 ? low : 0, high);
    nmlp_str_puts(out, ") ");
    return true;
}

/* Numbers with a fraction between two whole ones, 0 <= low < high, behind a sign. */
static void put_fractions(nmlp_str *out, const char *bar, const char *sign, int64_t low, int64_t high) {
    nmlp_str_printf(out, "%s%s", bar, sign);
    put_naturals(out, low, high - 1);
    nmlp_str_puts(out, "\".\" [0-9]{0,14} [1-9] ");
}

bool nmlp_schema_number_append(nmlp_str *out, const nmlp_schema_bounds *b) {
    int64_t low, high;
    /* A fraction lies strictly between the whole numbers around it: bounds that are whole may be excluded ones. */
    double min = ceil(b->min), max = floor(b->max);
    int64_t from = min<-(double)largest ? -largest : min>(double) largest ? largest : (int64_t)min;
    int64_t to = max > (double)largest ? largest : max < -(double)largest ? -largest : (int64_t)max;
    bool whole = whole_bounds(b, &low, &high), fractions = from < to;
    if (!whole && !fractions) return false;
    nmlp_str_puts(out, "( ");
    if (whole) (void)nmlp_schema_integer_append(out, b);
    if (fractions && to > 0) put_fractions(out, whole ? "| " : "", "", from > 0 ? from : 0, to);
    if (fractions && from < 0) put_fractions(out, whole || to > 0 ? "| " : "", "\"-\" ", to < 0 ? -to : 0, -from);
    nmlp_str_puts(out, ") ");
    return true;
}
