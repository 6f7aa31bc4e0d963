/* Any bytes as a GGUF file: parsing never crashes, every tensor it hands out lies inside the file, and what reads
 * metadata stays inside too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gguf/gguf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk_items(const nmlp_gguf_value *v, const unsigned char *end) {
    nmlp_gguf_items items = {.at = v->data, .left = v->n, .kind = v->item_kind};
    const char *text;
    size_t len;
    double number;
    if (v->kind != NMLP_GGUF_ARRAY) return;
    if (v->item_kind == NMLP_GGUF_STRING) {
        while (nmlp_gguf_next_string(&items, &text, &len))
            if ((const unsigned char *)text + len > end) abort();
        return;
    }
    while (nmlp_gguf_next_number(&items, &number)) {
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_gguf file;
    nmlp_err err;
    nmlp_config config;
    bool in_pairs;
    unsigned char *copy = malloc(size ? size : 1);
    if (!copy) return 0;
    memcpy(copy, data, size);
    if (nmlp_gguf_parse(&file, copy, size, "fuzz", &err) == NMLP_OK) {
        for (size_t i = 0; i < file.n_tensors; i++)
            if (file.tensors[i].data < copy || file.tensors[i].data + file.tensors[i].bytes > copy + size) abort();
        for (size_t i = 0; i < file.n_values; i++) walk_items(&file.values[i], copy + size);
        (void)nmlp_gguf_config_read(&config, &in_pairs, &file, &err);
        nmlp_gguf_close(&file);
    }
    free(copy);
    return 0;
}
