/* neuronmlp run: generate text, streaming. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/load_with_bar.h"
#include "cli/token_ids.h"
#include "engine/generate.h"
#include "text/tokenizer.h"

enum { PROMPT_MAX_BYTES = 64 << 20, CONTEXT_DEFAULT_MAX = 4096 };

struct run_options {
    const char *prompt;
    const char *prompt_file;
    const char *ids;
    const char *system;
    int64_t n;
    int64_t context;
    bool chat;
    bool ignore_eos;
    bool no_bos;
    int64_t seed;
    nmlp_sampling sampling;
    nmlp_load_options load;
};

/* Where generated tokens go. */
struct output {
    bool stream;      /* to stdout as they come */
    const char *lead; /* the prompt, printed once there is something to print behind it; NULL: not, or no more */
    nmlp_tokenizer *tokenizer; /* NULL: ids only */
    nmlp_decode_stream decoder;
    nmlp_str text;
    size_t printed;
    nmlp_ids ids;
    nmlp_status st;
    nmlp_err *err;
};

static void print_new_text(struct output *o) {
    if (o->stream && o->lead) fputs(o->lead, stdout);
    o->lead = NULL;
    if (o->stream && o->text.len > o->printed) {
        fwrite(o->text.data + o->printed, 1, o->text.len - o->printed, stdout);
        fflush(stdout);
    }
    o->printed = o->text.len;
}

static bool on_token(void *ctx, int32_t id) {
    struct output *o = ctx;
    o->st = nmlp_ids_push(&o->ids, id, o->err);
    if (o->st != NMLP_OK) return false;
    if (!o->tokenizer) {
        if (o->stream) printf("%s%d", o->ids.len > 1 ? " " : "", id);
        return true;
    }
    /* Checkpoints pad their vocabulary: an id the tokenizer has no text for prints nothing. */
    if (id < nmlp_tokenizer_vocab_size(o->tokenizer)) {
        o->st = nmlp_decode_stream_push(&o->decoder, id, &o->text, o->err);
        print_new_text(o);
    }
    return o->st == NMLP_OK;
}

static nmlp_status encode_text(const struct run_options *r, nmlp_tokenizer *tokenizer, const char *text, size_t len,
                               nmlp_ids *ids, nmlp_err *err) {
    if (!r->chat) return nmlp_tokenizer_encode(tokenizer, text, len, !r->no_bos, false, ids, err);
    nmlp_chat_message messages[2];
    size_t n = 0;
    if (r->system) messages[n++] = (nmlp_chat_message){.role = "system", .content = r->system};
    messages[n++] = (nmlp_chat_message){.role = "user", .content = text};
    return nmlp_chat_encode(tokenizer, messages, n, ids, err);
}

static nmlp_status read_prompt(const struct run_options *r, nmlp_tokenizer *tokenizer, nmlp_ids *ids, nmlp_err *err) {
    if (r->ids) return nmlp_cli_parse_ids(ids, r->ids, "--ids", err);
    if (r->prompt) return encode_text(r, tokenizer, r->prompt, strlen(r->prompt), ids, err);
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_input_read(&text, r->prompt_file, PROMPT_MAX_BYTES, err);
    if (st == NMLP_OK) st = encode_text(r, tokenizer, nmlp_str_text(&text), text.len, ids, err);
    nmlp_str_fini(&text);
    return st;
}

static int64_t choose_context(const struct run_options *r, const nmlp_config *config, int64_t n_prompt) {
    if (r->context > 0) return r->context;
    int64_t need = n_prompt + r->n;
    int64_t cap = config->max_positions < CONTEXT_DEFAULT_MAX ? config->max_positions : CONTEXT_DEFAULT_MAX;
    if (n_prompt >= cap) cap = config->max_positions; /* a long prompt says what it needs by being there */
    return need < cap ? need : cap;
}

