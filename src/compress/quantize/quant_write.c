#include "compress/quantize/quant_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/model_card.h"
#include "model/expand.h"
#include "tensor/quant.h"

enum { PATH_MAX_BYTES = 4096 };
static const size_t shard_bytes = 1000000000u;

/* A matrix of the source that was replaced. */
struct piece {
    const void *source;
    nmlp_view made;
};

/* What is written for a tensor: itself, or the pieces that stand in it, one below the other. */
struct output {
    nmlp_view view; /* of several pieces without data */
    const struct piece *pieces;
    size_t n_pieces;
};

static int compare_pieces(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const struct piece *)a)->source, y = (uintptr_t)((const struct piece *)b)->source;
    return x < y ? -1 : x > y;
}

static void add_piece(struct piece *pieces, size_t *n, const nmlp_view *source, const nmlp_view *made) {
    if (source->data && nmlp_dtype_is_quantised(made->dtype))
        pieces[(*n)++] = (struct piece){.source = source->data, .made = *made};
}

/* All of them by address; *n of them, to be freed. */
static struct piece *list_pieces(const nmlp_model *m, const nmlp_quant_model *made, size_t *n, nmlp_err *err) {
    size_t most = 2;
    for (int64_t l = 0; l < made->n_layers; l++) most += (size_t)nmlp_quant_layer_views(&m->config, l);
    struct piece *pieces = nmlp_mem_new(most, sizeof *pieces, err);
    *n = 0;
    if (!pieces) return NULL;
    add_piece(pieces, n, &m->embedding, &made->embedding);
    if (m->lm_head.data != m->embedding.data) add_piece(pieces, n, &m->lm_head, &made->lm_head);
    for (int64_t l = 0; l < made->n_layers; l++)
        for (int64_t i = 0; i < nmlp_quant_layer_views(&m->config, l); i++)
            if (nmlp_quant_view_first(&m->layers[l], i) == i)
                add_piece(pieces, n, nmlp_quant_layer_view(&m->layers[l], i),
                          nmlp_quant_layer_view(&made->layers[l], i));
    qsort(pieces, *n, sizeof *pieces, compare_pieces);
    return pieces;
}

/* The first piece at an address or behind it. */
static size_t find_piece(const struct piece *pieces, size_t n, const void *source) {
    size_t begin = 0;
    while (begin < n) {
        size_t middle = begin + (n - begin) / 2;
        if ((uintptr_t)pieces[middle].source < (uintptr_t)source)
            begin = middle + 1;
        else
            n = middle;
    }
    return begin;
}

static nmlp_status set_output(struct output *o, const nmlp_named_tensor *t, const struct piece *pieces, size_t n,
                              nmlp_err *err) {
    size_t first = find_piece(pieces, n, t->view.data), end = first;
    int64_t rows = 0;
    *o = (struct output){.view = t->view, .pieces = pieces + first};
    for (; end < n && nmlp_view_contains(&t->view, pieces[end].source); end++) {
        const nmlp_view *a = &pieces[first].made, *b = &pieces[end].made;
        if (a->dtype != b->dtype || a->group != b->group || !a->per_group != !b->per_group)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "tensor %s: its matrices would have different formats", t->name);
        rows += b->shape[0];
    }
    o->n_pieces = end - first;
    if (o->n_pieces == 0) return NMLP_OK;
    o->view = pieces[first].made;
    if (o->n_pieces == 1) return NMLP_OK;
    if (rows != t->view.shape[0])
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "tensor %s: some of its matrices would keep their type", t->name);
    o->view.data = NULL;
    o->view.shape[0] = rows;
    return NMLP_OK;
}

/* Pieces in one piece of memory. */
static nmlp_status put_joined(nmlp_checkpoint_writer *writer, const struct output *o, nmlp_err *err) {
    nmlp_view joined = o->view;
    size_t group_bytes = nmlp_quant_per_group_bytes(&joined);
    size_t data_bytes = nmlp_view_bytes(&joined), scale_bytes = nmlp_quant_scale_bytes(&joined);
    char *memory = nmlp_mem_new(data_bytes + scale_bytes + group_bytes, 1, err);
    if (!memory) return NMLP_E_NOMEM;
    char *scales = memory, *data = memory + scale_bytes, *per_group = data + data_bytes; /* the widest type first */
    joined.data = data;
    joined.scales = scales;
    if (group_bytes) joined.per_group = (const int8_t *)per_group;
    for (size_t i = 0; i < o->n_pieces; i++) {
        const nmlp_view *v = &o->pieces[i].made;
        size_t some = nmlp_quant_per_group_bytes(v);
        memcpy(data, v->data, nmlp_view_bytes(v));
        memcpy(scales, v->scales, nmlp_quant_scale_bytes(v));
        if (some) memcpy(per_group, v->per_group, some);
        data += nmlp_view_bytes(v);
        scales += nmlp_quant_scale_bytes(v);
        per_group += some;
    }
    nmlp_status st = nmlp_checkpoint_put_view(writer, &joined, err);
    nmlp_mem_free(memory);
    return st;
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const struct output *o = &((const struct output *)ctx)[i];
    if (!o->view.data) return put_joined(writer, o, err);
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put_view(writer, &o->view, err));
    nmlp_file_map_release(o->view.data, nmlp_view_bytes(&o->view));
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
                          "Matrices are integers of 8 to 4 bits with scales (compressed-tensors), made by neuronmlp.",
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
    size_t n = m->checkpoint.n_tensors, n_pieces;
    nmlp_tensor_spec *specs = nmlp_mem_new(n, sizeof *specs, err);
    struct output *outputs = nmlp_mem_new(n, sizeof *outputs, err);
    struct piece *pieces = list_pieces(m, made, &n_pieces, err);
    nmlp_str record;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&record);
    if (!specs || !outputs || !pieces) NMLP_TRY(NMLP_E_NOMEM);
    report->bytes_after = 0;
    for (size_t i = 0; i < n; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        NMLP_TRY(set_output(&outputs[i], t, pieces, n_pieces, err));
        specs[i] = nmlp_tensor_spec_of(t->name, &outputs[i].view);
        report->bytes_after += (int64_t)nmlp_tensor_spec_bytes(&specs[i]);
    }
    nmlp_checkpoint_source source = {.specs = specs,
                                     .n_specs = n,
                                     .put = put,
                                     .ctx = outputs,
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
    nmlp_mem_free(outputs);
    nmlp_mem_free(pieces);
    return st;
}
