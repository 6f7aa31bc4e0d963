/* neuronmlp eval: perplexity of a text, accuracy on multiple-choice questions, or a suite of both. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/eval_divergence.h"
#include "cli/stop.h"
#include "cli/model_args.h"
#include "cluster/cluster.h"
#include "eval/result.h"
#include "eval/suite.h"

enum { TEXT_MAX_BYTES = 1 << 30 };

struct eval_options {
    const char *text;
    const char *preset;
    const char *task;
    const char *task_file;
    const char *data;
    const char *labels;
    const char *suite;
    const char *data_dir;
    const char *resume;
    const char *format;
    const char *reference;
    int64_t limit;
    bool no_bos;
    double peer_timeout_s;
    nmlp_ppl_options ppl;
    nmlp_load_options load;
};

/* Questions get what the tokenizer adds by itself, as in the harness; texts nothing, as in the papers. */
static nmlp_bos task_bos(const struct eval_options *o) {
    return o->ppl.bos ? NMLP_BOS_ALWAYS : o->no_bos ? NMLP_BOS_NONE : NMLP_BOS_TEMPLATE;
}

/* A model with its tokenizer. */
struct subject {
    nmlp_tokenizer *tokenizer;
    nmlp_loaded loaded;
};

static nmlp_status open_subject(struct subject *s, const nmlp_cli *cli, const char *dir, const struct eval_options *o,
                                nmlp_err *err) {
    *s = (struct subject){0};
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_load(&s->tokenizer, dir, err));
    return nmlp_cli_load(&s->loaded, cli, dir, &o->load, err);
}

static void close_subject(struct subject *s) {
    nmlp_unload(&s->loaded);
    nmlp_tokenizer_destroy(s->tokenizer);
    *s = (struct subject){0};
}

/* Begins the one JSON object with what all kinds share. */
static void begin_json(nmlp_json_writer *w, nmlp_str *out, const char *model, const nmlp_str *protocol) {
    nmlp_str_init(out);
    nmlp_json_writer_init(w, out);
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "model", model);
    nmlp_json_put_string(w, "protocol", nmlp_str_text(protocol));
    out->failed |= protocol->failed;
}

static int end_json(const nmlp_cli *cli, nmlp_json_writer *w, nmlp_str *out) {
    nmlp_json_end_object(w);
    int code = nmlp_cli_print_json(cli, out);
    nmlp_str_fini(out);
    return code;
}

/* Four places; of what is no language, whose word perplexity may have hundreds of digits, as many as are known. */
static void print_perplexity(const char *name, double x) { printf(x < 1e6 ? "%-14s %.4f" : "%-14s %.10g", name, x); }

static void print_ppl(const nmlp_ppl_result *r) {
    printf("tokens         %" PRId64 " (%" PRId64 " scored)\n", r->n_tokens, r->n_scored);
    printf("nll            %.6f per token\n", r->nll);
    print_perplexity("ppl", r->ppl);
    putchar('\n');
    print_perplexity("word_ppl", r->word_ppl);
    printf(" (%" PRId64 " words)\n", r->n_words);
    printf("bits_per_byte  %.6f (%" PRId64 " bytes)\n", r->bits_per_byte, r->n_bytes);
    fprintf(stderr, "[%.1f s, %.0f tokens/s]\n", r->seconds, (double)r->n_run / r->seconds);
}

