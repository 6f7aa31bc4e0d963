/* A checkpoint made within a budget: what was chosen, and what the other answers lose; for people and as JSON. */
#ifndef NMLP_CLI_BUDGET_TABLE_H
#define NMLP_CLI_BUDGET_TABLE_H

#include "cli/cli.h"
#include "service/mix_budget.h"

typedef struct nmlp_budget_summary {
    const nmlp_mix_budget *budget;
    nmlp_mix_limit limit;
    const char *output;
    double seconds;
    int64_t peak_rss_bytes;
} nmlp_budget_summary;

void nmlp_budget_print_table(const nmlp_budget_summary *summary);
int nmlp_budget_print_json(const nmlp_cli *cli, const nmlp_budget_summary *summary);

/* A rank (or dense) and a format for every matrix of a mix, one layer a line; as JSON members "layers" and "head". */
void nmlp_mix_print(const nmlp_mix *mix);
void nmlp_mix_put(nmlp_json_writer *writer, const nmlp_mix *mix);

#endif
