/* neuronmlp tokenize: text to ids and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "text/tokenizer.h"

enum { TEXT_MAX_BYTES = 512 << 20 };

typedef struct tokenize_options {
    const char *prompt;
    const char *file;
    const char *decode;
    bool no_bos;
    bool no_special;
} tokenize_options;

static nmlp_status read_text(const tokenize_options *options, nmlp_str *text, nmlp_err *err) {
    if (options->prompt) {
        nmlp_str_puts(text, options->prompt);
        return nmlp_str_status(text, err);
    }
    return nmlp_input_read(text, options->file, TEXT_MAX_BYTES, err);
}

static void put_json(nmlp_str *out, const nmlp_ids *ids, const nmlp_str *text) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "ids");
    for (size_t i = 0; i < ids->len; i++) nmlp_json_put_int(&w, NULL, ids->data[i]);
    nmlp_json_end_array(&w);
    if (text) nmlp_json_put_bytes(&w, "text", nmlp_str_text(text), text->len);
    nmlp_json_end_object(&w);
}

static void put_plain(nmlp_str *out, const nmlp_ids *ids, const nmlp_str *text) {
    if (text) {
        nmlp_str_append(out, nmlp_str_text(text), text->len);
    } else {
        for (size_t i = 0; i < ids->len; i++) nmlp_str_printf(out, "%s%" PRId32, i ? " " : "", ids->data[i]);
    }
    nmlp_str_putc(out, '\n');
}

static nmlp_status print_result(const nmlp_str *out, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_str_status(out, err));
    if (fwrite(out->data, 1, out->len, stdout) != out->len || fflush(stdout) != 0)
        return nmlp_fail(err, NMLP_E_IO, "stdout: cannot write: %s", strerror(errno));
    return NMLP_OK;
}

static nmlp_status tokenize(const nmlp_cli *cli, const tokenize_options *options, nmlp_str *out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_tokenizer *tokenizer = NULL;
    nmlp_str text;
    nmlp_ids ids;
    nmlp_str_init(&text);
    nmlp_ids_init(&ids);
    NMLP_TRY(nmlp_tokenizer_load(&tokenizer, cli->positionals[0], err));
    if (options->decode) {
        NMLP_TRY(nmlp_cli_parse_ids(&ids, options->decode, "--decode", err));
        NMLP_TRY(nmlp_tokenizer_decode(tokenizer, ids.data, ids.len, false, &text, err));
    } else {
        NMLP_TRY(read_text(options, &text, err));
        NMLP_TRY(nmlp_tokenizer_encode(tokenizer, nmlp_str_text(&text), text.len,
                                       options->no_bos ? NMLP_BOS_NONE : NMLP_BOS_TEMPLATE, !options->no_special, &ids,
                                       err));
    }
    (cli->json ? put_json : put_plain)(out, &ids, options->decode ? &text : NULL);
out:
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(tokenizer);
    return st;
}

static int run_tokenize(int argc, char **argv) {
    tokenize_options options = {0};
    nmlp_cli cli;
    nmlp_err err = {0};
    nmlp_str out;
    const nmlp_opt opts[] = {
        {"prompt", 'p', NMLP_OPT_STRING, &options.prompt, "TEXT", "the text"},
        {"file", 'f', NMLP_OPT_STRING, &options.file, "FILE", "read the text from FILE (- is stdin)"},
        {"no-bos", 0, NMLP_OPT_FLAG, &options.no_bos, NULL, "leave out the tokens the model's template puts around"},
        {"no-special", 0, NMLP_OPT_FLAG, &options.no_special, NULL, "special tokens spelled in the text stay text"},
        {"decode", 'd', NMLP_OPT_STRING, &options.decode, "IDS", "the other way: text of ids like 1,2,3"},
    };
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_tokenize, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!!options.prompt + !!options.file + !!options.decode != 1)
        return nmlp_cli_usage(&cli, "give one of -p TEXT, -f FILE and --decode IDS");
    if (options.decode && (code = nmlp_cli_refuse(&cli, "no-bos no-special", "is about text, not --decode")) >= 0)
        return code;
    nmlp_str_init(&out);
    nmlp_status st = tokenize(&cli, &options, &out, &err);
    if (st == NMLP_OK && cli.json) {
        code = nmlp_cli_print_json(&cli, &out);
    } else {
        if (st == NMLP_OK) st = print_result(&out, &err);
        code = st == NMLP_OK ? NMLP_EXIT_OK : nmlp_cli_fail(&cli, &err);
    }
    nmlp_str_fini(&out);
    return code;
}

const nmlp_command nmlp_cmd_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids, and back",
    .usage = "MODEL (-p TEXT | -f FILE | --decode IDS) [--no-bos] [--no-special]",
    .about = "A folder with only tokenizer.json will do. --decode turns ids back into text.",
    .examples = "neuronmlp tokenize models/tiny -p \"Hello, world!\"\n"
                "neuronmlp tokenize models/tiny -p \"Hello, world!\" --json\n"
                "neuronmlp tokenize models/tiny --decode 41,483,80,13,973,2\n",
    .run = run_tokenize,
};
