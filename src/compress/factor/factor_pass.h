/* The first pass: the dense model over the calibration windows, one layer at a time; each layer's statistics become
 * nested factors in a file and are gone before the next layer begins. Several processes run each layer on their windows
 * and sum its statistics together; as many layers as there are processes are then factorised at a time, one by each. */
#ifndef NMLP_COMPRESS_FACTOR_FACTOR_PASS_H
#define NMLP_COMPRESS_FACTOR_FACTOR_PASS_H

#include "compress/compress.h"
#include "compress/factor/factor_file.h"
#include "compress/calibrate/window_share.h"

typedef struct nmlp_factor_pass {
    const nmlp_engine *engine;
    const nmlp_window_share
        *share;               /* of the windows; every process of its group calls this, and writes files of its own */
    const nmlp_block *blocks; /* [n_blocks] */
    int64_t n_blocks;
    const nmlp_compress_options *options;
    const char *work_dir;
    uint64_t fingerprint;
    nmlp_compress_times *times;
} nmlp_factor_pass;

/* Opens factor_files [n_blocks] (zeroed by the caller, closed by the caller whatever the result). */
nmlp_status nmlp_factor_pass_run(nmlp_factor_pass *pass, nmlp_factor_file *factor_files, nmlp_err *err);

#endif
