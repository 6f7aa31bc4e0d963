/* Any bytes as a safetensors file: parsing never crashes, and every view it hands out lies inside the file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_safetensors file;
    nmlp_err err;
    unsigned char *copy = aligned_alloc(64, (size + 64) / 64 * 64); /* aligned as a map is */
    if (!copy) return 0;
    memcpy(copy, data, size);
    if (nmlp_safetensors_parse(&file, copy, size, "fuzz", &err) == NMLP_OK) {
        for (size_t i = 0; i < file.n_tensors; i++) {
            const nmlp_view *view = &file.tensors[i].view;
            const unsigned char *begin = view->data;
            size_t bytes = (size_t)nmlp_view_elems(view) * nmlp_named_tensor_elem_bytes(&file.tensors[i]);
            if (begin < copy || begin + bytes > copy + size) abort();
            if (!file.tensors[i].int_bytes) (void)nmlp_view_first_nonfinite(view);
        }
        nmlp_safetensors_close(&file);
    }
    free(copy);
    return 0;
}
