/* neuronmlp predict: how fast a model would run on Trainium, dense and compressed. */
#include <stdio.h>
#include <string.h>

#include "service/kernel.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/neuron_args.h"
#include "cli/predict_cluster.h"
#include "checkpoint/config.h"
#include "model/preset.h"
#include "trainium/package/forms.h"

typedef struct predict_args {
    const char *target, *cache, *dtype, *mlp, *cluster;
    double ratio;
    int64_t prompt, generate, batch, tp, tile;
    bool fp8;
} predict_args;

typedef struct predicting {
    const nmlp_cli *cli;
    predict_args args;
    nmlp_machine machine;
    nmlp_config config;
    int64_t rank;               /* of all projections, from a ratio; 0: the forms are the checkpoint's */
    nmlp_mlp_forms forms;       /* of the compressed model */
    nmlp_prediction dense, low; /* low: as compressed; equal to dense without a ratio */
    nmlp_prediction slices;     /* with factors of their own for every core's slice; e2e_ms 0: not asked */
    double seconds;
} predicting;

/* The forms of the checkpoint's own MLPs. */
static nmlp_status open_forms(predicting *pr, const char *dir, nmlp_err *err) {
    nmlp_model model;
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, dir, err));
    nmlp_status st = nmlp_mlp_forms_of(&pr->forms, &model, err);
    if (st == NMLP_OK && model.config.attention_factored) {
        st = nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: factorised attention is not predicted", dir);
        nmlp_fail_hint(err, "expand the model first: attention runs dense on the target");
    }
    nmlp_model_close(&model);
    return st;
}

static nmlp_status one_form(predicting *pr, nmlp_err *err) {
    pr->rank = nmlp_rank_for_ratio(pr->config.intermediate, pr->config.hidden, pr->args.ratio, pr->args.tile);
    pr->forms.list = nmlp_mem_new(1, sizeof *pr->forms.list, err);
    if (!pr->forms.list) return NMLP_E_NOMEM;
    pr->forms.n = 1;
    pr->forms.list[0] = (nmlp_mlp_form){{pr->rank, pr->rank, pr->rank, false}, pr->config.n_layers};
    return NMLP_OK;
}

static nmlp_status open_shape(predicting *pr, nmlp_err *err) {
    const char *name = pr->cli->positionals[0];
    bool dir = nmlp_file_is_dir(name);
    if (dir)
        NMLP_RETURN_IF_FAILED(nmlp_config_load(&pr->config, name, err));
    else
        NMLP_RETURN_IF_FAILED(nmlp_preset_find(&pr->config, name, err));
    if (pr->config.n_experts > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: experts are not predicted: which of them a token takes decides "
                         "what is read",
                         name);
    if (pr->args.ratio < 0 || pr->args.ratio >= 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "ratio", "is %g; expected 0 to below 1", pr->args.ratio);
    if (pr->args.prompt < 1 || pr->args.generate < 1 || pr->args.prompt > 1 << 20 || pr->args.generate > 1 << 20 ||
        pr->args.prompt + pr->args.generate > 1 << 20)
        return nmlp_fail_field(err, NMLP_E_ARG, "prompt",
                               "%lld and generate %lld: each at least 1, together at most %d",
                               (long long)pr->args.prompt, (long long)pr->args.generate, 1 << 20);
    if (pr->args.ratio > 0) return one_form(pr, err);
    if (!dir || !pr->config.compressed) return NMLP_OK;
    pr->args.ratio = pr->config.ratio;
    return open_forms(pr, name, err);
}

