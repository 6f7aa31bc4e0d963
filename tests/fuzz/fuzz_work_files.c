/* Any bytes as the content of a work file whose checksum is right: what a forger can write. The first byte chooses the
 * kind. Opening never crashes, and what it accepts lies inside the file. */
#include <string.h>

#include "base/work_file.h"
#include "compress/factor/layer_file.h"
#include "compress/quantize/quant_file.h"
#include "compress/ranks/rank_file.h"
#include "fuzz/in_memory.h"
#include "model/preset.h"
#include "tensor/quant.h"

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
    for (int kind = 0; kind < NMLP_MODULES; kind++) {
        nmlp_block block = nmlp_block_of(config, (nmlp_module_kind)kind, 0, 1);
        if (nmlp_factor_file_open(&file, path, FINGERPRINT, &block, 1, &state, &err) == NMLP_OK &&
            state == NMLP_WORK_VALID)
            nmlp_factor_file_close(&file);
    }
}

static void read_ranks(const char *path, const nmlp_config *config) {
    nmlp_rank_plan plan;
    nmlp_layer_ranks ranks[2];
    nmlp_work_state state;
    nmlp_err err;
    memset(ranks, 0, sizeof ranks);
    nmlp_block blocks[2] = {nmlp_block_of(config, NMLP_MODULE_MLP, 0, 1),
                            nmlp_block_of(config, NMLP_MODULE_ATTENTION, 0, 1)};
    (void)nmlp_rank_plan_read(path, FINGERPRINT, blocks, 2, &plan, ranks, &state, &err);
}

/* Every byte that a view says it has. */
static unsigned touch(const void *data, size_t bytes) {
    unsigned sum = 0;
    for (size_t i = 0; data && i < bytes; i++) sum += ((const unsigned char *)data)[i];
    return sum;
}

static void read_layer(const char *path, const nmlp_config *c, bool joint) {
    static float weights[256];
    nmlp_layer dense = {0};
    nmlp_layer_file file;
    nmlp_work_state state;
    nmlp_err err;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++)
        dense.mlp[i].w = nmlp_view_2d(weights, NMLP_DTYPE_F32, i == NMLP_MLP_DOWN ? c->hidden : c->intermediate,
                                      i == NMLP_MLP_DOWN ? c->intermediate : c->hidden);
    nmlp_layer_ranks ranks = {.rank = {2, 2, 0}, .joint = joint};
    if (nmlp_layer_file_open(&file, path, FINGERPRINT, &ranks, 1, NMLP_MODULE_MLP, dense.mlp, &state, &err) !=
            NMLP_OK ||
        state != NMLP_WORK_VALID)
        return;
    nmlp_mlp_desc mlp = nmlp_layer_file_mlp(&file, dense.mlp);
    const nmlp_view *const views[] = {&mlp.gate.u, &mlp.gate.v, &mlp.up.u, &mlp.up.v, &mlp.down.w};
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        if (!views[i]->data) abort();
        (void)touch(views[i]->data, nmlp_view_bytes(views[i]));
    }
    nmlp_layer_file_close(&file);
}

static void read_quantised(const char *path) {
    enum { N = 3 };
    static float weights[4 * 64];
    nmlp_view views[N];
    nmlp_view *list[N];
    nmlp_file_map map;
    nmlp_work_state state;
    nmlp_err err;
    for (int i = 0; i < N; i++) {
        views[i] = nmlp_view_2d(weights, NMLP_DTYPE_F32, 4, 64);
        list[i] = &views[i];
    }
    if (nmlp_quant_file_open(&map, path, FINGERPRINT, list, N, &state, &err) != NMLP_OK || state != NMLP_WORK_VALID)
        return;
    for (int i = 0; i < N; i++) {
        float row[64];
        for (int64_t r = 0; r < views[i].shape[0]; r++) nmlp_quant_row_to_f32(row, &views[i], r);
    }
    nmlp_file_map_close(&map);
}

static void read_formats(const char *path) {
    nmlp_quant_format formats[NMLP_QUANT_MATRICES], head;
    nmlp_work_state state;
    nmlp_err err;
    if (nmlp_quant_formats_read(path, FINGERPRINT, formats, NMLP_QUANT_MATRICES, &head, &state, &err) != NMLP_OK ||
        state != NMLP_WORK_VALID)
        return;
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++)
        if ((formats[i].dtype == NMLP_DTYPE_Q4) != (formats[i].group != 0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_config config;
    nmlp_err err;
    if (size < 1 || nmlp_preset_find(&config, "qwen3-1.7b", &err) != NMLP_OK) return 0;
    config.hidden = 8;
    config.intermediate = 16;
    config.n_layers = 2;
    switch (data[0] % 6) {
    case 0: read_ranks(write_sealed("NMLPPLN3", data + 1, size - 1), &config); break;
    case 1: read_factors(write_sealed("NMLPNST5", data + 1, size - 1), &config); break;
    case 2:
    case 3: read_layer(write_sealed("NMLPLAY3", data + 1, size - 1), &config, data[0] % 6 == 3); break;
    case 4: read_quantised(write_sealed("NMLPQNT3", data + 1, size - 1)); break;
    default: read_formats(write_sealed("NMLPQPL3", data + 1, size - 1)); break;
    }
    return 0;
}
