#include "server/metrics.h"

static const double bounds_s[NMLP_METRICS_BUCKETS] = {0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5, 30};

void nmlp_server_metrics_count(nmlp_server_metrics *m, int status) {
    if (status >= 100 && status < 600) m->answers[status / 100]++;
}

static void observe(nmlp_server_histogram *h, double seconds) {
    int at = 0;
    while (at < NMLP_METRICS_BUCKETS && seconds > bounds_s[at]) at++;
    h->counts[at]++;
    h->sum += seconds;
}

void nmlp_server_metrics_add(nmlp_server_metrics *m, const nmlp_job_event *choice) {
    m->prompt_tokens += choice->n_prompt;
    m->cached_tokens += choice->n_cached;
    m->generation_tokens += choice->n_generated;
    if (choice->n_generated > 0) observe(&m->ttft_s, 1e-3 * choice->ttft_ms);
    if (choice->n_generated > 1) observe(&m->per_token_s, 1e-3 * choice->decode_ms / (double)(choice->n_generated - 1));
}

static void print_one(nmlp_str *out, const char *name, const char *type, const char *help, int64_t value) {
    nmlp_str_printf(out, "# HELP neuronmlp_%s %s\n# TYPE neuronmlp_%s %s\nneuronmlp_%s %lld\n", name, help, name, type,
                    name, (long long)value);
}

static void print_histogram(nmlp_str *out, const char *name, const char *help, const nmlp_server_histogram *h) {
    int64_t total = 0;
    nmlp_str_printf(out, "# HELP neuronmlp_%s %s\n# TYPE neuronmlp_%s histogram\n", name, help, name);
    for (int i = 0; i < NMLP_METRICS_BUCKETS; i++) {
        total += h->counts[i];
        nmlp_str_printf(out, "neuronmlp_%s_bucket{le=\"%g\"} %lld\n", name, bounds_s[i], (long long)total);
    }
    total += h->counts[NMLP_METRICS_BUCKETS];
    nmlp_str_printf(out, "neuronmlp_%s_bucket{le=\"+Inf\"} %lld\nneuronmlp_%s_sum %.9g\nneuronmlp_%s_count %lld\n",
                    name, (long long)total, name, h->sum, name, (long long)total);
}

static void print_real(nmlp_str *out, const char *name, const char *type, const char *help, double value) {
    nmlp_str_printf(out, "# HELP neuronmlp_%s %s\n# TYPE neuronmlp_%s %s\nneuronmlp_%s %.6f\n", name, help, name, type,
                    name, value);
}

void nmlp_server_metrics_print(nmlp_str *out, const nmlp_server_metrics *m, const nmlp_worker_state *load,
                               int n_connections, const nmlp_guide_stats *grammar) {
    print_one(out, "num_requests_running", "gauge", "Requests the engine works on.", load->n_running);
    print_one(out, "num_requests_waiting", "gauge", "Requests in the queue.", load->n_waiting);
    print_real(out, "kv_cache_usage_perc", "gauge", "Memory for keys and values that requests hold, of 1.",
               load->memory_used);
    print_one(out, "num_connections", "gauge", "Open connections.", n_connections);
    print_one(out, "prompt_tokens_total", "counter", "Tokens of prompts.", m->prompt_tokens);
    print_one(out, "prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for.",
              m->prompt_tokens);
    print_one(out, "prefix_cache_hits_total", "counter", "Tokens of prompts that were not computed again.",
              m->cached_tokens);
    print_one(out, "generation_tokens_total", "counter", "Tokens generated.", m->generation_tokens);
    print_one(out, "grammar_tokens_total", "counter", "Tokens chosen under a grammar.", grammar->n_steps);
    print_one(out, "grammar_masks_total", "counter", "Of them, those whose mask was worked out anew.",
              grammar->n_computed);
    print_real(out, "grammar_seconds_total", "counter", "Time in masks of grammars.", grammar->seconds);
    nmlp_str_puts(out, "# HELP neuronmlp_responses_total Answers by class of status.\n"
                       "# TYPE neuronmlp_responses_total counter\n");
    for (int i = 2; i < 6; i++)
        nmlp_str_printf(out, "neuronmlp_responses_total{class=\"%dxx\"} %lld\n", i, (long long)m->answers[i]);
    print_histogram(out, "time_to_first_token_seconds", "From the start of work to the first token.", &m->ttft_s);
    print_histogram(out, "inter_token_latency_seconds", "Mean time of a token after the first, by answer.",
                    &m->per_token_s);
}
