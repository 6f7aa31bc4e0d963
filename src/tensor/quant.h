/* Weights in 8, 6 and 4 bits, W [N,K] row by row.
 *
 *   Q8: int8 [N,K], scales f32 [N]:            w = q * scale of the row
 *   Q4: bytes [N, ceil(K/2)], input 2j in the low half of byte j and 2j+1 in the high half, stored as q + 8 with q from
 *       -8 to 7; scales f16 [N, ceil(K/group)]: w = q * scale of the group, exact in f32. With zero points z int8
 *       [N, ceil(K/group)] from -8 to 7 beside them w = (q - z) * scale, exact in f32 too
 *   FP8: e4m3 [N,K], scales f32 [N]:           w = q * scale of the row
 *   Q6: words of 32 bits [N, ceil(6 K / 32)], least significant bits first: input i in bits 6 i to 6 i + 5 of its row,
 *       stored as q + 32 with q from -32 to 31; scales f32 [N]: w = q * scale of the row. Every code is a Q8 code too:
 *       kernels widen them to that and know no type of their own
 *
 * These are the bytes of "int-quantized", "pack-quantized" and "float-quantized" checkpoints of compressed-tensors. */
#ifndef NMLP_TENSOR_QUANT_H
#define NMLP_TENSOR_QUANT_H

#include "tensor/view.h"

nmlp_view nmlp_quant_view_q8(const int8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_fp8(const uint8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_q6(const uint8_t *data, const float *scales, int64_t rows, int64_t cols);
nmlp_view nmlp_quant_view_q4(const uint8_t *data, const uint16_t *scales, int group, int64_t rows, int64_t cols);

/* Q8, Q6 and FP8: scales are f32, one for each row. */
static inline bool nmlp_quant_scales_rows(nmlp_dtype dtype) {
    return dtype == NMLP_DTYPE_Q8 || dtype == NMLP_DTYPE_Q6 || dtype == NMLP_DTYPE_FP8;
}

/* The ends of the codes of Q8 (as they are made here: even to both sides), Q6 and Q4. */
static inline int nmlp_quant_lowest(nmlp_dtype dtype) {
    return dtype == NMLP_DTYPE_Q4 ? -8 : dtype == NMLP_DTYPE_Q6 ? -32 : -127;
}
static inline int nmlp_quant_highest(nmlp_dtype dtype) {
    return dtype == NMLP_DTYPE_Q4 ? 7 : dtype == NMLP_DTYPE_Q6 ? 31 : 127;
}

/* Codes first..first+n-1 of a row of Q6. */
void nmlp_quant_q6_unpack(int8_t *codes, const void *row, int64_t first, int64_t n);
/* Code `i` into a row of Q6 whose bits for it are 0. */
void nmlp_quant_q6_put(void *row, int64_t i, int code);

/* Row `row` of a matrix of any type, dequantised. */
void nmlp_quant_row_to_f32(float *dst, const nmlp_view *view, int64_t row);

/* Of a matrix's scales; 0 for plain types. */
size_t nmlp_quant_scale_bytes(const nmlp_view *view);

/* Zero points as checkpoints hold them: words [ceil(N/8), groups], row r in bits 4 (r mod 8).. as z + 8, 0 past the
 * last row. `rows` and `groups` are those of the matrix. */
size_t nmlp_quant_zero_words(int64_t rows, int64_t groups);
void nmlp_quant_zeros_pack(uint32_t *words, const int8_t *zeros, int64_t rows, int64_t groups);
void nmlp_quant_zeros_unpack(int8_t *zeros, const void *words, int64_t rows, int64_t groups); /* at any address */
/* Codes, scales and zero points, as a checkpoint holds them. */
size_t nmlp_quant_stored_bytes(const nmlp_view *view);
int64_t nmlp_quant_groups(const nmlp_view *view);
/* Rounds a row of f32 into row `row` of a matrix of any type, whose memory must be writable. */
void nmlp_quant_row_from_f32(const nmlp_view *view, int64_t row, const float *w);

/* Nearest rounding of one row [K]; Q8 to +-127 of the largest value, Q6 with -32 at the largest, Q4 with -8 at the
 * largest of a group, or, where zeros [groups] are given, with the least and the largest at the ends of the codes, FP8
 * with the largest at 240. */
void nmlp_quant_row_q8(int8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_q6(uint8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_fp8(uint8_t *q, float *scale, const float *w, int64_t k);
void nmlp_quant_row_q4(uint8_t *q, uint16_t *scales, int8_t *zeros, int group, const float *w, int64_t k);

#endif
