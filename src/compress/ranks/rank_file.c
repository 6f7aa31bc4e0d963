#include "compress/ranks/rank_file.h"

#include <math.h>
#include <string.h>

#include "base/work_file.h"
#include "compress/ranks/search.h"

static const char magic[] = "NMLPPLN3";

struct header {
    int64_t n_blocks;
    nmlp_rank_plan plan;
};

struct entry {
    int64_t rank[NMLP_MODULE_MATRICES_MAX];
    int64_t joint;
};

nmlp_status nmlp_rank_plan_write(const char *path, uint64_t fingerprint, const nmlp_rank_plan *plan,
                                 const nmlp_layer_ranks *ranks, int64_t n_blocks, nmlp_err *err) {
    nmlp_work_writer writer;
    struct header header;
    nmlp_status st = NMLP_OK;
    memset(&header, 0, sizeof header);
    header.n_blocks = n_blocks;
    header.plan = *plan;
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, &header, sizeof header, err));
    for (int64_t b = 0; b < n_blocks; b++) {
        struct entry entry = {.joint = ranks[b].joint};
        memcpy(entry.rank, ranks[b].rank, sizeof entry.rank);
        NMLP_TRY(nmlp_work_writer_put(&writer, &entry, sizeof entry, err));
    }
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

/* Ranks that factors of this block can have. */
static bool is_possible(const nmlp_layer_ranks *r, const nmlp_block *b) {
    for (int i = 0; i < NMLP_MODULE_MATRICES_MAX; i++) {
        int entry = nmlp_block_entry(b, r, i);
        int64_t most = i <= b->n_first ? nmlp_rank_break_even(b->rows[entry], b->cols[entry]) : 0;
        if (r->rank[i] < 0 || r->rank[i] > most) return false;
        if (r->joint && i < b->n_first && (r->rank[i] != r->rank[0] || r->rank[0] == 0)) return false;
    }
    return true;
}

static bool read_payload(const nmlp_file_map *map, size_t payload_bytes, const nmlp_block *blocks, int64_t n_blocks,
                         nmlp_rank_plan *plan, nmlp_layer_ranks *ranks) {
    struct header header;
    nmlp_work_cursor cursor = {.at = map->data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, false);
    if (!front) return false;
    memcpy(&header, front, sizeof header);
    if (header.n_blocks != n_blocks || header.plan.name[sizeof header.plan.name - 1] != '\0' ||
        header.plan.n_candidates < 0 || header.plan.n_candidates > NMLP_RANK_CANDIDATES_MAX)
        return false;
    for (int64_t b = 0; b < n_blocks; b++) {
        struct entry entry;
        const void *at = nmlp_work_take(&cursor, sizeof entry, false);
        if (!at) return false;
        memcpy(&entry, at, sizeof entry);
        memcpy(ranks[b].rank, entry.rank, sizeof entry.rank);
        ranks[b].joint = entry.joint != 0;
        if (!is_possible(&ranks[b], &blocks[b])) return false;
    }
    *plan = header.plan;
    return cursor.left_bytes == 0;
}

nmlp_status nmlp_rank_plan_read(const char *path, uint64_t fingerprint, const nmlp_block *blocks, int64_t n_blocks,
                                nmlp_rank_plan *plan, nmlp_layer_ranks *ranks, nmlp_work_state *state, nmlp_err *err) {
    nmlp_file_map map;
    size_t payload_bytes = 0;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state == NMLP_WORK_VALID && !read_payload(&map, payload_bytes, blocks, n_blocks, plan, ranks))
        *state = NMLP_WORK_DAMAGED;
    nmlp_file_map_close(&map);
    return NMLP_OK;
}
