#include "checkpoint/checkpoint_write.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "tensor/quant.h"

enum { PATH_MAX_BYTES = 4096, HEADER_ALIGN = 8 };
const char *const nmlp_side_file_names[] = {
    "tokenizer.json",         "tokenizer.model",         "added_tokens.json", "tokenizer_config.json",
    "generation_config.json", "special_tokens_map.json", "vocab.json",        "merges.txt",
    "chat_template.jinja",    "chat_template.json",      "calib.txt",         NULL};

static const size_t default_shard_bytes = 5000000000u;

struct nmlp_checkpoint_writer {
    const char *dir;
    const nmlp_checkpoint_source *source;
    const nmlp_tensor_spec *specs;
    size_t n_specs;
    double done_bytes, total_bytes;
    size_t *shard_of; /* shard of each tensor */
    size_t n_shards;
    size_t next;       /* tensor being delivered */
    size_t part_bytes; /* of it already written */
    bool shard_open;
    nmlp_file_writer file;
};

static void assign_shards(nmlp_checkpoint_writer *w, size_t max_shard_bytes) {
    size_t in_shard = 0;
    for (size_t i = 0; i < w->n_specs; i++) {
        size_t bytes = nmlp_tensor_spec_bytes(&w->specs[i]);
        if (i == 0 || (in_shard > 0 && in_shard + bytes > max_shard_bytes)) {
            w->n_shards++;
            in_shard = 0;
        }
        in_shard += bytes;
        w->shard_of[i] = w->n_shards - 1;
    }
}

static void shard_name(const nmlp_checkpoint_writer *w, size_t shard, char *name, size_t name_bytes) {
    if (w->n_shards <= 1) {
        snprintf(name, name_bytes, "model.safetensors");
    } else {
        snprintf(name, name_bytes, "model-%05zu-of-%05zu.safetensors", shard + 1, w->n_shards);
    }
}

static nmlp_status shard_path(const nmlp_checkpoint_writer *w, size_t shard, char *path, nmlp_err *err) {
    char name[64];
    shard_name(w, shard, name, sizeof name);
    return nmlp_path_join(path, PATH_MAX_BYTES, w->dir, name, err);
}

static void put_part(nmlp_json_writer *json, const nmlp_tensor_part *part, size_t *offset) {
    nmlp_json_begin_object(json, part->name);
    nmlp_json_put_string(json, "dtype", part->dtype);
    nmlp_json_begin_array(json, "shape");
    for (int d = 0; d < part->n_dims; d++) nmlp_json_put_int(json, NULL, part->shape[d]);
    nmlp_json_end_array(json);
    nmlp_json_begin_array(json, "data_offsets");
    nmlp_json_put_int(json, NULL, (int64_t)*offset);
    *offset += part->bytes;
    nmlp_json_put_int(json, NULL, (int64_t)*offset);
    nmlp_json_end_array(json);
    nmlp_json_end_object(json);
}

/* Header text of the shard that starts with tensor `first`, padded so that the data is aligned. */
static void write_header_text(const nmlp_checkpoint_writer *w, size_t first, nmlp_str *text) {
    nmlp_json_writer json;
    size_t offset = 0;
    nmlp_json_writer_init(&json, text);
    nmlp_json_begin_object(&json, NULL);
    nmlp_json_begin_object(&json, "__metadata__");
    nmlp_json_put_string(&json, "format", "pt");
    nmlp_json_put_string(&json, "made_by", "neuronmlp");
    nmlp_json_end_object(&json);
    for (size_t i = first; i < w->n_specs && w->shard_of[i] == w->shard_of[first]; i++) {
        nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX];
        int n_parts = nmlp_tensor_spec_parts(&w->specs[i], parts);
        for (int p = 0; p < n_parts; p++) put_part(&json, &parts[p], &offset);
    }
    nmlp_json_end_object(&json);
    while (text->len % HEADER_ALIGN != 0 && !text->failed) nmlp_str_putc(text, ' ');
}

static void length_prefix(const nmlp_str *header, unsigned char prefix[8]) {
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
}

static nmlp_status begin_shard(nmlp_checkpoint_writer *w, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    unsigned char prefix[8];
    nmlp_str header;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&header);
    write_header_text(w, w->next, &header);
    length_prefix(&header, prefix);
    NMLP_TRY(nmlp_str_status(&header, err));
    NMLP_TRY(shard_path(w, w->shard_of[w->next], path, err));
    NMLP_TRY(nmlp_file_writer_open(&w->file, path, err));
    w->shard_open = true;
    NMLP_TRY(nmlp_file_writer_write(&w->file, prefix, sizeof prefix, err));
    NMLP_TRY(nmlp_file_writer_write(&w->file, header.data, header.len, err));
out:
    nmlp_str_fini(&header);
    return st;
}

static bool ends_shard(const nmlp_checkpoint_writer *w, size_t tensor) {
    return tensor + 1 == w->n_specs || w->shard_of[tensor + 1] != w->shard_of[tensor];
}

