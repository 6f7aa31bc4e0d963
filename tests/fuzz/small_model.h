/* For fuzzers that need a model beside what they read: a dense one of a few kilobytes, written once. */
#ifndef NMLP_TESTS_FUZZ_SMALL_MODEL_H
#define NMLP_TESTS_FUZZ_SMALL_MODEL_H

#include "fuzz/in_memory.h"
#include "model/preset.h"

static inline nmlp_config small_config(void) {
    nmlp_config c;
    nmlp_err err;
    if (nmlp_preset_find(&c, "qwen3-1.7b", &err) != NMLP_OK) abort();
    c.hidden = 8;
    c.intermediate = 16;
    c.n_layers = 1;
    c.n_heads = 2;
    c.n_kv_heads = 1;
    c.head_dim = 4;
    c.rope_dim = 4;
    c.vocab = 300;
    c.max_positions = 32;
    return c;
}

/* Its folder; `ratio` of the MLP removed, 0: dense. */
static inline const char *small_model_dir(double ratio) {
    static char dir[128];
    int64_t params, bytes;
    nmlp_err err;
    nmlp_config c = small_config();
    nmlp_synth_options options = {.ratio = ratio, .tile = 4, .dtype = NMLP_DTYPE_BF16};
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "%s/model", in_memory_dir());
    if (nmlp_synth_write(dir, &c, &options, &params, &bytes, &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return dir;
}

/* Bytes of the first of two files: the input's first two bytes say how many, as far as there are any. */
static inline size_t first_part(const uint8_t *data, size_t size) {
    size_t len = (size_t)data[0] | (size_t)data[1] << 8;
    return len < size - 2 ? len : size - 2;
}

#endif
