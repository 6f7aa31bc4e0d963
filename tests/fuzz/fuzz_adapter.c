/* Any bytes as a LoRA adapter: refused, or merged without reading outside of its file. Input: length of the
 * configuration in two bytes, adapter_config.json, adapter_model.safetensors. */
#include "fuzz/small_model.h"
#include "model/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_model model;
    nmlp_err err = {0};
    if (size < 2) return 0;
    const char *dir = small_model_dir(0);
    size_t config_len = first_part(data, size);
    (void)in_memory_file("adapter_config.json", data + 2, config_len);
    (void)in_memory_file("adapter_model.safetensors", data + 2 + config_len, size - 2 - config_len);
    if (nmlp_model_open(&model, dir, &err) != NMLP_OK) abort();
    if (nmlp_model_merge_adapter(&model, in_memory_dir(), NULL, &err) != NMLP_OK && !err.message[0]) abort();
    nmlp_model_close(&model);
    return 0;
}