static nmlp_status predict(predicting *pr, nmlp_err *err) {
    const nmlp_config *c = &pr->config;
    double start = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&pr->machine, pr->args.target, err));
    NMLP_RETURN_IF_FAILED(open_shape(pr, err));
    if (pr->args.tp < 1 || pr->args.tp > (int64_t)pr->machine.cores_per_device)
        return nmlp_fail_field(err, NMLP_E_ARG, "tp", "is %lld; a device of %s has %.0f cores", (long long)pr->args.tp,
                               pr->machine.name, pr->machine.cores_per_device);
    nmlp_predict_request rq = {.decoder = {c->hidden, c->intermediate, c->n_layers, c->n_heads, c->n_kv_heads,
                                           c->head_dim, c->vocab, NULL, 0, 0},
                               .prompt = pr->args.prompt,
                               .generate = pr->args.generate,
                               .batch = pr->args.batch,
                               .tp = pr->args.tp};
    nmlp_planner planner = nmlp_kernel_planner(&pr->machine, pr->args.cache);
    if (!nmlp_nc_dtype_parse(pr->args.dtype, &rq.dtype))
        return nmlp_fail_field(err, NMLP_E_ARG, "dtype", "is \"%.40s\"; expected bf16, fp16 or fp32", pr->args.dtype);
    if (!nmlp_mlp_kernels_parse(pr->args.mlp, &rq.kernels))
        return nmlp_fail_field(err, NMLP_E_ARG, "mlp", "is \"%.40s\"; expected ours, paper or aws", pr->args.mlp);
    if (pr->args.batch < 1 || pr->args.batch > 4096)
        return nmlp_fail_field(err, NMLP_E_ARG, "batch", "is %lld; expected 1 to 4096", (long long)pr->args.batch);
    if (pr->args.fp8 && (rq.kernels != NMLP_MLP_KERNELS_OURS || rq.dtype == NMLP_NC_FP32))
        return nmlp_fail_field(err, NMLP_E_ARG, "fp8", "is for our kernels, with activations in bf16 or fp16");
    NMLP_RETURN_IF_FAILED(nmlp_predict(&pr->dense, &planner, &rq, err));
    pr->low = pr->dense;
    rq.decoder.forms = pr->forms.list;
    rq.decoder.n_forms = pr->forms.n;
    if (pr->rank == 0) rq.decoder.slices = c->slices;
    rq.fp8 = pr->args.fp8;
    if (pr->forms.n > 0 || rq.fp8) NMLP_RETURN_IF_FAILED(nmlp_predict(&pr->low, &planner, &rq, err));
    rq.slices = true;
    if (pr->rank > 0 && pr->args.tp > 1) NMLP_RETURN_IF_FAILED(nmlp_predict(&pr->slices, &planner, &rq, err));
    pr->seconds = nmlp_clock_seconds() - start;
    return NMLP_OK;
}

/* The fastest way to spread the MLPs over the cores, by time from end to end. */
static const char *best_split(const predicting *pr) {
    double best = pr->low.e2e_ms;
    const char *name = pr->config.slices > 0 && pr->rank == 0 ? "slices" : pr->low.by_rank ? "rank" : "width";
    if (pr->slices.e2e_ms > 0 && pr->slices.e2e_ms < best) {
        best = pr->slices.e2e_ms;
        name = "slices";
    }
    return pr->dense.e2e_ms < best ? "dense" : name;
}

static void put_forward(nmlp_json_writer *w, const char *key, const nmlp_forward_time *t) {
    nmlp_json_begin_object(w, key);
#define PUT_PART(part) nmlp_json_put_number(w, #part "_us", t->part);
    NMLP_PREDICT_PARTS(PUT_PART)
#undef PUT_PART
    nmlp_json_end_object(w);
}

static void put_prediction(nmlp_json_writer *w, const nmlp_prediction *p) {
    nmlp_json_put_number(w, "ttft_ms", p->ttft_ms);
    nmlp_json_put_number(w, "tpot_ms", p->tpot_ms);
    nmlp_json_put_number(w, "e2e_ms", p->e2e_ms);
    nmlp_json_put_number(w, "tokens_per_s", p->tokens_per_s);
    nmlp_json_put_number(w, "weight_bytes", p->weight_bytes);
    nmlp_json_begin_object(w, "breakdown");
    put_forward(w, "prefill", &p->prefill);
    put_forward(w, "decode", &p->decode);
    nmlp_json_end_object(w);
}

static void put_forms(nmlp_json_writer *w, const nmlp_mlp_forms *forms) {
    nmlp_json_begin_array(w, "forms");
    for (size_t i = 0; i < forms->n; i++) {
        const nmlp_mlp_form *f = &forms->list[i];
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_int(w, "gate", f->ranks.gate);
        nmlp_json_put_int(w, "up", f->ranks.up);
        nmlp_json_put_int(w, "down", f->ranks.down);
        nmlp_json_put_bool(w, "shared", f->ranks.shared);
        nmlp_json_put_int(w, "layers", f->n_layers);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static int print_json(const predicting *pr) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "model", pr->cli->positionals[0]);
    nmlp_json_put_string(w, "target", pr->machine.name);
    nmlp_json_put_bool(w, "simulated", true);
    nmlp_json_put_int(w, "tp", pr->args.tp);
    nmlp_json_put_int(w, "batch", pr->args.batch);
    nmlp_json_put_string(w, "mlp", pr->args.mlp);
    nmlp_json_put_bool(w, "fp8", pr->args.fp8);
    nmlp_json_put_number(w, "ratio", pr->args.ratio);
    nmlp_json_put_int(w, "rank", pr->rank);
    put_prediction(w, &pr->low);
    nmlp_json_put_number(w, "speedup", pr->dense.e2e_ms / pr->low.e2e_ms);
    if (pr->args.tp > 1 && pr->forms.n > 0) {
        bool own = pr->config.slices > 0 && pr->rank == 0;
        nmlp_json_put_string(w, "split", own ? "slices" : pr->low.by_rank ? "rank" : "width");
        nmlp_json_put_string(w, "best_split", best_split(pr));
    }
    if (pr->slices.e2e_ms > 0) {
        nmlp_json_begin_object(w, "slices");
        put_prediction(w, &pr->slices);
        nmlp_json_end_object(w);
    }
    nmlp_json_begin_object(w, "dense");
    put_prediction(w, &pr->dense);
    nmlp_json_end_object(w);
    nmlp_json_put_number(w, "seconds", pr->seconds);
    put_forms(w, &pr->forms);
    return nmlp_json_out_end(&out, pr->cli);
}

