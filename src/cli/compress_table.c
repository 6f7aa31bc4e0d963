#include "cli/compress_table.h"

#include <math.h>
#include <stdio.h>

/* Of a slice. */
static int64_t matrix_params(const nmlp_config *c, int64_t width, int64_t rank) {
    return rank > 0 ? rank * (c->hidden + width) : c->hidden * width;
}

/* Share of the dense matrix that is kept; a shared v counts half for each of its two owners. */
static double kept_share(const nmlp_config *c, int64_t slices, const nmlp_layer_ranks *r, int i) {
    int64_t width = c->intermediate / slices;
    double dense = (double)matrix_params(c, width, 0);
    if (r->joint && i != NMLP_MLP_DOWN) return (double)r->rank[i] * ((double)width + 0.5 * (double)c->hidden) / dense;
    return (double)matrix_params(c, width, r->rank[i]) / dense;
}

/* Of attentions with factors, those of its matrices that have some. */
static void print_attentions(const nmlp_compress_summary *s) {
    const nmlp_compress_report *r = s->report;
    bool joint = false;
    for (int64_t b = r->n_layers; b < r->n_blocks; b++) {
        int64_t l = b - r->n_layers;
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
            int64_t rank = r->ranks[b].rank[i], rows, cols;
            if (rank == 0) continue;
            bool shared = r->ranks[b].joint && i < NMLP_ATTENTION_O;
            nmlp_module_shape(s->config, NMLP_MODULE_ATTENTION, l, i, &rows, &cols);
            double kept = (double)rank * ((double)rows + (double)cols / (shared ? 3 : 1)) / (double)(rows * cols);
            char text[24];
            snprintf(text, sizeof text, "%lld%s", (long long)rank, shared ? "**" : "");
            printf("%-6lld %-10s %6s %6.1f%% %10.3g\n", (long long)l, nmlp_module_of(NMLP_MODULE_ATTENTION)->names[i],
                   text, 100 * kept, r->attention_nmse[l * NMLP_ATTENTION_MATRICES + i]);
            joint = joint || shared;
        }
    }
    if (joint) printf("** q, k and v share one v\n");
}

static void print_layers(const nmlp_compress_summary *s) {
    const nmlp_compress_report *r = s->report;
    printf("%-6s %-10s %6s %7s %10s", "layer", "matrix", "rank", "kept", "error");
    printf(r->refit_kept ? "  %s\n" : "\n", "residual stream, refitted (before)");
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            int64_t rank = r->ranks[l].rank[i];
            char text[24];
            snprintf(text, sizeof text, rank ? "%lld%s" : "dense", (long long)rank,
                     r->ranks[l].joint && i != NMLP_MLP_DOWN ? "*" : "");
            printf("%-6lld %-10s %6s %6.1f%% %10.3g", (long long)l, nmlp_mlp_matrix_name((nmlp_mlp_matrix)i), text,
                   100 * kept_share(s->config, r->slices, &r->ranks[l], i), r->nmse[l * NMLP_MLP_MATRICES + i]);
            if (r->refit_kept && i == NMLP_MLP_DOWN)
                printf("  %.3g (%.3g)", r->layer_error[l], r->layer_error_before[l]);
            printf("\n");
        }
    }
    print_attentions(s);
    if (r->slices > 1) printf("ranks of each of %lld slices of the intermediate width\n", (long long)r->slices);
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (!r->ranks[l].joint) continue;
        printf("* gate and up share one v\n");
        break;
    }
}

static void print_size(const char *what, double before, double after, void text_of(char[32], double)) {
    char a[32];
    char b[32];
    text_of(a, before);
    text_of(b, after);
    printf("%-12s %10s -> %-10s removed %5.2f%%, kept %5.2f%%\n", what, a, b, 100 * (1 - after / before),
           100 * after / before);
}

