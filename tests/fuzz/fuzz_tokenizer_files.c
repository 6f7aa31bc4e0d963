/* Any bytes as a folder with a tokenizer.model (sentencepiece or tiktoken) and a tokenizer_config.json: refused, or a
 * tokenizer whose ids are its own. Input: length of the configuration in two bytes, the configuration, the model. */
#include <string.h>

#include "fuzz/in_memory.h"
#include "fuzz/small_model.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "Hello \xC3\xA9 <s>  1234\n\xE2\x96\x81x";
    nmlp_tokenizer *t;
    nmlp_ids ids;
    nmlp_str again;
    nmlp_err err = {0};
    if (size < 2) return 0;
    size_t config_len = first_part(data, size);
    (void)in_memory_file("tokenizer_config.json", data + 2, config_len);
    (void)in_memory_file("tokenizer.model", data + 2 + config_len, size - 2 - config_len);
    if (nmlp_tokenizer_load(&t, in_memory_dir(), &err) != NMLP_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    nmlp_ids_init(&ids);
    nmlp_str_init(&again);
    int64_t bos = nmlp_tokenizer_bos_id(t);
    if (bos < -1 || bos >= nmlp_tokenizer_vocab_size(t)) abort();
    if (nmlp_tokenizer_encode(t, text, sizeof text - 1, NMLP_BOS_TEMPLATE, true, &ids, &err) == NMLP_OK) {
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] < 0 || ids.data[i] >= nmlp_tokenizer_vocab_size(t)) abort();
        if (nmlp_tokenizer_decode(t, ids.data, ids.len, false, &again, &err) != NMLP_OK) abort();
    }
    nmlp_str_fini(&again);
    nmlp_ids_fini(&ids);
    nmlp_tokenizer_destroy(t);
    return 0;
}
