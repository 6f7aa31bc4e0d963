#include "cuda/decode/decode_quant.h"

#include <string.h>

#include "tensor/quant.h"

enum { ROWS = NMLP_CUDA_DECODE_TILE_ROWS, COLS = NMLP_CUDA_DECODE_TILE_COLS, WORDS_TOGETHER = 4, LANES = 32 };

/* Which part a row of the whole belongs to; NULL: none. */
static const nmlp_cuda_decode_part *part_of(const nmlp_cuda_decode_part *parts, int n, int64_t row) {
    for (int i = 0; i < n; i++)
        if (row >= parts[i].row && row < parts[i].row + parts[i].view->shape[0]) return &parts[i];
    return NULL;
}

/* Codes of the tile's columns of a row; zeros past its end. */
static void read_codes(int8_t codes[COLS], const nmlp_view *view, int64_t row, int64_t first_col) {
    const uint8_t *bytes = nmlp_view_row(view, row);
    int64_t n = view->shape[1] - first_col < COLS ? view->shape[1] - first_col : COLS;
    if (nmlp_quant_widens_to_q8(view->dtype)) {
        nmlp_quant_q8_codes(codes, view, row, first_col, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t col = first_col + i;
        codes[i] = view->dtype == NMLP_DTYPE_Q8 ? (int8_t)bytes[col]
                                                : (int8_t)((bytes[col / 2] >> (col % 2 ? 4 : 0) & 15) - 8);
    }
}

static void put_scales(unsigned char *out, const nmlp_view *view, int64_t row, int tile_row, int64_t first_col) {
    if (view->dtype != NMLP_DTYPE_Q4) {
        memcpy(out + NMLP_CUDA_DECODE_Q8_CODES + 4 * tile_row, (const float *)view->scales + row, sizeof(float));
        return;
    }
    int64_t groups = (view->shape[1] + view->group - 1) / view->group;
    const uint16_t *scales = (const uint16_t *)view->scales + row * groups;
    for (int g = 0; g < NMLP_CUDA_DECODE_GROUPS; g++) {
        int64_t col = first_col + 32 * g;
        if (col >= view->shape[1]) break;
        int lane = tile_row % 8 * 4 + g % 4;
        memcpy(out + NMLP_CUDA_DECODE_Q4_CODES + (size_t)(lane * 4 + tile_row / 8 * 2 + g / 4) * 2,
               scales + col / view->group, sizeof *scales);
    }
}

/* The two columns of a register: lower, and 16 bits up. */
static uint32_t make_pair(int8_t codes[ROWS][COLS], int step, int lane, int reg, int offset) {
    const int8_t *at = &codes[lane / 4 + reg % 2 * 8][16 * step + lane % 4 * 2 + reg / 2 * 8];
    return (uint32_t)(at[0] + offset) | (uint32_t)(at[1] + offset) << 16;
}

/* All registers of a step. */
static uint32_t make_q4_word(int8_t codes[ROWS][COLS], int step, int lane) {
    uint32_t word = 0;
    for (int reg = 0; reg < 4; reg++) word |= make_pair(codes, step, lane, reg, 8) << (4 * reg);
    return word;
}

/* Half of them. */
static uint32_t make_q8_word(int8_t codes[ROWS][COLS], int step, int lane, int half) {
    return make_pair(codes, step, lane, 2 * half, 128) | make_pair(codes, step, lane, 2 * half + 1, 128) << 8;
}

void nmlp_cuda_decode_quant_pack(unsigned char *out, const nmlp_cuda_decode_part *parts, int n_parts, int64_t group,
                                 int64_t tile) {
    bool q8 = parts[0].view->dtype != NMLP_DTYPE_Q4; /* or widened to such codes */
    int8_t codes[ROWS][COLS] = {{0}};
    memset(out, 0, q8 ? NMLP_CUDA_DECODE_Q8_BYTES : NMLP_CUDA_DECODE_Q4_BYTES);
    for (int row = 0; row < ROWS; row++) {
        const nmlp_cuda_decode_part *part = part_of(parts, n_parts, group * ROWS + row);
        if (!part) continue;
        int64_t of_part = group * ROWS + row - part->row;
        put_scales(out, part->view, of_part, row, tile * COLS);
        read_codes(codes[row], part->view, of_part, tile * COLS);
    }
    for (int number = 0; number < NMLP_CUDA_DECODE_STEPS * (q8 ? 2 : 1); number++) {
        int step = q8 ? number / 2 : number;
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t word = q8 ? make_q8_word(codes, step, lane, number % 2) : make_q4_word(codes, step, lane);
            size_t at = (size_t)((number / WORDS_TOGETHER * LANES + lane) * WORDS_TOGETHER + number % WORDS_TOGETHER);
            memcpy(out + at * sizeof word, &word, sizeof word);
        }
    }
}
