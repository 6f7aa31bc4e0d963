/* The result of a compression, for people and as JSON. */
#ifndef NMLP_CLI_COMPRESS_TABLE_H
#define NMLP_CLI_COMPRESS_TABLE_H

#include "cli/cli.h"
#include "compress/compress.h"
#include "model/model.h"

typedef struct nmlp_compress_summary {
    const nmlp_compress_report *report;
    const nmlp_config *config;
    const char *output;
    double seconds;
    int64_t peak_rss_bytes;
    const char *blas_core;
} nmlp_compress_summary;

void nmlp_compress_print_table(const nmlp_compress_summary *summary);
int nmlp_compress_print_json(const nmlp_cli *cli, const nmlp_compress_summary *summary);

#endif
