/* Quantised weights as the decode kernel reads them: tiles of 16 rows by 256 columns, one after the other in memory,
 * each a copy of its own.
 *
 * A tile begins with codes in the order of the mma's registers. Step j of 16 columns is one word (Q4) or two (Q8) of
 * every lane, eight codes of four bits: bits 4 r and 16 + 4 r are the two columns of register r, 0 to 3, rows g and
 * g + 8, columns 2 t and 8 + 2 t of the step, for lane 4 g + t. Q4 stores q + 8; of Q8 the first word holds the low
 * four bits of q, the second (q >> 4) + 8. Four words of a lane stand together: [words / 4][32 lanes][4]. Behind them
 * are the scales: of Q4 f16 [16 rows][8 groups of 32 columns], of Q8 f32 [16 rows]. Rows and columns that do not exist
 * have scales of zero, or codes of zero. */
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
