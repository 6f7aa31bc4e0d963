/* What a compression depends on, for resuming it. */
#ifndef NMLP_COMPRESS_FINGERPRINT_H
#define NMLP_COMPRESS_FINGERPRINT_H

#include "compress/compress.h"
#include "compress/calibrate/calib_text.h"

/* Equal only for jobs with the same model, text and options: what a work file must carry to be used again. */
typedef struct nmlp_fingerprint {
    uint64_t statistics; /* of what the nested factors depend on: any budget can use them */
    uint64_t search;     /* of the ranks: all but the recovery */
    uint64_t job;        /* of everything */
} nmlp_fingerprint;

nmlp_fingerprint nmlp_job_fingerprint(const nmlp_engine *engine, const nmlp_calib_windows *windows,
                                      const nmlp_compress_options *options);

#endif
