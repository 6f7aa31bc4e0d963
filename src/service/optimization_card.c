/* What a model card says about an optimized checkpoint. */
#include "checkpoint/model_card.h"
#include "service/optimization.h"

static void put_points(const nmlp_optimization *r, nmlp_str *out) {
    nmlp_str_printf(out, "\n| form | loss, nats per token | ms | speed-up | bytes |\n|---|---|---|---|---|\n");
    for (int i = 0; i < r->n_points; i++) {
        const nmlp_optimized_point *p = &r->points[i];
        nmlp_str_printf(out, "| %s%s | %.4f ± %.4f | %.3f | %.2f | %lld |\n", p->name, i == r->chosen ? " (this)" : "",
                        p->loss, p->loss_error, p->ms, r->points[0].ms / p->ms, (long long)p->bytes);
    }
}

void nmlp_optimization_card(const nmlp_optimization *r, const char *model_dir, const char *made_by, nmlp_str *out) {
    const nmlp_optimized_point *p = &r->points[r->chosen];
    char unit[80];
    nmlp_workload_text(unit, &r->workload);
    nmlp_str_puts(out, "---\nlibrary_name: transformers\npipeline_tag: text-generation\nbase_model: ");
    nmlp_model_card_put_name(out, model_dir);
    nmlp_str_puts(out, "\ntags:\n- neuronmlp\n---\n\n# ");
    nmlp_model_card_put_name(out, model_dir);
    nmlp_str_printf(out,
                    ", optimized for %s\n\nThe fastest form found for %s within %.4g nats of log-perplexity: %s.\n\n",
                    r->target, unit, r->bound, nmlp_verdict_text(r->verdict));
    nmlp_str_puts(out, "| | |\n|---|---|\n");
    nmlp_str_printf(out, "| speed-up over the dense model, %s | %.2f |\n", r->simulated ? "simulated" : "measured",
                    r->points[0].ms / p->ms);
    nmlp_str_printf(out, "| bytes, before and after | %lld, %lld |\n", (long long)r->points[0].bytes,
                    (long long)p->bytes);
    nmlp_str_printf(out, "| loss on %lld held-out tokens | %.5f nats |\n", (long long)r->heldout_tokens, p->loss);
    if (r->verified.n_scored > 0)
        nmlp_str_printf(out, "| loss on %lld tokens that no choice has seen | %.5f nats |\n",
                        (long long)r->verified.n_scored, r->verified.nll - r->verified.nll_before);
    if (r->n_repeats)
        nmlp_str_printf(out, "| speed-up in %d repeats | %.2f to %.2f |\n", r->n_repeats, p->speedup_low,
                        p->speedup_high);
    if (made_by) nmlp_str_printf(out, "| command | `%s` |\n", made_by);
    put_points(r, out);
    nmlp_str_puts(out, "\nTexts are parts of the calibration text, not a benchmark; times are of the machine that made "
                       "this. The licence is that of\nthe original model.\n");
}
