/* MLPs whose factors belong to slices of the intermediate width, as `compress` makes them for tensor parallelism.
 *
 * Slice s of N holds outputs s*I/N.. of gate and up and the same inputs of down, each factorised by itself:
 * W_s = u_s v_s. The factors of all slices lie one below the other in a layer's u and v: gate and up u [I,r] and v
 * [N*r,H], down u [N*H,r] and v [N*r,I/N]. The MLP is the sum of the MLPs of its slices. */
#ifndef NMLP_MODEL_SLICES_H
#define NMLP_MODEL_SLICES_H

#include "model/model.h"

/* Bytes of `down` below: 0 where down has factors. */
size_t nmlp_layer_slice_copy_bytes(const nmlp_layer *layer);
/* The matrices of one slice of a layer with slices; columns of a dense down go to the memory `down`. */
void nmlp_layer_slice(nmlp_factors mlp[NMLP_MLP_MATRICES], const nmlp_layer *layer, int64_t slice, void *down);

#endif