/* Seconds by stage and kind of work. */
static void print_times(const nmlp_compress_times *t) {
    double all = 0;
    printf("%-12s", "seconds");
    for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++) printf(" %8s", nmlp_compress_work_name((nmlp_compress_work)i));
    printf(" %8s\n", "all");
    for (int stage = 0; stage < NMLP_COMPRESS_STAGE_COUNT; stage++) {
        printf("  %-10s", nmlp_compress_stage_name((nmlp_compress_stage)stage));
        for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++) printf(" %8.1f", t->seconds[stage][i]);
        printf(" %8.1f\n", nmlp_compress_times_of_stage(t, (nmlp_compress_stage)stage));
        all += nmlp_compress_times_of_stage(t, (nmlp_compress_stage)stage);
    }
    printf("  %-10s", "all");
    for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++)
        printf(" %8.1f", nmlp_compress_times_of_work(t, (nmlp_compress_work)i));
    printf(" %8.1f\n", all);
}

void nmlp_compress_print_table(const nmlp_compress_summary *s) {
    const nmlp_compress_report *r = s->report;
    char memory[32];
    print_layers(s);
    printf("\n");
    print_size("MLP params", (double)r->mlp_params_before, (double)r->mlp_params_after, nmlp_cli_count_text);
    if (r->n_blocks > r->n_layers)
        print_size("attention", (double)r->attention_params_before, (double)r->attention_params_after,
                   nmlp_cli_count_text);
    print_size("model params", (double)r->params_before, (double)r->params_after, nmlp_cli_count_text);
    print_size("model bytes", (double)r->bytes_before, (double)r->bytes_after, nmlp_cli_bytes_text);
    if (r->time_before_ms > 0)
        printf("%-12s %.4g -> %.4g ms for one token's MLPs, by the target's cost table\n", "time", r->time_before_ms,
               r->time_after_ms);
    if (r->heldout_measured) {
        printf("%-12s %.3f dense, %.3f factorised, %.3f written (%lld tokens the factors never saw)\n", "perplexity",
               exp(r->dense.nll), exp(r->factored.nll), exp(r->final.nll), (long long)r->final.n_tokens);
        printf("%-12s %s, best of %d by held-out KL %.4f; after the refit %.4f\n", "ranks", r->chosen, r->n_candidates,
               r->factored.kl, r->final.kl);
    }
    nmlp_cli_bytes_text(memory, (double)s->peak_rss_bytes);
    print_times(&r->times);
    printf("%-12s %.1f s, %.1f of them outside the forward passes; %s at most\n", "time", s->seconds,
           nmlp_compress_times_outside_forward(&r->times), memory);
    printf("%-12s %s\n", "written", s->output);
}

