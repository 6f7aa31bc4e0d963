#include "service/mix_models.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash64.h"
#include "base/ints.h"
#include "base/mem.h"
#include "base/work_file.h"
#include "compress/quantize/quantize.h"
#include "compress/work.h"
#include "model/expand.h"
#include "service/quantization.h"

/* ---- opening ---- */

/* Windows from all over the text go to the verification: texts are often joined from several sources. */
static nmlp_status set_apart(nmlp_mix_models *m, const nmlp_mix_models_request *r, nmlp_err *err) {
    int64_t context = nmlp_min(m->method.context, m->dense.model.config.max_positions);
    int64_t n = (int64_t)m->ids.len / context, want = (r->verify_tokens + context - 1) / context;
    size_t kept = 0;
    if (r->verify_tokens <= 0 || context < 2) return NMLP_OK;
    want = nmlp_min(want, n / 4);
    for (int64_t i = 0; i < n; i++) {
        const int32_t *window = m->ids.data + i * context;
        if ((i + 1) * want / n == i * want / n) {
            memmove(m->ids.data + kept, window, (size_t)context * sizeof *window);
            kept += (size_t)context;
            continue;
        }
        for (int64_t k = 0; k < context; k++) NMLP_RETURN_IF_FAILED(nmlp_ids_push(r->verify, window[k], err));
    }
    if (n > 0) m->ids.len = kept;
    return NMLP_OK;
}

/* The tokens that are there, in the proportions asked for. */
static nmlp_status cut_windows(nmlp_mix_models *m, nmlp_err *err) {
    nmlp_compress_options *o = &m->method;
    const nmlp_config *c = &m->dense.model.config;
    if (o->heldout_tokens < 0) o->heldout_tokens = nmlp_compress_is_large(c) ? 2048 : 8192;
    int64_t context = nmlp_min(o->context, c->max_positions);
    NMLP_RETURN_IF_FAILED(nmlp_calib_windows_cut(&m->windows, m->ids.data, (int64_t)m->ids.len, context,
                                                 o->calib_tokens, o->heldout_tokens, err));
    if (m->windows.n_heldout > 0) return NMLP_OK;
    nmlp_fail_field(err, NMLP_E_ARG, "heldout_tokens", "leaves no held-out tokens, on which ranks and bits are chosen");
    nmlp_fail_hint(err, "give a longer `calibration` text and `heldout_tokens` above 0");
    return NMLP_E_ARG;
}

/* A work folder whose removal was interrupted holds models without all of their files: it is whole only with this file,
 * which goes first. */
static const char whole_file[] = "whole";

static bool is_whole(const nmlp_dir_stage *work) {
    char path[NMLP_MIX_PATH_BYTES];
    if (!nmlp_dir_stage_has_files(work)) return true;
    return nmlp_path_join(path, sizeof path, work->temp_path, whole_file, NULL) == NMLP_OK && nmlp_file_exists(path);
}

static nmlp_status mark_whole(const nmlp_dir_stage *work, nmlp_err *err) {
    char path[NMLP_MIX_PATH_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, work->temp_path, whole_file, err));
    return nmlp_file_exists(path) ? NMLP_OK : nmlp_file_write_text(path, "", 0, err);
}

static void unmark_whole(const nmlp_dir_stage *work) {
    char path[NMLP_MIX_PATH_BYTES];
    if (nmlp_path_join(path, sizeof path, work->temp_path, whole_file, NULL) == NMLP_OK) (void)remove(path);
}

/* The first process holds the folder, the others visit it. */
static nmlp_status hold_work(nmlp_mix_models *m, const char *path, bool resume, nmlp_err *err) {
    const nmlp_process_group *group = m->method.group;
    if (nmlp_group_leads(group)) {
        NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&m->work, path, resume, err));
        if (!is_whole(&m->work)) {
            nmlp_dir_stage_abort(&m->work);
            NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&m->work, path, false, err));
        }
    }
    NMLP_RETURN_IF_FAILED(nmlp_group_meet(group, err));
    return nmlp_group_leads(group) ? NMLP_OK : nmlp_dir_stage_visit(&m->work, path, err);
}

