/* The files of one directory in another. */
#ifndef NMLP_BASE_DIR_COPY_H
#define NMLP_BASE_DIR_COPY_H

#include <stdbool.h>

#include "base/status.h"

/* Copies every plain file of `from` into `to`, which must be there; directories and the marker of a directory
 * under construction (dir_stage.h) are passed over. With `link` files become links to the same data where the file
 * system can: only for files that nobody changes any more. */
nmlp_status nmlp_dir_copy_files(const char *from, const char *to, bool link, nmlp_err *err);

#endif
