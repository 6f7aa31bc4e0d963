#define _POSIX_C_SOURCE 200809L
#include "checkpoint/checkpoint.h"

#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/quant_tensors.h"

enum { PATH_MAX_BYTES = 4096, SHARDS_MAX = 4096, REPLACED_MAX = 16 };

static nmlp_status open_file(nmlp_checkpoint *c, const char *name, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, name, err));
    NMLP_RETURN_IF_FAILED(nmlp_safetensors_open(&c->files[c->n_files], path, err));
    c->n_files++;
    return NMLP_OK;
}

static nmlp_status reserve_files(nmlp_checkpoint *c, size_t n, nmlp_err *err) {
    c->files = nmlp_mem_new(n, sizeof *c->files, err);
    return c->files ? NMLP_OK : NMLP_E_NOMEM;
}

/* Shard names in order of first appearance; the index may not lead out of the directory. */
static nmlp_status list_shards(const nmlp_json_doc *doc, const char **names, size_t *n, nmlp_err *err) {
    const nmlp_json *map;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, doc->root, "weight_map", &map, err));
    *n = 0;
    for (const nmlp_json *v = nmlp_json_first(map); v; v = nmlp_json_next(v)) {
        const char *name = nmlp_json_string(v);
        if (!name[0] || strchr(name, '/'))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: tensor %s names the file \"%s\"; a file name is expected",
                             doc->origin, nmlp_json_key(v), name);
        size_t i = 0;
        while (i < *n && strcmp(names[i], name) != 0) i++;
        if (i < *n) continue;
        if (*n == SHARDS_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d shards", doc->origin, SHARDS_MAX);
        names[(*n)++] = name;
    }
    if (*n == 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"weight_map\" is empty", doc->origin);
    return NMLP_OK;
}

static nmlp_status open_shards(nmlp_checkpoint *c, const char *index_path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_json_doc doc = {0};
    size_t n = 0;
    char path[PATH_MAX_BYTES];
    const char **names = nmlp_mem_new(SHARDS_MAX, sizeof *names, err);
    if (!names) return NMLP_E_NOMEM;
    NMLP_TRY(nmlp_json_load(&doc, index_path, err));
    NMLP_TRY(list_shards(&doc, names, &n, err));
    NMLP_TRY(reserve_files(c, n, err));
    for (size_t i = 0; i < n; i++) {
        NMLP_TRY(nmlp_path_join(path, sizeof path, c->dir, names[i], err));
        if (!nmlp_file_exists(path)) {
            st = nmlp_fail(err, NMLP_E_MISSING, "%s: names shard %s, which is absent", index_path, names[i]);
            nmlp_fail_hint(err, "the download is incomplete: fetch the missing file");
            goto out;
        }
        NMLP_TRY(open_file(c, names[i], err));
    }
out:
    nmlp_json_free(&doc);
    nmlp_mem_free(names);
    return st;
}

/* One file goes before an index, as in transformers: an index beside it is of an earlier, sharded version. */
static nmlp_status open_files(nmlp_checkpoint *c, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, "model.safetensors", err));
    if (nmlp_file_exists(path)) {
        NMLP_RETURN_IF_FAILED(reserve_files(c, 1, err));
        return open_file(c, "model.safetensors", err);
    }
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, "model.safetensors.index.json", err));
    if (nmlp_file_exists(path)) return open_shards(c, path, err);
    nmlp_fail(err, NMLP_E_MISSING, "%s: has neither model.safetensors nor model.safetensors.index.json", c->dir);
    nmlp_fail_hint(err, "a GGUF file is imported first; PyTorch .bin files are not read: convert them to safetensors");
    return NMLP_E_MISSING;
}

static nmlp_status add_name(const nmlp_checkpoint *c, nmlp_hashmap *map, const char *name, size_t index,
                            nmlp_err *err) {
    uint32_t seen;
    if (nmlp_hashmap_get(map, name, strlen(name), &seen))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: tensor %s is there twice", c->dir, name);
    return nmlp_hashmap_put(map, name, strlen(name), (uint32_t)index, err);
}

