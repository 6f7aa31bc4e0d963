/* Shared by the files that print what stands around the kernel's body. */
#ifndef NMLP_TRAINIUM_EMIT_FRAME_H
#define NMLP_TRAINIUM_EMIT_FRAME_H

#include <stdio.h>

#include "trainium/emit/source.h"
#include "trainium/emit/weights.h"
#include "trainium/neuron/check.h"

/* "y = x w" */
void nmlp_emit_frame_formula(const nmlp_emit_source *src, nmlp_str *out);
/* Imports; constants that `text` mentions; def, docstring and HBM tensors; return. */
void nmlp_emit_frame_head(nmlp_emit_source *src);
void nmlp_emit_frame_constants(nmlp_emit_source *src, const char *text);
void nmlp_emit_frame_signature(nmlp_emit_source *src);
void nmlp_emit_frame_return(nmlp_emit_source *src);
/* pack(), inputs(), arguments(), reference(), main(). */
void nmlp_emit_frame_main(nmlp_emit_source *src);
/* The function pack() on NumPy arrays or, with `torch`, on tensors. */
void nmlp_emit_frame_pack(nmlp_emit_source *src, bool torch);
/* Is any weight packed? */
bool nmlp_emit_frame_packs(const nmlp_emit_source *src);
/* "pack([u], 4, 128)" or "u" for the tensor; each matrix is written as prefix, name, suffix. */
void nmlp_emit_frame_argument(const nmlp_emit_source *src, int tensor, const char *prefix, const char *suffix,
                              nmlp_str *out);

#endif
