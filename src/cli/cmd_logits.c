/* neuronmlp logits: raw logits of a list of token ids, for comparison with other implementations. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/commands.h"
#include "cli/model_args.h"
#include "cluster/cluster.h"
#include "service/text_session.h"

enum { TOP_SHOWN = 5 };

struct collect {
    const int64_t *positions; /* wanted, in the order they are printed */
    size_t n_positions;
    float *logits;   /* [n_positions, V] */
    int64_t *argmax; /* [all positions] */
    int64_t vocab;
};

static bool keep_row(void *ctx, int64_t position, const float *row) {
    struct collect *c = ctx;
    c->argmax[position] = nmlp_argmax(row, c->vocab);
    for (size_t p = 0; p < c->n_positions; p++) {
        if (c->positions[p] == position) memcpy(c->logits + (int64_t)p * c->vocab, row, (size_t)c->vocab * sizeof *row);
    }
    return true;
}

static int print_json(const nmlp_cli *cli, const struct collect *c, int64_t n_ids) {
    nmlp_json_writer w;
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_json_writer_init(&w, &out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "positions");
    for (size_t p = 0; p < c->n_positions; p++) nmlp_json_put_int(&w, NULL, c->positions[p]);
    nmlp_json_end_array(&w);
    nmlp_json_begin_array(&w, "logits");
    for (size_t p = 0; p < c->n_positions; p++) {
        nmlp_json_begin_array(&w, NULL);
        for (int64_t v = 0; v < c->vocab; v++)
            nmlp_json_put_number(&w, NULL, (double)c->logits[(int64_t)p * c->vocab + v]);
        nmlp_json_end_array(&w);
    }
    nmlp_json_end_array(&w);
    nmlp_json_begin_array(&w, "argmax"); /* of the listed positions */
    for (size_t p = 0; p < c->n_positions; p++) nmlp_json_put_int(&w, NULL, c->argmax[c->positions[p]]);
    nmlp_json_end_array(&w);
    nmlp_json_begin_array(&w, "argmax_all"); /* of every position */
    for (int64_t i = 0; i < n_ids; i++) nmlp_json_put_int(&w, NULL, c->argmax[i]);
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    int code = nmlp_cli_print_json(cli, &out);
    nmlp_str_fini(&out);
    return code;
}

static void print_text(const struct collect *c) {
    for (size_t p = 0; p < c->n_positions; p++) {
        float *logits = c->logits + (int64_t)p * c->vocab;
        printf("position %" PRId64 ":", c->positions[p]);
        for (int rank = 0; rank < TOP_SHOWN && rank < c->vocab; rank++) {
            int64_t best = nmlp_argmax(logits, c->vocab);
            printf("  %" PRId64 " (%.4f)", best, (double)logits[best]);
            logits[best] = -__builtin_inff(); /* so that the next round finds the runner-up */
        }
        printf("\n");
    }
}

static nmlp_status narrow_ids(int32_t **out, const int64_t *ids, size_t n, nmlp_err *err) {
    *out = nmlp_mem_new(n, sizeof **out, err);
    if (!*out) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] > INT32_MAX)
            return nmlp_fail(err, NMLP_E_ARG, "--ids: %" PRId64 " is not a token id", ids[i]);
        (*out)[i] = (int32_t)ids[i];
    }
    return NMLP_OK;
}

static nmlp_status choose_positions(int64_t **positions, size_t *n, const char *text, size_t n_ids, nmlp_err *err) {
    if (text) {
        NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(positions, n, text, "--positions", err));
    } else {
        *positions = nmlp_mem_new(1, sizeof **positions, err);
        if (!*positions) return NMLP_E_NOMEM;
        (*positions)[0] = (int64_t)n_ids - 1;
        *n = 1;
    }
    for (size_t i = 0; i < *n; i++) {
        if ((*positions)[i] < 0 || (*positions)[i] >= (int64_t)n_ids)
            return nmlp_fail(err, NMLP_E_ARG, "--positions: %" PRId64 " is not a position of the %zu ids given",
                             (*positions)[i], n_ids);
    }
    return NMLP_OK;
}