/* All tensors of all files as they are. */
static nmlp_status list_raw(const nmlp_checkpoint *c, nmlp_named_tensor *raw, nmlp_hashmap *by_name, nmlp_err *err) {
    size_t n = 0;
    for (size_t f = 0; f < c->n_files; f++) {
        for (size_t i = 0; i < c->files[f].n_tensors; i++) {
            raw[n] = c->files[f].tensors[i];
            NMLP_RETURN_IF_FAILED(add_name(c, by_name, raw[n].name, n, err));
            n++;
        }
    }
    return NMLP_OK;
}

static nmlp_status add_tensor(nmlp_checkpoint *c, const nmlp_raw_tensors *raw, size_t i, nmlp_err *err) {
    nmlp_named_tensor tensor;
    bool is_part;
    NMLP_RETURN_IF_FAILED(nmlp_quant_tensor_join(raw, i, &tensor, &is_part, err));
    if (is_part) return NMLP_OK;
    if (nmlp_dtype_is_quantised(tensor.view.dtype) && !c->config.quantised)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: tensor %s is quantised, but config.json has no \"quantization_config\"", c->dir,
                         tensor.name);
    NMLP_RETURN_IF_FAILED(add_name(c, &c->by_name, tensor.name, c->n_tensors, err));
    c->tensors[c->n_tensors++] = tensor;
    return NMLP_OK;
}

static nmlp_status index_tensors(nmlp_checkpoint *c, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_hashmap raw_by_name = {0};
    size_t total = 0;
    for (size_t f = 0; f < c->n_files; f++) total += c->files[f].n_tensors;
    nmlp_named_tensor *raw = nmlp_mem_new(total, sizeof *raw, err);
    c->tensors = nmlp_mem_new(total, sizeof *c->tensors, err);
    if (!raw || !c->tensors) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_hashmap_reserve(&raw_by_name, total, err));
    NMLP_TRY(nmlp_hashmap_reserve(&c->by_name, total, err));
    NMLP_TRY(list_raw(c, raw, &raw_by_name, err));
    nmlp_raw_tensors all = {.dir = c->dir, .tensors = raw, .by_name = &raw_by_name, .arena = &c->arena};
    for (size_t i = 0; i < total; i++) NMLP_TRY(add_tensor(c, &all, i, err));
out:
    nmlp_hashmap_fini(&raw_by_name);
    nmlp_mem_free(raw);
    return st;
}

static nmlp_status open_once(nmlp_checkpoint *c, const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *c = (nmlp_checkpoint){0};
    nmlp_arena_init(&c->arena);
    NMLP_TRY(nmlp_config_load(&c->config, dir, err));
    c->dir = nmlp_mem_new(strlen(dir) + 1, 1, err);
    if (!c->dir) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    memcpy(c->dir, dir, strlen(dir));
    NMLP_TRY(open_files(c, err));
    NMLP_TRY(index_tensors(c, err));
out:
    if (st != NMLP_OK) nmlp_checkpoint_close(c);
    return st;
}

/* A folder that is replaced while its files are opened one after the other would give the configuration of one model
 * and the weights of another: then all of them are opened again. */
nmlp_status nmlp_checkpoint_open(nmlp_checkpoint *c, const char *dir, nmlp_err *err) {
    struct stat before, after;
    for (int i = 0;; i++) {
        bool known = stat(dir, &before) == 0;
        nmlp_status st = open_once(c, dir, err);
        bool replaced =
            known && stat(dir, &after) == 0 && (before.st_ino != after.st_ino || before.st_dev != after.st_dev);
        if (!replaced || i == REPLACED_MAX) return st;
        if (st == NMLP_OK) nmlp_checkpoint_close(c);
    }
}

void nmlp_checkpoint_close(nmlp_checkpoint *c) {
    for (size_t f = 0; f < c->n_files; f++) nmlp_safetensors_close(&c->files[f]);
    nmlp_mem_free(c->files);
    nmlp_mem_free(c->tensors);
    nmlp_hashmap_fini(&c->by_name);
    nmlp_arena_fini(&c->arena);
    nmlp_mem_free(c->dir);
    *c = (nmlp_checkpoint){0};
}

const nmlp_named_tensor *nmlp_checkpoint_find(const nmlp_checkpoint *c, const char *name) {
    uint32_t index;
    if (!nmlp_hashmap_get(&c->by_name, name, strlen(name), &index)) return NULL;
    return &c->tensors[index];
}
