/* neuronmlp run: generate text, streaming. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/model_args.h"
#include "cluster/cluster.h"
#include "service/text_session.h"

enum { PROMPT_MAX_BYTES = 64 << 20, NEW_TOKENS = 128 };

static const int64_t not_given = INT64_MIN;

struct run_options {
    const char *prompt;
    const char *prompt_file;
    const char *ids;
    const char *system;
    const char *draft;
    int64_t n;
    int64_t context;
    bool chat;
    bool ignore_eos;
    bool no_bos;
    bool no_special;
    int64_t seed;
    double peer_timeout_s;
    nmlp_sampling sampling;
    nmlp_load_options load;
};

/* What streaming has printed. */
struct output {
    const char *lead; /* the prompt, printed once there is something to print behind it; NULL: not, or no more */
    bool any_id;
};

static bool print_text(void *ctx, const char *text, size_t len) {
    struct output *o = ctx;
    if (o->lead) fputs(o->lead, stdout);
    o->lead = NULL;
    fwrite(text, 1, len, stdout);
    return fflush(stdout) == 0;
}

static bool print_id(void *ctx, const nmlp_text_token *token) {
    struct output *o = ctx;
    printf("%s%d", o->any_id ? " " : "", token->id);
    o->any_id = true;
    return true;
}

static nmlp_status encode_text(const struct run_options *r, const nmlp_tokenizer *tokenizer, const char *text,
                               size_t len, nmlp_ids *ids, nmlp_err *err) {
    nmlp_chat_message messages[2];
    nmlp_text_prompt prompt = {.text = text, .len = len, .no_bos = r->no_bos, .no_special = r->no_special};
    if (r->chat) {
        size_t n = 0;
        if (r->system) messages[n++] = (nmlp_chat_message){.role = "system", .content = r->system};
        messages[n++] = (nmlp_chat_message){.role = "user", .content = text};
        prompt = (nmlp_text_prompt){.messages = messages, .n_messages = n};
    }
    return nmlp_text_prompt_encode(ids, tokenizer, &prompt, err);
}

static nmlp_status read_prompt(const struct run_options *r, const nmlp_tokenizer *tokenizer, nmlp_ids *ids,
                               nmlp_err *err) {
    if (r->ids) return nmlp_cli_parse_ids(ids, r->ids, "--ids", err);
    if (r->prompt) return encode_text(r, tokenizer, r->prompt, strlen(r->prompt), ids, err);
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_input_read(&text, r->prompt_file, PROMPT_MAX_BYTES, err);
    if (st == NMLP_OK) st = encode_text(r, tokenizer, nmlp_str_text(&text), text.len, ids, err);
    nmlp_str_fini(&text);
    return st;
}

/* How processes share the model, as words; empty where there is one. */
static void put_split(nmlp_str *text, const nmlp_loaded *loaded) {
    if (loaded->split.splits) nmlp_split_choice_text(&loaded->split, loaded->model.config.n_layers, text);
}

static int print_json(const nmlp_cli *cli, const nmlp_text_result *r, const nmlp_loaded *loaded) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_bytes(w, "text", nmlp_str_text(&r->text), r->text.len);
    nmlp_json_begin_array(w, "ids");
    for (size_t i = 0; i < r->ids.len; i++) nmlp_json_put_int(w, NULL, r->ids.data[i]);
    nmlp_json_end_array(w);
    nmlp_json_put_int(w, "prompt_tokens", r->n_prompt);
    nmlp_json_put_int(w, "generated_tokens", (int64_t)r->ids.len);
    nmlp_json_put_string(w, "finish", nmlp_finish_name(r->finish));
    nmlp_json_put_number(w, "ttft_ms", r->ttft_ms);
    nmlp_json_put_number(w, "tpot_ms", nmlp_text_decode_ms_per_token(r));
    nmlp_json_put_number(w, "prefill_tok_s", nmlp_text_prefill_rate(r));
    nmlp_json_put_number(w, "decode_tok_s", nmlp_text_decode_rate(r));
    nmlp_json_put_int(w, "draft_proposed", r->n_proposed);
    nmlp_json_put_int(w, "draft_accepted", r->n_accepted);
    nmlp_json_put_string(w, "isa", nmlp_loaded_name(loaded));
    nmlp_str split;
    nmlp_str_init(&split);
    put_split(&split, loaded);
    if (split.len > 0) nmlp_json_put_string(w, "split", nmlp_str_text(&split));
    nmlp_str_fini(&split);
    return nmlp_json_out_end(&out, cli);
}

