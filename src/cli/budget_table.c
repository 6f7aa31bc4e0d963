#include "cli/budget_table.h"

#include <math.h>
#include <stdio.h>

#include "service/quantization.h"

void nmlp_mix_print(const nmlp_mix *mix) {
    bool shared = false;
    printf("%-6s", "layer");
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++) printf(" %-11s", nmlp_quant_matrix_name(i));
    printf("\n");
    for (int64_t l = 0; l < mix->n_layers; l++) {
        printf("%-6lld", (long long)l);
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) {
            char text[32];
            nmlp_mix_matrix_text(text, mix, l, i);
            printf(" %-11s", text);
        }
        printf("\n");
        shared |= mix->ranks[l].joint;
    }
    printf("head   %s\n", nmlp_quant_format_text(&mix->head));
    if (nmlp_mix_has_ranks(mix))
        printf("a number is a rank: two factors%s\n", shared ? "; * gate and up share one v" : "");
}

void nmlp_mix_put(nmlp_json_writer *w, const nmlp_mix *mix) {
    nmlp_json_begin_array(w, "layers");
    for (int64_t l = 0; l < mix->n_layers; l++) {
        nmlp_json_begin_object(w, NULL);
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) {
            nmlp_json_begin_object(w, nmlp_quant_matrix_name(i));
            if (i >= NMLP_QUANT_GATE) nmlp_json_put_int(w, "rank", mix->ranks[l].rank[i - NMLP_QUANT_GATE]);
            nmlp_json_put_string(w, "format", nmlp_quant_format_text(&mix->formats[l * NMLP_QUANT_MATRICES + i]));
            nmlp_json_end_object(w);
        }
        nmlp_json_put_bool(w, "shared_basis", mix->ranks[l].joint);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_put_string(w, "head", nmlp_quant_format_text(&mix->head));
}

/* Whether two answers are the same checkpoint. */
static bool is_same(const nmlp_budget_answer *a, const nmlp_budget_answer *b) {
    return a != b && a->possible && b->possible && a->bytes == b->bytes && a->heldout.kl == b->heldout.kl;
}

/* A cost in the unit of the budget. */
static void cost_text(char text[32], const nmlp_budget_summary *s, double cost) {
    snprintf(text, 32, s->limit.ms > 0 ? "%.4f" : "%.0f", cost);
}

static void print_answers(const nmlp_budget_summary *s) {
    const nmlp_mix_budget *b = s->budget;
    const nmlp_budget_answer *chosen = &b->answers[b->chosen];
    bool of_time = s->limit.ms > 0;
    char cost[32], least[32];
    cost_text(cost, s, of_time ? s->limit.ms : (double)s->limit.bytes);
    printf("\n%-16s %12s %12s %12s   of %s %s\n", "answer", of_time ? "ms" : "bytes", "held-out KL", "perplexity", cost,
           of_time ? "ms of all MLPs for one token, by times measured here" : "bytes");
    for (int i = 0; i < NMLP_BUDGET_ANSWERS; i++) {
        const nmlp_budget_answer *a = &b->answers[i];
        cost_text(cost, s, a->cost);
        cost_text(least, s, a->least);
        if (!a->possible) {
            printf("%-16s %12s   takes %s at least\n", a->name, "-", least);
            continue;
        }
        const char *note = i == b->chosen ? "  <- written" : is_same(a, chosen) ? "  the same" : "";
        printf("%-16s %12s %12.6f %12.4f%s\n", a->name, cost, a->heldout.kl, exp(a->heldout.nll), note);
    }
}

void nmlp_budget_print_table(const nmlp_budget_summary *s) {
    const nmlp_mix_budget *b = s->budget;
    const nmlp_budget_answer *chosen = &b->answers[b->chosen];
    char before[32], after[32], memory[32];
    nmlp_mix_print(&b->mix);
    print_answers(s);
    if (b->chosen != NMLP_BUDGET_MIXED)
        printf("%s is closer to the dense model here than a mix, and is what was written\n", chosen->name);
    nmlp_cli_bytes_text(before, (double)b->bytes_before);
    nmlp_cli_bytes_text(after, (double)b->bytes_after);
    nmlp_cli_bytes_text(memory, (double)s->peak_rss_bytes);
    printf("%s: %s -> %s; perplexity %.4f dense, %.4f written (%lld held-out tokens)\n", s->output, before, after,
           exp(chosen->heldout.nll_before), exp(chosen->heldout.nll), (long long)chosen->heldout.n_scored);
    if (s->limit.ms > 0) printf("MLPs   %.4f -> %.4f ms a token\n", b->ms_before, b->ms_after);
    printf("time   %.1f s, %s at most\n", s->seconds, memory);
}

static void put_answers(nmlp_json_writer *w, const nmlp_mix_budget *b, bool of_time) {
    nmlp_json_begin_array(w, "answers");
    for (int i = 0; i < NMLP_BUDGET_ANSWERS; i++) {
        const nmlp_budget_answer *a = &b->answers[i];
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "name", a->name);
        nmlp_json_put_bool(w, "possible", a->possible);
        nmlp_json_put_bool(w, "chosen", i == b->chosen);
        if (of_time)
            nmlp_json_put_number(w, "least_ms", a->least);
        else
            nmlp_json_put_int(w, "least_bytes", (int64_t)a->least);
        if (a->possible) {
            if (of_time) nmlp_json_put_number(w, "ms", a->cost);
            nmlp_json_put_int(w, "bytes", a->bytes);
            nmlp_json_put_number(w, "kl", a->heldout.kl);
            nmlp_json_put_number(w, "ppl", exp(a->heldout.nll));
        }
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

int nmlp_budget_print_json(const nmlp_cli *cli, const nmlp_budget_summary *s) {
    const nmlp_mix_budget *b = s->budget;
    const nmlp_budget_answer *chosen = &b->answers[b->chosen];
    bool of_time = s->limit.ms > 0;
    double removed = 1 - (double)b->mlp_params_after / (double)b->mlp_params_before;
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", s->output);
    if (of_time) {
        nmlp_json_put_number(w, "budget_ms", s->limit.ms);
        nmlp_json_put_number(w, "time_before_ms", b->ms_before);
        nmlp_json_put_number(w, "time_after_ms", b->ms_after);
    } else {
        nmlp_json_put_int(w, "budget_bytes", s->limit.bytes);
    }
    nmlp_json_put_int(w, "params_before", b->params_before);
    nmlp_json_put_int(w, "params_after", b->params_after);
    nmlp_json_put_int(w, "bytes_before", b->bytes_before);
    nmlp_json_put_int(w, "bytes_after", b->bytes_after);
    nmlp_json_put_number(w, "removed", removed);
    nmlp_json_put_number(w, "kept", 1 - removed);
    nmlp_json_put_string(w, "chosen", chosen->name);
    nmlp_json_put_number(w, "kl", chosen->heldout.kl);
    nmlp_json_put_number(w, "ppl_before", exp(chosen->heldout.nll_before));
    nmlp_json_put_number(w, "ppl_after", exp(chosen->heldout.nll));
    put_answers(w, b, of_time);
    nmlp_mix_put(w, &b->mix);
    nmlp_json_put_int(w, "calib_tokens", b->calib_tokens);
    nmlp_json_put_int(w, "heldout_tokens", b->heldout_tokens);
    nmlp_json_put_number(w, "seconds", s->seconds);
    nmlp_json_put_int(w, "peak_rss_bytes", s->peak_rss_bytes);
    return nmlp_json_out_end(&out, cli);
}
