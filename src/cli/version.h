/* neuronmlp --version: what this program is and what is built into it. */
#ifndef NMLP_CLI_VERSION_H
#define NMLP_CLI_VERSION_H

#include <stdbool.h>

#include "base/json_write.h"

/* Returns the exit code. */
int nmlp_version_print(bool json);

/* Puts the same into an open object, under the key "build". */
void nmlp_version_put(nmlp_json_writer *w);

#endif
