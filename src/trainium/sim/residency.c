#include "trainium/sim/residency.h"

#include "base/ints.h"

static int64_t row_bytes(const nmlp_buffer *b) {
    return b->dims[b->n_dims - 1] * (int64_t)nmlp_nc_dtype_bytes(b->dtype);
}

static int staging_rows(const nmlp_buffer *b) {
    int64_t rows = NMLP_STAGING_BYTES / row_bytes(b);
    return rows < NMLP_STAGING_ROWS_MIN   ? NMLP_STAGING_ROWS_MIN
           : rows > NMLP_STAGING_ROWS_MAX ? NMLP_STAGING_ROWS_MAX
                                          : (int)rows;
}

/* Does anything but a DMA write the buffer? */
static bool computed(const nmlp_program *program, int buffer) {
    for (size_t i = 0; i < program->n_instrs; i++) {
        const nmlp_instr *in = &program->instrs[i];
        if (in->dst.buffer == buffer && in->op != NMLP_OP_ALLOC && in->op != NMLP_OP_DMA_LOAD &&
            in->op != NMLP_OP_DMA_TRANSPOSE)
            return true;
    }
    return false;
}

static int64_t placed_bytes(const nmlp_buffer *b, const nmlp_placement *p) {
    int64_t rows = p->resident * p->copies;
    if (p->resident < p->rows) rows += p->staging;
    return rows * row_bytes(b);
}

int64_t nmlp_placed_sbuf_bytes(const nmlp_program *program, const nmlp_placement *places) {
    int64_t bytes = 0;
    for (size_t i = 0; i < program->n_buffers; i++)
        if (program->buffers[i].space == NMLP_SPACE_SBUF) bytes += placed_bytes(&program->buffers[i], &places[i]);
    return bytes;
}

/* The managed SBUF buffer with the most bytes that still has copies to give (or rows, when `rows`); -1: none. */
static int largest(const nmlp_program *program, const nmlp_placement *places, bool rows) {
    int best = -1;
    int64_t most = 0;
    for (size_t i = 0; i < program->n_buffers; i++) {
        const nmlp_buffer *b = &program->buffers[i];
        if (b->space != NMLP_SPACE_SBUF || !b->managed) continue;
        bool can =
            rows ? places[i].resident == places[i].rows && places[i].rows > places[i].staging : places[i].copies > 1;
        int64_t bytes = placed_bytes(b, &places[i]);
        if (can && bytes > most) most = bytes, best = (int)i;
    }
    return best;
}

/* SBUF that is left over lets spilled rows come earlier and stay longer. */
static void widen_staging(const nmlp_program *program, nmlp_placement *places, int64_t usable) {
    for (size_t i = 0; i < program->n_buffers; i++) {
        int64_t spilled = places[i].rows - places[i].resident, free = usable - nmlp_placed_sbuf_bytes(program, places);
        if (program->buffers[i].space != NMLP_SPACE_SBUF || spilled == 0 || free <= 0) continue;
        int64_t rows = places[i].staging + free / row_bytes(&program->buffers[i]);
        places[i].staging = (int)nmlp_min(nmlp_min(rows, spilled), NMLP_STAGING_ROWS_MAX);
    }
}

nmlp_status nmlp_place_buffers(const nmlp_program *program, const nmlp_machine *machine, nmlp_placement *places,
                               nmlp_err *err) {
    int64_t usable = (int64_t)machine->sbuf_usable_bytes;
    for (size_t i = 0; i < program->n_buffers; i++) {
        const nmlp_buffer *b = &program->buffers[i];
        int64_t rows = nmlp_buffer_free_elems(b) / b->dims[b->n_dims - 1];
        places[i] = (nmlp_placement){.copies = b->copies, .rows = rows, .resident = rows, .staging = staging_rows(b)};
    }
    for (int i; nmlp_placed_sbuf_bytes(program, places) > usable && (i = largest(program, places, false)) >= 0;)
        places[i].copies = 1;
    for (int i; nmlp_placed_sbuf_bytes(program, places) > usable && (i = largest(program, places, true)) >= 0;) {
        int64_t row = row_bytes(&program->buffers[i]);
        int64_t over = nmlp_placed_sbuf_bytes(program, places) - usable + places[i].staging * row;
        int64_t drop = (over + row - 1) / row;
        bool whole = machine->spill_whole > 0 && computed(program, i);
        places[i].resident = drop < places[i].rows && !whole ? places[i].rows - drop : 0;
    }
    widen_staging(program, places, usable);
    int64_t bytes = nmlp_placed_sbuf_bytes(program, places);
    if (bytes <= usable) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_LIMIT, "program %s needs %lld bytes of SBUF per partition, %s has %lld", program->name,
                     (long long)bytes, machine->name, (long long)usable);
}
