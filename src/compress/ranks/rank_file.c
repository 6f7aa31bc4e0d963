#include "compress/ranks/rank_file.h"

#include <math.h>
#include <string.h>

#include "base/work_file.h"
#include "compress/ranks/search.h"

static const char magic[] = "NMLPPLN2";

struct header {
    int64_t n_layers;
    nmlp_rank_plan plan;
};

struct entry {
    int64_t rank[NMLP_MLP_MATRICES];
    int64_t joint;
};

nmlp_status nmlp_rank_plan_write(const char *path, uint64_t fingerprint, const nmlp_rank_plan *plan,
                                 const nmlp_layer_ranks *ranks, int64_t n_layers, nmlp_err *err) {
    nmlp_work_writer writer;
    struct header header;
    nmlp_status st = NMLP_OK;
    memset(&header, 0, sizeof header);
    header.n_layers = n_layers;
    header.plan = *plan;
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, &header, sizeof header, err));
    for (int64_t l = 0; l < n_layers; l++) {
        struct entry entry = {.joint = ranks[l].joint};
        memcpy(entry.rank, ranks[l].rank, sizeof entry.rank);
        NMLP_TRY(nmlp_work_writer_put(&writer, &entry, sizeof entry, err));
    }
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

/* Ranks that factors of this model can have. */
static bool is_possible(const struct entry *e, const nmlp_config *c, int64_t layer) {
    int64_t inner = nmlp_config_mlp_inner(c, layer);
    int64_t tall = nmlp_rank_break_even((e->joint ? 2 : 1) * inner, c->hidden);
    int64_t down = nmlp_rank_break_even(c->hidden, inner);
    int64_t gate = e->rank[NMLP_MLP_GATE], up = e->rank[NMLP_MLP_UP];
    if (e->joint && (gate != up || gate == 0)) return false;
    return gate >= 0 && gate <= tall && up >= 0 && up <= tall && e->rank[NMLP_MLP_DOWN] >= 0 &&
           e->rank[NMLP_MLP_DOWN] <= down;
}

static bool read_payload(const nmlp_file_map *map, size_t payload_bytes, const nmlp_config *c, nmlp_rank_plan *plan,
                         nmlp_layer_ranks *ranks) {
    struct header header;
    nmlp_work_cursor cursor = {.at = map->data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, false);
    if (!front) return false;
    memcpy(&header, front, sizeof header);
    if (header.n_layers != c->n_layers || header.plan.name[sizeof header.plan.name - 1] != '\0' ||
        header.plan.n_candidates < 0 || header.plan.n_candidates > NMLP_RANK_CANDIDATES_MAX)
        return false;
    for (int64_t l = 0; l < c->n_layers; l++) {
        struct entry entry;
        const void *at = nmlp_work_take(&cursor, sizeof entry, false);
        if (!at) return false;
        memcpy(&entry, at, sizeof entry);
        if (!is_possible(&entry, c, l)) return false;
        memcpy(ranks[l].rank, entry.rank, sizeof entry.rank);
        ranks[l].joint = entry.joint != 0;
    }
    *plan = header.plan;
    return cursor.left_bytes == 0;
}

nmlp_status nmlp_rank_plan_read(const char *path, uint64_t fingerprint, const nmlp_config *config, nmlp_rank_plan *plan,
                                nmlp_layer_ranks *ranks, nmlp_work_state *state, nmlp_err *err) {
    nmlp_file_map map;
    size_t payload_bytes = 0;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state == NMLP_WORK_VALID && !read_payload(&map, payload_bytes, config, plan, ranks))
        *state = NMLP_WORK_DAMAGED;
    nmlp_file_map_close(&map);
    return NMLP_OK;
}