nmlp_status nmlp_checkpoint_put(nmlp_checkpoint_writer *w, const void *data, size_t bytes, nmlp_err *err) {
    if (w->next == w->n_specs) return nmlp_fail(err, NMLP_E_ARG, "%s: more tensors than announced", w->dir);
    const nmlp_tensor_spec *spec = &w->specs[w->next];
    size_t total = nmlp_tensor_spec_bytes(spec);
    if (bytes > total - w->part_bytes)
        return nmlp_fail(err, NMLP_E_ARG, "%s: tensor %s got more than its %zu bytes", w->dir, spec->name, total);
    if (!w->shard_open) NMLP_RETURN_IF_FAILED(begin_shard(w, err));
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(&w->file, data, bytes, err));
    w->done_bytes += (double)bytes;
    if (!nmlp_progress_update(w->source->progress, w->source->stage, w->done_bytes, w->total_bytes, "B"))
        return nmlp_fail(err, NMLP_E_INTERRUPTED, "%s was stopped", w->source->stage);
    w->part_bytes += bytes;
    if (w->part_bytes < total) return NMLP_OK;
    if (nmlp_dtype_bits(spec->dtype) < 8) /* _shape */
        NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(&w->file, spec->shape, 2 * sizeof spec->shape[0], err));
    bool last = ends_shard(w, w->next);
    w->part_bytes = 0;
    w->next++;
    if (!last) return NMLP_OK;
    w->shard_open = false;
    return nmlp_file_writer_commit(&w->file, err);
}

nmlp_status nmlp_checkpoint_put_view(nmlp_checkpoint_writer *w, const nmlp_view *view, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(w, view->data, nmlp_view_bytes(view), err));
    if (!nmlp_dtype_is_quantised(view->dtype)) return NMLP_OK;
    return nmlp_checkpoint_put_scales(w, view, err);
}

nmlp_status nmlp_checkpoint_put_scales(nmlp_checkpoint_writer *w, const nmlp_view *view, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(w, view->scales, nmlp_quant_scale_bytes(view), err));
    if (!view->per_group) return NMLP_OK;
    size_t n = nmlp_quant_per_group_words(view->shape[0], nmlp_quant_groups(view));
    uint32_t *words = nmlp_mem_new(n, sizeof *words, err);
    if (!words) return NMLP_E_NOMEM;
    nmlp_quant_per_group_pack(words, view);
    nmlp_status st = nmlp_checkpoint_put(w, words, n * sizeof *words, err);
    nmlp_mem_free(words);
    return st;
}

static nmlp_status write_index(const nmlp_checkpoint_writer *w, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    char name[64];
    nmlp_str text;
    nmlp_json_writer json;
    size_t total = 0;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    nmlp_json_writer_init(&json, &text);
    for (size_t i = 0; i < w->n_specs; i++) total += nmlp_tensor_spec_bytes(&w->specs[i]);
    nmlp_json_begin_object(&json, NULL);
    nmlp_json_begin_object(&json, "metadata");
    nmlp_json_put_int(&json, "total_size", (int64_t)total);
    nmlp_json_end_object(&json);
    nmlp_json_begin_object(&json, "weight_map");
    for (size_t i = 0; i < w->n_specs; i++) {
        shard_name(w, w->shard_of[i], name, sizeof name);
        nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX];
        int n_parts = nmlp_tensor_spec_parts(&w->specs[i], parts);
        for (int p = 0; p < n_parts; p++) nmlp_json_put_string(&json, parts[p].name, name);
    }
    nmlp_json_end_object(&json);
    nmlp_json_end_object(&json);
    NMLP_TRY(nmlp_str_status(&text, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, w->dir, "model.safetensors.index.json", err));
    NMLP_TRY(nmlp_file_write_text(path, text.data, text.len, err));
out:
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status put_all(nmlp_checkpoint_writer *w, nmlp_err *err) {
    for (size_t i = 0; i < w->n_specs; i++) {
        NMLP_RETURN_IF_FAILED(w->source->put(w->source->ctx, i, w, err));
        if (w->next == i)
            return nmlp_fail(err, NMLP_E_ARG, "%s: tensor %s got %zu of its %zu bytes", w->dir, w->specs[i].name,
                             w->part_bytes, nmlp_tensor_spec_bytes(&w->specs[i]));
    }
    return w->n_shards > 1 ? write_index(w, err) : NMLP_OK;
}

nmlp_status nmlp_checkpoint_write(const char *dir, const nmlp_checkpoint_source *source, nmlp_err *err) {
    nmlp_checkpoint_writer w = {
        .dir = dir, .source = source, .specs = source->specs, .n_specs = source->n_specs, .file.fd = -1};
    for (size_t i = 0; i < w.n_specs; i++) NMLP_RETURN_IF_FAILED(nmlp_tensor_spec_check(&w.specs[i], err));
    w.shard_of = nmlp_mem_new(source->n_specs, sizeof *w.shard_of, err);
    if (!w.shard_of) return NMLP_E_NOMEM;
    for (size_t i = 0; i < w.n_specs; i++) w.total_bytes += (double)nmlp_tensor_spec_bytes(&w.specs[i]);
    assign_shards(&w, source->max_shard_bytes ? source->max_shard_bytes : default_shard_bytes);
    nmlp_status st = put_all(&w, err);
    if (w.shard_open) nmlp_file_writer_abort(&w.file);
    nmlp_mem_free(w.shard_of);
    return st;
}
