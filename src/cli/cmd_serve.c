/* neuronmlp serve: a model behind the HTTP API that OpenAI's clients speak. */
#define _POSIX_C_SOURCE 200809L /* SIGPIPE */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cluster/cluster.h"
#include "server/server.h"

enum { KEY_MIN_BYTES = 8, KEY_MAX_BYTES = 4096 };

struct serve_options {
    const nmlp_cli *cli;
    nmlp_loaded loaded, other;
    nmlp_tokenizer *tokenizer;
    const char *key_file;
    const char *name, *compare, *compare_name;
    bool no_auth;
    double peer_timeout_s;
    nmlp_server_options server;
    nmlp_load_options load;
};

static void say(const struct serve_options *o, const char *event, int port) {
    bool v6 = strchr(o->server.host, ':') != NULL;
    fprintf(stderr, "{\"event\":\"%s\",\"model\":\"%s\",\"url\":\"http://%s%s%s:%d\"}\n", event, o->name, v6 ? "[" : "",
            o->server.host, v6 ? "]" : "", port);
    fflush(stderr);
}

static void say_listening(void *ctx, int port) { say(ctx, "listening", port); }
static void say_ready(void *ctx, int port) { say(ctx, "ready", port); }

static void print_log(void *ctx, const char *line) {
    (void)ctx;
    fprintf(stderr, "%s\n", line);
}

/* The first line of the file. */
static nmlp_status read_key(nmlp_str *key, const char *path, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_file_read(key, path, KEY_MAX_BYTES, err));
    const char *text = nmlp_str_text(key);
    size_t len = strcspn(text, "\r\n");
    if (len < KEY_MIN_BYTES || strlen(text) != key->len)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: the first line must be a key of %d characters or more", path,
                         KEY_MIN_BYTES);
    key->data[len] = '\0';
    key->len = len;
    return NMLP_OK;
}

/* The server catches signals while its loop runs. One that comes behind the loop, as `timeout` and service managers
   send to the process and then to its group, finds an orderly end under way with nothing left to save. */
static void end_at_once(int number) {
    (void)number;
    _exit(NMLP_EXIT_OK);
}

static void abandon(void *ctx) {
    (void)ctx;
    _exit(NMLP_EXIT_OK); /* nothing ends the loading of a model early, and there is nothing to save */
}

/* On a thread of the server. */
static nmlp_status load(void *ctx, nmlp_server_models *out, nmlp_err *err) {
    struct serve_options *o = ctx;
    const char *dir = o->cli->positionals[0];
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_load(&o->tokenizer, dir, err));
    NMLP_RETURN_IF_FAILED(nmlp_cli_load(&o->loaded, o->cli, dir, &o->load, err));
    if (o->compare) NMLP_RETURN_IF_FAILED(nmlp_cli_load(&o->other, o->cli, o->compare, &o->load, err));
    *out = (nmlp_server_models){.models = {{o->name, &o->loaded}, {o->compare_name, &o->other}},
                                .n_models = o->compare ? 2 : 1,
                                .tokenizer = o->tokenizer};
    return NMLP_OK;
}

static int serve(const nmlp_cli *cli, struct serve_options *o) {
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_str key;
    nmlp_str_init(&key);
    if (o->key_file) {
        NMLP_TRY(read_key(&key, o->key_file, &err));
        o->server.api_key = nmlp_str_text(&key);
    }
    o->cli = cli;
    o->server.load = load;
    o->server.on_listening = say_listening;
    o->server.on_ready = say_ready;
    o->server.on_abandoned = abandon;
    o->server.on_log = print_log;
    o->server.ctx = o;
    /* Not signal(): it may give the default action back before the handler has run. */
    (void)sigaction(SIGTERM, &(struct sigaction){.sa_handler = end_at_once}, NULL);
    (void)sigaction(SIGINT, &(struct sigaction){.sa_handler = end_at_once}, NULL);
    NMLP_TRY(nmlp_server_run(&o->server, &err));
out:
    nmlp_unload(&o->other);
    nmlp_unload(&o->loaded);
    nmlp_tokenizer_destroy(o->tokenizer);
    nmlp_str_fini(&key);
    return st == NMLP_OK ? NMLP_EXIT_OK : nmlp_cli_fail(cli, &err);
}

