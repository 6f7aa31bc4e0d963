/* Finished layers: refitted where that lowers the held-out loss, else the factors as they were made. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/factor/expert_ranks.h"
#include "compress/job_internal.h"
#include "compress/refit/refit.h"

/* The finished attention of a layer. */
nmlp_layer_file *nmlp_compress_finished_attention(const nmlp_compress_job *j, int64_t l) {
    return &j->finished[j->model->config.n_layers * j->n_mlps + l];
}

/* The number of an expert in file names. */
static int64_t expert_of(const nmlp_compress_job *j, int64_t l, int64_t index) {
    return j->factor_files[l].experts ? index : NMLP_REFIT_ONLY;
}

/* NULL: it stays as it is. */
const nmlp_layer_ranks *nmlp_compress_attention_ranks(const nmlp_compress_job *j, int64_t l) {
    int64_t b = j->model->config.n_layers + l;
    return b < j->n_blocks && !nmlp_layer_ranks_are_dense(&j->report->ranks[b]) ? &j->report->ranks[b] : NULL;
}

static nmlp_status finish_plain_attention(nmlp_compress_job *j, int64_t l, nmlp_err *err) {
    char path[NMLP_COMPRESS_PATH_MAX_BYTES];
    nmlp_layer_attention made;
    const nmlp_layer *dense = &j->model->layers[l];
    const nmlp_layer_ranks *ranks = nmlp_compress_attention_ranks(j, l);
    const nmlp_factor_file *factors = &j->factor_files[j->model->config.n_layers + l];
    nmlp_layer_file file = {.ranks = *ranks, .error = NAN, .error_before = NAN};
    NMLP_RETURN_IF_FAILED(
        nmlp_refit_path(path, sizeof path, j->folders.work.temp_path, l, NMLP_REFIT_ATTENTION, false, err));
    NMLP_RETURN_IF_FAILED(nmlp_layer_attention_build(&made, factors, dense, ranks, nmlp_engine_pool(j->engine), err));
    memcpy(file.factors, made.layer.attention, sizeof made.layer.attention);
    nmlp_status st =
        nmlp_layer_file_write(path, j->fingerprint.job, &file, NMLP_MODULE_ATTENTION, dense->attention, err);
    nmlp_layer_attention_fini(&made);
    nmlp_factor_file_release(factors);
    return st;
}

/* The factors as the first pass made them, as finished layers; each process writes some of them. */
static nmlp_status finish_plain(nmlp_compress_job *j, nmlp_err *err) {
    for (int64_t l = 0; l < j->report->n_layers; l++) {
        if (!nmlp_group_deals(j->options->group, l)) continue;
        nmlp_layer_mlps mlps;
        const nmlp_layer *dense = &j->model->layers[l];
        nmlp_status st = NMLP_OK;
        NMLP_RETURN_IF_FAILED(nmlp_layer_mlps_build(&mlps, &j->factor_files[l], dense, &j->report->ranks[l],
                                                    nmlp_engine_pool(j->engine), err));
        for (int64_t e = 0; e < mlps.n && st == NMLP_OK; e++) {
            char path[NMLP_COMPRESS_PATH_MAX_BYTES];
            const nmlp_mlp_desc *desc = &mlps.descs[e];
            nmlp_layer_file file = {.factors = {desc->gate, desc->up, desc->down}, .error = NAN, .error_before = NAN};
            st = nmlp_refit_path(path, sizeof path, j->folders.work.temp_path, l, expert_of(j, l, e), false, err);
            if (st == NMLP_OK)
                st = nmlp_expert_ranks_of(&j->factor_files[l], &j->report->ranks[l], e, &file.ranks, err);
            if (st == NMLP_OK)
                st = nmlp_layer_file_write(path, j->fingerprint.job, &file, NMLP_MODULE_MLP,
                                           nmlp_layer_mlp_at(dense, e), err);
        }
        nmlp_layer_mlps_fini(&mlps);
        nmlp_factor_file_release(&j->factor_files[l]);
        NMLP_RETURN_IF_FAILED(st);
        if (nmlp_compress_attention_ranks(j, l)) NMLP_RETURN_IF_FAILED(finish_plain_attention(j, l, err));
    }
    return NMLP_OK;
}

static nmlp_status open_finished_file(nmlp_compress_job *j, int64_t l, int64_t index, bool refitted, nmlp_err *err) {
    char path[NMLP_COMPRESS_PATH_MAX_BYTES];
    nmlp_work_state state;
    nmlp_layer_ranks ranks;
    bool attention = index == NMLP_REFIT_ATTENTION;
    const nmlp_layer *layer = &j->model->layers[l];
    nmlp_layer_file *file = attention ? nmlp_compress_finished_attention(j, l) : &j->finished[l * j->n_mlps + index];
    nmlp_layer_file_close(file);
    NMLP_RETURN_IF_FAILED(nmlp_refit_path(path, sizeof path, j->folders.work.temp_path, l,
                                          attention ? index : expert_of(j, l, index), refitted, err));
    if (attention)
        ranks = *nmlp_compress_attention_ranks(j, l);
    else
        NMLP_RETURN_IF_FAILED(nmlp_expert_ranks_of(&j->factor_files[l], &j->report->ranks[l], index, &ranks, err));
    NMLP_RETURN_IF_FAILED(nmlp_layer_file_open(
        file, path, j->fingerprint.job, &ranks, j->options->slices, attention ? NMLP_MODULE_ATTENTION : NMLP_MODULE_MLP,
        attention ? layer->attention : nmlp_layer_mlp_at(layer, index), &state, err));
    if (state == NMLP_WORK_VALID) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO, "%s: was written a moment ago and cannot be read back", path);
}

