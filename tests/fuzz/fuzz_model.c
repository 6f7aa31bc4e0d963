/* Any bytes as a model directory, quantised, compressed and with experts too: refused, or every weight it binds can be
 * read. Input: length of config.json in two bytes, config.json, model.safetensors. */
#include "compress/record.h"
#include "fuzz/small_model.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_model model;
    nmlp_compress_record record;
    nmlp_err err = {0};
    if (size < 2) return 0;
    size_t config_len = first_part(data, size);
    (void)in_memory_file("config.json", data + 2, config_len);
    (void)in_memory_file("model.safetensors", data + 2 + config_len, size - 2 - config_len);
    if (nmlp_model_open(&model, in_memory_dir(), &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    (void)nmlp_model_check_finite(&model, NULL, NULL, &err);
    if (nmlp_model_measure(&model).params < 1) abort();
    (void)nmlp_model_widen(&model, NULL, &err);
    if (nmlp_compress_record_load(&record, &model, &err) == NMLP_OK) nmlp_compress_record_fini(&record);
    nmlp_model_close(&model);
    return 0;
}
