/* Any bytes as model.safetensors.index.json beside a weight file: opening the checkpoint never crashes, and never looks
 * outside of its folder. */
#include "checkpoint/checkpoint.h"
#include "fuzz/in_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char weights[] =
        "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0\0";
    nmlp_checkpoint checkpoint;
    nmlp_err err;
    (void)in_memory_file("part.safetensors", weights, sizeof weights - 1);
    (void)in_memory_file("config.json", "{}", 2);
    (void)in_memory_file("model.safetensors.index.json", data, size);
    if (nmlp_checkpoint_open(&checkpoint, in_memory_dir(), &err) == NMLP_OK) nmlp_checkpoint_close(&checkpoint);
    return 0;
}
