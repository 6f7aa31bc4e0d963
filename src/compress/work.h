/* What an interrupted compression can use again: what its work files depend on, and what was found in the folder. */
#ifndef NMLP_COMPRESS_WORK_H
#define NMLP_COMPRESS_WORK_H

#include "base/progress.h"
#include "base/work_file.h"
#include "compress/calibrate/calib_text.h"
#include "compress/compress.h"

/* Equal only for jobs with the same model (every byte of its weights, and its configuration), text, options, kernel set
 * and program version: what a work file must carry to be used again. */
typedef struct nmlp_compress_fingerprint {
    uint64_t statistics; /* of what the nested factors depend on: any budget can use them */
    uint64_t search;     /* of the ranks: all but the refit */
    uint64_t job;        /* of everything */
} nmlp_compress_fingerprint;

nmlp_status nmlp_compress_fingerprint_of(nmlp_compress_fingerprint *out, const nmlp_engine *engine,
                                         const nmlp_calib_windows *windows, const nmlp_compress_options *options,
                                         nmlp_err *err);

/* How many work files of one kind were in each state. */
typedef struct nmlp_work_tally {
    int64_t n[NMLP_WORK_VALID + 1];
} nmlp_work_tally;

/* Tells the user which files were there and are made again, and why. */
void nmlp_work_tally_note(const nmlp_work_tally *tally, const char *what, const nmlp_progress *progress);

/* Behind it all processes of the group have looked at what is in the work folder, and found the same: a state, or a
 * number of files. Else it is not on a file system that they share. */
nmlp_status nmlp_work_agree(const nmlp_process_group *group, int64_t found, const char *work_dir, nmlp_err *err);

#endif
