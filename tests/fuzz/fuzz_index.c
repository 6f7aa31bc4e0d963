/* Any bytes as model.safetensors.index.json beside a weight file: opening the checkpoint never crashes, never looks
 * outside of its folder, and finds what it has. */
#include "checkpoint/checkpoint.h"
#include "fuzz/small_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_others(void) {
    static const char weights[] =
        "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0\0";
    static const char good[] = "{\"weight_map\":{\"a\":\"part.safetensors\"}}";
    nmlp_config config = small_config();
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_config_write(&config, NULL, NULL, 0, &text);
    (void)in_memory_file("config.json", text.data, text.len);
    nmlp_str_fini(&text);
    (void)in_memory_file("part.safetensors", weights, sizeof weights - 1);
    /* With an index that is right it opens: the others are not refused for something else. */
    nmlp_checkpoint checkpoint;
    nmlp_err err;
    (void)in_memory_file("model.safetensors.index.json", good, sizeof good - 1);
    if (nmlp_checkpoint_open(&checkpoint, in_memory_dir(), &err) != NMLP_OK) abort();
    nmlp_checkpoint_close(&checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool written;
    nmlp_checkpoint checkpoint;
    nmlp_err err = {0};
    if (!written) write_others();
    written = true;
    (void)in_memory_file("model.safetensors.index.json", data, size);
    if (nmlp_checkpoint_open(&checkpoint, in_memory_dir(), &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < checkpoint.n_tensors; i++)
        if (!nmlp_checkpoint_find(&checkpoint, checkpoint.tensors[i].name)) abort();
    nmlp_checkpoint_close(&checkpoint);
    return 0;
}
