/* Integer arithmetic that the standard library lacks. Sizes and counts are int64_t and not negative. */
#ifndef NMLP_BASE_INTS_H
#define NMLP_BASE_INTS_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t nmlp_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t nmlp_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t nmlp_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* The next multiple of `unit`. */
static inline int64_t nmlp_round_up(int64_t n, int64_t unit) { return nmlp_ceil_div(n, unit) * unit; }
static inline size_t nmlp_round_up_size(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
static inline size_t nmlp_max_size(size_t a, size_t b) { return a > b ? a : b; }

#endif
