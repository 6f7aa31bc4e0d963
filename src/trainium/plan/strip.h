/* The building blocks of our kernels `xuv` and `mlp`.
 *
 * A strip of rows goes through all products of the kernel without leaving the chip. Every activation lies transposed,
 * its features on partitions and the rows of the strip along the free axis, in a buffer [P; feature tiles, row tiles,
 * rows]. That is at once the moving operand of a product whose weights are stationary (result transposed again:
 * `project`) and the stationary operand of a product whose weights move (result in rows, as the output wants it:
 * `project_rows`), so nothing is transposed between products. Sums over the contraction stay in PSUM; where an
 * activation is too large for SBUF the contraction is cut into chunks and only then is a partial sum added in SBUF.
 *
 * Weights come packed (neuron/pack.h) through one ring of buffers: each DMA moves one long run per partition. */
#ifndef NMLP_TRAINIUM_PLAN_STRIP_H
#define NMLP_TRAINIUM_PLAN_STRIP_H

#include "trainium/plan/kernel_table.h"
#include "trainium/neuron/pack.h"
#include "trainium/plan/strip_taper.h"
#include "trainium/plan/tiles.h"

typedef enum nmlp_x_source {
    NMLP_X_GIVEN = 1, /* the caller has xT[H,S] */
    NMLP_X_DMA = 2,   /* x[S,H], transposed by the DMA engines on its way in */
    NMLP_X_PE = 3,    /* x[S,H], transposed tile by tile on the tensor engine */
    NMLP_X_AHEAD = 4  /* the same in two halves, the second one between the products of the first; one strip */
} nmlp_x_source;

/* The weights of the last product move, and the result comes in rows; or they are stationary, which takes the tensor
 * engine less time where rows are few, and it turns the results back. */
typedef enum nmlp_turn {
    NMLP_TURN_NONE = 0,
    NMLP_TURN_ALL = 1,
    NMLP_TURN_BUT_TAIL = 2 /* not the tiles at the end that come alone: turning takes time that nothing hides */
} nmlp_turn;

static inline bool nmlp_x_is_flipped(int64_t x) { return x == NMLP_X_PE || x == NMLP_X_AHEAD; }

enum { NMLP_RESIDUAL_COPIES = 2, NMLP_SCALED_COPIES = 2 };
enum { NMLP_X_ROW_COPIES_MAX = 4 /* DMAs of raw rows in flight: enough to hide their latency behind the transposes */ };

/* What the planner chooses. Counts of tiles unless said. */
typedef struct nmlp_strip_plan {
    int64_t rows;       /* rows of a strip */
    int64_t x;          /* nmlp_x_source */
    int64_t x_chunk;    /* of H held at a time */
    int64_t x_load;     /* of H per DMA of raw rows (NMLP_X_PE) */
    int64_t act_chunk;  /* of I held at a time */
    int64_t columns;    /* elements: moving columns of the last product */
    int64_t turn;       /* nmlp_turn of the last product */
    int64_t ring_bytes; /* aimed-at run per partition of a weight DMA */
    int64_t ring;       /* copies in the weight ring */
    int64_t out_ring;   /* copies in a ring of their own for the last products; 1: they share the ring */
    int64_t out_bytes;  /* aimed-at run of their DMAs, with a ring of their own or a taper; 0: as the others */
    int64_t tail;       /* column tiles at the end of the last product that are loaded and stored one by one */
    int64_t taper;      /* tile rows of the last block of weights, where the last ones come in shrinking blocks and have
                           room of their own; 0: they pass through a ring */
    int64_t out_tiles;  /* column tiles per stored row */
    int64_t out_copies; /* copies of the output rows */
    int64_t x_copies;   /* copies of the x strip */
    int64_t shared;     /* gate and up share their first factor */
} nmlp_strip_plan;

