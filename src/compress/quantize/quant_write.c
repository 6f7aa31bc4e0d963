#include "compress/quantize/quant_write.h"

#include <math.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/model_card.h"
#include "model/expand.h"

enum { PATH_MAX_BYTES = 4096 };
static const size_t shard_bytes = 1000000000u;

/* What stands for a tensor of the source; itself where nothing was changed. */
static nmlp_view view_for(const nmlp_model *m, const nmlp_quant_model *made, const nmlp_view *source) {
    if (source->data == m->embedding.data) return made->embedding;
    if (source->data == m->lm_head.data) return made->lm_head;
    for (int64_t l = 0; l < made->n_layers; l++)
        for (int i = 0; i < NMLP_QUANT_VIEWS; i++)
            if (nmlp_quant_layer_view(&m->layers[l], i)->data == source->data)
                return *nmlp_quant_layer_view(&made->layers[l], i);
    return *source;
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const nmlp_view *view = &((const nmlp_view *)ctx)[i];
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put_view(writer, view, err));
    nmlp_file_map_release(view->data, nmlp_view_bytes(view));
    return NMLP_OK;
}

/* The source's "neuronmlp" object, as text; stays empty where it has none. */
static nmlp_status read_record(const nmlp_model *m, nmlp_str *text, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_doc doc;
    nmlp_json_writer w;
    if (!m->config.compressed) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, m->checkpoint.dir, "config.json", err));
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_json_writer_init(&w, text);
    nmlp_json_put_value(&w, NULL, nmlp_json_get(doc.root, "neuronmlp"));
    nmlp_json_free(&doc);
    return nmlp_str_status(text, err);
}

static nmlp_status write_card(const nmlp_model *m, const nmlp_quantize_report *r, const char *dir, nmlp_err *err) {
    nmlp_str card;
    nmlp_str_init(&card);
    nmlp_model_card_begin(&card, m->checkpoint.dir, "quantised",
                          "Matrices are integers of 8 or 4 bits with scales (compressed-tensors), made by neuronmlp.",
                          "quantized");
    nmlp_str_printf(&card, "| bytes, before and after | %lld, %lld |\n", (long long)r->bytes_before,
                    (long long)r->bytes_after);
    nmlp_str_printf(&card, "| bits per weight | %.2f |\n", 8.0 * (double)r->bytes_after / (double)r->params);
    if (r->measured) {
        nmlp_str_printf(&card, "| held-out perplexity, before and after | %.4f, %.4f |\n", exp(r->before.nll),
                        exp(r->after.nll));
        nmlp_str_printf(&card, "| KL divergence from the original, nats per token | %.5f |\n", r->after.kl);
        nmlp_str_printf(&card, "| held-out tokens | %lld |\n", (long long)r->heldout_tokens);
    }
    nmlp_str_printf(&card, "| calibration | %lld tokens |\n", (long long)r->calib_tokens);
    nmlp_model_card_end(&card, NMLP_CARD_USE_HERE);
    nmlp_status st = nmlp_model_card_save(&card, dir, err);
    nmlp_str_fini(&card);
    return st;
}

nmlp_status nmlp_quant_write(const nmlp_model *m, const nmlp_quant_model *made, nmlp_dir_stage *stage,
                             const nmlp_progress *progress, nmlp_quantize_report *report, nmlp_err *err) {
    size_t n = m->checkpoint.n_tensors;
    nmlp_tensor_spec *specs = nmlp_mem_new(n, sizeof *specs, err);
    nmlp_view *views = nmlp_mem_new(n, sizeof *views, err);
    nmlp_str record;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&record);
    if (!specs || !views) NMLP_TRY(NMLP_E_NOMEM);
    report->bytes_after = 0;
    for (size_t i = 0; i < n; i++) {
        views[i] = view_for(m, made, &m->checkpoint.tensors[i].view);
        specs[i] = nmlp_tensor_spec_of(m->checkpoint.tensors[i].name, &views[i]);
        report->bytes_after += (int64_t)nmlp_tensor_spec_bytes(&specs[i]);
    }
    nmlp_checkpoint_source source = {.specs = specs,
                                     .n_specs = n,
                                     .put = put,
                                     .ctx = views,
                                     .max_shard_bytes = shard_bytes,
                                     .progress = progress,
                                     .stage = "writing"};
    NMLP_TRY(read_record(m, &record, err));
    NMLP_TRY(nmlp_checkpoint_write(stage->temp_path, &source, err));
    NMLP_TRY(nmlp_config_save(&m->config, record.len ? nmlp_str_text(&record) : NULL, specs, n, stage->temp_path, err));
    NMLP_TRY(nmlp_model_copy_side_files(m->checkpoint.dir, stage->temp_path, err));
    NMLP_TRY(write_card(m, report, stage->temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(stage, err));
out:
    nmlp_str_fini(&record);
    nmlp_mem_free(specs);
    nmlp_mem_free(views);
    return st;
}