static int print_json(const nmlp_cli *cli, const struct output *o, const nmlp_generation_stats *stats, int64_t n_prompt,
                      const char *isa) {
    static const char *const finish[] = {"length", "stop", "context", "caller"};
    int64_t n_decoded = stats->n_generated > 1 ? stats->n_generated - 1 : 0;
    nmlp_json_writer w;
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_bytes(&w, "text", nmlp_str_text(&o->text), o->text.len);
    nmlp_json_begin_array(&w, "ids");
    for (size_t i = 0; i < o->ids.len; i++) nmlp_json_put_int(&w, NULL, o->ids.data[i]);
    nmlp_json_end_array(&w);
    nmlp_json_put_int(&w, "prompt_tokens", n_prompt);
    nmlp_json_put_int(&w, "generated_tokens", stats->n_generated);
    nmlp_json_put_string(&w, "finish", finish[stats->finish]);
    nmlp_json_put_number(&w, "ttft_ms", stats->ttft_ms);
    nmlp_json_put_number(&w, "tpot_ms", n_decoded ? stats->decode_ms / (double)n_decoded : 0);
    nmlp_json_put_number(&w, "prefill_tok_s", stats->ttft_ms > 0 ? 1e3 * (double)n_prompt / stats->ttft_ms : 0);
    nmlp_json_put_number(&w, "decode_tok_s", stats->decode_ms > 0 ? 1e3 * (double)n_decoded / stats->decode_ms : 0);
    nmlp_json_put_string(&w, "isa", isa);
    nmlp_json_end_object(&w);
    int code = nmlp_cli_print_json(cli, &out);
    nmlp_str_fini(&out);
    return code;
}

static void print_stats(const nmlp_generation_stats *stats, int64_t n_prompt, const char *isa) {
    int64_t n_decoded = stats->n_generated > 1 ? stats->n_generated - 1 : 0;
    printf("\n");
    fflush(stdout);
    fprintf(stderr, "[%" PRId64 " prompt tokens in %.0f ms, %" PRId64 " generated", n_prompt, stats->ttft_ms,
            stats->n_generated);
    if (n_decoded) fprintf(stderr, " at %.1f tokens/s", 1e3 * (double)n_decoded / stats->decode_ms);
    fprintf(stderr, ", %s kernels]\n", isa);
    if (stats->finish == NMLP_FINISH_CONTEXT) fprintf(stderr, "[stopped: the context is full; raise --ctx]\n");
}

static nmlp_status generate(const struct run_options *r, const nmlp_loaded *loaded, const nmlp_ids *prompt,
                            struct output *o, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_config *c = &loaded->model.config;
    int64_t stop_ids[NMLP_STOP_IDS_MAX + 1];
    nmlp_batch *batch = NULL;
    int32_t sequence;
    nmlp_generation request = {.prompt = prompt->data,
                               .n_prompt = (int64_t)prompt->len,
                               .max_new = r->n,
                               .sampling = r->sampling,
                               .stop_ids = stop_ids,
                               .on_token = on_token,
                               .ctx = o};
    if (!r->ignore_eos) {
        memcpy(stop_ids, c->stop_ids, sizeof c->stop_ids);
        request.n_stop_ids = c->n_stop_ids;
        if (r->chat) stop_ids[request.n_stop_ids++] = nmlp_chat_end_id(o->tokenizer);
    }
    nmlp_batch_options options = {.context = choose_context(r, c, (int64_t)prompt->len)};
    NMLP_RETURN_IF_FAILED(nmlp_batch_create(&batch, loaded->engine, &options, err));
    nmlp_status st = nmlp_batch_open(batch, NULL, 0, &sequence, err);
    if (st == NMLP_OK) st = nmlp_generate(batch, sequence, &request, stats, err);
    nmlp_batch_destroy(batch);
    if (st == NMLP_OK) st = o->st;
    if (st == NMLP_OK && o->tokenizer) st = nmlp_decode_stream_flush(&o->decoder, &o->text, err);
    if (st == NMLP_OK) print_new_text(o);
    return st;
}

static int execute(const nmlp_cli *cli, const struct run_options *r) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_loaded loaded = {0};
    nmlp_ids prompt;
    nmlp_generation_stats stats = {0};
    struct output o = {.stream = !cli->json, .err = &err};
    int code = NMLP_EXIT_OK;
    nmlp_ids_init(&prompt);
    nmlp_ids_init(&o.ids);
    nmlp_str_init(&o.text);
    NMLP_TRY(nmlp_sampling_check(&r->sampling, &err));
    if (!r->ids) NMLP_TRY(nmlp_tokenizer_load(&o.tokenizer, cli->positionals[0], &err));
    nmlp_decode_stream_init(&o.decoder, o.tokenizer, true);
    NMLP_TRY(read_prompt(r, o.tokenizer, &prompt, &err));
    NMLP_TRY(nmlp_cli_load(&loaded, cli, cli->positionals[0], &r->load, &err));
    if (!r->chat) o.lead = r->prompt;
    NMLP_TRY(generate(r, &loaded, &prompt, &o, &stats, &err));
    const char *isa = nmlp_loaded_name(&loaded);
    if (cli->json) {
        code = print_json(cli, &o, &stats, (int64_t)prompt.len, isa);
    } else {
        print_stats(&stats, (int64_t)prompt.len, isa);
    }