typedef struct nmlp_strip {
    nmlp_program *p;
    const nmlp_kernel_request *rq;
    nmlp_strip_plan plan;
    int64_t parts;                /* P */
    nmlp_axis s;                  /* rows: a tile is what one moving operand takes, a block is a strip */
    int64_t s_rows;               /* rows of a stationary operand */
    int x, y;                     /* tensors */
    int acc, flip, raw, xt;       /* buffers; -1: not used */
    int turned, turn;             /* results of the last product on their way (nmlp_turn) */
    int ones, eps, squares, root; /* of the norm of x (strip_norm.c); -1: not used */
    int gain, gain_tensor;        /* its weights, where no matrix has them; -1: not used */
    int one, stood;               /* for scales of rows (strip_scale.c); -1: not used */
    int scaled;                   /* rows that have their scales, before x is added; -1: not used */
    int64_t flip_tiles;           /* of features that one group of transposes fills */
    int strip;                    /* loop variable over strips */
} nmlp_strip;

/* A weight tensor, or some of its column tiles, and how it is streamed. */
typedef struct nmlp_strip_stream {
    const char *name;   /* of its loops */
    const char *weight; /* of the tensor */
    int tensor;
    nmlp_pack pack;
    bool apart;              /* tiles of the planes differ in height: each plane has a tensor of its own, and the */
    nmlp_pack plane_pack[2]; /* blocks of both come one after the other into one buffer */
    int plane_tensor[2];
    int64_t first, end; /* column tiles */
    int64_t block;      /* column tiles per DMA */
    bool split;         /* the planes of a column tile come one by one: together they would be too long a run */
    bool scaled;        /* results are divided by the root mean square of their row of x (strip_norm.c) */
    bool brings_x;      /* between its products the other half of x comes in (NMLP_X_AHEAD) */
    bool resident;      /* loaded before its product begins; its buffer has a row for every tile of columns and k */
    int64_t origin;     /* column tile with which that buffer begins */
    nmlp_taper taper;   /* blocks in which it comes, in tile rows of the whole tensor, where it is resident */
    bool turned;        /* of the last product: stationary, see nmlp_turn */
    bool late;          /* passes through the ring of the last products */
    int64_t pieces;     /* DMAs per block, which then is one column tile and has the buffer of a resident one */
    int ring;           /* buffer it passes through, or lies in */
    int scale[2];       /* buffers of the scales of its outputs by plane (strip_scale.c); -1: it has none */
    int scale_tensor[2];
} nmlp_strip_stream;

/* An activation on chip: [P; tiles, row tiles, rows]. `features` is the length of the axis it is cut from. */
typedef struct nmlp_strip_operand {
    int buffer;
    int64_t features;
    int64_t part;  /* features of a tile: those of the machine's partitions, or fewer where that leaves less over */
    int64_t first; /* tile index of the first feature in the buffer */
    int64_t tiles; /* held at a time */
    int chunk;     /* loop variable over chunks of `tiles`; -1: all held */
    bool kept;     /* the buffer has room for all chunks and keeps them */
} nmlp_strip_operand;

/* Where rows of y are gathered before they are stored. */
typedef struct nmlp_rows_out {
    int buffer;
    int64_t tiles; /* column tiles of y it holds */
    int residual;  /* rows of x that are added to them; -1: none, or they are in `buffer` from the start */
    bool all_x;    /* all columns of those rows are held, not only its own */
} nmlp_rows_out;

/* The product whose rows are the result: its columns, and at the end some that come and go one tile at a time, since
 * what follows the last byte of the weights is not hidden behind anything. Those are loaded with the last block before
 * them (a part of its own), so that no store comes first. */
typedef struct nmlp_last_product {
    nmlp_strip_stream part[3];
    nmlp_rows_out out[3];
    int n_parts;
} nmlp_last_product;

/* Features per tile of an axis between two products: cut evenly, a rank leaves next to no zeros in packed weights. */
static inline int64_t nmlp_strip_even_tile(int64_t features, int64_t partitions) {
    return features > 0 ? nmlp_ceil_div(features, nmlp_ceil_div(features, partitions)) : partitions;
}

/* Elements from one row tile of x on chip to the next: DMA transposes want aligned destinations. */
static inline int64_t nmlp_strip_x_row(const nmlp_kernel_request *rq, const nmlp_strip_plan *plan, int64_t tile) {
    int64_t unit = NMLP_DMA_TRANSPOSE_ALIGN / (int64_t)nmlp_nc_dtype_bytes(rq->dtype);
    return plan->x == NMLP_X_DMA && rq->machine->generation >= 3 ? nmlp_round_up(tile, unit) : tile;
}

