/* The paper's tables about models: the MLP, end to end, published runs, quality. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/paper_table.h"
#include "model/preset.h"
#include "service/kernel.h"
#include "trainium/plan/predict.h"

enum { TILE = 128 };

/* The next name of a list with commas, or false. */
static bool next_model(const char **list, char name[64]) {
    size_t len = strcspn(*list, ",");
    if (len == 0) return false;
    snprintf(name, 64, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    return true;
}

/* Tells how many names are done. */
static nmlp_status tell(const nmlp_paper_scope *s, const char *stage, const char *rest, nmlp_err *err) {
    double all = 1, left = *rest ? 1 : 0;
    for (const char *c = s->models; *c; c++) all += *c == ',';
    for (const char *c = rest; *c; c++) left += *c == ',';
    if (nmlp_progress_update(s->progress, stage, all - left, all, "models")) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "the tables were stopped");
}

nmlp_status nmlp_paper_mlp(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const int64_t lengths[] = {1, 128, 2048};
    *t = (nmlp_paper_table){
        .id = "mlp",
        .title = "The whole MLP at ratio 0.2, us",
        .lead =
            "One rank for gate, up and down, launches apart. AWS: a dense product for each matrix; the paper: its two "
            "fused kernels. The bound is that of the busiest engine.",
        .rows_are = "model, rows",
        .columns = {"AWS dense", "paper's", "ours", "bound", "paper's over ours"},
        .unit = "microseconds",
        .decimals = 1,
        .log = true};
    const char *list = s->models;
    char name[64], label[80];
    nmlp_planner planner = nmlp_kernel_planner(s->machine, s->cache);
    while (next_model(&list, name)) {
        nmlp_config c;
        NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, name, err));
        int64_t rank = nmlp_rank_for_ratio(c.intermediate, c.hidden, 0.2, TILE);
        for (int l = 0; l < 3 && lengths[l] <= s->rows_max; l++) {
            nmlp_kernel_request rq = {
                .shape = {lengths[l], c.hidden, rank, c.intermediate}, .dtype = NMLP_NC_BF16, .machine = s->machine};
            nmlp_decoder shape = {.hidden = c.hidden, .intermediate = c.intermediate};
            nmlp_mlp_ranks low = {rank, rank, rank, false}, dense = {0};
            double us[5] = {0};
            NMLP_RETURN_IF_FAILED(
                nmlp_predict_mlp_us(&us[0], &planner, NMLP_MLP_KERNELS_AWS, lengths[l], &shape, dense, err));
            NMLP_RETURN_IF_FAILED(
                nmlp_predict_mlp_us(&us[1], &planner, NMLP_MLP_KERNELS_PAPER, lengths[l], &shape, low, err));
            NMLP_RETURN_IF_FAILED(
                nmlp_predict_mlp_us(&us[2], &planner, NMLP_MLP_KERNELS_OURS, lengths[l], &shape, low, err));
            us[3] = nmlp_bounds_of(NMLP_PLAN_MLP, &rq).largest_ns * 1e-3;
            us[4] = us[1] / us[2];
            snprintf(label, sizeof label, "%s, %lld", name, (long long)lengths[l]);
            nmlp_paper_row *row = nmlp_paper_add_row(t, label);
            for (int k = 0; k < 5; k++) row->cells[k] = nmlp_paper_simulated(us[k]);
        }
        NMLP_RETURN_IF_FAILED(tell(s, "MLPs", list, err));
    }
    return NMLP_OK;
}

typedef struct end_to_end_case {
    double ratio;
    int64_t prompt, generate;
} end_to_end_case;

static nmlp_status predict_case(nmlp_prediction *out, const nmlp_paper_scope *s, const nmlp_config *c,
                                const end_to_end_case *e, double ratio, nmlp_mlp_kernels kernels, nmlp_err *err) {
    nmlp_planner planner = nmlp_kernel_planner(s->machine, s->cache);
    int64_t rank = ratio > 0 ? nmlp_rank_for_ratio(c->intermediate, c->hidden, ratio, TILE) : 0;
    nmlp_mlp_form form = {{rank, rank, rank, false}, c->n_layers};
    nmlp_predict_request rq = {.decoder = {c->hidden, c->intermediate, c->n_layers, c->n_heads, c->n_kv_heads,
                                           c->head_dim, c->vocab, rank ? &form : NULL, rank ? 1 : 0, 0},
                               .prompt = e->prompt,
                               .generate = e->generate,
                               .tp = 1,
                               .kernels = kernels,
                               .dtype = NMLP_NC_BF16};
    return nmlp_predict(out, &planner, &rq, err);
}