static void print_splits(const predicting *pr) {
    const nmlp_prediction *d = &pr->dense, *l = &pr->low, *s = &pr->slices;
    bool own = pr->config.slices > 0 && pr->rank == 0;
    if (pr->forms.n == 0) return;
    if (pr->args.tp > 1 && own)
        printf("  each of %lld slices has factors of its own\n", (long long)pr->config.slices);
    else if (pr->args.tp > 1)
        printf("  factors are split by %s (decode)\n", l->by_rank ? "rank" : "intermediate width");
    if (s->e2e_ms > 0)
        printf("  with factors of its own for every core's slice (compress --shards %lld), as many parameters:\n"
               "    TPOT %.3f ms, end to end %.1f ms (%.2fx)\n",
               (long long)pr->args.tp, s->tpot_ms, s->e2e_ms, d->e2e_ms / s->e2e_ms);
    const char *best = best_split(pr);
    if (strcmp(best, "dense") == 0)
        printf("  dense is faster here: %.1f ms\n", d->e2e_ms);
    else if (pr->args.tp > 1)
        printf("  best split: %s\n", best);
}

static void print_human(const predicting *pr) {
    const nmlp_prediction *d = &pr->dense, *l = &pr->low;
    printf("%s on %s, %lld core%s, batch %lld, prompt %lld, %lld generated, MLP kernels: %s (simulated)\n\n",
           pr->cli->positionals[0], pr->machine.name, (long long)pr->args.tp, pr->args.tp == 1 ? "" : "s",
           (long long)pr->args.batch, (long long)pr->args.prompt, (long long)pr->args.generate, pr->args.mlp);
    printf("  %-14s %12s %12s %9s\n", "", "dense", "compressed", "speed-up");
    printf("  %-14s %12.2f %12.2f %8.2fx\n", "TTFT (ms)", d->ttft_ms, l->ttft_ms, d->ttft_ms / l->ttft_ms);
    printf("  %-14s %12.3f %12.3f %8.2fx\n", "TPOT (ms)", d->tpot_ms, l->tpot_ms, d->tpot_ms / l->tpot_ms);
    printf("  %-14s %12.1f %12.1f %8.2fx\n", "end to end (ms)", d->e2e_ms, l->e2e_ms, d->e2e_ms / l->e2e_ms);
    printf("  %-14s %12.1f %12.1f %8.2fx\n", "tokens/s", d->tokens_per_s, l->tokens_per_s,
           l->tokens_per_s / d->tokens_per_s);
    print_splits(pr);
    if (pr->rank)
        printf("  ratio %g: rank %lld of gate, up and down\n", pr->args.ratio, (long long)pr->rank);
    else if (pr->forms.n > 0)
        printf("  ratio %g: the ranks of the checkpoint, %zu form%s of MLP\n", pr->args.ratio, pr->forms.n,
               pr->forms.n == 1 ? "" : "s");
    else
        printf("  no --ratio: both columns are dense\n");
    if (pr->args.fp8) printf("  fp8: weights of the MLPs under \"compressed\"\n");
    printf("\n  %-14s %25s %27s\n  %-14s %12s %12s  %12s %12s\n", "one pass (us)", "prefill", "decode", "", "dense",
           "compressed", "dense", "compressed");
#define PRINT_PART(part)                                                                                               \
    printf("  %-14s %12.1f %12.1f  %12.1f %12.1f\n", #part, d->prefill.part, l->prefill.part, d->decode.part,          \
           l->decode.part);
    NMLP_PREDICT_PARTS(PRINT_PART)
#undef PRINT_PART
}

