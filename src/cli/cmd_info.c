/* neuronmlp info: what is in a checkpoint. Reads headers only. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands.h"
#include "model/model.h"

/* Of a layer [gate, up, down]; of one with experts such a list for each of them. Of its attention [q, k, v, o]. */
static void print_ranks_json(nmlp_json_writer *w, const nmlp_model *m) {
    nmlp_json_begin_array(w, "ranks");
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        const nmlp_layer *layer = &m->layers[l];
        if (layer->experts) nmlp_json_begin_array(w, NULL);
        for (int64_t e = 0; e < nmlp_config_mlp_count(&m->config, l); e++) {
            nmlp_json_begin_array(w, NULL);
            for (int i = 0; i < NMLP_MLP_MATRICES; i++)
                nmlp_json_put_int(w, NULL, nmlp_factors_rank(&nmlp_layer_mlp_at(layer, e)[i]));
            nmlp_json_end_array(w);
        }
        if (layer->experts) nmlp_json_end_array(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "attention_ranks");
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        nmlp_json_begin_array(w, NULL);
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++)
            nmlp_json_put_int(w, NULL, nmlp_factors_rank(&m->layers[l].attention[i]));
        nmlp_json_end_array(w);
    }
    nmlp_json_end_array(w);
}

/* Matrices of each type. */
struct types {
    int64_t n[NMLP_DTYPES];
};

static struct types count_types(const nmlp_model *m) {
    struct types types = {0};
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_view *view = &m->checkpoint.tensors[i].view;
        if (view->n_dims == 2) types.n[view->dtype]++;
    }
    return types;
}

static double bits_per_weight(const nmlp_model_size *size) { return 8.0 * (double)size->bytes / (double)size->params; }

static void print_types_json(nmlp_json_writer *w, const nmlp_model *m) {
    struct types types = count_types(m);
    nmlp_json_begin_object(w, "matrices");
    for (int d = 0; d < NMLP_DTYPES; d++)
        if (types.n[d]) nmlp_json_put_int(w, nmlp_dtype_name((nmlp_dtype)d), types.n[d]);
    nmlp_json_end_object(w);
}

static void print_types(const nmlp_model *m) {
    struct types types = count_types(m);
    const char *before = "";
    printf("  matrices      ");
    for (int d = 0; d < NMLP_DTYPES; d++) {
        if (!types.n[d]) continue;
        printf("%s%" PRId64 " %s", before, types.n[d], nmlp_dtype_name((nmlp_dtype)d));
        before = ", ";
    }
    printf("\n");
}

static int print_json(const nmlp_cli *cli, const nmlp_model *m) {
    const nmlp_config *c = &m->config;
    nmlp_model_size size = nmlp_model_measure(m);
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "family", c->family);
    nmlp_json_put_string(w, "architecture", c->architecture);
    nmlp_json_put_int(w, "hidden", c->hidden);
    nmlp_json_put_int(w, "intermediate", c->intermediate);
    nmlp_json_put_int(w, "layers", c->n_layers);
    if (c->n_experts) {
        nmlp_json_put_int(w, "experts", c->n_experts);
        nmlp_json_put_int(w, "experts_per_token", c->experts_per_token);
        nmlp_json_put_int(w, "expert_intermediate", c->expert_intermediate);
    }
    nmlp_json_put_int(w, "heads", c->n_heads);
    nmlp_json_put_int(w, "kv_heads", c->n_kv_heads);
    nmlp_json_put_int(w, "head_dim", c->head_dim);
    nmlp_json_put_int(w, "vocab", c->vocab);
    nmlp_json_put_int(w, "max_positions", c->max_positions);
    nmlp_json_put_bool(w, "tied", c->tied);
    nmlp_json_put_int(w, "params", size.params);
    nmlp_json_put_int(w, "bytes", size.bytes);
    nmlp_json_put_int(w, "mlp_params", size.mlp_params);
    nmlp_json_put_int(w, "mlp_params_dense", size.mlp_params_dense);
    nmlp_json_put_int(w, "mlp_dense", size.n_dense);
    nmlp_json_put_int(w, "mlp_lowrank", size.n_lowrank);
    nmlp_json_put_int(w, "attention_params", size.attention_params);
    nmlp_json_put_int(w, "attention_params_dense", size.attention_params_dense);
    nmlp_json_put_int(w, "attention_lowrank", size.n_attention_lowrank);
    nmlp_json_put_string(w, "dtype", nmlp_dtype_name(m->embedding.dtype));
    nmlp_json_put_number(w, "bits_per_weight", bits_per_weight(&size));
    print_types_json(w, m);
    print_ranks_json(w, m);
    return nmlp_json_out_end(&out, cli);
}