static nmlp_status open_work(nmlp_mix_models *m, const nmlp_mix_models_request *r, nmlp_err *err) {
    nmlp_str path;
    nmlp_str_init(&path);
    nmlp_str_puts(&path, r->method.work_dir ? r->method.work_dir : r->out_dir);
    while (path.len > 1 && path.data[path.len - 1] == '/') path.data[--path.len] = '\0';
    if (!r->method.work_dir) nmlp_str_puts(&path, ".work");
    nmlp_status st = nmlp_str_status(&path, err);
    if (st == NMLP_OK) st = hold_work(m, nmlp_str_text(&path), r->method.resume, err);
    if (st == NMLP_OK) st = nmlp_path_join(m->layers_dir, sizeof m->layers_dir, m->work.temp_path, "layers", err);
    nmlp_str_fini(&path);
    return st;
}

static nmlp_status check_model(const nmlp_model *model, nmlp_err *err) {
    const nmlp_config *c = &model->config;
    const char *beyond = c->features->fused ? "fused projections" : c->n_experts > 0 ? "experts" : NULL;
    if (beyond)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: has %s, whose matrices are not quantised yet",
                         model->checkpoint.dir, beyond);
    if (!c->compressed && !c->quantised) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: is %s already", model->checkpoint.dir,
              c->compressed ? "compressed" : "quantised");
    nmlp_fail_hint(err, "begin with the checkpoint that it was made from, or expand this one first");
    return NMLP_E_UNSUPPORTED;
}

nmlp_status nmlp_mix_models_open(nmlp_mix_models *m, const nmlp_mix_models_request *r, nmlp_err *err) {
    *m = (nmlp_mix_models){.model_dir = r->model_dir, .load = r->load, .method = r->method};
    nmlp_config config;
    nmlp_ids_init(&m->ids);
    NMLP_RETURN_IF_FAILED(nmlp_config_load(&config, r->model_dir, err));
    if (!m->load.precision && !m->load.isa) m->load.precision = nmlp_compress_is_large(&config) ? "bf16" : "f32";
    NMLP_RETURN_IF_FAILED(nmlp_calib_text_read(r->model_dir, r->calibration, &m->ids, r->calibration_name, err));
    nmlp_load_options load = m->load;
    load.work.calib_tokens = m->method.calib_tokens;
    NMLP_RETURN_IF_FAILED(nmlp_load(&m->dense, r->model_dir, &load, err));
    NMLP_RETURN_IF_FAILED(check_model(&m->dense.model, err));
    NMLP_RETURN_IF_FAILED(set_apart(m, r, err));
    NMLP_RETURN_IF_FAILED(cut_windows(m, err));
    NMLP_RETURN_IF_FAILED(open_work(m, r, err));
    m->keep_work = r->method.work_dir != NULL;
    m->method.work_dir = m->layers_dir;
    m->method.keep_work = true;
    m->method.resume = true;
    m->method.progress = r->load.progress;
    m->method.calib_name = nmlp_str_text(r->calibration_name);
    nmlp_compress_fingerprint fingerprint = {0};
    if (nmlp_group_leads(m->method.group))
        NMLP_RETURN_IF_FAILED(
            nmlp_compress_fingerprint_of(&fingerprint, m->dense.engine, &m->windows, &m->method, err));
    m->fingerprint = fingerprint.job;
    return nmlp_group_broadcast(m->method.group, &m->fingerprint, sizeof m->fingerprint, err);
}

nmlp_status nmlp_mix_models_survey(nmlp_mix_models *m, nmlp_err *err) {
    if (nmlp_group_leads(m->method.group)) NMLP_RETURN_IF_FAILED(mark_whole(&m->work, err));
    return nmlp_compress_survey(m->dense.engine, m->ids.data, (int64_t)m->ids.len, &m->method, &m->survey, err);
}

