/* Any state of a recovery run whose checksum is right: what a forger can write. Refused, or a step that the run can go
 * on from; what was read is written as it was. The first byte says how the file is made (patched.h). */
#include "fuzz/patched.h"
#include "fuzz/small_model.h"
#include "train/trainer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_IDS = 128, STEPS = 3 };

static nmlp_trainer trainer;
static payload base;

static void must(nmlp_status st, const nmlp_err *err) {
    if (st == NMLP_OK) return;
    fprintf(stderr, "%s\n", err->message);
    abort();
}

static payload saved(void) {
    char path[128];
    nmlp_err err = {0};
    snprintf(path, sizeof path, "%s/again", in_memory_dir());
    must(nmlp_trainer_save(&trainer, path, &err), &err);
    return payload_of(path);
}

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
    must(nmlp_model_open(&model, small_model_dir(0.4), &err), &err);
    must(nmlp_trainer_init(&trainer, &model, ids, N_IDS, &options, &err), &err);
    trainer.n_log = 1; /* as before the first step */
    base = saved();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_err err = {0};
    bool found;
    if (!trainer.model) open_trainer();
    int how = size > 0 ? data[0] : 0;
    const char *path =
        payload_file(&base, how, "nmlprec2", trainer.fingerprint, data + (size > 0), size > 0 ? size - 1 : 0);
    nmlp_status st = nmlp_trainer_load(&trainer, path, &found, &err);
    if (!found || (st != NMLP_OK && !err.message[0])) abort();
    if (size == 0) must(st, &err); /* the program's own state is read: others are not refused for something else */
    if (st != NMLP_OK) return 0;
    if (trainer.state.step < 0 || trainer.state.step > STEPS || trainer.n_log != trainer.state.step + 1) abort();
    payload read = payload_of(path), again = saved();
    if (!same_payload(&read, &again)) abort();
    must(nmlp_trainer_share(&trainer, &err), &err);
    again = saved();
    return same_payload(&read, &again) ? 0 : (abort(), 0);
}
