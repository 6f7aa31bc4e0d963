#include "base/work_file.h"

#include <string.h>

struct trailer {
    char magic[8];
    uint64_t fingerprint;
    uint64_t payload_bytes;
    uint64_t hash;
};

static size_t padding(size_t len) { return (NMLP_WORK_ALIGN - len % NMLP_WORK_ALIGN) % NMLP_WORK_ALIGN; }

nmlp_status nmlp_work_writer_open(nmlp_work_writer *w, const char *path, const char *magic, uint64_t fingerprint,
                                  nmlp_err *err) {
    *w = (nmlp_work_writer){.magic = magic, .fingerprint = fingerprint};
    nmlp_hash64_begin(&w->hash, fingerprint);
    return nmlp_file_writer_open(&w->file, path, err);
}

nmlp_status nmlp_work_writer_put(nmlp_work_writer *w, const void *bytes, size_t len, nmlp_err *err) {
    nmlp_hash64_add(&w->hash, bytes, len);
    return nmlp_file_writer_write(&w->file, bytes, len, err);
}

nmlp_status nmlp_work_writer_put_padded(nmlp_work_writer *w, const void *bytes, size_t len, nmlp_err *err) {
    static const char zeros[NMLP_WORK_ALIGN];
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_put(w, bytes, len, err));
    return nmlp_work_writer_put(w, zeros, padding(len), err);
}

nmlp_status nmlp_work_writer_commit(nmlp_work_writer *w, nmlp_err *err) {
    struct trailer trailer = {
        .fingerprint = w->fingerprint, .payload_bytes = w->hash.total_bytes, .hash = nmlp_hash64_end(&w->hash)};
    memcpy(trailer.magic, w->magic, sizeof trailer.magic);
    nmlp_status st = nmlp_file_writer_write(&w->file, &trailer, sizeof trailer, err);
    if (st == NMLP_OK) return nmlp_file_writer_commit(&w->file, err);
    nmlp_file_writer_abort(&w->file);
    return st;
}

void nmlp_work_writer_abort(nmlp_work_writer *w) { nmlp_file_writer_abort(&w->file); }

static nmlp_work_state state_of(const nmlp_file_map *map, const char *magic, uint64_t fingerprint) {
    struct trailer trailer;
    if (map->bytes < sizeof trailer) return NMLP_WORK_DAMAGED;
    size_t payload = map->bytes - sizeof trailer;
    memcpy(&trailer, map->data + payload, sizeof trailer);
    if (memcmp(trailer.magic, magic, sizeof trailer.magic) != 0 || trailer.payload_bytes != payload)
        return NMLP_WORK_DAMAGED;
    if (trailer.fingerprint != fingerprint) return NMLP_WORK_OTHER;
    uint64_t hash = nmlp_hash64(map->data, payload, fingerprint);
    nmlp_file_map_release(map->data, payload);
    return hash == trailer.hash ? NMLP_WORK_VALID : NMLP_WORK_DAMAGED;
}

nmlp_status nmlp_work_file_open(nmlp_file_map *map, const char *path, const char *magic, uint64_t fingerprint,
                                size_t *payload_bytes, nmlp_work_state *state, nmlp_err *err) {
    *map = (nmlp_file_map){0};
    *state = NMLP_WORK_ABSENT;
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(map, path, err));
    *state = state_of(map, magic, fingerprint);
    if (*state == NMLP_WORK_VALID) {
        *payload_bytes = map->bytes - sizeof(struct trailer);
    } else {
        nmlp_file_map_close(map);
    }
    return NMLP_OK;
}

const void *nmlp_work_take(nmlp_work_cursor *c, size_t len, bool padded) {
    const void *at = c->at;
    size_t total = len + (padded ? padding(len) : 0);
    if (c->failed || total < len || total > c->left_bytes) {
        c->failed = true;
        return NULL;
    }
    c->at += total;
    c->left_bytes -= total;
    return at;
}