/* Buffers for raw rows of x: one for each DMA of a strip, within reason. */
static inline int64_t nmlp_x_row_copies(const nmlp_strip_plan *plan, int64_t rows, int64_t stationary_rows) {
    int64_t pieces = nmlp_ceil_div(plan->rows < rows ? plan->rows : rows, stationary_rows);
    int64_t loads = rows > plan->rows ? NMLP_X_ROW_COPIES_MAX : pieces * nmlp_ceil_div(plan->x_chunk, plan->x_load);
    return loads < NMLP_X_ROW_COPIES_MAX ? loads : NMLP_X_ROW_COPIES_MAX;
}

/* The blocks of the last product and of the factor before it, where there is one, in a plan with a taper. */
typedef struct nmlp_taper_plan {
    nmlp_taper before, last;
    int64_t held_from; /* column tile from which the factor before has room of its own */
    int64_t rows;      /* tile rows of its blocks as long as it passes through a ring */
    bool few;          /* else there are too many blocks for such a plan */
} nmlp_taper_plan;
/* Of the tensor engine, to turn the result of a column tile. */
double nmlp_turn_cycles(const nmlp_kernel_request *rq, int64_t columns);
nmlp_taper_plan nmlp_taper_plan_of(const nmlp_kernel_request *rq, const nmlp_strip_plan *plan, const nmlp_pack *before,
                                   const nmlp_pack *last);

/* Elements of the longest DMA of a stream. */
static inline int64_t nmlp_strip_stream_run(const nmlp_strip_stream *w) {
    int64_t first = nmlp_pack_plane_run(&w->pack, 0), second = nmlp_pack_plane_run(&w->pack, 1);
    return w->split ? (first > second ? first : second) : w->block * nmlp_pack_tile_run(&w->pack);
}

/* Column tiles of `run` elements a DMA moves that aims at `aim` bytes, of `tiles`: no more elements than one
 * instruction may touch. */
static inline int64_t nmlp_strip_block(const nmlp_kernel_request *rq, int64_t run, int64_t aim, int64_t tiles) {
    int64_t bytes = run * (int64_t)nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(rq)),
            most = (int64_t)rq->machine->sbuf_free_max / run;
    return nmlp_min(nmlp_max(nmlp_min(aim / bytes, most), 1), tiles);
}

/* Blocks must not straddle what is held at a time: as many of equal length as it takes, or, where the last hold is
 * shorter, the largest divisor that is not above the block. */
static inline void nmlp_strip_stream_fit(nmlp_strip_stream *w, int64_t held) {
    if (w->block > held) w->block = held;
    if ((w->end - w->first) % held == 0) w->block = nmlp_ceil_div(held, nmlp_ceil_div(held, w->block));
    while ((w->end - w->first) % held != 0 && held % w->block != 0) w->block--;
}

/* Starts the program: parameters, row axis, the input tensor, input buffers, accumulators. */
nmlp_status nmlp_strip_begin(nmlp_strip *b, const char *name, const nmlp_kernel_request *rq,
                             const nmlp_strip_plan *plan, nmlp_err *err);
/* Declares a packed weight `pack`: k, n, chunk_tiles of k contracted at a time, columns of a tile, planes. `late`: one
 * of the last products. */
nmlp_strip_stream nmlp_strip_weight(nmlp_strip *b, const char *name, nmlp_pack pack, bool late);
/* The same for a pair whose planes have tiles of different height: `names` of their tensors. */
nmlp_strip_stream nmlp_strip_weights_apart(nmlp_strip *b, const char *name, const char *const names[2], nmlp_pack pair);
/* The ring that all given streams use; the late ones may have their own, so that their small blocks queue up behind
 * the large ones and little is left to do after the last byte has come. */
void nmlp_strip_ring(nmlp_strip *b, nmlp_strip_stream *streams, int n_streams);
/* With a taper: room for the weights of the last product and, where there is one, for the end of the factor before it.
 * Before nmlp_strip_ring. `u` keeps what passes through a ring, `u_held` (a copy of it) gets the rest. */
void nmlp_strip_hold(nmlp_strip *b, nmlp_strip_stream *u, nmlp_strip_stream *u_held, nmlp_strip_stream *last);
/* Loads what is held of a stream. */
void nmlp_strip_load_held(nmlp_strip *b, const nmlp_strip_stream *w);
/* Declares y, and the buffers of the product of `w` that computes it; `whole`: all columns at once, for chunked sums.
 */