static nmlp_status close_work(nmlp_mix_models *m, nmlp_status st, nmlp_err *err) {
    if (!nmlp_group_leads(m->method.group)) {
        nmlp_dir_stage_keep(&m->work);
        return st;
    }
    bool unfinished = st != NMLP_OK && m->work.temp_path && nmlp_dir_stage_has_files(&m->work);
    /* What a part of the work says about a folder inside ours is of no use to the caller. */
    if (unfinished && err && (!err->hint[0] || strstr(err->hint, m->work.temp_path)))
        nmlp_fail_hint(err, "what is done is kept in %s; the same command with `resume` goes on from there",
                       m->work.temp_path);
    if (unfinished || (st == NMLP_OK && m->keep_work)) nmlp_dir_stage_keep(&m->work);
    if (m->work.temp_path) unmark_whole(&m->work);
    if (st == NMLP_OK) st = nmlp_dir_stage_discard(&m->work, err);
    nmlp_dir_stage_abort(&m->work);
    return st;
}

nmlp_status nmlp_mix_models_close(nmlp_mix_models *m, nmlp_status st, nmlp_err *err) {
    for (int i = 0; i < m->n; i++) nmlp_mix_fini(&m->list[i].mix);
    nmlp_loss_survey_fini(&m->survey);
    nmlp_calib_windows_fini(&m->windows);
    nmlp_ids_fini(&m->ids);
    nmlp_unload(&m->dense);
    if (st == NMLP_OK) st = nmlp_group_meet(m->method.group, err); /* nobody has files open that now go */
    return close_work(m, st, err);
}

/* ---- building ---- */

/* Whether a model was built before, by this run or an earlier one; every process has looked then. */
static nmlp_status is_built(const nmlp_mix_models *m, const char *dir, bool *built, nmlp_err *err) {
    *built = nmlp_file_is_dir(dir);
    return nmlp_work_agree(m->method.group, *built, m->work.temp_path, err);
}

static nmlp_status path_of(const nmlp_mix_models *m, char path[NMLP_MIX_PATH_BYTES], const char *kind, uint64_t hash,
                           nmlp_err *err) {
    char name[48];
    snprintf(name, sizeof name, "%s-%016llx", kind, (unsigned long long)hash);
    return nmlp_path_join(path, NMLP_MIX_PATH_BYTES, m->work.temp_path, name, err);
}

/* The factors alone; other formats of the same ranks find them. */
static nmlp_status build_ranks(nmlp_mix_models *m, const nmlp_mix *mix, char dir[NMLP_MIX_PATH_BYTES], nmlp_err *err) {
    nmlp_compress_options method = m->method;
    nmlp_compress_report report;
    uint64_t hash = m->fingerprint;
    bool built;
    for (int64_t l = 0; l < mix->n_layers; l++) {
        int64_t words[] = {mix->ranks[l].rank[0], mix->ranks[l].rank[1], mix->ranks[l].rank[2], mix->ranks[l].joint};
        hash = nmlp_hash64(words, sizeof words, hash);
    }
    NMLP_RETURN_IF_FAILED(path_of(m, dir, "ranks", hash, err));
    NMLP_RETURN_IF_FAILED(is_built(m, dir, &built, err));
    if (built) return NMLP_OK;
    /* Ranks and refits of the model built before are found in the folder, and are no news. */
    nmlp_progress quiet = m->method.progress ? *m->method.progress : (nmlp_progress){0};
    quiet.note = NULL;
    method.progress = &quiet;
    method.ranks = mix->ranks;
    NMLP_RETURN_IF_FAILED(
        nmlp_compress_run(m->dense.engine, m->ids.data, (int64_t)m->ids.len, dir, &method, &report, err));
    nmlp_compress_report_fini(&report);
    return NMLP_OK;
}

/* In fewer bits, from a checkpoint with factors or from the dense model (`from` NULL). */
static nmlp_status build_bits(nmlp_mix_models *m, const nmlp_mix *mix, const char *from, const char *dir,
                              nmlp_err *err) {
    nmlp_quantize_options o = nmlp_quantize_defaults();
    nmlp_quantize_report report;
    nmlp_loaded loaded = {0};
    nmlp_status st = NMLP_OK;
    o.formats = mix->formats;
    o.head = mix->head;
    o.calib_tokens = m->method.calib_tokens;
    o.heldout_tokens = m->method.heldout_tokens;
    o.context = m->method.context;
    o.resume = true;
    o.progress = m->method.progress;
    o.group = m->method.group;
    if (from) NMLP_TRY(nmlp_load(&loaded, from, &m->load, err));
    NMLP_TRY(nmlp_quantize_run(from ? loaded.engine : m->dense.engine, m->ids.data, (int64_t)m->ids.len, dir, &o,
                               &report, err));
    nmlp_quantize_report_fini(&report);
out:
    nmlp_unload(&loaded);
    return st;
}

