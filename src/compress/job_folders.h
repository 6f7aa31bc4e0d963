/* The two folders of a job that can be resumed: its output, held from the beginning so that one that cannot be written
 * is found before the work, and its work folder, whose files outlive every failure. */
#ifndef NMLP_COMPRESS_JOB_FOLDERS_H
#define NMLP_COMPRESS_JOB_FOLDERS_H

#include "base/dir_stage.h"
#include "base/process_group.h"

typedef struct nmlp_job_folders {
    const nmlp_process_group *group; /* borrowed; the first process owns both, the others visit `work` */
    nmlp_dir_stage output, work;
} nmlp_job_folders;

/* work_dir NULL: "<out_dir>.work". out_dir NULL: there is no output. Another process of the group may fail first. */
nmlp_status nmlp_job_folders_open(nmlp_job_folders *folders, const char *out_dir, const char *work_dir, bool resume,
                                  nmlp_err *err);
/* After a failure (`st`) files of the work folder stay, with a hint how to go on; after success with `keep_work`. */
nmlp_status nmlp_job_folders_close(nmlp_job_folders *folders, bool keep_work, nmlp_status st, nmlp_err *err);

#endif