nmlp_last_product nmlp_strip_last(nmlp_strip *b, const nmlp_strip_stream *w, bool whole);
int nmlp_strip_activation(nmlp_strip *b, const char *name, int64_t tiles, int copies);

/* Brings chunk `h.chunk` of the strip of x on chip. */
void nmlp_strip_load_x(nmlp_strip *b, nmlp_strip_operand h);
/* Constants of the norm, once for all strips; then for each strip, all of it held, one over the root mean square of its
 * rows. With `apply` x is multiplied by it, else results of streams that are `scaled`. Both do nothing where the
 * request has no norm. */
void nmlp_strip_fill_norm(nmlp_strip *b);
/* Weights of the norm, which codes of FP8 cannot hold: once for all strips. */
void nmlp_strip_load_gain(nmlp_strip *b);
void nmlp_strip_normalise(nmlp_strip *b, bool apply);
/* One over the root of row tile `st`, on `parts` partitions. */
nmlp_buf_ref nmlp_strip_root(const nmlp_strip *b, int st, nmlp_size parts, nmlp_size rows);
/* SBUF bytes per partition that the norm takes: rows of a row tile, and row tiles of a strip. */
int64_t nmlp_strip_norm_bytes(const nmlp_kernel_request *rq, int64_t tile, int64_t row_tiles);
void nmlp_strip_declare_norm(nmlp_strip *b);
/* Scales of FP8 weights. Before the strips: tensors and buffers of a stream, `rows` where its result is in rows; then
 * their loads. Before the product whose result is in rows: on all partitions that have rows. All do nothing for other
 * weights. */
void nmlp_strip_declare_scales(nmlp_strip *b, nmlp_strip_stream *w, bool rows);
void nmlp_strip_load_scales(nmlp_strip *b, const nmlp_strip_stream *w);
void nmlp_strip_spread_scales(nmlp_strip *b, const nmlp_strip_stream *w);
/* Behind their loads: those of the last product on partitions, where its results are turned. */
void nmlp_strip_stand_scales(nmlp_strip *b, const nmlp_strip_stream *w);
nmlp_buf_ref nmlp_strip_stood_scale(const nmlp_strip *b, nmlp_affine tile, nmlp_size parts);
/* Of column tile `tile` of a plane: a number for each of `parts` partitions. */
nmlp_buf_ref nmlp_strip_scale(const nmlp_strip *b, const nmlp_strip_stream *w, int plane, nmlp_affine tile,
                              nmlp_size parts);
/* Of `columns` outputs from `column` on, the same on each of `rows` partitions. */
nmlp_buf_ref nmlp_strip_row_scale(const nmlp_strip *b, const nmlp_strip_stream *w, nmlp_affine column,
                                  nmlp_size columns, nmlp_size rows);
/* SBUF bytes per partition that they take for outputs of `n` in tiles of `columns`. */
int64_t nmlp_strip_scale_bytes(const nmlp_kernel_request *rq, int64_t n, int64_t columns, int64_t planes, bool rows);
/* Step number `step` of `steps` between the products of chunk 0 (h.chunk, h.tiles): some rows of chunk 1. */
void nmlp_strip_load_ahead(nmlp_strip *b, nmlp_strip_operand h, nmlp_affine step, int64_t steps);
/* out = w^T in for each plane of w: one tile of out at a time; the first chunk of `in` writes, later ones add. */
void nmlp_strip_project(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand in,
                        const nmlp_strip_operand *out);
/* out = silu(gate^T a) * (up^T c), the planes of w; fills chunk out.chunk of the features of out. */
void nmlp_strip_gate(nmlp_strip *b, const nmlp_strip_stream *w, nmlp_strip_operand a, nmlp_strip_operand c,
                     nmlp_strip_operand out);
/* y rows = in^T w; stores when the last chunk is in. Call nmlp_strip_store after the chunk loop where `in` is chunked.
 */
void nmlp_strip_project_rows(nmlp_strip *b, const nmlp_last_product *last, nmlp_strip_operand in);
void nmlp_strip_store(nmlp_strip *b, const nmlp_last_product *last);
/* Where sums over chunks start from x: before the chunk loop. */
void nmlp_strip_load_residual(nmlp_strip *b, const nmlp_last_product *last);

#endif