static int run(int argc, char **argv) {
    predicting pr = {
        .args = {.dtype = "bf16", .mlp = "ours", .prompt = 1024, .generate = 128, .batch = 1, .tp = 1, .tile = 128}};
    predict_args *a = &pr.args;
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &a->target, "TARGET", "trn1, trn2, trn3 or a machine file"},
        {"cluster", 0, NMLP_OPT_STRING, &a->cluster, "nodes=P,latency_us=X,gbit=X,read_gbs=X[,bits=X]",
         "instead: P machines that share the model over a network; without MODEL: seven of them"},
        {"ratio", 0, NMLP_OPT_NUMBER, &a->ratio, "R", "fraction of the MLP parameters removed"},
        {"tile", 0, NMLP_OPT_INT, &a->tile, "T", "rank granularity (default 128)"},
        {"prompt", 0, NMLP_OPT_INT, &a->prompt, "N", "prompt tokens (default 1024)"},
        {"generate", 0, NMLP_OPT_INT, &a->generate, "M", "generated tokens (default 128)"},
        {"batch", 0, NMLP_OPT_INT, &a->batch, "B", "sequences that run together (default 1)"},
        {"mlp", 0, NMLP_OPT_STRING, &a->mlp, "ours|paper|aws",
         "whose kernels compute the MLPs (default ours; paper: dense ones are AWS's)"},
        {"tp", 0, NMLP_OPT_INT, &a->tp, "N", "cores that share the model (default 1)"},
        {"dtype", 0, NMLP_OPT_STRING, &a->dtype, "bf16|fp16|fp32", "of tensors and SBUF data (default bf16)"},
        {"fp8", 0, NMLP_OPT_FLAG, &a->fp8, NULL,
         "MLPs of the compressed model (or, without --ratio, the dense one) in fp8"},
        {"cache", 0, NMLP_OPT_STRING, &a->cache, "FILE", "remember plans in FILE"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_predict, opts, sizeof opts / sizeof opts[0], 0, 1, argc, argv);
    if (code >= 0) return code;
    if (a->tile < 1 || a->tile > NMLP_RANK_TILE_MAX)
        return nmlp_cli_usage(&cli, "--tile is %lld; it must be from 1 to %d", (long long)a->tile, NMLP_RANK_TILE_MAX);
    if (a->cluster && a->target) return nmlp_cli_usage(&cli, "--cluster and --target exclude each other");
    if (a->cluster && (code = nmlp_cli_refuse(&cli, "batch mlp tp dtype fp8 cache", "does not go with --cluster")) >= 0)
        return code;
    if (!a->cluster && a->ratio == 0 && (code = nmlp_cli_refuse(&cli, "tile", "goes with --ratio")) >= 0) return code;
    if (a->cluster)
        return nmlp_predict_cluster_run(&cli, &(nmlp_predict_cluster){.spec = a->cluster,
                                                                      .model = cli.positionals[0],
                                                                      .ratio = a->ratio,
                                                                      .tile = a->tile,
                                                                      .prompt = a->prompt,
                                                                      .generate = a->generate});
    if (cli.n_positionals < 1)
        return nmlp_cli_usage(&cli, "an argument is missing; usage: neuronmlp predict %s", nmlp_cmd_predict.usage);
    if (!a->target) return nmlp_cli_usage(&cli, "--target is needed");
    pr.cli = &cli;
    nmlp_err err = {0};
    if (predict(&pr, &err) != NMLP_OK)
        code = nmlp_cli_fail(&cli, &err);
    else if (cli.json)
        code = print_json(&pr);
    else
        print_human(&pr), code = NMLP_EXIT_OK;
    nmlp_mlp_forms_fini(&pr.forms);
    return code;
}

const nmlp_command nmlp_cmd_predict = {
    .name = "predict",
    .summary = "time of a whole model on Trainium (simulated) or on a cluster",
    .usage = "MODEL|PRESET --target TARGET | [MODEL|PRESET] --cluster SPEC [--ratio R] [options]",
    .about = "Time to the first token, time per token and the whole request, from simulated kernels for every "
             "matrix of the model. With --cluster: time per token on machines that share the model, for each way to "
             "split the MLPs, by arithmetic.",
    .examples = "neuronmlp predict llama-3.2-1b --target trn1 --ratio 0.2 --prompt 512 --generate 64\n"
                "neuronmlp predict models/tiny --target trn2 --json\n"
                "neuronmlp predict --cluster nodes=8,latency_us=30,gbit=10,read_gbs=100\n",
    .run = run,
};
