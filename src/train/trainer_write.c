/* The trained model as a directory: tensors in the order and types of the source, its config.json, and the log. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/model_card.h"
#include "checkpoint/transformers_files.h"
#include "model/expand.h"
#include "train/trainer.h"

enum { PATH_MAX_BYTES = 4096, CONFIG_MAX_BYTES = 16 << 20 };

static nmlp_status put_param(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const nmlp_train_param *p = &((const nmlp_train_param *)ctx)[i];
    size_t bytes = nmlp_view_bytes(&p->source);
    if (!p->grad) return nmlp_checkpoint_put_view(writer, &p->source, err);
    if (nmlp_dtype_is_quantised(p->source.dtype)) return nmlp_train_rounded_put(p, writer, err);
    void *data = nmlp_mem_new(bytes, 1, err);
    if (!data) return NMLP_E_NOMEM;
    nmlp_from_f32(data, p->source.dtype, p->data, (size_t)(p->rows * p->cols));
    nmlp_status st = nmlp_checkpoint_put(writer, data, bytes, err);
    nmlp_mem_free(data);
    return st;
}

static nmlp_status write_tensors(const nmlp_trainer *t, const char *dir, nmlp_err *err) {
    size_t n;
    const nmlp_train_param *params = nmlp_train_net_params(t->net, &n);
    nmlp_tensor_spec *specs = nmlp_mem_new(n, sizeof *specs, err);
    if (!specs) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const nmlp_view *view = &params[i].source;
        specs[i] = nmlp_tensor_spec_of(params[i].name, view);
    }
    nmlp_checkpoint_source source = {
        .specs = specs, .n_specs = n, .put = put_param, .ctx = (void *)(uintptr_t)params, .stage = "writing"};
    nmlp_status st = nmlp_checkpoint_write(dir, &source, err);
    nmlp_mem_free(specs);
    return st;
}

static nmlp_status copy_config(const nmlp_trainer *t, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_path_join(path, sizeof path, t->model->checkpoint.dir, "config.json", err));
    NMLP_TRY(nmlp_file_read(&text, path, CONFIG_MAX_BYTES, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, "config.json", err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err));
    if (t->model->config.compressed) NMLP_TRY(nmlp_transformers_files_write(dir, err));
out:
    nmlp_str_fini(&text);
    return st;
}

/* No times in it: a resumed run writes the same bytes. */
static nmlp_status write_log(const nmlp_trainer *t, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "step,tokens,lr,loss,grad_norm,heldout_ppl\n");
    for (int64_t i = 0; i < t->n_log; i++) {
        const nmlp_recover_step *s = &t->log[i];
        nmlp_str_printf(&text, "%" PRId64 ",%" PRId64 ",%.6g,", s->step, s->tokens, s->rate);
        if (s->step > 0)
            nmlp_str_printf(&text, "%.6g,%.6g,", s->loss, s->grad_norm);
        else
            nmlp_str_puts(&text, ",,");
        if (isfinite(s->heldout_ppl)) nmlp_str_printf(&text, "%.6g", s->heldout_ppl);
        nmlp_str_putc(&text, '\n');
    }
    NMLP_TRY(nmlp_str_status(&text, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, "recovery.csv", err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err));
out:
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status write_card(const nmlp_trainer *t, const char *dir, nmlp_err *err) {
    const nmlp_config *c = &t->model->config;
    nmlp_card_use use = c->quantised    ? NMLP_CARD_USE_HERE
                        : c->compressed ? NMLP_CARD_USE_REMOTE_CODE
                                        : NMLP_CARD_USE_TRANSFORMERS;
    nmlp_str card;
    nmlp_str_init(&card);
    nmlp_model_card_begin(&card, t->model->checkpoint.dir, "recovered",
                          t->options.teacher ? "Trained by neuronmlp against the distribution of the original model."
                                             : "Trained by neuronmlp against the next token.",
                          NULL);
    if (c->compressed) nmlp_str_printf(&card, "| removed of the MLPs before | %.2f %% |\n", 100 * c->ratio);
    nmlp_str_printf(&card, "| held-out perplexity, before and after | %.4f, %.4f |\n", t->state.first_ppl,
                    t->state.best_ppl);
    nmlp_str_printf(&card, "| steps, and the one kept | %" PRId64 ", %" PRId64 " |\n", t->state.step,
                    t->state.best_step);
    if (t->n_log > 0) nmlp_str_printf(&card, "| tokens trained on | %" PRId64 " |\n", t->log[t->n_log - 1].tokens);
    nmlp_model_card_end(&card, use);
    nmlp_status st = nmlp_model_card_save(&card, dir, err);
    nmlp_str_fini(&card);
    return st;
}

nmlp_status nmlp_trainer_write(const nmlp_trainer *t, const char *out_dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_dir_stage stage = {0};
    NMLP_TRY(nmlp_dir_stage_open(&stage, out_dir, false, err));
    NMLP_TRY(write_tensors(t, stage.temp_path, err));
    NMLP_TRY(copy_config(t, stage.temp_path, err));
    NMLP_TRY(nmlp_model_copy_side_files(t->model->checkpoint.dir, stage.temp_path, err));
    NMLP_TRY(write_log(t, stage.temp_path, err));
    NMLP_TRY(write_card(t, stage.temp_path, err));
    if (t->options.on_write) NMLP_TRY(t->options.on_write(t->options.ctx, t->log, t->n_log, stage.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&stage, err));
out:
    nmlp_dir_stage_abort(&stage);
    return st;
}