static void put_layers(nmlp_json_writer *w, const nmlp_compress_report *r) {
    nmlp_json_begin_array(w, "ranks");
    for (int64_t l = 0; l < r->n_layers; l++) {
        nmlp_json_begin_object(w, NULL);
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            nmlp_json_put_int(w, nmlp_mlp_matrix_name((nmlp_mlp_matrix)i), r->ranks[l].rank[i]);
        nmlp_json_put_bool(w, "shared_basis", r->ranks[l].joint);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    if (r->n_blocks > r->n_layers) nmlp_json_begin_array(w, "attention_ranks");
    for (int64_t b = r->n_layers; b < r->n_blocks; b++) {
        nmlp_json_begin_object(w, NULL);
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++)
            nmlp_json_put_int(w, nmlp_module_of(NMLP_MODULE_ATTENTION)->names[i], r->ranks[b].rank[i]);
        nmlp_json_put_bool(w, "shared_basis", r->ranks[b].joint);
        nmlp_json_end_object(w);
    }
    if (r->n_blocks > r->n_layers) nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "nmse");
    for (int64_t l = 0; l < r->n_layers; l++) {
        nmlp_json_begin_object(w, NULL);
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            nmlp_json_put_number(w, nmlp_mlp_matrix_name((nmlp_mlp_matrix)i), r->nmse[l * NMLP_MLP_MATRICES + i]);
        if (r->refit_kept) {
            nmlp_json_put_number(w, "residual", r->layer_error[l]);
            nmlp_json_put_number(w, "residual_before_refit", r->layer_error_before[l]);
        }
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static void put_losses(nmlp_json_writer *w, const nmlp_compress_report *r) {
    if (!r->heldout_measured) return;
    nmlp_json_begin_object(w, "heldout");
    nmlp_json_put_int(w, "tokens", r->final.n_tokens);
    nmlp_json_put_number(w, "ppl_dense", exp(r->dense.nll));
    nmlp_json_put_number(w, "ppl_factored", exp(r->factored.nll));
    nmlp_json_put_number(w, "ppl", exp(r->final.nll));
    nmlp_json_put_number(w, "kl_factored", r->factored.kl);
    nmlp_json_put_number(w, "kl", r->final.kl);
    nmlp_json_end_object(w);
}

static void put_times(nmlp_json_writer *w, const nmlp_compress_times *t) {
    nmlp_json_put_number(w, "seconds_outside_forward", nmlp_compress_times_outside_forward(t));
    nmlp_json_begin_object(w, "seconds_by_stage");
    for (int stage = 0; stage < NMLP_COMPRESS_STAGE_COUNT; stage++) {
        nmlp_json_begin_object(w, nmlp_compress_stage_name((nmlp_compress_stage)stage));
        for (int i = 0; i < NMLP_COMPRESS_WORK_COUNT; i++)
            nmlp_json_put_number(w, nmlp_compress_work_name((nmlp_compress_work)i), t->seconds[stage][i]);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_object(w);
}

int nmlp_compress_print_json(const nmlp_cli *cli, const nmlp_compress_summary *s) {
    const nmlp_compress_report *r = s->report;
    double removed = nmlp_compress_removed(r);
    nmlp_json_writer w;
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "output", s->output);
    nmlp_json_put_int(&w, "params_before", r->params_before);
    nmlp_json_put_int(&w, "params_after", r->params_after);
    nmlp_json_put_int(&w, "mlp_params_before", r->mlp_params_before);
    nmlp_json_put_int(&w, "mlp_params_after", r->mlp_params_after);
    nmlp_json_put_int(&w, "attention_params_before", r->attention_params_before);
    nmlp_json_put_int(&w, "attention_params_after", r->attention_params_after);
    nmlp_json_put_int(&w, "bytes_before", r->bytes_before);
    nmlp_json_put_int(&w, "bytes_after", r->bytes_after);
    nmlp_json_put_number(&w, "removed", removed);
    nmlp_json_put_number(&w, "kept", 1 - removed);
    nmlp_json_put_number(&w, "removed_of_model", 1 - (double)r->params_after / (double)r->params_before);
    nmlp_json_put_int(&w, "slices", r->slices);
    put_layers(&w, r);
    put_losses(&w, r);
    nmlp_json_put_string(&w, "chosen", r->chosen);
    nmlp_json_put_int(&w, "candidates", r->n_candidates);
    nmlp_json_put_bool(&w, "refit_kept", r->refit_kept);
    nmlp_json_put_int(&w, "calib_tokens", r->calib_tokens);
    if (r->time_before_ms > 0) {
        nmlp_json_put_number(&w, "mlp_ms_before", r->time_before_ms);
        nmlp_json_put_number(&w, "mlp_ms_after", r->time_after_ms);
    }
    nmlp_json_put_number(&w, "seconds", s->seconds);
    put_times(&w, &r->times);
    nmlp_json_put_int(&w, "peak_rss_bytes", s->peak_rss_bytes);
    nmlp_json_put_string(&w, "blas_core", s->blas_core);
    nmlp_json_end_object(&w);
    int code = nmlp_cli_print_json(cli, &out);
    nmlp_str_fini(&out);
    return code;
}
