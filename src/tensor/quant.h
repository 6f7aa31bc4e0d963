/* Weights in 8 to 4 bits, W [N,K] row by row.
 *
 *   Q8: int8 [N,K], scales f32 [N]:            w = q * scale of the row
 *   Q4: bytes [N, ceil(K/2)], input 2j in the low half of byte j and 2j+1 in the high half, stored as q + 8 with q from
 *       -8 to 7; scales f16 [N, ceil(K/group)]: w = q * scale of the group, exact in f32. With zero points z int8
 *       [N, ceil(K/group)] from -8 to 7 beside them w = (q - z) * scale, exact in f32 too
 *   FP8: e4m3 [N,K], scales f32 [N]:           w = q * scale of the row
 *   Q6: words of 32 bits [N, ceil(6 K / 32)], least significant bits first: input i in bits 6 i to 6 i + 5 of its row,
 *       stored as q + 32 with q from -32 to 31; scales f32 [N]: w = q * scale of the row
 *   Q6M, Q5M, Q4M: words of 32 bits as of Q6, of b = 6, 5, 4 bits a weight, stored as q + 2^(b-1); scales f32 [N];
 *       multipliers m int8 [N, K/16] of groups of 16 inputs: w = q * m * scale of the row, where m of Q4M counts in
 *       steps of 2. So q * m is an integer of 8 bits
 *
 * Of Q6 and the last three, every weight is a code of Q8 times the scale of its row, exactly: kernels widen them to Q8,
 * when a model is loaded or, of Q4M on CPUs, when they read them, and give the results of Q8.
 *
 * These are the bytes of "int-quantized", "pack-quantized" and "float-quantized" checkpoints of compressed-tensors,
 * which has nothing like multipliers. */
#ifndef NMLP_TENSOR_QUANT_H
#define NMLP_TENSOR_QUANT_H

#include "tensor/view.h"

nmlp_view nmlp_quant_view_q8(const int8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_fp8(const uint8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_q6(const uint8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_multiplied(const uint8_t *data, nmlp_dtype dtype, const float *scales,
                                     const int8_t *multipliers, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_q4(const uint8_t *data, const uint16_t *scales, int group, int64_t rows, int64_t cols);

/* All but Q4: scales are f32, one for each row. */
static inline bool nmlp_quant_scales_rows(nmlp_dtype dtype) {
    return nmlp_dtype_is_quantised(dtype) && dtype != NMLP_DTYPE_Q4;
}
/* Q6, Q6M, Q5M, Q4M: can be widened to Q8. */
static inline bool nmlp_quant_widens_to_q8(nmlp_dtype dtype) { return dtype >= NMLP_DTYPE_Q6; }
static inline bool nmlp_quant_has_multipliers(nmlp_dtype dtype) { return dtype >= NMLP_DTYPE_Q6M; }

/* The ends of the codes; those of Q8 as they are made here, even to both sides. */
static inline int nmlp_quant_lowest(nmlp_dtype dtype) {
    return dtype == NMLP_DTYPE_Q8 ? -127 : -(1 << (nmlp_dtype_bits(dtype) - 1));
}
static inline int nmlp_quant_highest(nmlp_dtype dtype) { return (1 << (nmlp_dtype_bits(dtype) - 1)) - 1; }

/* Multipliers: inputs that share one, their ends, and what one step of them is. No code times the largest or the least
 * leaves 8 bits. */
enum { NMLP_QUANT_MULTIPLIER_GROUP = 16 };
static inline int nmlp_quant_multiplier_highest(nmlp_dtype dtype) { return dtype == NMLP_DTYPE_Q6M ? 4 : 8; }
static inline int nmlp_quant_multiplier_lowest(nmlp_dtype dtype) { return 1 - nmlp_quant_multiplier_highest(dtype); }
static inline int nmlp_quant_multiplier_step(nmlp_dtype dtype) { return dtype == NMLP_DTYPE_Q4M ? 2 : 1; }

/* Q6, Q6M, Q5M, Q4M: the codes of Q8 that inputs first..first+n-1 of a row are. */
void nmlp_quant_q8_codes(int8_t *codes, const nmlp_view *view, int64_t row, int64_t first, int64_t n);
/* Code `i` of such a type into a row whose bits for it are 0. */
void nmlp_quant_put_code(void *row, nmlp_dtype dtype, int64_t i, int code);

/* Row `row` of a matrix of any type, dequantised. */
void nmlp_quant_row_to_f32(float *dst, const nmlp_view *view, int64_t row);

/* Of a matrix's scales; 0 for plain types. */
size_t nmlp_quant_scale_bytes(const nmlp_view *view);

int64_t nmlp_quant_groups(const nmlp_view *view);
/* Of zero points or multipliers in memory, one byte each; 0 where there are none. */
size_t nmlp_quant_per_group_bytes(const nmlp_view *view);
/* As checkpoints hold them: words [ceil(N/8), groups], row r in bits 4 (r mod 8).. as z + 8 or m + 7, 0 past the last
 * row. `rows` and `groups` are those of the matrix, `dtype` its type. */
size_t nmlp_quant_per_group_words(int64_t rows, int64_t groups);
void nmlp_quant_per_group_pack(uint32_t *words, const nmlp_view *view);
void nmlp_quant_per_group_unpack(int8_t *values, nmlp_dtype dtype, const void *words, int64_t rows,
                                 int64_t groups); /* words at any address */
/* Of codes, scales, zero points and multipliers, as a checkpoint holds them. */
size_t nmlp_quant_stored_bytes(const nmlp_view *view);
/* Rounds a row of f32 into row `row` of a matrix of any type, whose memory must be writable. */
void nmlp_quant_row_from_f32(const nmlp_view *view, int64_t row, const float *w);

/* Nearest rounding of one row [K]; Q8 to +-127 of the largest value, Q6 with -32 at the largest, Q4 with -8 at the
 * largest of a group, or, where zeros [groups] are given, with the least and the largest at the ends of the codes, FP8
 * with the largest at 240; types with multipliers with the lowest code at the largest of the row, and the multiplier of
 * least squared error for every group. */
void nmlp_quant_row_q8(int8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_q6(uint8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_multiplied(uint8_t *q, nmlp_dtype dtype, float *scale, int8_t *multipliers, const float *w,
                               int64_t k);
void nmlp_quant_row_fp8(uint8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_q4(uint8_t *q, uint16_t *scales, int8_t *zeros, int group, const float *w, int64_t k);

#endif
