/* Quantised matrices in a work file: of one layer, or of the head. Found again by an interrupted run. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_FILE_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_FILE_H

#include "base/work_file.h"
#include "compress/quantize/quant_layer.h"

/* Writes those of the n views that are quantised; a view with the data of an earlier one is not written again. */
nmlp_status nmlp_quant_file_write(const char *path, uint64_t fingerprint, nmlp_view *const views[], int64_t n,
                                  nmlp_err *err);

/* Replaces those of the n views (given as the model has them) that the file holds by what is in it. Where *state is not
 * NMLP_WORK_VALID nothing is open and views are as before. The views point into `map`. */
nmlp_status nmlp_quant_file_open(nmlp_file_map *map, const char *path, uint64_t fingerprint, nmlp_view *const views[],
                                 int64_t n, nmlp_work_state *state, nmlp_err *err);

/* Formats [n] of matrices and of the head, as chosen for a budget. Where *state is not NMLP_WORK_VALID they are as
 * before. */
nmlp_status nmlp_quant_formats_write(const char *path, uint64_t fingerprint, const nmlp_quant_format *formats,
                                     int64_t n, const nmlp_quant_format *head, nmlp_err *err);
nmlp_status nmlp_quant_formats_read(const char *path, uint64_t fingerprint, nmlp_quant_format *formats, int64_t n,
                                    nmlp_quant_format *head, nmlp_work_state *state, nmlp_err *err);

#endif
