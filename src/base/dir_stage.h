/* Directories under construction: outputs that appear at once, and folders of work in progress.
 *
 * "<path>.partial" belongs to this program when it holds the marker file (or nothing). Nothing else is ever emptied or
 * removed. The marker is locked while a run uses the directory: a second run is refused, and the lock of a process that
 * died is gone with it. */
#ifndef NMLP_BASE_DIR_STAGE_H
#define NMLP_BASE_DIR_STAGE_H

#include <stdbool.h>

#include "base/status.h"

#define NMLP_DIR_STAGE_MARKER ".neuronmlp-work"

typedef struct nmlp_dir_stage {
    char *path;      /* where the finished directory will stand */
    char *temp_path; /* "<path>.partial"; NULL: not open */
    int lock_fd;     /* the marker, locked */
} nmlp_dir_stage;

/* Creates and locks "<path>.partial". One that exists is kept with `resume` (files cut short by a kill are removed) and
 * emptied otherwise; refused where it is not marked as ours or in use. */
nmlp_status nmlp_dir_stage_open(nmlp_dir_stage *stage, const char *path, bool resume, nmlp_err *err);
/* The same folder, which another process of this job holds: nothing is created, locked or removed. Refused where its
 * marker is not seen. To be closed by nmlp_dir_stage_keep. */
nmlp_status nmlp_dir_stage_visit(nmlp_dir_stage *stage, const char *path, nmlp_err *err);
/* Exchanges the directory with `path`, whose old content is removed: readers see the old directory or the new one, each
 * whole, and after a loss of power as well. On failure the finished directory is kept and named in the hint. The stage
 * is closed whatever the result. */
nmlp_status nmlp_dir_stage_commit(nmlp_dir_stage *stage, nmlp_err *err);
/* Removes the partial directory. Safe after commit and on a zeroed stage. */
void nmlp_dir_stage_abort(nmlp_dir_stage *stage);
/* The same at the end of work that went well, where something that stays is an error. */
nmlp_status nmlp_dir_stage_discard(nmlp_dir_stage *stage, nmlp_err *err);
/* Leaves the partial directory on disk for a later resume and closes the stage. */
void nmlp_dir_stage_keep(nmlp_dir_stage *stage);
/* Whether the partial directory holds anything beside its marker. */
bool nmlp_dir_stage_has_files(const nmlp_dir_stage *stage);

#endif
