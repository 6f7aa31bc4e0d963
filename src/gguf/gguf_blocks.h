/* Tensor types of GGUF files: rows of blocks, each with scales of its own. Layouts are little-endian; d and m are f16.
 *
 *   Q8_0  32: d, int8[32]                                        w = d q
 *   Q4_0  32: d, 16 bytes (0..15 in low halves, 16.. in high)    w = d (q - 8)
 *   Q4_1  32: d, m, 16 bytes as Q4_0                             w = d q + m
 *   Q5_0  32: d, 32 fifth bits, 16 bytes                         w = d (q - 16)
 *   Q5_1  32: d, m, 32 fifth bits, 16 bytes                      w = d q + m
 *   Q4_K 256: d, m, 12 bytes of 8 scales and 8 minima of 6 bits, 128 bytes
 *                                                                w = d scale q - m minimum, by 32
 *   Q5_K 256: as Q4_K, with 32 bytes of fifth bits before the 128
 *   Q6_K 256: 128 bytes of low bits, 64 of high ones, int8[16] scales, d
 *                                                                w = d scale (q - 32), by 16 */
#ifndef NMLP_GGUF_GGUF_BLOCKS_H
#define NMLP_GGUF_GGUF_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* By the numbers of the file. */
typedef enum nmlp_gguf_type {
    NMLP_GGUF_TYPE_F32 = 0,
    NMLP_GGUF_TYPE_F16 = 1,
    NMLP_GGUF_TYPE_Q4_0 = 2,
    NMLP_GGUF_TYPE_Q4_1 = 3,
    NMLP_GGUF_TYPE_Q5_0 = 6,
    NMLP_GGUF_TYPE_Q5_1 = 7,
    NMLP_GGUF_TYPE_Q8_0 = 8,
    NMLP_GGUF_TYPE_Q4_K = 12,
    NMLP_GGUF_TYPE_Q5_K = 13,
    NMLP_GGUF_TYPE_Q6_K = 14,
    NMLP_GGUF_TYPE_BF16 = 30
} nmlp_gguf_type;

typedef struct nmlp_gguf_layout {
    const char *name;
    int64_t block; /* weights */
    size_t bytes;  /* of a block */
} nmlp_gguf_layout;

/* NULL for a type that is not read. */
const nmlp_gguf_layout *nmlp_gguf_layout_of(uint32_t type);

/* k weights, a multiple of the type's block, at any address. */
void nmlp_gguf_row_to_f32(float *dst, const unsigned char *row, nmlp_gguf_type type, int64_t k);
/* To F32, BF16, Q8_0 or Q4_0, rounded to nearest. False: to codes of a value that is not finite, or whose block's scale
 * would not be (f16). */
bool nmlp_gguf_row_from_f32(unsigned char *row, nmlp_gguf_type type, const float *w, int64_t k);

/* A row of Q4_0 as Q4 in groups of 32 (tensor/quant.h): the same weights. */
void nmlp_gguf_row_to_q4(uint8_t *codes, uint16_t *scales, const unsigned char *row, int64_t k);
/* And back. */
void nmlp_gguf_row_from_q4(unsigned char *row, const uint8_t *codes, const uint16_t *scales, int64_t k);

#endif