static nmlp_status build_dir(nmlp_mix_models *m, nmlp_mix_model *model, nmlp_err *err) {
    const nmlp_mix *mix = &model->mix;
    uint64_t hash = nmlp_mix_hash(mix) ^ m->fingerprint;
    char ranks_dir[NMLP_MIX_PATH_BYTES];
    bool ranks = nmlp_mix_has_ranks(mix), bits = nmlp_mix_has_bits(mix), built;
    int64_t bytes;
    if (ranks) NMLP_RETURN_IF_FAILED(build_ranks(m, mix, ranks_dir, err));
    if (ranks && !bits) {
        memcpy(model->dir, ranks_dir, sizeof model->dir);
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(path_of(m, model->dir, "model", hash, err));
    NMLP_RETURN_IF_FAILED(is_built(m, model->dir, &built, err));
    if (built) return NMLP_OK;
    if (bits) return build_bits(m, mix, ranks ? ranks_dir : NULL, model->dir, err);
    if (nmlp_group_leads(m->method.group))
        NMLP_RETURN_IF_FAILED(
            nmlp_model_expand(&m->dense.model, model->dir, m->dense.pool, m->method.progress, &bytes, err));
    return nmlp_group_meet(m->method.group, err);
}

nmlp_status nmlp_mix_models_compare(const nmlp_mix_models *m, const char *dir, const int32_t *ids, int64_t n,
                                    nmlp_divergence *result, nmlp_err *err) {
    nmlp_loaded loaded = {0};
    nmlp_ppl_options o = {.ctx = m->windows.context, .stage = "comparing", .progress = m->method.progress};
    NMLP_RETURN_IF_FAILED(nmlp_load(&loaded, dir, &m->load, err));
    nmlp_status st = nmlp_divergence_ids(result, m->dense.engine, loaded.engine, ids, n, &o, err);
    nmlp_unload(&loaded);
    return st;
}

/* The comparison with the dense model, from the work folder where it was made before. */
static nmlp_status measure_here(nmlp_mix_models *m, nmlp_mix_model *model, nmlp_err *err) {
    static const char magic[] = "NMLPMXL1";
    char path[NMLP_MIX_PATH_BYTES];
    nmlp_file_map map;
    nmlp_work_state state;
    nmlp_work_writer writer;
    size_t payload = 0;
    uint64_t hash = nmlp_mix_hash(&model->mix) ^ m->fingerprint;
    NMLP_RETURN_IF_FAILED(path_of(m, path, "loss", hash, err));
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, magic, hash, &payload, &state, err));
    bool known = state == NMLP_WORK_VALID && payload == sizeof model->heldout;
    if (known) memcpy(&model->heldout, map.data, sizeof model->heldout);
    nmlp_file_map_close(&map);
    if (known) return NMLP_OK;
    const int32_t *ids = m->windows.ids + m->windows.n_calib * m->windows.context;
    NMLP_RETURN_IF_FAILED(nmlp_mix_models_compare(m, model->dir, ids, nmlp_calib_windows_heldout_tokens(&m->windows),
                                                  &model->heldout, err));
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, hash, err));
    nmlp_status st = nmlp_work_writer_put(&writer, &model->heldout, sizeof model->heldout, err);
    if (st == NMLP_OK) return nmlp_work_writer_commit(&writer, err);
    nmlp_work_writer_abort(&writer);
    return st;
}

/* By the first process: the answers are few, and a comparison takes little beside making them. */
static nmlp_status measure(nmlp_mix_models *m, nmlp_mix_model *model, nmlp_err *err) {
    if (!nmlp_group_leads(m->method.group))
        return nmlp_group_await(m->method.group, &model->heldout, sizeof model->heldout, err);
    NMLP_RETURN_IF_FAILED(measure_here(m, model, err));
    return nmlp_group_broadcast(m->method.group, &model->heldout, sizeof model->heldout, err);
}

