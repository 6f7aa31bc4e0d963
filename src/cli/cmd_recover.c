/* neuronmlp recover: train a compressed model's factors until it is accurate again. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/target.h"
#include "cli/commands.h"
#include "cli/stop.h"
#include "cluster/cluster.h"
#include "report/curve.h"
#include "text/tokenizer.h"
#include "train/recover.h"

enum { PATH_MAX_BYTES = 4096 };

/* Words of the command line that are not numbers yet. */
struct words {
    const char *output;
    const char *teacher;
    const char *text;
    const char *mode;
    const char *train;
    int64_t seed;
    double peer_timeout_s;
};

/* Where lines go while it trains. */
struct screen {
    nmlp_cli_bar *bar;
    double printed_s;
};

static void show_step(void *ctx, const nmlp_recover_step *s, const nmlp_recover_pace *pace) {
    struct screen *screen = ctx;
    double now = nmlp_clock_seconds();
    bool measured = isfinite(s->heldout_ppl);
    if (!measured && now - screen->printed_s < 10) return;
    screen->printed_s = now;
    nmlp_cli_progress_end(screen->bar);
    if (s->step == 0) {
        fprintf(stderr, "before training  held-out ppl %.3f\n", s->heldout_ppl);
        return;
    }
    fprintf(stderr, "step %lld/%lld  loss %.4f", (long long)s->step, (long long)pace->steps, s->loss);
    if (measured) fprintf(stderr, "  held-out ppl %.3f", s->heldout_ppl);
    fprintf(stderr, "  %.0f tokens/s  %d:%02d left\n", pace->tokens_per_s, (int)(pace->eta_s / 60),
            (int)pace->eta_s % 60);
}

static nmlp_status write_curve(void *ctx, const nmlp_recover_step *log, int64_t n_log, const char *dir, nmlp_err *err) {
    (void)ctx;
    char path[PATH_MAX_BYTES];
    nmlp_str svg;
    nmlp_status st = NMLP_OK;
    double *columns = nmlp_mem_new((size_t)(3 * n_log), sizeof *columns, err);
    if (!columns) return NMLP_E_NOMEM;
    double *loss = columns + n_log;
    double *ppl = loss + n_log;
    for (int64_t i = 0; i < n_log; i++) {
        columns[i] = (double)log[i].step;
        loss[i] = log[i].loss;
        ppl[i] = log[i].heldout_ppl;
    }
    nmlp_curve curves[] = {{.title = "training loss", .x = columns, .y = loss, .n = n_log},
                           {.title = "held-out perplexity", .x = columns, .y = ppl, .n = n_log}};
    nmlp_str_init(&svg);
    nmlp_curve_svg(&svg, "step", curves, 2);
    NMLP_TRY(nmlp_str_status(&svg, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, "recovery.svg", err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&svg), svg.len, err));
out:
    nmlp_str_fini(&svg);
    nmlp_mem_free(columns);
    return st;
}

static int print_result(const nmlp_cli *cli, const nmlp_recover_report *r, const char *dir) {
    if (!cli->json) {
        printf("%s: held-out perplexity %.3f -> %.3f (best of step %lld), %lld steps, %lld tokens, %.0f s%s\n", dir,
               r->heldout_ppl_before, r->heldout_ppl_after, (long long)r->best_step, (long long)r->steps,
               (long long)r->tokens, r->seconds, r->stopped_early ? ", stopped early" : "");
        return NMLP_EXIT_OK;
    }
    nmlp_json_writer w;
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_int(&w, "steps", r->steps);
    nmlp_json_put_int(&w, "tokens", r->tokens);
    nmlp_json_put_int(&w, "trained_params", r->trained_params);
    nmlp_json_put_number(&w, "loss_first", r->loss_first);
    nmlp_json_put_number(&w, "loss_last", r->loss_last);
    nmlp_json_put_number(&w, "heldout_ppl_before", r->heldout_ppl_before);
    nmlp_json_put_number(&w, "heldout_ppl_after", r->heldout_ppl_after);
    nmlp_json_put_int(&w, "best_step", r->best_step);
    nmlp_json_put_bool(&w, "stopped_early", r->stopped_early);
    nmlp_json_put_number(&w, "seconds", r->seconds);
    nmlp_json_put_number(&w, "tokens_per_s", r->tokens_per_s);
    nmlp_json_put_string(&w, "output", dir);
    nmlp_json_end_object(&w);
    int code = nmlp_cli_print_json(cli, &out);
    nmlp_str_fini(&out);
    return code;
}

