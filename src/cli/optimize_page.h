/* The page of an optimization: the frontier, where the chosen model lies on it, and what was compared. */
#ifndef NMLP_CLI_OPTIMIZE_PAGE_H
#define NMLP_CLI_OPTIMIZE_PAGE_H

#include "base/str.h"
#include "service/optimization.h"

/* The whole file; `command` is what made it. */
void nmlp_optimize_page_write(const nmlp_optimization *result, const char *model_dir, const char *command,
                              nmlp_str *out);

#endif
