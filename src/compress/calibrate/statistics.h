/* The first pass: the dense model over the calibration windows, one layer at a time; each layer's statistics become
 * nested factors in a file and are gone before the next layer begins. */
#ifndef NMLP_COMPRESS_CALIBRATE_STATISTICS_H
#define NMLP_COMPRESS_CALIBRATE_STATISTICS_H

#include "compress/compress.h"
#include "compress/factor/factor_file.h"
#include "compress/calibrate/windows.h"

typedef struct nmlp_statistics {
    const nmlp_engine *engine;
    const nmlp_windows *windows;
    const nmlp_compress_options *options;
    const char *work_dir;
    uint64_t fingerprint;
    nmlp_times *times;
} nmlp_statistics;

/* Opens libraries [L] (zeroed by the caller, closed by the caller whatever the result). */
nmlp_status nmlp_statistics_run(nmlp_statistics *statistics, nmlp_library *libraries, nmlp_err *err);

#endif