static int run_text(const nmlp_cli *cli, const struct eval_options *o) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    struct subject s = {0};
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_ppl_options options = o->ppl;
    nmlp_ppl_result result;
    nmlp_provenance provenance;
    nmlp_str text, protocol;
    int code = NMLP_EXIT_OK;
    nmlp_str_init(&text);
    nmlp_str_init(&protocol);
    NMLP_TRY(nmlp_input_read(&text, o->text, TEXT_MAX_BYTES, &err));
    NMLP_TRY(open_subject(&s, cli, cli->positionals[0], o, &err));
    NMLP_TRY(nmlp_provenance_read(&provenance, s.loaded.engine, &err));
    NMLP_TRY(nmlp_ppl_options_check(&options, &s.loaded.model.config, &err));
    options.progress = &progress;
    nmlp_ppl_describe(&protocol, &options);
    if (o->preset && nmlp_group_leads(o->load.group))
        fprintf(stderr, "%s: %s; %s\n", o->preset, nmlp_ppl_preset_find(o->preset)->about, nmlp_str_text(&protocol));
    st = nmlp_perplexity(&result, s.loaded.engine, s.tokenizer, nmlp_str_text(&text), text.len, &options, &err);
    nmlp_cli_progress_end(&bar);
    if (st != NMLP_OK || !nmlp_group_leads(o->load.group)) goto out;
    if (cli->json) {
        nmlp_json_writer w;
        nmlp_str out;
        begin_json(&w, &out, cli->positionals[0], &protocol);
        nmlp_json_put_string(&w, "text", o->text);
        if (o->preset) nmlp_json_put_string(&w, "preset", o->preset);
        nmlp_ppl_put(&w, &result);
        nmlp_provenance_put(&w, &provenance);
        code = end_json(cli, &w, &out);
    } else {
        print_ppl(&result);
    }
out:
    close_subject(&s);
    nmlp_str_fini(&text);
    nmlp_str_fini(&protocol);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}

static void print_choice(const nmlp_task *task, const nmlp_choice_result *r) {
    printf("task      %s\n", task->name);
    printf("n         %" PRId64 "\n", r->n);
    printf("acc       %.4f ± %.4f\n", r->acc, r->acc_stderr);
    printf("acc_norm  %.4f ± %.4f\n", r->acc_norm, r->acc_norm_stderr);
    fprintf(stderr, "[%.1f s, %" PRId64 " tokens at %.0f tokens/s, %.0f %% saved by shared beginnings]\n", r->seconds,
            r->n_run, (double)r->n_run / r->seconds, 100 * (1 - (double)r->n_run / (double)r->n_whole));
    if (r->n_truncated)
        fprintf(stderr, "[%" PRId64 " sequences were cut at their beginning to fit the model]\n", r->n_truncated);
}

static int print_choice_json(const nmlp_cli *cli, const struct eval_options *o, const nmlp_task *task,
                             const nmlp_choice_result *r, const nmlp_provenance *provenance) {
    nmlp_json_writer w;
    nmlp_str out, protocol;
    nmlp_str_init(&protocol);
    nmlp_task_describe(&protocol, task, task_bos(o));
    begin_json(&w, &out, cli->positionals[0], &protocol);
    nmlp_json_put_string(&w, "task", task->name);
    nmlp_json_put_string(&w, "data", o->data);
    nmlp_choice_put(&w, r, true);
    nmlp_provenance_put(&w, provenance);
    int code = end_json(cli, &w, &out);
    nmlp_str_fini(&protocol);
    return code;
}

static nmlp_status choose_task(const nmlp_task **task, nmlp_task *own, nmlp_arena *arena, const struct eval_options *o,
                               nmlp_err *err) {
    *task = own;
    if (o->task_file) return nmlp_task_load(own, arena, o->task_file, err);
    *task = nmlp_task_find(o->task);
    if (*task) return NMLP_OK;
    nmlp_fail(err, NMLP_E_ARG, "--task %s: unknown", o->task);
    nmlp_str names;
    nmlp_str_init(&names);
    for (size_t i = 0; nmlp_task_at(i); i++) nmlp_str_printf(&names, "%s%s", i ? ", " : "", nmlp_task_at(i)->name);
    nmlp_fail_hint(err, "there are %s; describe another with --task-file", nmlp_str_text(&names));
    nmlp_str_fini(&names);
    return NMLP_E_ARG;
}

static int run_task(const nmlp_cli *cli, const struct eval_options *o) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    struct subject s = {0};
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_arena arena;
    nmlp_task own;
    const nmlp_task *task;
    nmlp_questions questions = {0};
    nmlp_choice_result result = {0};
    nmlp_provenance provenance;
    int code = NMLP_EXIT_OK;
    nmlp_arena_init(&arena);
    NMLP_TRY(choose_task(&task, &own, &arena, o, &err));
    NMLP_TRY(nmlp_questions_load(&questions, task, o->data,
                                 &(nmlp_questions_options){.labels_path = o->labels, .limit = o->limit}, &err));
    NMLP_TRY(open_subject(&s, cli, cli->positionals[0], o, &err));
    NMLP_TRY(nmlp_provenance_read(&provenance, s.loaded.engine, &err));
    nmlp_choice_options options = {.bos = task_bos(o), .stage = task->name, .progress = &progress};
    st = nmlp_choice_eval(&result, s.loaded.engine, s.tokenizer, &questions, &options, &err);
    nmlp_cli_progress_end(&bar);
    if (st != NMLP_OK || !nmlp_group_leads(o->load.group)) goto out;
    if (cli->json) {
        code = print_choice_json(cli, o, task, &result, &provenance);
    } else {
        print_choice(task, &result);
    }
