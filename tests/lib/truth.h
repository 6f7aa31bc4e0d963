/* Float64 truths of the kernels, each value with a bound on how far a correct f32 result may be from it.
 *
 * The bound is the standard one for a sum of n products in any order: |error| <= g * sum |a b|, g = (n+2) u/(1 -
 * (n+2)u), u = 2^-24, plus what the operands' own errors and their rounding to bf16 (u = 2^-8) contribute. Bounds
 * travel through chains together with the values, so no tolerance is chosen by hand. */
#ifndef NMLP_TESTS_TRUTH_H
#define NMLP_TESTS_TRUTH_H

#include "kernels/kernels.h"

typedef struct nmlp_truth {
    int64_t rows;
    int64_t cols;
    double *value; /* [rows,cols] */
    double *bound; /* [rows,cols] */
} nmlp_truth;

void nmlp_truth_free(nmlp_truth *truth);
nmlp_truth nmlp_truth_of(const float *x, int64_t rows, int64_t cols); /* exact */

/* x W^T + bias; with `bf16`, x is rounded to bf16 on the way in, and the weight where it is not bf16 already.
 * With a quantised weight x may be rounded to int16 in groups of 32 inputs. */
nmlp_truth nmlp_truth_matmul(const nmlp_truth *x, const nmlp_view *w, const float *bias, bool bf16);
nmlp_truth nmlp_truth_project(const nmlp_truth *x, const nmlp_factors *f, bool bf16);
nmlp_truth nmlp_truth_gate(const nmlp_truth *gate, const nmlp_truth *up, nmlp_activation activation);
nmlp_truth nmlp_truth_mlp(const nmlp_truth *x, const nmlp_mlp_desc *desc, bool bf16);
/* Of k and v [positions, n_kv_heads*D] as they were stored; what of them and of queries and probabilities is rounded to
 * bf16 is the kernels' and the number of rows' to say. */
nmlp_truth nmlp_truth_attention(const nmlp_attention *args, const float *k, const float *v);

/* Fails naming `what` and the worst element when a value is further off than its bound. */
void nmlp_assert_within(const float *got, const nmlp_truth *truth, const char *what);

/* ---- random operands ---- */

/* A random weight [n,k] of that type, scaled so that outputs stay near 1; nmlp_test_weight_free frees it. Q4 in groups
 * of 32. */
nmlp_view nmlp_test_weight(int64_t n, int64_t k, nmlp_dtype dtype, uint64_t seed);
/* The same rounded to Q4 in groups, or with group 0 to Q8. */
nmlp_view nmlp_test_quantised(int64_t n, int64_t k, int group, uint64_t seed);
/* Q4 with zero points that differ from group to group. */
nmlp_view nmlp_test_with_zeros(int64_t n, int64_t k, int group, uint64_t seed);
float *nmlp_test_floats(int64_t n, uint64_t seed);
void nmlp_test_weight_free(nmlp_view *view);

/* ---- the kernel sets ---- */

enum { NMLP_TEST_SETS = 6 };
/* Set i of all there are, or NULL (said once on stderr) where this CPU lacks it. */
const nmlp_kernels *nmlp_test_set(int i);
nmlp_pool *nmlp_test_pool(int n_threads);

#endif
