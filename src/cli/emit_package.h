/* emit --model: a checkpoint as a folder for a Trainium host. */
#ifndef NMLP_CLI_EMIT_PACKAGE_H
#define NMLP_CLI_EMIT_PACKAGE_H

#include "cli/cli.h"

typedef struct nmlp_emit_package_args {
    const char *model, *sdk, *target, *dtype, *dialect, *buckets, *cache, *output, *fuse;
    int64_t tp, lnc;
} nmlp_emit_package_args;

/* Writes the package and reports; returns the exit code. */
int nmlp_cli_emit_package(const nmlp_cli *cli, const nmlp_emit_package_args *args);

#endif