static nmlp_status compute(struct collect *c, const nmlp_loaded *loaded, const int32_t *ids, size_t n, nmlp_err *err) {
    nmlp_text_session *session = NULL;
    c->vocab = loaded->model.config.vocab;
    c->logits = nmlp_mem_new(c->n_positions * (size_t)c->vocab, sizeof *c->logits, err);
    c->argmax = nmlp_mem_new(n, sizeof *c->argmax, err);
    if (!c->logits || !c->argmax) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(nmlp_text_session_create(&session, loaded, NULL, (int64_t)n, err));
    nmlp_status st = nmlp_text_session_logits(session, ids, (int64_t)n, 0, keep_row, c, err);
    nmlp_text_session_destroy(session);
    return st;
}

static int run(int argc, char **argv) {
    const char *ids_text = NULL;
    const char *positions_text = NULL;
    nmlp_load_options load = {0};
    const nmlp_opt opts[] = {
        {"ids", 0, NMLP_OPT_STRING, &ids_text, "1,2,3", "token ids"},
        {"positions", 0, NMLP_OPT_STRING, &positions_text, "0,2", "positions to print (default: the last)"},
        {"adapter", 0, NMLP_OPT_STRING, &load.adapter, "DIR", "LoRA adapter of PEFT to merge into the weights"},
        {"precision", 0, NMLP_OPT_STRING, &load.precision, "P",
         "f32 (default, exact) or bf16 (faster with AMX, and on AMD)"},
        {"device", 0, NMLP_OPT_STRING, &load.device, "NAME", "cpu (default), cuda or auto"},
        {"split", 0, NMLP_OPT_STRING, &load.split, "auto|dense|replicated|all",
         "under mpirun: how factorised MLPs are shared (default auto: each layer by what is measured)"},
        {"isa", 0, NMLP_OPT_STRING, &load.isa, "NAME", "kernel set: auto, ref, avx2, avx512, avx512bf16, amx"},
    };
    nmlp_cli cli;
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    nmlp_loaded loaded = {0};
    nmlp_cluster *cluster = NULL;
    struct collect c = {0};
    int64_t *wide = NULL;
    int64_t *positions = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_logits, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!ids_text) return nmlp_cli_usage(&cli, "--ids is needed");
    NMLP_TRY(nmlp_cli_parse_ints(&wide, &n, ids_text, "--ids", &err));
    NMLP_TRY(narrow_ids(&ids, wide, n, &err));
    NMLP_TRY(choose_positions(&positions, &c.n_positions, positions_text, n, &err));
    c.positions = positions;
    NMLP_TRY(nmlp_cluster_join(&cluster, NMLP_CLUSTER_TIMEOUT_S, &err));
    load.tensor_group = nmlp_cluster_group(cluster);
    NMLP_TRY(nmlp_cli_load(&loaded, &cli, cli.positionals[0], &load, &err));
    NMLP_TRY(compute(&c, &loaded, ids, n, &err));
    code = NMLP_EXIT_OK;
    if (!nmlp_group_leads(load.tensor_group)) goto out;
    if (cli.json) {
        code = print_json(&cli, &c, (int64_t)n);
    } else {
        print_text(&c);
    }
out:
    nmlp_unload(&loaded);
    nmlp_mem_free(c.logits);
    nmlp_mem_free(c.argmax);
    nmlp_mem_free(positions);
    nmlp_mem_free(ids);
    nmlp_mem_free(wide);
    if (st != NMLP_OK) code = nmlp_cli_fail(&cli, &err);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

const nmlp_command nmlp_cmd_logits = {
    .name = "logits",
    .summary = "print raw logits of token ids",
    .usage = "MODEL --ids 1,2,3 [--positions 0,2]",
    .about = "For comparison with other implementations: the numbers behind the next token, before any "
             "sampling.",
    .examples = "neuronmlp logits models/tiny --ids 558,717,894\n"
                "neuronmlp logits models/tiny --ids 558,717,894 --positions 0,2 --json\n",
    .run = run,
    .clustered = true,
};