nmlp_status nmlp_paper_end_to_end(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const end_to_end_case cases[] = {{0.05, 512, 128}, {0.2, 512, 128}, {0.2, 2048, 512}};
    *t = (nmlp_paper_table){
        .id = "end-to-end",
        .title = "End to end on one core",
        .lead =
            "Dense with AWS's MLP kernels, compressed with the paper's, compressed with ours; everything but the MLPs "
            "is "
            "ours in all three. A model whose weights do not fit a core's share of HBM is not possible here. The paper "
            "reports 1.21x on average at ratio 0.05 (last version), 1.66x and at most 2.49x in earlier ones.",
        .rows_are = "model, ratio, prompt + generated",
        .columns = {"TTFT ms dense", "TTFT paper", "TTFT ours", "TPOT ms dense", "TPOT paper", "TPOT ours",
                    "tokens/s ours", "speed-up paper", "speed-up ours"},
        .unit = "as the legend says",
        .decimals = 2,
        .log = true};
    const char *list = s->models;
    char name[64], label[96];
    while (next_model(&list, name)) {
        nmlp_config c;
        NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, name, err));
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const end_to_end_case *e = &cases[i];
            nmlp_prediction dense, paper, ours;
            nmlp_err too_large = {0};
            if (e->prompt > s->rows_max) continue;
            snprintf(label, sizeof label, "%s, %g, %lld + %lld", name, e->ratio, (long long)e->prompt,
                     (long long)e->generate);
            nmlp_paper_row *row = nmlp_paper_add_row(t, label);
            nmlp_status st = predict_case(&dense, s, &c, e, 0, NMLP_MLP_KERNELS_AWS, &too_large);
            if (st == NMLP_E_LIMIT) continue;
            if (st == NMLP_OK) st = predict_case(&paper, s, &c, e, e->ratio, NMLP_MLP_KERNELS_PAPER, &too_large);
            if (st == NMLP_OK) st = predict_case(&ours, s, &c, e, e->ratio, NMLP_MLP_KERNELS_OURS, &too_large);
            if (st != NMLP_OK) {
                *err = too_large;
                return st;
            }
            const double values[] = {dense.ttft_ms,
                                     paper.ttft_ms,
                                     ours.ttft_ms,
                                     dense.tpot_ms,
                                     paper.tpot_ms,
                                     ours.tpot_ms,
                                     ours.tokens_per_s,
                                     dense.e2e_ms / paper.e2e_ms,
                                     dense.e2e_ms / ours.e2e_ms};
            for (int k = 0; k < 9; k++) row->cells[k] = nmlp_paper_simulated(values[k]);
        }
        NMLP_RETURN_IF_FAILED(tell(s, "end to end", list, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_published_runs(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const struct {
        const char *label, *mode;
        double ratio;
        nmlp_mlp_kernels kernels;
    } runs[] = {{"dense, AWS's kernels", "ratio=0", 0, NMLP_MLP_KERNELS_AWS},
                {"0.2 removed, the paper's", "ratio=0.2", 0.2, NMLP_MLP_KERNELS_PAPER},
                {"0.2 removed, ours", "-", 0.2, NMLP_MLP_KERNELS_OURS}};
    static const end_to_end_case e = {0.2, 32, 32};
    *t = (nmlp_paper_table){.id = "published-runs",
                            .title = "Llama-3.2-1B, prompt 32, 32 generated, ms",
                            .lead = "The repository's own run on trn1 beside ours. Published times are about three "
                                    "times longer: they are those of "
                                    "a whole framework on a host, ours those of kernels with nothing between them.",
                            .rows_are = "MLP kernels",
                            .columns = {"first token", "first token, simulated", "per token", "per token, simulated",
                                        "end to end", "end to end, simulated"},
                            .unit = "milliseconds",
                            .decimals = 2,
                            .log = true};
    nmlp_config c;
    NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, "llama-3.2-1b", err));
    for (int i = 0; i < 3; i++) {
        static const char *const units[] = {"ttft_ms", "tpot_ms", "e2e_ms"};
        nmlp_prediction p;
        NMLP_RETURN_IF_FAILED(predict_case(&p, s, &c, &e, runs[i].ratio, runs[i].kernels, err));
        const double ms[] = {p.ttft_ms, p.tpot_ms, p.e2e_ms};
        nmlp_paper_row *row = nmlp_paper_add_row(t, runs[i].label);
        for (int k = 0; k < 3; k++) {
            row->cells[2 * k] =
                nmlp_paper_published_cell(nmlp_paper_published("model:llama-3.2-1b", 32, units[k], runs[i].mode));
            row->cells[2 * k + 1] = nmlp_paper_simulated(ms[k]);
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_quality(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const char *const models[] = {"small", "tiny"};
    static const double ratios[] = {0, 0.05, 0.1, 0.2, 0.4};
    static const char *const texts[] = {"wikitext2", "ptb", "c4"};
    (void)s, (void)err;
    *t = (nmlp_paper_table){
        .id = "quality",
        .title = "Perplexity of what is at hand",
        .lead =
            "The paper's models are not at hand, so none of its rows can be measured here; its best is shown. Ours are "
            "two "
            "small trained models with whitened SVD, the paper's method (docs/data/reproduced-perplexity.csv, equal to "
            "PyTorch within 0.06 %).",
        .rows_are = "model, ratio",
        .columns = {"WikiText-2", "PTB", "C4"},
        .unit = "perplexity",
        .decimals = 2,
        .log = true};
    nmlp_paper_row *best = nmlp_paper_add_row(t, "paper, best row");
    for (int k = 0; k < 3; k++)
        best->cells[k] = nmlp_paper_published_cell(nmlp_paper_published("quality", 0, texts[k], "-"));
    for (int m = 0; m < 2; m++)
        for (size_t r = 0; r < sizeof ratios / sizeof ratios[0]; r++) {
            char label[48];
            snprintf(label, sizeof label, "%s, %g", models[m], ratios[r]);
            nmlp_paper_row *row = nmlp_paper_add_row(t, label);
            for (int k = 0; k < 3; k++) {
                double value =
                    nmlp_paper_perplexity(models[m], ratios[r] > 0 ? "whiten" : "dense", ratios[r], texts[k]);
                if (!isnan(value)) row->cells[k] = (nmlp_paper_cell){NMLP_CELL_MEASURED, value};
            }
        }
    return NMLP_OK;
}

/* The mean over the tasks, or NAN where one is missing. */
static double mean_accuracy(const char *model, const char *method, double ratio, const char *const *tasks, int n) {
    double sum = 0;
    for (int k = 0; k < n; k++) sum += nmlp_paper_accuracy(model, method, ratio, tasks[k]);
    return sum / n;
}

nmlp_status nmlp_paper_choices(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    enum { N_TASKS = 6 };
    static const char *const tasks[N_TASKS] = {"arc_challenge", "openbookqa", "hellaswag",
                                               "winogrande",    "mathqa",     "piqa"};
    static const struct {
        const char *model, *method;
        double ratio;
    } rows[] = {{"small", "dense", 0}, {"small", "ours", 0.2}, {"tiny", "dense", 0}, {"tiny", "ours", 0.2}};
    (void)s, (void)err;
    *t = (nmlp_paper_table){
        .id = "accuracy",
        .title = "Multiple choice of what is at hand",
        .lead = "The paper's models are not at hand; its best row is shown. Ours are two small trained models, dense "
                "and with 0.2 removed (8,192 calibration tokens, --rounds 0); with 28 and 6 million parameters they "
                "do little better than guessing (25, 25, 25, 50, 20, 50). First 100 questions of each set: a standard "
                "error is 3 to 5 (docs/data/measured-accuracy.csv; neuronmlp eval --suite paper takes other models).",
        .rows_are = "model, ratio",
        .columns = {"ARC-C", "OpenBookQA", "HellaSwag", "WinoGrande", "MathQA", "PIQA", "mean"},
        .unit = "percent right",
        .decimals = 1};
    nmlp_paper_row *best = nmlp_paper_add_row(t, "paper, best row");
    for (int k = 0; k < N_TASKS; k++)
        best->cells[k] = nmlp_paper_published_cell(nmlp_paper_published("quality", 0, tasks[k], "-"));
    best->cells[N_TASKS] = nmlp_paper_published_cell(nmlp_paper_published("quality", 0, "mean_accuracy", "-"));
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char label[48];
        snprintf(label, sizeof label, "%s, %g", rows[r].model, rows[r].ratio);
        nmlp_paper_row *row = nmlp_paper_add_row(t, label);
        for (int k = 0; k <= N_TASKS; k++) {
            double value = k < N_TASKS ? nmlp_paper_accuracy(rows[r].model, rows[r].method, rows[r].ratio, tasks[k])
                                       : mean_accuracy(rows[r].model, rows[r].method, rows[r].ratio, tasks, N_TASKS);
            if (!isnan(value)) row->cells[k] = (nmlp_paper_cell){NMLP_CELL_MEASURED, value};
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_adapters(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const struct {
        const char *label, *method;
        double ratio;
    } rows[] = {{"dense", "trained-dense", 0},
                {"compressed, untrained", "untrained", 0.2},
                {"factors trained", "factors", 0.2},
                {"adapters trained, merged", "lora", 0.2}};
    static const char *const texts[] = {"wikitext2", "ptb", "c4", "novels", "eb9"};
    (void)s, (void)err;
    *t = (nmlp_paper_table){
        .id = "adapters",
        .title = "LoRA against factors",
        .lead = "The model small with 0.2 removed by our defaults, then trained: the factors themselves (6.71 million "
                "weights) or adapters of rank 16 to them (0.44 million), each at its own learning rate, about 150 "
                "steps of 8 x 512 tokens (neuronmlp recover). First 150,000 tokens of each text.",
        .rows_are = "weights trained",
        .columns = {"WikiText-2", "PTB", "C4", "novels", "Britannica"},
        .unit = "perplexity",
        .decimals = 2,
        .log = true};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        nmlp_paper_row *row = nmlp_paper_add_row(t, rows[r].label);
        for (int k = 0; k < 5; k++) {
            double value = nmlp_paper_perplexity("small", rows[r].method, rows[r].ratio, texts[k]);
            if (!isnan(value)) row->cells[k] = (nmlp_paper_cell){NMLP_CELL_MEASURED, value};
        }
    }
    return NMLP_OK;
}