/* "96", or of experts "32..96"; 0 is dense. */
static void print_rank(const nmlp_model *m, int64_t l, int matrix) {
    int64_t low = INT64_MAX, high = 0;
    char text[48];
    for (int64_t e = 0; e < nmlp_config_mlp_count(&m->config, l); e++) {
        int64_t rank = nmlp_factors_rank(&nmlp_layer_mlp_at(&m->layers[l], e)[matrix]);
        if (rank < low) low = rank;
        if (rank > high) high = rank;
    }
    snprintf(text, sizeof text, "%" PRId64 "..%" PRId64, low, high);
    if (low == high) snprintf(text, sizeof text, "%" PRId64, low);
    printf(" %10s", high == 0 ? "dense" : text);
}

static void print_ranks(const nmlp_model *m) {
    printf("\n%-7s %10s %10s %10s\n", "layer", "gate", "up", "down");
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        printf("%-7" PRId64, l);
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) print_rank(m, l, i);
        if (m->layers[l].slices > 0) printf("  of %" PRId64 " slices", m->layers[l].slices);
        printf("%s\n", nmlp_layer_shares_basis(&m->layers[l], 0) ? "  gate and up share their basis" : "");
    }
}

static void print_attention_ranks(const nmlp_model *m) {
    printf("\n%-7s %10s %10s %10s %10s\n", "layer", "q", "k", "v", "o");
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        printf("%-7" PRId64, l);
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
            char text[24];
            int64_t rank = nmlp_factors_rank(&m->layers[l].attention[i]);
            snprintf(text, sizeof text, "%" PRId64, rank);
            printf(" %10s", rank ? text : "dense");
        }
        printf("%s\n", m->layers[l].attention_shares_basis ? "  q, k and v share their basis" : "");
    }
}

static void print_text(const nmlp_model *m) {
    const nmlp_config *c = &m->config;
    nmlp_model_size size = nmlp_model_measure(m);
    char params[32];
    char bytes[32];
    char mlp[32];
    nmlp_cli_count_text(params, (double)size.params);
    nmlp_cli_bytes_text(bytes, (double)size.bytes);
    nmlp_cli_count_text(mlp, (double)size.mlp_params);
    printf("%s\n", m->checkpoint.dir);
    printf("  family        %s (%s)\n", c->family, c->architecture);
    printf("  shape         hidden %" PRId64 ", intermediate %" PRId64 ", layers %" PRId64 "\n", c->hidden,
           c->intermediate, c->n_layers);
    if (c->n_experts)
        printf("  experts       %" PRId64 " of %" PRId64 " neurons, %" PRId64 " for each token\n", c->n_experts,
               c->expert_intermediate, c->experts_per_token);
    printf("  attention     %" PRId64 " heads, %" PRId64 " kv heads, head dim %" PRId64 "\n", c->n_heads, c->n_kv_heads,
           c->head_dim);
    printf("  vocabulary    %" PRId64 "%s\n", c->vocab, c->tied ? ", embedding tied to the head" : "");
    printf("  context       %" PRId64 " tokens\n", c->max_positions);
    printf("  parameters    %s (%s, %.2f bits per weight)\n", params, bytes, bits_per_weight(&size));
    print_types(m);
    printf("  MLP           %s parameters, %.1f %% of dense; %" PRId64 " matrices dense, %" PRId64 " low-rank\n", mlp,
           100.0 * (double)size.mlp_params / (double)size.mlp_params_dense, size.n_dense, size.n_lowrank);
    if (size.n_attention_lowrank)
        printf("  q, k, v, o    %.1f %% of dense; %" PRId64 " matrices low-rank\n",
               100.0 * (double)size.attention_params / (double)size.attention_params_dense, size.n_attention_lowrank);
    if (size.n_lowrank) print_ranks(m);
    if (size.n_attention_lowrank) print_attention_ranks(m);
}

static int run(int argc, char **argv) {
    nmlp_cli cli;
    nmlp_err err;
    nmlp_model model;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_info, NULL, 0, 1, 1, argc, argv);
    if (code >= 0) return code;
    if (nmlp_model_open(&model, cli.positionals[0], &err) != NMLP_OK) return nmlp_cli_fail(&cli, &err);
    code = NMLP_EXIT_OK;
    if (cli.json) {
        code = print_json(&cli, &model);
    } else {
        print_text(&model);
    }
    nmlp_model_close(&model);
    return code;
}

const nmlp_command nmlp_cmd_info = {
    .name = "info",
    .summary = "show what is in a checkpoint",
    .usage = "MODEL",
    .about = "Family, shape, parameters and bytes, which MLP matrices are dense and which are factors, their "
             "ranks and formats.",
    .examples = "neuronmlp info models/tiny\n"
                "neuronmlp info models/tiny --json\n",
    .run = run,
};