out:
    nmlp_choice_result_free(&result);
    nmlp_questions_free(&questions);
    close_subject(&s);
    nmlp_arena_fini(&arena);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}

static nmlp_status run_models(nmlp_suite_row *rows, const nmlp_cli *cli, const struct eval_options *o,
                              const nmlp_suite *suite, nmlp_eval_state *state, nmlp_err *err) {
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_suite_options options = {.data_dir = o->data_dir,
                                  .limit = o->limit,
                                  .max_tokens = o->ppl.max_tokens,
                                  .ctx = o->ppl.ctx,
                                  .bos = o->ppl.bos,
                                  .task_bos = task_bos(o),
                                  .state = o->resume ? state : NULL,
                                  .progress = &progress};
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < cli->n_positionals && st == NMLP_OK; i++) {
        struct subject s;
        rows[i].model = cli->positionals[i];
        st = open_subject(&s, cli, cli->positionals[i], o, err);
        if (st == NMLP_OK) st = nmlp_suite_run(&rows[i], suite, s.loaded.engine, s.tokenizer, &options, err);
        if (st != NMLP_OK) nmlp_fail_context(err, "%s", cli->positionals[i]);
        nmlp_cli_progress_end(&bar);
        close_subject(&s);
    }
    if (st != NMLP_OK && o->resume && state->n)
        nmlp_fail_hint(err, "what was finished is in %s; the same command goes on from there", o->resume);
    return st;
}

static int print_suite(const nmlp_cli *cli, const struct eval_options *o, const nmlp_suite *suite,
                       const nmlp_suite_row *rows) {
    nmlp_str out;
    size_t n = (size_t)cli->n_positionals;
    nmlp_str_init(&out);
    if (cli->json || strcmp(o->format, "json") == 0) {
        nmlp_json_writer w;
        nmlp_json_writer_init(&w, &out);
        nmlp_json_begin_object(&w, NULL);
        nmlp_suite_put(&w, suite, rows, n);
        nmlp_json_end_object(&w);
        int code = nmlp_cli_print_json(cli, &out);
        nmlp_str_fini(&out);
        return code;
    }
    nmlp_suite_table(&out, suite, rows, n,
                     strcmp(o->format, "markdown") == 0 ? NMLP_TABLE_MARKDOWN
                     : strcmp(o->format, "csv") == 0    ? NMLP_TABLE_CSV
                                                        : NMLP_TABLE_TEXT);
    int code = nmlp_cli_print_text(cli, &out);
    nmlp_str_fini(&out);
    return code;
}

static int run_suite(const nmlp_cli *cli, const struct eval_options *o) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_eval_state state = {0};
    int code = NMLP_EXIT_OK;
    nmlp_suite_row *rows = nmlp_mem_new((size_t)cli->n_positionals, sizeof *rows, &err);
    if (!rows) return nmlp_cli_fail(cli, &err);
    if (o->resume) NMLP_TRY(nmlp_eval_state_open(&state, o->resume, &err));
    const nmlp_suite *suite = nmlp_suite_find(o->suite);
    NMLP_TRY(run_models(rows, cli, o, suite, &state, &err));
    if (nmlp_group_leads(o->load.group)) code = print_suite(cli, o, suite, rows);
out:
    nmlp_eval_state_close(&state);
    nmlp_mem_free(rows);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}

/* -1: sound. */
static int check_divergence(const nmlp_cli *cli, const struct eval_options *o) {
    if (o->text || o->task || o->task_file || o->suite || o->data || o->labels || o->data_dir || o->resume || o->limit)
        return nmlp_cli_usage(cli, "--kl compares two models on the texts behind MODEL: no --text, --task or --suite");
    if (cli->n_positionals < 2) return nmlp_cli_usage(cli, "--kl needs one or more texts: MODEL TEXT... --kl DIR");
    return nmlp_cli_refuse(cli, "stride rolling preset format no-bos peer-timeout", "does not go with --kl");
}

