/* Delivering rows of sums from within a tile loop, where the vector units are idle: without calls, and with all that
 * changes from row to row in registers. */
#ifndef NMLP_KERNELS_DELIVERY_BF16_H
#define NMLP_KERNELS_DELIVERY_BF16_H

#include "kernels/gemm.h"
#include "kernels/lanes_bf16.h"

enum { ROWS_AHEAD = 8 };

typedef struct nmlp_carrier {
    const float *sums[2]; /* of the next row; of one product twice */
    char *to[2];
    int64_t rows_left;
    int64_t tile_left; /* rows of the tile of 32 */
    int64_t wait;
} nmlp_carrier;

static inline nmlp_carrier nmlp_carrier_of(const nmlp_beside *beside) {
    const nmlp_delivery *d = &beside->described;
    nmlp_carrier c = {.rows_left = beside->end - beside->row, .wait = beside->wait};
    if (d->outcome == NMLP_BY_CALL) return c;
    int64_t in_tile = beside->row % NMLP_PAD;
    c.tile_left = NMLP_PAD - in_tile;
    for (int i = 0; i < 2; i++) {
        c.sums[i] = (d->sums[i] ? d->sums[i] : d->sums[0]) + beside->row * NMLP_PAD;
        c.to[i] =
            (d->to[i] ? d->to[i] : d->to[0]) + beside->row / NMLP_PAD * d->tile_bytes + in_tile * d->row_bytes;
    }
    return c;
}

static inline void nmlp_carrier_return(const nmlp_carrier *c, nmlp_beside *beside) {
    beside->row = beside->end - c->rows_left;
    beside->wait = c->wait;
}

static inline void carry_line(char *to, const float *sums) { store_bf16_line(to, load(sums), load(sums + LANES)); }

static inline void carry_gated(char *to, const float *gate, const float *up) {
    store_bf16_line(to, gate_for_bf16(load(gate), load(up)), gate_for_bf16(load(gate + LANES), load(up + LANES)));
}

/* Rows lie pages apart, where no hardware fetches ahead. */
static inline void fetch_row(const char *row) {
    __builtin_prefetch(row, 1);
    __builtin_prefetch(row + LANES * sizeof(float), 1);
}

static inline void carry_row(char *to, const float *sums, bool add) {
    float *y = (float *)to;
    store(y, add ? load(y) + load(sums) : load(sums));
    store(y + LANES, add ? load(y + LANES) + load(sums + LANES) : load(sums + LANES));
}

static inline __attribute__((always_inline)) void carry_next(nmlp_carrier *c, const nmlp_delivery *d,
                                                             const nmlp_outcome outcome) {
    switch (outcome) {
        case NMLP_TO_LINES:
            carry_line(c->to[0], c->sums[0]);
            if (d->to[1]) carry_line(c->to[1], c->sums[1]);
            break;
        case NMLP_GATED_LINES: carry_gated(c->to[0], c->sums[0], c->sums[1]); break;
        case NMLP_TO_ROWS: carry_row(c->to[0], c->sums[0], false); break;
        case NMLP_ADDED_ROWS:
            fetch_row(c->to[0] + ROWS_AHEAD * d->row_bytes);
            carry_row(c->to[0], c->sums[0], true);
            break;
        case NMLP_BY_CALL: break;
    }
    bool tile_ends = --c->tile_left == 0;
    int64_t step = d->row_bytes + (tile_ends ? d->tile_bytes - NMLP_PAD * d->row_bytes : 0);
    if (tile_ends) c->tile_left = NMLP_PAD;
    for (int i = 0; i < 2; i++) {
        c->sums[i] += NMLP_PAD;
        c->to[i] += step;
    }
    c->rows_left--;
}

/* One step of the tile loop. */
static inline __attribute__((always_inline)) void nmlp_carry(nmlp_carrier *c, nmlp_beside *beside,
                                                             const nmlp_outcome outcome) {
    if (outcome == NMLP_BY_CALL) {
        nmlp_beside_step(beside);
        return;
    }
    if (c->rows_left <= 0 || c->wait-- > 0) return;
    c->wait = beside->steps_between;
    for (int64_t i = beside->rows_per_turn; i > 0 && c->rows_left > 0; i--)
        carry_next(c, &beside->described, outcome);
}

#endif
