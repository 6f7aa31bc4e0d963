/* Any bytes as the state of a recovery run whose checksum is right: what a forger can write. Refused, or a step that
 * the run can go on from. With an odd first byte the arrays behind the header are filled up to the length they need. */
#include <string.h>

#include "base/work_file.h"
#include "fuzz/small_model.h"
#include "train/trainer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_IDS = 128, STEPS = 3 };

static nmlp_trainer trainer;

static void open_trainer(void) {
    static nmlp_model model;
    static int32_t ids[N_IDS];
    nmlp_recover_options options = nmlp_recover_defaults();
    nmlp_err err = {0};
    options.steps = STEPS;
    options.batch = 1;
    options.context = 8;
    options.heldout = 1;
    options.explore = 0;
    options.isa = "ref";
    for (int i = 0; i < N_IDS; i++) ids[i] = i;
    if (nmlp_model_open(&model, small_model_dir(0.4), &err) != NMLP_OK ||
        nmlp_trainer_init(&trainer, &model, ids, N_IDS, &options, &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

/* The number of log lines stands last in the header. */
static size_t needed_bytes(const uint8_t *data, size_t size) {
    size_t header_bytes = sizeof(nmlp_progress_state) + sizeof(int64_t), need = header_bytes;
    int64_t n_log = 0;
    if (size >= header_bytes) memcpy(&n_log, data + sizeof(nmlp_progress_state), sizeof n_log);
    if (n_log < 0 || n_log > 2 * STEPS) return size;
    need += (size_t)n_log * sizeof(nmlp_recover_step);
    for (size_t i = 0; i < trainer.n_trained; i++) need += 4 * (size_t)trainer.trained[i].n * sizeof(float);
    return need;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char zeros[1 << 16];
    char path[128];
    nmlp_work_writer writer;
    nmlp_err err = {0};
    bool found;
    if (!trainer.model) open_trainer();
    if (size < 1) return 0;
    size_t len = size - 1, need = data[0] & 1 ? needed_bytes(data + 1, len) : len;
    size_t given = len < need ? len : need;
    if (need - given > sizeof zeros) abort();
    snprintf(path, sizeof path, "%s/state", in_memory_dir());
    if (nmlp_work_writer_open(&writer, path, "nmlprec2", trainer.fingerprint, &err) != NMLP_OK ||
        nmlp_work_writer_put(&writer, data + 1, given, &err) != NMLP_OK ||
        nmlp_work_writer_put(&writer, zeros, need - given, &err) != NMLP_OK ||
        nmlp_work_writer_commit(&writer, &err) != NMLP_OK)
        abort();
    nmlp_status st = nmlp_trainer_load(&trainer, path, &found, &err);
    if (!found || (st != NMLP_OK && !err.message[0])) abort();
    if (st == NMLP_OK && (trainer.state.step < 0 || trainer.state.step > STEPS || trainer.n_log > STEPS + 1)) abort();
    return 0;
}
