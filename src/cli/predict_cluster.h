/* predict --cluster: time of a token where nodes share a model, by split. */
#ifndef NMLP_CLI_PREDICT_CLUSTER_H
#define NMLP_CLI_PREDICT_CLUSTER_H

#include "cli/commands.h"

typedef struct nmlp_predict_cluster {
    const char *spec;  /* nodes=8,latency_us=30,gbit=10,read_gbs=100 */
    const char *model; /* directory or preset; NULL: the six models of the paper and a 70B one */
    double ratio;      /* 0: 0.2, or what a checkpoint has */
    int64_t tile, prompt, generate;
} nmlp_predict_cluster;

/* The exit code. */
int nmlp_predict_cluster_run(const nmlp_cli *cli, const nmlp_predict_cluster *request);

#endif
