#include "compress/card.h"

#include <math.h>

#include "checkpoint/model_card.h"

static double share(int64_t part, int64_t whole) { return 100.0 * (double)part / (double)whole; }

static void put_quality(nmlp_str *out, const nmlp_compress_report *r) {
    if (!r->heldout_measured) return;
    nmlp_str_printf(out, "| held-out perplexity, before and after | %.4f, %.4f |\n", exp(r->dense.nll),
                    exp(r->final.nll));
    nmlp_str_printf(out, "| KL divergence from the original, nats per token | %.5f |\n", r->final.kl);
    nmlp_str_printf(out, "| held-out tokens | %lld |\n", (long long)r->heldout_tokens);
}

void nmlp_compress_card_write(const nmlp_compress_options *o, const nmlp_compress_report *r, const char *base,
                              nmlp_str *out) {
    int64_t of_mlps = r->mlp_params_before - r->mlp_params_after;
    int64_t of_attention = r->attention_params_before - r->attention_params_after, removed = of_mlps + of_attention;
    nmlp_model_card_begin(out, base, "compressed",
                          of_attention > 0
                              ? "MLP and attention matrices are products of two thin factors, made by neuronmlp."
                              : "MLP matrices are products of two thin factors, made by neuronmlp.",
                          "low-rank");
    nmlp_str_printf(out, "| removed of the MLPs | %.2f %% |\n", share(of_mlps, r->mlp_params_before));
    if (of_attention > 0)
        nmlp_str_printf(out, "| removed of the attentions | %.2f %% |\n",
                        share(of_attention, r->attention_params_before));
    nmlp_str_printf(out, "| removed of the model | %.2f %% of %lld parameters |\n", share(removed, r->params_before),
                    (long long)r->params_before);
    put_quality(out, r);
    nmlp_str_printf(out, "| calibration | %lld tokens of %s |\n", (long long)r->calib_tokens,
                    o->calib_name ? o->calib_name : "a text");
    if (o->made_by) nmlp_str_printf(out, "| command | `%s` |\n", o->made_by);
    nmlp_model_card_end(out, NMLP_CARD_USE_REMOTE_CODE);
}