out:
    nmlp_unload(&loaded);
    nmlp_decode_stream_fini(&o.decoder);
    nmlp_tokenizer_destroy(o.tokenizer);
    nmlp_ids_fini(&o.ids);
    nmlp_ids_fini(&prompt);
    nmlp_str_fini(&o.text);
    return st == NMLP_OK ? code : nmlp_cli_fail(cli, &err);
}

static int run(int argc, char **argv) {
    struct run_options r = {.n = 128, .sampling = nmlp_sampling_greedy(), .load = {.device = "auto"}};
    const nmlp_opt opts[] = {
        {"prompt", 'p', NMLP_OPT_STRING, &r.prompt, "TEXT", "the text to continue"},
        {"file", 'f', NMLP_OPT_STRING, &r.prompt_file, "FILE", "the same from a file; - is standard input"},
        {"ids", 0, NMLP_OPT_STRING, &r.ids, "1,2,3", "the prompt as token ids; prints ids"},
        {"n-predict", 'n', NMLP_OPT_INT, &r.n, "N", "tokens to generate at most (default 128)"},
        {"ctx", 'c', NMLP_OPT_INT, &r.context, "N", "context size (default: what prompt and -n need, up to 4096)"},
        {"chat", 0, NMLP_OPT_FLAG, &r.chat, NULL, "the prompt is a user's message to a chat model"},
        {"system", 0, NMLP_OPT_STRING, &r.system, "TEXT", "system message, with --chat"},
        {"temp", 0, NMLP_OPT_NUMBER, &r.sampling.temperature, "T", "temperature (default 0: greedy)"},
        {"top-k", 0, NMLP_OPT_INT, &r.sampling.top_k, "K", "keep the K likeliest tokens (default 0: all)"},
        {"top-p", 0, NMLP_OPT_NUMBER, &r.sampling.top_p, "P", "keep the likeliest tokens that make up P (default 1)"},
        {"min-p", 0, NMLP_OPT_NUMBER, &r.sampling.min_p, "P", "drop tokens below P times the likeliest (default 0)"},
        {"repeat-penalty", 0, NMLP_OPT_NUMBER, &r.sampling.repetition_penalty, "X",
         "divide logits of seen tokens (default 1)"},
        {"seed", 0, NMLP_OPT_INT, &r.seed, "N", "seed of the sampling (default 0)"},
        {"ignore-eos", 0, NMLP_OPT_FLAG, &r.ignore_eos, NULL, "go on after end-of-text tokens"},
        {"no-bos", 0, NMLP_OPT_FLAG, &r.no_bos, NULL, "do not put the begin-of-text token in front"},
        {"device", 0, NMLP_OPT_STRING, &r.load.device, "cpu|cuda|auto",
         "where to run (default auto: a GPU where there is one)"},
        {"precision", 0, NMLP_OPT_STRING, &r.load.precision, "f32|bf16",
         "f32: exact (default); bf16: faster where the CPU has AMX"},
        {"isa", 0, NMLP_OPT_STRING, &r.load.isa, "NAME", "kernel set: auto, ref, avx2, avx512, amx"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_run, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if ((r.prompt != NULL) + (r.prompt_file != NULL) + (r.ids != NULL) != 1)
        return nmlp_cli_usage(&cli, "one of -p TEXT, -f FILE and --ids is needed");
    if (r.n < 1) return nmlp_cli_usage(&cli, "-n must be 1 or more");
    if (r.chat && r.ids) return nmlp_cli_usage(&cli, "--chat needs text, not --ids");
    if (r.system && !r.chat) return nmlp_cli_usage(&cli, "--system goes with --chat");
    r.sampling.seed = (uint64_t)r.seed;
    return execute(&cli, &r);
}

const nmlp_command nmlp_cmd_run = {
    .name = "run",
    .summary = "generate text",
    .usage = "MODEL -p TEXT [-n N] [--temp T] [--chat]",
    .examples = "neuronmlp run models/tiny -p \"The old house stood\" -n 24\n"
                "neuronmlp run models/tiny -p \"Astronomy is\" -n 24 --temp 0.8 --top-p 0.95 --seed 7\n"
                "neuronmlp run models/tiny -p \"The sea\" -n 8 --json\n",
    .run = run,
};