static void print_split(const nmlp_loaded *loaded) {
    nmlp_str text;
    nmlp_str_init(&text);
    put_split(&text, loaded);
    if (text.len > 0) fprintf(stderr, "[%d processes: %s]\n", (int)loaded->split.measured.nodes, nmlp_str_text(&text));
    nmlp_str_fini(&text);
}

static void print_stats(const nmlp_text_result *r, bool with_draft, const char *isa) {
    printf("\n");
    fflush(stdout);
    fprintf(stderr, "[%" PRId64 " prompt tokens in %.0f ms, %zu generated", r->n_prompt, r->ttft_ms, r->ids.len);
    if (nmlp_text_decode_rate(r) > 0) fprintf(stderr, " at %.1f tokens/s", nmlp_text_decode_rate(r));
    fprintf(stderr, ", %s kernels]\n", isa);
    if (with_draft)
        fprintf(stderr, "[the draft proposed %" PRId64 " tokens, %" PRId64 " were accepted]\n", r->n_proposed,
                r->n_accepted);
    if (r->finish == NMLP_FINISH_CONTEXT) fprintf(stderr, "[stopped: the context is full; raise --ctx]\n");
}

/* `draft` NULL: there is none. */
static nmlp_status generate(const struct run_options *r, const nmlp_loaded *loaded, const nmlp_loaded *draft,
                            const nmlp_tokenizer *tokenizer, const nmlp_ids *prompt, bool stream,
                            nmlp_text_result *result, nmlp_err *err) {
    struct output o = {.lead = r->chat ? NULL : r->prompt};
    nmlp_text_session *session = NULL;
    nmlp_text_request request = {.prompt = {.ids = prompt->data, .n_ids = prompt->len},
                                 .is_chat = r->chat,
                                 .max_new = r->n,
                                 .sampling = r->sampling,
                                 .ignore_eos = r->ignore_eos,
                                 .on_text = stream ? print_text : NULL,
                                 .on_token = stream && !tokenizer ? print_id : NULL,
                                 .ctx = &o};
    int64_t context = nmlp_text_context(&loaded->model.config, r->context, (int64_t)prompt->len, r->n);
    NMLP_RETURN_IF_FAILED(nmlp_text_session_create(&session, loaded, tokenizer, context, err));
    nmlp_status st = draft ? nmlp_text_session_set_draft(session, draft, err) : NMLP_OK;
    if (st == NMLP_OK) st = nmlp_text_session_run(session, &request, result, err);
    nmlp_text_session_destroy(session);
    if (st == NMLP_OK && stream && o.lead) fputs(o.lead, stdout); /* an answer without text */
    return st;
}

/* --chat without a prompt, on a terminal. */
static int converse(const nmlp_cli *cli, const struct run_options *r) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_loaded loaded = {0}, draft = {0};
    nmlp_tokenizer *tokenizer = NULL;
    nmlp_text_session *session = NULL;
    nmlp_conversation_options options = {
        .system = r->system, .max_new = r->n, .sampling = r->sampling, .ignore_eos = r->ignore_eos};
    NMLP_TRY(nmlp_sampling_check(&r->sampling, &err));
    NMLP_TRY(nmlp_tokenizer_load(&tokenizer, cli->positionals[0], &err));
    NMLP_TRY(nmlp_cli_load(&loaded, cli, cli->positionals[0], &r->load, &err));
    int64_t context = nmlp_text_context(&loaded.model.config, r->context, 0, INT64_MAX);
    if (options.max_new == not_given) options.max_new = context;
    NMLP_TRY(nmlp_text_session_create(&session, &loaded, tokenizer, context, &err));
    if (r->draft) NMLP_TRY(nmlp_cli_load(&draft, cli, r->draft, &r->load, &err));
    if (r->draft) NMLP_TRY(nmlp_text_session_set_draft(session, &draft, &err));
    NMLP_TRY(nmlp_conversation_run(session, tokenizer, &options, &err));
