/* Any bytes as the content of a work file whose checksum is right: what a forger can write. The first byte chooses the
 * kind. Opening never crashes, and what it accepts lies inside the file. */
#include <string.h>

#include "base/work_file.h"
#include "compress/factor/factor_file.h"
#include "compress/ranks/rank_file.h"
#include "fuzz/in_memory.h"
#include "model/preset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FINGERPRINT = 77 };

static const char *write_sealed(const char *magic, const uint8_t *data, size_t size) {
    static char path[128];
    nmlp_work_writer writer;
    nmlp_err err;
    snprintf(path, sizeof path, "%s/work", in_memory_dir());
    if (nmlp_work_writer_open(&writer, path, magic, FINGERPRINT, &err) != NMLP_OK ||
        nmlp_work_writer_put(&writer, data, size, &err) != NMLP_OK || nmlp_work_writer_commit(&writer, &err) != NMLP_OK)
        abort();
    return path;
}

static void read_factors(const char *path, const nmlp_config *config) {
    nmlp_factor_file file;
    nmlp_work_state state;
    nmlp_err err;
    if (nmlp_factor_file_open(&file, path, FINGERPRINT, config, 1, &state, &err) == NMLP_OK && state == NMLP_WORK_VALID)
        nmlp_factor_file_close(&file);
}

static void read_ranks(const char *path, const nmlp_config *config) {
    nmlp_rank_plan plan;
    nmlp_layer_ranks ranks[2];
    nmlp_work_state state;
    nmlp_err err;
    memset(ranks, 0, sizeof ranks);
    (void)nmlp_rank_plan_read(path, FINGERPRINT, config, &plan, ranks, &state, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_config config;
    nmlp_err err;
    if (size < 1 || nmlp_preset_find(&config, "qwen3-1.7b", &err) != NMLP_OK) return 0;
    config.hidden = 8;
    config.intermediate = 16;
    config.n_layers = 2;
    if (data[0] & 1)
        read_factors(write_sealed("NMLPNST4", data + 1, size - 1), &config);
    else
        read_ranks(write_sealed("NMLPPLN2", data + 1, size - 1), &config);
    return 0;
}
