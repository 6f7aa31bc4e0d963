/* Quantised weights as the decode kernel reads them: tiles of 16 rows by 256 columns, one after the other in memory,
 * each a copy of its own.
 *
 * A tile begins with codes in the order of the mma's registers. Register r, 0 to 3, of step j of 16 columns has for
 * lane 4 g + t the weights of row g (r even) or g + 8 and columns 2 t and 2 t + 1 (r below 2) or 8 later. Codes are
 * above zero: Q4 stores q + 8, Q8 q + 128. A step is one word (Q4) or two (Q8) of every lane: bits 4 r and 16 + 4 r of
 * Q4's are the two columns of register r; of Q8 the first word holds registers 0 and 1, the second 2 and 3, bytes 0 and
 * 2 those of the even one, 1 and 3 of the odd one. Four words of a lane stand together: [words / 4][32 lanes][4].
 * Behind them are the scales: of Q8 f32 [16 rows], of Q4 f16 [32 lanes][4], for lane 4 g + t those of row g and of row
 * g + 8, for both of the groups of 32 columns t and t + 4. Rows and columns that do not exist have scales of zero, or
 * weights of zero. */
#ifndef NMLP_CUDA_DECODE_DECODE_QUANT_H
#define NMLP_CUDA_DECODE_DECODE_QUANT_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/decode/decode_program.h"
#include "tensor/view.h"

/* How a matrix of a decode program is stored; also of nmlp_cuda_decode_operand. */
typedef enum nmlp_cuda_decode_format {
    NMLP_CUDA_DECODE_BF16,
    NMLP_CUDA_DECODE_Q8,
    NMLP_CUDA_DECODE_Q4
} nmlp_cuda_decode_format;

enum {
    NMLP_CUDA_DECODE_STEPS = NMLP_CUDA_DECODE_TILE_COLS / 16,
    NMLP_CUDA_DECODE_Q4_CODES = NMLP_CUDA_DECODE_STEPS * 32 * 4, /* bytes */
    NMLP_CUDA_DECODE_Q8_CODES = 2 * NMLP_CUDA_DECODE_Q4_CODES,
    NMLP_CUDA_DECODE_GROUPS = NMLP_CUDA_DECODE_TILE_COLS / 32,
    NMLP_CUDA_DECODE_Q4_BYTES = NMLP_CUDA_DECODE_Q4_CODES + NMLP_CUDA_DECODE_TILE_ROWS * NMLP_CUDA_DECODE_GROUPS * 2,
    NMLP_CUDA_DECODE_Q8_BYTES = NMLP_CUDA_DECODE_Q8_CODES + NMLP_CUDA_DECODE_TILE_ROWS * 4,
    NMLP_CUDA_DECODE_BF16_BYTES = NMLP_CUDA_DECODE_TILE_ROWS * NMLP_CUDA_DECODE_TILE_COLS * 2
};

#ifdef __cplusplus
#define NMLP_CUDA_HOST_DEVICE __host__ __device__
#else
#define NMLP_CUDA_HOST_DEVICE
#endif

NMLP_CUDA_HOST_DEVICE static inline int nmlp_cuda_decode_tile_bytes(int format) {
    return format == NMLP_CUDA_DECODE_Q8   ? NMLP_CUDA_DECODE_Q8_BYTES
           : format == NMLP_CUDA_DECODE_Q4 ? NMLP_CUDA_DECODE_Q4_BYTES
                                           : NMLP_CUDA_DECODE_BF16_BYTES;
}

#ifdef __cplusplus
extern "C" {
#endif

/* A part of a matrix: its rows begin at `row` of the whole. */
typedef struct nmlp_cuda_decode_part {
    const nmlp_view *view;
    int64_t row;
} nmlp_cuda_decode_part;

/* The tile of rows 16 group.. and columns 256 tile.. of parts that are all of one quantised type. */
void nmlp_cuda_decode_quant_pack(unsigned char *out, const nmlp_cuda_decode_part *parts, int n_parts, int64_t group,
                                 int64_t tile);

#ifdef __cplusplus
}
#endif

#endif
