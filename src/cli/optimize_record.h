/* What an optimization found, as JSON: in the answer of the command, and in the file optimize.json beside the weights,
 * from which a report draws the frontier again. */
#ifndef NMLP_CLI_OPTIMIZE_RECORD_H
#define NMLP_CLI_OPTIMIZE_RECORD_H

#include "base/json_write.h"
#include "service/optimization.h"

/* Members of an object: target, loss allowed, answer, points, frontier, verification. */
void nmlp_optimize_record_put(nmlp_json_writer *writer, const nmlp_optimization *result);

/* The whole file; `command` made it. */
nmlp_status nmlp_optimize_record_write(const char *dir, const nmlp_optimization *result, const char *command,
                                       nmlp_err *err);

typedef struct nmlp_optimize_record {
    nmlp_json_doc doc;        /* what words of `result` point into */
    nmlp_optimization result; /* without config and mix */
    const char *command;
} nmlp_optimize_record;

bool nmlp_optimize_record_is_there(const char *dir);
/* Release with nmlp_optimize_record_fini whatever the result. */
nmlp_status nmlp_optimize_record_load(nmlp_optimize_record *record, const char *dir, nmlp_err *err);
void nmlp_optimize_record_fini(nmlp_optimize_record *record);

#endif
