#include "cli/eval_divergence.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/model_args.h"
#include "eval/divergence.h"

enum { TEXT_MAX_BYTES = 1 << 30 };

struct comparison {
    nmlp_loaded reference, model;
    nmlp_tokenizer *tokenizer;
    nmlp_divergence results[NMLP_POSITIONALS_MAX];
    size_t n;
    double bits;
};

static nmlp_status compare_texts(struct comparison *c, const nmlp_cli *cli, const nmlp_ppl_options *o, nmlp_err *err) {
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_ppl_options options = *o;
    nmlp_status st = NMLP_OK;
    options.progress = &progress;
    for (int i = 1; i < cli->n_positionals && st == NMLP_OK; i++) {
        nmlp_str text;
        const char *slash = strrchr(cli->positionals[i], '/');
        nmlp_str_init(&text);
        options.stage = slash ? slash + 1 : cli->positionals[i];
        st = nmlp_input_read(&text, cli->positionals[i], TEXT_MAX_BYTES, err);
        if (st == NMLP_OK)
            st = nmlp_divergence_text(&c->results[c->n], c->reference.engine, c->model.engine, c->tokenizer,
                                      nmlp_str_text(&text), text.len, &options, err);
        if (st == NMLP_OK) c->n++;
        nmlp_str_fini(&text);
    }
    nmlp_cli_progress_end(&bar);
    return st;
}

static void put_result(nmlp_json_writer *w, const nmlp_divergence *r) {
    nmlp_json_put_int(w, "tokens", r->n_tokens);
    nmlp_json_put_int(w, "scored", r->n_scored);
    nmlp_json_put_number(w, "kl", r->kl);
    nmlp_json_put_number(w, "nll", r->nll);
    nmlp_json_put_number(w, "nll_reference", r->nll_before);
    nmlp_json_put_number(w, "same_top", r->same_top);
}

static int print_json(const nmlp_cli *cli, const struct comparison *c, const char *reference,
                      const nmlp_str *protocol) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_divergence mean = nmlp_divergence_mean(c->results, c->n);
    nmlp_json_put_string(w, "model", cli->positionals[0]);
    nmlp_json_put_string(w, "reference", reference);
    nmlp_json_put_string(w, "protocol", nmlp_str_text(protocol));
    w->out->failed |= protocol->failed;
    nmlp_json_put_number(w, "bits_per_weight", c->bits);
    put_result(w, &mean);
    nmlp_json_begin_array(w, "texts");
    for (size_t i = 0; i < c->n; i++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "text", cli->positionals[i + 1]);
        put_result(w, &c->results[i]);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_put_number(w, "seconds", mean.seconds);
    return nmlp_json_out_end(&out, cli);
}

static void print_line(const char *name, const nmlp_divergence *r) {
    printf("%-24.24s %9" PRId64 "  %10.6f  %10.5f  %10.5f  %7.2f %%\n", name, r->n_scored, r->kl, r->nll_before, r->nll,
           100 * r->same_top);
}

static int print_table(const nmlp_cli *cli, const struct comparison *c) {
    nmlp_divergence mean = nmlp_divergence_mean(c->results, c->n);
    printf("%-24s %9s  %10s  %10s  %10s  %9s\n", "text", "scored", "kl", "nll before", "nll", "same top");
    for (size_t i = 0; i < c->n; i++) {
        const char *slash = strrchr(cli->positionals[i + 1], '/');
        print_line(slash ? slash + 1 : cli->positionals[i + 1], &c->results[i]);
    }
    print_line("mean", &mean);
    printf("%.3f bits per weight\n", c->bits);
    fprintf(stderr, "[%.1f s]\n", mean.seconds);
    return NMLP_EXIT_OK;
}

int nmlp_eval_divergence(const nmlp_cli *cli, const char *reference, const nmlp_ppl_options *o,
                         const nmlp_load_options *load) {
    struct comparison c = {0};
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_str protocol;
    nmlp_ppl_options options = *o;
    nmlp_load_options exact = *load;
    int code = NMLP_EXIT_OK;
    nmlp_str_init(&protocol);
    /* What is compared are weights: activations are not rounded, unless that is asked for. */
    exact.dequantise = !load->precision || strcmp(load->precision, "f32") == 0;
    NMLP_TRY(nmlp_tokenizer_load(&c.tokenizer, cli->positionals[0], &err));
    NMLP_TRY(nmlp_cli_load(&c.model, cli, cli->positionals[0], &exact, &err));
    NMLP_TRY(nmlp_cli_load(&c.reference, cli, reference, &exact, &err));
    NMLP_TRY(nmlp_ppl_options_check(&options, &c.model.model.config, &err));
    nmlp_model_size size = nmlp_model_measure(&c.model.model);
    c.bits = 8 * (double)size.bytes / (double)size.params;
    nmlp_ppl_describe(&protocol, &options);
    NMLP_TRY(compare_texts(&c, cli, &options, &err));
    code = cli->json ? print_json(cli, &c, reference, &protocol) : print_table(cli, &c);
out:
    nmlp_unload(&c.reference);
    nmlp_unload(&c.model);
    nmlp_tokenizer_destroy(c.tokenizer);
    nmlp_str_fini(&protocol);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}
