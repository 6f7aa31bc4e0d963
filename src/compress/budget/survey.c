#include "compress/budget/survey.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

enum { RANKS_MAX = 1 << 20 };
static const char magic[] = "NMLPSRV4";

struct header {
    int64_t n_layers, tile, n_ranks;
};

static size_t n_bits(const nmlp_loss_survey *s) {
    return (size_t)((s->n_layers * NMLP_QUANT_MATRICES + 1) * NMLP_QUANT_OPTIONS);
}

static size_t n_cut(const nmlp_loss_survey *s) { return (size_t)(s->n_layers * NMLP_NESTED_COUNT * s->n_ranks); }

static nmlp_status new_tables(nmlp_loss_survey *s, nmlp_err *err) {
    s->bits = nmlp_mem_new(n_bits(s), sizeof *s->bits, err);
    s->cut = nmlp_mem_new(n_cut(s) + 1, sizeof *s->cut, err);
    return s->bits && s->cut ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_loss_survey_fini(nmlp_loss_survey *s) {
    nmlp_mem_free(s->bits);
    nmlp_mem_free(s->cut);
    *s = (nmlp_loss_survey){0};
}

/* Divergence by rank from the sensitivity of each group and what each rank cuts off. */
static void fill_cut(nmlp_loss_survey *s, const nmlp_factor_file *files, const double *gate_up, const double *down) {
    for (int64_t l = 0; l < s->n_layers; l++) {
        for (int kind = 0; kind < NMLP_NESTED_COUNT; kind++) {
            const nmlp_nested *n = &files[l].nested[kind];
            double sensitivity = kind == NMLP_NESTED_DOWN ? down[l] : gate_up[l];
            int64_t at = (l * NMLP_NESTED_COUNT + kind) * s->n_ranks;
            for (int64_t k = 0; k < s->n_ranks; k++) {
                int64_t rank = (k + 1) * s->tile;
                s->cut[at + k] = rank <= n->rank ? fmax(sensitivity, 0) * n->loss[rank] : INFINITY;
            }
        }
    }
}

static int64_t most_ranks(const nmlp_search *search, int64_t n_layers) {
    int64_t most = 0;
    for (int64_t l = 0; l < n_layers; l++)
        for (int kind = 0; kind < NMLP_NESTED_COUNT; kind++)
            most = nmlp_max(most, search->factor_files[l].nested[kind].rank / search->tile);
    return most;
}

nmlp_status nmlp_loss_survey_make(nmlp_loss_survey *s, const nmlp_search *search, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(search->engine)->config;
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    bool some_tile_pays = nmlp_rank_break_even(c->intermediate, c->hidden) >= search->tile;
    *s = (nmlp_loss_survey){.n_layers = c->n_layers, .tile = search->tile};
    s->n_ranks = some_tile_pays ? most_ranks(search, c->n_layers) : 0;
    nmlp_arena_init(&arena);
    double *gate_up = nmlp_arena_new(&arena, (size_t)c->n_layers, sizeof *gate_up, err);
    double *down = nmlp_arena_new(&arena, (size_t)c->n_layers, sizeof *down, err);
    if (!gate_up || !down) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(new_tables(s, err));
    nmlp_quant_probe probe = {.engine = search->engine, .heldout = search->heldout, .progress = search->progress};
    NMLP_TRY(nmlp_quant_probe_run(&probe, s->bits, err));
    if (s->n_ranks > 0) {
        NMLP_TRY(nmlp_search_probe(search, gate_up, down, err));
        fill_cut(s, search->factor_files, gate_up, down);
    }
out:
    nmlp_arena_fini(&arena);
    if (st != NMLP_OK) nmlp_loss_survey_fini(s);
    return st;
}

nmlp_status nmlp_loss_survey_write(const char *path, uint64_t fingerprint, const nmlp_loss_survey *s, nmlp_err *err) {
    nmlp_work_writer writer;
    struct header header = {s->n_layers, s->tile, s->n_ranks};
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, &header, sizeof header, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, s->bits, n_bits(s) * sizeof *s->bits, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, s->cut, n_cut(s) * sizeof *s->cut, err));
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

static bool take(nmlp_work_cursor *cursor, double *to, size_t n) {
    const void *from = nmlp_work_take(cursor, n * sizeof *to, false);
    if (from) memcpy(to, from, n * sizeof *to);
    return from != NULL;
}

nmlp_status nmlp_loss_survey_read(const char *path, uint64_t fingerprint, int64_t n_layers, nmlp_loss_survey *s,
                                  nmlp_work_state *state, nmlp_err *err) {
    nmlp_file_map map;
    size_t payload_bytes = 0;
    struct header header;
    nmlp_status st = NMLP_OK;
    *s = (nmlp_loss_survey){0};
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state != NMLP_WORK_VALID) return NMLP_OK;
    nmlp_work_cursor cursor = {.at = map.data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, false);
    if (front) memcpy(&header, front, sizeof header);
    if (!front || header.n_layers != n_layers || header.tile < 1 || header.n_ranks < 0 || header.n_ranks > RANKS_MAX) {
        *state = NMLP_WORK_DAMAGED;
        goto out;
    }
    *s = (nmlp_loss_survey){.n_layers = n_layers, .tile = header.tile, .n_ranks = header.n_ranks};
    NMLP_TRY(new_tables(s, err));
    bool whole = take(&cursor, s->bits, n_bits(s)) && take(&cursor, s->cut, n_cut(s));
    if (!whole || cursor.left_bytes != 0) *state = NMLP_WORK_DAMAGED;
out:
    nmlp_file_map_close(&map);
    if (st != NMLP_OK || *state != NMLP_WORK_VALID) nmlp_loss_survey_fini(s);
    return st;
}