static nmlp_status measure_size(nmlp_mix_model *model, nmlp_err *err) {
    nmlp_model opened;
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&opened, model->dir, err));
    nmlp_model_size size = nmlp_model_measure(&opened);
    model->params = size.params;
    model->mlp_params = size.mlp_params;
    model->bytes = size.bytes;
    nmlp_model_close(&opened);
    return NMLP_OK;
}

nmlp_status nmlp_mix_models_build(nmlp_mix_models *m, const char *name, const nmlp_mix *mix,
                                  const nmlp_mix_model **model, nmlp_err *err) {
    for (int i = 0; i < m->n; i++) {
        if (nmlp_mix_hash(&m->list[i].mix) != nmlp_mix_hash(mix)) continue;
        *model = &m->list[i];
        return NMLP_OK;
    }
    if (m->n == NMLP_MIX_MODELS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "more than %d models in one search", NMLP_MIX_MODELS_MAX);
    nmlp_mix_model *made = &m->list[m->n];
    *made = (nmlp_mix_model){.name = name};
    NMLP_RETURN_IF_FAILED(nmlp_mix_copy(&made->mix, mix, err));
    nmlp_status st = build_dir(m, made, err);
    if (st == NMLP_OK) st = measure(m, made, err);
    if (st == NMLP_OK) st = measure_size(made, err);
    if (st != NMLP_OK) {
        nmlp_mix_fini(&made->mix);
        return st;
    }
    m->n++;
    *model = made;
    return NMLP_OK;
}

/* ---- bytes ---- */

static double matrix_bytes(const void *ctx, int64_t rows, int64_t cols, int64_t rank, int option) {
    const nmlp_model *m = ctx;
    nmlp_dtype plain = m->layers[0].mlp[NMLP_MLP_GATE].w.dtype;
    if (rank == 0) return (double)nmlp_quant_option_bytes(plain, rows, cols, option);
    return (double)(nmlp_quant_option_bytes(plain, rows, rank, option) +
                    nmlp_quant_option_bytes(plain, rank, cols, option));
}

static double head_bytes(const void *ctx, int option) {
    const nmlp_model *m = ctx;
    const nmlp_config *c = &m->config;
    double head = (double)nmlp_quant_option_bytes(m->lm_head.dtype, c->vocab, c->hidden, option);
    if (m->embedding.data == m->lm_head.data) return head;
    return head + (double)nmlp_quant_option_bytes(m->embedding.dtype, c->vocab, c->hidden, option);
}

nmlp_mix_cost nmlp_mix_cost_bytes(const nmlp_model *model) {
    return (nmlp_mix_cost){.matrix = matrix_bytes, .head = head_bytes, .ctx = model};
}

int64_t nmlp_mix_fixed_bytes(const nmlp_model *m) {
    double rest = (double)nmlp_model_measure(m).bytes - head_bytes(m, NMLP_QUANT_OPTION_PLAIN);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int64_t i = 0; i < nmlp_quant_layer_views(&m->config, l); i++) {
            const nmlp_view *view = nmlp_quant_layer_view(&m->layers[l], i);
            if (view->data) rest -= matrix_bytes(m, view->shape[0], view->shape[1], 0, NMLP_QUANT_OPTION_PLAIN);
        }
    return (int64_t)rest;
}

/* ---- words ---- */

void nmlp_mix_matrix_text(char text[32], const nmlp_mix *mix, int64_t l, int matrix) {
    const char *format = nmlp_quant_format_text(&mix->formats[l * NMLP_QUANT_MATRICES + matrix]);
    int64_t rank = matrix >= NMLP_QUANT_GATE ? mix->ranks[l].rank[matrix - NMLP_QUANT_GATE] : 0;
    bool shared = rank > 0 && mix->ranks[l].joint && matrix != NMLP_QUANT_DOWN;
    if (rank > 0)
        snprintf(text, 32, "%lld%s %s", (long long)rank, shared ? "*" : "", format);
    else
        snprintf(text, 32, "%s", format);
}