static nmlp_status open_finished(nmlp_compress_job *j, bool refitted, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_group_meet(j->options->group, err));
    for (int64_t l = 0; l < j->report->n_layers; l++)
        for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++)
            NMLP_RETURN_IF_FAILED(open_finished_file(j, l, e, refitted, err));
    for (int64_t l = 0; l < j->report->n_layers; l++)
        if (nmlp_compress_attention_ranks(j, l))
            NMLP_RETURN_IF_FAILED(open_finished_file(j, l, NMLP_REFIT_ATTENTION, refitted, err));
    return NMLP_OK;
}

static bool finished_changes(const void *ctx, int64_t l) {
    (void)ctx;
    (void)l;
    return true;
}

static nmlp_status finished_install(void *ctx, int64_t l, nmlp_err *err) {
    nmlp_compress_job *j = ctx;
    int64_t n = nmlp_factor_file_mlps(&j->factor_files[l]);
    nmlp_mlp_desc *descs = nmlp_mem_new((size_t)n, sizeof *descs, err);
    if (!descs) return NMLP_E_NOMEM;
    for (int64_t e = 0; e < n; e++)
        descs[e] = nmlp_layer_file_mlp(&j->finished[l * j->n_mlps + e], nmlp_layer_mlp_at(&j->model->layers[l], e));
    nmlp_status st = nmlp_engine_set_mlp(j->engine, l, descs, err);
    nmlp_mem_free(descs);
    if (st != NMLP_OK || !nmlp_compress_attention_ranks(j, l)) return st;
    nmlp_layer finished = j->model->layers[l];
    nmlp_layer_file_factors(nmlp_compress_finished_attention(j, l), NMLP_MODULE_ATTENTION,
                            j->model->layers[l].attention, finished.attention);
    finished.attention_shares_basis = nmlp_compress_attention_ranks(j, l)->joint;
    return nmlp_engine_set_attention(j->engine, l, &finished, err);
}

static void finished_remove(void *ctx, int64_t l) {
    nmlp_compress_job *j = ctx;
    (void)nmlp_engine_set_mlp(j->engine, l, NULL, NULL);
    if (nmlp_compress_attention_ranks(j, l)) (void)nmlp_engine_set_attention(j->engine, l, NULL, NULL);
    for (int64_t e = 0; e < nmlp_factor_file_mlps(&j->factor_files[l]); e++) {
        const nmlp_file_map *map = &j->finished[l * j->n_mlps + e].map;
        nmlp_file_map_release(map->data, map->bytes);
    }
    nmlp_layer_release(&j->model->layers[l], &j->factor_files[l]);
}

static nmlp_status measure_finished(nmlp_compress_job *j, nmlp_loss *loss, nmlp_err *err) {
    nmlp_mlp_overrides in = {
        .ctx = j, .changes = finished_changes, .install = finished_install, .remove = finished_remove};
    return nmlp_heldout_measure_shared(&j->heldout, j->engine, j->windows.n_heldout, &in, loss, err);
}

/* The refit of all layers together must lower the held-out loss as well, or none of it is kept. */
nmlp_status nmlp_compress_finish(nmlp_compress_job *j, nmlp_err *err) {
    nmlp_compress_report *r = j->report;
    nmlp_refit_job refit = {.engine = j->engine,
                            .share = &j->share,
                            .blocks = j->blocks,
                            .n_blocks = j->n_blocks,
                            .factor_files = j->factor_files,
                            .ranks = r->ranks,
                            .slices = j->options->slices,
                            .refit_down = !nmlp_compress_is_large(&j->model->config),
                            .token_weights = j->options->token_weights,
                            .progress = j->options->progress,
                            .times = &r->times,
                            .work_dir = j->folders.work.temp_path,
                            .fingerprint = j->fingerprint.job};
    nmlp_heldout_end_probes(&j->heldout);
    if (j->options->refit) {
        NMLP_RETURN_IF_FAILED(nmlp_refit_run(&refit, err));
        NMLP_RETURN_IF_FAILED(open_finished(j, true, err));
        NMLP_RETURN_IF_FAILED(measure_finished(j, &r->final, err));
        r->refit_kept = r->final.kl < r->factored.kl;
        if (r->refit_kept) return NMLP_OK;
        r->final = r->factored;
    }
    NMLP_RETURN_IF_FAILED(finish_plain(j, err));
    return open_finished(j, false, err);
}
