/* Counters of a server in Prometheus' text format; names after vLLM's, with our prefix. */
#ifndef NMLP_SERVER_METRICS_H
#define NMLP_SERVER_METRICS_H

#include "server/worker.h"

enum { NMLP_METRICS_BUCKETS = 10 };

typedef struct nmlp_server_histogram {
    int64_t counts[NMLP_METRICS_BUCKETS + 1]; /* the last: above all bounds */
    double sum;
} nmlp_server_histogram;

typedef struct nmlp_server_metrics {
    int64_t answers[6]; /* by the first digit of their status */
    int64_t prompt_tokens, cached_tokens, generation_tokens;
    nmlp_server_histogram ttft_s, per_token_s;
} nmlp_server_metrics;

void nmlp_server_metrics_count(nmlp_server_metrics *metrics, int status);
/* The figures of a finished choice. */
void nmlp_server_metrics_add(nmlp_server_metrics *metrics, const nmlp_job_event *choice);
void nmlp_server_metrics_print(nmlp_str *out, const nmlp_server_metrics *metrics, const nmlp_worker_state *load,
                               int n_connections, const nmlp_guide_stats *grammar);

#endif
