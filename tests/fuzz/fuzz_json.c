/* Any bytes as JSON: refused, or a document all of which can be walked. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_json_doc doc;
    nmlp_err err = {0};
    if (nmlp_json_parse(&doc, (const char *)data, size, "fuzz", &err) == NMLP_OK) {
        if (!doc.root) abort();
        nmlp_json_free(&doc);
    } else if (!strlen(err.message)) {
        abort();
    }
    return 0;
}
