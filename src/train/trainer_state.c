/* The state of a run on disk: a header, the log, and for each trained array its values, moments and best values. */
#include <string.h>

#include "base/work_file.h"
#include "train/trainer.h"

static const char magic[] = "nmlprec2";

struct header {
    nmlp_progress_state state;
    int64_t n_log;
};

nmlp_status nmlp_trainer_save(const nmlp_trainer *t, const char *path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_work_writer writer;
    struct header header = {.state = t->state, .n_log = t->n_log};
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, t->fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, &header, sizeof header, err));
    NMLP_TRY(nmlp_work_writer_put(&writer, t->log, (size_t)t->n_log * sizeof *t->log, err));
    for (size_t i = 0; i < t->n_trained; i++) {
        const nmlp_train_trainable *w = &t->trained[i];
        const float *parts[] = {w->data, w->mean, w->square, t->best[i]};
        for (int p = 0; p < 4; p++)
            NMLP_TRY(nmlp_work_writer_put(&writer, parts[p], (size_t)w->n * sizeof(float), err));
    }
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

/* A step behind its log: the loop writes on from there. */
static bool is_possible(const nmlp_trainer *t, const struct header *h) {
    const nmlp_progress_state *s = &h->state;
    return s->step >= 0 && s->step <= t->options.steps && h->n_log == s->step + 1 && s->best_step >= 0 &&
           s->best_step <= s->step && s->n_bad >= 0;
}

static bool read_payload(nmlp_trainer *t, const nmlp_file_map *map, size_t payload_bytes) {
    struct header header;
    nmlp_work_cursor cursor = {.at = map->data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, false);
    size_t want = 0;
    if (!front) return false;
    memcpy(&header, front, sizeof header);
    if (!is_possible(t, &header)) return false;
    want = (size_t)header.n_log * sizeof *t->log;
    for (size_t i = 0; i < t->n_trained; i++) want += 4 * (size_t)t->trained[i].n * sizeof(float);
    if (cursor.left_bytes != want) return false; /* before anything is overwritten */
    t->state = header.state;
    t->n_log = header.n_log;
    memcpy(t->log, nmlp_work_take(&cursor, (size_t)t->n_log * sizeof *t->log, false),
           (size_t)t->n_log * sizeof *t->log);
    for (size_t i = 0; i < t->n_trained; i++) {
        const nmlp_train_trainable *w = &t->trained[i];
        size_t bytes = (size_t)w->n * sizeof(float);
        float *parts[] = {w->data, w->mean, w->square, t->best[i]};
        for (int p = 0; p < 4; p++) memcpy(parts[p], nmlp_work_take(&cursor, bytes, false), bytes);
    }
    return true;
}

nmlp_status nmlp_trainer_load(nmlp_trainer *t, const char *path, bool *found, nmlp_err *err) {
    nmlp_file_map map;
    nmlp_work_state state;
    size_t payload_bytes = 0;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, magic, t->fingerprint, &payload_bytes, &state, err));
    *found = state != NMLP_WORK_ABSENT;
    bool read = state == NMLP_WORK_VALID && read_payload(t, &map, payload_bytes);
    nmlp_file_map_close(&map);
    if (read) nmlp_trainer_apply(t);
    if (read || !*found) return NMLP_OK;
    if (state == NMLP_WORK_OTHER) {
        nmlp_fail(
            err, NMLP_E_UNSUPPORTED,
            "%s: the state belongs to a run with another model, teacher, text, kernel set, version or other options",
            path);
        nmlp_fail_hint(err, "repeat the command that was interrupted, or leave out `resume` to start anew");
        return NMLP_E_UNSUPPORTED;
    }
    nmlp_fail(err, NMLP_E_FORMAT, "%s: the state of the run is damaged", path);
    nmlp_fail_hint(err, "leave out `resume` to start anew");
    return NMLP_E_FORMAT;
}

nmlp_status nmlp_trainer_share(nmlp_trainer *t, nmlp_err *err) {
    const nmlp_process_group *group = t->options.group;
    struct header header = {.state = t->state, .n_log = t->n_log};
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, &header, sizeof header, err));
    t->state = header.state;
    t->n_log = header.n_log;
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, t->log, t->n_log * (int64_t)sizeof *t->log, err));
    for (size_t i = 0; i < t->n_trained; i++) {
        const nmlp_train_trainable *w = &t->trained[i];
        float *parts[] = {w->data, w->mean, w->square, t->best[i]};
        for (int p = 0; p < 4; p++)
            NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, parts[p], w->n * (int64_t)sizeof(float), err));
    }
    nmlp_trainer_apply(t);
    return NMLP_OK;
}