static void say_lost(const nmlp_err *err) {
    fprintf(stderr, "neuronmlp serve: %s\n", err->message);
    if (err->hint[0]) fprintf(stderr, "hint: %s\n", err->hint);
}

/* Every process but the first runs its part of the model in the steps of the first, whom signals concern. */
static int follow(const nmlp_cli *cli, const struct serve_options *o) {
    nmlp_err err;
    nmlp_loaded loaded = {0};
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    nmlp_status st = nmlp_cli_load(&loaded, cli, cli->positionals[0], &o->load, &err);
    if (st == NMLP_OK) st = nmlp_loaded_follow(&loaded, o->load.tensor_group, &err);
    nmlp_unload(&loaded);
    return st == NMLP_OK ? NMLP_EXIT_OK : nmlp_cli_fail(cli, &err);
}

static int serve_joined(const nmlp_cli *cli, struct serve_options *o) {
    nmlp_err err;
    nmlp_cluster *cluster;
    if (nmlp_cluster_launched().size > 1 && o->compare)
        return nmlp_cli_usage(cli, "--compare: processes share one model, not two");
    if (nmlp_cluster_join(&cluster, o->peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    o->load.tensor_group = nmlp_cluster_group(cluster);
    if (cluster && strcmp(o->load.device, "auto") == 0) o->load.device = "cpu";
    nmlp_cluster_end_on_loss(cluster, say_lost);
    o->load.leads = cluster && nmlp_group_leads(o->load.tensor_group);
    int code = cluster && !o->load.leads ? follow(cli, o) : serve(cli, o);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int check(const nmlp_cli *cli, const struct serve_options *o) {
    const nmlp_server_options *s = &o->server;
    bool local = strcmp(s->host, "127.0.0.1") == 0 || strcmp(s->host, "::1") == 0;
    if (!local && !o->key_file && !o->no_auth)
        return nmlp_cli_usage(cli, "--host %s lets others in: give --api-key-file FILE, or --no-auth if that is meant",
                              s->host);
    if (o->key_file && o->no_auth) return nmlp_cli_usage(cli, "--api-key-file and --no-auth exclude each other");
    if (o->compare_name && !o->compare) return nmlp_cli_usage(cli, "--compare-name goes with --compare");
    if (s->port < 0 || s->port > 65535) return nmlp_cli_usage(cli, "--port must be from 0 to 65535");
    if (s->slots < 1 || s->slots > 1024) return nmlp_cli_usage(cli, "--slots must be from 1 to 1024");
    if (s->max_waiting < 1 || s->max_waiting > 100000) return nmlp_cli_usage(cli, "--queue must be from 1 to 100000");
    if (s->grace_s < 0 || s->grace_s > 86400) return nmlp_cli_usage(cli, "--grace must be from 0 to 86400 seconds");
    if (s->max_connections < 1 || s->max_connections > 100000 || s->max_per_address < 1)
        return nmlp_cli_usage(cli, "--connections must be from 1 to 100000, --per-address 1 or more");
    if (!(s->answer_s >= 0)) return nmlp_cli_usage(cli, "--answer-timeout must be 0 or more");
    if (!(s->ping_s > 0)) return nmlp_cli_usage(cli, "--ping must be above 0");
    if (!(s->request_s > 0)) return nmlp_cli_usage(cli, "--request-timeout must be above 0");
    return -1;
}

/* The last part of the path, without slashes. */
static const char *name_of(const char *dir) {
    const char *slash = strrchr(dir, '/');
    return slash && slash[1] ? slash + 1 : dir;
}

static int run(int argc, char **argv) {
    struct serve_options o = {.server = nmlp_server_defaults(),
                              .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S,
                              .load = {.device = "auto", .precision = "auto"}};
    const nmlp_opt opts[] = {
        {"host", 0, NMLP_OPT_STRING, &o.server.host, "ADDRESS", "numeric address to listen on (default 127.0.0.1)"},
        {"port", 0, NMLP_OPT_INT, &o.server.port, "N", "port (default 8080; 0: any free one)"},
        {"api-key-file", 0, NMLP_OPT_STRING, &o.key_file, "FILE", "clients must know the key in its first line"},
        {"no-auth", 0, NMLP_OPT_FLAG, &o.no_auth, NULL, "other hosts may ask without a key"},
        {"cors", 0, NMLP_OPT_STRING, &o.server.cors, "ORIGIN", "web pages of this origin may ask (default none)"},
        {"name", 0, NMLP_OPT_STRING, &o.name, "NAME", "the model's name for clients (default: its folder)"},
        {"compare", 0, NMLP_OPT_STRING, &o.compare, "OTHER",
         "serve this model too, which has the same tokenizer; the page shows both side by side"},
        {"compare-name", 0, NMLP_OPT_STRING, &o.compare_name, "NAME", "its name (default: its folder)"},
        {"ctx", 'c', NMLP_OPT_INT, &o.server.context, "N", "positions of a request (default: the model's, up to 4096)"},
        {"slots", 0, NMLP_OPT_INT, &o.server.slots, "N", "requests that run together (default 8)"},
        {"kv-bytes", 0, NMLP_OPT_INT, &o.server.kv_bytes, "B",
         "memory for keys and values (default: what all slots can need)"},
        {"queue", 0, NMLP_OPT_INT, &o.server.max_waiting, "N", "requests that may wait (default 64)"},
        {"connections", 0, NMLP_OPT_INT, &o.server.max_connections, "N", "open connections at most (default 4096)"},
        {"per-address", 0, NMLP_OPT_INT, &o.server.max_per_address, "N", "of one address (default 2048)"},
        {"request-timeout", 0, NMLP_OPT_NUMBER, &o.server.request_s, "S",
         "seconds for a request to arrive whole (default 30)"},
        {"answer-timeout", 0, NMLP_OPT_NUMBER, &o.server.answer_s, "S",
         "seconds for an answer, from its request on (default 600; 0: any time)"},
        {"ping", 0, NMLP_OPT_NUMBER, &o.server.ping_s, "S",
         "seconds between comment lines on a stream that waits (default 15)"},
        {"log-prompts", 0, NMLP_OPT_FLAG, &o.server.log_prompts, NULL, "log lines have the text of prompts too"},
        {"grace", 0, NMLP_OPT_INT, &o.server.grace_s, "S", "seconds to finish requests after SIGTERM (default 30)"},
        {"device", 0, NMLP_OPT_STRING, &o.load.device, "cpu|cuda|auto",
         "where to run (default auto: a GPU where there is one)"},
        {"precision", 0, NMLP_OPT_STRING, &o.load.precision, "auto|f32|bf16",
         "auto (default): bf16 activations for bf16 weights where that is faster (AMX, AMD); f32: exact"},
        {"isa", 0, NMLP_OPT_STRING, &o.load.isa, "NAME", "kernel set: auto, ref, avx2, avx512, avx512bf16, amx"},
        {"split", 0, NMLP_OPT_STRING, &o.load.split, "auto|dense|replicated|all",
         "under mpirun: how factorised MLPs are shared (default auto: each layer by what is measured)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &o.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_serve, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    code = check(&cli, &o);
    if (code >= 0) return code;
    (void)signal(SIGPIPE, SIG_IGN); /* a client that goes away is an error of the write */
    /* CUDA loads a kernel when it first runs, for milliseconds in the middle of somebody's answer. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (o.server.kv_bytes == 0)
        o.load.work = (nmlp_memory_work){.positions = o.server.context, .sequences = o.server.slots};
    if (!o.name) o.name = name_of(cli.positionals[0]);
    if (o.compare && !o.compare_name) o.compare_name = name_of(o.compare);
    return serve_joined(&cli, &o);
}

const nmlp_command nmlp_cmd_serve = {
    .name = "serve",
    .summary = "answer over HTTP as OpenAI's API does",
    .usage = "MODEL [--compare OTHER] [--port N] [--api-key-file FILE]",
    .about = "Listens on 127.0.0.1 unless --host and --api-key-file say otherwise. The page at / is a chat; "
             "with --compare it shows two models side by side. SIGTERM lets requests finish. Under mpirun the "
             "processes share the "
             "model; the first one listens.",
    .examples = "neuronmlp serve models/tiny --port 0 --grace 0\n"
                "neuronmlp serve models/tiny --port 0 --queue 8 --ctx 256\n",
    .run = run,
    .clustered = true,
};