/* What would be ignored; -1: nothing. */
static int check_ignored(const nmlp_cli *cli, const struct eval_options *o) {
    int code = -1;
    if (o->ppl.bos) code = nmlp_cli_refuse(cli, "no-bos", "and --bos exclude each other");
    if (code < 0 && o->ppl.rolling) code = nmlp_cli_refuse(cli, "no-bos", "does not go with --rolling");
    if (code < 0 && !o->suite) code = nmlp_cli_refuse(cli, "format data-dir resume", "goes with --suite");
    if (code < 0 && o->text)
        code = nmlp_cli_refuse(cli, "limit data labels", "does not go with --text; --max-tokens shortens a text");
    if (code < 0 && o->suite)
        code = nmlp_cli_refuse(cli, "data labels stride keep-partial rolling special", "does not go with --suite");
    if (code < 0 && (o->task || o->task_file))
        code = nmlp_cli_refuse(cli, "ctx stride max-tokens keep-partial rolling special", "does not go with --task");
    return code < 0 && !o->text ? nmlp_cli_refuse(cli, "preset", "goes with --text") : code;
}

static int check(const nmlp_cli *cli, struct eval_options *o) {
    static const char *const formats[] = {"text", "markdown", "csv", "json"};
    bool known = false;
    for (size_t i = 0; i < 4; i++) known |= strcmp(o->format, formats[i]) == 0;
    if (!known) return nmlp_cli_usage(cli, "--format %s: must be text, markdown, csv or json", o->format);
    if (o->reference) return check_divergence(cli, o);
    bool task = o->task || o->task_file;
    if ((o->text != NULL) + task + (o->suite != NULL) != 1)
        return nmlp_cli_usage(cli, "one of --text FILE, --task NAME and --suite NAME is needed");
    if (o->task && o->task_file) return nmlp_cli_usage(cli, "--task and --task-file exclude each other");
    if (task && !o->data) return nmlp_cli_usage(cli, "--task needs --data FILE");
    if (o->suite && !nmlp_suite_find(o->suite))
        return nmlp_cli_usage(cli, "--suite %s: must be paper or all", o->suite);
    if (o->suite && !o->data_dir) return nmlp_cli_usage(cli, "--suite needs --data-dir DIR");
    if (!o->suite && cli->n_positionals != 1) return nmlp_cli_usage(cli, "several models go with --suite only");
    if (o->preset && !nmlp_ppl_preset_find(o->preset))
        return nmlp_cli_usage(cli, "--preset %s: must be wikitext2, ptb or c4", o->preset);
    return check_ignored(cli, o);
}

