#include "checkpoint/checkpoint_write.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json_write.h"
#include "base/mem.h"

enum { PATH_MAX_BYTES = 4096, HEADER_ALIGN = 8 };
static const size_t default_shard_bytes = 5000000000u;

struct nmlp_checkpoint_writer {
    const char *dir;
    const nmlp_tensor_spec *specs;
    size_t n_specs;
    size_t *shard_of; /* shard of each tensor */
    size_t n_shards;
    size_t next;       /* tensor being delivered */
    size_t part_bytes; /* of it already written */
    bool shard_open;
    nmlp_file_writer file;
};

size_t nmlp_tensor_spec_bytes(const nmlp_tensor_spec *spec) {
    size_t bytes = nmlp_dtype_bytes(spec->dtype);
    for (int d = 0; d < spec->n_dims; d++) bytes *= (size_t)spec->shape[d];
    return bytes;
}

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

nmlp_status nmlp_checkpoint_writer_open(nmlp_checkpoint_writer **out, const char *dir, const nmlp_tensor_spec *specs,
                                        size_t n_specs, size_t max_shard_bytes, nmlp_err *err) {
    *out = NULL;
    nmlp_checkpoint_writer *w = nmlp_mem_new(1, sizeof *w, err);
    if (!w) return NMLP_E_NOMEM;
    *w = (nmlp_checkpoint_writer){.dir = dir, .specs = specs, .n_specs = n_specs, .file.fd = -1};
    w->shard_of = nmlp_mem_new(n_specs, sizeof *w->shard_of, err);
    if (!w->shard_of) {
        nmlp_mem_free(w);
        return NMLP_E_NOMEM;
    }
    assign_shards(w, max_shard_bytes ? max_shard_bytes : default_shard_bytes);
    *out = w;
    return NMLP_OK;
}

/* Header text of the shard that starts with tensor `first`, padded so that the data is aligned. */
static void write_header_text(const nmlp_checkpoint_writer *w, size_t first, nmlp_str *text) {
    nmlp_json_writer json;
    size_t offset = 0;
    nmlp_json_writer_init(&json, text);
    nmlp_json_begin_object(&json, NULL);
    nmlp_json_begin_object(&json, "__metadata__");
    nmlp_json_put_string(&json, "format", "pt");
    nmlp_json_end_object(&json);
    for (size_t i = first; i < w->n_specs && w->shard_of[i] == w->shard_of[first]; i++) {
        const nmlp_tensor_spec *spec = &w->specs[i];
        nmlp_json_begin_object(&json, spec->name);
        nmlp_json_put_string(&json, "dtype", nmlp_dtype_name(spec->dtype));
        nmlp_json_begin_array(&json, "shape");
        for (int d = 0; d < spec->n_dims; d++) nmlp_json_put_int(&json, NULL, spec->shape[d]);
        nmlp_json_end_array(&json);
        nmlp_json_begin_array(&json, "data_offsets");
        nmlp_json_put_int(&json, NULL, (int64_t)offset);
        offset += nmlp_tensor_spec_bytes(spec);
        nmlp_json_put_int(&json, NULL, (int64_t)offset);
        nmlp_json_end_array(&json);
        nmlp_json_end_object(&json);
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

nmlp_status nmlp_checkpoint_writer_put_part(nmlp_checkpoint_writer *w, const void *data, size_t bytes, nmlp_err *err) {
    if (w->next == w->n_specs) return nmlp_fail(err, NMLP_E_ARG, "%s: more tensors than announced", w->dir);
    const nmlp_tensor_spec *spec = &w->specs[w->next];
    size_t total = nmlp_tensor_spec_bytes(spec);
    if (bytes > total - w->part_bytes)
        return nmlp_fail(err, NMLP_E_ARG, "%s: tensor %s got more than its %zu bytes", w->dir, spec->name, total);
    if (!w->shard_open) NMLP_RETURN_IF_FAILED(begin_shard(w, err));
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(&w->file, data, bytes, err));
    w->part_bytes += bytes;
    if (w->part_bytes < total) return NMLP_OK;
    bool last = ends_shard(w, w->next);
    w->part_bytes = 0;
    w->next++;
    if (!last) return NMLP_OK;
    w->shard_open = false;
    return nmlp_file_writer_commit(&w->file, err);
}

nmlp_status nmlp_checkpoint_writer_put(nmlp_checkpoint_writer *w, const void *data, size_t bytes, nmlp_err *err) {
    size_t index = w->next;
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_writer_put_part(w, data, bytes, err));
    if (w->next == index)
        return nmlp_fail(err, NMLP_E_ARG, "%s: tensor %s got %zu of its %zu bytes", w->dir, w->specs[index].name, bytes,
                         nmlp_tensor_spec_bytes(&w->specs[index]));
    return NMLP_OK;
}

size_t nmlp_checkpoint_writer_next(const nmlp_checkpoint_writer *w) { return w->next; }

/* A complete shard on disk starts with exactly the bytes this writer would write, and has the right length. */
static nmlp_status shard_is_complete(const nmlp_checkpoint_writer *w, size_t first, size_t payload, bool *complete,
                                     nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    unsigned char prefix[8];
    nmlp_file_map map = {0};
    nmlp_str header;
    nmlp_status st = NMLP_OK;
    *complete = false;
    nmlp_str_init(&header);
    write_header_text(w, first, &header);
    length_prefix(&header, prefix);
    NMLP_TRY(nmlp_str_status(&header, err));
    NMLP_TRY(shard_path(w, w->shard_of[first], path, err));
    if (!nmlp_file_exists(path)) goto out;
    NMLP_TRY(nmlp_file_map_open(&map, path, err));
    *complete = map.bytes == sizeof prefix + header.len + payload && memcmp(map.data, prefix, sizeof prefix) == 0 &&
                memcmp(map.data + sizeof prefix, header.data, header.len) == 0;
out:
    nmlp_file_map_close(&map);
    nmlp_str_fini(&header);
    return st;
}

nmlp_status nmlp_checkpoint_writer_resume(nmlp_checkpoint_writer *w, nmlp_err *err) {
    while (w->next < w->n_specs) {
        size_t end = w->next;
        size_t payload = 0;
        bool complete;
        do payload += nmlp_tensor_spec_bytes(&w->specs[end]);
        while (!ends_shard(w, end++));
        NMLP_RETURN_IF_FAILED(shard_is_complete(w, w->next, payload, &complete, err));
        if (!complete) return NMLP_OK;
        w->next = end;
    }
    return NMLP_OK;
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
        nmlp_json_put_string(&json, w->specs[i].name, name);
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

nmlp_status nmlp_checkpoint_writer_finish(nmlp_checkpoint_writer *w, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    if (w->next < w->n_specs) {
        st = nmlp_fail(err, NMLP_E_ARG, "%s: tensor %s was never delivered", w->dir, w->specs[w->next].name);
    } else if (w->n_shards > 1) {
        st = write_index(w, err);
    }
    nmlp_checkpoint_writer_abort(w);
    return st;
}

void nmlp_checkpoint_writer_abort(nmlp_checkpoint_writer *w) {
    if (!w) return;
    if (w->shard_open) nmlp_file_writer_abort(&w->file);
    nmlp_mem_free(w->shard_of);
    nmlp_mem_free(w);
}