out:
    nmlp_text_session_destroy(session);
    nmlp_unload(&draft);
    nmlp_unload(&loaded);
    nmlp_tokenizer_destroy(tokenizer);
    return st == NMLP_OK ? NMLP_EXIT_OK : nmlp_cli_fail(cli, &err);
}

static int execute(const nmlp_cli *cli, const struct run_options *r) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_loaded loaded = {0}, draft = {0};
    nmlp_tokenizer *tokenizer = NULL;
    nmlp_ids prompt;
    nmlp_text_result result;
    int code = NMLP_EXIT_OK;
    nmlp_ids_init(&prompt);
    nmlp_text_result_init(&result);
    NMLP_TRY(nmlp_sampling_check(&r->sampling, &err));
    if (!r->ids) NMLP_TRY(nmlp_tokenizer_load(&tokenizer, cli->positionals[0], &err));
    NMLP_TRY(read_prompt(r, tokenizer, &prompt, &err));
    nmlp_load_options load = r->load;
    load.work.positions = r->context > 0 ? r->context : (int64_t)prompt.len;
    NMLP_TRY(nmlp_cli_load(&loaded, cli, cli->positionals[0], &load, &err));
    if (r->draft) NMLP_TRY(nmlp_cli_load(&draft, cli, r->draft, &r->load, &err));
    bool leads = nmlp_group_leads(r->load.tensor_group);
    NMLP_TRY(generate(r, &loaded, r->draft ? &draft : NULL, tokenizer, &prompt, !cli->json && leads, &result, &err));
    if (!leads) {
        code = NMLP_EXIT_OK;
    } else if (cli->json) {
        code = print_json(cli, &result, &loaded);
    } else {
        print_stats(&result, r->draft, nmlp_loaded_name(&loaded));
        print_split(&loaded);
    }
out:
    nmlp_unload(&draft);
    nmlp_unload(&loaded);
    nmlp_tokenizer_destroy(tokenizer);
    nmlp_text_result_fini(&result);
    nmlp_ids_fini(&prompt);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}

