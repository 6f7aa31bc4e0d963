/* Shared by the files that print what stands around the kernel's body. */
#ifndef NMLP_TRAINIUM_EMIT_FRAME_H
#define NMLP_TRAINIUM_EMIT_FRAME_H

#include <stdio.h>

#include "trainium/emit/source.h"
#include "trainium/emit/weights.h"
#include "trainium/neuron/check.h"

/* "y = x w" */
void nmlp_frame_formula(const nmlp_source *src, nmlp_str *out);
/* Imports; constants that `text` mentions; def, docstring and HBM tensors; return. */
void nmlp_frame_head(nmlp_source *src);
void nmlp_frame_constants(nmlp_source *src, const char *text);
void nmlp_frame_signature(nmlp_source *src);
void nmlp_frame_return(nmlp_source *src);
/* pack(), inputs(), arguments(), reference(), main(). */
void nmlp_frame_main(nmlp_source *src);
/* The function pack() on NumPy arrays or, with `torch`, on tensors. */
void nmlp_frame_pack(nmlp_source *src, bool torch);
/* Is any weight packed? */
bool nmlp_frame_packs(const nmlp_source *src);
/* "pack([u], 4, 128)" or "u" for the tensor; each matrix is written as prefix, name, suffix. */
void nmlp_frame_argument(const nmlp_source *src, int tensor, const char *prefix, const char *suffix, nmlp_str *out);

#endif
