#include "compress/ranks/rank_file.h"

#include <string.h>

static const char magic[8] = {'N', 'M', 'L', 'P', 'P', 'L', 'N', '1'};

struct header {
    char magic[8];
    uint64_t fingerprint;
    int64_t n_layers;
    nmlp_rank_plan plan;
};

struct entry {
    int64_t rank[NMLP_MLP_MATRICES];
    int64_t joint;
};

nmlp_status nmlp_rank_plan_write(const char *path, uint64_t fingerprint, const nmlp_rank_plan *plan,
                                 const nmlp_layer_ranks *ranks, int64_t n_layers, nmlp_err *err) {
    nmlp_str bytes;
    struct header header;
    memset(&header, 0, sizeof header);
    memcpy(header.magic, magic, sizeof magic);
    header.fingerprint = fingerprint;
    header.n_layers = n_layers;
    header.plan = *plan;
    nmlp_str_init(&bytes);
    nmlp_str_append(&bytes, &header, sizeof header);
    for (int64_t l = 0; l < n_layers; l++) {
        struct entry entry = {.joint = ranks[l].joint};
        memcpy(entry.rank, ranks[l].rank, sizeof entry.rank);
        nmlp_str_append(&bytes, &entry, sizeof entry);
    }
    nmlp_status st = nmlp_str_status(&bytes, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, bytes.data, bytes.len, err);
    nmlp_str_fini(&bytes);
    return st;
}

nmlp_status nmlp_rank_plan_read(const char *path, uint64_t fingerprint, nmlp_rank_plan *plan, nmlp_layer_ranks *ranks,
                                int64_t n_layers, bool *found, nmlp_err *err) {
    nmlp_str bytes;
    struct header header;
    *found = false;
    if (!nmlp_file_exists(path)) return NMLP_OK;
    nmlp_str_init(&bytes);
    nmlp_status st = nmlp_file_read(&bytes, path, 1 << 24, err);
    if (st == NMLP_OK && bytes.len == sizeof header + (size_t)n_layers * sizeof(struct entry)) {
        memcpy(&header, bytes.data, sizeof header);
        *found = memcmp(header.magic, magic, sizeof magic) == 0 && header.fingerprint == fingerprint &&
                 header.n_layers == n_layers;
    }
    for (int64_t l = 0; *found && l < n_layers; l++) {
        struct entry entry;
        memcpy(&entry, bytes.data + sizeof header + (size_t)l * sizeof entry, sizeof entry);
        memcpy(ranks[l].rank, entry.rank, sizeof entry.rank);
        ranks[l].joint = entry.joint != 0;
    }
    if (*found) *plan = header.plan;
    nmlp_str_fini(&bytes);
    return st;
}