/* Alone, or together with the other processes that a launcher started. */
static int run_joined(const nmlp_cli *cli, struct eval_options *o) {
    nmlp_err err;
    nmlp_cluster *cluster;
    if (nmlp_cluster_join(&cluster, o->peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    o->load.group = nmlp_cluster_group(cluster);
    int code = o->text ? run_text(cli, o) : o->suite ? run_suite(cli, o) : run_task(cli, o);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int run(int argc, char **argv) {
    struct eval_options o = {.format = "text", .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S};
    const nmlp_opt opts[] = {
        {"text", 0, NMLP_OPT_STRING, &o.text, "FILE", "perplexity of this text"},
        {"ctx", 'c', NMLP_OPT_INT, &o.ppl.ctx, "N", "tokens of a window (default: the model's maximum, at most 2048)"},
        {"stride", 0, NMLP_OPT_INT, &o.ppl.stride, "N", "a window every N tokens (default: ctx, no overlap)"},
        {"max-tokens", 0, NMLP_OPT_INT, &o.ppl.max_tokens, "N", "use the first N tokens of a text (default: all)"},
        {"keep-partial", 0, NMLP_OPT_FLAG, &o.ppl.keep_partial, NULL, "score a last window that is not full too"},
        {"rolling", 0, NMLP_OPT_FLAG, &o.ppl.rolling, NULL,
         "lm-eval's rolling windows: every token scored, the first behind BOS or EOS"},
        {"bos", 0, NMLP_OPT_FLAG, &o.ppl.bos, NULL,
         "put the begin-of-text token in front (default: of questions what the tokenizer adds itself)"},
        {"no-bos", 0, NMLP_OPT_FLAG, &o.no_bos, NULL, "no special tokens in front of questions either"},
        {"special", 0, NMLP_OPT_FLAG, &o.ppl.parse_special, NULL,
         "special tokens spelled in the --text become their ids (else they are text)"},
        {"preset", 0, NMLP_OPT_STRING, &o.preset, "wikitext2|ptb|c4", "protocol of the SVD papers"},
        {"task", 0, NMLP_OPT_STRING, &o.task, "NAME",
         "arc_easy, arc_challenge, hellaswag, piqa, openbookqa, winogrande, mathqa"},
        {"task-file", 0, NMLP_OPT_STRING, &o.task_file, "FILE", "a task described in JSON (docs/evaluation.md)"},
        {"data", 0, NMLP_OPT_STRING, &o.data, "FILE", "the task's questions: JSON Lines, JSON, CSV"},
        {"labels", 0, NMLP_OPT_STRING, &o.labels, "FILE", "their answers, where they are in a second file"},
        {"limit", 0, NMLP_OPT_INT, &o.limit, "N", "only the first N questions (default: all)"},
        {"suite", 0, NMLP_OPT_STRING, &o.suite, "paper|all", "paper: its nine data sets; all: ARC-Easy too"},
        {"data-dir", 0, NMLP_OPT_STRING, &o.data_dir, "DIR", "where the suite's files are"},
        {"resume", 0, NMLP_OPT_STRING, &o.resume, "FILE", "keep results here and take what is there already"},
        {"format", 0, NMLP_OPT_STRING, &o.format, "NAME", "of the suite's table: text, markdown, csv, json"},
        {"kl", 0, NMLP_OPT_STRING, &o.reference, "DIR",
         "compare with this checkpoint on the texts behind MODEL: KL divergence of the next token"},
        {"adapter", 0, NMLP_OPT_STRING, &o.load.adapter, "DIR", "LoRA adapter of PEFT to merge into the weights"},
        {"device", 0, NMLP_OPT_STRING, &o.load.device, "NAME",
         "cpu (default, exact), cuda (activations in bf16) or auto"},
        {"isa", 0, NMLP_OPT_STRING, &o.load.isa, "NAME", "kernel set: auto, ref, avx2, avx512, avx512bf16, amx"},
        {"precision", 0, NMLP_OPT_STRING, &o.load.precision, "P",
         "f32 (default, exact) or bf16 (faster with AMX, and on AMD)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &o.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
    };
    nmlp_cli cli;
    nmlp_cli_stop_install();
    int code =
        nmlp_cli_parse(&cli, &nmlp_cmd_eval, opts, sizeof opts / sizeof opts[0], 1, NMLP_POSITIONALS_MAX, argc, argv);
    if (code >= 0) return code;
    code = check(&cli, &o);
    if (code >= 0) return code;
    if (o.reference) return nmlp_eval_divergence(&cli, o.reference, &o.ppl, &o.load);
    return run_joined(&cli, &o);
}

const nmlp_command nmlp_cmd_eval = {
    .name = "eval",
    .summary = "measure a model: perplexity, multiple choice, the paper's table",
    .usage = "MODEL --text FILE | MODEL --task NAME --data FILE | MODEL... --suite paper --data-dir DIR | "
             "MODEL TEXT... --kl DIR",
    .about = "Perplexity of a text, accuracy on multiple-choice questions, both for one model or several side "
             "by side, or the distance of a model's predictions from those of another checkpoint (--kl).",
    .examples =
        "neuronmlp eval models/tiny --text models/tiny/calib.txt --max-tokens 2000\n"
        "neuronmlp eval models/tiny --text models/tiny/calib.txt --max-tokens 2000 --ctx 256 --stride 128 --json\n"
        "neuronmlp eval models/tiny models/tiny/calib.txt --kl models/tiny --ctx 256 --max-tokens 1024\n"
        "neuronmlp eval models/tiny --task-file docs/examples/capitals.task.json --data docs/examples/capitals.csv\n",
    .run = run,
    .clustered = true,
};
