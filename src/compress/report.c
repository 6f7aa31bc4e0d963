/* What a compression reports: errors and sizes, and the checkpoint that carries them. */
#include "base/ints.h"
#include "base/mem.h"
#include "compress/card.h"
#include "compress/job_internal.h"
#include "compress/record.h"
#include "compress/write.h"

enum { CURVE_POINTS_MAX = 33 };

double nmlp_compress_removed(const nmlp_compress_report *r) {
    bool attention = r->n_blocks > r->n_layers;
    double before = (double)(r->mlp_params_before + (attention ? r->attention_params_before : 0));
    double after = (double)(r->mlp_params_after + (attention ? r->attention_params_after : 0));
    return 1 - after / before;
}

void nmlp_compress_report_fini(nmlp_compress_report *r) {
    nmlp_mem_free(r->ranks);
    nmlp_mem_free(r->nmse);
    nmlp_mem_free(r->attention_nmse);
    nmlp_mem_free(r->curve);
    nmlp_mem_free(r->layer_error);
    nmlp_mem_free(r->layer_error_before);
    *r = (nmlp_compress_report){0};
}

nmlp_status nmlp_compress_report_init(nmlp_compress_report *r, int64_t n_layers, bool attention, nmlp_err *err) {
    *r = (nmlp_compress_report){.n_layers = n_layers, .n_blocks = (attention ? NMLP_MODULES : 1) * n_layers};
    r->ranks = nmlp_mem_new((size_t)r->n_blocks, sizeof *r->ranks, err);
    if (attention) {
        size_t n = (size_t)(n_layers * NMLP_ATTENTION_MATRICES);
        r->attention_nmse = nmlp_mem_new(n, sizeof *r->attention_nmse, err);
        if (!r->attention_nmse) return NMLP_E_NOMEM;
    }
    r->nmse = nmlp_mem_new((size_t)(n_layers * NMLP_MLP_MATRICES), sizeof *r->nmse, err);
    r->layer_error = nmlp_mem_new((size_t)n_layers, sizeof *r->layer_error, err);
    r->layer_error_before = nmlp_mem_new((size_t)n_layers, sizeof *r->layer_error_before, err);
    return r->ranks && r->nmse && r->layer_error && r->layer_error_before ? NMLP_OK : NMLP_E_NOMEM;
}

/* A curve says where a matrix could have been cut: few enough points to live in config.json. */
static void fill_curve(nmlp_compress_report *r, int64_t at, const nmlp_nested *n) {
    for (int64_t k = 0; k < r->curve_points; k++) {
        int64_t rank = k * r->curve_step < n->full ? k * r->curve_step : n->full;
        r->curve[at * r->curve_points + k] = n->loss && n->loss[0] > 0 ? n->loss[rank] / n->loss[0] : 0;
    }
}

static nmlp_status new_curves(nmlp_compress_report *r, const nmlp_config *c, int64_t tile, nmlp_err *err) {
    int64_t full = 0;
    for (int64_t l = 0; l < c->n_layers; l++)
        full = nmlp_max(full, nmlp_min(c->hidden, nmlp_config_mlp_inner(c, l) / r->slices));
    int64_t tiles = (full + tile - 1) / tile;
    r->curve_step = tile * ((tiles + CURVE_POINTS_MAX - 2) / (CURVE_POINTS_MAX - 1));
    r->curve_points = 1 + (full + r->curve_step - 1) / r->curve_step;
    r->curve = nmlp_mem_new((size_t)(r->n_layers * NMLP_MLP_MATRICES * r->curve_points), sizeof *r->curve, err);
    return r->curve ? NMLP_OK : NMLP_E_NOMEM;
}

static double error_at(const nmlp_nested *n, int64_t rank) {
    return rank > 0 && n->loss[0] > 0 ? n->loss[rank] / n->loss[0] : 0;
}

static void fill_attention_errors(nmlp_compress_job *j) {
    nmlp_compress_report *r = j->report;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const nmlp_layer_ranks *ranks = nmlp_compress_attention_ranks(j, l);
        int64_t b = r->n_layers + l;
        for (int i = 0; ranks && i < NMLP_ATTENTION_MATRICES; i++)
            r->attention_nmse[l * NMLP_ATTENTION_MATRICES + i] =
                error_at(&j->factor_files[b].nested[nmlp_block_entry(&j->blocks[b], ranks, i)], ranks->rank[i]);
    }
}

nmlp_status nmlp_compress_report_fill(nmlp_compress_job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    NMLP_RETURN_IF_FAILED(new_curves(r, &j->model->config, j->options->tile, err));
    if (r->attention_nmse) fill_attention_errors(j);
    for (int64_t l = 0; l < r->n_layers; l++) {
        const nmlp_layer_ranks *ranks = &r->ranks[l];
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            bool joint = i != NMLP_MLP_DOWN && (ranks->joint || j->factor_files[l].nested[i].rank == 0);
            const nmlp_nested *n = &j->factor_files[l].nested[joint ? NMLP_NESTED_JOINT : i];
            r->nmse[l * NMLP_MLP_MATRICES + i] = error_at(n, ranks->rank[i]);
            fill_curve(r, l * NMLP_MLP_MATRICES + i, n);
        }
        /* The last expert's is that of the layer with all of them refitted. */
        const nmlp_layer_file *last = &j->finished[l * j->n_mlps + nmlp_factor_file_mlps(&j->factor_files[l]) - 1];
        r->layer_error[l] = last->error;
        r->layer_error_before[l] = last->error_before;
    }
    return NMLP_OK;
}

nmlp_status nmlp_compress_write(nmlp_compress_job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_model_size before = nmlp_model_measure(j->model);
    nmlp_compressed_size after;
    nmlp_str text, card;
    nmlp_str_init(&text);
    nmlp_str_init(&card);
    r->params_before = before.params;
    r->mlp_params_before = before.mlp_params;
    r->bytes_before = before.bytes;
    r->mlp_params_after = 0;
    for (int64_t l = 0; l < r->n_layers; l++)
        for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++)
            r->mlp_params_after += r->slices * nmlp_block_params(&j->blocks[l], &j->finished[l * j->n_mlps + e].ranks);
    r->attention_params_before = r->attention_params_after = before.attention_params;
    for (int64_t b = r->n_layers; b < j->n_blocks; b++)
        r->attention_params_after +=
            nmlp_block_params(&j->blocks[b], &r->ranks[b]) - nmlp_block_params(&j->blocks[b], NULL);
    nmlp_compress_record_write(j->options, r, &j->model->config, j->finished, &text);
    nmlp_compress_card_write(j->options, r, j->model->checkpoint.dir, &card);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_str_status(&card, err);
    if (st == NMLP_OK)
        st = nmlp_compressed_write(j->model, j->finished, nmlp_compress_finished_attention(j, 0), j->options->slices,
                                   &j->folders.output, nmlp_str_text(&text), nmlp_str_text(&card), j->options->progress,
                                   &after, err);
    nmlp_str_fini(&text);
    nmlp_str_fini(&card);
    if (st != NMLP_OK) return st;
    r->params_after = after.params;
    r->bytes_after = after.bytes;
    return NMLP_OK;
}
