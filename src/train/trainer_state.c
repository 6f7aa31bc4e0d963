/* The state of a run on disk: a header, the log, and for each trained array its values, moments and best values. */
#include <string.h>

#include "base/file.h"
#include "train/trainer.h"

static const char magic[8] = {'n', 'm', 'l', 'p', 'r', 'e', 'c', '1'};

struct header {
    char magic[8];
    uint64_t fingerprint;
    nmlp_progress_state state;
    int64_t n_log;
    uint64_t payload_bytes;
};

static uint64_t payload_bytes(const nmlp_trainer *t, int64_t n_log) {
    uint64_t bytes = (uint64_t)n_log * sizeof *t->log;
    for (size_t i = 0; i < t->n_trained; i++) bytes += 4 * (uint64_t)t->trained[i].n * sizeof(float);
    return bytes;
}

nmlp_status nmlp_trainer_save(const nmlp_trainer *t, const char *path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_file_writer writer = {.fd = -1};
    struct header header = {.fingerprint = t->fingerprint, .state = t->state, .n_log = t->n_log};
    memcpy(header.magic, magic, sizeof magic);
    header.payload_bytes = payload_bytes(t, t->n_log);
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_open(&writer, path, err));
    NMLP_TRY(nmlp_file_writer_write(&writer, &header, sizeof header, err));
    NMLP_TRY(nmlp_file_writer_write(&writer, t->log, (size_t)t->n_log * sizeof *t->log, err));
    for (size_t i = 0; i < t->n_trained; i++) {
        const nmlp_train_trainable *w = &t->trained[i];
        const float *parts[] = {w->data, w->mean, w->square, t->best[i]};
        for (int p = 0; p < 4; p++)
            NMLP_TRY(nmlp_file_writer_write(&writer, parts[p], (size_t)w->n * sizeof(float), err));
    }
    return nmlp_file_writer_commit(&writer, err);
out:
    nmlp_file_writer_abort(&writer);
    return st;
}

static nmlp_status check_header(const nmlp_trainer *t, const struct header *h, size_t bytes, const char *path,
                                nmlp_err *err) {
    if (bytes < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: not the state of a recovery run", path);
    if (h->fingerprint != t->fingerprint) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: the state belongs to a run with another model, text or options", path);
        nmlp_fail_hint(err, "repeat the command that was interrupted, or leave out `resume` to start anew");
        return NMLP_E_UNSUPPORTED;
    }
    if (h->n_log < 1 || h->n_log > t->options.steps + 1 || h->payload_bytes != payload_bytes(t, h->n_log) ||
        bytes != sizeof *h + h->payload_bytes)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: %zu bytes do not fit its header", path, bytes);
    return NMLP_OK;
}

nmlp_status nmlp_trainer_load(nmlp_trainer *t, const char *path, bool *found, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_file_map map = {0};
    struct header header = {0};
    *found = nmlp_file_exists(path);
    if (!*found) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    if (map.bytes >= sizeof header) memcpy(&header, map.data, sizeof header);
    NMLP_TRY(check_header(t, &header, map.bytes, path, err));
    const unsigned char *at = map.data + sizeof header;
    t->state = header.state;
    t->n_log = header.n_log;
    memcpy(t->log, at, (size_t)t->n_log * sizeof *t->log);
    at += (size_t)t->n_log * sizeof *t->log;
    for (size_t i = 0; i < t->n_trained; i++) {
        const nmlp_train_trainable *w = &t->trained[i];
        float *parts[] = {w->data, w->mean, w->square, t->best[i]};
        for (int p = 0; p < 4; p++, at += (size_t)w->n * sizeof(float))
            memcpy(parts[p], at, (size_t)w->n * sizeof(float));
    }
    for (size_t i = 0; i < t->n_adapters; i++) nmlp_train_adapter_apply(&t->adapters[i], nmlp_train_net_exec(t->net));
out:
    nmlp_file_map_close(&map);
    return st;
}