static nmlp_status read_words(const struct words *words, nmlp_recover_options *o, nmlp_err *err) {
    if (strcmp(words->mode, "lora") == 0)
        o->mode = NMLP_RECOVER_LORA;
    else if (strcmp(words->mode, "factors") != 0)
        return nmlp_fail(err, NMLP_E_ARG, "--mode %s: must be factors or lora", words->mode);
    if (strcmp(words->train, "mlp") == 0)
        o->set = NMLP_TRAIN_MLP;
    else if (strcmp(words->train, "all") == 0)
        o->set = NMLP_TRAIN_ALL;
    else if (strcmp(words->train, "factors") != 0)
        return nmlp_fail(err, NMLP_E_ARG, "--train %s: must be factors, mlp or all", words->train);
    o->seed = (uint64_t)words->seed;
    return NMLP_OK;
}

static nmlp_status recover(const nmlp_cli *cli, const struct words *words, nmlp_recover_options *o,
                           nmlp_recover_report *report, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    struct screen screen = {.bar = &bar};
    nmlp_model model = {0};
    nmlp_model teacher = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    NMLP_TRY(read_words(words, o, err));
    NMLP_TRY(nmlp_model_open(&model, cli->positionals[0], err));
    if (nmlp_group_leads(o->group)) NMLP_TRY(nmlp_target_check(words->output, model.checkpoint.dir, err));
    if (words->teacher) {
        NMLP_TRY(nmlp_model_open(&teacher, words->teacher, err));
        o->teacher = &teacher;
    }
    NMLP_TRY(nmlp_tokenizer_encode_file(model.checkpoint.dir, words->text, &ids, err));
    NMLP_TRY(nmlp_pool_create(&o->pool, (int)cli->n_threads, err));
    o->progress = &progress;
    if (nmlp_group_leads(o->group)) o->on_step = show_step;
    o->on_write = write_curve;
    o->ctx = &screen;
    NMLP_TRY(nmlp_recover(&model, ids.data, (int64_t)ids.len, words->output, o, report, err));
out:
    nmlp_cli_progress_end(&bar);
    nmlp_pool_destroy(o->pool);
    nmlp_ids_fini(&ids);
    nmlp_model_close(&teacher);
    nmlp_model_close(&model);
    return st;
}

