/* What the files about files and directories share. */
#ifndef NMLP_BASE_FILE_INTERNAL_H
#define NMLP_BASE_FILE_INTERNAL_H

#include "base/status.h"

/* NMLP_E_IO with errno in words: "path: cannot <what>: No space left on device". */
nmlp_status nmlp_file_fail_errno(nmlp_err *err, const char *path, const char *what);
/* A copy of the path without slashes at its end, and with `suffix`. NULL without memory. */
char *nmlp_path_with_suffix(const char *path, const char *suffix, nmlp_err *err);
/* Where a link leads, so that what is written replaces the file and not the link to it. */
char *nmlp_path_final(const char *path, nmlp_err *err);

#endif
