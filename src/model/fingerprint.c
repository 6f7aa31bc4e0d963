#include "model/fingerprint.h"

#include <string.h>

#include "base/file.h"
#include "base/hash64.h"
#include "base/ints.h"
#include "base/str.h"
#include "tensor/quant.h"

enum { PIECE_BYTES = 1 << 20, PIECES = 256 };

/* Pieces of one tensor are hashed by threads, each with its number as seed; the pieces' hashes are hashed in order. */
struct pieces {
    const unsigned char *data;
    int64_t bytes;
    uint64_t hash[PIECES];
};

static void hash_pieces(void *ctx, int64_t begin, int64_t end, int thread) {
    struct pieces *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * PIECE_BYTES;
        p->hash[i] = nmlp_hash64(p->data + first, (size_t)nmlp_min(PIECE_BYTES, p->bytes - first), (uint64_t)i);
    }
}

static uint64_t add_bytes(uint64_t hash, const void *data, int64_t bytes, nmlp_pool *pool) {
    const int64_t round_bytes = (int64_t)PIECE_BYTES * PIECES;
    for (int64_t at = 0; at < bytes; at += round_bytes) {
        struct pieces p = {.data = (const unsigned char *)data + at, .bytes = nmlp_min(round_bytes, bytes - at)};
        int64_t n = (p.bytes + PIECE_BYTES - 1) / PIECE_BYTES;
        nmlp_pool_for(pool, n, 1, hash_pieces, &p);
        hash = nmlp_hash64(p.hash, (size_t)n * sizeof p.hash[0], hash);
        nmlp_file_map_release(p.data, (size_t)p.bytes);
    }
    return hash;
}

nmlp_status nmlp_model_fingerprint(uint64_t *out, const nmlp_model *m, nmlp_pool *pool, nmlp_err *err) {
    nmlp_str config;
    nmlp_str_init(&config);
    nmlp_config_write(&m->config, NULL, NULL, 0, &config);
    uint64_t hash = nmlp_hash64(nmlp_str_text(&config), config.len, *out);
    nmlp_status st = nmlp_str_status(&config, err);
    nmlp_str_fini(&config);
    NMLP_RETURN_IF_FAILED(st);
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        hash = nmlp_hash64(t->name, strlen(t->name), hash);
        hash = nmlp_hash64(&t->view.dtype, sizeof t->view.dtype, hash);
        hash = nmlp_hash64(t->view.shape, (size_t)t->view.n_dims * sizeof t->view.shape[0], hash);
        hash = add_bytes(hash, t->view.data, (int64_t)nmlp_view_bytes(&t->view), pool);
        if (t->view.scales) hash = nmlp_hash64(t->view.scales, nmlp_quant_scale_bytes(&t->view), hash);
        if (t->view.per_group) hash = nmlp_hash64(t->view.per_group, nmlp_quant_per_group_bytes(&t->view), hash);
    }
    *out = hash;
    return NMLP_OK;
}
