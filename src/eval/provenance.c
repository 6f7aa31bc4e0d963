#include "eval/provenance.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/file.h"
#include "base/hash64.h"
#include "neuronmlp/version.h"

enum { PATH_BYTES = 4096 };

static void to_text(char out[NMLP_HASH_TEXT], uint64_t hash) { snprintf(out, NMLP_HASH_TEXT, "%016" PRIx64, hash); }

static nmlp_status hash_file(uint64_t *hash, const char *path, nmlp_err *err) {
    nmlp_file_map map;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    *hash = nmlp_hash64(map.data, map.bytes, *hash);
    nmlp_file_map_close(&map);
    return NMLP_OK;
}

nmlp_status nmlp_file_hash(char out[NMLP_HASH_TEXT], const char *path, nmlp_err *err) {
    uint64_t hash = 0;
    NMLP_RETURN_IF_FAILED(hash_file(&hash, path, err));
    to_text(out, hash);
    return NMLP_OK;
}

nmlp_status nmlp_provenance_read(nmlp_provenance *p, const nmlp_engine *engine, nmlp_err *err) {
    const nmlp_checkpoint *c = &nmlp_engine_model(engine)->checkpoint;
    char path[PATH_BYTES];
    uint64_t hash = 0;
    *p = (nmlp_provenance){.isa = nmlp_engine_isa(engine), .version = NMLP_VERSION_STRING};
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, "config.json", err));
    NMLP_RETURN_IF_FAILED(hash_file(&hash, path, err));
    for (size_t i = 0; i < c->n_files; i++) hash = nmlp_hash64(c->files[i].map.data, c->files[i].map.bytes, hash);
    to_text(p->model_hash, hash);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, c->dir, "tokenizer.json", err));
    return nmlp_file_hash(p->tokenizer_hash, path, err);
}

void nmlp_provenance_put(nmlp_json_writer *w, const nmlp_provenance *p) {
    nmlp_json_put_string(w, "model_hash", p->model_hash);
    nmlp_json_put_string(w, "tokenizer_hash", p->tokenizer_hash);
    nmlp_json_put_string(w, "isa", p->isa);
    nmlp_json_put_string(w, "version", p->version);
}
