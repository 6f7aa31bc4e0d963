/* The matrices of one layer in fewer bits, by the second moments of their inputs. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_LAYER_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_LAYER_H

#include "base/mem.h"
#include "base/pool.h"
#include "base/status.h"
#include "compress/quantize/gptq.h"
#include "compress/quantize/quant_format.h"
#include "model/model.h"

/* The matrices of a layer that can be quantised; both factors of an MLP matrix have its format. */
enum {
    NMLP_QUANT_Q,
    NMLP_QUANT_K,
    NMLP_QUANT_V,
    NMLP_QUANT_O,
    NMLP_QUANT_GATE,
    NMLP_QUANT_UP,
    NMLP_QUANT_DOWN,
    NMLP_QUANT_MATRICES
};

/* "q_proj", ... "down_proj" */
const char *nmlp_quant_matrix_name(int matrix);

/* Every stored matrix of a layer by number (w, u and v of each matrix of the attention, then of each MLP), for those
 * who go through them; shape only where it has no data. */
int64_t nmlp_quant_layer_views(const nmlp_config *config, int64_t layer);
nmlp_view *nmlp_quant_layer_view(nmlp_layer *layer, int64_t i);
/* Which of the NMLP_QUANT_MATRICES view i belongs to. */
int nmlp_quant_view_matrix(int64_t i);
/* The first view that is the same matrix: another than i where i is a v that is shared. */
int64_t nmlp_quant_view_first(const nmlp_layer *layer, int64_t i);
/* Whether view i is stored for a matrix: matrices that share their v are one choice, that of the first. */
bool nmlp_quant_owns(const nmlp_layer *layer, int64_t i, int matrix);
/* A layer whose views can be replaced without touching those of the source. */
nmlp_status nmlp_quant_layer_copy(nmlp_layer *out, nmlp_arena *arena, const nmlp_layer *source,
                                  const nmlp_config *config, nmlp_err *err);

/* What the matrices of a layer see: attention_input [H], attention_mixed [n_heads * D], mlp_input [H], mlp_act [I] of a
 * layer without experts. */
enum { NMLP_QUANT_INPUTS = 4 };
typedef enum nmlp_quant_input {
    NMLP_QUANT_ATTENTION_INPUT,
    NMLP_QUANT_ATTENTION_MIXED,
    NMLP_QUANT_MLP_INPUT,
    NMLP_QUANT_MLP_ACT
} nmlp_quant_input;
int64_t nmlp_quant_input_size(const nmlp_config *config, nmlp_quant_input input);

/* Means over calibration tokens; spent by those who make views of them. */
typedef struct nmlp_quant_moments {
    double *second[NMLP_QUANT_INPUTS]; /* [K,K] x x^T of the inputs x behind quantised layers; NULL: nothing sees it */
    double *drift[NMLP_QUANT_INPUTS];  /* [K,K] (d - x) x^T, d the inputs of the model as it was; NULL: not known */
    int64_t tokens;                    /* of which they are means */
} nmlp_quant_moments;

typedef struct nmlp_quant_maker {
    const nmlp_quant_format *formats; /* [NMLP_QUANT_MATRICES] */
    const nmlp_quant_moments *moments;
    nmlp_arena *arena; /* of the quantised views */
    nmlp_pool *pool;
    bool skips[NMLP_QUANT_INPUTS]; /* matrices that see this input are another process's */
} nmlp_quant_maker;

/* `out`, a copy of the source, gets quantised views: those of the attention, and those of one MLP. A type whose groups
 * do not divide a matrix gives way to Q8. */
nmlp_status nmlp_quant_attention_make(nmlp_layer *out, const nmlp_layer *source, const nmlp_quant_maker *maker,
                                      nmlp_err *err);
nmlp_status nmlp_quant_mlp_make(nmlp_factors out[NMLP_MLP_MATRICES], const nmlp_factors source[NMLP_MLP_MATRICES],
                                bool shared_basis, const nmlp_quant_maker *maker, nmlp_err *err);

/* A view [rows,cols] of that format with memory of its own. */
nmlp_status nmlp_quant_view_new(nmlp_view *view, nmlp_arena *arena, const nmlp_quant_format *format, int64_t rows,
                                int64_t cols, nmlp_err *err);
/* f32 [rows,cols] of a view of any type, to be freed with nmlp_mem_free. */
float *nmlp_quant_widen(const nmlp_view *view, nmlp_pool *pool, nmlp_err *err);

#endif