static int run(int argc, char **argv) {
    struct words words = {.mode = "factors", .train = "factors", .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S};
    nmlp_recover_options o = nmlp_recover_defaults();
    double explore = NAN; /* not given */
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &words.output, "DIR", "where to write the trained checkpoint"},
        {"teacher", 0, NMLP_OPT_STRING, &words.teacher, "MODEL", "dense model to imitate (default: next-token loss)"},
        {"match", 0, NMLP_OPT_NUMBER, &o.match, "X", "weight of imitating the teacher's hidden states too (default 0)"},
        {"explore", 0, NMLP_OPT_NUMBER, &explore, "X",
         "share of the training text that the teacher writes itself (default a third, without a teacher 0)"},
        {"text", 0, NMLP_OPT_STRING, &words.text, "FILE", "training text; a part of it is held out"},
        {"steps", 0, NMLP_OPT_INT, &o.steps, "N", "updates (default 200)"},
        {"lr", 0, NMLP_OPT_NUMBER, &o.rate, "X", "peak learning rate (default 3e-4; lora 1e-3)"},
        {"warmup", 0, NMLP_OPT_INT, &o.warmup, "N", "steps until the peak (default 10)"},
        {"batch", 0, NMLP_OPT_INT, &o.batch, "N", "sequences in a step (default 8)"},
        {"ctx", 0, NMLP_OPT_INT, &o.context, "N", "tokens in a sequence (default 512, or what the model takes)"},
        {"mode", 0, NMLP_OPT_STRING, &words.mode, "factors|lora", "train the weights or adapters to them"},
        {"lora-rank", 0, NMLP_OPT_INT, &o.lora_rank, "N", "rank of the adapters (default 16)"},
        {"train", 0, NMLP_OPT_STRING, &words.train, "factors|mlp|all", "which weights (default factors)"},
        {"clip", 0, NMLP_OPT_NUMBER, &o.clip, "X", "largest gradient norm (default 1; 0: none)"},
        {"weight-decay", 0, NMLP_OPT_NUMBER, &o.weight_decay, "X", "of AdamW (default 0)"},
        {"seed", 0, NMLP_OPT_SEED, &words.seed, "N", "order of the text, start of adapters (default 0)"},
        {"eval-every", 0, NMLP_OPT_INT, &o.eval_every, "N", "steps between held-out evaluations (default 25)"},
        {"heldout", 0, NMLP_OPT_INT, &o.heldout, "N", "sequences held out, at most a tenth (default 32)"},
        {"patience", 0, NMLP_OPT_INT, &o.patience, "N", "evaluations without gain before it stops (default 8)"},
        {"resume", 0, NMLP_OPT_FLAG, &o.resume, NULL, "go on where an interrupted run stopped"},
        {"isa", 0, NMLP_OPT_STRING, &o.isa, "NAME",
         "kernel set: auto, ref, avx2, avx512, avx512bf16, amx (bf16 products)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &words.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
    };
    nmlp_cli cli;
    nmlp_err err = {0};
    nmlp_recover_report report = {0};
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_recover, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!words.output) return nmlp_cli_usage(&cli, "-o DIR is needed");
    if (!words.text) return nmlp_cli_usage(&cli, "--text FILE is needed");
    if (explore < 0) return nmlp_cli_usage(&cli, "--explore is %g; it must be 0 or more", explore);
    if (!words.teacher && (code = nmlp_cli_refuse(&cli, "match", "goes with --teacher")) >= 0) return code;
    if (strcmp(words.mode, "lora") != 0 && (code = nmlp_cli_refuse(&cli, "lora-rank", "goes with --mode lora")) >= 0)
        return code;
    if (!isnan(explore)) o.explore = explore;
    nmlp_cluster *cluster;
    if (nmlp_cluster_join(&cluster, words.peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(&cli, &err);
    o.group = nmlp_cluster_group(cluster);
    code = NMLP_EXIT_OK;
    if (recover(&cli, &words, &o, &report, &err) != NMLP_OK) {
        code = nmlp_cli_fail(&cli, &err);
    } else if (nmlp_group_leads(o.group)) {
        code = print_result(&cli, &report, words.output);
    }
    nmlp_recover_report_fini(&report);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

const nmlp_command nmlp_cmd_recover = {
    .name = "recover",
    .summary = "train a compressed model's factors until it is accurate again",
    .usage = "MODEL -o DIR --text FILE [--teacher DENSE] [--steps N]",
    .about = "Only the factors are trained, on --text, with the dense model as --teacher where one is given. "
             "An interrupted run goes on with --resume.",
    .examples = "neuronmlp recover models/tiny -o /tmp/tiny-trained --text models/tiny/calib.txt --train mlp --steps 2 "
                "--batch 2 --ctx 64 --heldout 2\n",
    .run = run,
    .clustered = true,
};
