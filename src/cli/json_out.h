/* The one JSON object of --json, from its opening brace to standard output. */
#ifndef NMLP_CLI_JSON_OUT_H
#define NMLP_CLI_JSON_OUT_H

#include "cli/cli.h"

typedef struct nmlp_json_out {
    nmlp_str text;
    nmlp_json_writer writer;
} nmlp_json_out;

/* The writer to put members with. */
nmlp_json_writer *nmlp_json_out_begin(nmlp_json_out *out);
/* Prints the object and frees it; returns the exit code. */
int nmlp_json_out_end(nmlp_json_out *out, const nmlp_cli *cli);

#endif