/* Alone, or a share of the model beside the other processes that a launcher started: all compute the same tokens. */
static int execute_joined(const nmlp_cli *cli, struct run_options *r) {
    nmlp_err err;
    nmlp_cluster *cluster;
    if (nmlp_cluster_join(&cluster, r->peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    r->load.tensor_group = nmlp_cluster_group(cluster);
    if (cluster && strcmp(r->load.device, "auto") == 0) r->load.device = "cpu";
    int code = execute(cli, r);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int run(int argc, char **argv) {
    struct run_options r = {.n = not_given,
                            .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S,
                            .sampling = nmlp_sampling_greedy(),
                            .load = {.device = "auto", .precision = "auto"}};
    const nmlp_opt opts[] = {
        {"prompt", 'p', NMLP_OPT_STRING, &r.prompt, "TEXT", "the text to continue"},
        {"file", 'f', NMLP_OPT_STRING, &r.prompt_file, "FILE", "the same from a file; - is standard input"},
        {"ids", 0, NMLP_OPT_STRING, &r.ids, "1,2,3", "the prompt as token ids; prints ids"},
        {"n-predict", 'n', NMLP_OPT_INT, &r.n, "N",
         "tokens to generate at most (default 128; in a conversation: what the context holds)"},
        {"ctx", 'c', NMLP_OPT_INT, &r.context, "N", "context size (default: what prompt and -n need, up to 4096)"},
        {"chat", 0, NMLP_OPT_FLAG, &r.chat, NULL,
         "the prompt is a user's message; the model's own chat template writes it down; without a prompt, on a "
         "terminal: a conversation"},
        {"system", 0, NMLP_OPT_STRING, &r.system, "TEXT", "system message, with --chat"},
        {"temp", 0, NMLP_OPT_NUMBER, &r.sampling.temperature, "T", "temperature (default 0: greedy)"},
        {"top-k", 0, NMLP_OPT_INT, &r.sampling.top_k, "K", "keep the K likeliest tokens (default 0: all)"},
        {"top-p", 0, NMLP_OPT_NUMBER, &r.sampling.top_p, "P", "keep the likeliest tokens that make up P (default 1)"},
        {"min-p", 0, NMLP_OPT_NUMBER, &r.sampling.min_p, "P", "drop tokens below P times the likeliest (default 0)"},
        {"repeat-penalty", 0, NMLP_OPT_NUMBER, &r.sampling.repetition_penalty, "X",
         "divide logits of seen tokens (default 1)"},
        {"seed", 0, NMLP_OPT_SEED, &r.seed, "N", "seed of the sampling (default 0)"},
        {"ignore-eos", 0, NMLP_OPT_FLAG, &r.ignore_eos, NULL, "go on after end-of-text tokens"},
        {"no-bos", 0, NMLP_OPT_FLAG, &r.no_bos, NULL, "do not put the begin-of-text token in front"},
        {"no-special", 0, NMLP_OPT_FLAG, &r.no_special, NULL,
         "special tokens spelled in the prompt stay text (with --chat they always do)"},
        {"draft", 0, NMLP_OPT_STRING, &r.draft, "DIR",
         "a smaller model with the same tokenizer that proposes tokens; the text stays MODEL's"},
        {"adapter", 0, NMLP_OPT_STRING, &r.load.adapter, "DIR", "LoRA adapter of PEFT to merge into the weights"},
        {"device", 0, NMLP_OPT_STRING, &r.load.device, "cpu|cuda|auto",
         "where to run (default auto: a GPU where there is one)"},
        {"precision", 0, NMLP_OPT_STRING, &r.load.precision, "auto|f32|bf16",
         "auto (default): bf16 activations for bf16 weights where that is faster (AMX, AMD); f32: exact"},
        {"isa", 0, NMLP_OPT_STRING, &r.load.isa, "NAME", "kernel set: auto, ref, avx2, avx512, avx512bf16, amx"},
        {"split", 0, NMLP_OPT_STRING, &r.load.split, "auto|dense|replicated|all",
         "under mpirun: how factorised MLPs are shared (default auto: each layer by what is measured)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &r.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_run, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (r.n < 1 && r.n != not_given) return nmlp_cli_usage(&cli, "-n must be 1 or more");
    if (r.system && !r.chat) return nmlp_cli_usage(&cli, "--system goes with --chat");
    if (r.ids && (code = nmlp_cli_refuse(&cli, "no-bos no-special", "is about text, not --ids")) >= 0) return code;
    if (r.chat && (code = nmlp_cli_refuse(&cli, "no-bos", "does not go with --chat: the template says")) >= 0)
        return code;
    r.sampling.seed = (uint64_t)r.seed;
    if (r.chat && !r.prompt && !r.prompt_file && !r.ids && !cli.json && nmlp_cluster_launched().size == 1 &&
        nmlp_conversation_possible())
        return converse(&cli, &r);
    if (r.n == not_given) r.n = NEW_TOKENS;
    if ((r.prompt != NULL) + (r.prompt_file != NULL) + (r.ids != NULL) != 1)
        return nmlp_cli_usage(&cli, "one of -p TEXT, -f FILE and --ids is needed");
    if (r.chat && r.ids) return nmlp_cli_usage(&cli, "--chat needs text, not --ids");
    if (nmlp_cluster_launched().size > 1 && r.prompt_file && strcmp(r.prompt_file, "-") == 0)
        return nmlp_cli_usage(&cli, "-f -: standard input is that of one process only");
    return execute_joined(&cli, &r);
}

const nmlp_command nmlp_cmd_run = {
    .name = "run",
    .summary = "generate text",
    .usage = "MODEL -p TEXT [-n N] [--temp T] [--chat]",
    .about =
        "Text appears as it is generated. --device chooses between CPU and GPU, --isa between kernel "
        "sets. --precision f32 asks for exact activations; by default those of bf16 weights are rounded "
        "to bf16 where that is faster (AMX, AMD). --chat answers by the model's own chat template; without a prompt "
        "it is a conversation, in which Ctrl-C stops the answer and Ctrl-D ends.",
    .examples = "neuronmlp run models/tiny -p \"The old house stood\" -n 24\n"
                "neuronmlp run models/tiny -p \"Astronomy is\" -n 24 --temp 0.8 --top-p 0.95 --seed 7\n"
                "neuronmlp run models/tiny -p \"The sea\" -n 8 --json\n",
    .run = run,
    .clustered = true,
};
